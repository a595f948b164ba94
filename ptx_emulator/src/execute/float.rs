//! Arithmetic on f32 and f64. Every NaN result has the bits that the device gives it.

use crate::approximate;
use crate::float::{BF16, Conversion, F16, flush, max_f32, min_f32, packed3, saturate};
use crate::program::{D, FloatOp, W};
use crate::registers::{LANES, Registers};

/// The bits of a result. The comparison is of integers: LLVM takes one NaN for as good as another, and drops a
/// selection between `sqrt` of a negative number and a constant NaN.
#[inline(always)]
fn bits(value: f32) -> u32 {
    let bits = value.to_bits();
    if bits & 0x7FFF_FFFF > 0x7F80_0000 { 0x7FFF_FFFF } else { bits }
}

#[inline(always)]
fn bits_f64(value: f64) -> u64 {
    let bits = value.to_bits();
    if bits & !(1 << 63) > 0x7FF0_0000_0000_0000 { 0x7FFF_FFFF_FFFF_FFFF } else { bits }
}

/// The sign of an f32.
const SIGN: u32 = 1 << 31;

/// What `.ftz` and `.sat` do to an instruction.
#[derive(Clone, Copy)]
struct Modes {
    ftz: bool,
    saturate: bool,
}

impl Modes {
    #[inline(always)]
    fn source(self, bits: u32) -> f32 {
        let value = f32::from_bits(bits);
        if self.ftz { flush(value) } else { value }
    }

    #[inline(always)]
    fn result(self, value: f32) -> u32 {
        let value = if self.ftz { flush(value) } else { value };
        bits(if self.saturate { saturate(value) } else { value })
    }
}

#[inline(always)]
fn one(r: &mut Registers, modes: Modes, d: W, s: [W; 3], mask: u32, f: impl Fn(f32) -> f32) {
    let a = r.word(s[0]);
    let mut out = [0; LANES];
    for lane in 0..LANES {
        out[lane] = modes.result(f(modes.source(a[lane])));
    }
    r.set_word(d, &out, mask);
}

#[inline(always)]
fn two(r: &mut Registers, modes: Modes, d: W, s: [W; 3], mask: u32, f: impl Fn(f32, f32) -> f32) {
    let (a, b) = (r.word(s[0]), r.word(s[1]));
    let mut out = [0; LANES];
    for lane in 0..LANES {
        out[lane] = modes.result(f(modes.source(a[lane]), modes.source(b[lane])));
    }
    r.set_word(d, &out, mask);
}

#[inline(always)]
fn three(r: &mut Registers, modes: Modes, d: W, s: [W; 3], mask: u32, f: impl Fn(f32, f32, f32) -> f32) {
    let (a, b, c) = (r.word(s[0]), r.word(s[1]), r.word(s[2]));
    let mut out = [0; LANES];
    for lane in 0..LANES {
        out[lane] = modes.result(f(modes.source(a[lane]), modes.source(b[lane]), modes.source(c[lane])));
    }
    r.set_word(d, &out, mask);
}

/// Changes signs in the bits: a NaN keeps its payload.
#[inline(always)]
fn sign(r: &mut Registers, modes: Modes, d: W, s: [W; 3], mask: u32, f: impl Fn(f32) -> f32) {
    let a = r.word(s[0]);
    let mut out = [0; LANES];
    for lane in 0..LANES {
        let value = f(modes.source(a[lane]));
        out[lane] = if modes.saturate { saturate(value) } else { value }.to_bits();
    }
    r.set_word(d, &out, mask);
}

/// Of a number and a NaN the NaN.
#[inline(always)]
fn or_nan(a: f32, b: f32, value: f32) -> f32 {
    if a.is_nan() || b.is_nan() { f32::NAN } else { value }
}

#[inline(always)]
pub(super) fn singles(r: &mut Registers, op: FloatOp, (ftz, saturate): (bool, bool), d: W, s: [W; 3], mask: u32) {
    let m = Modes { ftz, saturate };
    match op {
        FloatOp::Add => two(r, m, d, s, mask, |a, b| a + b),
        FloatOp::Sub => two(r, m, d, s, mask, |a, b| a - b),
        FloatOp::Mul => two(r, m, d, s, mask, |a, b| a * b),
        FloatOp::Fma => three(r, m, d, s, mask, f32::mul_add),
        FloatOp::FmaDown => three(r, m, d, s, mask, crate::float::directed::fma_down),
        FloatOp::Copysign => {
            let (from, to) = (*r.word(s[0]), *r.word(s[1]));
            let of = |lane: usize| to[lane] & !SIGN | from[lane] & SIGN;
            r.set_word(d, &std::array::from_fn(of), mask);
        }
        FloatOp::Div => two(r, m, d, s, mask, |a, b| a / b),
        FloatOp::DivApprox => two(r, m, d, s, mask, |a, b| approximate::div(a, b, ftz)),
        FloatOp::DivFull => two(r, m, d, s, mask, |a, b| approximate::div_full(a, b, ftz)),
        FloatOp::Min { nan: false } => two(r, m, d, s, mask, min_f32),
        FloatOp::Max { nan: false } => two(r, m, d, s, mask, max_f32),
        FloatOp::Min { nan: true } => two(r, m, d, s, mask, |a, b| or_nan(a, b, min_f32(a, b))),
        FloatOp::Max { nan: true } => two(r, m, d, s, mask, |a, b| or_nan(a, b, max_f32(a, b))),
        FloatOp::Abs => sign(r, m, d, s, mask, f32::abs),
        FloatOp::Neg => sign(r, m, d, s, mask, |a| -a),
        FloatOp::Sqrt => one(r, m, d, s, mask, f32::sqrt),
        FloatOp::Rcp => one(r, m, d, s, mask, f32::recip),
        FloatOp::RcpApprox => one(r, m, d, s, mask, |a| approximate::rcp(a, ftz)),
        FloatOp::RsqrtApprox => one(r, m, d, s, mask, |a| approximate::rsqrt(a, ftz)),
        FloatOp::SqrtApprox => one(r, m, d, s, mask, |a| approximate::sqrt(a, ftz)),
        FloatOp::Ex2Approx => one(r, m, d, s, mask, |a| approximate::ex2(a, ftz)),
        FloatOp::Lg2Approx => one(r, m, d, s, mask, |a| approximate::lg2(a, ftz)),
        FloatOp::SinApprox => one(r, m, d, s, mask, |a| approximate::sin(a, ftz)),
        FloatOp::CosApprox => one(r, m, d, s, mask, |a| approximate::cos(a, ftz)),
        FloatOp::TanhApprox => one(r, m, d, s, mask, approximate::tanh),
    }
}

#[inline(always)]
pub(super) fn doubles(r: &mut Registers, op: FloatOp, d: D, s: [D; 3], mask: u32) {
    let s = s.map(|slot| r.double(slot).map(f64::from_bits));
    let number = |a: f64, b: f64, smaller: bool| match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if a == b => {
            if a.is_sign_negative() == smaller {
                a
            } else {
                b
            }
        }
        _ if (a < b) == smaller => a,
        _ => b,
    };
    let lane = |lane: usize| {
        let (a, b, c) = (s[0][lane], s[1][lane], s[2][lane]);
        match op {
            FloatOp::Add => bits_f64(a + b),
            FloatOp::Sub => bits_f64(a - b),
            FloatOp::Mul => bits_f64(a * b),
            FloatOp::Fma => bits_f64(a.mul_add(b, c)),
            FloatOp::Div => bits_f64(a / b),
            FloatOp::Min { .. } => bits_f64(number(a, b, true)),
            FloatOp::Max { .. } => bits_f64(number(a, b, false)),
            FloatOp::Copysign => b.copysign(a).to_bits(),
            FloatOp::Abs => a.abs().to_bits(),
            FloatOp::Neg => (-a).to_bits(),
            FloatOp::Sqrt => bits_f64(a.sqrt()),
            // The front gives f64 no approximation.
            _ => bits_f64(a.recip()),
        }
    };
    r.set_double(d, &std::array::from_fn(lane), mask);
}

/// f16 and bf16, single or in pairs; `modes` are: bf16, a pair, `.ftz`.
#[inline(always)]
pub(super) fn narrow(r: &mut Registers, op: FloatOp, modes: (bool, bool, bool), d: W, s: [W; 3], mask: u32) {
    let (bf16, pair, ftz) = modes;
    let format = if bf16 { BF16 } else { F16 };
    let flushed = |bits: u32| if ftz { format.flush(bits) } else { bits };
    let one = |a: u32, b: u32, c: u32| {
        let (a, b, c) = (flushed(a), flushed(b), flushed(c));
        flushed(match op {
            FloatOp::Add => format.add(a, b, Conversion::NEAREST),
            FloatOp::Sub => format.sub(a, b, Conversion::NEAREST),
            FloatOp::Mul => format.mul(a, b, Conversion::NEAREST),
            FloatOp::Fma => format.fma(a, b, c, Conversion::NEAREST),
            FloatOp::Min { nan: false } => format.min(a, b),
            FloatOp::Max { nan: false } => format.max(a, b),
            FloatOp::Min { nan: true } => format.min_nan(a, b),
            FloatOp::Max { nan: true } => format.max_nan(a, b),
            FloatOp::Abs => a & 0x7FFF,
            // The front gives 16-bit floats no other operation.
            _ => a ^ 0x8000,
        })
    };
    let (a, b, c) = (*r.word(s[0]), *r.word(s[1]), *r.word(s[2]));
    let lane = |lane: usize| {
        let (a, b, c) = (a[lane], b[lane], c[lane]);
        if pair { packed3(a, b, c, one) } else { one(a & 0xFFFF, b & 0xFFFF, c & 0xFFFF) }
    };
    r.set_word(d, &std::array::from_fn(lane), mask);
}
