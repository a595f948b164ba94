//! Loads, stores, atomics and `cp.async`.

use super::Fault;
use super::access::{MAX_BYTES, Noted, Way, number, stored};
use super::at_once::{self, Direction};
use super::one_address;
use crate::copies::Copy;
use crate::counters::SharedKind;
use crate::float::{BF16, Conversion, F16, Format, packed};
use crate::memory::{MemoryError, Space as MemorySpace};
use crate::program::{Access, Address, Atomic, AtomicOp, Space, Type, W};
use crate::registers::{LANES, lanes, resolve};
use crate::shadow::AccessKind;
use crate::turn::Turn;

type Result<T> = std::result::Result<T, Box<Fault>>;

pub(crate) fn load(turn: &mut Turn<'_, '_>, access: &Access) -> Result<()> {
    let addresses = turn.registers.addresses(access.address);
    let each = usize::from(access.bytes);
    let length = each * access.registers.len();
    let mut bytes = [0; MAX_BYTES];
    let one = turn.one_memory(access, &addresses);
    let noted = if one.is_some() { Noted::Later } else { Noted::Alone };
    let way = Way { space: access.space, order: access.order, noted };
    turn.count_access(access.space, &addresses, length, SharedKind::Plain);
    if let Some((space, addresses)) = &one
        && at_once::access(turn, Direction::Load, access, (*space, addresses))
    {
        return turn.note_lanes(AccessKind::Read, *space, addresses, length);
    }
    for lane in lanes(turn.mask) {
        turn.read(way, lane, addresses[lane], &mut bytes[..length])?;
        for (register, bytes) in access.registers.iter().zip(bytes[..length].chunks_exact(each)) {
            if let Some(register) = *register {
                turn.registers.set_lane(register, lane, number(bytes, access.signed));
            }
        }
    }
    one.map_or(Ok(()), |(space, addresses)| turn.note_lanes(AccessKind::Read, space, &addresses, length))
}

pub(crate) fn store(turn: &mut Turn<'_, '_>, access: &Access) -> Result<()> {
    let addresses = turn.registers.addresses(access.address);
    let length = usize::from(access.bytes) * access.registers.len();
    turn.count_access(access.space, &addresses, length, SharedKind::Plain);
    if one_address::store(turn, access, &addresses, length)? {
        return Ok(());
    }
    let one = turn.one_memory(access, &addresses);
    let noted = if one.is_some() { Noted::Later } else { Noted::Alone };
    let way = Way { space: access.space, order: access.order, noted };
    if let Some((space, addresses)) = &one
        && at_once::access(turn, Direction::Store, access, (*space, addresses))
    {
        return turn.note_lanes(AccessKind::Write, *space, addresses, length);
    }
    for lane in lanes(turn.mask) {
        let (bytes, length) = stored(turn, access, lane);
        turn.write(way, lane, addresses[lane], &bytes[..length])?;
    }
    one.map_or(Ok(()), |(space, addresses)| turn.note_lanes(AccessKind::Write, space, &addresses, length))
}

/// The lanes do their atomics in their order.
pub(crate) fn atomic(turn: &mut Turn<'_, '_>, atomic: &Atomic) -> Result<()> {
    let addresses = turn.registers.addresses(atomic.address);
    let bytes = atomic.ty.bits() as usize / 8;
    turn.count_access(atomic.space, &addresses, bytes, SharedKind::Atomic);
    let mut changed = false;
    for lane in lanes(turn.mask) {
        let (b, c) = (turn.registers.lane(atomic.b, lane), turn.registers.lane(atomic.c, lane));
        let (space, address) = resolve(atomic.space, addresses[lane]);
        let new = |old| replaced(atomic.op, atomic.ty, old, b, c);
        let old = match space {
            Space::Global => {
                turn.fence(lane, atomic.order)?;
                let old = turn.cluster.global.atomic(address, bytes, new).map_err(|error| Fault::lane(lane, error))?;
                turn.note_global(AccessKind::Atomic, lane, address, bytes)?;
                turn.fence(lane, atomic.order)?;
                old
            }
            Space::Shared | Space::Cluster => {
                let address = turn.shared_at(space, lane, address, bytes)?;
                turn.fence(lane, atomic.order)?;
                let mut old = [0; 8];
                let shared = &mut turn.cluster.shared;
                shared.load(address, &mut old[..bytes]).map_err(|error| Fault::lane(lane, error))?;
                let old = u64::from_le_bytes(old);
                shared.store(address, &new(old).to_le_bytes()[..bytes]).map_err(|error| Fault::lane(lane, error))?;
                turn.note(AccessKind::Atomic, lane, address, bytes)?;
                turn.fence(lane, atomic.order)?;
                old
            }
            _ => return Err(Fault::lane(lane, "an atomic that is neither in global nor in shared memory")),
        };
        changed |= new(old) != old;
        if let Some(d) = atomic.d {
            turn.registers.set_lane(d, lane, old);
        }
    }
    let progress = &mut turn.cluster.progress;
    if changed {
        progress.changed = true;
    } else {
        progress.looks += 1;
    }
    Ok(())
}

pub(crate) fn replaced(op: AtomicOp, ty: Type, old: u64, b: u64, c: u64) -> u64 {
    let signed = matches!(ty, Type::Int { signed: true, .. });
    let wide = ty.bits() == 64;
    let order = |value: u64| match (signed, wide) {
        (true, true) => i128::from(value as i64),
        (true, false) => i128::from(value as i32),
        (false, true) => i128::from(value),
        (false, false) => i128::from(value as u32),
    };
    let narrow = |format: Format| move |a: u32, b: u32| format.add(a, b, Conversion::NEAREST);
    match op {
        AtomicOp::Add if ty == Type::F32 => {
            let sum = f32::from_bits(old as u32) + f32::from_bits(b as u32);
            crate::float::canonical(sum).to_bits().into()
        }
        AtomicOp::Add if ty == Type::F64 => {
            crate::float::canonical_f64(f64::from_bits(old) + f64::from_bits(b)).to_bits()
        }
        AtomicOp::Add if ty == Type::F16 => narrow(F16)(old as u32, b as u32).into(),
        AtomicOp::Add if ty == Type::Bf16 => narrow(BF16)(old as u32, b as u32).into(),
        AtomicOp::Add if ty == Type::F16x2 => packed(old as u32, b as u32, narrow(F16)).into(),
        AtomicOp::Add if ty == Type::Bf16x2 => packed(old as u32, b as u32, narrow(BF16)).into(),
        AtomicOp::Add => old.wrapping_add(b),
        AtomicOp::Min => {
            if order(b) < order(old) {
                b
            } else {
                old
            }
        }
        AtomicOp::Max => {
            if order(b) > order(old) {
                b
            } else {
                old
            }
        }
        AtomicOp::And => old & b,
        AtomicOp::Or => old | b,
        AtomicOp::Xor => old ^ b,
        AtomicOp::Exchange => b,
        AtomicOp::CompareAndSwap => {
            if order(old) == order(b) {
                c
            } else {
                old
            }
        }
        AtomicOp::Inc => {
            if order(old) >= order(b) {
                0
            } else {
                old + 1
            }
        }
        AtomicOp::Dec => {
            if old == 0 || order(old) > order(b) {
                b
            } else {
                old - 1
            }
        }
    }
}

pub(crate) fn copy_async(
    turn: &mut Turn<'_, '_>,
    to: Address,
    from: Address,
    bytes: u8,
    source: Option<W>,
) -> Result<()> {
    let (to, from) = (turn.registers.addresses(to), turn.registers.addresses(from));
    let length = usize::from(bytes);
    let sources = source.map_or([u32::from(bytes); LANES], |source| *turn.registers.word(source));
    turn.count_copy(&to, &from, &sources, bytes.into());
    for lane in lanes(turn.mask) {
        let wanted = sources[lane];
        if wanted > u32::from(bytes) {
            return Err(Fault::lane(lane, format!("{wanted} bytes of the source are asked for, {bytes} are copied")));
        }
        let mut data = [0; 16];
        if wanted > 0 {
            let misaligned =
                MemoryError::Misaligned { space: MemorySpace::Global, address: from[lane], bytes: bytes.into() };
            if from[lane] % u64::from(bytes) != 0 {
                return Err(Fault::lane(lane, misaligned));
            }
            let whole = || turn.cluster.global.load_elements::<8, 2>(from[lane]);
            if let Some(elements) = (wanted == 16).then(whole).flatten() {
                data.copy_from_slice(elements.as_flattened());
            } else {
                let source = &mut data[..wanted as usize];
                turn.cluster.global.copy_out(from[lane], source).map_err(|error| Fault::lane(lane, error))?;
            }
            turn.note_global(AccessKind::Read, lane, from[lane], wanted as usize)?;
        }
        if to[lane] % u64::from(bytes) != 0 {
            let misaligned =
                MemoryError::Misaligned { space: MemorySpace::Shared, address: to[lane], bytes: bytes.into() };
            return Err(Fault::lane(lane, misaligned));
        }
        let address = turn.shared_at(Space::Shared, lane, to[lane], length)?;
        let thread = (turn.warp, lane as u32);
        let cluster = &mut *turn.cluster;
        let noted = cluster.copies.copy(&mut cluster.shadow, thread, turn.line, (address, bytes.into()));
        noted.map_err(|race| turn.shared_fault(lane, race))?;
        let lane = &mut turn.copies.lanes[lane];
        lane.copies.push_back((lane.committed, Copy { to: address, bytes, data }));
    }
    Ok(())
}

pub(crate) fn copy_commit(turn: &mut Turn<'_, '_>) {
    for lane in lanes(turn.mask) {
        turn.copies.lanes[lane].committed += 1;
    }
    let threads = turn.threads();
    turn.cluster.copies.commit(threads);
}

/// Delivers what the lanes wait for.
pub(crate) fn copy_wait(turn: &mut Turn<'_, '_>, pending: Option<u32>) -> Result<()> {
    for lane in lanes(turn.mask) {
        let copies = &mut turn.copies.lanes[lane];
        let due = |group: u32| match pending {
            None => true,
            Some(pending) => group.saturating_add(pending) < copies.committed,
        };
        let count = copies.copies.iter().take_while(|copy| due(copy.0)).count();
        for (_, copy) in copies.copies.drain(..count) {
            let bytes = &copy.data[..usize::from(copy.bytes)];
            turn.cluster.shared.store(copy.to, bytes).map_err(|error| Fault::lane(lane, error))?;
        }
    }
    let threads = turn.threads();
    let cluster = &mut *turn.cluster;
    match pending {
        None => cluster.copies.wait_all(&mut cluster.shadow, threads),
        Some(pending) => cluster.copies.wait(&mut cluster.shadow, threads, pending as usize),
    }
    Ok(())
}
