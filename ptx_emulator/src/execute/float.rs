//! Arithmetic on f32 and f64. Every NaN result has the bits that the device gives it.

use crate::approximate;
use crate::float::{BF16, Conversion, F16, flush, max_f32, min_f32, packed3, saturate};
use crate::program::{D, FloatOp, W};
use crate::registers::{LANES, Registers};

type Lanes = [f32; LANES];

/// The bits of a result. The comparison is of integers: LLVM takes one NaN for as good as another, and drops a selection
/// between `sqrt` of a negative number and a constant NaN.
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

#[inline(always)]
fn compute(s: &[Lanes; 3], ftz: bool, f: impl Fn(f32, f32, f32) -> f32) -> Lanes {
    let mut out = [0.0; LANES];
    if ftz {
        for lane in 0..LANES {
            out[lane] = flush(f(flush(s[0][lane]), flush(s[1][lane]), flush(s[2][lane])));
        }
    } else {
        for lane in 0..LANES {
            out[lane] = f(s[0][lane], s[1][lane], s[2][lane]);
        }
    }
    out
}

#[inline(always)]
pub(super) fn singles(r: &mut Registers, op: FloatOp, modes: (bool, bool), d: W, s: [W; 3], mask: u32) {
    let (ftz, saturates) = modes;
    let s = s.map(|slot| r.word(slot).map(f32::from_bits));
    let mut out = match op {
        FloatOp::Add => compute(&s, ftz, |a, b, _| a + b),
        FloatOp::Sub => compute(&s, ftz, |a, b, _| a - b),
        FloatOp::Mul => compute(&s, ftz, |a, b, _| a * b),
        FloatOp::Fma => compute(&s, ftz, f32::mul_add),
        FloatOp::FmaDown => compute(&s, ftz, crate::float::directed::fma_down),
        FloatOp::Copysign => std::array::from_fn(|lane| s[1][lane].copysign(s[0][lane])),
        FloatOp::Div => compute(&s, ftz, |a, b, _| a / b),
        FloatOp::Min { nan: false } => compute(&s, ftz, |a, b, _| min_f32(a, b)),
        FloatOp::Max { nan: false } => compute(&s, ftz, |a, b, _| max_f32(a, b)),
        FloatOp::Min { nan: true } => compute(&s, ftz, |a, b, _| {
            if a.is_nan() {
                a
            } else if b.is_nan() {
                b
            } else {
                min_f32(a, b)
            }
        }),
        FloatOp::Max { nan: true } => compute(&s, ftz, |a, b, _| {
            if a.is_nan() {
                a
            } else if b.is_nan() {
                b
            } else {
                max_f32(a, b)
            }
        }),
        // A sign is changed in the bits: a NaN keeps its payload.
        FloatOp::Abs => s[0].map(|a| if ftz { flush(a).abs() } else { a.abs() }),
        FloatOp::Neg => s[0].map(|a| if ftz { -flush(a) } else { -a }),
        FloatOp::Sqrt => compute(&s, ftz, |a, _, _| a.sqrt()),
        FloatOp::Rcp => compute(&s, ftz, |a, _, _| a.recip()),
        FloatOp::RcpApprox => s[0].map(|a| approximate::rcp(a, ftz)),
        FloatOp::RsqrtApprox => s[0].map(|a| approximate::rsqrt(a, ftz)),
        FloatOp::Ex2Approx => s[0].map(|a| approximate::ex2(a, ftz)),
        FloatOp::Lg2Approx => s[0].map(|a| approximate::lg2(a, ftz)),
        FloatOp::SinApprox => s[0].map(|a| approximate::sin(a, ftz)),
        FloatOp::CosApprox => s[0].map(|a| approximate::cos(a, ftz)),
        FloatOp::TanhApprox => s[0].map(approximate::tanh),
    };
    if saturates {
        out = out.map(saturate);
    }
    let keeps_payload = matches!(op, FloatOp::Abs | FloatOp::Neg | FloatOp::Copysign);
    r.set_word(d, &out.map(|value| if keeps_payload { value.to_bits() } else { bits(value) }), mask);
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
