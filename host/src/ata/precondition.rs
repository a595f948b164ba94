//! The block-Jacobi preconditioner: the inverses of the 16x16 blocks of the main diagonal.

use ndarray::{ArrayView2, s};
use variants::ata::BLOCK;

use super::matrix::SymmetricBlockMatrix;

/// A block of A, or its inverse.
type Block = [[f64; BLOCK]; BLOCK];

/// What is added to the diagonal of each inverse, as a share of its largest element. It is more than rounding to f32
/// takes away, so that the inverse stays positive definite.
const RIDGE: f64 = 1.0 / (1 << 19) as f64;

/// The inverses of the diagonal blocks in f32, `[channels][block_rows][16][16]`. Those of a channel are multiplied by
/// the power of two that brings the largest element of the channel to at least 1 and below 2. Conjugate gradient is the
/// same with any multiple of its preconditioner.
///
/// Of a block that is not positive definite it is the inverse of its diagonal (Jacobi), with 1 for what is not above 0.
/// What is beyond n meets zeros.
pub(super) fn inverses(matrix: &SymmetricBlockMatrix) -> Vec<f32> {
    let mut result = Vec::with_capacity(matrix.channels() * matrix.block_rows() * BLOCK * BLOCK);
    for channel in 0..matrix.channels() {
        let blocks = matrix.blocks();
        let of_block = |r: usize| inverse(blocks.slice(s![channel, 0, r, .., ..]), (matrix.n() - r * BLOCK).min(BLOCK));
        let inverses: Vec<Block> = (0..matrix.block_rows()).map(of_block).collect();
        let largest = inverses.as_flattened().as_flattened().iter().fold(0f64, |largest, x| largest.max(x.abs()));
        let scale = largest.log2().floor().exp2().recip();
        result.extend(inverses.as_flattened().as_flattened().iter().map(|element| (element * scale) as f32));
    }
    result
}

/// The inverse of the first `rows` rows and columns of a block, with the ridge.
fn inverse(block: ArrayView2<'_, f32>, rows: usize) -> Block {
    let mut a = [[0.0; BLOCK]; BLOCK];
    for (i, row) in a.iter_mut().enumerate() {
        for (j, element) in row.iter_mut().enumerate() {
            *element = if i.max(j) < rows { f64::from(block[[i, j]]) } else { 0.0 };
        }
    }
    let scale = a.as_flattened().iter().fold(0f64, |largest, x| largest.max(x.abs()));
    for (i, row) in a.iter_mut().enumerate().skip(rows) {
        // Any number will do: vectors have zeros there. This one is of the size of the others.
        row[i] = if scale > 0.0 { scale } else { 1.0 };
    }
    let mut inverse = inverse_of(&a).unwrap_or_else(|| {
        std::array::from_fn(|i| {
            let diagonal = if a[i][i] > 0.0 { a[i][i].recip() } else { 1.0 };
            std::array::from_fn(|j| if i == j { diagonal } else { 0.0 })
        })
    });
    let largest = inverse.as_flattened().iter().fold(0f64, |largest, x| largest.max(x.abs()));
    for (i, row) in inverse.iter_mut().enumerate() {
        row[i] += RIDGE * largest;
    }
    inverse
}

/// The inverse by Cholesky's factorisation; `None` where the block is not positive definite.
fn inverse_of(a: &Block) -> Option<Block> {
    // Rows of L, with A = L L^T.
    let mut factor = [[0.0; BLOCK]; BLOCK];
    for i in 0..BLOCK {
        for j in 0..=i {
            let rest = a[i][j] - (0..j).map(|k| factor[i][k] * factor[j][k]).sum::<f64>();
            if i > j {
                factor[i][j] = rest / factor[j][j];
            } else if rest > f64::EPSILON * a[i][i] {
                factor[i][i] = rest.sqrt();
            } else {
                return None;
            }
        }
    }
    // Columns of the inverse of L, then their products.
    let mut columns = [[0.0; BLOCK]; BLOCK];
    for (j, column) in columns.iter_mut().enumerate() {
        for i in j..BLOCK {
            let unit = if i == j { 1.0 } else { 0.0 };
            column[i] = (unit - (j..i).map(|k| factor[i][k] * column[k]).sum::<f64>()) / factor[i][i];
        }
    }
    let dot = |i: usize, j: usize| columns[i].iter().zip(&columns[j]).map(|(x, y)| x * y).sum::<f64>();
    Some(std::array::from_fn(|i| std::array::from_fn(|j| dot(i, j))))
}

#[cfg(test)]
mod tests {
    use ndarray::Array3;

    use super::*;

    /// Element (i, j) of the inverse of block r of a channel.
    fn element(inverses: &[f32], matrix: &SymmetricBlockMatrix, [channel, r, i, j]: [usize; 4]) -> f64 {
        inverses[((channel * matrix.block_rows() + r) * BLOCK + i) * BLOCK + j].into()
    }

    #[test]
    fn inverses_times_blocks_are_a_multiple_of_the_identity() {
        let n = 37;
        let data = Array3::from_shape_fn((2, 3, n), |(channel, k, j)| {
            [1e9, 1e-6][channel] * [4.0 + (j % 5) as f32, -1.0, 0.5][k]
        });
        let matrix = SymmetricBlockMatrix::from_diagonals(n, &[0, 1, 7], data.view()).unwrap();
        let (inverses, dense) = (inverses(&matrix), matrix.to_dense());
        for (channel, r) in (0..2).flat_map(|channel| (0..3).map(move |r| (channel, r))) {
            let rows = (n - r * BLOCK).min(BLOCK);
            let product = |i: usize, j: usize| -> f64 {
                let term = |k: usize| {
                    element(&inverses, &matrix, [channel, r, i, k])
                        * f64::from(dense[[channel, r * BLOCK + k, r * BLOCK + j]])
                };
                (0..rows).map(term).sum()
            };
            let scale = product(0, 0);
            for (i, j) in (0..rows).flat_map(|i| (0..rows).map(move |j| (i, j))) {
                let expected = if i == j { scale } else { 0.0 };
                assert!((product(i, j) - expected).abs() < 1e-4 * scale, "{channel} {r} {i} {j}: {}", product(i, j));
            }
        }
        for channel in inverses.as_chunks::<{ 3 * BLOCK * BLOCK }>().0 {
            let largest = channel.iter().fold(0f32, |largest, x| largest.max(x.abs()));
            assert!((1.0..2.01).contains(&largest), "{largest}");
        }
    }

    #[test]
    fn a_block_that_is_not_positive_definite_has_the_inverse_of_its_diagonal() {
        // The first block has a 2x2 minor below 0 and a diagonal element of 0, the second is the identity.
        let n = 2 * BLOCK;
        let mut data = Array3::zeros((1, 2, n));
        data.slice_mut(s![0, 0, ..]).fill(1.0);
        data[[0, 0, 3]] = 2.0;
        data[[0, 0, 9]] = 0.0;
        data[[0, 1, 5]] = 4.0;
        let matrix = SymmetricBlockMatrix::from_diagonals(n, &[0, 1], data.view()).unwrap();
        let inverses = inverses(&matrix);
        for (r, i, j) in (0..2).flat_map(|r| (0..BLOCK * BLOCK).map(move |at| (r, at / BLOCK, at % BLOCK))) {
            let expected = match (r, i == j) {
                (_, false) => 0.0,
                (0, true) if i == 3 => 0.5,
                (_, true) => 1.0,
            };
            let got = element(&inverses, &matrix, [0, r, i, j]);
            assert!((got - expected).abs() < 1e-5, "{r} {i} {j}: {got}");
        }
    }

    #[test]
    fn a_channel_of_zeros_is_preconditioned_by_ones() {
        let matrix = SymmetricBlockMatrix::from_diagonals(5, &[0], Array3::zeros((1, 1, 5)).view()).unwrap();
        let inverses = inverses(&matrix);
        let is_right = |at: usize| if at / BLOCK == at % BLOCK { inverses[at] >= 1.0 } else { inverses[at] == 0.0 };
        assert!((0..BLOCK * BLOCK).all(is_right));
    }
}
