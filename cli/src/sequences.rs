//! Sequences of several lengths that follow each other in one tensor, checked, and their attention, member by member.

use std::ops::Range;
use std::path::{Path, PathBuf};

use ferrotile::{AttentionOptions, AttentionProblem, Gpu, Layout, VarlenProblem};
use ndarray::{ArrayView4, s};

use crate::attention::Task;
use crate::convert::Converter;
use crate::input_file::{self, FileError, Input, SizesError, listed_shapes};
use crate::memory::array_bytes;
use crate::on_card;
use crate::problem::{
    ConvertedInputs, Half, Problem, ProblemError, Solution, TermInputs, Terms, dimensions, nothing_compared,
};
use crate::verdict::Verdicts;

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
    /// Reads a file of integers, which the option of this name gives.
    pub(crate) fn read(path: &Path, name: &'static str) -> Result<StartsFile, FileError> {
        Ok(StartsFile { path: path.to_owned(), numbers: input_file::read_integers(path, name)? })
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
    /// Checks the tensors and the starts of rows and keys, and converts elements; also the sequences of the files' own
    /// elements, where they have another type and the converter keeps them.
    pub(crate) fn new(
        inputs: [Input; 3],
        terms: TermInputs,
        [q_starts, k_starts]: [&StartsFile; 2],
        converter: &mut Converter,
    ) -> Result<(Sequences<T>, Option<Sequences<f64>>), ProblemError> {
        let expected = "the three dimensions [rows of all, heads, head dimension]";
        let [q, k, v] = inputs.each_ref().map(|input| dimensions(input, expected));
        let ([q_total, q_heads, head_dim], k, v) = (q?, k?, v?);
        let ([k_total, kv_heads, _], value_dim) = (k, v[2]);
        let wrong = |reason| SizesError::new(reason, listed_shapes(&inputs));
        for (input, got, expected) in
            [(&inputs[1], k, [k_total, kv_heads, head_dim]), (&inputs[2], v, [k_total, kv_heads, value_dim])]
        {
            if got != expected {
                let (tensor, expected) = (input.origin.clone(), format!("{expected:?}: {}", listed_shapes(&inputs)));
                return Err(ProblemError::Shape { tensor, shape: got.to_vec(), expected });
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
        sizes.check().map_err(wrong)?;
        for shape in [[q_total, q_heads, head_dim], k, v] {
            array_bytes::<f64>(&shape).map_err(wrong)?;
        }
        let converted = ConvertedInputs::<T>::new(inputs, terms, &sizes.longest(), converter)?;
        let ((inputs, terms), own) = converted.split();
        let own = own.map(|(inputs, terms)| Sequences { sizes, value_dim, starts: starts.clone(), inputs, terms });
        Ok((Sequences { sizes, value_dim, starts, inputs, terms }, own))
    }
}

impl<T: Copy> Sequences<T> {
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
    type Own = Sequences<f64>;

    fn understood(&self) -> String {
        let VarlenProblem { members, q_heads, kv_heads, q_total, k_total, max_q_len, max_k_len, head_dim } = self.sizes;
        format!(
            "{members} sequences, heads {q_heads} (of keys {kv_heads}), rows {q_total} (the longest {max_q_len}), keys \
             {k_total} (the longest {max_k_len}), head dimension {head_dim} (of values {})",
            self.value_dim
        )
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

    fn solve_on_card(
        &self,
        gpu: &Gpu,
        options: &AttentionOptions,
        started: &dyn Fn(&str),
    ) -> ferrotile::Result<Solution<T>> {
        on_card::solve_sequences(gpu, self, options, started)
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

    /// Each member has a limit of its own.
    fn check(&self, own: Option<&Sequences<f64>>, solution: &Solution<T>, options: &AttentionOptions) -> Verdicts {
        let row_elems = self.sizes.q_heads * self.value_dim;
        let own_members = own.map(|own| own.members().map(|(_, member)| member).collect::<Vec<_>>());
        self.members().enumerate().fold(
            nothing_compared(&self.out_shape(), own.is_some()),
            |verdicts, (index, (rows, member))| {
                let elements = rows.start * row_elems..rows.end * row_elems;
                let own = own_members.as_ref().map(|members| &members[index]);
                member.compare(own, &solution.out[elements.clone()], options, elements.start, verdicts)
            },
        )
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
