//! How far the result of a kernel may be from the f64 reference.
//!
//! The obvious computation in the kernel's own types (f32 sums, the output rounded to its dtype) has an error of its
//! own, which grows with the input in ways that no fixed number foresees. A kernel adds the same numbers in another
//! order and may be as unlucky again, so it is given twice that error, and `atol` on top for inputs on which the
//! obvious computation happens to be exact: `max|out - ref| <= 2 * max|obvious - ref| + atol(dtype)`.

mod attention;

use layout::Dtype;
use layout::ata::Precision;
use layout::gemm::Accumulation;

pub use attention::{AttentionLimits, LARGEST_SUM, attention_limits};

use crate::gemm::GemmProblem;

/// The error that is always allowed: the distance from 1 to the next value of `dtype`, so that a result of about 1 may
/// be rounded to either of its neighbours.
#[must_use]
pub fn atol(dtype: Dtype) -> f64 {
    f64::from(dtype.epsilon_exponent()).exp2()
}

/// The largest error that a result of type `dtype` may have where the same-precision reference has error
/// `reference_error`.
///
/// It serves the largest absolute error and, where `reference_error` is one, the relative Frobenius error alike.
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

/// The largest error of an element of `Y = A X` where `magnitude` is the same element of `|A| |X|`, `terms` the
/// elements of its row of A, and A is exactly what the kernel stores ([`crate::SymmetricBlockMatrix::rounded`]).
///
/// X is rounded to 11 bits (2^-11 of each product; for f16 those of at least 2^-28 of the largest of 32), or to 22
/// (2^-22, and as much for the product of the two small terms that is left out). A lane adds every 32nd product at
/// most, then lanes and warps are added; each addition drops at most 2^-23 of the magnitude, as tensor cores cut off
/// where f32 arithmetic rounds. What is below the normal numbers may be lost.
#[must_use]
pub fn ata_limit(precision: Precision, magnitude: f64, terms: usize) -> f64 {
    let of_x = match precision {
        Precision::F32 => 0.0,
        Precision::Tf32 | Precision::F16 | Precision::Bf16 => (-11f64).exp2(),
        Precision::Tf32x3 => (-21f64).exp2(),
    };
    let of_sums = (terms as f64 / 32.0 + 16.0) * (-23f64).exp2();
    magnitude * (of_x + of_sums) + terms as f64 * f64::from(f32::MIN_POSITIVE)
}

/// The largest error of an element of a product whose terms sum up to `magnitude` at most, without their signs, where
/// the same-precision reference has error `reference_error`.
///
/// Besides [`limit`]: tensor cores cut off where f32 arithmetic rounds, so that each addition drops up to 2^-23 of what
/// the terms can sum up to, once for every 16 terms. FP8 products are added with 14 bits, over all terms or over 128 at
/// a time. The approximate `ex2` and `rcp` of activations err by 2^-20 of their result.
#[must_use]
pub fn gemm_limit(problem: &GemmProblem, accumulation: Accumulation, reference_error: f64, magnitude: f64) -> f64 {
    let terms = problem.k as f64;
    let of_sums = match (problem.a.size_bytes(), accumulation) {
        (1, Accumulation::Direct) => (-13f64).exp2() + terms / 32.0 * (-14f64).exp2(),
        (1, Accumulation::TwoLevel) => (-12f64).exp2(),
        _ => (terms / 16.0 + 1.0) * (-23f64).exp2(),
    };
    limit(problem.d, reference_error) + magnitude * (of_sums + (-20f64).exp2())
}

/// The largest absolute error of an element.
///
/// Infinities of one sign and NaNs that both sides share count as equal; any that one side alone has makes it infinite.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allowed_error_is_one_step_at_one() {
        assert_eq!(atol(Dtype::F16), half::f16::EPSILON.to_f64());
        assert_eq!(atol(Dtype::Bf16), half::bf16::EPSILON.to_f64());
        assert_eq!(atol(Dtype::F32), f64::from(f32::EPSILON));
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
