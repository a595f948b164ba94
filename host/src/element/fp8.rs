//! The 8-bit floating-point types.

use layout::Dtype;

use super::{Float, round};

/// FP8 with 4 exponent bits and 3 fraction bits: no infinities, largest finite value 448.
///
/// ```
/// use ferrotile::{F8E4M3, Float};
///
/// assert_eq!(F8E4M3::from_f64(1e6).to_f64(), 448.0);
/// ```
#[derive(Debug, Clone, Copy, Default)]
#[repr(transparent)]
pub struct F8E4M3(u8);

/// FP8 with 5 exponent bits and 2 fraction bits: largest finite value 57344.
///
/// ```
/// use ferrotile::{F8E5M2, Float};
///
/// assert_eq!(F8E5M2::from_f64(57344.0).to_bits(), 0x7b);
/// ```
#[derive(Debug, Clone, Copy, Default)]
#[repr(transparent)]
pub struct F8E5M2(u8);

const SIGN: u8 = 0x80;

/// The value of the bits of a format with so many fraction bits, whose exponents are from `bias` below 0 on; NaN and
/// infinities are left to the caller.
fn decode(bits: u8, fraction_bits: u32, bias: i32) -> f64 {
    let (exponent, fraction) = (i32::from((bits & !SIGN) >> fraction_bits), bits & ((1 << fraction_bits) - 1));
    let unit = f64::from(exponent.max(1) - bias - fraction_bits as i32).exp2();
    let implied = if exponent > 0 { 1 << fraction_bits } else { 0 };
    let magnitude = f64::from(i32::from(fraction) + implied) * unit;
    if bits & SIGN == 0 { magnitude } else { -magnitude }
}

/// The bits of a finite value of the format.
fn encode(value: f64, fraction_bits: u32, bias: i32) -> u8 {
    let sign = if value.is_sign_negative() { SIGN } else { 0 };
    if value == 0.0 {
        return sign;
    }
    let exponent = ((value.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(1 - bias);
    // At least 2^fraction_bits for a normal value, which carries into the exponent.
    let fraction = (value.abs() / f64::from(exponent - fraction_bits as i32).exp2()) as u8;
    sign | ((((exponent + bias - 1) as u8) << fraction_bits) + fraction)
}

impl F8E4M3 {
    const FRACTION_BITS: u32 = 3;
    const BIAS: i32 = 7;
    const NAN: u8 = 0x7f;

    /// The value of these bits.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Its bits.
    #[must_use]
    pub const fn to_bits(self) -> u8 {
        self.0
    }
}

impl F8E5M2 {
    const FRACTION_BITS: u32 = 2;
    const BIAS: i32 = 15;
    const INFINITY: u8 = 0x7c;
    const NAN: u8 = 0x7f;

    /// The value of these bits.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Its bits.
    #[must_use]
    pub const fn to_bits(self) -> u8 {
        self.0
    }
}

impl Float for F8E4M3 {
    const DTYPE: Dtype = Dtype::E4M3;

    /// Infinities become the largest finite value of their sign.
    fn from_f64(value: f64) -> Self {
        if value.is_nan() {
            return Self(Self::NAN);
        }
        let largest = decode(Self::NAN - 1, Self::FRACTION_BITS, Self::BIAS);
        Self(encode(round(value.clamp(-largest, largest), Self::DTYPE), Self::FRACTION_BITS, Self::BIAS))
    }

    fn to_f64(self) -> f64 {
        if self.0 & !SIGN == Self::NAN { f64::NAN } else { decode(self.0, Self::FRACTION_BITS, Self::BIAS) }
    }
}

impl Float for F8E5M2 {
    const DTYPE: Dtype = Dtype::E5M2;

    fn from_f64(value: f64) -> Self {
        let rounded = round(value, Self::DTYPE);
        if rounded.is_nan() {
            return Self(Self::NAN);
        }
        if rounded.is_infinite() {
            return Self(Self::INFINITY | if rounded < 0.0 { SIGN } else { 0 });
        }
        Self(encode(rounded, Self::FRACTION_BITS, Self::BIAS))
    }

    fn to_f64(self) -> f64 {
        match self.0 & !SIGN {
            Self::INFINITY => f64::INFINITY.copysign(if self.0 & SIGN == 0 { 1.0 } else { -1.0 }),
            magnitude if magnitude > Self::INFINITY => f64::NAN,
            _ => decode(self.0, Self::FRACTION_BITS, Self::BIAS),
        }
    }
}

impl PartialEq for F8E4M3 {
    fn eq(&self, other: &Self) -> bool {
        self.to_f64() == other.to_f64()
    }
}

impl PartialEq for F8E5M2 {
    fn eq(&self, other: &Self) -> bool {
        self.to_f64() == other.to_f64()
    }
}

impl From<F8E4M3> for f64 {
    fn from(value: F8E4M3) -> f64 {
        value.to_f64()
    }
}

impl From<F8E5M2> for f64 {
    fn from(value: F8E5M2) -> f64 {
        value.to_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_comes_back_and_is_in_order() {
        fn check<T: Float>(from_bits: fn(u8) -> T, to_bits: fn(T) -> u8) {
            for bits in 0..=u8::MAX {
                let value = from_bits(bits).to_f64();
                if value.is_nan() {
                    assert!(T::from_f64(value).to_f64().is_nan());
                } else {
                    assert_eq!(to_bits(T::from_f64(value)), bits, "{value}");
                }
            }
            let values = (0..SIGN).map(|bits| from_bits(bits).to_f64()).take_while(|value| !value.is_nan());
            assert!(values.collect::<Vec<_>>().is_sorted_by(|a, b| a < b));
        }
        check(F8E4M3::from_bits, F8E4M3::to_bits);
        check(F8E5M2::from_bits, F8E5M2::to_bits);
    }

    #[test]
    fn known_values_have_their_bits() {
        let cases = [(1.0, 0x38, 0x3c), (-1.5, 0xbc, 0xbe), (448.0, 0x7e, 0x5f), (0.0, 0, 0)];
        for (value, e4m3, e5m2) in cases {
            assert_eq!(F8E4M3::from_f64(value).to_bits(), e4m3, "{value}");
            assert_eq!(F8E5M2::from_f64(value).to_bits(), e5m2, "{value}");
        }
        assert_eq!(F8E4M3::from_f64(1e9).to_f64(), 448.0);
        assert_eq!(F8E4M3::from_f64(f64::NEG_INFINITY).to_f64(), -448.0);
        assert_eq!(F8E5M2::from_f64(1e9).to_f64(), f64::INFINITY);
    }
}
