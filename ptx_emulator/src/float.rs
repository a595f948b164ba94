//! Numbers of fewer bits than f32, and the arithmetic of PTX that is not that of the CPU.
//!
//! A narrow number travels as its bits in the low end of an unsigned integer. [`Format`] converts it from and to f64,
//! which holds every number of every format here; a result is computed exactly, or in f64 rounded to odd, and rounded
//! once to its format. So every conversion and operation is exact by construction, in every rounding mode.
//!
//! A NaN result has the bits that the device gives it, whatever the inputs were: all ones but for the sign.

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

/// `a + b` in f64, rounded to odd where it is not exact: rounding that once more, to a format with at least two bits
/// less, gives what rounding the exact sum would.
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

/// `cvt` of two f32 to a packed pair of 8-bit or 16-bit numbers: the first operand of PTX is the high one.
pub fn pair_from_f32(format: Format, high: f32, low: f32, conversion: Conversion) -> u32 {
    let width = 1 + format.exponent_bits + format.mantissa_bits;
    from_f32(format, high, conversion) << width | from_f32(format, low, conversion)
}

/// `cvt.rn.f16x2.e4m3x2` and `.e5m2x2`: exact.
pub fn f16x2_from_pair(format: Format, pair: u16) -> u32 {
    let half = |bits: u16| F16.encode(format.decode((bits & 0xff).into()), Conversion::NEAREST);
    half(pair >> 8) << 16 | half(pair)
}

/// The NaN that f32 operations give: 0x7fffffff.
pub const NAN: f32 = f32::from_bits(0x7fff_ffff);

/// Replaces any NaN by the one that the device gives.
#[inline]
pub fn canonical(value: f32) -> f32 {
    if value.is_nan() { NAN } else { value }
}

/// Replaces any NaN by the one that the device gives, of f64.
#[inline]
pub fn canonical_f64(value: f64) -> f64 {
    if value.is_nan() { f64::from_bits(0x7fff_ffff_ffff_ffff) } else { value }
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

/// `cvt` from a floating-point number to an integer of `bits` bits: rounded, then clamped to its range. A NaN becomes 0.
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
