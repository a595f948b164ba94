//! Symmetric matrices from files: dense from NPY, scalar diagonals and blocks from NPZ.

use std::fs;
use std::path::{Path, PathBuf};

use ferrotile::SymmetricBlockMatrix;
use layout::ata::BLOCK;
use ndarray::{Array3, ArrayD, ArrayView2, ArrayView3, Axis, Dimension, IxDyn, s};

use crate::memory;
use crate::npz::{Npz, NpzError};
use crate::tensor::{self, FileError, Tensor};

/// Why a file is not a matrix that can be multiplied with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MatrixError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// Neither of the names that are known.
    #[error("{path}: the name of a matrix ends in .npy (dense) or .npz (diagonals or blocks)")]
    Name {
        /// The file.
        path: PathBuf,
    },
    /// Not a readable NPZ file.
    #[error("{path}: {source}")]
    Npz {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: NpzError,
    },
    /// A sparse matrix of SciPy's that is not of diagonals.
    #[error(
        "{path}: a SciPy matrix of format '{format}'; save it as diagonals: scipy.sparse.save_npz(path, a.todia())"
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// The format that it names.
        format: String,
    },
    /// An NPZ file without the members of a matrix.
    #[error(
        "{path}: no matrix: expected 'data', 'offsets' and 'shape' (SciPy's dia_array), or 'blocks'; it has: {present}"
    )]
    NoMatrix {
        /// The file.
        path: PathBuf,
        /// Its members.
        present: String,
    },
    /// An array of another shape than the form has.
    #[error("{path}: {array} has shape {got:?}, expected {expected}")]
    Shape {
        /// The file.
        path: PathBuf,
        /// The array.
        array: &'static str,
        /// Its shape.
        got: Vec<usize>,
        /// The shape of the form, in words.
        expected: &'static str,
    },
    /// Elements that do not make a symmetric matrix.
    #[error("{path}: {source}")]
    Matrix {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: ferrotile::Error,
    },
}

/// Reads the matrix of a file. Mirrored elements may differ by `tolerance` times the largest element of their channel;
/// those of the upper triangle are taken.
pub(crate) fn read(path: &Path, tolerance: f32) -> Result<SymmetricBlockMatrix, MatrixError> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("npy") => dense(path, tensor::read_npy(path)?, tolerance),
        Some("npz") => {
            let bytes = fs::read(path).map_err(|source| FileError::Read { path: path.to_owned(), source })?;
            let npz = Npz::new(bytes).map_err(|source| MatrixError::Npz { path: path.to_owned(), source })?;
            archive(path, npz, tolerance)
        }
        _ => Err(MatrixError::Name { path: path.to_owned() }),
    }
}

/// The elements as f32, in an array of the dimensions that `expected` says.
fn array<D: Dimension>(
    path: &Path,
    name: &'static str,
    tensor: Tensor,
    expected: &'static str,
) -> Result<ndarray::Array<f32, D>, MatrixError> {
    let Tensor { shape, elements } = tensor;
    let wrong = |got| MatrixError::Shape { path: path.to_owned(), array: name, got, expected };
    let array = ArrayD::from_shape_vec(IxDyn(&shape), elements.into_f32()).map_err(|_| wrong(shape.clone()))?;
    array.into_dimensionality().map_err(|_| wrong(shape))
}

fn dense(path: &Path, mut tensor: Tensor, tolerance: f32) -> Result<SymmetricBlockMatrix, MatrixError> {
    if tensor.shape.len() == 2 {
        tensor.shape.insert(0, 1);
    }
    let dense: Array3<f32> = array(path, "the matrix", tensor, "[n, n] or [channels, n, n]")?;
    SymmetricBlockMatrix::from_dense(dense.view(), tolerance)
        .map_err(|source| MatrixError::Matrix { path: path.to_owned(), source })
}

fn archive(path: &Path, mut npz: Npz, tolerance: f32) -> Result<SymmetricBlockMatrix, MatrixError> {
    let damaged = |source| MatrixError::Npz { path: path.to_owned(), source };
    let wrong = |source| MatrixError::Matrix { path: path.to_owned(), source };
    if let Some(format) = npz.text("format").map_err(damaged)?.filter(|format| format != "dia") {
        return Err(MatrixError::Format { path: path.to_owned(), format });
    }
    let shape = npz.integers("shape").map_err(damaged)?;
    let n = shape.map(|sizes| square(path, &sizes)).transpose()?;
    if let Some(blocks) = npz.floats("blocks").map_err(damaged)? {
        let expected = "[channels, block diagonals, block rows, 16, 16]";
        let blocks: ndarray::Array5<f32> = array(path, "blocks", blocks, expected)?;
        let n = n.unwrap_or(blocks.dim().2 * BLOCK);
        return SymmetricBlockMatrix::from_blocks(n, blocks.view()).map_err(wrong);
    }
    let (data, offsets) = (npz.floats("data").map_err(damaged)?, npz.integers("offsets").map_err(damaged)?);
    let (Some(mut data), Some(offsets), Some(n)) = (data, offsets, n) else {
        let present = npz.names().join(", ");
        return Err(MatrixError::NoMatrix { path: path.to_owned(), present });
    };
    if data.shape.len() == 2 {
        data.shape.insert(0, 1);
    }
    let expected = "[diagonals, columns] or [channels, diagonals, columns], a diagonal for each offset";
    let got = data.shape.clone();
    let data: Array3<f32> = array(path, "data", data, expected)?;
    if data.dim().1 != offsets.len() {
        return Err(MatrixError::Shape { path: path.to_owned(), array: "data", got, expected });
    }
    diagonals(n, &offsets, data.view(), tolerance).map_err(wrong)
}

/// n of a shape that a file names.
fn square(path: &Path, sizes: &[i64]) -> Result<usize, MatrixError> {
    let sizes: Vec<usize> = sizes.iter().map(|&size| usize::try_from(size).unwrap_or(0)).collect();
    match sizes[..] {
        [rows, columns] if rows == columns => Ok(rows),
        _ => {
            let (path, expected) = (path.to_owned(), "two equal sizes: a square matrix");
            Err(MatrixError::Shape { path, array: "the matrix", got: sizes, expected })
        }
    }
}

/// The matrix of SciPy's diagonals: `data[channel][k][j]` is element `(j - offsets[k], j)`. A file may have the upper
/// half alone, or both, which must then be equal.
fn diagonals(
    n: usize,
    offsets: &[i64],
    data: ArrayView3<'_, f32>,
    tolerance: f32,
) -> ferrotile::Result<SymmetricBlockMatrix> {
    let (channels, _, columns) = data.dim();
    let upper: Vec<usize> = (0..offsets.len()).filter(|&k| offsets[k] >= 0).collect();
    let upper_offsets: Vec<i64> = upper.iter().map(|&k| offsets[k]).collect();
    // SciPy leaves out columns of zeros at the end, and does not look at those beyond the matrix.
    let stored = columns.min(n);
    let zeros = |diagonals: usize| {
        let shape = [channels, diagonals, n];
        Ok(Array3::from_shape_vec(shape, memory::zeros(&shape)?).expect("there is a zero for each element"))
    };
    let mut half: Array3<f32> = zeros(upper.len())?;
    half.slice_mut(s![.., .., ..stored]).assign(&data.select(Axis(1), &upper).slice(s![.., .., ..stored]));
    let matrix = SymmetricBlockMatrix::from_diagonals(n, &upper_offsets, half.view())?;
    let lower: Vec<usize> = (0..offsets.len()).filter(|&k| offsets[k] < 0).collect();
    if !lower.is_empty() {
        // The lower half, transposed, is an upper half: a value of column j is in column j + distance there.
        let distances: Vec<i64> = lower.iter().map(|&k| offsets[k].saturating_neg()).collect();
        let mut mirrored: Array3<f32> = zeros(lower.len())?;
        for ((&k, &distance), index) in lower.iter().zip(&distances).zip(0..) {
            let distance = usize::try_from(distance).unwrap_or(n).min(n);
            let len = (n - distance).min(columns);
            mirrored.slice_mut(s![.., index, distance..distance + len]).assign(&data.slice(s![.., k, ..len]));
        }
        let mirrored = SymmetricBlockMatrix::from_diagonals(n, &distances, mirrored.view())?;
        for channel in 0..channels {
            check_mirrored(channel, &matrix, &mirrored, tolerance)?;
        }
    }
    Ok(matrix)
}

/// Checks that two upper halves are equal but for the main diagonal, which the second lacks.
fn check_mirrored(
    channel: usize,
    upper: &SymmetricBlockMatrix,
    lower: &SymmetricBlockMatrix,
    tolerance: f32,
) -> ferrotile::Result<()> {
    let of_channel = |matrix: &SymmetricBlockMatrix| matrix.blocks().index_axis_move(Axis(0), channel).to_owned();
    let blocks = [of_channel(upper), of_channel(lower)];
    let largest = blocks[0].iter().fold(0f32, |largest, element| largest.max(element.abs()));
    let zeros = ndarray::Array2::zeros((BLOCK, BLOCK));
    for (d, r) in (0..upper.block_rows()).flat_map(|d| (0..upper.block_rows() - d).map(move |r| (d, r))) {
        let [above, below] = blocks.each_ref().map(|blocks| -> ArrayView2<'_, f32> {
            if d < blocks.dim().0 { blocks.slice(s![d, r, .., ..]) } else { zeros.view() }
        });
        for ((row, column), (&got, &mirrored)) in above.indexed_iter().zip(&below).map(|((at, a), b)| (at, (a, b))) {
            let (row, column) = (r * BLOCK + row, (r + d) * BLOCK + column);
            let tolerance = tolerance * largest;
            if column > row && (got - mirrored).abs() > tolerance {
                return Err(ferrotile::Error::Asymmetric { op: "ata", channel, row, column, got, mirrored, tolerance });
            }
        }
    }
    Ok(())
}
