//! Instructions of sm_90: `wgmma`, bulk copies, clusters, and what else came with them.

use layout::descriptor::Major;

use super::{Args, Form, Result, refuse, type_of};
use crate::front::operand::Operand;
use crate::program::{
    Address, AtomicOp, Bulk, Direction, Element, GlobalSide, Hopper, MmaKind, Op, Reg, Space, Type, W, Wgmma, WgmmaA,
};

fn hopper(hopper: Hopper) -> Result<Op> {
    Ok(Op::Hopper(Box::new(hopper)))
}

/// Those that have a name of their own.
pub(super) fn other(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    match form.name {
        "wgmma" => wgmma(form, args),
        "mapa" => {
            let (space, wide) = window(form)?;
            args.exactly(3)?;
            let (d, a) = if wide {
                (Reg::D(args.to_double(0)?), Reg::D(args.double(1)?))
            } else {
                (Reg::W(args.to_word(0)?), Reg::W(args.word(1)?))
            };
            hopper(Hopper::MapAddress { generic: space == Space::Generic, d, a, rank: args.word(2)? })
        }
        "getctarank" => {
            let (space, wide) = window(form)?;
            args.exactly(2)?;
            let a = if wide { Reg::D(args.double(1)?) } else { Reg::W(args.word(1)?) };
            hopper(Hopper::RankOfAddress { generic: space == Space::Generic, d: args.to_word(0)?, a })
        }
        "setmaxnreg" => {
            let increase = form.one_of(&[("inc", true), ("dec", false)]);
            let (Some(increase), true) = (increase, form.flag("sync") && form.flag("aligned") && form.flag("u32"))
            else {
                return refuse("the form is not covered");
            };
            args.exactly(1)?;
            match *args.get(0)? {
                Operand::Int(registers @ 24..=256) if registers % 8 == 0 => {
                    hopper(Hopper::SetRegisters { increase, registers: registers as u32 })
                }
                _ => Args::wrong(0, "a multiple of 8 from 24 to 256"),
            }
        }
        "griddepcontrol" => {
            args.exactly(0)?;
            if !(form.flag("wait") || form.flag("launch_dependents")) {
                return refuse("the form is not covered");
            }
            hopper(Hopper::Hint)
        }
        "nanosleep" => {
            form.flag("u32");
            args.exactly(1)?;
            hopper(Hopper::Hint)
        }
        "prefetch" => {
            args.exactly(1)?;
            let spaces = [("param", Space::Param), ("const", Space::Generic), ("global", Space::Global)];
            let space = form.one_of(&spaces).unwrap_or(Space::Generic);
            if form.flag("tensormap") {
                return hopper(Hopper::PrefetchMap { map: args.address(0, space)? });
            }
            if !(form.flag("L1") || form.flag("L2")) {
                return refuse("the form is not covered");
            }
            hopper(Hopper::Hint)
        }
        _ => refuse(""),
    }
}

/// The window of the addresses of `mapa` and `getctarank`, and whether they have 64 bits.
fn window(form: &mut Form<'_>) -> Result<(Space, bool)> {
    let space = if form.flag("shared::cluster") { Space::Cluster } else { Space::Generic };
    match form.one_of(&[("u32", false), ("u64", true)]) {
        Some(wide) if wide || space == Space::Cluster => Ok((space, wide)),
        _ => refuse("the form is not covered"),
    }
}

/// `barrier.cluster.arrive` and `.wait`.
pub(super) fn cluster_barrier(form: &mut Form<'_>, args: &Args<'_>) -> Result<Op> {
    args.exactly(0)?;
    let Some(arrive) = form.one_of(&[("arrive", true), ("wait", false)]) else { return refuse("") };
    for known in ["release", "relaxed", "acquire", "aligned"] {
        form.flag(known);
    }
    hopper(if arrive { Hopper::ClusterArrive } else { Hopper::ClusterWait })
}

fn wgmma(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    let operations = [("mma_async", 0), ("fence", 1), ("commit_group", 2), ("wait_group", 3)];
    let operation = form.one_of(&operations);
    if !(form.next_is("sync") && form.next_is("aligned")) {
        return refuse("the form is not covered");
    }
    match operation {
        Some(0) => mma_async(form, args),
        Some(1) => args.exactly(0).and_then(|()| hopper(Hopper::WgmmaFence)),
        Some(2) => args.exactly(0).and_then(|()| hopper(Hopper::WgmmaCommit)),
        Some(_) => {
            args.exactly(1)?;
            hopper(Hopper::WgmmaWait { pending: groups(args)? })
        }
        None => refuse(""),
    }
}

/// The number of groups that a wait leaves in flight.
fn groups(args: &Args<'_>) -> Result<u32> {
    match *args.get(0)? {
        Operand::Int(pending @ 0..=0xFFFF_FFFF) => Ok(pending as u32),
        _ => Args::wrong(0, "a number of groups"),
    }
}

fn mma_async(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    let quarter = |ty: &str| match ty {
        "e4m3" => Some(true),
        "e5m2" => Some(false),
        _ => None,
    };
    let [shape, d, a, b] = form.modifiers[..] else { return refuse("the form is not covered") };
    let (kind, k) = match (a, b) {
        ("f16", "f16") => (MmaKind::Half(Element::F16), 16),
        ("bf16", "bf16") => (MmaKind::Half(Element::Bf16), 16),
        ("tf32", "tf32") => (MmaKind::Tf32, 8),
        _ => match (quarter(a), quarter(b)) {
            (Some(a_e4m3), Some(b_e4m3)) => (MmaKind::Quarter { a_e4m3, b_e4m3 }, 32),
            _ => return refuse("the types are not covered"),
        },
    };
    let f16 = match d {
        "f32" => false,
        "f16" if !matches!(kind, MmaKind::Half(Element::Bf16) | MmaKind::Tf32) => true,
        _ => return refuse("the types are not covered"),
    };
    let dims = shape.strip_prefix("m64n").and_then(|dims| dims.split_once('k'));
    let n = match dims.and_then(|(n, depth)| Some((n.parse().ok()?, depth.parse::<u32>().ok()?))) {
        Some((n @ 8..=256, depth)) if n % 8 == 0 && depth == k => n,
        _ => return refuse("it has no such shape"),
    };
    form.modifiers.clear();
    let transposable = k == 16;
    let d = args.words(0, &[n as usize / if f16 { 4 } else { 2 }])?;
    let in_registers = matches!(args.get(1)?, Operand::Vector(_));
    args.exactly(6 + if transposable { 2 - usize::from(in_registers) } else { 0 })?;
    let major = |at: usize| match (transposable, args.list.get(at)) {
        (false, _) | (true, Some(Operand::Int(0))) => Ok(Major::K),
        (true, Some(Operand::Int(1))) => Ok(Major::Mn),
        _ => Args::wrong(at, "0 or 1"),
    };
    let (a_major, b_major) =
        if in_registers { (Major::K, major(6)?) } else { (major(6)?, major(if transposable { 7 } else { 6 })?) };
    let a = if in_registers {
        let words = args.words(1, &[4])?;
        WgmmaA::Registers(std::array::from_fn(|at| words[at]))
    } else {
        WgmmaA::Shared(args.double(1)?, a_major)
    };
    let sign = |at: usize| match *args.get(at)? {
        Operand::Int(1) => Ok(false),
        Operand::Int(u64::MAX) => Ok(true),
        _ => Args::wrong(at, "1 or -1"),
    };
    let negated = sign(4)? != sign(5)?;
    let (b, scale_d) = ((args.double(2)?, b_major), args.test(3)?);
    hopper(Hopper::Wgmma(Wgmma { n, kind, f16, d, a, b, scale_d, negated, fenced: true }))
}

/// `cp.async.bulk`, its prefetch, and `cp.reduce.async.bulk`, of lines and of tensors.
pub(super) fn bulk(form: &mut Form<'_>, args: &mut Args<'_>, reduces: bool) -> Result<Op> {
    if form.next_is("commit_group") {
        args.exactly(0)?;
        return hopper(Hopper::BulkCommit);
    }
    if form.next_is("wait_group") {
        args.exactly(1)?;
        return hopper(Hopper::BulkWait { read: form.flag("read"), pending: groups(args)? });
    }
    let prefetch = form.next_is("prefetch");
    let tensor = form.next_is("tensor");
    let ranks = [("1d", 1), ("2d", 2), ("3d", 3), ("4d", 4), ("5d", 5)];
    let rank = if tensor { form.one_of(&ranks) } else { Some(0) };
    // A line has its length as one more operand.
    let line = usize::from(!tensor);
    if let (true, Some(rank)) = (prefetch, rank) {
        if !(form.next_is("L2") && form.next_is("global")) {
            return refuse("the form is not covered");
        }
        form.flag("tile");
        args.exactly(1 + line + usize::from(form.flag("L2::cache_hint")))?;
        return hopper(Hopper::PrefetchBulk(if tensor { boxed(args, 0, rank)? } else { stretch(args, 0, 1)? }));
    }
    let load = form.modifiers.first().is_some_and(|first| first.starts_with("shared"));
    let sides = [("shared::cluster", true), ("shared::cta", true), ("global", false)];
    let (Some(rank), Some(first), Some(second)) = (rank, form.one_of(&sides), form.one_of(&sides)) else {
        return refuse("the form is not covered");
    };
    if first == second || load && reduces {
        return refuse("it is covered between global and shared memory");
    }
    form.flag("tile");
    let hint = usize::from(form.flag("L2::cache_hint"));
    if load {
        let multicast = form.flag("multicast::cluster");
        if !form.flag("mbarrier::complete_tx::bytes") {
            return refuse("the form is not covered");
        }
        args.exactly(3 + line + usize::from(multicast) + hint)?;
        let barrier = args.address(2 + line, Space::Cluster)?;
        let blocks = if multicast { Some(args.half(3 + line)?) } else { None };
        let global = if tensor { boxed(args, 1, rank)? } else { stretch(args, 1, 2)? };
        let shared = args.address(0, Space::Cluster)?;
        return hopper(Hopper::Bulk(Bulk { direction: Direction::Load { barrier, blocks }, global, shared }));
    }
    if !form.flag("bulk_group") {
        return refuse("the form is not covered");
    }
    args.exactly(2 + line + hint)?;
    let direction = if reduces { reduction(form, tensor)? } else { Direction::Store };
    let global = if tensor { boxed(args, 0, rank)? } else { stretch(args, 0, 2)? };
    hopper(Hopper::Bulk(Bulk { direction, global, shared: args.address(1, Space::Shared)? }))
}

fn reduction(form: &mut Form<'_>, tensor: bool) -> Result<Direction> {
    let operations = [
        ("add", AtomicOp::Add),
        ("min", AtomicOp::Min),
        ("max", AtomicOp::Max),
        ("inc", AtomicOp::Inc),
        ("dec", AtomicOp::Dec),
        ("and", AtomicOp::And),
        ("or", AtomicOp::Or),
        ("xor", AtomicOp::Xor),
    ];
    let Some(op) = form.one_of(&operations) else { return refuse("the operation is not known") };
    if tensor {
        return Ok(Direction::Reduce(op, None));
    }
    form.flag("noftz");
    let ty = form.modifiers.pop().and_then(type_of);
    match ty {
        Some(ty @ (Type::Int { bits: 32 | 64, .. } | Type::F16 | Type::Bf16 | Type::F32 | Type::F64)) => {
            Ok(Direction::Reduce(op, Some(ty)))
        }
        _ => refuse("of this type it is not covered"),
    }
}

fn stretch(args: &mut Args<'_>, global: usize, bytes: usize) -> Result<GlobalSide> {
    Ok(GlobalSide::Line { address: args.address(global, Space::Global)?, bytes: args.word(bytes)? })
}

/// `[map, {coordinates}]`.
fn boxed(args: &mut Args<'_>, at: usize, rank: usize) -> Result<GlobalSide> {
    let Operand::Tensor(base, offset, coordinates) = args.get(at)? else {
        return Args::wrong(at, "a tensor map and coordinates");
    };
    if coordinates.len() != rank {
        return refuse(format!("operand {} has {} coordinates", at + 1, coordinates.len()));
    }
    let map: Address = Args::address_of(at, (*base, *offset), Space::Generic)?;
    let coordinates: Option<Vec<W>> = coordinates.iter().map(|coordinate| args.word_of(coordinate)).collect();
    match coordinates {
        Some(coordinates) => Ok(GlobalSide::Tensor { map, coordinates }),
        None => Args::wrong(at, "a tensor map and 32-bit coordinates"),
    }
}
