//! How far the result of a kernel may be from the f64 reference.
//!
//! The obvious computation in the kernel's own types (f32 sums, the output rounded to its dtype) has an error of its
//! own. This error grows with the input in ways that no fixed number foresees. A kernel adds the same numbers in
//! another order and may be as unlucky again, so it is given twice that error. `atol` comes on top, for inputs on which
//! the obvious computation happens to be exact: `max|out - ref| <= 2 * max|obvious - ref| + atol(dtype)`.

mod attention;
mod quantized;

use layout::Dtype;
use ndarray::{Array3, ArrayView3, Axis};
use variants::ata::{PAIR_ROWS, Precision};
use variants::gemm::{Accumulation, TWO_LEVEL_K};

pub use attention::{
    AttentionLimits, Fp8Terms, LARGEST_SUM, attention_limits, e4m3_kv_attention_limits, fp8_attention_limits,
    u8_attention_limits,
};
pub use quantized::QuantizationError;

use crate::element::Float;
use crate::gemm::GemmProblem;

/// The error that is always allowed: the distance from 1 to the next value of `dtype`. So a result of about 1 may be
/// rounded to either neighbour.
#[must_use]
pub fn atol(dtype: Dtype) -> f64 {
    f64::from(dtype.epsilon_exponent()).exp2()
}

/// The largest error that a result of type `dtype` may have where the same-precision reference has error
/// `reference_error`.
///
/// It serves the largest absolute error and, where `reference_error` is one, the relative Frobenius error alike.
///
/// ```
/// use ferrotile::{Dtype, tolerance};
///
/// assert_eq!(tolerance::limit(Dtype::F16, 1e-3), 2e-3 + tolerance::atol(Dtype::F16));
/// ```
#[must_use]
pub fn limit(dtype: Dtype, reference_error: f64) -> f64 {
    2.0 * reference_error + atol(dtype)
}

/// The largest error of the log-sum-exp of scores as large as `largest`, where the same-precision reference has error
/// `reference_error`.
///
/// Kernels work in powers of two: converting a score rounds it twice more than the reference does, by 2^-24 of its size
/// each, and the approximate `ex2` and `lg2` instructions add up to 2^-22 each (PTX ISA) for each of a few hundred
/// terms.
#[must_use]
pub fn lse_limit(largest: f64, reference_error: f64) -> f64 {
    2.0 * reference_error + largest * (-22f64).exp2() + (-16f64).exp2()
}

/// The largest error of an element of `Y = A X` where `magnitude` is the same element of `|A|` times
/// [`ata_magnitudes`], `terms` the elements of its row of A, and A is exactly what the kernel stores
/// ([`crate::SymmetricBlockMatrix::rounded`]).
///
/// X is rounded to 11 bits (2^-11 of each product), or to 22 (2^-22, and as much for the product of the two small terms
/// that is left out). Tensor cores add up to 32 products at once, in a few steps, and each step loses 2^-23 of the
/// magnitude ([`gemm_limit`] says why). Then such sums are added, of which a lane has every 32nd at most, and each
/// addition drops at most 2^-23 of the magnitude. What is below the normal numbers may be lost.
#[must_use]
pub fn ata_limit(precision: Precision, magnitude: f64, terms: usize) -> f64 {
    let of_x = match precision {
        Precision::F32 => 0.0,
        Precision::Tf32 | Precision::F16 | Precision::Bf16 => (-11f64).exp2(),
        Precision::Tf32x3 => (-21f64).exp2(),
    };
    let of_sums = (terms as f64 / 32.0 + 24.0) * (-23f64).exp2();
    magnitude * (of_x + of_sums) + terms as f64 * f64::from(f32::MIN_POSITIVE)
}

/// What elements of X, `[frames, channels, n]`, count in the magnitude that [`ata_limit`] takes: their absolute values.
///
/// For f16 at least 2^-28 of the largest of the 32 elements that share a power of two. f16 has 11 bits down to there;
/// below, rounding loses up to 2^-11 of that threshold.
#[must_use]
pub fn ata_magnitudes(precision: Precision, x: ArrayView3<'_, f32>) -> Array3<f64> {
    let mut result = x.mapv(|element| f64::from(element).abs());
    if precision == Precision::F16 {
        for mut row in result.lanes_mut(Axis(2)) {
            for mut part in row.axis_chunks_iter_mut(Axis(0), PAIR_ROWS) {
                let least = part.iter().copied().fold(0.0, f64::max) * (-28f64).exp2();
                part.mapv_inplace(|element| if element < least { least } else { element });
            }
        }
    }
    result
}

/// The largest error of an element of a product where `magnitude` is [`crate::reference::gemm_magnitude`], what its
/// terms sum up to without their signs, and the same-precision reference has error `reference_error`.
///
/// [`limit`], and what tensor cores cut off. A step adds some products, which are exact, and the sum so far. All terms
/// are aligned to the largest exponent e among them, and each loses what is below `2^(e - f)`. The sum of the rest is
/// exact, and is then cut off r bits below its own leading one. So with `2^e <= T`, where T is the largest that a term
/// or a sum ever is:
///
/// - each of k products loses less than `2^-f T`, but for one that has the largest exponent of the first step, which
///   loses nothing: products have no more bits. Together that is `P <= p T`, where `p = (k - 1) 2^-f`;
/// - the sum loses less than `2^-f T` and `2^-r T` a step, together `C <= c T`, where `c = steps (2^-f + 2^-r)`.
///
/// All cuts are towards zero, so that what is left of the products sums up to `magnitude - P` without signs, and T is
/// no more than that. Of all P that are possible the largest, `magnitude p / (1 + p)`, gives the most: `P + C <=
/// magnitude (p + c) / (1 + p)`. A sum of one large product first and many that are just below the cut then comes near
/// to it, where the error is half of the magnitude for k of 8192. Sums of numbers of either sign in any order do much
/// better: most cuts cancel.
///
/// | products | f, r | products a step | steps |
/// | --- | --- | --- | --- |
/// | f16, bf16 | 24, 23 | 8 | Ampere's; Hopper has f = 25 and 16 products a step |
/// | FP8, one level | 13, 13 | 16 | Hopper's `wgmma` adds 32; for `mma.sync` see [`Accumulation`] |
/// | FP8, two levels | 13, 13 | 16 | as before over [`TWO_LEVEL_K`] products, then f32 additions |
///
/// Parts of k and the second level are added in f32, which rounds by 2^-24 of the magnitude each time. The approximate
/// `ex2` and `rcp` of activations err by 2^-20 of their result, and activations grow by 1.13 times their argument at
/// most.
#[must_use]
pub fn gemm_limit(problem: &GemmProblem, accumulation: Accumulation, reference_error: f64, magnitude: f64) -> f64 {
    limit(problem.d, reference_error) + gemm_sum_limit(problem, accumulation, magnitude)
}

/// The part of [`gemm_limit`] that sums and activations have, without the rounding to the type of D: for elements so
/// small that [`atol`] says nothing of them.
#[must_use]
pub fn gemm_sum_limit(problem: &GemmProblem, accumulation: Accumulation, magnitude: f64) -> f64 {
    magnitude * (1.13 * sums_share(problem, accumulation) + (-20f64).exp2())
}

/// The share of the magnitude that sums lose at most.
fn sums_share(problem: &GemmProblem, accumulation: Accumulation) -> f64 {
    let additions = (problem.k / 32 + 1) as f64 * (-24f64).exp2();
    let share = match (problem.a.size_bytes(), accumulation) {
        (1, Accumulation::Direct) => cut_share(problem.k, 16, [13, 13]),
        (1, Accumulation::TwoLevel) => cut_share(problem.k.min(TWO_LEVEL_K), 16, [13, 13]),
        _ => cut_share(problem.k, 8, [24, 23]),
    };
    share + additions
}

/// `(p + c) / (1 + p)` of [`gemm_limit`]. Where c is above 1 nothing but it counts.
fn cut_share(k: usize, step: usize, [of_terms, of_sums]: [i32; 2]) -> f64 {
    let unit = |bits: i32| (-f64::from(bits)).exp2();
    let products = k.saturating_sub(1) as f64 * unit(of_terms);
    let sums = k.div_ceil(step) as f64 * (unit(of_terms) + unit(of_sums));
    if sums < 1.0 { (products + sums) / (1.0 + products) } else { sums }
}

/// The largest absolute error of an element.
///
/// Infinities of one sign, and NaNs, count as equal where both sides have them. An infinity or NaN of one side alone
/// makes the result infinite.
///
/// ```
/// use ferrotile::tolerance::max_error;
///
/// assert_eq!(max_error(&[1.0_f32, f32::NAN], &[1.5, f64::NAN]), 0.5);
/// assert_eq!(max_error(&[f32::INFINITY], &[1.0]), f64::INFINITY);
/// ```
///
/// # Panics
/// When the lengths differ.
#[must_use]
pub fn max_error<T: Copy + Into<f64>>(got: &[T], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len(), "compared arrays have the same length");
    got.iter().zip(expected).map(|(&got, &expected)| element_error(got.into(), expected)).fold(0.0, f64::max)
}

/// The least number of `dtype` above 0: what separates its numbers where they are smallest.
#[must_use]
pub fn least_number(dtype: Dtype) -> f64 {
    let least_exponent = match dtype {
        Dtype::F16 => -24,
        Dtype::Bf16 => -133,
        Dtype::F32 => -149,
        Dtype::E4M3 => -9,
        Dtype::E5M2 => -16,
        Dtype::U8 => return u8::MAX.to_f64() / 255.0,
    };
    f64::from(least_exponent).exp2()
}

/// The absolute error of one element, by the rules of [`max_error`].
#[must_use]
pub fn element_error(got: f64, expected: f64) -> f64 {
    if got == expected || (got.is_nan() && expected.is_nan()) {
        return 0.0;
    }
    let error = (got - expected).abs();
    if error.is_nan() { f64::INFINITY } else { error }
}

#[cfg(all(test, feature = "emulator"))]
mod tests {
    use half::f16;
    use ptx_emulator::Fp8Sums;
    use ptx_emulator::tensor_core::sum::{self, Rule};
    use ptx_emulator::tensor_core::wgmma::Element;
    use ptx_emulator::tensor_core::{Half, Quarter};

    use super::*;

    #[test]
    fn the_allowed_error_is_one_step_at_one() {
        assert_eq!(atol(Dtype::F16), half::f16::EPSILON.to_f64());
        assert_eq!(atol(Dtype::Bf16), half::bf16::EPSILON.to_f64());
        assert_eq!(atol(Dtype::F32), f64::from(f32::EPSILON));
    }

    /// What tensor cores make of a sum of products by `rule`, K products a step; the sums of every `level` products are
    /// added in f32.
    fn tensor_cores<const K: usize>(rule: Rule, level: usize, numbers: &[[f32; 2]]) -> f64 {
        let of_part = |part: &[[f32; 2]]| {
            let mut sum = [[0f32]];
            for step in part.chunks(K) {
                let factor = |k: usize, which: usize| step.get(k).map_or(0.0, |factors| factors[which]);
                let a: [f32; K] = std::array::from_fn(|k| factor(k, 0));
                let b: [[f32; 1]; K] = std::array::from_fn(|k| [factor(k, 1)]);
                sum::multiply_by(rule, &[a], &b, &mut sum);
            }
            sum[0][0]
        };
        f64::from(numbers.chunks(level).map(of_part).fold(0f32, |sum, part| sum + part))
    }

    /// Large numbers at some places, and others whose products with each other are just below what is cut off beside
    /// them.
    fn adversaries(k: usize, large: f32, small: f32) -> Vec<Vec<[f32; 2]>> {
        let signs: [fn(usize) -> f32; 3] =
            [|_| 1.0, |k| if k % 2 == 0 { 1.0 } else { -1.0 }, |k| if k % 37 < 20 { -1.0 } else { 1.0 }];
        let places: [fn(usize, usize) -> bool; 6] = [
            |k, _| k == 0,
            |k, len| k == len / 2,
            |k, len| k + 1 == len,
            |k, _| k % 128 == 0,
            |k, _| k % 32 == 31,
            |k, _| k % 2 == 0,
        ];
        let case = |sign: fn(usize) -> f32, is_large: fn(usize, usize) -> bool| {
            (0..k).map(|at| if is_large(at, k) { [large; 2] } else { [small, sign(at) * small] }).collect()
        };
        signs.iter().flat_map(|&sign| places.iter().map(move |&place| case(sign, place))).collect()
    }

    /// The largest share of its limit that the error of an adversary is. D is so large that `atol` counts for nothing.
    fn worst<const K: usize>(
        dtype: Dtype,
        accumulation: Accumulation,
        rule: Rule,
        k: usize,
        pairs: &[[f32; 2]],
    ) -> f64 {
        let problem = GemmProblem::new([1, 1, k], dtype, dtype, Dtype::F32);
        let level = if accumulation == Accumulation::TwoLevel { TWO_LEVEL_K } else { k };
        let mut worst = 0f64;
        for numbers in pairs.iter().flat_map(|&[large, small]| adversaries(k, large, small)) {
            let products = numbers.iter().map(|&[a, b]| f64::from(a) * f64::from(b));
            let (exact, magnitude) = (products.clone().sum::<f64>(), products.map(f64::abs).sum());
            let error = (tensor_cores::<K>(rule, level, &numbers) - exact).abs();
            let limit = gemm_limit(&problem, accumulation, 0.0, magnitude);
            assert!(error <= limit, "{dtype}, k {k}, {accumulation:?}: {error:e} is above {limit:e}");
            worst = worst.max(error / limit);
        }
        worst
    }

    #[test]
    fn no_sum_of_tensor_cores_is_beyond_the_limit_and_some_come_near() {
        let [e4m3, f16] = [Element::Quarter(Quarter::E4m3), Element::Half(Half::F16)];
        let fp8 = e4m3.rule(e4m3, false, Fp8Sums::Reduced);
        let f16 = f16.rule(f16, false, Fp8Sums::Reduced);
        // 2^-13 and 2^-25 of the square of the large number, and of twice and half as much.
        let fp8_pairs = [[16.0, 0.171875], [256.0, 2.75], [256.0, 3.75], [448.0, 3.75], [256.0, 0.25], [1.0, 0.875]];
        let below = |power: f32| f32::from_bits(power.to_bits() - (1 << 13));
        let root = std::f32::consts::FRAC_1_SQRT_2;
        let cut = (root * 2f32.powi(-12) * 2048.0).floor() / 2048.0;
        let f16_pairs = [[1.0, f16::from_f32(root * 2f32.powi(-12)).to_f32()], [1.0, below(2f32.powi(-12))]];
        let f16_pairs = [f16_pairs[0], f16_pairs[1], [256.0, 0.04], [1.0, cut + 0.5]];
        for k in [2, 16, 33, 128, 500, 2048, 8192] {
            for accumulation in [Accumulation::Direct, Accumulation::TwoLevel] {
                let share = worst::<32>(Dtype::E4M3, accumulation, fp8, k, &fp8_pairs);
                assert!(k < 16 || share > 0.4, "FP8, k {k}, {accumulation:?}: {share}");
            }
            let share = worst::<16>(Dtype::F16, Accumulation::Direct, f16, k, &f16_pairs);
            assert!(k < 500 || share > 0.15, "f16, k {k}: {share}");
        }
    }

    #[test]
    fn the_limit_is_known_where_one_product_hides_fifteen() {
        // 256 and fifteen times 0.0295: tensor cores give 256.
        let problem = GemmProblem::new([1, 1, 16], Dtype::E4M3, Dtype::E4M3, Dtype::F32);
        let magnitude = 256.0 + 15.0 * 0.171875 * 0.171875;
        for accumulation in [Accumulation::Direct, Accumulation::TwoLevel] {
            let limit = gemm_limit(&problem, accumulation, 0.0, magnitude);
            assert!((magnitude - 256.0..0.65).contains(&limit), "{limit}");
        }
    }

    #[test]
    fn small_elements_of_x_count_as_what_rounding_takes_of_them() {
        let mut x = Array3::from_elem((1, 1, 40), 1e-3f32);
        x[[0, 0, 3]] = -1e9;
        let exact = ata_magnitudes(Precision::Tf32, x.view());
        assert_eq!((exact[[0, 0, 3]], exact[[0, 0, 4]]), (1e9, f64::from(1e-3f32)));
        let of_f16 = ata_magnitudes(Precision::F16, x.view());
        let expected = (1e9, 1e9 / f64::from(1 << 28), f64::from(1e-3f32));
        assert_eq!((of_f16[[0, 0, 3]], of_f16[[0, 0, 4]], of_f16[[0, 0, 32]]), expected);
    }

    #[test]
    fn one_sided_nan_and_infinity_are_infinitely_wrong() {
        let (nan, infinity) = (f64::NAN, f64::INFINITY);
        assert_eq!(max_error(&[nan, infinity, 1.0], &[nan, infinity, 1.5]), 0.5);
        for (got, expected) in [(nan, 0.0), (0.0, nan), (infinity, -infinity), (infinity, nan), (0.0, infinity)] {
            assert_eq!(max_error(&[got], &[expected]), infinity, "{got} {expected}");
        }
    }

    #[test]
    fn the_limit_grows_with_the_error_of_the_reference() {
        assert_eq!(limit(Dtype::F16, 0.25), 0.5 + atol(Dtype::F16));
        assert!(lse_limit(5e4, 0.0) > lse_limit(1.0, 0.0));
    }
}
