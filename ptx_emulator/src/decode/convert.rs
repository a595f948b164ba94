//! `mov`, `cvt`, `cvta`.

use super::{Args, Form, Refusal, Result, refuse};
use crate::front::operand::Operand;
use crate::program::{Cvt, IntOp, Op, Reg, Round, Space, Type};

pub(super) fn mov(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    if form.flag("pred") {
        return super::select::move_predicate(args);
    }
    args.exactly(2)?;
    let ty = form.ty()?;
    match (args.get(0)?, args.get(1)?) {
        (Operand::Vector(parts), _) => return unpack(args, parts, ty),
        (_, Operand::Vector(parts)) => return pack(args, parts, ty),
        (_, Operand::Clock(bits)) => {
            let d = args.reg(0)?;
            if *bits != ty.bits() || width(d) != ty.bits() {
                return refuse("the clock has another width");
            }
            return Ok(Op::Clock { d });
        }
        _ => {}
    }
    match ty.bits() {
        64 => {
            let (d, a) = (args.to_double(0)?, args.double(1)?);
            let n = [args.slots.constant(0); 2];
            Ok(Op::Int64 { op: IntOp::Mov, d, s: [a; 3], n })
        }
        32 => {
            let a = if ty == Type::F32 { args.single(1)? } else { args.word(1)? };
            Ok(Op::Int32 { op: IntOp::Mov, d: args.to_word(0)?, s: [a; 4] })
        }
        16 => {
            let d = args.to_half(0)?;
            if let Operand::Special(_) = args.get(1)? {
                // Its lower half.
                let (a, b) = (args.word(1)?, args.slots.constant(0xFFFF));
                return Ok(Op::Int32 { op: IntOp::And, d, s: [a, b, b, b] });
            }
            Ok(Op::Int16 { op: IntOp::Mov, d, s: [args.half(1)?; 4] })
        }
        _ => refuse("not of this width"),
    }
}

fn width(register: Reg) -> u32 {
    match register {
        Reg::P(_) => 1,
        Reg::H(_) => 16,
        Reg::W(_) => 32,
        Reg::D(_) => 64,
    }
}

/// `mov.b64 {a, b}, c`.
fn unpack(args: &mut Args<'_>, parts: &[Operand], ty: Type) -> Result<Op> {
    let a = args.source(1, ty)?;
    let part = |part: &Operand| match *part {
        Operand::Reg(register) if width(register) * parts.len() as u32 == ty.bits() => Ok(Some(register)),
        Operand::Sink => Ok(None),
        _ => Err(Refusal("operand 1 has other parts than its type".to_owned())),
    };
    if !matches!(ty.bits() / parts.len().max(1) as u32, 16 | 32) {
        return refuse("of parts of this width it is not covered");
    }
    Ok(Op::Unpack { parts: parts.iter().map(part).collect::<Result<_>>()?, a })
}

/// `mov.b64 c, {a, b}`.
fn pack(args: &mut Args<'_>, parts: &[Operand], ty: Type) -> Result<Op> {
    let d = args.reg(0)?;
    let each = ty.bits() / parts.len().max(1) as u32;
    if width(d) != ty.bits() || each * parts.len() as u32 != ty.bits() || !matches!(each, 16 | 32) {
        return refuse("the operands have other widths than the type");
    }
    let mut registers = Vec::new();
    for part in parts {
        registers.push(match *part {
            Operand::Reg(register) if width(register) == each => register,
            Operand::Int(value) => Reg::W(args.slots.constant(value as u32 & (u32::MAX >> (32 - each)))),
            _ => return refuse("operand 2 has other parts than its type"),
        });
    }
    Ok(Op::Pack { d, parts: registers })
}

pub(super) fn cvt(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    let from = form.ty()?;
    let to = form.ty()?;
    let round = form.one_of(&[
        ("rn", Round::Nearest),
        ("rna", Round::NearestAway),
        ("rz", Round::Zero),
        ("rm", Round::Down),
        ("rp", Round::Up),
        ("rni", Round::NearestInt),
        ("rzi", Round::ZeroInt),
        ("rmi", Round::DownInt),
        ("rpi", Round::UpInt),
    ]);
    let round = round.unwrap_or(Round::Exact);
    let (ftz, relu) = (form.flag("ftz"), form.flag("relu"));
    let saturate = form.flag("sat") | form.flag("satfinite");
    let packed = matches!(to, Type::F16x2 | Type::Bf16x2 | Type::E4m3x2 | Type::E5m2x2) && from == Type::F32;
    args.exactly(if packed { 3 } else { 2 })?;
    let d = args.reg(0)?;
    let a = wide_source(args, 1, from)?;
    let b = if packed { wide_source(args, 2, from)? } else { a };
    // The destination may be wider than its type, which is then extended to it.
    if width(d) < to.bits() || (!matches!(to, Type::Int { .. }) && width(d) != to.bits()) {
        return refuse("operand 1 has another width than its type");
    }
    let cvt = Cvt { to, from, round, ftz, saturate, relu, d, a, b };
    if !crate::execute::convert::is_covered(&cvt) {
        return refuse("the conversion is not covered in this rounding");
    }
    Ok(Op::Cvt(Box::new(cvt)))
}

/// A source that may be wider than its type.
fn wide_source(args: &mut Args<'_>, at: usize, ty: Type) -> Result<Reg> {
    match *args.get(at)? {
        Operand::Reg(register @ (Reg::H(_) | Reg::W(_) | Reg::D(_)))
            if width(register) == ty.bits() || matches!(ty, Type::Int { .. }) && width(register) > ty.bits() =>
        {
            Ok(register)
        }
        Operand::Reg(_) => Args::wrong(at, "as wide as its type"),
        _ => args.source(at, ty),
    }
}

pub(super) fn cvta(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    args.exactly(2)?;
    if (form.ty()?) != (Type::Int { bits: 64, signed: false }) {
        return refuse("addresses have 64 bits");
    }
    let to = form.flag("to");
    let spaces = [
        ("global", Space::Global),
        ("shared", Space::Shared),
        ("shared::cta", Space::Shared),
        ("local", Space::Local),
        ("param", Space::Param),
        ("const", Space::Global),
    ];
    let Some(space) = form.one_of(&spaces) else { return refuse("it names no memory") };
    Ok(Op::Cvta { space, to, d: args.to_double(0)?, a: args.double(1)? })
}
