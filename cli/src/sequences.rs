//! Sequences of several lengths that follow each other in one tensor, checked, and their attention, member by member.

use std::ops::Range;
use std::path::{Path, PathBuf};

use ferrotile::{AttentionOptions, AttentionProblem, Gpu, Layout, VarlenProblem};
use ndarray::{ArrayView4, s};

use crate::attention::{Checked, Task};
use crate::memory::array_bytes;
use crate::on_card;
use crate::problem::{Half, Problem, ProblemError, Solution, Terms, convert, dimensions};
use crate::tensor::{self, FileError, Tensor};

/// Why numbers of a file are not where sequences start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StartsError {
    /// Not even the 0 of a batch without members.
    #[error("{path}: there are no numbers, expected 0 and the end of each sequence")]
    Nothing {
        /// The file.
        path: PathBuf,
    },
    /// The first sequence starts somewhere else.
    #[error("{path}: the first number is {got}, expected 0")]
    First {
        /// The file.
        path: PathBuf,
        /// The number.
        got: i64,
    },
    /// A sequence ends before it starts.
    #[error("{path}: number {index} is {got}, less than the {before} before it")]
    Descending {
        /// The file.
        path: PathBuf,
        /// Position of the number, from 0.
        index: usize,
        /// The number.
        got: i64,
        /// The number before it.
        before: i64,
    },
    /// Sequences have other rows than the tensor.
    #[error("{path}: the last number is {got}, expected {rows}, the rows of {tensor}")]
    Last {
        /// The file.
        path: PathBuf,
        /// The number.
        got: i64,
        /// The tensor.
        tensor: &'static str,
        /// Its rows.
        rows: usize,
    },
    /// A sequence of rows without one of keys, or the reverse.
    #[error("{q} sequences of rows and {k} of keys, expected as many")]
    Members {
        /// Sequences of rows.
        q: usize,
        /// Sequences of keys.
        k: usize,
    },
}

/// What a file says about where sequences start, not yet checked.
#[derive(Debug, Clone)]
pub(crate) struct StartsFile {
    path: PathBuf,
    numbers: Vec<i64>,
}

impl StartsFile {
    /// Reads an NPY file of integers.
    pub(crate) fn read(path: &Path) -> Result<StartsFile, FileError> {
        Ok(StartsFile { path: path.to_owned(), numbers: tensor::read_npy_integers(path)? })
    }

    /// The starts, if they ascend from 0 to the rows of the tensor.
    fn of_rows(&self, tensor: &'static str, rows: usize) -> Result<Vec<usize>, StartsError> {
        let StartsFile { path, numbers } = self;
        let path = || path.clone();
        let (Some(&first), Some(&last)) = (numbers.first(), numbers.last()) else {
            return Err(StartsError::Nothing { path: path() });
        };
        if first != 0 {
            return Err(StartsError::First { path: path(), got: first });
        }
        if let Some(index) = (1..numbers.len()).find(|&index| numbers[index] < numbers[index - 1]) {
            let (got, before) = (numbers[index], numbers[index - 1]);
            return Err(StartsError::Descending { path: path(), index, got, before });
        }
        if usize::try_from(last) != Ok(rows) {
            return Err(StartsError::Last { path: path(), got: last, tensor, rows });
        }
        Ok(numbers.iter().map(|&start| start as usize).collect())
    }
}

/// Q, K and V of sequences that follow each other, `[rows or keys, heads, head dimension]`.
#[derive(Debug, Clone)]
pub(crate) struct Sequences<T> {
    /// Sizes.
    pub(crate) sizes: VarlenProblem,
    /// Head dimension of V and O.
    pub(crate) value_dim: usize,
    /// Where the rows, and the keys, of each member start, and where those of the last one end.
    pub(crate) starts: [Vec<usize>; 2],
    /// Elements of Q, K and V.
    pub(crate) inputs: [Vec<T>; 3],
    /// Sinks and bias.
    pub(crate) terms: Terms<T>,
}

impl<T: Half> Sequences<T> {
    /// Checks the tensors and the starts of rows and keys, and converts elements.
    pub(crate) fn new(
        tensors: [Tensor; 3],
        [q_starts, k_starts]: [&StartsFile; 2],
    ) -> Result<Sequences<T>, ProblemError> {
        let [q, k, v] = [("q", 0), ("k", 1), ("v", 2)].map(|(tensor, index)| {
            dimensions(tensor, &tensors[index].shape, "the three dimensions [rows of all, heads, head dimension]")
        });
        let ([q_total, q_heads, head_dim], k, v) = (q?, k?, v?);
        let ([k_total, kv_heads, _], value_dim) = (k, v[2]);
        for (tensor, got, expected) in
            [("k", k, [k_total, kv_heads, head_dim]), ("v", v, [k_total, kv_heads, value_dim])]
        {
            if got != expected {
                return Err(ProblemError::shape(tensor, &got, expected.to_vec()));
            }
        }
        let starts = [q_starts.of_rows("q", q_total)?, k_starts.of_rows("k", k_total)?];
        let [members, of_keys] = starts.each_ref().map(|starts| starts.len() - 1);
        if members != of_keys {
            return Err(StartsError::Members { q: members, k: of_keys }.into());
        }
        let longest = |starts: &[usize]| starts.windows(2).map(|ends| ends[1] - ends[0]).max().unwrap_or(0);
        let [max_q_len, max_k_len] = starts.each_ref().map(|starts| longest(starts));
        let sizes = VarlenProblem { members, q_heads, kv_heads, q_total, k_total, max_q_len, max_k_len, head_dim };
        sizes.check()?;
        for shape in [[q_total, q_heads, head_dim], k, v] {
            array_bytes::<f64>(&shape)?;
        }
        let inputs = tensors.map(|tensor| convert(tensor.elements));
        Ok(Sequences { sizes, value_dim, starts, inputs, terms: Terms::default() })
    }

    /// The options of a plan for the tensors of these sequences.
    pub(crate) fn options(&self, options: &AttentionOptions) -> AttentionOptions {
        AttentionOptions { bias: self.terms.bias.is_some(), value_dim: Some(self.value_dim), ..options.clone() }
    }

    /// Each member's rows, and the member as a problem of its own.
    fn members(&self) -> impl Iterator<Item = (Range<usize>, Problem<T>)> + '_ {
        let [rows, keys] = self.starts.each_ref().map(|starts| starts.windows(2).map(|ends| ends[0]..ends[1]));
        rows.zip(keys).enumerate().map(|(member, (rows, keys))| (rows.clone(), self.member(member, rows, keys)))
    }

    fn member(&self, member: usize, rows: Range<usize>, keys: Range<usize>) -> Problem<T> {
        let VarlenProblem { q_heads, kv_heads, head_dim, .. } = self.sizes;
        let (q_len, k_len) = (rows.len(), keys.len());
        let part = |values: &[T], row_elems: usize, rows: &Range<usize>| {
            values[rows.start * row_elems..rows.end * row_elems].to_vec()
        };
        let bias = self.terms.bias.as_ref().map(|(values, shape)| {
            let bias = ArrayView4::from_shape(*shape, values).expect("the elements fill the shape");
            let entry = if shape[0] == 1 { 0 } else { member };
            let values = bias.slice(s![entry, .., ..q_len, ..k_len]).iter().copied().collect();
            (values, [1, shape[1], q_len, k_len])
        });
        let [q, k, v] = &self.inputs;
        Problem {
            layout: Layout::Bshd,
            sizes: AttentionProblem { batch: 1, q_heads, kv_heads, q_len, k_len, head_dim },
            value_dim: self.value_dim,
            q: part(q, q_heads * head_dim, &rows),
            k: part(k, kv_heads * head_dim, &keys),
            v: part(v, kv_heads * self.value_dim, &keys),
            terms: Terms { sink: self.terms.sink.clone(), bias },
        }
    }
}

impl<T: Half> Task<T> for Sequences<T> {
    fn with_terms(self, sink: Option<Tensor>, bias: Option<Tensor>) -> Result<Self, ProblemError> {
        let terms = Terms::new(&self.sizes.longest(), sink, bias)?;
        Ok(Sequences { terms, ..self })
    }

    fn check_options(&self, options: &AttentionOptions) -> ferrotile::Result<()> {
        self.options(options).check(self.sizes.head_dim)
    }

    fn out_shape(&self) -> Vec<usize> {
        vec![self.sizes.q_total, self.sizes.q_heads, self.value_dim]
    }

    fn lse_shape(&self) -> Vec<usize> {
        vec![self.sizes.q_heads, self.sizes.q_total]
    }

    fn solve_on_card(&self, gpu: &Gpu, options: &AttentionOptions) -> ferrotile::Result<(Solution<T>, String)> {
        on_card::solve_sequences(gpu, self, options)
    }

    fn solve_on_cpu(&self, options: &AttentionOptions) -> Solution<T> {
        let VarlenProblem { q_heads, q_total, .. } = self.sizes;
        let mut solution = Solution { out: Vec::new(), lse: vec![0.0; q_heads * q_total] };
        for (rows, member) in self.members() {
            let Solution { out, lse } = member.solve_on_cpu(options);
            solution.out.extend(out);
            for (head, lse) in lse.chunks_exact(rows.len().max(1)).enumerate() {
                solution.lse[head * q_total..][rows.clone()].copy_from_slice(lse);
            }
        }
        solution
    }

    /// What is furthest above its own limit, or least below it: each member has a limit of its own.
    fn check(&self, solution: &Solution<T>, options: &AttentionOptions) -> Checked {
        let row_elems = self.sizes.q_heads * self.value_dim;
        self.members()
            .map(|(rows, member)| {
                let out = &solution.out[rows.start * row_elems..rows.end * row_elems];
                Checked::new(out, &member.exact(options))
            })
            .reduce(Checked::worse)
            .unwrap_or(Checked::OF_NOTHING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(numbers: &[i64]) -> Result<Vec<usize>, StartsError> {
        StartsFile { path: "c.npy".into(), numbers: numbers.to_vec() }.of_rows("q", 7)
    }

    #[test]
    fn starts_ascend_from_nothing_to_all_rows() {
        assert_eq!(starts(&[0, 0, 3, 7, 7]), Ok(vec![0, 0, 3, 7, 7]));
        let path = || PathBuf::from("c.npy");
        let cases: [(&[i64], StartsError); 6] = [
            (&[], StartsError::Nothing { path: path() }),
            (&[1, 7], StartsError::First { path: path(), got: 1 }),
            (&[-1, 7], StartsError::First { path: path(), got: -1 }),
            (&[0, 5, 4, 7], StartsError::Descending { path: path(), index: 2, got: 4, before: 5 }),
            (&[0, 3], StartsError::Last { path: path(), got: 3, tensor: "q", rows: 7 }),
            (&[0, i64::MAX], StartsError::Last { path: path(), got: i64::MAX, tensor: "q", rows: 7 }),
        ];
        for (numbers, error) in cases {
            assert_eq!(starts(numbers), Err(error));
        }
    }
}
