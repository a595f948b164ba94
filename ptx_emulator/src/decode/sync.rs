//! Barriers, fences, and what the lanes of a warp do together.

use super::{Args, Form, Result, refuse};
use crate::front::operand::Operand;
use crate::program::{Address, General, Hopper, IntOp, Op, P, Reduction, Reg, Shuffle, Space, Type, Vote, W};

/// `bar.sync`, `bar.arrive`, `bar.warp.sync`, and the same as `barrier`.
pub(super) fn barrier(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    if form.next_is("warp") {
        if !form.next_is("sync") {
            return refuse("");
        }
        args.exactly(1)?;
        return Ok(Op::WarpSync { mask: args.word(0)? });
    }
    if form.next_is("cluster") {
        return super::hopper::cluster_barrier(form, args);
    }
    form.next_is("cta");
    let wait = match form.one_of(&[("sync", true), ("arrive", false)]) {
        Some(wait) => wait,
        None => return refuse(""),
    };
    if form.name == "barrier" && !form.flag("aligned") {
        return refuse("it is covered with `.aligned` alone");
    }
    args.between(if wait { 1 } else { 2 }, 2)?;
    let threads = if args.len() == 2 { Some(args.word(1)?) } else { None };
    Ok(Op::Barrier { id: args.word(0)?, threads, wait })
}

/// `bar.red.popc.u32 d, id{, threads}, p;` and `.and.pred`, `.or.pred`.
pub(super) fn reducing_barrier(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<[Op; 3]> {
    form.flag("aligned");
    let operations = [("popc", Reduction::Count), ("and", Reduction::And), ("or", Reduction::Or)];
    let Some(op) = form.one_of(&operations) else { return refuse("the operation is not known") };
    if !form.flag(if op == Reduction::Count { "u32" } else { "pred" }) {
        return refuse("the type is not its own");
    }
    args.between(3, 4)?;
    let d = if op == Reduction::Count { Reg::W(args.to_word(0)?) } else { Reg::P(args.to_predicate(0)?) };
    let threads = if args.len() == 4 { Some(args.word(2)?) } else { None };
    let value = args.test(args.len() - 1)?;
    let general = |general| Op::General(Box::new(general));
    Ok([
        general(General::BarrierVote { value }),
        Op::Barrier { id: args.word(1)?, threads, wait: true },
        general(General::BarrierResult { op, d }),
    ])
}

/// Fences. The machine orders accesses without them: they only say what is no race.
pub(super) fn fence(form: &mut Form<'_>) -> Result<Op> {
    let known = [
        "proxy.async.shared::cta",
        "proxy.async",
        "proxy.async.global",
        "mbarrier_init.release.cluster",
        "cta",
        "gl",
        "sys",
        "gpu",
        "acq_rel.cta",
        "acq_rel.cluster",
        "acq_rel.gpu",
        "acq_rel.sys",
        "sc.cta",
        "sc.cluster",
        "sc.gpu",
        "sc.sys",
    ];
    let modifiers = form.modifiers.join(".");
    if !known.contains(&modifiers.as_str()) {
        return refuse("");
    }
    if modifiers.starts_with("mbarrier_init") {
        form.modifiers.clear();
        return Ok(Op::Hopper(Box::new(Hopper::MbarrierInitFence)));
    }
    let proxy = form.modifiers.first() == Some(&"proxy");
    let device = !form.modifiers.iter().any(|modifier| modifier.contains("cta") || *modifier == "async");
    form.modifiers.clear();
    Ok(Op::Fence { device, proxy })
}

/// `shfl`, `vote`, `redux`, `match`, `elect`, `activemask`.
pub(super) fn warp(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    if form.name == "activemask" {
        form.flag("b32");
        args.exactly(1)?;
        return Ok(Op::ActiveMask { d: args.to_word(0)? });
    }
    if !form.flag("sync") {
        return refuse("it is covered with `.sync` alone");
    }
    match form.name {
        "shfl" => {
            form.flag("b32");
            let kinds =
                [("up", Shuffle::Up), ("down", Shuffle::Down), ("bfly", Shuffle::Butterfly), ("idx", Shuffle::Index)];
            let Some(kind) = form.one_of(&kinds) else { return refuse("the mode is not known") };
            args.exactly(5)?;
            let (d, p) = value_and_predicate(args)?;
            let Some(d) = d else { return Args::wrong(0, "a register") };
            Ok(Op::Shuffle { kind, d, p, a: args.word(1)?, b: args.word(2)?, c: args.word(3)?, mask: args.word(4)? })
        }
        "vote" => {
            let kinds = [("all", Vote::All), ("any", Vote::Any), ("uni", Vote::Uni), ("ballot", Vote::Ballot)];
            let Some(kind) = form.one_of(&kinds) else { return refuse("the mode is not known") };
            let ballot = kind == Vote::Ballot;
            if !form.flag(if ballot { "b32" } else { "pred" }) {
                return refuse("the type is not its own");
            }
            args.exactly(3)?;
            let d = if ballot { Reg::W(args.to_word(0)?) } else { Reg::P(args.to_predicate(0)?) };
            Ok(Op::Vote { kind, d, a: args.test(1)?, mask: args.word(2)? })
        }
        "redux" => {
            let Type::Int { bits: 32, signed } = form.ty()? else { return refuse("of this type it is not covered") };
            let operations = [
                ("add", IntOp::Add),
                ("min", IntOp::Min { signed }),
                ("max", IntOp::Max { signed }),
                ("and", IntOp::And),
                ("or", IntOp::Or),
                ("xor", IntOp::Xor),
            ];
            let Some(op) = form.one_of(&operations) else { return refuse("the operation is not known") };
            args.exactly(3)?;
            Ok(Op::Redux { op, d: args.to_word(0)?, a: args.word(1)?, mask: args.word(2)? })
        }
        "match" => {
            let Some(all) = form.one_of(&[("any", false), ("all", true)]) else {
                return refuse("the mode is not known");
            };
            let ty = form.ty()?;
            if !matches!(ty, Type::Int { bits: 32 | 64, signed: false }) {
                return refuse("of this type it is not covered");
            }
            args.exactly(3)?;
            let (d, p) = value_and_predicate(args)?;
            let Some(d) = d else { return Args::wrong(0, "a register") };
            Ok(Op::Match { all, d, p: p.filter(|_| all), a: args.source(1, ty)?, mask: args.word(2)? })
        }
        _ => {
            args.exactly(2)?;
            let (d, p) = value_and_predicate(args)?;
            let Some(p) = p else { return Args::wrong(0, "a pair with a predicate") };
            Ok(Op::Elect { d, p, mask: args.word(1)? })
        }
    }
}

/// `d`, `d|p` or `_|p`.
fn value_and_predicate(args: &Args<'_>) -> Result<(Option<W>, Option<P>)> {
    let word = |operand: &Operand| match *operand {
        Operand::Reg(Reg::W(slot)) => Ok(Some(slot)),
        Operand::Sink => Ok(None),
        _ => Args::wrong(0, "a 32-bit register"),
    };
    match args.get(0)? {
        Operand::Pair(d, p) => match **p {
            Operand::Reg(Reg::P(p)) => Ok((word(d)?, Some(p))),
            Operand::Sink => Ok((word(d)?, None)),
            _ => Args::wrong(0, "a pair with a predicate"),
        },
        single => Ok((word(single)?, None)),
    }
}

/// `mbarrier` in shared memory of the own block; arrivals and bytes in that of any block of the cluster.
pub(super) fn mbarrier(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    let operations = ["init", "inval", "arrive", "expect_tx", "complete_tx", "test_wait", "try_wait"];
    let Some(operation) = operations.into_iter().find(|operation| form.next_is(operation)) else { return refuse("") };
    let expects = operation == "arrive" && form.next_is("expect_tx");
    let parity = operation.ends_with("_wait") && form.flag("parity");
    for order in ["release", "acquire", "relaxed", "cta", "cluster"] {
        form.flag(order);
    }
    let remote = form.flag("shared::cluster");
    if !(remote || form.flag("shared") || form.flag("shared::cta")) {
        return refuse("it is covered in `.shared` memory");
    }
    if remote && !matches!(operation, "arrive" | "expect_tx" | "complete_tx") {
        return refuse("it is covered in `.shared` memory of the own block");
    }
    if !(form.flag("b64") || operation.ends_with("_tx")) {
        return refuse("it has no type");
    }
    let space = if remote { Space::Cluster } else { Space::Shared };
    let address = |at: usize, args: &Args<'_>| -> Result<Address> { args.address(at, space) };
    match operation {
        "init" => {
            args.exactly(2)?;
            Ok(Op::MbarrierInit { address: address(0, args)?, count: args.word(1)? })
        }
        "inval" => {
            args.exactly(1)?;
            Ok(Op::MbarrierInvalidate { address: address(0, args)? })
        }
        "expect_tx" | "complete_tx" => {
            args.exactly(2)?;
            let completes = operation == "complete_tx";
            Ok(Op::MbarrierExpect { address: address(0, args)?, bytes: args.word(1)?, completes })
        }
        "arrive" => {
            args.between(if expects { 3 } else { 2 }, 3)?;
            let d = match args.get(0)? {
                Operand::Sink => None,
                _ => Some(args.to_double(0)?),
            };
            let third = if args.len() == 3 { Some(args.word(2)?) } else { None };
            let (count, expect_bytes) = if expects { (None, third) } else { (third, None) };
            Ok(Op::MbarrierArrive { d, address: address(1, args)?, count, expect_bytes })
        }
        _ => {
            // A fourth operand of try_wait is a hint of how long to wait.
            args.between(3, if operation == "try_wait" { 4 } else { 3 })?;
            let token = if parity { Reg::W(args.word(2)?) } else { Reg::D(args.double(2)?) };
            Ok(Op::MbarrierTest { p: args.to_predicate(0)?, address: address(1, args)?, token, parity })
        }
    }
}
