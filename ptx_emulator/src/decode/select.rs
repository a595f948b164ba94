//! `setp`, `selp` and the logic of predicates.

use super::{Args, Form, Refusal, Result, refuse};
use crate::front::operand::Operand;
use crate::program::{BoolOp, Cmp, Op, P, Reg, Test, Type};

/// `and.pred`, `or.pred`, `xor.pred`, `not.pred`.
pub(super) fn predicate(form: &Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    let d = args.to_predicate(0)?;
    let a = args.test(1)?;
    let op = match form.name {
        "and" => BoolOp::And,
        "or" => BoolOp::Or,
        "xor" => BoolOp::Xor,
        "not" => {
            args.exactly(2)?;
            let a = Test { negated: !a.negated, ..a };
            return Ok(Op::Predicate { op: BoolOp::Or, d, a, b: a });
        }
        _ => return refuse("not for predicates"),
    };
    args.exactly(3)?;
    Ok(Op::Predicate { op, d, a, b: args.test(2)? })
}

/// `mov.pred`.
pub(super) fn move_predicate(args: &mut Args<'_>) -> Result<Op> {
    args.exactly(2)?;
    let a = args.test(1)?;
    Ok(Op::Predicate { op: BoolOp::Or, d: args.to_predicate(0)?, a, b: a })
}

pub(super) fn setp(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    let ty = form.ty()?;
    let is_float = match ty {
        Type::Int { bits: 16 | 32 | 64, .. } => false,
        Type::F32 | Type::F64 => true,
        _ => return refuse("of this type it is not covered"),
    };
    let unsigned = matches!(ty, Type::Int { signed: false, .. });
    let integer =
        [("eq", Cmp::Eq), ("ne", Cmp::Ne), ("lt", Cmp::Lt), ("le", Cmp::Le), ("gt", Cmp::Gt), ("ge", Cmp::Ge)];
    let lower = [("lo", Cmp::Lt), ("ls", Cmp::Le), ("hi", Cmp::Gt), ("hs", Cmp::Ge)];
    let float = [
        ("equ", Cmp::Equ),
        ("neu", Cmp::Neu),
        ("ltu", Cmp::Ltu),
        ("leu", Cmp::Leu),
        ("gtu", Cmp::Gtu),
        ("geu", Cmp::Geu),
        ("num", Cmp::Num),
        ("nan", Cmp::Nan),
    ];
    let mut found = form.one_of(&integer);
    if found.is_none() && unsigned {
        found = form.one_of(&lower);
    }
    if found.is_none() && is_float {
        found = form.one_of(&float);
    }
    let Some(cmp) = found else { return refuse("the comparison is not known") };
    let ftz = ty == Type::F32 && form.flag("ftz");
    let bool_op = form.one_of(&[("and", BoolOp::And), ("or", BoolOp::Or), ("xor", BoolOp::Xor)]);
    args.exactly(if bool_op.is_some() { 4 } else { 3 })?;
    let with = bool_op.map(|op| args.test(3).map(|test| (op, test))).transpose()?;
    let (d, q) = match args.get(0)? {
        Operand::Pair(d, q) => (target(d)?, target(q)?),
        single => (target(single)?, None),
    };
    Ok(Op::Set { ty, cmp, ftz, d, q, a: args.source(1, ty)?, b: args.source(2, ty)?, with })
}

fn target(operand: &Operand) -> Result<Option<P>> {
    match operand {
        Operand::Reg(Reg::P(p)) => Ok(Some(*p)),
        Operand::Sink => Ok(None),
        _ => Err(Refusal("operand 1 is not a predicate".to_owned())),
    }
}

pub(super) fn selp(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    args.exactly(4)?;
    let ty = form.ty()?;
    let p = args.test(3)?;
    match ty.bits() {
        64 => Ok(Op::Select64 { d: args.to_double(0)?, a: args.double(1)?, b: args.double(2)?, p }),
        32 => {
            let (a, b) =
                if ty == Type::F32 { (args.single(1)?, args.single(2)?) } else { (args.word(1)?, args.word(2)?) };
            Ok(Op::Select32 { d: args.to_word(0)?, a, b, p })
        }
        16 => Ok(Op::Select32 { d: args.to_half(0)?, a: args.half(1)?, b: args.half(2)?, p }),
        _ => refuse("not of this width"),
    }
}
