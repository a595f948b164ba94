//! Floating-point formats of up to 32 bits: conversion from and to f64, and arithmetic with one rounding.

use std::num::FpCategory;

/// How a result between two numbers of the format is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// To the nearest, a tie to the even one: `.rn`, `.rni`.
    NearestEven,
    /// To the nearest, a tie away from zero: `.rna`.
    NearestAway,
    /// Towards zero: `.rz`, `.rzi`.
    Zero,
    /// Towards negative infinity: `.rm`, `.rmi`.
    Down,
    /// Towards positive infinity: `.rp`, `.rpi`.
    Up,
}

/// A format of floating-point numbers: a sign, exponent bits, mantissa bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Format {
    exponent_bits: u32,
    mantissa_bits: u32,
    /// The highest exponent holds infinities and NaNs, as in IEEE 754; otherwise numbers, and one NaN for each sign.
    has_infinity: bool,
    /// Zero bits below the mantissa: tf32 is an f32 without its last 13 bits.
    low_zeros: u32,
}

/// Half precision: 5 bits of exponent and 10 of mantissa.
pub const F16: Format = Format::ieee(5, 10);
/// The upper half of an f32: 8 bits of exponent and 7 of mantissa.
pub const BF16: Format = Format::ieee(8, 7);
/// Single precision.
pub const F32: Format = Format::ieee(8, 23);
/// An f32 with 10 bits of mantissa; the other 13 are zero.
pub const TF32: Format = Format { exponent_bits: 8, mantissa_bits: 10, has_infinity: true, low_zeros: 13 };
/// 4 bits of exponent and 3 of mantissa; no infinities, up to 448.
pub const E4M3: Format = Format { exponent_bits: 4, mantissa_bits: 3, has_infinity: false, low_zeros: 0 };
/// 5 bits of exponent and 2 of mantissa.
pub const E5M2: Format = Format::ieee(5, 2);

/// What a conversion does besides rounding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Conversion {
    /// How it rounds.
    pub rounding: Rounding,
    /// `.satfinite`: what is too large becomes the largest finite number.
    pub satfinite: bool,
    /// `.relu`: what is negative becomes zero.
    pub relu: bool,
}

impl Conversion {
    /// `.rn` and nothing else.
    pub const NEAREST: Conversion = Conversion { rounding: Rounding::NearestEven, satfinite: false, relu: false };
    /// `.rn.satfinite`, as the conversions to e4m3 and e5m2 always are.
    pub const NEAREST_FINITE: Conversion = Conversion { satfinite: true, ..Conversion::NEAREST };
}

impl Format {
    const fn ieee(exponent_bits: u32, mantissa_bits: u32) -> Format {
        Format { exponent_bits, mantissa_bits, has_infinity: true, low_zeros: 0 }
    }

    /// The bits of a number; tf32 has those of an f32.
    pub const fn width(self) -> u32 {
        1 + self.exponent_bits + self.mantissa_bits + self.low_zeros
    }

    const fn bias(self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    const fn sign(self) -> u32 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    /// The bits of infinity, in a format that has it: one above those of the largest finite number.
    const fn infinity(self) -> u32 {
        ((1 << self.exponent_bits) - 1) << self.mantissa_bits
    }

    const fn largest_unshifted(self) -> u32 {
        if self.has_infinity { self.infinity() - 1 } else { self.sign() - 2 }
    }

    /// The bits of the NaN that operations give. That of e5m2, like that of e4m3, is 0x7f.
    pub const fn nan(self) -> u32 {
        // The NaN of tf32 is that of f32.
        (self.sign() << self.low_zeros) - 1
    }

    /// The bits of the largest finite number.
    pub const fn largest(self) -> u32 {
        self.largest_unshifted() << self.low_zeros
    }

    /// The number with these bits; a NaN is [`f64::NAN`]. Bits above those of the format are ignored.
    #[inline]
    pub fn decode(self, bits: u32) -> f64 {
        let bits = bits >> self.low_zeros;
        let magnitude = bits & (self.sign() - 1);
        let value = if magnitude > self.largest_unshifted() {
            if self.has_infinity && magnitude == self.infinity() { f64::INFINITY } else { return f64::NAN }
        } else {
            let exponent = (magnitude >> self.mantissa_bits) as i32;
            let mantissa = magnitude & ((1 << self.mantissa_bits) - 1);
            let hidden = u32::from(exponent != 0) << self.mantissa_bits;
            let scale = exponent.max(1) - self.bias() - self.mantissa_bits as i32;
            f64::from(mantissa | hidden) * power_of_two(scale)
        };
        if bits & self.sign() != 0 { -value } else { value }
    }

    /// The bits of the number of this format that `value` is rounded to.
    pub fn encode(self, value: f64, conversion: Conversion) -> u32 {
        if value.is_nan() {
            return self.nan();
        }
        let negative = value.is_sign_negative();
        if negative && conversion.relu {
            return 0;
        }
        let magnitude = self.round(value.abs(), negative, conversion) << self.low_zeros;
        if negative { magnitude | self.sign() << self.low_zeros } else { magnitude }
    }

    /// The bits of `value`, not negative, in this format; `negative` tells which way up and down are.
    fn round(self, value: f64, negative: bool, conversion: Conversion) -> u32 {
        let overflow = |away: bool| match (away && !conversion.satfinite, self.has_infinity) {
            (false, _) => self.largest_unshifted(),
            (true, true) => self.infinity(),
            (true, false) => self.nan(),
        };
        match value.classify() {
            FpCategory::Infinite => return overflow(true),
            FpCategory::Zero => return 0,
            _ => {}
        }
        let bits = value.to_bits();
        let stored = (bits >> 52) as i32;
        let mantissa = bits & ((1 << 52) - 1) | u64::from(stored != 0) << 52;
        // value = mantissa * 2^(exponent - 52)
        let exponent = stored.max(1) - 1023;
        // The bits to drop: those that normal numbers drop, and more below the smallest normal.
        let smallest = 1 - self.bias();
        let dropped = 52 - self.mantissa_bits as i32 + (smallest - exponent).max(0);
        let (kept, rest, half) = if dropped > 63 {
            // Less than half of the smallest subnormal, whatever it is.
            (0, 1, 2)
        } else {
            (mantissa >> dropped, mantissa & ((1 << dropped) - 1), 1 << (dropped - 1))
        };
        let away = match conversion.rounding {
            Rounding::NearestEven => rest > half || (rest == half && kept & 1 == 1),
            Rounding::NearestAway => rest >= half,
            Rounding::Zero => false,
            Rounding::Down => negative && rest != 0,
            Rounding::Up => !negative && rest != 0,
        };
        // The exponent is added to the mantissa, whose hidden bit counts one: so a carry goes up into the exponent.
        let scale = (exponent.max(smallest) - smallest) as u64;
        let magnitude = (scale << self.mantissa_bits) + kept + u64::from(away);
        if magnitude <= u64::from(self.largest_unshifted()) {
            return magnitude as u32;
        }
        overflow(match conversion.rounding {
            Rounding::NearestEven | Rounding::NearestAway => true,
            Rounding::Zero => false,
            Rounding::Down => negative,
            Rounding::Up => !negative,
        })
    }

    /// `a + b`, rounded once.
    pub fn add(self, a: u32, b: u32, conversion: Conversion) -> u32 {
        self.encode(sum_to_odd(self.decode(a), self.decode(b)), conversion)
    }

    /// `a - b`, rounded once.
    pub fn sub(self, a: u32, b: u32, conversion: Conversion) -> u32 {
        self.encode(sum_to_odd(self.decode(a), -self.decode(b)), conversion)
    }

    /// `a * b`, rounded once.
    pub fn mul(self, a: u32, b: u32, conversion: Conversion) -> u32 {
        // At most 48 bits: exact in f64.
        self.encode(self.decode(a) * self.decode(b), conversion)
    }

    /// `a * b + c`, rounded once.
    pub fn fma(self, a: u32, b: u32, c: u32, conversion: Conversion) -> u32 {
        self.encode(sum_to_odd(self.decode(a) * self.decode(b), self.decode(c)), conversion)
    }

    /// The smaller number; of a number and a NaN the number; -0 is below +0.
    pub fn min(self, a: u32, b: u32) -> u32 {
        self.select(a, b, |a, b| a < b)
    }

    /// The larger number; of a number and a NaN the number; +0 is above -0.
    pub fn max(self, a: u32, b: u32) -> u32 {
        self.select(a, b, |a, b| a > b)
    }

    /// `.NaN`: like [`min`](Self::min), but a NaN wins.
    pub fn min_nan(self, a: u32, b: u32) -> u32 {
        if self.is_nan(a) || self.is_nan(b) { self.nan() } else { self.min(a, b) }
    }

    /// `.NaN`: like [`max`](Self::max), but a NaN wins.
    pub fn max_nan(self, a: u32, b: u32) -> u32 {
        if self.is_nan(a) || self.is_nan(b) { self.nan() } else { self.max(a, b) }
    }

    /// These are the bits of a NaN.
    pub fn is_nan(self, bits: u32) -> bool {
        self.decode(bits).is_nan()
    }

    /// `.ftz`: a subnormal number becomes zero of the same sign.
    pub fn flush(self, bits: u32) -> u32 {
        let sign = self.sign() << self.low_zeros;
        let smallest = 1 << (self.mantissa_bits + self.low_zeros);
        if bits & (sign - 1) < smallest { bits & sign } else { bits }
    }

    fn select(self, a: u32, b: u32, first: impl Fn(i64, i64) -> bool) -> u32 {
        match (self.is_nan(a), self.is_nan(b)) {
            (true, true) => self.nan(),
            (true, false) => b,
            (false, true) => a,
            (false, false) => {
                // The bits in the order of the numbers, -0 right below +0.
                let sign = self.sign() << self.low_zeros;
                let ordered = |bits: u32| {
                    let magnitude = i64::from(bits & (sign - 1));
                    if bits & sign != 0 { -1 - magnitude } else { magnitude }
                };
                if first(ordered(a), ordered(b)) { a } else { b }
            }
        }
    }
}

/// 2^`exponent`, for exponents of normal f64 numbers.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// `a + b` in f64, rounded to odd where the sum is not exact. A second rounding, to a format with at least two bits
/// less, then gives what one rounding of the exact sum would.
pub fn sum_to_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    if !sum.is_finite() {
        return sum;
    }
    // Knuth's exact error of the sum.
    let b_part = sum - a;
    let error = (a - (sum - b_part)) + (b - b_part);
    if error == 0.0 || sum.to_bits() & 1 == 1 {
        return sum;
    }
    // The exact sum is between `sum`, even, and its neighbour on the side of the error, odd.
    if (error > 0.0) == (sum > 0.0) { f64::from_bits(sum.to_bits() + 1) } else { f64::from_bits(sum.to_bits() - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::float::canonical;

    const FORMATS: [Format; 5] = [F16, BF16, TF32, E4M3, E5M2];
    const ROUNDINGS: [Rounding; 5] =
        [Rounding::NearestEven, Rounding::NearestAway, Rounding::Zero, Rounding::Down, Rounding::Up];

    /// Numbers that look random and are the same in every run.
    fn numbers(mut seed: u64) -> impl FnMut() -> u64 {
        move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) ^ seed << 11
        }
    }

    fn with(rounding: Rounding) -> Conversion {
        Conversion { rounding, ..Conversion::NEAREST }
    }

    #[test]
    fn every_16_bit_pattern_decodes_as_in_half() {
        for bits in 0..=u16::MAX {
            for (ours, theirs) in [
                (F16.decode(bits.into()), half::f16::from_bits(bits).to_f64()),
                (BF16.decode(bits.into()), half::bf16::from_bits(bits).to_f64()),
            ] {
                assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{bits:#x}");
            }
        }
    }

    #[test]
    fn every_8_bit_pattern_decodes_by_its_definition() {
        for bits in 0..=255u32 {
            let sign = if bits < 128 { 1.0 } else { -1.0 };
            let value = |exponent: u32, mantissa: f64, bias: i32| match exponent {
                0 => sign * mantissa * 2f64.powi(1 - bias),
                _ => sign * (1.0 + mantissa) * 2f64.powi(exponent as i32 - bias),
            };
            let e4m3 = if bits & 0x7f == 0x7f { f64::NAN } else { value(bits >> 3 & 15, f64::from(bits & 7) / 8.0, 7) };
            let e5m2 = match (bits >> 2 & 31, bits & 3) {
                (31, 0) => sign * f64::INFINITY,
                (31, _) => f64::NAN,
                (exponent, mantissa) => value(exponent, f64::from(mantissa) / 4.0, 15),
            };
            for (format, expected) in [(E4M3, e4m3), (E5M2, e5m2)] {
                let decoded = format.decode(bits);
                assert!(decoded.to_bits() == expected.to_bits() || decoded.is_nan() && expected.is_nan(), "{bits:#x}");
            }
        }
        assert_eq!((E4M3.decode(E4M3.largest()), E5M2.decode(E5M2.largest())), (448.0, 57344.0));
    }

    #[test]
    fn every_pattern_encodes_to_itself_and_every_nan_to_one() {
        for format in FORMATS {
            for pattern in 0..2 * format.sign() {
                let bits = pattern << format.low_zeros;
                let expected = if format.is_nan(bits) { format.nan() } else { bits };
                for rounding in ROUNDINGS {
                    assert_eq!(format.encode(format.decode(bits), with(rounding)), expected, "{format:?} {bits:#x}");
                }
            }
        }
        let nans = [F16.nan(), BF16.nan(), TF32.nan(), E4M3.nan(), E5M2.nan(), F32.nan()];
        assert_eq!(nans, [0x7fff, 0x7fff, 0x7fff_ffff, 0x7f, 0x7f, 0x7fff_ffff]);
    }

    /// Between every two neighbours of a format, and between the largest number and what would follow it: a quarter, a
    /// half, three quarters of the way, and next to both ends.
    #[test]
    fn numbers_between_two_neighbours_are_rounded_as_the_mode_says() {
        for format in FORMATS {
            let largest = format.largest_unshifted();
            for low in 0..=largest {
                let decode = |pattern: u32| format.decode(pattern << format.low_zeros);
                let (from, gap) = if low < largest {
                    (decode(low), decode(low + 1) - decode(low))
                } else {
                    (decode(low), decode(low) - decode(low - 1))
                };
                let above = if low < largest || format.has_infinity { low + 1 } else { format.nan() };
                for quarter in [1e-6, 1.0, 2.0, 3.0, 4.0 - 1e-6] {
                    let value = from + gap * quarter / 4.0;
                    for rounding in ROUNDINGS {
                        for negative in [false, true] {
                            let up = match rounding {
                                Rounding::NearestEven => quarter > 2.0 || quarter == 2.0 && low % 2 == 1,
                                Rounding::NearestAway => quarter >= 2.0,
                                Rounding::Zero => false,
                                Rounding::Down => negative,
                                Rounding::Up => !negative,
                            };
                            let magnitude = if up { above } else { low } << format.low_zeros;
                            let sign = if negative { format.sign() << format.low_zeros } else { 0 };
                            let value = if negative { -value } else { value };
                            let encoded = format.encode(value, with(rounding));
                            assert_eq!(encoded, magnitude | sign, "{format:?} {rounding:?} {value:e}");
                            if low == largest {
                                let finite = Conversion { satfinite: true, ..with(rounding) };
                                assert_eq!(format.encode(value, finite), format.largest() | sign);
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn numbers_far_out_overflow_and_vanish() {
        for value in [1e300, f64::INFINITY] {
            assert_eq!(F16.encode(value, Conversion::NEAREST), 0x7c00);
            assert_eq!(F16.encode(-value, Conversion::NEAREST_FINITE), 0xfbff);
            assert_eq!(E4M3.encode(value, Conversion::NEAREST_FINITE), 0x7e);
            assert_eq!(E5M2.encode(-value, Conversion::NEAREST_FINITE), 0xfb);
        }
        assert_eq!(F16.encode(1e300, with(Rounding::Zero)), 0x7bff);
        assert_eq!(F16.encode(-1e300, with(Rounding::Up)), 0xfbff);
        assert_eq!(F16.encode(1e-300, Conversion::NEAREST), 0);
        assert_eq!(F16.encode(-1e-300, Conversion::NEAREST), 0x8000);
        assert_eq!(F16.encode(1e-300, with(Rounding::Up)), 1);
        assert_eq!(F16.encode(f64::from_bits(1), with(Rounding::Up)), 1);
        for format in FORMATS {
            assert_eq!(format.encode(f64::NAN, Conversion::NEAREST_FINITE), format.nan());
        }
    }

    #[test]
    fn relu_clears_what_is_negative_and_keeps_a_nan() {
        let relu = Conversion { relu: true, ..Conversion::NEAREST };
        for value in [-1.0, -0.0, f64::NEG_INFINITY, -1e-300] {
            assert_eq!(BF16.encode(value, relu), 0);
        }
        assert_eq!(BF16.encode(1.0, relu), 0x3f80);
        assert_eq!(BF16.encode(-f64::NAN, relu), 0x7fff);
    }

    /// The arithmetic of f32, done the way of the narrow formats, against that of the CPU: products of any size, sums
    /// that cancel, subnormals.
    #[test]
    fn one_rounding_is_what_the_cpu_does_in_f32() {
        let mut next = numbers(2);
        for round in 0..300_000 {
            let [a, mut b, mut c] = [(); 3].map(|()| f32::from_bits(next() as u32));
            match round % 3 {
                1 => c = -(a * b) * (1.0 + next() as f32 % 3.0 * f32::EPSILON),
                2 => b = -a * (1.0 + next() as f32 % 5.0 * f32::EPSILON),
                _ => {}
            }
            let bits = [a, b, c].map(f32::to_bits);
            let same = |ours: u32, theirs: f32| ours == canonical(theirs).to_bits();
            assert!(
                same(F32.fma(bits[0], bits[1], bits[2], Conversion::NEAREST), a.mul_add(b, c)),
                "{a:e} {b:e} {c:e}"
            );
            assert!(same(F32.add(bits[0], bits[1], Conversion::NEAREST), a + b), "{a:e} {b:e}");
            assert!(same(F32.sub(bits[0], bits[1], Conversion::NEAREST), a - b), "{a:e} {b:e}");
            assert!(same(F32.mul(bits[0], bits[1], Conversion::NEAREST), a * b), "{a:e} {b:e}");
        }
    }

    #[test]
    fn f16_sums_and_products_are_those_of_f64_rounded() {
        let mut next = numbers(3);
        for _ in 0..200_000 {
            let [a, b] = [next() as u16, next() as u16];
            let [x, y] = [a, b].map(|bits| half::f16::from_bits(bits).to_f64());
            // Both are exact in f64, and half rounds from f64 once.
            for (ours, exact) in [
                (F16.add(a.into(), b.into(), Conversion::NEAREST), x + y),
                (F16.sub(a.into(), b.into(), Conversion::NEAREST), x - y),
                (F16.mul(a.into(), b.into(), Conversion::NEAREST), x * y),
            ] {
                let expected = half::f16::from_f64(exact);
                assert!(ours == expected.to_bits().into() || expected.is_nan() && ours == F16.nan(), "{a:#x} {b:#x}");
            }
        }
    }

    #[test]
    fn f16_fma_rounds_the_exact_sum_once() {
        // 1 + 2^-11 is a tie that the last bit of the product decides.
        let tiny = F16.encode(2f64.powi(-24), Conversion::NEAREST);
        let half_step = F16.encode(2f64.powi(-11), Conversion::NEAREST);
        let one = 0x3c00;
        assert_eq!(F16.fma(half_step, one, one, Conversion::NEAREST), 0x3c00);
        let above = half_step + 1;
        assert_eq!(F16.fma(above, one, one, Conversion::NEAREST), 0x3c01);
        // 2^-48 next to 2 + 2^-9 / 2 disappears in f64, but not in the direction of rounding.
        let (big, tie) = (0x7bffu32, F16.fma(tiny, tiny, one, with(Rounding::Up)));
        assert_eq!(tie, 0x3c01);
        assert_eq!(F16.fma(tiny, tiny, big, with(Rounding::Up)), 0x7c00);
        assert_eq!(F16.fma(tiny, tiny | 0x8000, big, with(Rounding::Zero)), 0x7bfe);
    }
}
