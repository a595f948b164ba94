//! The approximate functions of PTX, bit by bit those of a card.
//!
//! One unit of a multiprocessor computes them all, from tables of quadratic segments, and flushes subnormal numbers.
//! Without `.ftz` PTX is made of that unit and of multiplications which scale arguments and results, and so it is here.
//! Every NaN is the canonical one.
//!
//! The results of an H200 (driver 580.159.04) equal those of these functions wherever the two were compared
//! (`docs/measurements/emulator.md`). The error of a logarithm is absolute: 2^-22 near 1, and the logarithm of 1/2 is
//! not quite -1.

mod segments;
mod tables;

use crate::float::{NAN, canonical, flush};
use segments::OFFSET;

/// Bits of the fraction of an f32.
const FRACTION: u32 = f32::MANTISSA_DIGITS - 1;

/// The fraction of an f32 in its bits.
const FRACTION_MASK: u32 = (1 << FRACTION) - 1;

/// The exponent and the fraction of a normal number.
#[inline(always)]
fn parts(x: f32) -> (i32, u32) {
    let bits = x.to_bits() & !(1 << 31);
    ((bits >> FRACTION) as i32 - 127, bits & FRACTION_MASK)
}

/// The float of an exponent and 24 bits from 2^23 to 2^24, infinity above the range and zero below.
#[inline(always)]
fn assemble(exponent: i32, mantissa: i64) -> f32 {
    let biased = exponent + 127 + (mantissa >> (FRACTION + 1)) as i32;
    let bits = (((exponent + 126) << FRACTION) as u32).wrapping_add(mantissa as u32);
    match biased {
        ..=0 => 0.0,
        255.. => f32::INFINITY,
        _ => f32::from_bits(bits),
    }
}

/// What non-`.ftz` forms multiply subnormal arguments by.
const RAISE: f32 = (1 << 24) as f32;

/// `ex2.approx.f32`: 2^x. -inf gives +0, a zero gives 1.
#[inline(always)]
pub fn ex2(x: f32, ftz: bool) -> f32 {
    if ftz || x >= -126.0 || x.is_nan() {
        return ex2_unit(x);
    }
    let root = ex2_unit(x * 0.5);
    root * root
}

/// The argument is cut to 2^-23. One below zero that is no integer is negated by its bits, and so 2^-23 smaller.
#[inline(always)]
fn ex2_unit(x: f32) -> f32 {
    let steps = (x.clamp(-EX2_LIMIT, EX2_LIMIT) * (1 << FRACTION) as f32) as i32;
    let steps = steps - i32::from(x < 0.0 && steps as u32 & FRACTION_MASK != 0);
    let power = assemble(steps >> FRACTION, tables::EX2.at_fraction(0, steps as u32 & FRACTION_MASK) >> 15);
    if x.is_nan() { NAN } else { power }
}

/// Powers of what is as large as this are infinite, or zero, and its steps of 2^-23 fit an `i32`.
const EX2_LIMIT: f32 = 250.0;

/// `lg2.approx.f32`: the logarithm to base 2. A zero gives -inf, anything below a NaN.
#[inline(always)]
pub fn lg2(x: f32, ftz: bool) -> f32 {
    if ftz || x.abs() >= f32::MIN_POSITIVE || x.is_nan() { lg2_unit(x) } else { lg2_unit(x * RAISE) - 24.0 }
}

/// A result is cut to 2^-36, and one below zero negated by its bits.
#[inline(always)]
fn lg2_unit(x: f32) -> f32 {
    let (exponent, fraction) = parts(x);
    let sum = (i64::from(exponent) << -tables::LG2.unit) + tables::LG2.at_fraction(0, fraction);
    let magnitude = tables::LG2.float((sum ^ (sum >> 63)) & !0b11);
    match flush(x) {
        x if x.is_nan() || x < 0.0 => NAN,
        0.0 => -f32::INFINITY,
        f32::INFINITY => f32::INFINITY,
        1.0 => 0.0,
        _ if sum < 0 => -magnitude,
        _ => magnitude,
    }
}

/// `rcp.approx.f32`: 1 / x. A zero gives infinity, infinity gives zero, of the same sign.
#[inline(always)]
pub fn rcp(x: f32, ftz: bool) -> f32 {
    let scale = match x.abs() {
        _ if ftz => return rcp_unit(x),
        x if x < f32::MIN_POSITIVE => RAISE,
        x if x > RCP_LARGE => 0.25,
        _ => 1.0,
    };
    rcp_unit(x * scale) * scale
}

/// The reciprocals of larger numbers, 2^126, are subnormal.
const RCP_LARGE: f32 = f32::from_bits((126 + 127) << FRACTION);

#[inline(always)]
fn rcp_unit(x: f32) -> f32 {
    let (exponent, fraction) = parts(x);
    let size = assemble(-1 - exponent, tables::RCP.at_fraction(0, fraction << 1) >> 16);
    let size = match exponent {
        ..=-127 => f32::INFINITY,
        128.. => 0.0,
        _ => size,
    };
    if x.is_nan() { NAN } else { size.copysign(x) }
}

/// `rsqrt.approx.f32`: 1 / sqrt(x). A zero gives infinity of the same sign, anything below a NaN.
#[inline(always)]
pub fn rsqrt(x: f32, ftz: bool) -> f32 {
    if ftz || x.abs() >= f32::MIN_POSITIVE || x.is_nan() { rsqrt_unit(x) } else { rsqrt_unit(x * RAISE) * 4096.0 }
}

#[inline(always)]
fn rsqrt_unit(x: f32) -> f32 {
    let (exponent, fraction) = parts(x);
    let (half, odd) = (exponent >> 1, exponent as u32 & 1);
    let root = match (fraction, odd) {
        (0, 0) => 1 << (FRACTION + 1),
        _ => tables::RSQRT.at_fraction(odd << (FRACTION - OFFSET), fraction) >> 16,
    };
    match flush(x) {
        x if x.is_nan() || x < 0.0 => NAN,
        x if x == 0.0 => f32::INFINITY.copysign(x),
        f32::INFINITY => 0.0,
        _ => assemble(-1 - half, root),
    }
}

/// `sqrt.approx.f32`: the square root. -0 gives -0, anything below a NaN.
#[inline(always)]
pub fn sqrt(x: f32, ftz: bool) -> f32 {
    if ftz || x.abs() >= f32::MIN_POSITIVE || x.is_nan() { sqrt_unit(x) } else { sqrt_unit(x * RAISE) / 4096.0 }
}

#[inline(always)]
fn sqrt_unit(x: f32) -> f32 {
    let (exponent, fraction) = parts(x);
    let (half, odd) = (exponent >> 1, exponent as u32 & 1);
    let root = tables::SQRT.at_fraction(odd << (FRACTION - OFFSET), fraction) >> 17;
    match flush(x) {
        x if x.is_nan() || x < 0.0 => NAN,
        x if x == 0.0 || x == f32::INFINITY => x,
        _ => assemble(half, root),
    }
}

/// `sin.approx.f32`. An infinity gives a NaN, a zero itself.
pub fn sin(x: f32, ftz: bool) -> f32 {
    turn(x, ftz, false)
}

/// `cos.approx.f32`. An infinity gives a NaN.
pub fn cos(x: f32, ftz: bool) -> f32 {
    turn(x, ftz, true)
}

/// The sine of an angle, or its cosine, which is the sine a quarter turn on. The angle counts in whole turns, cut to
/// 2^-25 of one.
fn turn(x: f32, ftz: bool, quarter: bool) -> f32 {
    let turns = flush(toward_zero(f64::from(if ftz { flush(x) } else { x }) * f64::from(RECIPROCAL_TURN)));
    if !turns.is_finite() {
        return NAN;
    }
    let steps = (f64::from(turns.abs()).fract() * f64::from(4 << QUARTER)) as u32 + (u32::from(quarter) << QUARTER);
    let (falls, below) = (steps >> QUARTER & 1 == 1, steps >> (QUARTER + 1) & 1 == 1);
    let within = (if falls { !steps } else { steps }) & ((1 << QUARTER) - 1);
    let size = tables::SIN.float(tables::SIN.at_fraction(0, within));
    let negative = below != (!quarter && turns.is_sign_negative());
    if negative { -size } else { size }
}

/// The logarithm of the steps of a quarter of a turn.
const QUARTER: u32 = 23;

/// What an angle is multiplied by.
const RECIPROCAL_TURN: f32 = f32::from_bits(0x3e22_f983);

/// The closest f32 that is not larger in magnitude.
fn toward_zero(x: f64) -> f32 {
    let nearest = x as f32;
    if f64::from(nearest).abs() > x.abs() { f32::from_bits(nearest.to_bits() - 1) } else { nearest }
}

/// `tanh.approx.f32`. What is below 2^-8 is its own tangent, subnormal numbers too: the instruction has no `.ftz`.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let (exponent, fraction) = parts(x);
    let (first, steps) = tables::TANH_STEPS[(exponent + 8).clamp(0, 10) as usize];
    let offset = fraction >> (FRACTION - OFFSET - steps) & ((1 << OFFSET) - 1);
    let tangent = tables::TANH.float(tables::TANH.at(first + (fraction >> (FRACTION - steps)), offset));
    match exponent {
        ..-8 => x,
        3.. if x.is_nan() => NAN,
        3.. => 1f32.copysign(x),
        _ => tangent.copysign(x),
    }
}

/// `div.approx.f32`: a / b as a * (1 / b). For |b| between 2^126 and 2^128 it gives zero, and a NaN if `a` is infinite,
/// as the ISA says.
#[inline(always)]
pub fn div(a: f32, b: f32, ftz: bool) -> f32 {
    quotient(a, b, ftz, f32::INFINITY)
}

/// `div.full.f32`: a / b in the full range.
#[inline(always)]
pub fn div_full(a: f32, b: f32, ftz: bool) -> f32 {
    quotient(a, b, ftz, RCP_LARGE)
}

/// A product with a reciprocal, of both numbers scaled where the divisor is subnormal or above `large`.
#[inline(always)]
fn quotient(a: f32, b: f32, ftz: bool, large: f32) -> f32 {
    let input = |x| if ftz { flush(x) } else { x };
    let (a, b) = (input(a), input(b));
    let scale = match b.abs() {
        b if b > large => 0.25,
        b if b < f32::MIN_POSITIVE && !ftz => RAISE,
        _ => 1.0,
    };
    let product = canonical(input(a * scale) * rcp_unit(input(b * scale)));
    input(product)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFINITY: f32 = f32::INFINITY;
    const SUBNORMAL: f32 = 1e-40;

    /// Asserts results by their bits, for inputs with `ftz` and without.
    fn assert_table(function: impl Fn(f32, bool) -> f32, table: &[(f32, f32)]) {
        for &(x, expected) in table {
            for ftz in [false, true] {
                assert_eq!(function(x, ftz).to_bits(), expected.to_bits(), "{x:e}, ftz {ftz}");
            }
        }
    }

    #[test]
    fn special_inputs_give_what_the_isa_says() {
        let nan = f32::from_bits(0xffc0_0001);
        assert_table(
            ex2,
            &[(-INFINITY, 0.0), (-0.0, 1.0), (0.0, 1.0), (INFINITY, INFINITY), (nan, NAN), (128.0, INFINITY)],
        );
        assert_table(ex2, &[(SUBNORMAL, 1.0), (-SUBNORMAL, 1.0), (-1000.0, 0.0)]);
        assert_table(
            lg2,
            &[(-INFINITY, NAN), (-1.0, NAN), (-0.0, -INFINITY), (0.0, -INFINITY), (INFINITY, INFINITY), (nan, NAN)],
        );
        assert_table(rcp, &[(-INFINITY, -0.0), (-0.0, -INFINITY), (0.0, INFINITY), (INFINITY, 0.0), (nan, NAN)]);
        assert_table(
            rsqrt,
            &[(-INFINITY, NAN), (-1.0, NAN), (-0.0, -INFINITY), (0.0, INFINITY), (INFINITY, 0.0), (nan, NAN)],
        );
        assert_table(
            sqrt,
            &[(-INFINITY, NAN), (-1.0, NAN), (-0.0, -0.0), (0.0, 0.0), (INFINITY, INFINITY), (nan, NAN)],
        );
        assert_table(sin, &[(-INFINITY, NAN), (-0.0, -0.0), (0.0, 0.0), (INFINITY, NAN), (nan, NAN)]);
        assert_table(cos, &[(-INFINITY, NAN), (-0.0, 1.0), (0.0, 1.0), (INFINITY, NAN), (nan, NAN)]);
        assert_table(|x, _| tanh(x), &[(-INFINITY, -1.0), (-0.0, -0.0), (0.0, 0.0), (INFINITY, 1.0), (nan, NAN)]);
    }

    /// Of a number, with `.ftz` and without.
    type Function = fn(f32, bool) -> f32;

    /// Arguments and results of an H200.
    const MEASURED: [(Function, u32, u32); 16] = [
        (ex2, 0xbf05_8018, 0x3f32_57e9),
        (ex2, 0xbf06_8402, 0x3f31_da93),
        (ex2, 0xbf80_a080, 0x3eff_21df),
        (ex2, 0xbfc3_4201, 0x3eb1_da93),
        (ex2, 0x3f80_0002, 0x4000_0002),
        (ex2, 0x3fc2_b014, 0x4037_ac61),
        (lg2, 0x3e80_0001, 0xbfff_fffd),
        (lg2, 0x3e99_5031, 0xbfde_ad38),
        (lg2, 0x3ead_793f, 0xbfc7_dcda),
        (lg2, 0x3eff_fffb, 0xbf80_0002),
        (lg2, 0x4000_0001, 0x3f80_0002),
        (lg2, 0x4000_2004, 0x3f80_2e2a),
        (rsqrt, 0x3f82_0036, 0x3f7e_05b6),
        (rsqrt, 0x3f82_0061, 0x3f7e_058c),
        (rsqrt, 0x3f82_00b8, 0x3f7e_0537),
        (rsqrt, 0x3f80_3e00, 0x3f7f_c217),
    ];

    #[test]
    fn results_are_those_of_a_card() {
        for (function, x, expected) in MEASURED {
            let got = function(f32::from_bits(x), true).to_bits();
            assert_eq!(got, expected, "{x:#x}: {got:#x}, expected {expected:#x}");
        }
    }

    /// Of the results for one argument in `STEP` the sum, each times an odd number that the argument gives, for `.ftz`
    /// and without.
    const SUMS: [(&str, Function, [u64; 2]); 8] = [
        ("ex2", ex2, [0xe074_1ef6_cba3_24f2, 0x5c14_bb57_8bf3_0454]),
        ("rcp", rcp, [0x29a2_e776_98c7_c1df, 0x6e5d_7321_570f_0a50]),
        ("rsqrt", rsqrt, [0x8f24_2d88_6d50_83d5, 0x95df_6320_bc2b_259b]),
        ("sqrt", sqrt, [0x08ff_2c5f_30aa_16f0, 0x073c_f0d9_da10_c81c]),
        ("lg2", lg2, [0x5ab4_7566_f42b_528a, 0x9d69_d8ad_375c_5925]),
        ("sin", sin, [0x97dc_ea2c_f1d3_854b; 2]),
        ("cos", cos, [0x5729_2a79_8dd5_1699; 2]),
        ("tanh", |x, _| tanh(x), [0x7f38_c1ef_c63f_2ab3; 2]),
    ];

    /// A prime, so that all parts of an argument take all values.
    const STEP: usize = 1021;

    #[test]
    fn sums_over_all_arguments_are_those_of_a_card() {
        for (name, function, expected) in SUMS {
            let sums = [true, false].map(|ftz| {
                (0..=u32::MAX).step_by(STEP).fold(0u64, |sum, x| {
                    let y = canonical(function(f32::from_bits(x), ftz)).to_bits();
                    sum.wrapping_add(u64::from(y).wrapping_mul(2 * u64::from(x) + 1))
                })
            });
            assert_eq!(sums, expected, "{name}");
        }
    }

    #[test]
    fn subnormals_are_flushed_where_asked_for() {
        assert_eq!(lg2(SUBNORMAL, true), -INFINITY);
        assert!((lg2(f32::from_bits(1 << 9), false) + 140.0).abs() < 2f32.powi(-16));
        assert_eq!(rcp(-SUBNORMAL, true), -INFINITY);
        assert_eq!(rcp(2f32.powi(127), true).to_bits(), 0);
        assert_eq!(rcp(2f32.powi(127), false), 2f32.powi(-127));
        assert_eq!(rsqrt(SUBNORMAL, true), INFINITY);
        assert_eq!(sqrt(-SUBNORMAL, true).to_bits(), (-0f32).to_bits());
        assert_eq!(sqrt(f32::from_bits(1 << 9), false), 2f32.powi(-70));
        assert_eq!(sin(-SUBNORMAL, false).to_bits(), (-0f32).to_bits());
        assert_eq!(tanh(SUBNORMAL), SUBNORMAL);
        assert_eq!(ex2(-128.0, true), 0.0);
        assert_eq!(ex2(-128.0, false), 2f32.powi(-128));
    }

    #[test]
    fn powers_of_two_are_exact_but_for_logarithms_below_zero() {
        for exponent in -126..=127 {
            let power = ex2(exponent as f32, false);
            assert_eq!(power, 2f64.powi(exponent) as f32);
            if exponent >= 0 {
                assert_eq!(lg2(power, false), exponent as f32);
            }
            if exponent.abs() < 126 {
                assert_eq!(rcp(power, true), 2f32.powi(-exponent));
            }
            if exponent % 2 == 0 {
                assert_eq!(rsqrt(power, false), 2f32.powi(-exponent / 2));
                assert_eq!(sqrt(power, false), 2f32.powi(exponent / 2));
            }
        }
        assert_eq!(lg2(0.5, true).to_bits(), 0xbf7f_fffe);
    }

    #[test]
    fn quotients_are_exact_inside_and_zero_for_huge_divisors() {
        assert_eq!(div(6.0, -3.0, false), -2.0);
        assert_eq!(div(1.0, 3.0, true), 1.0 / 3.0);
        assert_eq!(div(2f32.powi(127), 2f32.powi(126), false), 2.0);
        assert_eq!(div(2f32.powi(127), 2f32.powi(127), false).to_bits(), 0);
        assert_eq!(div(-1.0, 2f32.powi(127), false).to_bits(), (-0f32).to_bits());
        assert_eq!(div(INFINITY, 2f32.powi(127), false).to_bits(), NAN.to_bits());
        assert_eq!(div(1.0, INFINITY, false), 0.0);
        assert_eq!(div(1.0, -0.0, false), -INFINITY);
        assert_eq!(div(0.0, 0.0, false).to_bits(), NAN.to_bits());
        assert_eq!(div(1.0, SUBNORMAL, true), INFINITY);
        assert_eq!(div_full(2f32.powi(127), 2f32.powi(127), true), 1.0);
    }
}
