//! The operations on the CPU: what the kernels are measured against.

mod attention;
mod gemm;
mod quantize;
mod rotary;

use ndarray::{Array2, Array3, Array4, ArrayView3, ArrayView4, ArrayView5, Axis, LinalgScalar, s};
use rayon::prelude::*;
use variants::ata::BLOCK;

pub use attention::{
    AttentionTerms, AttentionTypes, attention, attention_rounded, attention_with, attention_with_rounded, dequantize,
};
pub use gemm::{GemmTerms, gemm, gemm_magnitude, gemm_rounded, stored_magnitude};
pub use quantize::quantize;
pub use rotary::rotary;

/// Puts partial results of attention on disjoint sets of keys together, in f64: O `[B, H, S, D]` and LSE `[B, H, S]` of
/// each.
///
/// A part whose LSE is minus infinity saw no key, and its O is not used; where both are so, O is 0. One whose LSE is
/// NaN makes NaN of both.
///
/// ```
/// use ndarray::{Array3, Array4};
///
/// let (ones, lse) = (Array4::ones((1, 1, 1, 8)), Array3::zeros((1, 1, 1)));
/// let threes = &ones * 3.0;
/// let (out, sum) = ferrotile::reference::merge((ones.view(), lse.view()), (threes.view(), lse.view()));
/// assert!((out[[0, 0, 0, 0]] - 2.0_f64).abs() < 1e-12 && (sum[[0, 0, 0]] - 2_f64.ln()).abs() < 1e-12);
/// ```
///
/// # Panics
/// Where the shapes do not fit together.
#[must_use]
pub fn merge(
    (o1, lse1): (ArrayView4<'_, f64>, ArrayView3<'_, f64>),
    (o2, lse2): (ArrayView4<'_, f64>, ArrayView3<'_, f64>),
) -> (Array4<f64>, Array3<f64>) {
    let mut out = Array4::zeros(o1.dim());
    let mut lse = Array3::from_elem(lse1.dim(), f64::NEG_INFINITY);
    for (row, lse) in lse.indexed_iter_mut() {
        let parts = [(lse1[row], &o1), (lse2[row], &o2)];
        let largest = parts[0].0.max(parts[1].0);
        if parts.iter().all(|(lse, _)| *lse == f64::NEG_INFINITY) {
            continue;
        }
        let sum: f64 = parts.iter().map(|(lse, _)| (lse - largest).exp()).sum();
        *lse = largest + sum.ln();
        let (batch, head, index) = row;
        let mut out = out.slice_mut(s![batch, head, index, ..]);
        for (lse, o) in parts.into_iter().filter(|(lse, _)| *lse != f64::NEG_INFINITY) {
            out.scaled_add((lse - largest).exp() / sum, &o.slice(s![batch, head, index, ..]));
        }
    }
    (out, lse)
}

/// Computes `Y = A X` in f64: A is `[channels, n, n]`, X and Y are `[frames, channels, n]`.
///
/// ```
/// use ndarray::{Array3, arr3};
///
/// let y = ferrotile::reference::ata(arr3(&[[[2.0, 1.0], [1.0, 3.0]]]).view(), Array3::ones((1, 1, 2)).view());
/// assert_eq!(y, arr3(&[[[3.0, 4.0]]]));
/// ```
///
/// # Panics
/// Where the shapes do not fit together.
#[must_use]
pub fn ata(a: ArrayView3<'_, f64>, x: ArrayView3<'_, f64>) -> Array3<f64> {
    let (frames, channels, n) = x.dim();
    assert_eq!(a.dim(), (channels, n, n), "A does not fit X");
    let (a, x) = (a.as_standard_layout(), x.as_standard_layout());
    let [a, x] = [&a, &x].map(|array| array.as_slice().expect("standard layout is contiguous"));
    let element = |index: usize| {
        let (vector, row) = (index / n, index % n);
        dot(&a[(vector % channels * n + row) * n..][..n], &x[vector * n..][..n])
    };
    let y = (0..frames * channels * n).into_par_iter().map(element).collect();
    Array3::from_shape_vec((frames, channels, n), y).expect("one number an index")
}

/// Computes `Y = A X` in f64 with a symmetric matrix of 16x16 blocks, `[channels][d][block_row][16][16]` as
/// [`crate::SymmetricBlockMatrix::blocks`] has them; X and Y are `[frames, channels, n]`. For large n, of which a dense
/// matrix would fill the memory.
///
/// # Panics
/// Where the shapes do not fit together.
#[must_use]
pub fn ata_blocks(blocks: ArrayView5<'_, f64>, x: ArrayView3<'_, f64>) -> Array3<f64> {
    let (frames, channels, n) = x.dim();
    let (of_blocks, diagonals, rows, ..) = blocks.dim();
    assert_eq!((of_blocks, rows), (channels, n.div_ceil(BLOCK)), "A does not fit X");
    let mut y = Array3::zeros((frames, channels, n));
    let vectors: Vec<_> = y.outer_iter_mut().zip(x.outer_iter()).collect();
    vectors.into_par_iter().for_each(|(mut y, x)| {
        for (channel, d, r) in (0..channels)
            .flat_map(|channel| (0..diagonals.min(rows)).map(move |d| (channel, d)))
            .flat_map(|(channel, d)| (0..rows - d).map(move |r| (channel, d, r)))
        {
            for ((row, column), &element) in blocks.slice(s![channel, d, r, .., ..]).indexed_iter() {
                let (row, column) = (r * BLOCK + row, (r + d) * BLOCK + column);
                if element != 0.0 && row < n && column < n {
                    y[[channel, row]] += element * x[[channel, column]];
                    if d > 0 {
                        y[[channel, column]] += element * x[[channel, row]];
                    }
                }
            }
        }
    });
    y
}

/// Solves `A x = b` in f64 by conjugate gradient from x = 0, each system until the norm of its residual is at most
/// `tolerance` times that of b, or for `max_iterations`: A is `[channels, n, n]`, b and x are `[frames, channels, n]`.
/// Returns x, and the iterations by frame and channel.
///
/// ```
/// use ndarray::{Array3, arr3};
///
/// let a = arr3(&[[[2.0, 1.0], [1.0, 3.0]]]);
/// let (x, iterations) = ferrotile::reference::cg(a.view(), Array3::ones((1, 1, 2)).view(), 1e-10, 10);
/// assert!((x[[0, 0, 0]] - 0.4).abs() < 1e-9 && iterations[[0, 0]] <= 3);
/// ```
///
/// # Panics
/// Where the shapes do not fit together.
#[must_use]
pub fn cg(
    a: ArrayView3<'_, f64>,
    b: ArrayView3<'_, f64>,
    tolerance: f64,
    max_iterations: u32,
) -> (Array3<f64>, Array2<u32>) {
    let (frames, channels, n) = b.dim();
    assert_eq!(a.dim(), (channels, n, n), "A does not fit b");
    let mut x = Array3::zeros(b.dim());
    let mut iterations = Array2::zeros((frames, channels));
    for (frame, channel) in (0..frames).flat_map(|frame| (0..channels).map(move |channel| (frame, channel))) {
        let a = a.index_axis(Axis(0), channel);
        let mut x = x.slice_mut(s![frame, channel, ..]);
        let mut r = b.slice(s![frame, channel, ..]).to_owned();
        let mut p = r.clone();
        let mut squares = r.dot(&r);
        let target = tolerance * tolerance * squares;
        while squares > target && iterations[[frame, channel]] < max_iterations {
            let q = a.dot(&p);
            let step = squares / p.dot(&q);
            x.scaled_add(step, &p);
            r.scaled_add(-step, &q);
            let before = squares;
            squares = r.dot(&r);
            p *= squares / before;
            p += &r;
            iterations[[frame, channel]] += 1;
        }
    }
    (x, iterations)
}

/// The scalar product, in eight partial sums so that it can be vectorised.
fn dot<T: LinalgScalar>(a: &[T], b: &[T]) -> T {
    const LANES: usize = 8;
    let ((a_chunks, a_rest), (b_chunks, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let rest = std::iter::zip(a_rest, b_rest).fold(T::zero(), |sum, (&a, &b)| sum + a * b);
    let mut lanes = [T::zero(); LANES];
    for (a, b) in std::iter::zip(a_chunks, b_chunks) {
        for lane in 0..LANES {
            lanes[lane] = lanes[lane] + a[lane] * b[lane];
        }
    }
    lanes.into_iter().fold(rest, |sum, lane| sum + lane)
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;

    #[test]
    fn a_product_of_two_channels_by_hand() {
        let a = array![[[1.0, 2.0], [2.0, -1.0]], [[0.0, 3.0], [3.0, 5.0]]];
        let x = array![[[1.0, 1.0], [2.0, 0.0]], [[0.0, 4.0], [1.0, 1.0]], [[0.0, 0.0], [0.0, 1.0]]];
        let y = array![[[3.0, 1.0], [0.0, 6.0]], [[8.0, -4.0], [3.0, 8.0]], [[0.0, 0.0], [3.0, 5.0]]];
        assert_eq!(ata(a.view(), x.view()), y);
    }

    #[test]
    fn a_product_of_blocks_is_that_of_the_dense_matrix() {
        for (n, diagonals) in [(1, 1), (16, 1), (40, 2), (70, 5)] {
            let dense = Array3::from_shape_fn((2, n, n), |(channel, row, column)| {
                let near = row.abs_diff(column) < 16 * diagonals - 15;
                if near { (1 + channel + row * column % 7 + row.abs_diff(column) % 3) as f32 } else { 0.0 }
            });
            let matrix = crate::SymmetricBlockMatrix::from_dense(dense.view(), 0.0).unwrap();
            let x = Array3::from_shape_fn((3, 2, n), |(frame, channel, i)| (frame + channel + i % 5) as f64);
            let y = ata_blocks(matrix.blocks().mapv(f64::from).view(), x.view());
            assert_eq!(y, ata(dense.mapv(f64::from).view(), x.view()), "n {n}");
        }
    }

    #[test]
    fn systems_are_solved_in_as_many_iterations_as_a_has_eigenvalues() {
        let a = array![[[2.0, 1.0], [1.0, 2.0]], [[5.0, 0.0], [0.0, 5.0]]];
        let b = array![[[3.0, 3.0], [1.0, -2.0]], [[4.0, 5.0], [0.0, 0.0]]];
        let (x, iterations) = cg(a.view(), b.view(), 1e-12, 100);
        let expected = array![[[1.0, 1.0], [0.2, -0.4]], [[1.0, 2.0], [0.0, 0.0]]];
        assert!(x.iter().zip(&expected).all(|(x, expected)| (x - expected).abs() < 1e-12), "{x}");
        assert_eq!(iterations, array![[1, 1], [2, 0]]);
        assert_eq!(cg(a.view(), b.view(), 1e-12, 1).1, array![[1, 1], [1, 0]]);
    }
}
