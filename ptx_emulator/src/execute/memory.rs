//! Loads, stores, atomics and `cp.async`.

use std::collections::VecDeque;

use super::Fault;
use super::at_once::{self, Direction};
use super::one_address;
use crate::cluster::Turn;
use crate::counters::SharedKind;
use crate::float::{BF16, Conversion, F16, Format, packed};
use crate::memory::{MemoryError, Nearest, Space as MemorySpace};
use crate::program::{Access, Address, Atomic, AtomicOp, Order, Reg, Space, Type, W};
use crate::registers::{Doubles, LANES, lanes, resolve};
use crate::shadow::{self, AccessKind, Threads};
use crate::windows;

type Result<T> = std::result::Result<T, Box<Fault>>;

/// How an instruction goes to memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    pub(crate) space: Space,
    pub(crate) order: Order,
    pub(crate) noted: Noted,
}

/// As what an access of a lane counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Noted {
    /// As one of the lane.
    Alone,
    /// As one of the lanes that execute it, as that of `wmma.load`.
    Together,
    /// The caller notes it.
    Later,
}

fn kind(kind: AccessKind, order: Order) -> AccessKind {
    if order == Order::Weak { kind } else { AccessKind::Atomic }
}

/// The longest vector access.
const MAX_BYTES: usize = 32;

fn outside(space: MemorySpace, address: u64, bytes: usize) -> MemoryError {
    MemoryError::OutOfBounds { space, address, bytes: bytes as u64, nearest: None }
}

/// An address in the 32-bit window of a memory.
fn narrow(space: MemorySpace, address: u64, bytes: usize, lane: usize) -> Result<u32> {
    u32::try_from(address).map_err(|_| Fault::lane(lane, outside(space, address, bytes)))
}

impl Turn<'_, '_> {
    /// Notes an access of one lane to shared memory.
    pub(crate) fn note(&mut self, kind: AccessKind, lane: usize, address: u32, bytes: usize) -> Result<()> {
        let access = shadow::Access::new(Threads::lane(self.warp, lane as u32), kind, self.line);
        let noted = self.cluster.shadow.access(&access, address, bytes as u32);
        noted.map_err(|race| self.shared_fault(lane, race))
    }

    /// Notes an access of the lanes as one to shared memory.
    pub(crate) fn note_together(&mut self, kind: AccessKind, lane: usize, address: u32, bytes: usize) -> Result<()> {
        let access = shadow::Access::collective(self.threads(), kind, self.line);
        let noted = self.cluster.shadow.access(&access, address, bytes as u32);
        noted.map_err(|race| self.shared_fault(lane, race))
    }

    /// An error that has addresses in shared memory and numbers of warps.
    pub(crate) fn shared_fault(&self, lane: usize, error: impl std::fmt::Display) -> Box<Fault> {
        Fault::lane(lane, format!("{error}{}", self.cluster.shape.note()))
    }

    /// The block that an address of `.shared` or `.shared::cluster` is in, and where in its shared memory.
    pub(crate) fn split(&self, space: Space, address: u64) -> Option<(u32, u32)> {
        let offset = u32::try_from(address).ok()?;
        if space != Space::Cluster || offset >> windows::RANK_SHIFT == 0 {
            return Some((self.rank(), offset));
        }
        let rank = (offset >> windows::RANK_SHIFT) - 1;
        (rank < self.cluster.shape.blocks).then_some((rank, offset & ((1 << windows::RANK_SHIFT) - 1)))
    }

    /// Where bytes at an address of `.shared` or `.shared::cluster` are in the memory of the cluster.
    pub(crate) fn shared_at(&self, space: Space, lane: usize, address: u64, bytes: usize) -> Result<u32> {
        let shape = self.cluster.shape;
        match self.split(space, address) {
            Some((rank, offset)) if u64::from(offset) + bytes as u64 <= shape.shared_bytes.into() => {
                if rank != self.rank() && !self.cluster.is_live(rank) {
                    return Err(Fault::lane(
                        lane,
                        format!("the block of rank {rank}, whose shared memory it is, has exited"),
                    ));
                }
                Ok(rank * shape.stride_bytes() + offset)
            }
            _ => {
                let offset = address as i64;
                let nearest = Nearest { base: 0, bytes: shape.shared_bytes.into(), offset, freed: false };
                let (space, bytes) = (MemorySpace::Shared, bytes as u64);
                Err(Fault::lane(lane, MemoryError::OutOfBounds { space, address, bytes, nearest: Some(nearest) }))
            }
        }
    }

    /// Notes an access of one lane to global memory.
    pub(crate) fn note_global(&mut self, kind: AccessKind, lane: usize, address: u64, bytes: usize) -> Result<()> {
        let access = shadow::Access::new(Threads::lane(self.warp, lane as u32), kind, self.line);
        self.cluster.shadow.access_global(&access, address, bytes as u32).map_err(|race| Fault::lane(lane, race))
    }

    /// Notes an access of the lanes as one to global memory.
    fn note_global_together(&mut self, kind: AccessKind, lane: usize, address: u64, bytes: usize) -> Result<()> {
        let access = shadow::Access::collective(self.threads(), kind, self.line);
        self.cluster.shadow.access_global(&access, address, bytes as u32).map_err(|race| Fault::lane(lane, race))
    }

    /// Notes weak accesses of the lanes to one memory, `bytes` each: neighbours, and lanes that read the same, at once.
    fn note_lanes(&mut self, kind: AccessKind, space: Space, addresses: &Doubles, bytes: usize) -> Result<()> {
        let each = bytes as u64;
        let mut left = self.mask;
        while left != 0 {
            let first = left.trailing_zeros() as usize;
            let start = addresses[first];
            let granule = start / shadow::GRANULE_BYTES;
            let is_next =
                |address: u64, end: u64| address == end && (end + each - 1) / shadow::GRANULE_BYTES == granule;
            let (mut group, mut end, mut same) = (1u32 << first, start + each, kind == AccessKind::Read);
            left &= left - 1;
            while left != 0 {
                let address = addresses[left.trailing_zeros() as usize];
                let is_alone = group.is_power_of_two();
                if same && address == start {
                    // A lane more that reads what the others read.
                } else if (is_alone || !same) && is_next(address, end) {
                    (end, same) = (address + each, false);
                } else {
                    break;
                }
                group |= 1 << left.trailing_zeros();
                left &= left - 1;
            }
            let threads = Threads { warp: self.warp, lanes: group };
            let access = shadow::Access::new(threads, kind, self.line);
            let apart = !group.is_power_of_two() && !same;
            let shadow = &mut self.cluster.shadow;
            let noted = match (space, apart) {
                (Space::Shared, true) => shadow.access_each(&access, start as u32, bytes as u8),
                (Space::Shared, false) => shadow.access(&access, start as u32, bytes as u32),
                (_, true) => shadow.access_global_each(&access, start, bytes as u8),
                (_, false) => shadow.access_global(&access, start, bytes as u32),
            };
            noted.map_err(|race| {
                let lane = race.later.thread.map_or(first, |thread| thread.1 as usize);
                if space == Space::Shared { self.shared_fault(lane, race) } else { Fault::lane(lane, race) }
            })?;
        }
        Ok(())
    }

    /// The memory that threads share and that all executing lanes access, and where; none if their order asks for more.
    fn one_memory(&self, access: &Access, addresses: &Doubles) -> Option<(Space, Doubles)> {
        let (mut one, mut resolved) = (None, *addresses);
        for lane in lanes(self.mask) {
            let (space, address) = resolve(access.space, addresses[lane]);
            if access.order != Order::Weak || one.is_some_and(|one| one != space) {
                return None;
            }
            one = Some(space);
            resolved[lane] = match space {
                Space::Shared => {
                    let (rank, offset) = self.split(space, address)?;
                    (rank * self.cluster.shape.stride_bytes() + offset).into()
                }
                _ => address,
            };
        }
        one.filter(|space| matches!(space, Space::Shared | Space::Global)).map(|space| (space, resolved))
    }

    /// What an access of one lane with the order of a fence does beside it.
    fn fence(&mut self, lane: usize, order: Order) -> Result<()> {
        if order == Order::Fence {
            self.cluster.fence(Threads::lane(self.warp, lane as u32), true)?;
        }
        Ok(())
    }

    /// Reads memory for one lane.
    pub(crate) fn read(&mut self, way: Way, lane: usize, address: u64, into: &mut [u8]) -> Result<()> {
        let Way { space, order, noted } = way;
        let (space, address) = resolve(space, address);
        let fault = |error: MemoryError| Fault::lane(lane, error);
        match space {
            Space::Global | Space::Generic => {
                self.cluster.global.load(address, into).map_err(fault)?;
                if noted == Noted::Later {
                    return Ok(());
                }
                self.note_global(kind(AccessKind::Read, order), lane, address, into.len())?;
                self.fence(lane, order)
            }
            Space::Shared | Space::Cluster => {
                let address = self.shared_at(space, lane, address, into.len())?;
                self.cluster.shared.load(address, into).map_err(|error| self.shared_fault(lane, error))?;
                match noted {
                    Noted::Alone => self.note(kind(AccessKind::Read, order), lane, address, into.len())?,
                    Noted::Together => self.note_together(AccessKind::Read, lane, address, into.len())?,
                    Noted::Later => {}
                }
                self.fence(lane, order)
            }
            Space::Param => {
                let address = narrow(MemorySpace::Param, address, into.len(), lane)?;
                self.cluster.params.load(address, into).map_err(fault)
            }
            Space::Local => {
                let address = narrow(MemorySpace::Local, address, into.len(), lane)?;
                match self.local.get(lane) {
                    Some(local) => local.load(address, into).map_err(fault),
                    None => Err(fault(outside(MemorySpace::Local, address.into(), into.len()))),
                }
            }
        }
    }

    /// Writes memory for one lane.
    pub(crate) fn write(&mut self, way: Way, lane: usize, address: u64, bytes: &[u8]) -> Result<()> {
        let Way { space, order, noted } = way;
        let (space, address) = resolve(space, address);
        let fault = |error: MemoryError| Fault::lane(lane, error);
        match space {
            Space::Global | Space::Generic => {
                self.fence(lane, order)?;
                self.cluster.global.store(address, bytes).map_err(fault)?;
                match noted {
                    Noted::Alone => self.note_global(kind(AccessKind::Write, order), lane, address, bytes.len()),
                    Noted::Together => self.note_global_together(AccessKind::Write, lane, address, bytes.len()),
                    Noted::Later => Ok(()),
                }
            }
            Space::Shared | Space::Cluster => {
                let address = self.shared_at(space, lane, address, bytes.len())?;
                self.fence(lane, order)?;
                let stored = self.cluster.shared.store(address, bytes);
                stored.map_err(|error| self.shared_fault(lane, error))?;
                match noted {
                    Noted::Alone => self.note(kind(AccessKind::Write, order), lane, address, bytes.len()),
                    Noted::Together => self.note_together(AccessKind::Write, lane, address, bytes.len()),
                    Noted::Later => Ok(()),
                }
            }
            Space::Param => Err(Fault::lane(lane, "a store to a parameter")),
            Space::Local => {
                let address = narrow(MemorySpace::Local, address, bytes.len(), lane)?;
                match self.local.get_mut(lane) {
                    Some(local) => local.store(address, bytes).map_err(fault),
                    None => Err(fault(outside(MemorySpace::Local, address.into(), bytes.len()))),
                }
            }
        }
    }
}

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

/// Up to 8 bytes as a number, sign- or zero-extended.
pub(super) fn number(bytes: &[u8], signed: bool) -> u64 {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let (value, shift) = (u64::from_le_bytes(wide), 64 - 8 * bytes.len() as u32);
    if signed { ((value << shift) as i64 >> shift) as u64 } else { value }
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

/// The bytes that a lane stores, and how many.
pub(super) fn stored(turn: &Turn<'_, '_>, access: &Access, lane: usize) -> ([u8; MAX_BYTES], usize) {
    let each = usize::from(access.bytes);
    let length = each * access.registers.len();
    let mut bytes = [0; MAX_BYTES];
    for (register, bytes) in access.registers.iter().zip(bytes[..length].chunks_exact_mut(each)) {
        let value = register.map_or(0, |register| turn.registers.lane(register, lane));
        bytes.copy_from_slice(&value.to_le_bytes()[..each]);
    }
    (bytes, length)
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

/// The copies of a warp's lanes that nobody waited for. The source is read when the copy starts and the destination
/// written when the thread waits, so that a kernel that does not wait sees the old bytes.
#[derive(Debug, Default)]
pub(crate) struct LaneCopies {
    lanes: [Lane; LANES],
}

impl LaneCopies {
    /// Forgets all copies.
    pub(crate) fn restart(&mut self) {
        for lane in &mut self.lanes {
            lane.copies.clear();
            lane.committed = 0;
        }
    }
}

#[derive(Debug, Default)]
struct Lane {
    /// Oldest first, each with the number of its group.
    copies: VecDeque<(u32, Copy)>,
    /// Groups committed so far: the number of the open one.
    committed: u32,
}

#[derive(Debug, Clone, Copy)]
struct Copy {
    to: u32,
    bytes: u8,
    data: [u8; 16],
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

/// Reads a register of a lane as a number of bytes or a count.
pub(crate) fn lane_word(turn: &Turn<'_, '_>, slot: W, lane: usize) -> u32 {
    turn.registers.lane(Reg::W(slot), lane) as u32
}
