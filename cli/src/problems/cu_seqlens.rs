//! The files of `--cu-seqlens-q` and `--cu-seqlens-k`: where each sequence of a batch starts, and where the last ends.

use std::path::{Path, PathBuf};

use crate::files::input::{self, FileError};

/// Why the numbers of a file are not the cumulative lengths of sequences.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CuSeqlensError {
    /// Not even the 0 of a batch without sequences.
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
    Count {
        /// Sequences of rows.
        q: usize,
        /// Sequences of keys.
        k: usize,
    },
}

/// The cumulative lengths of a file, not yet checked.
#[derive(Debug, Clone)]
pub(crate) struct CuSeqlensFile {
    path: PathBuf,
    numbers: Vec<i64>,
}

impl CuSeqlensFile {
    /// Reads a file of integers, which the option of this name gives.
    pub(crate) fn read(path: &Path, name: &'static str) -> Result<CuSeqlensFile, FileError> {
        Ok(CuSeqlensFile { path: path.to_owned(), numbers: input::read_integers(path, name)? })
    }

    /// The lengths, if they ascend from 0 to the rows of the tensor.
    pub(crate) fn check(&self, tensor: &'static str, rows: usize) -> Result<Vec<usize>, CuSeqlensError> {
        let CuSeqlensFile { path, numbers } = self;
        let path = || path.clone();
        let (Some(&first), Some(&last)) = (numbers.first(), numbers.last()) else {
            return Err(CuSeqlensError::Nothing { path: path() });
        };
        if first != 0 {
            return Err(CuSeqlensError::First { path: path(), got: first });
        }
        if let Some(index) = (1..numbers.len()).find(|&index| numbers[index] < numbers[index - 1]) {
            let (got, before) = (numbers[index], numbers[index - 1]);
            return Err(CuSeqlensError::Descending { path: path(), index, got, before });
        }
        if usize::try_from(last) != Ok(rows) {
            return Err(CuSeqlensError::Last { path: path(), got: last, tensor, rows });
        }
        Ok(numbers.iter().map(|&end| end as usize).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cu_seqlens(numbers: &[i64]) -> Result<Vec<usize>, CuSeqlensError> {
        CuSeqlensFile { path: "c.npy".into(), numbers: numbers.to_vec() }.check("q", 7)
    }

    #[test]
    fn cu_seqlens_ascend_from_nothing_to_all_rows() {
        assert_eq!(cu_seqlens(&[0, 0, 3, 7, 7]), Ok(vec![0, 0, 3, 7, 7]));
        let path = || PathBuf::from("c.npy");
        let cases: [(&[i64], CuSeqlensError); 6] = [
            (&[], CuSeqlensError::Nothing { path: path() }),
            (&[1, 7], CuSeqlensError::First { path: path(), got: 1 }),
            (&[-1, 7], CuSeqlensError::First { path: path(), got: -1 }),
            (&[0, 5, 4, 7], CuSeqlensError::Descending { path: path(), index: 2, got: 4, before: 5 }),
            (&[0, 3], CuSeqlensError::Last { path: path(), got: 3, tensor: "q", rows: 7 }),
            (&[0, i64::MAX], CuSeqlensError::Last { path: path(), got: i64::MAX, tensor: "q", rows: 7 }),
        ];
        for (numbers, error) in cases {
            assert_eq!(cu_seqlens(numbers), Err(error));
        }
    }
}
