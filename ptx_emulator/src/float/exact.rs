//! Sums, products, quotients and square roots rounded once in any direction, of f32 and of f64.
//!
//! An operation on finite numbers is done on whole numbers of 128 bits, whose last bit is sticky: it stands for all
//! bits behind it. f32 operands are f64 numbers too, so the width matters to the rounding alone. Where an operand is
//! infinite or NaN, or the divisor is zero, the rounding does not matter, and the CPU's own operation has the result.

use super::Rounding;

/// The operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a b`
    Mul,
    /// `a b + c`
    Fma,
    /// `a / b`
    Div,
    /// `1 / a`
    Rcp,
    /// The square root of `a`.
    Sqrt,
}

/// What a result is rounded to.
#[derive(Debug, Clone, Copy)]
struct Target {
    /// Bits of a significand.
    precision: u32,
    /// The exponent of the last bit of the smallest normal number, and of all below it.
    least: i32,
    largest: f64,
}

const SINGLE: Target = Target { precision: 24, least: -149, largest: f32::MAX as f64 };
const DOUBLE: Target = Target { precision: 53, least: -1074, largest: f64::MAX };

/// The number `magnitude 2^exponent`; the last bit of the magnitude is also set for anything that was cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Number {
    negative: bool,
    magnitude: u128,
    exponent: i32,
}

impl Number {
    fn of(value: f64) -> Number {
        let bits = value.to_bits();
        let (biased, fraction) = ((bits >> 52 & 0x7FF) as i32, bits & ((1 << 52) - 1));
        let magnitude = if biased == 0 { fraction } else { fraction | 1 << 52 };
        Number { negative: value.is_sign_negative(), magnitude: magnitude.into(), exponent: biased.max(1) - 1075 }
    }

    /// With the highest bit of its magnitude at bit 125, so that two of them add without overflow.
    fn normal(self) -> Number {
        let shift = self.magnitude.leading_zeros() as i32 - 2;
        let magnitude = if shift >= 0 { self.magnitude << shift } else { cut(self.magnitude, -shift as u32) };
        Number { magnitude, exponent: self.exponent - shift, ..self }
    }

    fn times(self, other: Number) -> Number {
        Number {
            negative: self.negative != other.negative,
            magnitude: self.magnitude * other.magnitude,
            exponent: self.exponent + other.exponent,
        }
    }

    /// The sum; of opposite numbers, zero with the sign of the first.
    fn plus(self, other: Number) -> Number {
        if self.magnitude == 0 || other.magnitude == 0 {
            return if self.magnitude == 0 { other } else { self };
        }
        let (a, b) = (self.normal(), other.normal());
        let (high, low) = if a.exponent >= b.exponent { (a, b) } else { (b, a) };
        let small = cut(low.magnitude, (high.exponent - low.exponent) as u32);
        let (negative, magnitude) = match (high.negative == low.negative, high.magnitude >= small) {
            (true, _) => (high.negative, high.magnitude + small),
            (false, true) => (high.negative, high.magnitude - small),
            (false, false) => (low.negative, small - high.magnitude),
        };
        Number { negative, magnitude, exponent: high.exponent }
    }

    fn over(self, other: Number) -> Number {
        let (a, b) = (self.normal(), other.normal());
        // A quotient of 92 to 94 bits.
        let divisor = b.magnitude >> 73;
        let magnitude = ((a.magnitude / divisor) << 20) | (((a.magnitude % divisor) << 20) / divisor);
        let rest = !((a.magnitude % divisor) << 20).is_multiple_of(divisor);
        let exponent = a.exponent - b.exponent - 73 - 20;
        Number {
            negative: a.negative != b.negative,
            magnitude: magnitude << 1 | u128::from(rest),
            exponent: exponent - 1,
        }
    }

    fn root(self) -> Number {
        let mut a = self.normal();
        if a.exponent % 2 != 0 {
            a = Number { magnitude: a.magnitude << 1, exponent: a.exponent - 1, ..a };
        }
        let root = a.magnitude.isqrt();
        let rest = root * root != a.magnitude;
        Number { negative: false, magnitude: root << 1 | u128::from(rest), exponent: a.exponent / 2 - 1 }
    }

    fn round(self, target: Target, rounding: Rounding) -> f64 {
        if self.magnitude == 0 {
            return if self.negative { -0.0 } else { 0.0 };
        }
        let length = 128 - self.magnitude.leading_zeros() as i32;
        let last = (self.exponent + length - target.precision as i32).max(target.least);
        let (mut magnitude, dropped) = match last - self.exponent {
            shift @ ..=0 => (self.magnitude << -shift, std::cmp::Ordering::Less),
            128.. => (0, std::cmp::Ordering::Less),
            shift => {
                let rest = self.magnitude & ((1 << shift) - 1);
                (self.magnitude >> shift, rest.cmp(&(1 << (shift - 1))))
            }
        };
        let inexact = last - self.exponent >= 128
            || last > self.exponent && self.magnitude & ((1 << (last - self.exponent)) - 1) != 0;
        let away = inexact
            && match rounding {
                Rounding::NearestEven => dropped.is_gt() || dropped.is_eq() && magnitude & 1 == 1,
                Rounding::NearestAway => dropped.is_ge(),
                Rounding::Zero => false,
                Rounding::Down => self.negative,
                Rounding::Up => !self.negative,
            };
        magnitude += u128::from(away);
        let sign = if self.negative { -1.0 } else { 1.0 };
        sign * match scaled(magnitude as u64, last) {
            value if value <= target.largest => value,
            // Beyond all numbers: those that round towards zero stop before infinity.
            _ => match rounding {
                Rounding::NearestEven | Rounding::NearestAway => f64::INFINITY,
                Rounding::Down if self.negative => f64::INFINITY,
                Rounding::Up if !self.negative => f64::INFINITY,
                _ => target.largest,
            },
        }
    }
}

/// `magnitude` without its last bits, but for whether there was one among them.
fn cut(magnitude: u128, bits: u32) -> u128 {
    if bits > 127 {
        return u128::from(magnitude != 0);
    }
    magnitude >> bits | u128::from(magnitude & ((1 << bits) - 1) != 0)
}

/// `magnitude 2^exponent`, which is a number of f64 or beyond all of them.
fn scaled(magnitude: u64, exponent: i32) -> f64 {
    let length = 64 - magnitude.leading_zeros() as i32;
    if magnitude == 0 {
        return 0.0;
    }
    if exponent + length > 1024 {
        return f64::INFINITY;
    }
    if exponent + length < -1021 {
        // A subnormal number: its last bit is that of the magnitude.
        return f64::from_bits(magnitude << (exponent + 1074));
    }
    let biased = (exponent + length + 1022) as u64;
    let fraction = if length > 53 { magnitude >> (length - 53) } else { magnitude << (53 - length) };
    f64::from_bits(biased << 52 | fraction & ((1 << 52) - 1))
}

/// The result as f64, which for `single` is a number of f32.
fn rounded(operation: Operation, [a, b, c]: [f64; 3], rounding: Rounding, target: Target) -> f64 {
    let [x, y, z] = [a, b, c].map(Number::of);
    let own = match operation {
        Operation::Add => a + b,
        Operation::Sub => a - b,
        Operation::Mul => a * b,
        Operation::Fma => a.mul_add(b, c),
        Operation::Div => a / b,
        Operation::Rcp => 1.0 / a,
        Operation::Sqrt => a.sqrt(),
    };
    let operands: &[f64] = match operation {
        Operation::Fma => &[a, b, c],
        Operation::Rcp | Operation::Sqrt => &[a],
        _ => &[a, b],
    };
    let divisor = match operation {
        Operation::Div => b,
        Operation::Rcp => a,
        _ => 1.0,
    };
    let regular = operands.iter().all(|operand| operand.is_finite()) && divisor != 0.0;
    if !regular || operation == Operation::Sqrt && (a == 0.0 || a.is_sign_negative()) {
        return own;
    }
    let opposite = Number { negative: !y.negative, ..y };
    let sum = |p: Number, q: Number| {
        let sum = p.plus(q);
        // What cancels is +0, but -0 when rounding down; two zeros of one sign keep it.
        let zeros = p.magnitude == 0 && q.magnitude == 0;
        let negative = if zeros && p.negative == q.negative { p.negative } else { rounding == Rounding::Down };
        if sum.magnitude == 0 { Number { negative, ..sum } } else { sum }
    };
    let exact = match operation {
        Operation::Add => sum(x, y),
        Operation::Sub => sum(x, opposite),
        Operation::Mul => x.times(y),
        Operation::Fma => sum(x.times(y), z),
        Operation::Div if a == 0.0 => return own,
        Operation::Div => x.over(y),
        Operation::Rcp => Number::of(1.0).over(x),
        Operation::Sqrt => x.root(),
    };
    exact.round(target, rounding)
}

/// `add.f32`, `fma.f32` and the like in any direction of rounding.
pub fn rounded_f32(operation: Operation, operands: [f32; 3], rounding: Rounding) -> f32 {
    super::canonical(rounded(operation, operands.map(f64::from), rounding, SINGLE) as f32)
}

/// `add.f64`, `fma.f64` and the like in any direction of rounding.
pub fn rounded_f64(operation: Operation, operands: [f64; 3], rounding: Rounding) -> f64 {
    super::canonical_f64(rounded(operation, operands, rounding, DOUBLE))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPERATIONS: [Operation; 7] = [
        Operation::Add,
        Operation::Sub,
        Operation::Mul,
        Operation::Fma,
        Operation::Div,
        Operation::Rcp,
        Operation::Sqrt,
    ];

    fn numbers(mut seed: u64) -> impl FnMut() -> u64 {
        move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 32) ^ seed << 13
        }
    }

    fn native_f64(operation: Operation, [a, b, c]: [f64; 3]) -> f64 {
        match operation {
            Operation::Add => a + b,
            Operation::Sub => a - b,
            Operation::Mul => a * b,
            Operation::Fma => a.mul_add(b, c),
            Operation::Div => a / b,
            Operation::Rcp => 1.0 / a,
            Operation::Sqrt => a.sqrt(),
        }
    }

    fn native_f32(operation: Operation, [a, b, c]: [f32; 3]) -> f32 {
        match operation {
            Operation::Add => a + b,
            Operation::Sub => a - b,
            Operation::Mul => a * b,
            Operation::Fma => a.mul_add(b, c),
            Operation::Div => a / b,
            Operation::Rcp => 1.0 / a,
            Operation::Sqrt => a.sqrt(),
        }
    }

    /// Numbers of every size, near each other and far apart, and the ends of the range.
    fn triple(random: &mut impl FnMut() -> u64) -> [f64; 3] {
        let ends = [0.0, -0.0, f64::MAX, f64::MIN_POSITIVE, 5e-324, f64::INFINITY, -1.0, f64::NAN];
        std::array::from_fn(|_| match random() % 8 {
            0 => ends[(random() % 8) as usize],
            1 => (random() % 9) as f64 - 4.0,
            2 | 3 => f64::from_bits(random()),
            4 => f64::from_bits(random() & 0x800F_FFFF_FFFF_FFFF),
            _ => f64::from_bits(random() & 0x80FF_FFFF_FFFF_FFFF | (0x3FA0_0000_0000_0000 + ((random() % 4) << 52))),
        })
    }

    #[test]
    fn rounded_to_nearest_they_are_those_of_the_cpu() {
        let mut random = numbers(3);
        for _ in 0..40_000 {
            let wide = triple(&mut random);
            let narrow = [0; 3].map(|_| f32::from_bits(random() as u32));
            for operation in OPERATIONS {
                let (got, own) = (rounded_f64(operation, wide, Rounding::NearestEven), native_f64(operation, wide));
                let own = super::super::canonical_f64(own);
                assert_eq!(got.to_bits(), own.to_bits(), "{operation:?} {wide:?}: {got:e}, {own:e}");
                let (got, own) = (rounded_f32(operation, narrow, Rounding::NearestEven), native_f32(operation, narrow));
                let own = super::super::canonical(own);
                assert_eq!(got.to_bits(), own.to_bits(), "{operation:?} {narrow:?}: {got:e}, {own:e}");
            }
        }
    }

    #[test]
    fn the_directions_enclose_the_exact_result() {
        let mut random = numbers(11);
        for _ in 0..40_000 {
            let wide = triple(&mut random);
            for operation in OPERATIONS {
                let [down, up, zero, nearest] = [Rounding::Down, Rounding::Up, Rounding::Zero, Rounding::NearestEven]
                    .map(|rounding| rounded_f64(operation, wide, rounding));
                if nearest.is_nan() || wide.iter().any(|value| !value.is_finite()) {
                    continue;
                }
                assert!(down <= nearest && nearest <= up, "{operation:?} {wide:?}");
                assert!(down == up || down.next_up() == up, "{operation:?} {wide:?}: {down:e} to {up:e}");
                assert_eq!(zero, if down >= 0.0 { down } else { up }, "{operation:?} {wide:?}");
            }
        }
    }

    #[test]
    fn an_exact_result_is_the_same_in_every_direction() {
        for rounding in [Rounding::Zero, Rounding::Down, Rounding::Up] {
            for (operation, operands, expected) in [
                (Operation::Div, [6.0, 3.0, 0.0], 2.0),
                (Operation::Div, [-1.0, 8.0, 0.0], -0.125),
                (Operation::Sqrt, [2.25, 0.0, 0.0], 1.5),
                (Operation::Rcp, [-4.0, 0.0, 0.0], -0.25),
                (Operation::Fma, [3.0, 5.0, 1.0], 16.0),
            ] {
                assert_eq!(rounded_f64(operation, operands, rounding), expected);
            }
            let zero = if rounding == Rounding::Down { -0f64 } else { 0.0 };
            assert_eq!(rounded_f64(Operation::Sub, [1.5, 1.5, 0.0], rounding).to_bits(), zero.to_bits());
            assert_eq!(rounded_f64(Operation::Add, [-0.0, -0.0, 0.0], rounding).to_bits(), (-0f64).to_bits());
            assert!(rounded_f64(Operation::Add, [f64::INFINITY, f64::NEG_INFINITY, 0.0], rounding).is_nan());
        }
        assert_eq!(rounded_f64(Operation::Add, [f64::MAX, f64::MAX, 0.0], Rounding::Zero), f64::MAX);
        assert_eq!(rounded_f64(Operation::Mul, [5e-324, -0.5, 0.0], Rounding::Down), -5e-324);
        assert_eq!(rounded_f32(Operation::Add, [f32::MAX, f32::MAX, 0.0], Rounding::Down), f32::MAX);
        assert_eq!(rounded_f32(Operation::Mul, [1e-45, 0.25, 0.0], Rounding::Up), 1e-45);
    }
}
