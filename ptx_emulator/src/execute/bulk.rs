//! Bulk copies between global and shared memory.
//!
//! A copy reads its source when it starts, and its bytes arrive when somebody waits for them. The bytes of a load
//! arrive when a test of its mbarrier fails; those of a store at the wait for its group, or at the end of the block.
//! Until then nobody may touch the destination or write the source, which the shadow checks.

use std::sync::Arc;

use layout::Swizzle;

use super::memory::replaced;
use super::{EndFault, Fault};
use crate::cluster::Cluster;
use crate::cluster::bulk_copies::{Issue, Load, Store};
use crate::cluster::mbarrier;
use crate::float::{BF16, Conversion, F16};
use crate::memory::{MemoryError, Space as MemorySpace};
use crate::program::{self, Address, AtomicOp, Bulk, Direction, GlobalSide, Space, Type, W};
use crate::registers::{lanes, resolve};
use crate::shadow::{Access, AccessKind, CtaShadow, Operation, Proxy, Threads};
use crate::tensor_map::{ElementType, Piece, TensorMap};
use crate::turn::Turn;
use crate::windows;

type Result<T> = std::result::Result<T, Box<Fault>>;

/// What the unit moves at a time, and lines and coordinates are multiples of.
const UNIT_BYTES: usize = 16;
/// What boxes in shared memory are aligned to, if their swizzle asks for no more.
const BOX_ALIGN: u32 = 128;
/// What tensor maps are aligned to.
const MAP_ALIGN: u32 = 64;
/// Where the parameters of a kernel begin on sm_90, modulo the alignment of a map.
const PARAM_BASE: u32 = 0x210;

/// The global side of one copy.
struct Side {
    pieces: Vec<Piece>,
    bytes: usize,
    swizzle: Swizzle,
    /// Of the shared side.
    align: u32,
    element: Option<ElementType>,
}

/// Where the unit at `offset` of a box is, from its start.
fn place(swizzle: Swizzle, offset: usize) -> u32 {
    swizzle.apply(offset as u32)
}

/// Starts the copies of the lanes.
pub(crate) fn start(turn: &mut Turn<'_, '_>, copy: &Bulk) -> Result<()> {
    let addresses = turn.registers.addresses(copy.shared);
    for lane in lanes(turn.mask) {
        let loads = matches!(copy.direction, Direction::Load { .. });
        let side = global_side(turn, lane, &copy.global, loads)?;
        let address = addresses[lane];
        turn.count_pieces(side.pieces.iter().map(|piece| (piece.address, piece.bytes as u32)));
        if !address.is_multiple_of(side.align.into()) {
            return Err(Fault::lane(
                lane,
                format!(
                    "the shared address {address:#x} of the copy is no multiple of {} bytes{}",
                    side.align,
                    match side.swizzle {
                        Swizzle::None => String::new(),
                        swizzle => format!(", the period of its swizzle of {}", swizzle.row_bytes()),
                    }
                ),
            ));
        }
        match copy.direction {
            Direction::Load { barrier, blocks } => {
                let barrier = turn.registers.addresses(barrier)[lane];
                load(turn, lane, side, address, (barrier, blocks))?;
            }
            Direction::Store => store(turn, lane, side, address, None)?,
            Direction::Reduce(op, ty) => {
                let Some(ty) = ty.or_else(|| side.element.and_then(reduced_type)) else {
                    return Err(Fault::lane(lane, "a reduction of elements of this type"));
                };
                check_reduction(op, ty).map_err(|problem| Fault::lane(lane, problem))?;
                store(turn, lane, side, address, Some((op, ty)))?;
            }
        }
    }
    Ok(())
}

/// Checks what the lanes prefetch as the load that follows is checked; there is no cache to fill.
pub(crate) fn prefetch(turn: &mut Turn<'_, '_>, global: &GlobalSide) -> Result<()> {
    lanes(turn.mask).try_for_each(|lane| global_side(turn, lane, global, true).map(drop))
}

fn reduced_type(element: ElementType) -> Option<Type> {
    match element {
        ElementType::U8 | ElementType::U16 => None,
        ElementType::U32 => Some(Type::Int { bits: 32, signed: false }),
        ElementType::I32 => Some(Type::Int { bits: 32, signed: true }),
        ElementType::U64 => Some(Type::Int { bits: 64, signed: false }),
        ElementType::I64 => Some(Type::Int { bits: 64, signed: true }),
        ElementType::F16 => Some(Type::F16),
        ElementType::Bf16 => Some(Type::Bf16),
        ElementType::F64 => Some(Type::F64),
        ElementType::F32 | ElementType::F32Ftz | ElementType::Tf32 | ElementType::Tf32Ftz => Some(Type::F32),
    }
}

/// Floats are added; f16 and bf16 are compared too.
fn check_reduction(op: AtomicOp, ty: Type) -> std::result::Result<(), &'static str> {
    match ty {
        Type::Int { .. } => Ok(()),
        Type::F16 | Type::Bf16 if matches!(op, AtomicOp::Add | AtomicOp::Min | AtomicOp::Max) => Ok(()),
        _ if op == AtomicOp::Add => Ok(()),
        _ => Err("a reduction other than a sum of elements of this type"),
    }
}

fn global_side(turn: &mut Turn<'_, '_>, lane: usize, global: &GlobalSide, loads: bool) -> Result<Side> {
    match global {
        GlobalSide::Line { address, bytes } => {
            let address = turn.registers.addresses(*address)[lane];
            let bytes = turn.registers.word(*bytes)[lane] as usize;
            if !address.is_multiple_of(UNIT_BYTES as u64) || !bytes.is_multiple_of(UNIT_BYTES) {
                return Err(Fault::lane(
                    lane,
                    format!("a copy of {bytes} bytes at {address:#x}: neither may be off 16"),
                ));
            }
            let pieces = vec![Piece { offset: 0, address, bytes }];
            Ok(Side { pieces, bytes, swizzle: Swizzle::None, align: UNIT_BYTES as u32, element: None })
        }
        GlobalSide::Tensor { map, coordinates } => {
            let address = turn.registers.addresses(*map)[lane];
            let map = read_map(turn, lane, address)?;
            if map.dims.len() != coordinates.len() {
                let (given, has) = (coordinates.len(), map.dims.len());
                return Err(Fault::lane(lane, format!("{given} coordinates in a tensor of {has} dimensions")));
            }
            let at: Vec<i32> = coordinates.iter().map(|&slot: &W| turn.registers.word(slot)[lane] as i32).collect();
            if !loads && let Some(negative) = at.iter().find(|&&at| at < 0) {
                return Err(Fault::lane(
                    lane,
                    format!("a box that is written starts at the negative coordinate {negative}, which is illegal"),
                ));
            }
            let first = i64::from(at[0]) * i64::from(map.element.bytes());
            if first % UNIT_BYTES as i64 != 0 {
                return Err(Fault::lane(
                    lane,
                    format!(
                        "the box starts at element {} of a row, {first} bytes: no multiple of 16, which is illegal",
                        at[0]
                    ),
                ));
            }
            let pieces = map.pieces(&at);
            // A card faults where the tensor begins, whatever part of it is asked for.
            if !pieces.is_empty() {
                let begin = turn.cluster.global.check(map.address, 1);
                begin.map_err(|error| Fault::lane(lane, format!("where the tensor of the map begins: {error}")))?;
            }
            Ok(Side {
                pieces,
                bytes: map.box_bytes() as usize,
                swizzle: map.swizzle,
                align: BOX_ALIGN.max(map.swizzle.period_bytes()),
                element: Some(map.element),
            })
        }
    }
}

/// The tensor map at a generic address.
pub(crate) fn read_map(turn: &mut Turn<'_, '_>, lane: usize, address: u64) -> Result<TensorMap> {
    let mut bytes = [0; 128];
    let (space, offset) = resolve(Space::Generic, address);
    let (read, misaligned) = match space {
        Space::Param => {
            let offset = offset as u32;
            let params = &turn.cluster.program.params;
            let param = params.iter().rfind(|param| param.offset <= offset);
            // A parameter without an alignment of its own lies where those before it leave it.
            let base = if param.is_some_and(|param| param.align >= MAP_ALIGN) { 0 } else { PARAM_BASE };
            (turn.cluster.params.copy_out(offset, &mut bytes), !(base + offset).is_multiple_of(MAP_ALIGN))
        }
        Space::Global => (turn.cluster.global.copy_out(offset, &mut bytes), !offset.is_multiple_of(MAP_ALIGN.into())),
        _ => return Err(Fault::lane(lane, "a tensor map that is neither a parameter nor in global memory")),
    };
    read.map_err(|error| Fault::lane(lane, error))?;
    if misaligned {
        return Err(Fault::lane(lane, format!("the tensor map at {address:#x} is not aligned to {MAP_ALIGN} bytes")));
    }
    let words = bytes.as_chunks().0;
    let map = TensorMap::decode(std::array::from_fn(|at| u64::from_le_bytes(words[at])));
    map.ok_or_else(|| Fault::lane(lane, format!("there is no tensor map at {address:#x}")))
}

/// The bytes in shared memory that a copy touches, as ranges from its start.
fn shared_ranges(swizzle: Swizzle, bytes: usize) -> Vec<(u32, u32)> {
    if (bytes as u32).is_multiple_of(swizzle.row_bytes()) {
        // The swizzle stays inside of its rows.
        return vec![(0, bytes as u32)];
    }
    (0..bytes)
        .step_by(UNIT_BYTES)
        .map(|offset| (place(swizzle, offset), UNIT_BYTES.min(bytes - offset) as u32))
        .collect()
}

fn async_access(Issue { warp, lane, line, .. }: Issue, kind: AccessKind) -> Access {
    Access { proxy: Proxy::Async, ..Access::new(Threads::lane(warp, lane), kind, line) }
}

impl Turn<'_, '_> {
    fn issue(&self, lane: usize) -> Issue {
        Issue { warp: self.warp, lane: lane as u32, at: self.at, line: self.line }
    }

    /// Notes what a copy does to shared memory from now until it is waited for.
    fn note_copy(
        &mut self,
        kind: AccessKind,
        lane: usize,
        at: u32,
        swizzle: Swizzle,
        bytes: usize,
    ) -> Result<Operation> {
        let access = async_access(self.issue(lane), kind);
        let operation = self.cluster.shadow.start();
        for (offset, bytes) in shared_ranges(swizzle, bytes) {
            let noted = self.cluster.shadow.access_pending(operation, &access, at + offset, bytes);
            noted.map_err(|race| self.shared_fault(lane, race))?;
        }
        Ok(operation)
    }
}

fn load(
    turn: &mut Turn<'_, '_>,
    lane: usize,
    side: Side,
    address: u64,
    (barrier, blocks): (u64, Option<W>),
) -> Result<()> {
    let mut data = vec![0; side.bytes];
    for piece in &side.pieces {
        let into = &mut data[piece.offset..][..piece.bytes];
        turn.cluster.global.copy_out(piece.address, into).map_err(|error| Fault::lane(lane, error))?;
        let access = async_access(turn.issue(lane), AccessKind::Read);
        let noted = turn.cluster.shadow.access_global(&access, piece.address, piece.bytes as u32);
        noted.map_err(|race| Fault::lane(lane, race))?;
    }
    let blocks = blocks.map(|slot| turn.registers.word(slot)[lane]);
    send(turn, lane, (data.into(), side.swizzle), address, (barrier, blocks))
}

/// Stores what the lanes hold to shared memory of the cluster. It arrives as copies do.
pub(crate) fn store_async(turn: &mut Turn<'_, '_>, store: &program::Access, barrier: Address) -> Result<()> {
    let (addresses, barriers) = (turn.registers.addresses(store.address), turn.registers.addresses(barrier));
    let each = usize::from(store.bytes);
    for lane in lanes(turn.mask) {
        let mut data = Vec::with_capacity(each * store.registers.len());
        for register in &store.registers {
            let value = register.map_or(0, |register| turn.registers.lane(register, lane));
            data.extend_from_slice(&value.to_le_bytes()[..each]);
        }
        if !addresses[lane].is_multiple_of(data.len() as u64) {
            let (address, bytes) = (addresses[lane], data.len());
            return Err(Fault::lane(
                lane,
                format!("the shared address {address:#x} is no multiple of the {bytes} bytes stored"),
            ));
        }
        send(turn, lane, (data.into(), Swizzle::None), addresses[lane], (barriers[lane], None))?;
    }
    Ok(())
}

/// Starts the way of data to shared memory at `address` of the cluster, in its block or in `blocks`, where the bytes
/// count on the barrier.
fn send(
    turn: &mut Turn<'_, '_>,
    lane: usize,
    (data, swizzle): (Arc<[u8]>, Swizzle),
    address: u64,
    (barrier, blocks): (u64, Option<u32>),
) -> Result<()> {
    let outside = |address| MemoryError::OutOfBounds {
        space: MemorySpace::Shared,
        address,
        bytes: data.len() as u64,
        nearest: None,
    };
    let destination = turn.split(Space::Cluster, address).zip(turn.split(Space::Cluster, barrier));
    let Some(((rank, offset), (barrier_rank, barrier_offset))) = destination else {
        return Err(Fault::lane(lane, outside(address)));
    };
    let ranks = match blocks {
        None if rank != barrier_rank => {
            return Err(Fault::lane(lane, "the mbarrier of the copy is not in the block that it copies to"));
        }
        None => 1 << rank,
        Some(blocks) => blocks,
    };
    let count = turn.cluster.shape.blocks;
    if ranks == 0 || u64::from(ranks) >> count != 0 {
        return Err(Fault::lane(lane, format!("a copy to the blocks {ranks:#b} of a cluster of {count}")));
    }
    for rank in lanes(ranks) {
        let window = |offset: u32| u64::from((rank as u32 + 1) << windows::RANK_SHIFT | offset);
        let to = turn.shared_at(Space::Cluster, lane, window(offset), data.len())?;
        let barrier = turn.shared_at(Space::Cluster, lane, window(barrier_offset), 8)?;
        match turn.cluster.mbarriers.get(&barrier) {
            None => return Err(mbarrier::uninitialised(lane, barrier)),
            Some(barrier) if !barrier.is_visible() => {
                let problem =
                    "its thread made the mbarrier of the copy not visible to copies: fence.mbarrier_init is missing";
                return Err(Fault::lane(lane, problem));
            }
            Some(_) => {}
        }
        let operation = turn.note_copy(AccessKind::Write, lane, to, swizzle, data.len())?;
        let (data, issue) = (Arc::clone(&data), turn.issue(lane));
        turn.cluster.bulk.loads.push(Load { to, barrier, swizzle, data, operation, issue });
    }
    Ok(())
}

/// Lets the copies that count on a barrier arrive; whether there were any.
pub(crate) fn deliver(cluster: &mut Cluster<'_>, barrier: u32) -> std::result::Result<bool, String> {
    let mut arrived = false;
    while let Some(index) = cluster.bulk.loads.iter().position(|load| load.barrier == barrier) {
        arrived = true;
        let load = cluster.bulk.loads.remove(index);
        for (unit, bytes) in load.data.chunks(UNIT_BYTES).enumerate() {
            let at = load.to + place(load.swizzle, unit * UNIT_BYTES);
            cluster.shared.copy_in(at, bytes).map_err(|error| error.to_string())?;
        }
        let empty = cluster.shadow.sync_point();
        let Some(object) = cluster.mbarriers.get_mut(&barrier) else {
            return Err(format!("the mbarrier of the copy in PTX line {} is no more", load.issue.line));
        };
        cluster.shadow.finish_into(load.operation, barrier / 8, &mut object.arriving);
        object.count_bytes(0, load.data.len() as u32, empty)?;
    }
    Ok(arrived)
}

fn store(
    turn: &mut Turn<'_, '_>,
    lane: usize,
    side: Side,
    address: u64,
    reduction: Option<(AtomicOp, Type)>,
) -> Result<()> {
    let from = turn.shared_at(Space::Shared, lane, address, side.bytes)?;
    let operation = turn.note_copy(AccessKind::Read, lane, from, side.swizzle, side.bytes)?;
    let mut data = vec![0; side.bytes];
    for (unit, into) in data.chunks_mut(UNIT_BYTES).enumerate() {
        let at = from + place(side.swizzle, unit * UNIT_BYTES);
        turn.cluster.shared.copy_out(at, into).map_err(|error| turn.shared_fault(lane, error))?;
    }
    let store = Store { data, pieces: side.pieces, reduction, operation: Some(operation), issue: turn.issue(lane) };
    let thread = turn.warp * 32 + lane as u32;
    turn.cluster.bulk.groups.entry(thread).or_default().open.push(store);
    Ok(())
}

pub(crate) fn commit(turn: &mut Turn<'_, '_>) {
    for lane in lanes(turn.mask) {
        let groups = turn.cluster.bulk.groups.entry(turn.warp * 32 + lane as u32).or_default();
        let group = std::mem::take(&mut groups.open);
        groups.committed.push_back(group);
    }
}

/// Waits until at most `pending` groups of each lane are in flight, or have not read their sources.
pub(crate) fn wait(turn: &mut Turn<'_, '_>, pending: u32, read: bool) -> Result<()> {
    for lane in lanes(turn.mask) {
        let threads = Threads::lane(turn.warp, lane as u32);
        let cluster = &mut *turn.cluster;
        let Some(groups) = cluster.bulk.groups.get_mut(&(turn.warp * 32 + lane as u32)) else { continue };
        let done = groups.committed.len().saturating_sub(pending as usize);
        for store in groups.committed.iter_mut().take(done).flatten() {
            finish_reading(store, &mut cluster.shadow, threads);
        }
        if read {
            continue;
        }
        let finished: Vec<Store> = groups.committed.drain(..done).flatten().collect();
        for store in &finished {
            write(cluster, store).map_err(|problem| Fault::lane(lane, problem))?;
        }
    }
    Ok(())
}

fn finish_reading(store: &mut Store, shadow: &mut CtaShadow, threads: Threads) {
    if let Some(operation) = store.operation.take() {
        shadow.finish(operation, threads);
    }
}

/// Writes what a store has read.
fn write(cluster: &mut Cluster<'_>, store: &Store) -> std::result::Result<(), String> {
    let kind = if store.reduction.is_some() { AccessKind::Atomic } else { AccessKind::Write };
    for piece in &store.pieces {
        let data = &store.data[piece.offset..][..piece.bytes];
        let written = match store.reduction {
            None => cluster.global.copy_in(piece.address, data),
            Some((op, ty)) => reduce(cluster, piece.address, data, (op, ty)),
        };
        written.map_err(|error| error.to_string())?;
        let access = async_access(store.issue, kind);
        let noted = cluster.shadow.access_global(&access, piece.address, piece.bytes as u32);
        noted.map_err(|race| race.to_string())?;
    }
    Ok(())
}

fn reduce(
    cluster: &mut Cluster<'_>,
    address: u64,
    data: &[u8],
    (op, ty): (AtomicOp, Type),
) -> std::result::Result<(), MemoryError> {
    let each = ty.bits() as usize / 8;
    for (element, bytes) in data.chunks_exact(each).enumerate() {
        let mut wide = [0; 8];
        wide[..each].copy_from_slice(bytes);
        let b = u64::from_le_bytes(wide);
        let new = |old: u64| match ty {
            Type::F16 | Type::Bf16 => {
                let format = if ty == Type::F16 { F16 } else { BF16 };
                let (old, b) = (old as u32, b as u32);
                u64::from(match op {
                    AtomicOp::Min => format.min(old, b),
                    AtomicOp::Max => format.max(old, b),
                    _ => format.add(old, b, Conversion::NEAREST),
                })
            }
            _ => replaced(op, ty, old, b, b),
        };
        cluster.global.atomic(address + (element * each) as u64, each, new)?;
    }
    Ok(())
}

/// All threads of a block have exited: copies that still use its shared memory are an error, and stores arrive.
pub(crate) fn end_block(cluster: &mut Cluster<'_>, rank: u32) -> std::result::Result<(), EndFault> {
    let fault = |issue: Issue, problem: &str| (issue.at, (issue.warp, Some(issue.lane)), problem.to_owned());
    let stride = cluster.shape.stride_bytes();
    if let Some(load) = cluster.bulk.loads.iter().find(|load| load.to / stride.max(1) == rank) {
        return Err(fault(
            load.issue,
            "the block that it copies to exits while the copy is under way: nobody waited for it",
        ));
    }
    let threads = cluster.shape.warps * 32;
    let mut stores = Vec::new();
    for (_, groups) in cluster.bulk.groups.range_mut(rank * threads..(rank + 1) * threads) {
        stores.extend(std::mem::take(&mut groups.committed).into_iter().flatten());
        stores.append(&mut groups.open);
    }
    for store in stores {
        if store.operation.is_some() {
            let problem =
                "the block exits while the copy may still read its shared memory: cp.async.bulk.wait_group is missing";
            return Err(fault(store.issue, problem));
        }
        write(cluster, &store).map_err(|problem| fault(store.issue, &problem))?;
    }
    cluster.warpgroups.end(cluster.shape, rank)
}
