//! The approximate functions of PTX: computed in f64 and rounded once, with the special cases of the tables of the PTX ISA and
//! within its bounds.
//!
//! An H200 computes them from tables of its own. Over all fractions of an argument its results differ from those here by at most
//! a unit of the last place for `ex2`, `rcp`, `rsqrt` and `sqrt`, and for `lg2` of what is not between 1/2 and 2, where the
//! difference is up to 2^-22. Those of `tanh`, `sin` and `cos` differ as much as the ISA allows. Where a card errs to one
//! side the functions here do too, as said for each.
//!
//! `ftz` flushes subnormal inputs and results to zero of the same sign. Every NaN is the canonical one.

use crate::float::{Conversion, Format, canonical, flush};

/// Computes in f64, rounds to f32, and flushes both ends if asked to.
#[inline]
fn through_f64(x: f32, ftz: bool, function: impl Fn(f64) -> f64) -> f32 {
    let x = if ftz { flush(x) } else { x };
    let y = canonical(function(x.into()) as f32);
    if ftz { flush(y) } else { y }
}

/// `ex2.approx.f32`: 2^x. -inf gives +0, a zero gives 1.
///
/// A card cuts x to 2^-23 and gives what lies between two steps the result of their middle, and so does this.
pub fn ex2(x: f32, ftz: bool) -> f32 {
    through_f64(x, ftz, |x| {
        let steps = (x.abs() / EX2_STEP).trunc();
        let middle = if (steps * EX2_STEP).fract() == 0.0 { 0.0 } else { 0.5 };
        ((steps + middle) * EX2_STEP).copysign(x).exp2()
    })
}

/// What the argument of `ex2` is cut to.
const EX2_STEP: f64 = 1.0 / (1 << 23) as f64;

/// `lg2.approx.f32`: the logarithm to base 2. A zero gives -inf, anything below a NaN.
///
/// The logarithms of numbers below 1/2 that are no powers of two lie 1.75 times 2^-24 too high: a card negates a number of fixed point
/// by its bits.
pub fn lg2(x: f32, ftz: bool) -> f32 {
    through_f64(x, ftz, |x| {
        let exact = x.log2();
        if exact < -1.0 && exact.fract() != 0.0 { exact + LG2_RISE } else { exact }
    })
}

/// In the middle of what a card's logarithms of numbers below 1/2 have been seen to err by.
const LG2_RISE: f64 = 1.75 / (1 << 24) as f64;

/// `rcp.approx.f32`: 1 / x. A zero gives infinity, infinity gives zero, of the same sign.
pub fn rcp(x: f32, ftz: bool) -> f32 {
    through_f64(x, ftz, f64::recip)
}

/// `rsqrt.approx.f32`: 1 / sqrt(x). A zero gives infinity of the same sign, anything below a NaN.
///
/// The result before rounding is too small by 2^-28 of it, as a card's are on the whole.
pub fn rsqrt(x: f32, ftz: bool) -> f32 {
    through_f64(x, ftz, |x| (1.0 - RSQRT_LOSS) / x.sqrt())
}

/// In the middle of what a card's reciprocals of roots have been seen to lack.
const RSQRT_LOSS: f64 = 1.0 / (1 << 28) as f64;

/// `sqrt.approx.f32`: the square root. -0 gives -0, anything below a NaN.
pub fn sqrt(x: f32, ftz: bool) -> f32 {
    through_f64(x, ftz, f64::sqrt)
}

/// `sin.approx.f32`. An infinity gives a NaN, a zero itself.
pub fn sin(x: f32, ftz: bool) -> f32 {
    through_f64(x, ftz, f64::sin)
}

/// `cos.approx.f32`. An infinity gives a NaN.
pub fn cos(x: f32, ftz: bool) -> f32 {
    through_f64(x, ftz, f64::cos)
}

/// `tanh.approx.f32`. Subnormal numbers are kept: the instruction has no `.ftz`.
pub fn tanh(x: f32) -> f32 {
    through_f64(x, false, f64::tanh)
}

/// `div.approx.f32`: a / b as a * (1 / b). For |b| between 2^126 and 2^128 it gives zero, and a NaN if `a` is infinite,
/// as the ISA says.
pub fn div(a: f32, b: f32, ftz: bool) -> f32 {
    if b.is_finite() && b.abs() > 2f32.powi(126) {
        return canonical(a * 0f32.copysign(b));
    }
    div_full(a, b, ftz)
}

/// `div.full.f32`: a / b in the full range.
pub fn div_full(a: f32, b: f32, ftz: bool) -> f32 {
    let input = |x| if ftz { flush(x) } else { x };
    let quotient = canonical((f64::from(input(a)) / f64::from(input(b))) as f32);
    if ftz { flush(quotient) } else { quotient }
}

/// A function of one half-precision number, such as `ex2.approx.f16` and `tanh.approx.bf16`, from that of f64; of a packed
/// pair with [`crate::float::packed`].
pub fn narrow(format: Format, bits: u32, function: impl Fn(f64) -> f64) -> u32 {
    format.encode(function(format.decode(bits)), Conversion::NEAREST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::float::{BF16, F16, NAN};

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

    /// A function, the bits of its argument and those of the result of an H200: where results that are exact but for one rounding
    /// are two units of the last place from it, and some others.
    type Measured = (fn(f32, bool) -> f32, u32, u32);

    const MEASURED: [Measured; 16] = [
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
    fn results_are_within_a_unit_of_a_card() {
        for (function, x, expected) in MEASURED {
            let got = function(f32::from_bits(x), true).to_bits();
            assert!(got.abs_diff(expected) <= 1, "{x:#x}: {got:#x}, expected {expected:#x}");
        }
    }

    #[test]
    fn subnormals_are_flushed_where_asked_for() {
        assert_eq!(lg2(SUBNORMAL, true), -INFINITY);
        assert_eq!(lg2(f32::from_bits(1 << 9), false), -140.0);
        assert_eq!(rcp(-SUBNORMAL, true), -INFINITY);
        assert_eq!(rcp(2f32.powi(127), true).to_bits(), 0);
        assert_eq!(rcp(2f32.powi(127), false), 2f32.powi(-127));
        assert_eq!(rsqrt(SUBNORMAL, true), INFINITY);
        assert_eq!(sqrt(-SUBNORMAL, true).to_bits(), (-0f32).to_bits());
        assert_eq!(sqrt(f32::from_bits(1 << 9), false), 2f32.powi(-70));
        assert_eq!(sin(-SUBNORMAL, true).to_bits(), (-0f32).to_bits());
        assert_eq!(sin(SUBNORMAL, false), SUBNORMAL);
        assert_eq!(tanh(SUBNORMAL), SUBNORMAL);
        assert_eq!(ex2(-127.0, true), 0.0);
    }

    #[test]
    fn powers_of_two_are_exact() {
        for exponent in -149..=127 {
            let power = ex2(exponent as f32, false);
            assert_eq!(power, 2f64.powi(exponent) as f32);
            assert_eq!(lg2(power, false), exponent as f32);
            if exponent.abs() < 126 {
                assert_eq!(rcp(power, true), 2f32.powi(-exponent));
                assert_eq!(rsqrt(power * power.signum(), true), 2f64.powf(f64::from(exponent) / -2.0) as f32);
            }
        }
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

    #[test]
    fn narrow_functions_round_once() {
        assert_eq!(narrow(F16, 0xc000, f64::exp2), 0x3400);
        assert_eq!(narrow(F16, 0x4c00, f64::exp2), 0x7c00);
        assert_eq!(narrow(BF16, 0xff80, f64::tanh), 0xbf80);
        assert_eq!(narrow(F16, 0xfe00, f64::tanh), 0x7fff);
    }
}
