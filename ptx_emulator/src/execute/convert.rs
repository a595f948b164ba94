//! `cvt`.

use crate::float::{self, Conversion, Format, Rounding};
use crate::program::{Cvt, Reg, Round, Type};
use crate::registers::{LANES, Registers};
use crate::tensor_core::Half;

/// Whether the machine knows the conversion; asked when a module is loaded.
pub(crate) fn is_covered(cvt: &Cvt) -> bool {
    let rounds = matches!(cvt.round, Round::Nearest | Round::Zero | Round::Down | Round::Up);
    let near = matches!(cvt.round, Round::Nearest | Round::Zero);
    let to_integral = matches!(cvt.round, Round::NearestInt | Round::ZeroInt | Round::DownInt | Round::UpInt);
    let exact = cvt.round == Round::Exact;
    let plain = !cvt.relu && !cvt.saturate;
    match (cvt.to, cvt.from) {
        (Type::Int { .. }, Type::Int { .. }) => exact && !cvt.relu && !cvt.ftz,
        (Type::Int { bits: 8, .. }, _) | (_, Type::Int { bits: 8, .. }) => false,
        (Type::Int { .. }, Type::F16 | Type::Bf16 | Type::F32 | Type::F64) => to_integral && !cvt.relu,
        (Type::F32 | Type::F64 | Type::F16 | Type::Bf16, Type::Int { .. }) => rounds && plain && !cvt.ftz,
        (Type::F16 | Type::Bf16 | Type::F16x2 | Type::Bf16x2, Type::F32) => near && !cvt.saturate && !cvt.ftz,
        (Type::Tf32, Type::F32) => (near || cvt.round == Round::NearestAway) && !cvt.saturate && !cvt.ftz,
        (Type::E4m3x2 | Type::E5m2x2, Type::F32) => cvt.round == Round::Nearest && cvt.saturate && !cvt.ftz,
        (Type::F16x2, Type::E4m3x2 | Type::E5m2x2) => cvt.round == Round::Nearest && !cvt.saturate && !cvt.ftz,
        (Type::F32, Type::F16 | Type::Bf16) => exact && plain,
        (Type::F32, Type::F32) | (Type::F64, Type::F64) => (exact || to_integral) && !cvt.relu,
        (Type::F64, Type::F32) => exact && plain,
        (Type::F32, Type::F64) => rounds && !cvt.relu,
        _ => false,
    }
}

fn rounding(round: Round) -> Rounding {
    match round {
        Round::Exact | Round::Nearest | Round::NearestInt => Rounding::NearestEven,
        Round::NearestAway => Rounding::NearestAway,
        Round::Zero | Round::ZeroInt => Rounding::Zero,
        Round::Down | Round::DownInt => Rounding::Down,
        Round::Up | Round::UpInt => Rounding::Up,
    }
}

fn format(ty: Type) -> Format {
    match ty {
        Type::F16 | Type::F16x2 => float::F16,
        Type::Bf16 | Type::Bf16x2 => float::BF16,
        Type::Tf32 => float::TF32,
        Type::E4m3x2 => float::E4M3,
        Type::E5m2x2 => float::E5M2,
        _ => float::F32,
    }
}

#[inline(always)]
pub(super) fn convert(r: &mut Registers, cvt: &Cvt, mask: u32) {
    match (cvt.to, cvt.from, cvt.a, cvt.d) {
        // The conversions that address arithmetic is full of.
        (Type::Int { bits: 64, .. }, Type::Int { bits: 32, signed: false }, Reg::W(a), Reg::D(d)) => {
            r.set_double(d, &r.word(a).map(u64::from), mask);
        }
        (Type::Int { bits: 32, .. }, Type::Int { bits: 64, .. }, Reg::D(a), Reg::W(d)) if !cvt.saturate => {
            r.set_word(d, &r.double(a).map(|value| value as u32), mask);
        }
        // Those of scores and weights.
        (Type::F16x2 | Type::Bf16x2, Type::F32, Reg::W(a), Reg::W(d)) if is_plain(cvt, Round::Nearest) => {
            let Reg::W(b) = cvt.b else { return };
            let (a, b) = (r.word(a), r.word(b));
            let mut out = [0; LANES];
            for lane in 0..LANES {
                let (high, low) = (f32::from_bits(a[lane]), f32::from_bits(b[lane]));
                out[lane] = match cvt.to {
                    Type::F16x2 => float::f16_from_f32(high) << 16 | float::f16_from_f32(low),
                    _ => float::bf16_from_f32(high) << 16 | float::bf16_from_f32(low),
                };
            }
            r.set_word(d, &out, mask);
        }
        (Type::F16 | Type::Bf16, Type::F32, Reg::W(a), Reg::H(d)) if is_plain(cvt, Round::Nearest) => {
            let a = r.word(a);
            let mut out = [0; LANES];
            for lane in 0..LANES {
                let value = f32::from_bits(a[lane]);
                out[lane] = if cvt.to == Type::F16 { float::f16_from_f32(value) } else { float::bf16_from_f32(value) };
            }
            r.set_word(d, &out, mask);
        }
        (Type::F32, Type::F16 | Type::Bf16, Reg::H(a), Reg::W(d)) if is_plain(cvt, Round::Exact) => {
            let half = if cvt.from == Type::F16 { Half::F16 } else { Half::Bf16 };
            let a = r.word(a);
            let mut out = [0; LANES];
            for lane in 0..LANES {
                out[lane] = float::canonical(half.decode(a[lane] as u16)).to_bits();
            }
            r.set_word(d, &out, mask);
        }
        (Type::F32, Type::Int { bits, signed }, _, Reg::W(d)) if is_plain(cvt, Round::Nearest) => {
            let a = r.wide(cvt.a).map(|value| extend(value, bits, signed));
            r.set_word(d, &a.map(|a| if signed { (a as i64) as f32 } else { a as f32 }.to_bits()), mask);
        }
        (Type::Int { bits, signed }, Type::Int { bits: from_bits, signed: from_signed }, ..) if !cvt.saturate => {
            let values = r.wide(cvt.a).map(|value| extend(extend(value, from_bits, from_signed), bits, signed));
            r.set_wide(cvt.d, &values, mask);
        }
        _ => {
            let (a, b) = (r.wide(cvt.a), r.wide(cvt.b));
            let values =
                std::array::from_fn(|lane| if mask >> lane & 1 != 0 { value(cvt, a[lane], b[lane]) } else { 0 });
            r.set_wide(cvt.d, &values, mask);
        }
    }
}

fn is_plain(cvt: &Cvt, round: Round) -> bool {
    cvt.round == round && !cvt.saturate && !cvt.relu && !cvt.ftz
}

/// The result for one lane, in the low bits. An integer is extended to 64 bits by its own signedness.
fn value(cvt: &Cvt, a: u64, b: u64) -> u64 {
    let rounding = rounding(cvt.round);
    let conversion = Conversion { rounding, satfinite: cvt.saturate, relu: cvt.relu };
    match (cvt.to, cvt.from) {
        (Type::Int { bits, signed }, Type::Int { .. }) => {
            let value = integer(cvt.from, a);
            extend(if cvt.saturate { clamp(value, bits, signed) } else { value as u64 }, bits, signed)
        }
        (Type::Int { bits, signed }, _) => {
            let number = number(cvt, a);
            extend(float::to_integer(number, rounding, bits.into(), signed), bits, signed)
        }
        (Type::F32, Type::Int { .. }) => float::f32_from_integer(integer(cvt.from, a), rounding).to_bits().into(),
        (Type::F64, Type::Int { .. }) => double_from_integer(integer(cvt.from, a), rounding).to_bits(),
        (to, Type::Int { .. }) => float::narrow_from_integer(format(to), integer(cvt.from, a), conversion).into(),
        (Type::F16x2, Type::E4m3x2 | Type::E5m2x2) => {
            let pair = float::f16x2_from_pair(format(cvt.from), a as u16);
            if !cvt.relu {
                return pair.into();
            }
            let positive = |half: u32| if half & 0x8000 != 0 && half & 0x7FFF <= 0x7C00 { 0 } else { half };
            u64::from(positive(pair & 0xFFFF) | positive(pair >> 16) << 16)
        }
        (Type::F16x2 | Type::Bf16x2 | Type::E4m3x2 | Type::E5m2x2, _) => {
            let (high, low) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
            float::pair_from_f32(format(cvt.to), high, low, conversion).into()
        }
        (Type::F16 | Type::Bf16 | Type::Tf32, _) => {
            float::from_f32(format(cvt.to), f32::from_bits(a as u32), conversion).into()
        }
        (Type::F64, Type::F64) => {
            let number = f64::from_bits(a);
            let number = if cvt.round == Round::Exact { number } else { float::round_to_integral(number, rounding) };
            let number = if cvt.saturate { number.clamp(0.0, 1.0) } else { number };
            float::canonical_f64(number).to_bits()
        }
        (Type::F64, _) => float::canonical_f64(number(cvt, a)).to_bits(),
        (Type::F32, Type::F64) => finish(cvt, float::round_f32(f64::from_bits(a), rounding)),
        (Type::F32, Type::F32) => {
            let number = number(cvt, a);
            let number = if cvt.round == Round::Exact { number } else { float::round_to_integral(number, rounding) };
            finish(cvt, number as f32)
        }
        _ => finish(cvt, number(cvt, a) as f32),
    }
}

/// The bits of an f32 result after `.ftz` and `.sat`.
fn finish(cvt: &Cvt, value: f32) -> u64 {
    let value = if cvt.ftz { float::flush(value) } else { value };
    let value = if cvt.saturate { float::saturate(value) } else { value };
    float::canonical(value).to_bits().into()
}

/// A floating-point source.
fn number(cvt: &Cvt, a: u64) -> f64 {
    match cvt.from {
        Type::F64 => f64::from_bits(a),
        Type::F32 if cvt.ftz => float::flush(f32::from_bits(a as u32)).into(),
        Type::F32 => f32::from_bits(a as u32).into(),
        from => format(from).decode(a as u32),
    }
}

/// An integer source, from the low bits of its register.
fn integer(from: Type, a: u64) -> i128 {
    let (bits, signed) = match from {
        Type::Int { bits, signed } => (u32::from(bits), signed),
        _ => (64, false),
    };
    let shift = 64 - bits;
    if signed { ((a << shift) as i64 >> shift).into() } else { (a << shift >> shift).into() }
}

fn clamp(value: i128, bits: u8, signed: bool) -> u64 {
    let (lowest, highest) =
        if signed { (-1i128 << (bits - 1), (1i128 << (bits - 1)) - 1) } else { (0, (1i128 << bits) - 1) };
    value.clamp(lowest, highest) as u64
}

#[inline(always)]
fn extend(value: u64, bits: u8, signed: bool) -> u64 {
    let shift = 64 - u32::from(bits);
    if signed { ((value << shift) as i64 >> shift) as u64 } else { value << shift >> shift }
}

fn double_from_integer(value: i128, rounding: Rounding) -> f64 {
    let nearest = value as f64;
    let error = value - nearest as i128;
    let up = |number: f64| {
        if number >= 0.0 { f64::from_bits(number.to_bits() + 1) } else { f64::from_bits(number.to_bits() - 1) }
    };
    let down = |number: f64| -up(-number);
    match rounding {
        Rounding::Down if error < 0 => down(nearest),
        Rounding::Up if error > 0 => up(nearest),
        Rounding::Zero if error < 0 && value > 0 => down(nearest),
        Rounding::Zero if error > 0 && value < 0 => up(nearest),
        _ => nearest,
    }
}
