//! The matrix on the host: its constructors and their checks.

use std::sync::Arc;

use ndarray::{Array3, Array5, ArrayView2, ArrayView3, ArrayView4, ArrayView5, ArrayViewMut4, s};
use variants::ata::{BLOCK, MAX_N};

use super::options::OP;
use crate::checks::argument;
use crate::error::{Error, Result};
use crate::runtime::buffer::size_bytes;

/// A symmetric n x n matrix for each channel, as 16x16 blocks of its main and upper block diagonals, in f32.
///
/// Block `(d, r)` holds rows `16 r` on and columns `16 (r + d)` on. n is any positive number; what blocks hold beyond
/// it is 0. The lower triangle is that of the transposed blocks.
///
/// ```
/// use ferrotile::SymmetricBlockMatrix;
/// use ndarray::Array3;
///
/// // 3 on the diagonal and -1 beside it, as SciPy's `dia_array` holds the upper half.
/// let data = Array3::from_shape_fn((1, 2, 32), |(_, diagonal, _)| if diagonal == 0 { 3.0 } else { -1.0 });
/// let host = SymmetricBlockMatrix::from_diagonals(32, &[0, 1], data.view())?;
///
/// assert_eq!((host.n(), host.block_rows(), host.block_diagonals()), (32, 2, 2));
/// assert_eq!(host.to_dense()[[0, 5, 4]], -1.0);
/// # Ok::<(), ferrotile::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct SymmetricBlockMatrix {
    n: usize,
    /// `[channel][d][block_row][16][16]`, shared by clones.
    blocks: Arc<Array5<f32>>,
}

impl SymmetricBlockMatrix {
    fn zeros(channels: usize, diagonals: usize, n: usize) -> Result<Self> {
        let shape = [channels, diagonals, n.div_ceil(BLOCK), BLOCK, BLOCK];
        // One diagonal far from the main one takes as much as all between.
        let too_large =
            || Error::TooLarge { shape: shape.to_vec(), element_bytes: size_of::<f32>(), available_bytes: None };
        let mut elements = Vec::new();
        let len = size_bytes::<f32>(&shape)? / size_of::<f32>();
        elements.try_reserve_exact(len).map_err(|_| too_large())?;
        elements.resize(len, 0.0);
        Ok(Self { n, blocks: Arc::new(Array5::from_shape_vec(shape, elements).map_err(|_| too_large())?) })
    }

    /// Sets the element of the upper triangle, and its mirror image where that is in a block of the main diagonal.
    fn set(&mut self, channel: usize, row: usize, column: usize, value: f32) {
        let (r, c) = (row / BLOCK, column / BLOCK);
        let blocks = Arc::make_mut(&mut self.blocks);
        blocks[[channel, c - r, r, row % BLOCK, column % BLOCK]] = value;
        if r == c {
            blocks[[channel, 0, r, column % BLOCK, row % BLOCK]] = value;
        }
    }

    /// From a dense matrix for each channel, `[channels, n, n]`. The upper triangle is kept; the lower one must be
    /// equal to it up to `tolerance` times the largest element of the channel.
    ///
    /// # Errors
    /// [`Error::Shape`] for a matrix that is not square; [`Error::Asymmetric`]; [`Error::Argument`] for n of 0, a
    /// tolerance below 0 or an element that is not finite; [`Error::TooLarge`] without memory for the blocks.
    pub fn from_dense(dense: ArrayView3<'_, f32>, tolerance: f32) -> Result<Self> {
        let (channels, n, columns) = dense.dim();
        if n != columns {
            return Err(shape_error("dense matrix", dense.shape(), &[channels, n, n]));
        }
        check_n(n)?;
        if tolerance.is_nan() || tolerance < 0.0 {
            return Err(argument(OP, "tolerance", tolerance, "a number of at least 0"));
        }
        check_finite("element of the dense matrix", dense.iter())?;
        let mut last_block_diagonal = 0;
        for (channel, matrix) in dense.outer_iter().enumerate() {
            let largest = matrix.iter().fold(0f32, |largest, element| largest.max(element.abs()));
            check_symmetric(matrix, channel, 0, tolerance * largest)?;
            for ((row, column), &element) in matrix.indexed_iter() {
                if element != 0.0 && column > row {
                    last_block_diagonal = last_block_diagonal.max(column / BLOCK - row / BLOCK);
                }
            }
        }
        let mut result = Self::zeros(channels, last_block_diagonal + 1, n)?;
        for ((channel, row, column), &element) in dense.indexed_iter() {
            if element != 0.0 && column >= row {
                result.set(channel, row, column, element);
            }
        }
        Ok(result)
    }

    /// From scalar diagonals of the upper half, as SciPy's `dia_array` holds them: `data[channel][k][j]` is element
    /// `(j - offsets[k], j)`, and what lies above the matrix (`j < offsets[k]`) is not looked at. The block diagonals
    /// reach as far as the largest offset.
    ///
    /// # Errors
    /// [`Error::Argument`] for n of 0, for an offset below 0, of n or more, or given twice, or for an element that is
    /// not finite; [`Error::Shape`] where `data` is not `[channels, offsets, n]`; [`Error::TooLarge`] without memory
    /// for the blocks, those between the main diagonal and the last one included.
    pub fn from_diagonals(n: usize, offsets: &[i64], data: ArrayView3<'_, f32>) -> Result<Self> {
        check_n(n)?;
        let (channels, ..) = data.dim();
        if data.dim() != (channels, offsets.len(), n) {
            return Err(shape_error("data of the diagonals", data.shape(), &[channels, offsets.len(), n]));
        }
        let in_range = |offset: &i64| usize::try_from(*offset).ok().filter(|&offset| offset < n);
        for (k, offset) in offsets.iter().enumerate() {
            if in_range(offset).is_none() || offsets[..k].contains(offset) {
                let expected =
                    format!("each once, from 0 to {}: the matrix is symmetric, so give the upper half", n - 1);
                return Err(argument(OP, "offset of a diagonal", offset, expected));
            }
        }
        let offsets: Vec<usize> = offsets.iter().filter_map(in_range).collect();
        let last = offsets.iter().copied().max().unwrap_or(0);
        // An element (i, i + offset) is at most this many block diagonals from the main one.
        let last_block_diagonal = last.div_ceil(BLOCK).min((n - 1) / BLOCK);
        let mut result = Self::zeros(channels, last_block_diagonal + 1, n)?;
        for channel in 0..channels {
            for (k, &offset) in offsets.iter().enumerate() {
                let diagonal = data.slice(s![channel, k, offset..]);
                check_finite("element of a diagonal", diagonal.iter())?;
                for (row, &element) in diagonal.iter().enumerate() {
                    result.set(channel, row, row + offset, element);
                }
            }
        }
        Ok(result)
    }

    /// From blocks `[channels, d, block_rows, 16, 16]`, block `(d, r)` being rows `16 r` on and columns `16 (r + d)`
    /// on.
    ///
    /// # Errors
    /// [`Error::Shape`] where there are not `n / 16` block rows, rounded up, of 16x16 blocks, or not between one and as
    /// many block diagonals; [`Error::Asymmetric`] for a block of the main diagonal that is not symmetric;
    /// [`Error::Argument`] for n of 0 or an element that is not finite, or not 0 outside the matrix.
    pub fn from_blocks(n: usize, blocks: ArrayView5<'_, f32>) -> Result<Self> {
        check_n(n)?;
        let (channels, diagonals, ..) = blocks.dim();
        let block_rows = n.div_ceil(BLOCK);
        let allowed = diagonals.clamp(1, block_rows);
        if blocks.dim() != (channels, allowed, block_rows, BLOCK, BLOCK) {
            return Err(shape_error("blocks", blocks.shape(), &[channels, allowed, block_rows, BLOCK, BLOCK]));
        }
        check_finite("element of a block", blocks.iter())?;
        for ((channel, d, r, row, column), &element) in blocks.indexed_iter() {
            let (row, column) = (r * BLOCK + row, (r + d) * BLOCK + column);
            if element != 0.0 && row.max(column) >= n {
                let place = format!("element ({row}, {column}) of channel {channel}, outside the matrix");
                return Err(argument(OP, "blocks", place, "0 there"));
            }
        }
        for channel in 0..channels {
            for r in 0..block_rows {
                check_symmetric(blocks.slice(s![channel, 0, r, .., ..]), channel, r * BLOCK, 0.0)?;
            }
        }
        Ok(Self { n, blocks: Arc::new(blocks.to_owned()) })
    }

    /// A block-Toeplitz matrix, from one block for each block diagonal: `blocks[channel][k]` stands in every block row
    /// of block diagonal `offsets[k]`, cut off at n. No other matrix can be held by one block a diagonal.
    ///
    /// # Errors
    /// [`Error::Shape`] where `blocks` is not `[channels, offsets, 16, 16]`; [`Error::Asymmetric`] for a block of the
    /// main diagonal that is not symmetric; [`Error::Argument`] for n of 0, for an offset that is given twice or beyond
    /// the last block diagonal, or for an element that is not finite; [`Error::TooLarge`] without memory for the
    /// blocks.
    pub fn from_toeplitz(n: usize, offsets: &[usize], blocks: ArrayView4<'_, f32>) -> Result<Self> {
        check_n(n)?;
        let (channels, ..) = blocks.dim();
        if blocks.dim() != (channels, offsets.len(), BLOCK, BLOCK) {
            return Err(shape_error("blocks", blocks.shape(), &[channels, offsets.len(), BLOCK, BLOCK]));
        }
        let block_rows = n.div_ceil(BLOCK);
        for (k, offset) in offsets.iter().enumerate() {
            if *offset >= block_rows || offsets[..k].contains(offset) {
                let expected = format!("each once, from 0 to {}", block_rows - 1);
                return Err(argument(OP, "offset of a block diagonal", offset, expected));
            }
        }
        check_finite("element of a block", blocks.iter())?;
        let mut result = Self::zeros(channels, offsets.iter().copied().max().unwrap_or(0) + 1, n)?;
        let stored = Arc::make_mut(&mut result.blocks);
        for (k, &offset) in offsets.iter().enumerate() {
            for channel in 0..channels {
                let block = blocks.slice(s![channel, k, .., ..]);
                if offset == 0 {
                    check_symmetric(block, channel, 0, 0.0)?;
                }
                for r in 0..block_rows - offset {
                    let rows = BLOCK.min(n - r * BLOCK);
                    let columns = BLOCK.min(n - (r + offset) * BLOCK);
                    let inside = s![..rows, ..columns];
                    stored.slice_mut(s![channel, offset, r, ..rows, ..columns]).assign(&block.slice(inside));
                }
            }
        }
        Ok(result)
    }

    /// The number of matrices.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.blocks.dim().0
    }

    /// Rows of each matrix.
    #[must_use]
    pub const fn n(&self) -> usize {
        self.n
    }

    /// Block diagonals that are stored, the main one included.
    #[must_use]
    pub fn block_diagonals(&self) -> usize {
        self.blocks.dim().1
    }

    /// Block rows: n / 16, rounded up.
    #[must_use]
    pub fn block_rows(&self) -> usize {
        self.blocks.dim().2
    }

    /// The blocks, `[channel][d][block_row][16][16]`.
    #[must_use]
    pub fn blocks(&self) -> ArrayView5<'_, f32> {
        self.blocks.view()
    }

    /// Block (r, c) of the upper triangle where it is in the band and has an element that is not 0.
    pub(super) fn block(&self, channel: usize, r: usize, c: usize) -> Option<ArrayView2<'_, f32>> {
        let d = c.checked_sub(r)?;
        if d >= self.block_diagonals() || c >= self.block_rows() {
            return None;
        }
        let block = self.blocks.slice(s![channel, d, r, .., ..]);
        block.iter().any(|&element| element != 0.0).then_some(block)
    }

    /// The dense matrices, `[channels, n, n]`.
    #[must_use]
    pub fn to_dense(&self) -> Array3<f32> {
        let mut dense = Array3::zeros((self.channels(), self.n, self.n));
        for ((channel, d, r, row, column), &element) in self.blocks.indexed_iter() {
            if element != 0.0 {
                let (row, column) = (r * BLOCK + row, (r + d) * BLOCK + column);
                dense[[channel, row, column]] = element;
                dense[[channel, column, row]] = element;
            }
        }
        dense
    }

    /// The share of the blocks of the stored block diagonals that have an element other than 0; 0 without channels.
    #[must_use]
    pub fn occupancy(&self) -> f64 {
        let (mut present, mut all) = (0usize, 0usize);
        for (channel, d) in (0..self.channels()).flat_map(|c| (0..self.block_diagonals()).map(move |d| (c, d))) {
            let rows = self.block_rows() - d;
            all += rows;
            present += (0..rows).filter(|&r| self.block(channel, r, r + d).is_some()).count();
        }
        if all == 0 { 0.0 } else { present as f64 / all as f64 }
    }

    /// The same with the elements of each channel changed.
    pub(super) fn map_channels(&self, mut change: impl FnMut(ArrayViewMut4<'_, f32>)) -> Self {
        let mut result = self.clone();
        Arc::make_mut(&mut result.blocks).outer_iter_mut().for_each(&mut change);
        result
    }
}

fn shape_error(tensor: &'static str, got: &[usize], expected: &[usize]) -> Error {
    Error::Shape { op: OP, tensor, got: got.to_vec(), expected: expected.to_vec() }
}

fn check_n(n: usize) -> Result<()> {
    if (1..=MAX_N).contains(&n) { Ok(()) } else { Err(argument(OP, "n", n, format!("from 1 to {MAX_N}"))) }
}

fn check_finite<'a>(what: &'static str, mut elements: impl Iterator<Item = &'a f32>) -> Result<()> {
    match elements.find(|element| !element.is_finite()) {
        None => Ok(()),
        Some(element) => Err(argument(OP, what, element, "a finite number")),
    }
}

/// Checks that a square matrix, whose first row and column have this number, differs from its transpose by at most
/// `tolerance`.
fn check_symmetric(matrix: ArrayView2<'_, f32>, channel: usize, first: usize, tolerance: f32) -> Result<()> {
    for ((row, column), &got) in matrix.indexed_iter() {
        let mirrored = matrix[[column, row]];
        if column > row && (got - mirrored).abs() > tolerance {
            let (row, column) = (first + row, first + column);
            return Err(Error::Asymmetric { op: OP, channel, row, column, got, mirrored, tolerance });
        }
    }
    Ok(())
}
