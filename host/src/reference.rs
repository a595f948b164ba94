//! The operations on the CPU: what the kernels are measured against.

mod gemm;

use std::slice::ChunksExact;

use layout::Dtype;
use layout::ata::BLOCK;
use layout::attention::Mask;
use ndarray::{Array2, Array3, Array4, ArrayView3, ArrayView4, ArrayView5, Axis, LinalgScalar, s};
use rayon::prelude::*;

use crate::element::round;
pub use gemm::{GemmTerms, gemm, gemm_magnitude, gemm_rounded};

/// Computes `O = softmax(scale * Q K^T + mask) V` and `LSE_i = ln sum_j exp(s_ij)` in f64.
///
/// Q is `[B, Hq, Sq, D]`, K `[B, Hkv, Sk, D]`, V `[B, Hkv, Sk, Dv]`; query head `h` uses key-value head `h / (Hq / Hkv)`. O is
/// `[B, Hq, Sq, Dv]`, LSE `[B, Hq, Sq]`. A row that sees no score above minus
/// infinity, or no key, has `O = 0` and `LSE = -inf`.
///
/// # Panics
/// Where the shapes do not fit together.
#[must_use]
pub fn attention(
    q: ArrayView4<'_, f64>,
    k: ArrayView4<'_, f64>,
    v: ArrayView4<'_, f64>,
    mask: Mask,
    scale: f64,
) -> (Array4<f64>, Array3<f64>) {
    by_row(q, k, v, mask, f64::NEG_INFINITY, |query, keys, values, out| {
        let scores: Vec<f64> = keys.map(|key| scale * dot(query, key)).collect();
        if scores.iter().all(|&score| score == f64::NEG_INFINITY) {
            return f64::NEG_INFINITY;
        }
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut sum = 0.0;
        for (score, value) in scores.iter().zip(values) {
            let weight = (score - max).exp();
            sum += weight;
            out.iter_mut().zip(value).for_each(|(out, value)| *out += weight * value);
        }
        out.iter_mut().for_each(|out| *out /= sum);
        max + sum.ln()
    })
}

/// Puts partial results of attention on disjoint sets of keys together, in f64: O `[B, H, S, D]` and LSE `[B, H, S]` of each.
///
/// A part whose LSE is minus infinity saw no key, and its O is not used; where both are so, O is 0.
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
        if largest == f64::NEG_INFINITY {
            continue;
        }
        let sum: f64 = parts.iter().map(|(lse, _)| (lse - largest).exp()).sum();
        *lse = largest + sum.ln();
        let (batch, head, index) = row;
        let mut out = out.slice_mut(s![batch, head, index, ..]);
        for (lse, o) in parts.into_iter().filter(|(lse, _)| *lse > f64::NEG_INFINITY) {
            out.scaled_add((lse - largest).exp() / sum, &o.slice(s![batch, head, index, ..]));
        }
    }
    (out, lse)
}

/// The obvious computation in a kernel's types: scores, sums and outputs accumulate in f32, the weights are rounded to `dtype`
/// before they multiply V, and the output is rounded to `dtype`.
///
/// Its distance from [`attention`] is what these types cost, whatever the order of the sums; see [`crate::tolerance`]. Inputs
/// are values of `dtype`, shapes and rows without keys as for [`attention`].
///
/// # Panics
/// Where the shapes do not fit together.
#[must_use]
pub fn attention_rounded(
    q: ArrayView4<'_, f64>,
    k: ArrayView4<'_, f64>,
    v: ArrayView4<'_, f64>,
    mask: Mask,
    scale: f64,
    dtype: Dtype,
) -> (Array4<f64>, Array3<f64>) {
    let narrow = |array: ArrayView4<'_, f64>| array.mapv(|value| value as f32);
    let (q, k, v) = (narrow(q), narrow(k), narrow(v));
    let scale = scale as f32;
    let (out, lse) = by_row(q.view(), k.view(), v.view(), mask, f32::NEG_INFINITY, |query, keys, values, out| {
        let scores: Vec<f32> = keys.map(|key| scale * dot(query, key)).collect();
        if scores.iter().all(|&score| score == f32::NEG_INFINITY) {
            return f32::NEG_INFINITY;
        }
        let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0.0;
        for (score, value) in scores.iter().zip(values) {
            let weight = (score - max).exp();
            sum += weight;
            let weight = round(weight.into(), dtype) as f32;
            out.iter_mut().zip(value).for_each(|(out, value)| *out += weight * value);
        }
        out.iter_mut().for_each(|out| *out = round(f64::from(*out / sum), dtype) as f32);
        max + sum.ln()
    });
    (out.mapv(f64::from), lse.mapv(f64::from))
}

/// Computes `Y = A X` in f64: A is `[channels, n, n]`, X and Y are `[frames, channels, n]`.
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
/// [`crate::SymmetricBlockMatrix::blocks`] has them; X and Y are `[frames, channels, n]`. For large n, of which a dense matrix would
/// fill the memory.
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

/// Solves `A x = b` in f64 by conjugate gradient from x = 0, each system until the norm of its residual is at most `tolerance` times
/// that of b, or for `max_iterations`: A is `[channels, n, n]`, b and x are `[frames, channels, n]`. Returns x, and the iterations by
/// frame and channel.
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

/// Computes each query row by `row(query, keys, values, out)`, which is given the keys and values that the row sees, at least
/// one, and zeros for its output, and returns its LSE. A row without keys has zeros and `no_keys`. Rows run in parallel.
fn by_row<T: LinalgScalar + Send + Sync>(
    q: ArrayView4<'_, T>,
    k: ArrayView4<'_, T>,
    v: ArrayView4<'_, T>,
    mask: Mask,
    no_keys: T,
    row: impl Fn(&[T], ChunksExact<'_, T>, ChunksExact<'_, T>, &mut [T]) -> T + Sync,
) -> (Array4<T>, Array3<T>) {
    let (batch, q_heads, q_len, head_dim) = q.dim();
    let (_, kv_heads, k_len, value_dim) = v.dim();
    assert_eq!(k.dim(), (batch, kv_heads, k_len, head_dim), "K does not fit Q and V");
    assert_eq!(v.dim().0, batch, "V does not fit Q");
    assert!(head_dim > 0 && value_dim > 0, "the head dimension is 0");
    assert!(
        q_heads == 0 || (kv_heads > 0 && q_heads.is_multiple_of(kv_heads)),
        "{kv_heads} K/V heads do not divide {q_heads}"
    );
    let (q, k, v) = (q.as_standard_layout(), k.as_standard_layout(), v.as_standard_layout());
    let [q, k, v] = [&q, &k, &v].map(|array| array.as_slice().expect("standard layout is contiguous"));
    let rows = (0..batch * q_heads * q_len).into_par_iter().map(|index| {
        let (q_head, q_row) = (index / q_len, index % q_len);
        // Counted over the whole batch, `q_head / (q_heads / kv_heads)` is the key-value head counted so too.
        let first_key = q_head / (q_heads / kv_heads) * k_len;
        let visible = mask.key_range(q_row, q_len, k_len);
        let mut out = vec![T::zero(); value_dim];
        if visible.is_empty() {
            return (out, no_keys);
        }
        let keys = first_key + visible.start..first_key + visible.end;
        let query = &q[index * head_dim..][..head_dim];
        let values = v[keys.start * value_dim..keys.end * value_dim].chunks_exact(value_dim);
        let keys = k[keys.start * head_dim..keys.end * head_dim].chunks_exact(head_dim);
        let lse = row(query, keys, values, &mut out);
        (out, lse)
    });
    let (out, lse): (Vec<Vec<T>>, Vec<T>) = rows.unzip();
    let out = Array4::from_shape_vec((batch, q_heads, q_len, value_dim), out.concat());
    let lse = Array3::from_shape_vec((batch, q_heads, q_len), lse);
    (out.expect("one row an index"), lse.expect("one number an index"))
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
    use ndarray::{Array4, array};

    use super::*;

    /// The definition, one element at a time and without subtracting a maximum.
    fn naive(q: &Array4<f64>, k: &Array4<f64>, v: &Array4<f64>, mask: Mask, scale: f64) -> (Array4<f64>, Array3<f64>) {
        let ((batch, q_heads, q_len, dim), (_, kv_heads, k_len, _)) = (q.dim(), k.dim());
        let mut out = Array4::zeros(q.dim());
        let mut lse = Array3::from_elem((batch, q_heads, q_len), f64::NEG_INFINITY);
        for (b, h, i) in ndarray::indices((batch, q_heads, q_len)) {
            let kv = h * kv_heads / q_heads;
            let seen = |j: usize| {
                let distance = j as i64 - (i as i64 + k_len as i64 - q_len as i64);
                match mask {
                    Mask::Full => true,
                    Mask::Causal => distance <= 0,
                    Mask::Window { left, right } => -(left as i64) <= distance && distance <= right as i64,
                }
            };
            let mut sum = 0.0;
            for j in (0..k_len).filter(|&j| seen(j)) {
                let score: f64 = (0..dim).map(|d| q[[b, h, i, d]] * k[[b, kv, j, d]]).sum();
                let weight = (scale * score).exp();
                sum += weight;
                (0..dim).for_each(|d| out[[b, h, i, d]] += weight * v[[b, kv, j, d]]);
            }
            if sum > 0.0 {
                (0..dim).for_each(|d| out[[b, h, i, d]] /= sum);
                lse[[b, h, i]] = sum.ln();
            }
        }
        (out, lse)
    }

    fn sample(shape: (usize, usize, usize, usize), phase: f64) -> Array4<f64> {
        Array4::from_shape_fn(shape, |(b, h, s, d)| {
            (phase + b as f64 * 3.1 + h as f64 * 1.7 + s as f64 * 0.83 + d as f64 * 0.37).sin()
        })
    }

    #[test]
    fn agrees_with_the_definition_for_masks_shared_heads_and_unequal_lengths() {
        let masks = [Mask::Full, Mask::Causal, Mask::Window { left: 2, right: 1 }, Mask::Window { left: 0, right: 0 }];
        for (mask, (q_len, k_len)) in masks.iter().flat_map(|&mask| [(5, 5), (3, 7), (7, 3)].map(|len| (mask, len))) {
            let q = sample((2, 4, q_len, 11), 0.0);
            let (k, v) = (sample((2, 2, k_len, 11), 1.0), sample((2, 2, k_len, 11), 2.0));
            let (out, lse) = attention(q.view(), k.view(), v.view(), mask, 0.3);
            let (naive_out, naive_lse) = naive(&q, &k, &v, mask, 0.3);
            assert!(out.iter().zip(&naive_out).all(|(a, b)| (a - b).abs() < 1e-13), "{mask} {q_len} {k_len}");
            assert!(lse.iter().zip(&naive_lse).all(|(a, b)| a == b || (a - b).abs() < 1e-13), "{mask} {q_len} {k_len}");
        }
    }

    #[test]
    fn one_query_on_two_keys_by_hand() {
        let q = array![[[[1.0, 0.0]]]];
        let k = array![[[[3f64.ln(), 5.0], [0.0, -5.0]]]];
        let v = array![[[[1.0, 8.0], [5.0, 0.0]]]];
        let (out, lse) = attention(q.view(), k.view(), v.view(), Mask::Full, 1.0);
        assert!((out[[0, 0, 0, 0]] - 2.0).abs() < 1e-15 && (out[[0, 0, 0, 1]] - 6.0).abs() < 1e-15);
        assert!((lse[[0, 0, 0]] - 4f64.ln()).abs() < 1e-15);
    }

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

    #[test]
    fn rows_without_keys_are_zero_with_lse_minus_infinity() {
        let q = sample((1, 1, 4, 8), 0.0);
        let k = sample((1, 1, 2, 8), 1.0);
        let (out, lse) = attention(q.view(), k.view(), k.view(), Mask::Causal, 1.0);
        for row in 0..2 {
            assert!((0..8).all(|d| out[[0, 0, row, d]] == 0.0) && lse[[0, 0, row]] == f64::NEG_INFINITY);
        }
        assert!(lse[[0, 0, 2]].is_finite());
        let no_keys = Array4::zeros((1, 1, 0, 8));
        let (out, lse) = attention_rounded(q.view(), no_keys.view(), no_keys.view(), Mask::Full, 1.0, Dtype::F16);
        assert!(out.iter().all(|&value| value == 0.0) && lse.iter().all(|&value| value == f64::NEG_INFINITY));
    }

    #[test]
    fn empty_batches_and_queries_give_empty_results() {
        let k = sample((1, 1, 3, 8), 0.0);
        let (out, lse) = attention(Array4::zeros((1, 2, 0, 8)).view(), k.view(), k.view(), Mask::Full, 1.0);
        assert_eq!((out.dim(), lse.dim()), ((1, 2, 0, 8), (1, 2, 0)));
        let none = Array4::zeros((0, 2, 3, 8));
        let (out, _) = attention(none.view(), none.view(), none.view(), Mask::Full, 1.0);
        assert_eq!(out.dim(), (0, 2, 3, 8));
    }

    #[test]
    fn extreme_scores_neither_overflow_nor_vanish() {
        let q = array![[[[-300.0], [300.0]]]];
        let k = array![[[[300.0], [299.0]]]];
        let v = array![[[[1.0], [2.0]]]];
        let (out, lse) = attention(q.view(), k.view(), v.view(), Mask::Full, 1.0);
        assert_eq!((out[[0, 0, 0, 0]], out[[0, 0, 1, 0]]), (2.0, 1.0));
        assert_eq!((lse[[0, 0, 0]], lse[[0, 0, 1]]), (-89700.0, 90000.0));
        let (rounded, _) = attention_rounded(q.view(), k.view(), v.view(), Mask::Full, 1.0, Dtype::F16);
        assert_eq!(rounded, out);
    }

    #[test]
    fn the_rounded_reference_is_exact_where_the_sums_are_and_close_elsewhere() {
        let zero = Array4::zeros((1, 2, 3, 8));
        let v = Array4::from_shape_fn((1, 1, 4, 8), |(_, _, s, d)| (s * d) as f64);
        let k = sample((1, 1, 4, 8), 0.0);
        let (out, _) = attention_rounded(zero.view(), k.view(), v.view(), Mask::Full, 1.0, Dtype::F16);
        assert!(out.indexed_iter().all(|((_, _, _, d), &value)| value == 1.5 * d as f64));
        let q = sample((1, 1, 4, 8), 4.0);
        let (exact, _) = attention(q.view(), k.view(), v.view(), Mask::Full, 1.0);
        let (rounded, _) = attention_rounded(q.view(), k.view(), v.view(), Mask::Full, 1.0, Dtype::F16);
        let error = exact.iter().zip(&rounded).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(error > 0.0 && error < 2e-2, "{error}");
    }
}
