//! `ld`, `st`, `st.async`, `atom`, `red`, `cp.async`.

use super::{Args, Form, Refusal, Result, refuse, type_of};
use crate::front::operand::Operand;
use crate::program::{Access, Atomic, AtomicOp, Base, Hopper, Op, Order, Reg, Space, Type};

/// Orders, scopes and hints. The machine does the accesses of a warp in the order of the program, and each is visible
/// at once. That is at least as strong as any memory order asks for, so an order only decides what is a race. Hints
/// change nothing.
fn take_order(form: &mut Form<'_>, default: Order) -> Order {
    let orders = [
        ("weak", Order::Weak),
        ("relaxed", Order::Strong),
        ("volatile", Order::Strong),
        ("acquire", Order::Fence),
        ("release", Order::Fence),
        ("acq_rel", Order::Fence),
    ];
    let order = form.one_of(&orders).unwrap_or(default);
    for scope in ["cta", "cluster", "gpu", "sys"] {
        form.flag(scope);
    }
    form.modifiers.retain(|modifier| !modifier.starts_with("L1::") && !modifier.starts_with("L2::"));
    for cache in ["ca", "cg", "cs", "lu", "cv", "wb", "wt"] {
        form.flag(cache);
    }
    order
}

fn take_space(form: &mut Form<'_>) -> Space {
    let spaces = [
        ("global", Space::Global),
        ("shared", Space::Shared),
        ("shared::cta", Space::Shared),
        ("shared::cluster", Space::Cluster),
        ("local", Space::Local),
        ("param", Space::Param),
        ("param::entry", Space::Param),
        ("param::func", Space::Param),
        ("const", Space::Global),
    ];
    form.one_of(&spaces).unwrap_or(Space::Generic)
}

/// The space, element type and number of elements of `ld` and `st`.
fn access(form: &mut Form<'_>) -> Result<(Space, Order, (u8, bool), usize)> {
    let Some((bits, signed)) = form.modifiers.pop().and_then(type_of).and_then(memory_type) else {
        return refuse("the type is not known");
    };
    let order = take_order(form, Order::Weak);
    let space = take_space(form);
    let count = form.one_of(&[("v2", 2), ("v4", 4), ("v8", 8)]).unwrap_or(1);
    if count * usize::from(bits) > 256 || count == 8 && space != Space::Global {
        return refuse("the vector is too long");
    }
    Ok((space, order, (bits / 8, signed), count))
}

fn memory_type(ty: Type) -> Option<(u8, bool)> {
    match ty {
        Type::Int { bits, signed } => Some((bits, signed)),
        Type::F32 => Some((32, false)),
        Type::F64 => Some((64, false)),
        _ => None,
    }
}

/// A register may be wider than the element in memory, not narrower.
fn holds(register: Reg, bytes: u8) -> bool {
    match register {
        Reg::P(_) => false,
        Reg::H(_) => bytes <= 2,
        Reg::W(_) => bytes <= 4,
        Reg::D(_) => true,
    }
}

pub(super) fn load(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    args.exactly(2)?;
    let (space, order, (bytes, signed), count) = access(form)?;
    if space == Space::Global {
        form.flag("nc");
    }
    let part = |part: &Operand| match *part {
        Operand::Reg(register) if holds(register, bytes) => Ok(Some(register)),
        Operand::Sink => Ok(None),
        _ => Err(Refusal("operand 1 is not of registers that hold the type".to_owned())),
    };
    let registers: Vec<_> = args.parts(0)?.iter().map(part).collect::<Result<_>>()?;
    if registers.len() != count {
        return refuse(format!("operand 1 has {} registers", registers.len()));
    }
    Ok(Op::Load(Box::new(Access { space, order, address: args.address(1, space)?, bytes, signed, registers })))
}

pub(super) fn store(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    if form.next_is("async") {
        return store_async(form, args);
    }
    args.exactly(2)?;
    if form.modifiers.contains(&"const") {
        return refuse("constant memory is not written");
    }
    let store = stored(form, args)?;
    // Those of a function that is called are in local memory, and their address in a register.
    if store.space == Space::Param && !matches!(store.address.base, Base::D(_)) {
        return refuse("parameters are not written");
    }
    Ok(Op::Store(Box::new(store)))
}

fn store_async(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    args.exactly(3)?;
    if !form.flag("mbarrier::complete_tx::bytes") {
        return refuse("the form is not covered");
    }
    let store = stored(form, args)?;
    if store.space != Space::Cluster || store.order != Order::Weak || store.bytes < 4 || store.registers.len() > 4 {
        return refuse("the form is not covered");
    }
    let barrier = args.address(2, Space::Cluster)?;
    Ok(Op::Hopper(Box::new(Hopper::StoreAsync { store, barrier })))
}

/// `[address], values` of a store.
fn stored(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Access> {
    let (space, order, (bytes, signed), count) = access(form)?;
    let mut registers = Vec::new();
    for part in args.parts(1)? {
        registers.push(Some(match *part {
            Operand::Reg(register) if holds(register, bytes) => register,
            Operand::Int(value) if bytes == 8 => Reg::D(args.slots.wide_constant(value)),
            Operand::F64(bits) if bytes == 8 => Reg::D(args.slots.wide_constant(bits)),
            Operand::Int(value) => Reg::W(args.slots.constant(value as u32)),
            Operand::F32(bits) if bytes == 4 => Reg::W(args.slots.constant(bits)),
            Operand::Symbol(_) | Operand::Special(_) if bytes == 4 && count == 1 => Reg::W(args.word(1)?),
            Operand::Symbol(_) if bytes == 8 && count == 1 => Reg::D(args.double(1)?),
            _ => return refuse("operand 2 is not of values of the type"),
        }));
    }
    if registers.len() != count {
        return refuse(format!("operand 2 has {} registers", registers.len()));
    }
    Ok(Access { space, order, address: args.address(0, space)?, bytes, signed, registers })
}

/// `atom` returns the old value, `red` does not.
pub(super) fn atomic(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    let ty = form.ty()?;
    let is_narrow = matches!(ty, Type::F16 | Type::Bf16 | Type::F16x2 | Type::Bf16x2);
    if is_narrow && !form.flag("noftz") {
        return refuse("`.noftz` is missing");
    }
    let order = take_order(form, Order::Strong);
    let space = take_space(form);
    let operations = [
        ("add", AtomicOp::Add),
        ("min", AtomicOp::Min),
        ("max", AtomicOp::Max),
        ("and", AtomicOp::And),
        ("or", AtomicOp::Or),
        ("xor", AtomicOp::Xor),
        ("exch", AtomicOp::Exchange),
        ("cas", AtomicOp::CompareAndSwap),
        ("inc", AtomicOp::Inc),
        ("dec", AtomicOp::Dec),
    ];
    let Some(op) = form.one_of(&operations) else { return refuse("the operation is not known") };
    let covered = match ty {
        Type::Int { bits: 32, signed } => !(signed && matches!(op, AtomicOp::Inc | AtomicOp::Dec)),
        Type::Int { bits: 64, .. } => !matches!(op, AtomicOp::Inc | AtomicOp::Dec),
        Type::Int { bits: 16, signed: false } => op == AtomicOp::CompareAndSwap,
        Type::F32 | Type::F64 => op == AtomicOp::Add,
        _ => is_narrow && op == AtomicOp::Add,
    };
    if !covered || !matches!(space, Space::Global | Space::Shared | Space::Cluster | Space::Generic) {
        return refuse("of this type, or there, it is not covered");
    }
    let returns = form.name == "atom";
    let first = usize::from(returns);
    args.exactly(first + if op == AtomicOp::CompareAndSwap { 3 } else { 2 })?;
    let d = match (returns, args.get(0)?) {
        (true, Operand::Sink) | (false, _) => None,
        (true, _) if ty.bits() == 64 => Some(Reg::D(args.to_double(0)?)),
        (true, _) if ty.bits() == 16 => Some(Reg::H(args.to_half(0)?)),
        (true, _) => Some(Reg::W(args.to_word(0)?)),
    };
    let b = args.source(first + 1, ty)?;
    let c = if op == AtomicOp::CompareAndSwap { args.source(first + 2, ty)? } else { b };
    Ok(Op::Atomic(Box::new(Atomic { space, order, op, ty, d, address: args.address(first, space)?, b, c })))
}

/// `cp.async` and its groups, bulk copies among them.
pub(super) fn copy_async(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    let reduces = form.next_is("reduce");
    if !form.next_is("async") {
        return refuse("");
    }
    if form.next_is("bulk") {
        return super::hopper::bulk(form, args, reduces);
    }
    if reduces {
        return refuse("");
    }
    if form.next_is("commit_group") {
        args.exactly(0)?;
        return Ok(Op::CopyCommit);
    }
    if form.next_is("wait_all") {
        args.exactly(0)?;
        return Ok(Op::CopyWait { pending: None });
    }
    if form.next_is("wait_group") {
        args.exactly(1)?;
        let Operand::Int(pending @ 0..=0xFFFF_FFFF) = *args.get(0)? else {
            return Args::wrong(0, "a number of groups");
        };
        return Ok(Op::CopyWait { pending: Some(pending as u32) });
    }
    let past_first_level = form.flag("cg");
    if past_first_level == form.flag("ca") {
        return refuse("it names no cache, or two");
    }
    if !(form.flag("shared") || form.flag("shared::cta")) || !form.flag("global") {
        return refuse("it is covered from global to shared memory");
    }
    form.modifiers.retain(|modifier| !modifier.starts_with("L2::"));
    args.between(3, 4)?;
    let Operand::Int(bytes) = *args.get(2)? else { return Args::wrong(2, "a number of bytes") };
    if !(bytes == 16 || matches!(bytes, 4 | 8) && !past_first_level) {
        return refuse("it does not copy this number of bytes");
    }
    let source_bytes = if args.len() == 4 { Some(args.word(3)?) } else { None };
    let (to, from) = (args.address(0, Space::Shared)?, args.address(1, Space::Global)?);
    Ok(Op::CopyAsync { to, from, bytes: bytes as u8, source_bytes })
}
