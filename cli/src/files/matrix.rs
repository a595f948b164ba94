//! Symmetric matrices from files: dense from NPY, scalar diagonals and blocks from NPZ, all of them from safetensors.

use std::path::{Path, PathBuf};

use ferrotile::{SymmetricBlockMatrix, reference};
use ndarray::{Array3, ArrayD, ArrayView2, ArrayView3, Axis, Dimension, IxDyn, concatenate, s};
use variants::ata::{BLOCK, MAX_N};

use crate::files::archive::{Archive, ArchiveError};
use crate::files::convert::{Converted, Converter};
use crate::files::input::{self, FileError, Input, Origin, file_of};
use crate::files::npy::Opaque;
use crate::files::tensor::Tensor;
use crate::memory;

/// Why a file is not a matrix that can be multiplied with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MatrixError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// Neither of the names that are known.
    #[error("A ({path}): the name of a matrix ends in .npy (dense), .npz (diagonals or blocks) or .safetensors")]
    Name {
        /// The file.
        path: PathBuf,
    },
    /// A member of the file cannot be read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// A sparse matrix of SciPy's that is not of diagonals.
    #[error(
        "A ({path}): a SciPy matrix of format '{format}'; save it as diagonals: scipy.sparse.save_npz(path, a.todia())"
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// The format that it names.
        format: String,
    },
    /// An NPZ file without the members of a matrix.
    #[error(
        "A ({path}): no matrix: expected 'data', 'offsets' and 'shape' (SciPy's dia_array), or 'blocks'; it has: {present}"
    )]
    NoMatrix {
        /// The file.
        path: PathBuf,
        /// Its members.
        present: String,
    },
    /// An array of another shape than the form has.
    #[error("A ({path}): {array} has shape {got:?}, expected {expected}")]
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
    /// A dense matrix of which one half is 0.
    #[error(
        "A ({path}): only the {half} half has elements other than 0: give both (diagonals may have one half alone)"
    )]
    Triangle {
        /// The file.
        path: PathBuf,
        /// The half that is not 0.
        half: &'static str,
    },
    /// Elements that do not make a symmetric matrix.
    #[error("A ({path}): {source}")]
    Matrix {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: ferrotile::Error,
    },
}

/// A matrix from a file.
pub(crate) struct MatrixFile {
    /// The matrix in f32.
    pub(crate) matrix: SymmetricBlockMatrix,
    /// The file's elements less the f32 ones, where the file has wider elements and the converter keeps them.
    remainder: Option<Remainder>,
    /// Which half of the file it is from, in words.
    pub(crate) half: String,
}

/// The elements of a file less the nearest f32.
struct Remainder {
    /// The rest, times a power of two that makes the largest about 1: it is far below the smallest f32 otherwise.
    matrix: SymmetricBlockMatrix,
    /// 1 over that power.
    unit: f64,
}

impl MatrixFile {
    /// `A X` in f64 of the elements in the file.
    pub(crate) fn multiply_own(&self, x: ArrayView3<'_, f64>) -> Array3<f64> {
        let multiply = |matrix: &SymmetricBlockMatrix| reference::ata_blocks(matrix.blocks().mapv(f64::from).view(), x);
        let mut product = multiply(&self.matrix);
        if let Some(Remainder { matrix, unit }) = &self.remainder {
            product.scaled_add(*unit, &multiply(matrix));
        }
        product
    }

    /// Whether the file has other elements than the matrix in f32.
    pub(crate) fn has_own(&self) -> bool {
        self.remainder.is_some()
    }
}

/// What mirrored elements may differ by, as a share of the largest of their channel: anything.
const ANYTHING: f32 = f32::INFINITY;

/// Reads the matrix of a file. Mirrored elements may differ by `tolerance` times the largest element of their channel;
/// those of the upper triangle are taken.
pub(crate) fn read(path: &Path, tolerance: f32, converter: &mut Converter) -> Result<MatrixFile, MatrixError> {
    let origin = Origin { name: "A", path: path.to_owned() };
    match file_of(path).extension().and_then(|extension| extension.to_str()) {
        Some("npz") => archive(&origin, Archive::open(origin.clone())?, tolerance, converter),
        Some("safetensors") => {
            let file = Archive::open(origin.clone())?;
            let is_dense =
                file_of(path) != path || !file.names()?.iter().any(|name| name == "blocks" || name == "offsets");
            if is_dense { dense(&origin, tolerance, converter) } else { archive(&origin, file, tolerance, converter) }
        }
        Some("npy") => dense(&origin, tolerance, converter),
        _ => Err(MatrixError::Name { path: path.to_owned() }),
    }
}

/// Makes a matrix of elements, and of what is left of them in f32.
///
/// `build` makes a matrix of elements in f32. Mirrored elements may differ by the share in its second argument.
fn convert(
    input: Input,
    tolerance: f32,
    half: String,
    converter: &mut Converter,
    build: impl Fn(Tensor32, f32) -> ferrotile::Result<SymmetricBlockMatrix>,
) -> Result<MatrixFile, MatrixError> {
    let path = input.origin.path.clone();
    let wrong = |source| MatrixError::Matrix { path: path.clone(), source };
    let Converted { shape, values, own } = converter.convert::<f32>(input);
    let rest = own.map(|own| {
        let rest: Vec<f64> = own.iter().zip(&values).map(|(&own, &value)| own - f64::from(value)).collect();
        let largest = rest.iter().fold(0f64, |largest, rest| largest.max(rest.abs()));
        let unit = if largest.is_normal() { largest.log2().floor().exp2() } else { 1.0 };
        (rest.into_iter().map(|rest| (rest / unit) as f32).collect(), unit)
    });
    let matrix = build(Tensor32 { shape: shape.clone(), values }, tolerance).map_err(wrong)?;
    let remainder =
        rest.map(|(values, unit)| build(Tensor32 { shape, values }, ANYTHING).map(|matrix| Remainder { matrix, unit }));
    Ok(MatrixFile { matrix, remainder: remainder.transpose().map_err(wrong)?, half })
}

/// Elements in f32, of a shape that has been checked.
struct Tensor32 {
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl Tensor32 {
    fn array<D: Dimension>(self) -> ndarray::Array<f32, D> {
        let array = ArrayD::from_shape_vec(IxDyn(&self.shape), self.values);
        let array = array.expect("a file has an element for each index");
        array.into_dimensionality().expect("the number of dimensions has been checked")
    }
}

fn dense(origin: &Origin, tolerance: f32, converter: &mut Converter) -> Result<MatrixFile, MatrixError> {
    let path = || origin.path.clone();
    let mut input = input::read(&origin.path, origin.name, Opaque::REFUSED)?;
    let shape = &mut input.tensor.shape;
    if shape.len() == 2 {
        shape.insert(0, 1);
    }
    if shape.len() != 3 {
        let (got, expected) = (shape.clone(), "[n, n] or [channels, n, n]");
        return Err(MatrixError::Shape { path: path(), array: "the matrix", got, expected });
    }
    let (halves, difference) = halves(&input.tensor);
    let half = match halves {
        [false, true] => return Err(MatrixError::Triangle { path: path(), half: "lower" }),
        [true, false] => return Err(MatrixError::Triangle { path: path(), half: "upper" }),
        _ => both_halves(difference),
    };
    convert(input, tolerance, half, converter, |tensor, tolerance| {
        SymmetricBlockMatrix::from_dense(tensor.array().view(), tolerance)
    })
}

/// Which half a matrix is from that has both.
fn both_halves(difference: f64) -> String {
    if difference == 0.0 {
        return "both halves".to_owned();
    }
    format!("the upper half (the lower one differs by up to {difference:.1e})")
}

/// Whether the upper and the lower half of square matrices have an element other than 0, and the largest difference of
/// mirrored elements.
fn halves(tensor: &Tensor) -> ([bool; 2], f64) {
    let [channels, n, columns] = tensor.shape[..] else { return ([false; 2], 0.0) };
    let (mut halves, mut difference) = ([false; 2], 0f64);
    // A matrix that is not square has no halves.
    let rows = if n == columns { n } else { 0 };
    for (channel, row) in (0..channels).flat_map(|channel| (0..rows).map(move |row| (channel, row))) {
        for column in row + 1..n {
            let value = |row, column| tensor.elements.value((channel * n + row) * n + column);
            let [upper, lower] = [value(row, column), value(column, row)];
            halves[0] |= upper != 0.0;
            halves[1] |= lower != 0.0;
            difference = difference.max((upper - lower).abs());
        }
    }
    (halves, difference)
}

fn archive(
    origin: &Origin,
    mut file: Archive,
    tolerance: f32,
    converter: &mut Converter,
) -> Result<MatrixFile, MatrixError> {
    let path = || origin.path.clone();
    let wrong = |array, got, expected| MatrixError::Shape { path: path(), array, got, expected };
    let input = |tensor: Tensor| Input { origin: origin.clone(), tensor };
    if let Some(format) = file.text("format")?.filter(|format| format != "dia") {
        return Err(MatrixError::Format { path: path(), format });
    }
    let n = file.integers("shape", 2)?.map(|sizes| square(&origin.path, &sizes)).transpose()?;
    if let Some(shape) = file.shape("blocks")? {
        let expected = "[channels, block diagonals, block rows, 16, 16]";
        let [_, diagonals, rows, BLOCK, BLOCK] = shape[..] else { return Err(wrong("blocks", shape, expected)) };
        // Blocks are unpacked where their shape is that of a matrix.
        if diagonals > rows || n.is_some_and(|n| n.div_ceil(BLOCK) != rows) {
            return Err(wrong("blocks", shape, "as many block rows as n has, and no more block diagonals"));
        }
        let n = n.unwrap_or(rows.saturating_mul(BLOCK));
        let blocks = file.tensor("blocks")?.expect("the array is there");
        return convert(input(blocks), tolerance, "the upper half".to_owned(), converter, |tensor, tolerance| {
            let mut blocks: ndarray::Array5<f32> = tensor.array();
            if tolerance == ANYTHING {
                mirror_diagonal_blocks(&mut blocks);
            }
            SymmetricBlockMatrix::from_blocks(n, blocks.view())
        });
    }
    let (offsets, shape) = (file.shape("offsets")?, file.shape("data")?);
    let (Some(offsets), Some(shape), Some(n)) = (offsets, shape, n) else {
        return Err(MatrixError::NoMatrix { path: path(), present: file.names()?.join(", ") });
    };
    let most = n.saturating_mul(2).min(2 * MAX_N);
    let Some(offsets) = file.integers("offsets", most)? else {
        return Err(wrong("offsets", offsets, "a list of different ones"));
    };
    let expected = "[diagonals, columns] or [channels, diagonals, columns], a diagonal for each offset";
    let ([stored, columns] | [_, stored, columns]) = shape[..] else { return Err(wrong("data", shape, expected)) };
    if stored != offsets.len() {
        return Err(wrong("data", shape, expected));
    }
    if columns > n {
        return Err(wrong("data", shape, "at most n columns: leave out those beyond the matrix"));
    }
    let mut data = file.tensor("data")?.expect("the array is there");
    if data.shape.len() == 2 {
        data.shape.insert(0, 1);
    }
    let half = match (offsets.iter().any(|&offset| offset > 0), offsets.iter().any(|&offset| offset < 0)) {
        (true, true) => "the upper half (the lower one agrees within --symmetry-tolerance)",
        (_, false) => "the upper half, the only one",
        (false, true) => "the lower half, the only one",
    };
    convert(input(data), tolerance, half.to_owned(), converter, |tensor, tolerance| {
        diagonals(n, &offsets, tensor.array().view(), tolerance)
    })
}

/// Gives the blocks of the main diagonal the upper half of theirs as the lower one.
fn mirror_diagonal_blocks(blocks: &mut ndarray::Array5<f32>) {
    let (channels, diagonals, rows, ..) = blocks.dim();
    let of_channel = |channel| (0..if diagonals == 0 { 0 } else { rows }).map(move |r| (channel, r));
    for (channel, r) in (0..channels).flat_map(of_channel) {
        for (row, column) in (0..BLOCK).flat_map(|row| (0..row).map(move |column| (row, column))) {
            blocks[[channel, 0, r, row, column]] = blocks[[channel, 0, r, column, row]];
        }
    }
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

/// The matrix of SciPy's diagonals: `data[channel][k][j]` is element `(j - offsets[k], j)`. A file may have one half
/// alone, or both, which must then be equal.
fn diagonals(
    n: usize,
    offsets: &[i64],
    data: ArrayView3<'_, f32>,
    tolerance: f32,
) -> ferrotile::Result<SymmetricBlockMatrix> {
    let (channels, _, columns) = data.dim();
    // The blocks reach as far as the last diagonal.
    let last = offsets.iter().map(|offset| usize::try_from(offset.unsigned_abs()).unwrap_or(n)).max().unwrap_or(0);
    let (block_rows, block_diagonals) = (n.div_ceil(BLOCK), last.min(n).div_ceil(BLOCK) + 1);
    memory::check::<f32>(&[channels, block_diagonals.min(block_rows), block_rows, BLOCK, BLOCK])?;
    let zeros = |diagonals: usize| {
        let shape = [channels, diagonals, n];
        Ok(Array3::from_shape_vec(shape, memory::zeros(&shape)?).expect("there is a zero for each element"))
    };
    let upper: Vec<usize> = (0..offsets.len()).filter(|&k| offsets[k] >= 0).collect();
    let upper_offsets: Vec<i64> = upper.iter().map(|&k| offsets[k]).collect();
    // SciPy leaves out columns of zeros at the end.
    let mut of_upper: Array3<f32> = zeros(upper.len())?;
    of_upper.slice_mut(s![.., .., ..columns]).assign(&data.select(Axis(1), &upper));
    let lower: Vec<usize> = (0..offsets.len()).filter(|&k| offsets[k] < 0).collect();
    // The lower half, transposed, is an upper half: a value of column j is in column j + distance there.
    let distances: Vec<i64> = lower.iter().map(|&k| offsets[k].saturating_neg()).collect();
    let mut of_lower: Array3<f32> = zeros(lower.len())?;
    for ((&k, &distance), index) in lower.iter().zip(&distances).zip(0..) {
        let distance = usize::try_from(distance).unwrap_or(n).min(n);
        let len = (n - distance).min(columns);
        of_lower.slice_mut(s![.., index, distance..distance + len]).assign(&data.slice(s![.., k, ..len]));
    }
    if upper_offsets.iter().all(|&offset| offset == 0) {
        let both = concatenate(Axis(1), &[of_upper.view(), of_lower.view()]).expect("the others have equal sizes");
        return SymmetricBlockMatrix::from_diagonals(n, &[upper_offsets, distances].concat(), both.view());
    }
    let matrix = SymmetricBlockMatrix::from_diagonals(n, &upper_offsets, of_upper.view())?;
    if !lower.is_empty() {
        let mirrored = SymmetricBlockMatrix::from_diagonals(n, &distances, of_lower.view())?;
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
