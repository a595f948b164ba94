//! What quantisation to 8-bit integers costs attention: its result beside that of the tensors before.

use super::element_error;
use crate::attention::BatchedSizes;

/// How far attention on Q, K and V that were quantised to u8, with a factor for each head, is from attention on the
/// tensors themselves.
///
/// ```
/// use ferrotile::tolerance::QuantizationError;
///
/// let error = QuantizationError::new(&[1.0_f32, 2.02], &[1.0, 2.0]);
/// assert!(error.is_within_limits() && (error.mean - 0.01).abs() < 1e-6);
/// assert!(!QuantizationError::new(&[1.06_f32], &[1.0]).is_within_limits());
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuantizationError {
    /// The largest error of an element.
    pub largest: f64,
    /// The mean error.
    pub mean: f64,
    /// The share of the elements whose error is above [`Self::LARGEST`].
    pub beyond: f64,
}

impl QuantizationError {
    /// What the largest error may be, for inputs of normal numbers of deviation 1.
    pub const LARGEST: f64 = 0.05;

    /// What the mean error may be.
    pub const MEAN: f64 = 0.01;

    /// What share of the elements may have an error above [`Self::LARGEST`].
    pub const BEYOND: f64 = 0.01;

    /// The problems that the limits are for, by name. Each is judged with several inputs.
    pub const PROBLEMS: [(&str, BatchedSizes); 3] =
        [("small", of_heads(1, 32)), ("mission", of_heads(8, 512)), ("long", of_heads(8, 2048))];

    /// The errors of elements beside what they ought to be.
    ///
    /// # Panics
    /// Where there are more of the ones than of the others.
    #[must_use]
    pub fn new<T: Copy + Into<f64>>(got: &[T], exact: &[f64]) -> Self {
        assert_eq!(got.len(), exact.len(), "compared arrays have the same length");
        let (mut largest, mut sum, mut beyond) = (0f64, 0.0, 0usize);
        for (&got, &exact) in got.iter().zip(exact) {
            let error = element_error(got.into(), exact);
            largest = largest.max(error);
            sum += error;
            beyond += usize::from(error > Self::LARGEST);
        }
        let count = got.len().max(1) as f64;
        Self { largest, mean: sum / count, beyond: beyond as f64 / count }
    }

    /// Whether it is within all three limits.
    #[must_use]
    pub fn is_within_limits(&self) -> bool {
        self.largest <= Self::LARGEST && self.mean <= Self::MEAN && self.beyond <= Self::BEYOND
    }
}

const fn of_heads(heads: usize, len: usize) -> BatchedSizes {
    BatchedSizes { batch: 1, q_heads: heads, kv_heads: heads, q_len: len, k_len: len, head_dim: 64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_counts() {
        let of = |errors: &[f64]| QuantizationError::new(errors, &vec![0.0; errors.len()]);
        assert_eq!(of(&[]), QuantizationError { largest: 0.0, mean: 0.0, beyond: 0.0 });
        assert!(of(&[0.0099; 100]).is_within_limits() && !of(&[0.0101; 100]).is_within_limits());
        let mut errors = [0.0; 300];
        errors[..3].fill(0.06);
        let error = of(&errors);
        assert_eq!((error.largest, error.beyond), (0.06, 0.01));
        assert!(!error.is_within_limits() && !of(&[f64::NAN]).is_within_limits());
    }
}
