//! How far the result of an attention kernel may be from the f64 reference, element by element and for scores of any
//! size.
//!
//! f32 holds a score of size `s` to about `2^-24 s`. For small scores this error moves little. For huge scores it
//! decides which of two nearly equal keys has the whole row. So the limit follows the scores: each may be off by what
//! its sum in f32 costs, and an element of O by what such scores can make of it. Beside that count the roundings of
//! probabilities and of O to the type of the tensors.

use layout::Dtype;
use ndarray::{Array3, Array4, ArrayView2, ArrayView3, ArrayView4};
use rayon::prelude::*;
use variants::attention::{E4M3_P_EXPONENT, TWO_LEVEL_KEYS};
use variants::gemm::Accumulation;

use crate::reference::{AttentionTerms, stored_magnitude};

/// What sums in f32 may reach, with room for the order in which they are formed: 2^126.
///
/// Results are not specified where the magnitudes of the products of `q . k`, or of the values of all keys that a row
/// sees, sum up to more: a partial sum may be infinite. Kernels weight values relative to the largest score so far,
/// which may be that of any key, and divide by the sum of the weights in the end.
pub const LARGEST_SUM: f64 = f64::from_bits(((1023 + 126) as u64) << 52);

/// The largest error of each element; infinite where nothing is specified.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionLimits {
    /// Those of O `[batch, heads, rows, head dimension of V]`.
    pub out: Array4<f64>,
    /// Those of the LSE `[batch, heads, rows]`.
    pub lse: Array3<f64>,
}

/// The limits of attention in `dtype`, of which `out` and `lse` are the exact result
/// ([`crate::reference::attention_with`]).
///
/// ```
/// use ferrotile::{Dtype, Mask, reference::{AttentionTerms, attention_with}, tolerance};
/// use ndarray::Array4;
///
/// let (q, k) = (Array4::ones((1, 1, 1, 8)), Array4::ones((1, 1, 4, 8)));
/// let terms = AttentionTerms::new(Mask::Full, 1.0);
/// let (out, lse) = attention_with(q.view(), k.view(), k.view(), &terms);
/// let limits =
///     tolerance::attention_limits([q.view(), k.view(), k.view()], &terms, Dtype::F16, (out.view(), lse.view()));
/// assert!(limits.out.iter().all(|&limit| limit > 0.0 && limit < 2e-3));
/// ```
///
/// # Panics
/// Where the shapes do not fit together.
#[must_use]
pub fn attention_limits(
    inputs: [ArrayView4<'_, f64>; 3],
    terms: &AttentionTerms<'_>,
    dtype: Dtype,
    exact: (ArrayView4<'_, f64>, ArrayView3<'_, f64>),
) -> AttentionLimits {
    let costs = Costs::of_halves(dtype, dtype, inputs[0].dim().3);
    limits_of_costs(inputs, terms, &costs, [None; 3], exact)
}

/// The limits of attention on K and V of E4M3 beside a Q and an O of `dtype`: the inputs as they are stored, and what
/// elements of K and V are multiplied by, as [`crate::reference::dequantize`] takes it. `exact` is the result of the
/// products with the factors.
///
/// K and V are widened exactly. Weights are of f16, whichever type Q has.
///
/// # Panics
/// Where the shapes do not fit together.
#[must_use]
pub fn e4m3_kv_attention_limits(
    inputs: [ArrayView4<'_, f64>; 3],
    terms: &AttentionTerms<'_>,
    [k_factors, v_factors]: [Option<ArrayView2<'_, f64>>; 2],
    dtype: Dtype,
    exact: (ArrayView4<'_, f64>, ArrayView3<'_, f64>),
) -> AttentionLimits {
    let costs = Costs { multiplies_scores: true, ..Costs::of_halves(dtype, Dtype::F16, inputs[0].dim().3) };
    limits_of_costs(inputs, terms, &costs, [None, k_factors, v_factors], exact)
}

/// What E4M3 adds to the terms of attention.
#[derive(Debug, Clone, Copy)]
pub struct Fp8Terms<'a> {
    /// What elements of Q, K and V are multiplied by, as [`crate::reference::dequantize`] takes it.
    pub factors: [Option<ArrayView2<'a, f64>>; 3],
    /// The element type of O.
    pub out: Dtype,
    /// How P V is summed.
    pub accumulation: Accumulation,
}

/// The limits of attention on inputs of E4M3, which are given as they are stored, without their factors. `exact` is the
/// result of the products with the factors.
///
/// Tensor cores add products of E4M3 with 13 bits ([`super::gemm_limit`]): scores, and P V over as many keys as
/// [`Accumulation`] says. A weight loses up to 2^-4 of itself, and at least `2^-18` of the largest weight of its row:
/// weights are multiplied by 2^8 before they are rounded, and the least step of E4M3 is 2^-9. Those that small count as
/// 2^-14 in sums.
///
/// # Panics
/// Where the shapes do not fit together.
#[must_use]
pub fn fp8_attention_limits(
    inputs: [ArrayView4<'_, f64>; 3],
    terms: &AttentionTerms<'_>,
    fp8: &Fp8Terms<'_>,
    exact: (ArrayView4<'_, f64>, ArrayView3<'_, f64>),
) -> AttentionLimits {
    let costs = Costs::of_e4m3(fp8, inputs[0].dim().3, inputs[1].dim().2);
    limits_of_costs(inputs, terms, &costs, fp8.factors, exact)
}

/// The limits of attention on inputs of u8 with an O of type `out`. The inputs are what the integers stand for without
/// their factors, which are as [`crate::reference::dequantize`] takes them. `exact` is the result of the products with
/// the factors.
///
/// Kernels widen integers to f16 exactly, and weights are of f16: what is lost is what attention in f16 loses, but for
/// the inputs. Results are not specified where the product of the factors of Q and K, or the factor of V, is above
/// 2^104: kernels multiply it by up to 2^22, for the units of the integers.
///
/// ```
/// use ferrotile::{Dtype, Mask, reference::{AttentionTerms, attention_with, dequantize}, tolerance};
/// use ndarray::{Array2, Array4};
///
/// let (x, factors) = (Array4::from_elem((1, 1, 4, 8), 448.0), Array2::from_elem((1, 1), 1.0 / 448.0));
/// let product = dequantize(x.view(), factors.view());
/// let terms = AttentionTerms::new(Mask::Full, 1.0);
/// let (out, lse) = attention_with(product.view(), product.view(), product.view(), &terms);
/// let limits = tolerance::u8_attention_limits(
///     [x.view(), x.view(), x.view()], &terms, [factors.view(); 3], Dtype::F16, (out.view(), lse.view()),
/// );
/// assert!(limits.out.iter().all(|&limit| limit > 0.0 && limit < 2e-3));
/// ```
///
/// # Panics
/// Where the shapes do not fit together.
#[must_use]
pub fn u8_attention_limits(
    inputs: [ArrayView4<'_, f64>; 3],
    terms: &AttentionTerms<'_>,
    factors: [ArrayView2<'_, f64>; 3],
    out: Dtype,
    exact: (ArrayView4<'_, f64>, ArrayView3<'_, f64>),
) -> AttentionLimits {
    let costs = Costs::of_u8(out, inputs[0].dim().3);
    limits_of_costs(inputs, terms, &costs, factors.map(Some), exact)
}

/// What the types of a kernel cost.
struct Costs {
    inputs: Dtype,
    out: Dtype,
    /// The share of the magnitude that a score loses.
    of_score: f64,
    /// The share of itself that a weight loses,
    of_weight: f64,
    /// what it loses at least, and what it counts as at least in sums. The largest weight of the row is 1 for E4M3;
    /// otherwise the sum of all is.
    least_weight: f64,
    least_summand: f64,
    is_of_largest: bool,
    /// The share of the magnitude that the sum over the keys loses.
    of_sum: f64,
    /// Whether scores are multiplied by the factors of K before they are scaled.
    multiplies_scores: bool,
    /// What the product of the factors of Q and K, and the factor of V, may be at most.
    largest_factor: f64,
}

impl Costs {
    /// Inputs and O of `dtype`, and weights of another type.
    fn of_halves(dtype: Dtype, weights: Dtype, head_dim: usize) -> Costs {
        Costs {
            inputs: dtype,
            out: dtype,
            // Sums of 8 or 16 products at a time, or of 32 lanes; then the scale and the change to powers of two.
            of_score: (head_dim as f64 / 8.0 + 8.0) * STEP,
            of_weight: 0.5 * super::atol(weights),
            // What the type of P has not, or, where that reaches as far as f32, `ex2.approx.ftz`, is 0.
            least_weight: if weights == Dtype::F16 { (-25f64).exp2() } else { f64::from(f32::MIN_POSITIVE) },
            least_summand: 0.0,
            is_of_largest: false,
            of_sum: 0.0,
            multiplies_scores: false,
            largest_factor: f64::INFINITY,
        }
    }

    fn of_e4m3(fp8: &Fp8Terms<'_>, head_dim: usize, keys: usize) -> Costs {
        let summed = match fp8.accumulation {
            Accumulation::Direct => keys,
            Accumulation::TwoLevel => keys.min(TWO_LEVEL_KEYS as usize),
        };
        let unit = (-f64::from(E4M3_P_EXPONENT)).exp2();
        Costs {
            inputs: Dtype::E4M3,
            out: fp8.out,
            of_score: super::cut_share(head_dim, 16, [13, 13]) + 8.0 * STEP,
            of_weight: 0.5 * super::atol(Dtype::E4M3),
            least_weight: 0.5 * super::least_number(Dtype::E4M3) * unit,
            least_summand: stored_magnitude(f64::MIN_POSITIVE, Dtype::E4M3) * unit,
            is_of_largest: true,
            of_sum: super::cut_share(summed, 16, [13, 13]),
            multiplies_scores: false,
            largest_factor: f64::INFINITY,
        }
    }

    fn of_u8(out: Dtype, head_dim: usize) -> Costs {
        Costs { inputs: Dtype::U8, largest_factor: 104f64.exp2(), ..Costs::of_halves(out, Dtype::F16, head_dim) }
    }
}

fn limits_of_costs(
    [q, k, v]: [ArrayView4<'_, f64>; 3],
    terms: &AttentionTerms<'_>,
    costs: &Costs,
    factors: [Option<ArrayView2<'_, f64>>; 3],
    (out, lse): (ArrayView4<'_, f64>, ArrayView3<'_, f64>),
) -> AttentionLimits {
    let (batch, heads, q_len, value_dim) = out.dim();
    let (q, k, v) = (q.as_standard_layout(), k.as_standard_layout(), v.as_standard_layout());
    let shared = heads / k.dim().1.max(1);
    let factor = |index: usize, b: usize, h: usize| {
        factors[index].map_or(1.0, |factors| {
            let (batches, of_heads) = factors.dim();
            factors[[b % batches, h * of_heads / heads]]
        })
    };
    let rows = (0..batch * heads * q_len).into_par_iter().map(|index| {
        let (b, h, i) = (index / (heads * q_len), index / q_len % heads, index % q_len);
        let (keys, values) = (k.slice(ndarray::s![b, h / shared, .., ..]), v.slice(ndarray::s![b, h / shared, .., ..]));
        let (keys, values) = (keys.to_slice().expect("contiguous"), values.to_slice().expect("contiguous"));
        let query = q.slice(ndarray::s![b, h, i, ..]);
        let query = query.to_slice().expect("contiguous");
        let terms = AttentionTerms { scale: terms.scale * factor(0, b, h) * factor(1, b, h), ..*terms };
        let score_factor = if costs.multiplies_scores { factor(1, b, h).abs() } else { 1.0 };
        let mut row = Row::new(&terms, [b, h, i, q_len], query, keys, (costs, score_factor));
        row.specified &= (factor(0, b, h) * factor(1, b, h)).abs().max(factor(2, b, h).abs()) <= costs.largest_factor;
        let exact: Vec<f64> = out.slice(ndarray::s![b, h, i, ..]).to_vec();
        row.limits((values, factor(2, b, h)), &exact, lse[[b, h, i]], costs)
    });
    let (out_limits, lse_limits): (Vec<Vec<f64>>, Vec<f64>) = rows.unzip();
    let out = Array4::from_shape_vec((batch, heads, q_len, value_dim), out_limits.concat());
    let lse = Array3::from_shape_vec((batch, heads, q_len), lse_limits);
    AttentionLimits { out: out.expect("one row an index"), lse: lse.expect("one number an index") }
}

/// The scores of the keys that a row sees, and of its sink, and how far each may be off in f32.
struct Row {
    first_key: usize,
    /// Score and error of each key.
    keys: Vec<(f64, f64)>,
    sink: (f64, f64),
    /// 0 where there is none.
    softcap: f64,
    /// Whether all sums of products stay within [`LARGEST_SUM`].
    specified: bool,
}

/// 2^-23: what one operation of a tensor core loses of the sum of the magnitudes.
const STEP: f64 = f32::EPSILON as f64;

impl Row {
    fn new(
        terms: &AttentionTerms<'_>,
        [batch, head, row, q_len]: [usize; 4],
        query: &[f64],
        keys: &[f64],
        (costs, score_factor): (&Costs, f64),
    ) -> Row {
        let head_dim = query.len();
        let visible = terms.mask.key_range(row, q_len, keys.len() / head_dim);
        let first_key = visible.start;
        let mut specified = true;
        let of_key = |key: usize| {
            let (mut sum, mut magnitude) = (0.0, 0.0);
            for (q, k) in query.iter().zip(&keys[key * head_dim..][..head_dim]) {
                sum += q * k;
                magnitude += stored_magnitude(*q, costs.inputs) * stored_magnitude(*k, costs.inputs);
            }
            specified &= magnitude * score_factor.max(1.0) <= LARGEST_SUM;
            let (mut score, mut error) = (terms.scale * sum, terms.scale.abs() * magnitude * costs.of_score);
            if let Some(cap) = terms.softcap {
                // Kernels bound a score with an error of 2^-21 of the cap.
                (score, error) = (cap * (score / cap).tanh(), error.min(2.0 * cap) + 8.0 * STEP * cap);
            }
            if let Some(bias) = terms.bias {
                let (batches, heads, ..) = bias.dim();
                score += bias[[batch % batches, head % heads, row, key]];
            }
            (score, error)
        };
        let keys: Vec<(f64, f64)> = visible.map(of_key).collect();
        let sink = terms.sink.map_or(f64::NEG_INFINITY, |sink| sink[head]);
        let largest = keys.iter().map(|key| key.0).fold(sink, f64::max);
        let softcap = terms.softcap.unwrap_or(0.0);
        let mut row = Row { first_key, keys, sink: (sink, 0.0), softcap, specified };
        // The product with log2(e), and the difference from the largest score, are rounded.
        let rounding = |score: f64| 4.0 * STEP * (score.abs() + largest.abs());
        row.keys.iter_mut().chain([&mut row.sink]).filter(|of| of.0 > f64::NEG_INFINITY).for_each(|of| {
            of.1 += rounding(of.0) + 4.0 * STEP;
        });
        row
    }

    /// The limits of the row of O, which is `out`, and of its LSE.
    fn limits(
        &mut self,
        (values, value_factor): (&[f64], f64),
        out: &[f64],
        lse: f64,
        costs: &Costs,
    ) -> (Vec<f64>, f64) {
        if !self.specified {
            return (vec![f64::INFINITY; out.len()], f64::INFINITY);
        }
        if self.keys.iter().all(|key| key.0 == f64::NEG_INFINITY) {
            // Kernels for a softcap hold scores, and so a sink, as differences from it.
            return (vec![0.0; out.len()], if lse.is_finite() { 4.0 * STEP * (lse.abs() + self.softcap) } else { 0.0 });
        }
        let bounds = Bounds::of(self.keys.iter().chain([&self.sink]));
        // The largest weight of the row, as large as it may be.
        let largest = self.keys.iter().fold(f64::NEG_INFINITY, |largest, key| largest.max(key.0 + 2.0 * key.1));
        let unit = if costs.is_of_largest { (largest - lse).exp().min(1.0) } else { 1.0 };
        let (least_weight, least_summand) = (costs.least_weight * unit, costs.least_summand * unit);
        let of_sums = (self.keys.len() as f64 / 8.0 + 32.0) * STEP;
        let mut limits: Vec<f64> = out.iter().map(|out| 0.5 * super::atol(costs.out) * out.abs()).collect();
        let mut magnitudes = vec![0.0; out.len()];
        let value_dim = out.len();
        for (index, &(score, error)) in self.keys.iter().enumerate() {
            if score == f64::NEG_INFINITY {
                continue;
            }
            let probability = (score - lse).exp().min(1.0);
            let moved = bounds.moved(score, error, probability);
            let rounded = probability * (costs.of_weight + of_sums) + least_weight;
            let summed = costs.of_sum * (probability + least_summand);
            let values = &values[(self.first_key + index) * value_dim..][..value_dim];
            for (((limit, magnitude), &value), &out) in limits.iter_mut().zip(&mut magnitudes).zip(values).zip(out) {
                let magnitude_in_sum = stored_magnitude(value, costs.inputs) * value_factor.abs();
                let value = value * value_factor;
                *limit += moved * (value - out).abs() + rounded * value.abs() + summed * magnitude_in_sum;
                *magnitude += value.abs();
            }
        }
        if self.sink.0 > f64::NEG_INFINITY {
            let moved = bounds.moved(self.sink.0, self.sink.1, (self.sink.0 - lse).exp().min(1.0));
            limits.iter_mut().zip(out).for_each(|(limit, out)| *limit += moved * out.abs());
        }
        // Below the normal numbers of the type steps are all as long.
        let least = super::least_number(costs.out);
        for (limit, magnitude) in limits.iter_mut().zip(magnitudes) {
            *limit = if magnitude <= LARGEST_SUM { *limit + least } else { f64::INFINITY };
        }
        let terms = self.keys.len() as f64;
        let of_lse = bounds.lse_error(lse) + 2.0 * STEP * lse.abs() + terms * 0.5 * STEP + (-16f64).exp2();
        (limits, of_lse)
    }
}

/// The sums of exponentials of all scores, each as much lower or higher as its error.
struct Bounds {
    /// The largest exponent, and the sum over it.
    low: (f64, f64),
    high: (f64, f64),
}

impl Bounds {
    fn of<'a>(scores: impl Iterator<Item = &'a (f64, f64)> + Clone) -> Bounds {
        let sum = |sign: f64| {
            let exponents = scores.clone().filter(|of| of.0 > f64::NEG_INFINITY).map(|of| of.0 + sign * of.1);
            let largest = exponents.clone().fold(f64::NEG_INFINITY, f64::max);
            (largest, exponents.map(|exponent| (exponent - largest).exp()).sum())
        };
        Bounds { low: sum(-1.0), high: sum(1.0) }
    }

    /// How far the probability of a key of this score can be from `probability`. It is the largest where the key's own
    /// score is higher and all others are lower, and the smallest the other way round.
    fn moved(&self, score: f64, error: f64, probability: f64) -> f64 {
        let share = |(largest, sum): (f64, f64), others_sign: f64| {
            let own = score - others_sign * error;
            let rest = (sum - (score + others_sign * error - largest).exp()).max(0.0);
            if rest == 0.0 { 1.0 } else { 1.0 / (1.0 + rest * (largest - own).exp()) }
        };
        (share(self.low, -1.0) - probability).max(probability - share(self.high, 1.0)).max(0.0)
    }

    /// How far the LSE can be from `lse`.
    fn lse_error(&self, lse: f64) -> f64 {
        let of = |(largest, sum): (f64, f64)| (largest - lse + sum.ln()).abs();
        of(self.low).max(of(self.high))
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{Array1, array};
    use variants::attention::Mask;

    use super::*;
    use crate::reference::attention_with;

    fn limits(q: &Array4<f64>, k: &Array4<f64>, v: &Array4<f64>, terms: &AttentionTerms<'_>) -> AttentionLimits {
        let (out, lse) = attention_with(q.view(), k.view(), v.view(), terms);
        attention_limits([q.view(), k.view(), v.view()], terms, Dtype::F16, (out.view(), lse.view()))
    }

    #[test]
    fn huge_scores_that_differ_leave_no_room_and_those_nearly_equal_do() {
        let (q, v) = (array![[[[1.0]]]], array![[[[1.0], [5.0]]]]);
        let apart = limits(&q, &array![[[[3.0], [2.0]]]], &v, &AttentionTerms::new(Mask::Full, 1e30));
        assert!(apart.out[[0, 0, 0, 0]] < 2e-3, "{apart:?}");
        let near = limits(&q, &array![[[[3.0], [3.0 - 1e-9]]]], &v, &AttentionTerms::new(Mask::Full, 1e30));
        assert!((3.9..4.1).contains(&near.out[[0, 0, 0, 0]]), "{near:?}");
        let small = limits(&q, &array![[[[3.0], [2.0]]]], &v, &AttentionTerms::new(Mask::Full, 1.0));
        assert!(small.out[[0, 0, 0, 0]] < 6e-3 && small.lse[[0, 0, 0]] < 1e-4, "{small:?}");
    }

    #[test]
    fn sums_beyond_f32_are_not_specified() {
        let (one, huge) = (array![[[[1.0]]]], array![[[[1e38]]]]);
        let terms = AttentionTerms::new(Mask::Full, 1.0);
        assert_eq!(limits(&huge, &huge, &one, &terms).out[[0, 0, 0, 0]], f64::INFINITY);
        assert_eq!(limits(&one, &one, &huge, &terms).out[[0, 0, 0, 0]], f64::INFINITY);
        assert!(limits(&one, &one, &array![[[[1e37]]]], &terms).out[[0, 0, 0, 0]].is_finite());
        // Neither a sink nor a later key makes sums smaller that are formed before.
        let (keys, values) = (array![[[[1.0], [1.0], [90.0]]]], array![[[[7e37], [7e37], [1.0]]]]);
        let sink = Array1::from_vec(vec![1e4]);
        let with_sink = AttentionTerms { sink: Some(sink.view()), ..terms };
        assert_eq!(limits(&one, &keys, &values, &with_sink).out[[0, 0, 0, 0]], f64::INFINITY);
    }

    #[test]
    fn weights_below_the_normal_numbers_may_be_lost() {
        let (q, k, v) = (array![[[[1.0]]]], array![[[[90.0], [0.0]]]], array![[[[0.0], [1e30]]]]);
        let terms = AttentionTerms::new(Mask::Full, 1.0);
        let (out, lse) = attention_with(q.view(), k.view(), v.view(), &terms);
        let inputs = [q.view(), k.view(), v.view()];
        let limits = attention_limits(inputs, &terms, Dtype::Bf16, (out.view(), lse.view()));
        let (exact, limit) = (out[[0, 0, 0, 0]], limits.out[[0, 0, 0, 0]]);
        assert!(exact < limit && limit < 1.2e-8, "{exact:e} {limit:e}");
    }

    #[test]
    fn rows_without_keys_are_exact() {
        let (q, k) = (array![[[[1.0]]]], array![[[[3.0], [2.0]]]]);
        let hidden = Array4::from_elem((1, 1, 1, 2), f64::NEG_INFINITY);
        let sink = Array1::from_vec(vec![2.0]);
        let plain = AttentionTerms::new(Mask::Full, 1.0);
        let terms = AttentionTerms { bias: Some(hidden.view()), ..plain };
        let both = AttentionTerms { sink: Some(sink.view()), ..terms };
        assert_eq!(limits(&q, &k, &k, &terms).lse[[0, 0, 0]], 0.0);
        let with_sink = limits(&q, &k, &k, &both);
        assert!(with_sink.out[[0, 0, 0, 0]] == 0.0 && with_sink.lse[[0, 0, 0]] < 1e-5);
    }
}
