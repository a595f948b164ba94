//! The approximate functions of PTX: computed in f64 and rounded once, so nearer to the exact result than the bounds that
//! the PTX ISA gives for the device, with the special cases of its tables.
//!
//! `ftz` flushes subnormal inputs and results to zero of the same sign. Every NaN is the canonical one.

use crate::float::{canonical, flush};

/// Computes in f64, rounds to f32, and flushes both ends if asked to.
#[inline]
fn through_f64(x: f32, ftz: bool, function: impl Fn(f64) -> f64) -> f32 {
    let x = if ftz { flush(x) } else { x };
    let y = canonical(function(x.into()) as f32);
    if ftz { flush(y) } else { y }
}

/// `ex2.approx.f32`: 2^x. -inf gives +0, a zero gives 1.
pub fn ex2(x: f32, ftz: bool) -> f32 {
    through_f64(x, ftz, f64::exp2)
}

/// `lg2.approx.f32`: the logarithm to base 2. A zero gives -inf, anything below a NaN.
pub fn lg2(x: f32, ftz: bool) -> f32 {
    through_f64(x, ftz, f64::log2)
}

/// `rcp.approx.f32`: 1 / x. A zero gives infinity, infinity gives zero, of the same sign.
pub fn rcp(x: f32, ftz: bool) -> f32 {
    through_f64(x, ftz, f64::recip)
}

/// `rsqrt.approx.f32`: 1 / sqrt(x). A zero gives infinity of the same sign, anything below a NaN.
pub fn rsqrt(x: f32, ftz: bool) -> f32 {
    through_f64(x, ftz, |x| x.sqrt().recip())
}

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
