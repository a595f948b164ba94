//! The element types of buffers and tensors.

use std::fmt::{self, Debug};

use half::{bf16, f16};
use layout::Dtype;

mod fp8;
mod quantized;

pub use fp8::{F8E4M3, F8E5M2};

mod sealed {
    pub trait Sealed {}
}

/// The type of an element as a value, for tensors whose type the compiler does not know ([`RawTensor`]).
///
/// [`RawTensor`]: crate::RawTensor
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ElementType {
    /// [`half::f16`].
    F16,
    /// [`half::bf16`].
    Bf16,
    /// `f32`.
    F32,
    /// [`F8E4M3`].
    E4M3,
    /// [`F8E5M2`].
    E5M2,
    /// `i32`.
    I32,
    /// `i64`.
    I64,
    /// `u32`.
    U32,
    /// `u16`.
    U16,
    /// `u8`.
    U8,
}

impl ElementType {
    /// The bytes of an element.
    ///
    /// ```
    /// assert_eq!(ferrotile::ElementType::Bf16.size_bytes(), 2);
    /// ```
    #[must_use]
    pub const fn size_bytes(self) -> usize {
        match self {
            ElementType::E4M3 | ElementType::E5M2 | ElementType::U8 => 1,
            ElementType::F16 | ElementType::Bf16 | ElementType::U16 => 2,
            ElementType::F32 | ElementType::I32 | ElementType::U32 => 4,
            ElementType::I64 => 8,
        }
    }

    /// The type that kernels compute with; `None` for integers that stand for themselves alone.
    #[must_use]
    pub const fn dtype(self) -> Option<Dtype> {
        match self {
            ElementType::F16 => Some(Dtype::F16),
            ElementType::Bf16 => Some(Dtype::Bf16),
            ElementType::F32 => Some(Dtype::F32),
            ElementType::E4M3 => Some(Dtype::E4M3),
            ElementType::E5M2 => Some(Dtype::E5M2),
            ElementType::U8 => Some(Dtype::U8),
            ElementType::I32 | ElementType::I64 | ElementType::U32 | ElementType::U16 => None,
        }
    }

    /// `CUtensorMapDataType` of cuda.h, which has no type for FP8: TMA moves bytes.
    pub(crate) const fn tensor_map_type(self) -> u32 {
        match self {
            ElementType::U8 | ElementType::E4M3 | ElementType::E5M2 => 0,
            ElementType::U16 => 1,
            ElementType::U32 => 2,
            ElementType::I32 => 3,
            ElementType::I64 => 5,
            ElementType::F16 => 6,
            ElementType::F32 => 7,
            ElementType::Bf16 => 9,
        }
    }
}

impl From<Dtype> for ElementType {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F16 => ElementType::F16,
            Dtype::Bf16 => ElementType::Bf16,
            Dtype::F32 => ElementType::F32,
            Dtype::E4M3 => ElementType::E4M3,
            Dtype::E5M2 => ElementType::E5M2,
            Dtype::U8 => ElementType::U8,
        }
    }
}

/// The name in Rust, or that of the type of kernels: `i32`, `f16`, `e4m3`.
impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.dtype()) {
            (_, Some(dtype)) => fmt::Display::fmt(&dtype, f),
            (ElementType::I32, None) => f.pad("i32"),
            (ElementType::I64, None) => f.pad("i64"),
            (ElementType::U32, None) => f.pad("u32"),
            _ => f.pad("u16"),
        }
    }
}

/// A type that device memory holds: plain data of which every bit pattern is a value.
///
/// ```
/// use ferrotile::{Element, ElementType};
///
/// assert_eq!(<half::bf16 as Element>::TYPE, ElementType::Bf16);
/// ```
pub trait Element: sealed::Sealed + Copy + Default + PartialEq + Debug + Send + Sync + 'static {
    /// The type as a value.
    const TYPE: ElementType;
}

/// An element type that kernels compute with.
///
/// ```
/// use ferrotile::{F8E4M3, Float};
///
/// assert_eq!(F8E4M3::from_f64(17.0).to_f64(), 16.0); // ties to even
/// ```
pub trait Float: Element {
    /// The type as a value.
    const DTYPE: Dtype;

    /// The nearest value to `value`, ties to even.
    fn from_f64(value: f64) -> Self;

    /// The same value, exactly.
    fn to_f64(self) -> f64;
}

impl sealed::Sealed for f16 {}
impl sealed::Sealed for bf16 {}
impl sealed::Sealed for f32 {}
impl sealed::Sealed for u32 {}
impl sealed::Sealed for i32 {}
impl sealed::Sealed for i64 {}
impl sealed::Sealed for u16 {}
impl sealed::Sealed for u8 {}
impl sealed::Sealed for F8E4M3 {}
impl sealed::Sealed for F8E5M2 {}

impl Element for f16 {
    const TYPE: ElementType = ElementType::F16;
}
impl Element for bf16 {
    const TYPE: ElementType = ElementType::Bf16;
}
impl Element for f32 {
    const TYPE: ElementType = ElementType::F32;
}
impl Element for u32 {
    const TYPE: ElementType = ElementType::U32;
}
impl Element for i32 {
    const TYPE: ElementType = ElementType::I32;
}
impl Element for i64 {
    const TYPE: ElementType = ElementType::I64;
}
impl Element for u16 {
    const TYPE: ElementType = ElementType::U16;
}
impl Element for u8 {
    const TYPE: ElementType = ElementType::U8;
}
impl Element for F8E4M3 {
    const TYPE: ElementType = ElementType::E4M3;
}
impl Element for F8E5M2 {
    const TYPE: ElementType = ElementType::E5M2;
}

// `half` looks at the upper 32 bits of an f64 alone, so both types round first.
impl Float for f16 {
    const DTYPE: Dtype = Dtype::F16;

    fn from_f64(value: f64) -> Self {
        f16::from_f64(round(value, Self::DTYPE))
    }

    fn to_f64(self) -> f64 {
        f16::to_f64(self)
    }
}

impl Float for bf16 {
    const DTYPE: Dtype = Dtype::Bf16;

    fn from_f64(value: f64) -> Self {
        bf16::from_f64(round(value, Self::DTYPE))
    }

    fn to_f64(self) -> f64 {
        bf16::to_f64(self)
    }
}

impl Float for f32 {
    const DTYPE: Dtype = Dtype::F32;

    fn from_f64(value: f64) -> Self {
        value as f32
    }

    fn to_f64(self) -> f64 {
        f64::from(self)
    }
}

/// The nearest value of `dtype`, ties to even. What is beyond the largest finite value becomes infinite, or for E4M3,
/// which has no infinities, and for 8-bit integers, that value.
pub(crate) fn round(value: f64, dtype: Dtype) -> f64 {
    let (least_exponent, largest) = match dtype {
        Dtype::F16 => (-14, 65504.0),
        Dtype::Bf16 => (-126, f64::from(f32::from_bits(0x7f7f_0000))),
        Dtype::F32 => return f64::from(value as f32),
        Dtype::E4M3 => (-6, 448.0),
        Dtype::E5M2 => (-14, 57344.0),
        Dtype::U8 => return <u8 as Float>::from_f64(value).to_f64(),
    };
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let exponent_field = (value.to_bits() >> 52 & 0x7ff) as i32;
    let step = f64::from((exponent_field - 1023).max(least_exponent) + dtype.epsilon_exponent()).exp2();
    let rounded = (value / step).round_ties_even() * step;
    match dtype {
        _ if rounded.abs() <= largest => rounded,
        Dtype::E4M3 => largest.copysign(value),
        _ => f64::INFINITY.copysign(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_agrees_with_the_types_on_every_neighbourhood() {
        let nudges = [0.0, 1.0 / 4096.0, 1.0 / 2048.0, 3.0 / 4096.0, 1.0 / 512.0, 1.0 / 256.0, 3.0 / 512.0];
        let factors = nudges.map(|nudge| 1.0 + nudge).into_iter().chain(nudges.map(|nudge| 1.0 - nudge));
        for (bits, factor) in (0..=u16::MAX).flat_map(|bits| factors.clone().map(move |factor| (bits, factor))) {
            // Either product has at most 24 bits, so f32 holds it exactly.
            let (half, brain) = (f16::from_bits(bits).to_f32() * factor, bf16::from_bits(bits).to_f32() * factor);
            for (value, dtype, expected) in
                [(half, Dtype::F16, f16::from_f32(half).to_f64()), (brain, Dtype::Bf16, bf16::from_f32(brain).to_f64())]
            {
                let rounded = round(value.into(), dtype);
                assert!(
                    rounded == expected || (rounded.is_nan() && expected.is_nan()),
                    "{value:e} as {dtype}: {rounded:e}"
                );
            }
        }
    }

    #[test]
    fn rounding_knows_the_ends_of_fp8() {
        let cases = [(448.0, 448.0), (1e9, 448.0), (-1e9, -448.0), (17.0, 16.0), (19.0, 20.0), (2f64.powi(-10), 0.0)];
        for (value, expected) in cases {
            assert_eq!(round(value, Dtype::E4M3), expected, "{value}");
        }
        assert_eq!(round(3.0 * 2f64.powi(-10), Dtype::E4M3), 2f64.powi(-8));
        assert_eq!(round(61440.0, Dtype::E5M2), f64::INFINITY);
        assert_eq!(round(57344.0, Dtype::E5M2), 57344.0);
    }

    #[test]
    fn conversion_decides_by_all_bits_of_an_f64() {
        let above_a_tie = 1.0 + 2f64.powi(-11) + 2f64.powi(-50);
        assert_eq!(<f16 as Float>::from_f64(above_a_tie).to_bits(), f16::ONE.to_bits() + 1);
        assert_eq!(<f16 as Float>::from_f64(1.0 + 2f64.powi(-11)), f16::ONE);
        assert_eq!(<bf16 as Float>::from_f64(1.0 + 2f64.powi(-8) + 2f64.powi(-50)).to_bits(), bf16::ONE.to_bits() + 1);
    }
}
