//! The instructions of ordinary programs in `operation::general`.

use super::{Args, Form, Refusal, Result, refuse};
use crate::float::Rounding;
use crate::float::exact::Operation;
use crate::front::operand::Operand;
use crate::program::{
    Carry, CarryOp, Dot, FieldOp, General, Hopper, IntOp, IntegerMma, NumberKind, Op, Permute, Reg, Rounded, Space,
    Type, W,
};

fn general(general: General) -> Result<Op> {
    Ok(Op::General(Box::new(general)))
}

/// `add.cc`, `addc`, `sub.cc`, `subc`, `mad.lo.cc`, `madc.hi` and the like.
pub(super) fn carry(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    let reads = form.name.ends_with('c');
    let Type::Int { bits: bits @ (32 | 64), signed } = form.ty()? else {
        return refuse("not for this type");
    };
    let sets = form.flag("cc");
    let op = match (form.name, form.one_of(&[("lo", false), ("hi", true)])) {
        ("add" | "addc", None) => CarryOp::Add,
        ("sub" | "subc", None) => CarryOp::Sub,
        ("mad" | "madc", Some(false)) => CarryOp::MadLow,
        ("mad" | "madc", Some(true)) => CarryOp::MadHigh { signed },
        _ => return refuse("not with a carry"),
    };
    let sources = if matches!(op, CarryOp::Add | CarryOp::Sub) { 2 } else { 3 };
    args.exactly(sources + 1)?;
    let ty = Type::Int { bits, signed };
    let first = args.source(1, ty)?;
    let mut s = [first; 3];
    for (at, register) in s.iter_mut().enumerate().take(sources) {
        *register = args.source(at + 1, ty)?;
    }
    let d = if bits == 64 { Reg::D(args.to_double(0)?) } else { Reg::W(args.to_word(0)?) };
    let flag = args.slots.carry();
    let (reads, sets) = (reads.then_some(flag), sets.then_some(flag));
    general(General::Carry(Carry { op, reads, sets, d, s }))
}

/// The direction that an instruction on floats names, if it is not to nearest, and the instruction in it.
pub(super) fn rounded(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Option<Op>> {
    let directions = [("rz", Rounding::Zero), ("rm", Rounding::Down), ("rp", Rounding::Up)];
    let Some(&(name, rounding)) = directions.iter().find(|direction| form.modifiers.contains(&direction.0)) else {
        return Ok(None);
    };
    let ty = match form.modifiers.last() {
        Some(&"f32") => Type::F32,
        Some(&"f64") => Type::F64,
        _ => return Ok(None),
    };
    // `exp` reduces its argument by it, which has a way of its own.
    if form.name == "fma" && rounding == Rounding::Down && ty == Type::F32 {
        return Ok(None);
    }
    let (operation, sources) = match form.name {
        "add" => (Operation::Add, 2),
        "sub" => (Operation::Sub, 2),
        "mul" => (Operation::Mul, 2),
        "fma" | "mad" => (Operation::Fma, 3),
        "div" => (Operation::Div, 2),
        "rcp" => (Operation::Rcp, 1),
        "sqrt" => (Operation::Sqrt, 1),
        _ => return Ok(None),
    };
    form.flag(name);
    form.modifiers.pop();
    let (ftz, saturate) = (form.flag("ftz"), form.flag("sat"));
    if ty == Type::F64 && (ftz || saturate) || saturate && matches!(form.name, "div" | "rcp" | "sqrt") {
        return refuse("`.ftz` or `.sat` is not for it");
    }
    args.exactly(sources + 1)?;
    let first = args.source(1, ty)?;
    let mut s = [first; 3];
    for (at, register) in s.iter_mut().enumerate().take(sources) {
        *register = args.source(at + 1, ty)?;
    }
    let d = if ty == Type::F64 { Reg::D(args.to_double(0)?) } else { Reg::W(args.to_word(0)?) };
    general(General::Rounded(Rounded { operation, rounding, ftz, saturate, d, s })).map(Some)
}

/// `rcp.approx.ftz.f64`, `rsqrt.approx.f64` and `rsqrt.approx.ftz.f64`.
pub(super) fn approximate_f64(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    let (root, ftz) = (form.name == "rsqrt", form.flag("ftz"));
    if !form.flag("approx") || !(root || ftz) {
        return refuse("not in this rounding");
    }
    form.modifiers.clear();
    args.exactly(2)?;
    let (d, a) = (args.to_double(0)?, args.double(1)?);
    general(if ftz { General::Gross { root, d, a } } else { General::RootOf64 { d, a } })
}

/// `dp4a`, `dp2a`.
pub(super) fn dot(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    args.exactly(4)?;
    let sign = |form: &mut Form<'_>| match form.modifiers.pop() {
        Some("s32") => Ok(true),
        Some("u32") => Ok(false),
        _ => refuse("not for this type"),
    };
    let (b_signed, a_signed) = (sign(form)?, sign(form)?);
    let (bits, high) = match (form.name, form.one_of(&[("lo", false), ("hi", true)])) {
        ("dp4a", None) => (8, false),
        ("dp2a", Some(high)) => (16, high),
        _ => return refuse("the form is not covered"),
    };
    let s = [args.word(1)?, args.word(2)?, args.word(3)?];
    general(General::Dot(Dot { bits, high, a_signed, b_signed, d: args.to_word(0)?, s }))
}

/// `szext`, `bmsk`, `fns`, and `prmt` in a mode.
pub(super) fn field(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    let modes = [
        ("f4e", Permute::Forward4),
        ("b4e", Permute::Backward4),
        ("rc8", Permute::Replicate8),
        ("ecl", Permute::EdgeLeft),
        ("ecr", Permute::EdgeRight),
        ("rc16", Permute::Replicate16),
    ];
    let mode = form.one_of(&modes);
    let wrap = form.one_of(&[("wrap", true), ("clamp", false)]);
    let signed = match form.modifiers.pop() {
        Some("s32") => true,
        Some("b32" | "u32") => false,
        _ => return refuse("not for this type"),
    };
    let (op, sources) = match (form.name, wrap, mode) {
        ("szext", Some(wrap), None) => (FieldOp::SignExtend { signed, wrap }, 2),
        ("bmsk", Some(wrap), None) => (FieldOp::Mask { wrap }, 2),
        ("fns", None, None) => (FieldOp::FindNth, 3),
        ("prmt", None, Some(mode)) => (FieldOp::Permute(mode), 3),
        _ => return refuse("the form is not covered"),
    };
    args.exactly(sources + 1)?;
    let first = args.word(1)?;
    let mut s = [first; 3];
    for (at, slot) in s.iter_mut().enumerate().take(sources) {
        *slot = args.word(at + 1)?;
    }
    general(General::Field { op, d: args.to_word(0)?, s })
}

/// `testp`.
pub(super) fn test_number(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    args.exactly(2)?;
    let ty = form.ty()?;
    let kinds = [
        ("finite", NumberKind::Finite),
        ("infinite", NumberKind::Infinite),
        ("number", NumberKind::Number),
        ("notanumber", NumberKind::NotANumber),
        ("normal", NumberKind::Normal),
        ("subnormal", NumberKind::Subnormal),
    ];
    let (Some(kind), Type::F32 | Type::F64) = (form.one_of(&kinds), ty) else {
        return refuse("the form is not covered");
    };
    general(General::TestNumber { kind, d: args.to_predicate(0)?, a: args.source(1, ty)? })
}

/// `isspacep`.
pub(super) fn is_space(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    args.exactly(2)?;
    let spaces = [
        ("global", (Space::Global, false)),
        ("const", (Space::Global, true)),
        ("shared", (Space::Shared, false)),
        ("shared::cta", (Space::Shared, false)),
        ("shared::cluster", (Space::Cluster, false)),
        ("local", (Space::Local, false)),
        ("param", (Space::Param, false)),
        ("param::entry", (Space::Param, false)),
    ];
    let Some((space, constant)) = form.one_of(&spaces) else { return refuse("the memory is not known") };
    general(General::IsSpace { space, constant, d: args.to_predicate(0)?, a: args.double(1)? })
}

/// `createpolicy`: one policy is as good as another.
pub(super) fn create_policy(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    let known = matches!(form.modifiers.first(), Some(&("fractional" | "range" | "cvt")));
    if !known || form.modifiers.last() != Some(&"b64") {
        return refuse("the form is not covered");
    }
    form.modifiers.clear();
    let (value, zero) = (args.slots.wide_constant(1), args.slots.constant(0));
    Ok(Op::Int64 { op: IntOp::Mov, d: args.to_double(0)?, s: [value; 3], n: [zero; 2] })
}

/// `prefetchu`, `applypriority` and `discard`.
pub(super) fn cache(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    let space = if form.flag("global") { Space::Global } else { Space::Generic };
    let levels: &[&str] = match form.name {
        "prefetchu" => &["L1"],
        "applypriority" => &["L2::evict_normal"],
        _ => &["L2"],
    };
    if !levels.iter().any(|level| form.flag(level)) {
        return refuse("the form is not covered");
    }
    args.exactly(if form.name == "prefetchu" { 1 } else { 2 })?;
    if args.len() == 2 && args.get(1)? != &Operand::Int(128) {
        return Args::wrong(1, "128");
    }
    let address = args.address(0, space)?;
    if form.name == "discard" { general(General::Discard { address }) } else { Ok(Op::Hopper(Box::new(Hopper::Hint))) }
}

/// `mma` of signed and unsigned bytes; none if it is of another type.
pub(super) fn integer_mma(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Option<Op>> {
    let saturate = form.flag("satfinite");
    let [shape, "row", "col", "s32", a, b, "s32"] = form.modifiers[..] else {
        return if saturate { refuse("`.satfinite` is for integers") } else { Ok(None) };
    };
    let sign = |ty: &str| match ty {
        "s8" => Ok(true),
        "u8" => Ok(false),
        _ => Err(Refusal(format!("the type `.{ty}` is not covered"))),
    };
    let (m, k) = match shape {
        "m8n8k16" => (8, 16),
        "m16n8k16" => (16, 16),
        "m16n8k32" => (16, 32),
        _ => return refuse("the shape is not covered"),
    };
    let (a_signed, b_signed) = (sign(a)?, sign(b)?);
    form.modifiers.clear();
    args.exactly(4)?;
    // Four bytes in a register of each of 32 lanes; sums are words.
    let words = |at: usize, count: u32, args: &Args<'_>| -> Result<Vec<W>> { args.words(at, &[count as usize]) };
    let (d, c) = (words(0, m / 4, args)?, words(3, m / 4, args)?);
    let (a, b) = (words(1, m * k / 128, args)?, words(2, k / 16, args)?);
    general(General::IntegerMma(IntegerMma { m, k, a_signed, b_signed, saturate, d, a, b, c })).map(Some)
}
