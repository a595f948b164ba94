//! Numbers of fewer bits than f32, and the arithmetic of PTX that is not that of the CPU.
//!
//! A narrow number travels as its bits in the low end of an unsigned integer. [`Format`] converts these bits from and
//! to f64, which holds every number of every format here. A result is computed exactly, or in f64 rounded to odd, and
//! then rounded once to its format. So every conversion and operation is exact by construction, in every rounding mode.
//!
//! A NaN result has the bits that the device gives it, whatever the inputs were: all ones but for the sign.

pub use format::{BF16, Conversion, E4M3, E5M2, F16, F32, Format, Rounding, TF32, sum_to_odd};

pub(crate) mod directed;
pub mod exact;
mod format;

/// Applies an operation to both halves of packed 16-bit numbers.
pub fn packed(a: u32, b: u32, operation: impl Fn(u32, u32) -> u32) -> u32 {
    operation(a & 0xffff, b & 0xffff) | operation(a >> 16, b >> 16) << 16
}

/// Applies an operation of three operands to both halves of packed 16-bit numbers.
pub fn packed3(a: u32, b: u32, c: u32, operation: impl Fn(u32, u32, u32) -> u32) -> u32 {
    operation(a & 0xffff, b & 0xffff, c & 0xffff) | operation(a >> 16, b >> 16, c >> 16) << 16
}

/// `cvt.f32.f16`.
pub fn f16_to_f32(bits: u16) -> f32 {
    F16.decode(bits.into()) as f32
}

/// `cvt.f32.bf16`.
pub fn bf16_to_f32(bits: u16) -> f32 {
    BF16.decode(bits.into()) as f32
}

/// `cvt.f32` of one half of an `e4m3x2`.
pub fn e4m3_to_f32(bits: u8) -> f32 {
    E4M3.decode(bits.into()) as f32
}

/// `cvt.f32` of one half of an `e5m2x2`.
pub fn e5m2_to_f32(bits: u8) -> f32 {
    E5M2.decode(bits.into()) as f32
}

/// `cvt` of an f32 to a narrower format.
pub fn from_f32(format: Format, value: f32, conversion: Conversion) -> u32 {
    format.encode(value.into(), conversion)
}

/// [`from_f32`] to [`F16`], rounded to nearest: the conversion that kernels are full of.
#[inline(always)]
pub fn f16_from_f32(value: f32) -> u32 {
    let (bits, magnitude) = (value.to_bits(), value.to_bits() & 0x7fff_ffff);
    // Bits of f16 are those of f32 with another bias and without the last 13, which are rounded off, a tie to even.
    let normal = (magnitude.wrapping_sub(112 << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    // In a sum with 1/2 the last bit is that of the subnormal numbers of f16.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let finite = if magnitude < 113 << 23 { subnormal } else { normal };
    let rounded = if magnitude >= 0x477f_f000 { 0x7c00 } else { finite };
    if magnitude > 0x7f80_0000 { 0x7fff } else { rounded | bits >> 16 & 0x8000 }
}

/// [`from_f32`] to [`BF16`], rounded to nearest.
#[inline(always)]
pub fn bf16_from_f32(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if bits & 0x7fff_ffff > 0x7f80_0000 { 0x7fff } else { rounded }
}

/// `cvt` of two f32 to a packed pair of 8-bit or 16-bit numbers: the first operand of PTX is the high one.
pub fn pair_from_f32(format: Format, high: f32, low: f32, conversion: Conversion) -> u32 {
    from_f32(format, high, conversion) << format.width() | from_f32(format, low, conversion)
}

/// `cvt.rn.f16x2.e4m3x2` and `.e5m2x2`: exact.
pub fn f16x2_from_pair(format: Format, pair: u16) -> u32 {
    let half = |bits: u16| F16.encode(format.decode((bits & 0xff).into()), Conversion::NEAREST);
    half(pair >> 8) << 16 | half(pair)
}

/// The NaN that f32 operations give: 0x7fffffff.
pub const NAN: f32 = f32::from_bits(0x7fff_ffff);

/// Replaces any NaN by the one that the device gives.
///
/// The test is on the bits: LLVM drops `if x.is_nan() { NAN } else { x }`, since to it a NaN is as good as another.
#[inline]
pub fn canonical(value: f32) -> f32 {
    if value.to_bits() & 0x7fff_ffff > 0x7f80_0000 { NAN } else { value }
}

/// Replaces any NaN by the one that the device gives, of f64.
#[inline]
pub fn canonical_f64(value: f64) -> f64 {
    let magnitude = value.to_bits() & !(1 << 63);
    if magnitude > 0x7ff0_0000_0000_0000 { f64::from_bits(0x7fff_ffff_ffff_ffff) } else { value }
}

/// `.ftz`: a subnormal number becomes zero of the same sign.
#[inline]
pub fn flush(value: f32) -> f32 {
    if value.is_subnormal() { 0f32.copysign(value) } else { value }
}

/// `.sat`: to the range from 0 to 1; a NaN becomes 0.
#[inline]
pub fn saturate(value: f32) -> f32 {
    // The first comparison is false for a NaN and for -0.
    if value > 0.0 { value.min(1.0) } else { 0.0 }
}

/// `add.f32` in any rounding mode.
#[inline]
pub fn add_f32(a: f32, b: f32, rounding: Rounding) -> f32 {
    if rounding == Rounding::NearestEven {
        return canonical(a + b);
    }
    round_f32(signed_zero_sum(a.into(), b.into(), rounding), rounding)
}

/// `mul.f32` in any rounding mode.
#[inline]
pub fn mul_f32(a: f32, b: f32, rounding: Rounding) -> f32 {
    if rounding == Rounding::NearestEven {
        return canonical(a * b);
    }
    round_f32(f64::from(a) * f64::from(b), rounding)
}

/// `fma.f32` in any rounding mode.
#[inline]
pub fn fma_f32(a: f32, b: f32, c: f32, rounding: Rounding) -> f32 {
    if rounding == Rounding::NearestEven {
        return canonical(a.mul_add(b, c));
    }
    round_f32(signed_zero_sum(f64::from(a) * f64::from(b), c.into(), rounding), rounding)
}

/// The sum rounded to odd; where it is exactly zero, with the sign that the rounding mode gives to it.
fn signed_zero_sum(a: f64, b: f64, rounding: Rounding) -> f64 {
    let sum = sum_to_odd(a, b);
    // Two zeros of one sign keep it; x - x is -0 only when rounding down.
    if sum == 0.0 && rounding == Rounding::Down && (a != 0.0 || a.is_sign_negative() || b.is_sign_negative()) {
        return -0.0;
    }
    sum
}

/// Rounds f64 to f32.
pub fn round_f32(value: f64, rounding: Rounding) -> f32 {
    f32::from_bits(F32.encode(value, Conversion { rounding, ..Conversion::NEAREST }))
}

/// `min.f32`: of a number and a NaN the number, of two NaNs the canonical one; -0 is below +0.
#[inline]
pub fn min_f32(a: f32, b: f32) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (false, false) if a == b => f32::from_bits(a.to_bits() | b.to_bits()),
        (false, false) => {
            if a < b {
                a
            } else {
                b
            }
        }
        (false, true) => a,
        (true, false) => b,
        (true, true) => NAN,
    }
}

/// `max.f32`: of a number and a NaN the number, of two NaNs the canonical one; +0 is above -0.
#[inline]
pub fn max_f32(a: f32, b: f32) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (false, false) if a == b => f32::from_bits(a.to_bits() & b.to_bits()),
        (false, false) => {
            if a > b {
                a
            } else {
                b
            }
        }
        (false, true) => a,
        (true, false) => b,
        (true, true) => NAN,
    }
}

/// Rounds to an integral value: `cvt.rni.f32.f32` and the like.
pub fn round_to_integral(value: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::NearestEven => value.round_ties_even(),
        Rounding::NearestAway => value.round(),
        Rounding::Zero => value.trunc(),
        Rounding::Down => value.floor(),
        Rounding::Up => value.ceil(),
    }
}

/// `cvt` from a floating-point number to an integer of `bits` bits: rounded, then clamped to its range. A NaN becomes
/// 0.
///
/// The result is the two's complement in the low `bits` bits.
///
/// # Panics
/// If `bits` is not from 1 to 64.
pub fn to_integer(value: f64, rounding: Rounding, bits: u32, signed: bool) -> u64 {
    assert!((1..=64).contains(&bits), "an integer has 1 to 64 bits, not {bits}");
    let (lowest, highest) =
        if signed { (-1i128 << (bits - 1), (1i128 << (bits - 1)) - 1) } else { (0, (1i128 << bits) - 1) };
    // The cast clamps to i128 and turns a NaN into 0.
    let integer = round_to_integral(value, rounding) as i128;
    integer.clamp(lowest, highest) as u64 & (u64::MAX >> (64 - bits))
}

/// `cvt` from an integer to f32.
pub fn f32_from_integer(value: i128, rounding: Rounding) -> f32 {
    if rounding == Rounding::NearestEven {
        return value as f32;
    }
    // An integer of 64 bits as a sum of two f64, rounded to odd.
    let high = value >> 32 << 32;
    round_f32(sum_to_odd(high as f64, (value - high) as f64), rounding)
}

/// `cvt` from an integer to f16 or bf16.
pub fn narrow_from_integer(format: Format, value: i128, conversion: Conversion) -> u32 {
    let high = value >> 32 << 32;
    format.encode(sum_to_odd(high as f64, (value - high) as f64), conversion)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUNDINGS: [Rounding; 5] =
        [Rounding::NearestEven, Rounding::NearestAway, Rounding::Zero, Rounding::Down, Rounding::Up];

    /// Numbers that look random and are the same in every run.
    fn numbers(mut seed: u64) -> impl FnMut() -> u64 {
        move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) ^ seed << 11
        }
    }

    #[test]
    fn conversions_of_f32_agree_with_half() {
        let mut next = numbers(1);
        for _ in 0..200_000 {
            let value = f32::from_bits(next() as u32);
            assert_eq!(f16_from_f32(value), from_f32(F16, value, Conversion::NEAREST), "{value:e}");
            assert_eq!(bf16_from_f32(value), from_f32(BF16, value, Conversion::NEAREST), "{value:e}");
            if !value.is_nan() {
                assert_eq!(from_f32(F16, value, Conversion::NEAREST), half::f16::from_f32(value).to_bits().into());
                assert_eq!(from_f32(BF16, value, Conversion::NEAREST), half::bf16::from_f32(value).to_bits().into());
            }
        }
    }

    #[test]
    fn f16_of_every_exponent_is_rounded_to_even() {
        for exponent in 0..=255 {
            for mantissa in
                [0, 1, 0xfff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x2fff, 0x3000, 0x3001, 0x7f_efff, 0x7f_f000, 0x7f_ffff]
            {
                for sign in [0, 1 << 31] {
                    let value = f32::from_bits(sign | exponent << 23 | mantissa);
                    assert_eq!(f16_from_f32(value), from_f32(F16, value, Conversion::NEAREST), "{value:e}");
                }
            }
        }
    }

    #[test]
    fn pairs_have_the_first_operand_on_top() {
        assert_eq!(pair_from_f32(F16, 1.0, -2.0, Conversion::NEAREST), 0x3c00_c000);
        assert_eq!(pair_from_f32(E4M3, 1.0, 448.0, Conversion::NEAREST_FINITE), 0x387e);
        assert_eq!(f16x2_from_pair(E4M3, 0x387f), 0x3c00_7fff);
        assert_eq!(f16x2_from_pair(E5M2, 0x3cfc), 0x3c00_fc00);
    }

    #[test]
    fn f32_sums_round_in_every_direction() {
        let tiny = 1e-30f32;
        let next = f32::from_bits(1f32.to_bits() + 1);
        let before = f32::from_bits(1f32.to_bits() - 1);
        for (rounding, above, below) in [
            (Rounding::NearestEven, 1.0, 1.0),
            (Rounding::Zero, 1.0, before),
            (Rounding::Down, 1.0, before),
            (Rounding::Up, next, 1.0),
        ] {
            assert_eq!(add_f32(1.0, tiny, rounding), above);
            assert_eq!(add_f32(1.0, -tiny, rounding), below);
            assert_eq!(fma_f32(tiny, 1e-5, 1.0, rounding), above);
            assert_eq!(mul_f32(next, next, rounding) > 1.0 + 2.0 * f32::EPSILON, rounding == Rounding::Up);
            let zero = if rounding == Rounding::Down { -0f32 } else { 0.0 };
            assert_eq!(add_f32(1.5, -1.5, rounding).to_bits(), zero.to_bits());
            assert_eq!(add_f32(0.0, 0.0, rounding).to_bits(), 0);
            assert_eq!(add_f32(-0.0, -0.0, rounding).to_bits(), (-0f32).to_bits());
            assert_eq!(add_f32(0.0, -0.0, rounding).to_bits(), zero.to_bits());
        }
        assert_eq!(add_f32(f32::INFINITY, f32::NEG_INFINITY, Rounding::NearestEven).to_bits(), 0x7fff_ffff);
        assert_eq!(mul_f32(0.0, f32::INFINITY, Rounding::Zero).to_bits(), 0x7fff_ffff);
    }

    #[test]
    fn minimum_and_maximum_prefer_numbers_and_order_zeros() {
        let values = [f32::NEG_INFINITY, -1.0, -0.0, 0.0, 1e-40, 2.0, f32::INFINITY];
        for (i, a) in values.into_iter().enumerate() {
            for (j, b) in values.into_iter().enumerate() {
                assert_eq!(min_f32(a, b).to_bits(), values[i.min(j)].to_bits());
                assert_eq!(max_f32(a, b).to_bits(), values[i.max(j)].to_bits());
                assert_eq!(F32.min(a.to_bits(), b.to_bits()), values[i.min(j)].to_bits());
                assert_eq!(F32.max_nan(a.to_bits(), b.to_bits()), values[i.max(j)].to_bits());
            }
            let nan = f32::from_bits(0xffc0_1234);
            for (x, y) in [(a, nan), (nan, a)] {
                assert_eq!((min_f32(x, y).to_bits(), max_f32(x, y).to_bits()), (a.to_bits(), a.to_bits()));
                assert_eq!(F32.min_nan(x.to_bits(), y.to_bits()), 0x7fff_ffff);
            }
            assert_eq!(min_f32(nan, nan).to_bits(), 0x7fff_ffff);
        }
        assert_eq!(packed(0x3c00_8000, 0x7e01_0000, |a, b| F16.max(a, b)), 0x3c00_0000);
        assert_eq!(packed3(0x3c00_4000, 0x4000_4000, 0, |a, b, c| F16.fma(a, b, c, Conversion::NEAREST)), 0x4000_4400);
    }

    #[test]
    fn subnormals_are_flushed_with_their_sign() {
        assert_eq!((F16.flush(0x83ff), F16.flush(0x0400), BF16.flush(0x007f)), (0x8000, 0x0400, 0));
        assert_eq!(flush(-1e-40).to_bits(), (-0f32).to_bits());
        assert_eq!(flush(f32::MIN_POSITIVE), f32::MIN_POSITIVE);
        assert_eq!([-1.0, f32::NAN, 0.5, 7.0].map(saturate), [0.0, 0.0, 0.5, 1.0]);
        assert_eq!(saturate(-0.0).to_bits(), 0);
    }

    #[test]
    fn integers_are_rounded_and_clamped() {
        assert_eq!(to_integer(f64::NAN, Rounding::Zero, 32, true), 0);
        assert_eq!(to_integer(1e10, Rounding::Zero, 32, true), 0x7fff_ffff);
        assert_eq!(to_integer(-1e10, Rounding::Zero, 32, true), 0x8000_0000);
        assert_eq!(to_integer(-1.0, Rounding::Zero, 32, false), 0);
        assert_eq!(to_integer(-1.0, Rounding::Zero, 16, true), 0xffff);
        assert_eq!(to_integer(f64::INFINITY, Rounding::Zero, 64, false), u64::MAX);
        assert_eq!(to_integer(f64::NEG_INFINITY, Rounding::Zero, 64, true), 1 << 63);
        for (rounding, expected) in ROUNDINGS.into_iter().zip([[2, -2], [3, -3], [2, -2], [2, -3], [3, -2]]) {
            for (value, expected) in [2.5, -2.5].into_iter().zip(expected) {
                assert_eq!(to_integer(value, rounding, 32, true) as i32, expected, "{rounding:?}");
            }
        }
    }

    #[test]
    fn numbers_of_integers_are_rounded_once() {
        let value = (1i128 << 40) + (1 << 16) + 1;
        assert_eq!(f32_from_integer(value, Rounding::NearestEven), ((1u64 << 40) + (1 << 17)) as f32);
        assert_eq!(f32_from_integer(value, Rounding::Zero), (1u64 << 40) as f32);
        assert_eq!(f32_from_integer(-value, Rounding::Down), -(((1u64 << 40) + (1 << 17)) as f32));
        assert_eq!(f32_from_integer(u64::MAX.into(), Rounding::Zero).to_bits(), (u64::MAX as f32).to_bits() - 1);
        assert_eq!(narrow_from_integer(F16, 2049, Conversion::NEAREST), 0x6800);
        assert_eq!(narrow_from_integer(F16, (1 << 60) + 1, Conversion::NEAREST), 0x7c00);
        assert_eq!(narrow_from_integer(BF16, (1 << 60) + (1 << 52) + 1, Conversion::NEAREST), 0x5d81);
    }
}
