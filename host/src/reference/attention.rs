//! Attention in f64, and in the types of the kernels.

use std::slice::ChunksExact;

use layout::Dtype;
use ndarray::{Array3, Array4, ArrayView1, ArrayView2, ArrayView4, LinalgScalar, NdFloat};
use rayon::prelude::*;
use variants::attention::{E4M3_P_EXPONENT, Mask};

use super::dot;
use crate::element::round;

/// What attention does to scores.
///
/// ```
/// use ferrotile::{Mask, reference::{AttentionTerms, attention_with}};
/// use ndarray::Array4;
///
/// let (q, k) = (Array4::ones((1, 1, 2, 8)), Array4::ones((1, 1, 4, 8)));
/// let terms = AttentionTerms { softcap: Some(2.0), ..AttentionTerms::new(Mask::Causal, 1.0) };
/// let (_, lse) = attention_with(q.view(), k.view(), k.view(), &terms);
/// assert!((lse[[0, 0, 1]] - (2.0 * 4_f64.tanh() + 4_f64.ln())).abs() < 1e-12);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct AttentionTerms<'a> {
    /// Which keys a row sees.
    pub mask: Mask,
    /// What scores are multiplied by.
    pub scale: f64,
    /// `cap * tanh(s / cap)` takes the place of scaled scores.
    pub softcap: Option<f64>,
    /// `[Hq]`: the score of a key that every row of the head sees and whose value is 0.
    pub sink: Option<ArrayView1<'a, f64>>,
    /// `[B or 1, Hq or 1, Sq, Sk]`: is added to scaled and capped scores.
    pub bias: Option<ArrayView4<'a, f64>>,
}

impl AttentionTerms<'_> {
    /// A mask and a scale.
    #[must_use]
    pub const fn new(mask: Mask, scale: f64) -> Self {
        Self { mask, scale, softcap: None, sink: None, bias: None }
    }

    fn sink(&self, at: QueryRow) -> f64 {
        self.sink.map_or(f64::NEG_INFINITY, |sink| sink[at.head])
    }

    /// The bias of the `index`-th key that the row sees.
    fn bias(&self, at: QueryRow, index: usize) -> f64 {
        self.bias.map_or(0.0, |bias| {
            let (batches, heads, ..) = bias.dim();
            bias[[at.batch % batches, at.head % heads, at.row, at.first_key + index]]
        })
    }
}

/// Computes `O = softmax(scale * Q K^T + mask) V` and `LSE_i = ln sum_j exp(s_ij)` in f64.
///
/// Q is `[B, Hq, Sq, D]`, K `[B, Hkv, Sk, D]`, V `[B, Hkv, Sk, Dv]`; query head `h` uses key-value head
/// `h / (Hq / Hkv)`. O is `[B, Hq, Sq, Dv]`, LSE `[B, Hq, Sq]`. A row that sees no score above minus infinity, or no
/// key, has `O = 0` and `LSE = -inf`.
///
/// ```
/// use ferrotile::{Mask, reference};
/// use ndarray::Array4;
///
/// let (q, k) = (Array4::ones((1, 1, 2, 8)), Array4::ones((1, 1, 4, 8)));
/// let (out, lse) = reference::attention(q.view(), k.view(), k.view(), Mask::Full, 1.0);
/// assert!((out[[0, 0, 1, 3]] - 1.0_f64).abs() < 1e-12);
/// assert!((lse[[0, 0, 1]] - (8.0 + 4_f64.ln())).abs() < 1e-12);
/// ```
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
    attention_with(q, k, v, &AttentionTerms::new(mask, scale))
}

/// As [`attention`], with softcap, bias and sinks: `s_ij = softcap(scale * q_i . k_j) + bias_ij` where row i sees key
/// j, `LSE_i = ln (exp(sink) + sum_j exp(s_ij))` and `O_i = sum_j exp(s_ij - LSE_i) v_j`. A row that sees no score
/// above minus infinity, or no key, has `O = 0` and its sink as LSE.
///
/// # Panics
/// Where the shapes do not fit together.
#[must_use]
pub fn attention_with(
    q: ArrayView4<'_, f64>,
    k: ArrayView4<'_, f64>,
    v: ArrayView4<'_, f64>,
    terms: &AttentionTerms<'_>,
) -> (Array4<f64>, Array3<f64>) {
    in_type(q, k, v, terms, |number| number, [&|value| value; 2])
}

/// Elements of FP8, or what those of u8 stand for, times their factors: `x` is `[B, H, S, D]`, and `factors` are `[B or
/// 1, F]`, where F divides H and each factor is that of as many heads, which follow each other.
///
/// ```
/// use ferrotile::reference;
/// use ndarray::{Array4, arr2};
///
/// let x = reference::dequantize(Array4::ones((1, 4, 1, 8)).view(), arr2(&[[0.5, 2.0]]).view());
/// assert_eq!([x[[0, 1, 0, 0]], x[[0, 2, 0, 0]]], [0.5, 2.0]);
/// ```
///
/// # Panics
/// Where the shapes do not fit together.
#[must_use]
pub fn dequantize(x: ArrayView4<'_, f64>, factors: ArrayView2<'_, f64>) -> Array4<f64> {
    let (batches, heads) = factors.dim();
    let (batch, of_x, ..) = x.dim();
    assert!(batches == batch || batches == 1, "{batches} batch entries have factors, of {batch}");
    assert!(heads > 0 && of_x.is_multiple_of(heads), "{heads} factors do not divide {of_x} heads");
    let mut product = x.to_owned();
    for ((b, h, ..), x) in product.indexed_iter_mut() {
        *x *= factors[[b % batches, h / (of_x / heads)]];
    }
    product
}

/// The element types of a kernel.
///
/// ```
/// use ferrotile::{Dtype, reference::AttentionTypes};
///
/// assert_eq!(AttentionTypes::from(Dtype::F16), AttentionTypes { inputs: Dtype::F16, out: Dtype::F16 });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionTypes {
    /// That of Q, K and V, and of the weights when they multiply V; beside a V of u8 they are of f16.
    pub inputs: Dtype,
    /// That of O.
    pub out: Dtype,
}

impl From<Dtype> for AttentionTypes {
    fn from(dtype: Dtype) -> Self {
        Self { inputs: dtype, out: dtype }
    }
}

impl AttentionTypes {
    /// The weight as it multiplies V, where the largest of the row is 1. E4M3 has few bits below 1, and 8 powers of two
    /// above: kernels multiply weights by `2^8` first.
    fn round_weight(self, weight: f64) -> f64 {
        match self.inputs {
            Dtype::E4M3 => {
                let unit = f64::from(E4M3_P_EXPONENT).exp2();
                round(weight * unit, Dtype::E4M3) / unit
            }
            Dtype::U8 => round(weight, Dtype::F16),
            dtype => round(weight, dtype),
        }
    }
}

/// The obvious computation in a kernel's types: scores, sums and outputs accumulate in f32, the weights are rounded to
/// the type of the inputs before they multiply V, and the output is rounded to its type.
///
/// Its distance from [`attention`] is what these types cost, whatever the order of the sums; see [`crate::tolerance`].
/// Inputs are values of their type, those of FP8 and of u8 times factors; shapes and rows without keys as for
/// [`attention`].
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
    types: impl Into<AttentionTypes>,
) -> (Array4<f64>, Array3<f64>) {
    attention_with_rounded(q, k, v, &AttentionTerms::new(mask, scale), types)
}

/// [`attention_with`] in a kernel's types, as [`attention_rounded`].
///
/// # Panics
/// Where the shapes do not fit together.
#[must_use]
pub fn attention_with_rounded(
    q: ArrayView4<'_, f64>,
    k: ArrayView4<'_, f64>,
    v: ArrayView4<'_, f64>,
    terms: &AttentionTerms<'_>,
    types: impl Into<AttentionTypes>,
) -> (Array4<f64>, Array3<f64>) {
    let types = types.into();
    let narrow = |array: ArrayView4<'_, f64>| array.mapv(|value| value as f32);
    let (q, k, v) = (narrow(q), narrow(k), narrow(v));
    let round_weight = |weight: f32| types.round_weight(weight.into()) as f32;
    let round_out = |value: f32| round(value.into(), types.out) as f32;
    let roundings: [&(dyn Fn(f32) -> f32 + Sync); 2] = [&round_weight, &round_out];
    let (out, lse) = in_type(q.view(), k.view(), v.view(), terms, |number| number as f32, roundings);
    (out.mapv(f64::from), lse.mapv(f64::from))
}

/// Computes in `T`, of which `number` makes the terms. One function rounds weights before they multiply V, and one
/// outputs.
fn in_type<T: NdFloat>(
    q: ArrayView4<'_, T>,
    k: ArrayView4<'_, T>,
    v: ArrayView4<'_, T>,
    terms: &AttentionTerms<'_>,
    number: impl Fn(f64) -> T + Sync,
    [round_weight, round_out]: [&(dyn Fn(T) -> T + Sync); 2],
) -> (Array4<T>, Array3<T>) {
    // A power of two, which changes no digit, keeps sums of a finite score and a finite bias within the type.
    let unit = number((-2.0 - terms.scale.abs().max(1.0).log2().ceil()).max(-126.0).exp2());
    let (scale, softcap) = (number(terms.scale) * unit, terms.softcap.map(&number));
    by_row(q, k, v, terms.mask, |at, query, keys, values, out| {
        let score = |(index, key)| {
            let score = scale * dot(query, key);
            let capped = softcap.map_or(score, |cap| cap * unit * (score / unit / cap).tanh());
            capped + number(terms.bias(at, index)) * unit
        };
        let (scores, sink): (Vec<T>, _) = (keys.enumerate().map(score).collect(), number(terms.sink(at)));
        if scores.iter().all(|&score| score == T::neg_infinity()) {
            return sink;
        }
        let max = scores.iter().copied().fold(sink * unit, T::max);
        let term = |score: T| ((score - max) / unit).exp();
        let mut sum = term(sink * unit);
        for (&score, value) in scores.iter().zip(values) {
            let weight = term(score);
            sum += weight;
            let weight = round_weight(weight);
            out.iter_mut().zip(value).for_each(|(out, &value)| *out += weight * value);
        }
        out.iter_mut().for_each(|out| *out = round_out(*out / sum));
        max / unit + sum.ln()
    })
}

/// Where a query row stands.
#[derive(Clone, Copy)]
struct QueryRow {
    batch: usize,
    head: usize,
    row: usize,
    /// The first key that it sees.
    first_key: usize,
}

/// Computes each query row by `row(at, query, keys, values, out)`. The function gets the keys and values that the
/// row sees, and an output of zeros, and returns the LSE. Rows run in parallel.
fn by_row<T: LinalgScalar + Send + Sync>(
    q: ArrayView4<'_, T>,
    k: ArrayView4<'_, T>,
    v: ArrayView4<'_, T>,
    mask: Mask,
    row: impl Fn(QueryRow, &[T], ChunksExact<'_, T>, ChunksExact<'_, T>, &mut [T]) -> T + Sync,
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
        let (batch, head) = (q_head / q_heads, q_head % q_heads);
        let at = QueryRow { batch, head, row: q_row, first_key: visible.start };
        let keys = first_key + visible.start..first_key + visible.end;
        let query = &q[index * head_dim..][..head_dim];
        let values = v[keys.start * value_dim..keys.end * value_dim].chunks_exact(value_dim);
        let keys = k[keys.start * head_dim..keys.end * head_dim].chunks_exact(head_dim);
        let lse = row(at, query, keys, values, &mut out);
        (out, lse)
    });
    let (out, lse): (Vec<Vec<T>>, Vec<T>) = rows.unzip();
    let out = Array4::from_shape_vec((batch, q_heads, q_len, value_dim), out.concat());
    let lse = Array3::from_shape_vec((batch, q_heads, q_len), lse);
    (out.expect("one row an index"), lse.expect("one number an index"))
}

#[cfg(test)]
mod tests {
    use ndarray::{Array1, Array4, array};

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

    #[test]
    fn a_sink_is_a_key_of_value_zero_and_a_bias_of_minus_infinity_hides_one() {
        let q = sample((2, 2, 3, 8), 0.0);
        let (k, v) = (sample((2, 1, 5, 8), 1.0), sample((2, 1, 5, 8), 2.0));
        // Key 4 takes the place of the sink: its value is 0, and its score, by the bias, the sink.
        let mut zeroed = (k.clone(), v.clone());
        zeroed.0.slice_mut(ndarray::s![.., .., 4, ..]).fill(0.0);
        zeroed.1.slice_mut(ndarray::s![.., .., 4, ..]).fill(0.0);
        let sink = Array1::from_vec(vec![0.7, -1.3]);
        let as_key = Array4::from_shape_fn((1, 2, 3, 5), |(_, head, _, key)| if key == 4 { sink[head] } else { 0.0 });
        let hidden = as_key.mapv(|bias| if bias == 0.0 { 0.0 } else { f64::NEG_INFINITY });
        let plain = AttentionTerms::new(Mask::Full, 0.4);
        let with_key = AttentionTerms { bias: Some(as_key.view()), ..plain };
        let with_sink = AttentionTerms { sink: Some(sink.view()), bias: Some(hidden.view()), ..plain };
        let expected = attention_with(q.view(), zeroed.0.view(), zeroed.1.view(), &with_key);
        let got = attention_with(q.view(), k.view(), v.view(), &with_sink);
        assert!(got.0.iter().zip(&expected.0).all(|(a, b)| (a - b).abs() < 1e-14));
        assert!(got.1.iter().zip(&expected.1).all(|(a, b)| (a - b).abs() < 1e-14));
    }

    #[test]
    fn a_softcap_bounds_scores_and_a_large_one_leaves_them() {
        let (q, k) = (array![[[[40.0]]]], array![[[[1.0], [-1.0]]]]);
        let v = array![[[[1.0], [0.0]]]];
        let of = |softcap| {
            let terms = AttentionTerms { softcap, ..AttentionTerms::new(Mask::Full, 1.0) };
            attention_with(q.view(), k.view(), v.view(), &terms).1[[0, 0, 0]]
        };
        assert!((of(Some(2.0)) - (2f64.exp() + (-2f64).exp()).ln()).abs() < 1e-14);
        assert!((of(Some(1e9)) - of(None)).abs() < 1e-9);
    }
}
