//! `add` to `shf`: arithmetic on integers, floats and bits.

use super::{Args, Form, Result, refuse};
use crate::program::{FloatOp, IntOp, Op, Type, W};

/// `add`, `sub`, `mul`, `mad`, `fma`, `div`, `rem`, `min`, `max`, `abs`, `neg`, `sad`.
pub(super) fn arithmetic(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    match form.ty()? {
        Type::Int { bits, signed } => integer(form, args, bits, signed),
        Type::F32 => float(form, args, false),
        Type::F64 => float(form, args, true),
        Type::F16 => narrow(form, args, false, false),
        Type::Bf16 => narrow(form, args, true, false),
        Type::F16x2 => narrow(form, args, false, true),
        Type::Bf16x2 => narrow(form, args, true, true),
        _ => refuse("arithmetic of this type is not covered"),
    }
}

fn integer(form: &mut Form<'_>, args: &mut Args<'_>, bits: u8, signed: bool) -> Result<Op> {
    let wide = form.flag("wide");
    if wide && bits < 64 {
        return widening(form, args, bits, signed);
    }
    let (low, high) = (form.flag("lo"), form.flag("hi"));
    let saturate = form.flag("sat");
    if saturate && (bits != 32 || !signed || !matches!(form.name, "add" | "sub")) {
        return refuse("`.sat` is for `add.s32` and `sub.s32`");
    }
    let (op, sources) = match form.name {
        "add" if saturate => (IntOp::AddSat, 2),
        "add" => (IntOp::Add, 2),
        "sub" if saturate => (IntOp::SubSat, 2),
        "sub" => (IntOp::Sub, 2),
        "mul" if high => (IntOp::MulHi { signed }, 2),
        "mul" if low => (IntOp::Mul, 2),
        "mad" if high => (IntOp::MadHi { signed }, 3),
        "mad" if low => (IntOp::Mad, 3),
        "div" => (IntOp::Div { signed }, 2),
        "rem" => (IntOp::Rem { signed }, 2),
        "min" => (IntOp::Min { signed }, 2),
        "max" => (IntOp::Max { signed }, 2),
        "sad" => (IntOp::Sad { signed }, 3),
        "abs" if signed => (IntOp::Abs, 1),
        "neg" if signed => (IntOp::Neg, 1),
        _ => return refuse("not for integers of this type"),
    };
    if (low || high) && !matches!(form.name, "mul" | "mad") {
        return refuse("`.lo` and `.hi` are for products");
    }
    sized(args, op, bits, sources)
}

/// `d = a op b op c`, all of one width.
fn sized(args: &mut Args<'_>, op: IntOp, bits: u8, sources: usize) -> Result<Op> {
    args.exactly(sources + 1)?;
    match bits {
        16 => {
            let mut s = [W(0); 4];
            for (at, slot) in s.iter_mut().enumerate().take(sources) {
                *slot = args.half(at + 1)?;
            }
            Ok(Op::Int16 { op, d: args.to_half(0)?, s: filled(s, sources) })
        }
        32 => {
            let mut s = [W(0); 4];
            for (at, slot) in s.iter_mut().enumerate().take(sources) {
                *slot = args.word(at + 1)?;
            }
            Ok(Op::Int32 { op, d: args.to_word(0)?, s: filled(s, sources) })
        }
        64 => {
            let first = args.double(1)?;
            let mut s = [first; 3];
            for (at, slot) in s.iter_mut().enumerate().take(sources) {
                *slot = args.double(at + 1)?;
            }
            let n = [args.slots.constant(0); 2];
            Ok(Op::Int64 { op, d: args.to_double(0)?, s, n })
        }
        _ => refuse("not for integers of this width"),
    }
}

/// Sources that the operation does not have repeat the first, so that every slot is one of the bank.
fn filled(mut s: [W; 4], sources: usize) -> [W; 4] {
    let first = s[0];
    s[sources..].fill(first);
    s
}

fn widening(form: &Form<'_>, args: &mut Args<'_>, bits: u8, signed: bool) -> Result<Op> {
    let add = match form.name {
        "mul" => false,
        "mad" => true,
        _ => return refuse("`.wide` is for `mul` and `mad`"),
    };
    args.exactly(if add { 4 } else { 3 })?;
    match bits {
        16 => {
            let (a, b) = (args.half(1)?, args.half(2)?);
            let c = if add { args.word(3)? } else { args.slots.constant(0) };
            Ok(Op::MulWide16 { signed, d: args.to_word(0)?, a, b, c })
        }
        32 => {
            let (d, a, b) = (args.to_double(0)?, args.word(1)?, args.word(2)?);
            Ok(if add { Op::MadWide { signed, d, a, b, c: args.double(3)? } } else { Op::MulWide { signed, d, a, b } })
        }
        _ => refuse("`.wide` is for 16 and 32 bits"),
    }
}

fn float(form: &mut Form<'_>, args: &mut Args<'_>, double: bool) -> Result<Op> {
    let (rounded, down) = (form.flag("rn"), form.flag("rm"));
    let (approximate, full) = (form.flag("approx"), form.flag("full"));
    let (ftz, saturate, nan) = (form.flag("ftz"), form.flag("sat"), form.flag("NaN"));
    let (op, sources) = match form.name {
        "add" => (FloatOp::Add, 2),
        "sub" => (FloatOp::Sub, 2),
        "mul" => (FloatOp::Mul, 2),
        "fma" | "mad" if rounded => (FloatOp::Fma, 3),
        "div" if rounded => (FloatOp::Div, 2),
        "div" if approximate && !double => (FloatOp::DivApprox, 2),
        "div" if full && !double => (FloatOp::DivFull, 2),
        "min" => (FloatOp::Min { nan }, 2),
        "max" => (FloatOp::Max { nan }, 2),
        "fma" if down && !double => (FloatOp::FmaDown, 3),
        "copysign" => (FloatOp::Copysign, 2),
        "abs" => (FloatOp::Abs, 1),
        "neg" => (FloatOp::Neg, 1),
        _ => return refuse("not for floats, or not in this rounding"),
    };
    if down && op != FloatOp::FmaDown {
        return refuse("`.rm` is not for it");
    }
    if rounded && !matches!(op, FloatOp::Add | FloatOp::Sub | FloatOp::Mul | FloatOp::Fma | FloatOp::Div) {
        return refuse("it does not round");
    }
    let inexact = matches!(op, FloatOp::DivApprox | FloatOp::DivFull);
    if (approximate || full) && !inexact || nan && !matches!(form.name, "min" | "max") {
        return refuse("`.approx`, `.full` or `.NaN` is not for it");
    }
    if op == FloatOp::Copysign && (ftz || saturate) {
        return refuse("`.ftz` and `.sat` are not for it");
    }
    if saturate && !matches!(op, FloatOp::Add | FloatOp::Sub | FloatOp::Mul | FloatOp::Fma) {
        return refuse("`.sat` is not for it");
    }
    if double && (ftz || saturate || nan) {
        return refuse("`.ftz`, `.sat` and `.NaN` are for f32");
    }
    floats(args, op, ftz, saturate, double, sources)
}

/// On f16, bf16 and pairs of them.
fn narrow(form: &mut Form<'_>, args: &mut Args<'_>, bf16: bool, pair: bool) -> Result<Op> {
    let rounded = form.flag("rn");
    let ftz = !bf16 && form.flag("ftz");
    let nan = matches!(form.name, "min" | "max") && form.flag("NaN");
    let (op, sources) = match form.name {
        "add" => (FloatOp::Add, 2),
        "sub" => (FloatOp::Sub, 2),
        "mul" => (FloatOp::Mul, 2),
        "fma" if rounded => (FloatOp::Fma, 3),
        "min" if !rounded => (FloatOp::Min { nan }, 2),
        "max" if !rounded => (FloatOp::Max { nan }, 2),
        "abs" if !rounded => (FloatOp::Abs, 1),
        "neg" if !rounded => (FloatOp::Neg, 1),
        _ => return refuse("not for 16-bit floats, or not in this rounding"),
    };
    args.exactly(sources + 1)?;
    let mut s = [W(0); 3];
    for (at, slot) in s.iter_mut().enumerate().take(sources) {
        *slot = if pair { args.word(at + 1)? } else { args.half(at + 1)? };
    }
    let first = s[0];
    s[sources..].fill(first);
    let d = if pair { args.to_word(0)? } else { args.to_half(0)? };
    Ok(Op::Narrow { op, bf16, pair, ftz, d, s })
}

fn floats(args: &mut Args<'_>, op: FloatOp, ftz: bool, saturate: bool, double: bool, sources: usize) -> Result<Op> {
    args.exactly(sources + 1)?;
    if double {
        let first = args.double(1)?;
        let mut s = [first; 3];
        for (at, slot) in s.iter_mut().enumerate().take(sources) {
            *slot = args.double(at + 1)?;
        }
        return Ok(Op::Float64 { op, d: args.to_double(0)?, s });
    }
    let first = args.single(1)?;
    let mut s = [first; 3];
    for (at, slot) in s.iter_mut().enumerate().take(sources) {
        *slot = args.single(at + 1)?;
    }
    Ok(Op::Float32 { op, ftz, saturate, d: args.to_word(0)?, s })
}

/// `sqrt`, `rcp`, `rsqrt`, `ex2`, `lg2`, `sin`, `cos`, `tanh`.
pub(super) fn function(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    let double = match form.ty()? {
        Type::F32 => false,
        Type::F64 => true,
        _ => return refuse("of this type it is not covered"),
    };
    let (rounded, approximate, ftz) = (form.flag("rn"), form.flag("approx"), form.flag("ftz"));
    let op = match (form.name, rounded, approximate) {
        ("sqrt", true, false) => FloatOp::Sqrt,
        ("sqrt", false, true) => FloatOp::SqrtApprox,
        ("rcp", true, false) => FloatOp::Rcp,
        ("rcp", false, true) => FloatOp::RcpApprox,
        ("rsqrt", false, true) => FloatOp::RsqrtApprox,
        ("ex2", false, true) => FloatOp::Ex2Approx,
        ("lg2", false, true) => FloatOp::Lg2Approx,
        ("sin", false, true) => FloatOp::SinApprox,
        ("cos", false, true) => FloatOp::CosApprox,
        ("tanh", false, true) => FloatOp::TanhApprox,
        _ => return refuse("not in this rounding"),
    };
    if double && (ftz || approximate) {
        return refuse("of f64 it is covered in `.rn` alone");
    }
    floats(args, op, ftz, false, double, 1)
}

/// `and`, `or`, `xor`, `not`, `cnot`, `shl`, `shr`.
pub(super) fn bits(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    if form.modifiers == ["pred"] {
        form.modifiers.clear();
        return super::select::predicate(form, args);
    }
    let Type::Int { bits, signed } = form.ty()? else { return refuse("not for floats") };
    let (op, sources) = match form.name {
        "and" => (IntOp::And, 2),
        "or" => (IntOp::Or, 2),
        "xor" => (IntOp::Xor, 2),
        "not" => (IntOp::Not, 1),
        "cnot" => (IntOp::Cnot, 1),
        "shl" => return shift(args, IntOp::Shl, bits),
        _ => return shift(args, IntOp::Shr { signed }, bits),
    };
    sized(args, op, bits, sources)
}

fn shift(args: &mut Args<'_>, op: IntOp, bits: u8) -> Result<Op> {
    args.exactly(3)?;
    let count = args.word(2)?;
    match bits {
        16 => {
            let a = args.half(1)?;
            Ok(Op::Int16 { op, d: args.to_half(0)?, s: [a, count, a, a] })
        }
        32 => {
            let a = args.word(1)?;
            Ok(Op::Int32 { op, d: args.to_word(0)?, s: [a, count, a, a] })
        }
        64 => Ok(Op::Int64 { op, d: args.to_double(0)?, s: [args.double(1)?; 3], n: [count; 2] }),
        _ => refuse("not for integers of this width"),
    }
}

/// `bfe`, `bfi`, `popc`, `clz`, `brev`, `bfind`, `lop3`, `prmt`, `shf`.
pub(super) fn fields(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    let Type::Int { bits, signed } = form.ty()? else { return refuse("not for floats") };
    if !matches!(bits, 32 | 64) {
        return refuse("not for integers of this width");
    }
    let op = match form.name {
        "bfe" => IntOp::Bfe { signed },
        "bfi" => IntOp::Bfi,
        "popc" => IntOp::Popc,
        "clz" => IntOp::Clz,
        "brev" => IntOp::Brev,
        "bfind" => IntOp::Bfind { signed, shift: form.flag("shiftamt") },
        "lop3" => return lop3(args),
        "prmt" => return prmt(args),
        _ => return funnel_shift(form, args),
    };
    match op {
        IntOp::Popc | IntOp::Clz | IntOp::Bfind { .. } if bits == 64 => {
            args.exactly(2)?;
            Ok(Op::Count64 { op, d: args.to_word(0)?, a: args.double(1)? })
        }
        IntOp::Popc | IntOp::Clz | IntOp::Brev | IntOp::Bfind { .. } => sized(args, op, bits, 1),
        // Positions and lengths are words in every width.
        _ => {
            let sources = if op == IntOp::Bfi { 2 } else { 1 };
            args.exactly(sources + 3)?;
            let n = [args.word(sources + 1)?, args.word(sources + 2)?];
            if bits == 64 {
                let s = [args.double(1)?, args.double(sources)?];
                return Ok(Op::Int64 { op, d: args.to_double(0)?, s: [s[0], s[1], s[0]], n });
            }
            let s = [args.word(1)?, args.word(sources)?];
            Ok(Op::Int32 { op, d: args.to_word(0)?, s: [s[0], s[1], n[0], n[1]] })
        }
    }
}

fn lop3(args: &mut Args<'_>) -> Result<Op> {
    args.exactly(5)?;
    let crate::front::operand::Operand::Int(table @ 0..=255) = *args.get(4)? else {
        return Args::wrong(4, "a number up to 255");
    };
    let s = [args.word(1)?, args.word(2)?, args.word(3)?];
    Ok(Op::Int32 { op: IntOp::Lop3(table as u8), d: args.to_word(0)?, s: [s[0], s[1], s[2], s[0]] })
}

fn prmt(args: &mut Args<'_>) -> Result<Op> {
    args.exactly(4)?;
    let s = [args.word(1)?, args.word(2)?, args.word(3)?];
    Ok(Op::Int32 { op: IntOp::Prmt, d: args.to_word(0)?, s: [s[0], s[1], s[2], s[0]] })
}

fn funnel_shift(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    args.exactly(4)?;
    let (Some(left), Some(wrap)) =
        (form.one_of(&[("l", true), ("r", false)]), form.one_of(&[("wrap", true), ("clamp", false)]))
    else {
        return refuse("it has no direction or mode");
    };
    let s = [args.word(1)?, args.word(2)?, args.word(3)?];
    Ok(Op::Int32 { op: IntOp::Shf { left, wrap }, d: args.to_word(0)?, s: [s[0], s[1], s[2], s[0]] })
}
