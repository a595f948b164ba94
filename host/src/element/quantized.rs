//! 8-bit integers as numbers.

use layout::Dtype;
use variants::quantize::{LARGEST, U8_STEPS, U8_ZERO};

use super::Float;

/// The integer q stands for `(q / 127.5 - 1) * 448`: 256 numbers, of which the least magnitude is `448 / 255` and none
/// is 0. Tensors of them have factors besides ([`quantize`](crate::quantize())).
///
/// ```
/// use ferrotile::Float;
///
/// assert_eq!([0_u8, 255].map(Float::to_f64), [-448.0, 448.0]);
/// assert_eq!([1e6, 0.0, f64::NAN].map(<u8 as Float>::from_f64), [255, 128, 128]);
/// ```
impl Float for u8 {
    const DTYPE: Dtype = Dtype::U8;

    /// The nearest value as kernels find it, in f32: `(value / 448 + 1) * 127.5`, rounded to an integer, ties to even.
    /// What is beyond 448 becomes 448; NaN, which no integer stands for, becomes 128, as 0 does.
    fn from_f64(value: f64) -> Self {
        let value = value as f32;
        if value.is_nan() {
            return U8_ZERO;
        }
        value.clamp(-LARGEST, LARGEST).mul_add(U8_STEPS, 127.5).round_ties_even() as u8
    }

    fn to_f64(self) -> f64 {
        f64::from(2 * i32::from(self) - 255) * f64::from(LARGEST) / 255.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_comes_back_and_the_nearest_one_is_found() {
        for q in 0..=u8::MAX {
            assert_eq!(<u8 as Float>::from_f64(q.to_f64()), q);
        }
        let step = f64::from(LARGEST) / 127.5;
        for (q, share) in (0..u8::MAX).flat_map(|q| [0.49, 0.51].map(|share| (q, share))) {
            assert_eq!(<u8 as Float>::from_f64(q.to_f64() + share * step), q + u8::from(share > 0.5), "{q} {share}");
        }
        assert_eq!([f64::INFINITY, f64::NEG_INFINITY].map(<u8 as Float>::from_f64), [255, 0]);
    }
}
