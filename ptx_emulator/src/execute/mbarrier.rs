//! `mbarrier` objects of a block.

use super::Fault;
use super::memory::lane_word;
use crate::block::Turn;
use crate::program::{Address, D, P, Reg, W};
use crate::registers::lanes;
use crate::shadow::{AccessKind, SyncPoint, Threads};

type Result<T> = std::result::Result<T, Box<Fault>>;

/// The largest count of arrivals (PTX ISA, "mbarrier.init").
const MAX_COUNT: u32 = (1 << 20) - 1;

/// One object. Its state is kept here and not in the bytes of its shared memory, which a program must not look at.
#[derive(Debug)]
pub(crate) struct Mbarrier {
    /// Arrivals that complete a phase.
    count: u32,
    /// Arrivals that the current phase still waits for.
    missing: u32,
    /// Bytes that the current phase still waits for.
    bytes: i64,
    /// The phases that are complete.
    phase: u64,
    /// What comes before the end of the current phase, and of the last complete one.
    arriving: SyncPoint,
    completed: SyncPoint,
}

impl Mbarrier {
    fn settle(&mut self, empty: SyncPoint) {
        if self.missing == 0 && self.bytes == 0 {
            self.phase += 1;
            self.missing = self.count;
            self.completed = std::mem::replace(&mut self.arriving, empty);
        }
    }
}

/// The address of the object for a lane, aligned and in bounds.
fn locate(turn: &mut Turn<'_, '_>, lane: usize, address: u64, kind: AccessKind) -> Result<u32> {
    let shared = u64::from(turn.block.shared.len());
    if !address.is_multiple_of(8) || address > shared.saturating_sub(8) || shared < 8 {
        return Err(Fault::lane(lane, format!("no mbarrier can be at shared address {address:#x} of {shared} bytes")));
    }
    turn.note(kind, lane, address as u32, 8)?;
    Ok(address as u32)
}

pub(crate) fn init(turn: &mut Turn<'_, '_>, address: Address, count: W) -> Result<()> {
    let addresses = turn.registers.addresses(address);
    for lane in lanes(turn.mask) {
        let at = locate(turn, lane, addresses[lane], AccessKind::Write)?;
        let count = lane_word(turn, count, lane);
        if !(1..=MAX_COUNT).contains(&count) {
            return Err(Fault::lane(lane, format!("an mbarrier for {count} arrivals")));
        }
        turn.block.shared.store(at, &[0; 8]).map_err(|error| Fault::lane(lane, error))?;
        let point = turn.block.shadow.sync_point();
        let (arriving, completed) = (point.clone(), point);
        turn.block.mbarriers.insert(at, Mbarrier { count, missing: count, bytes: 0, phase: 0, arriving, completed });
    }
    Ok(())
}

pub(crate) fn invalidate(turn: &mut Turn<'_, '_>, address: Address) -> Result<()> {
    let addresses = turn.registers.addresses(address);
    for lane in lanes(turn.mask) {
        let at = locate(turn, lane, addresses[lane], AccessKind::Write)?;
        if turn.block.mbarriers.remove(&at).is_none() {
            return Err(uninitialised(lane, at));
        }
    }
    Ok(())
}

fn uninitialised(lane: usize, at: u32) -> Box<Fault> {
    Fault::lane(lane, format!("the mbarrier at shared address {at:#x} was not initialised"))
}

/// Arrives, after it expects bytes where it does.
pub(crate) fn arrive(
    turn: &mut Turn<'_, '_>,
    d: Option<D>,
    address: Address,
    count: Option<W>,
    expect_bytes: Option<W>,
) -> Result<()> {
    let addresses = turn.registers.addresses(address);
    for lane in lanes(turn.mask) {
        let at = locate(turn, lane, addresses[lane], AccessKind::Atomic)?;
        let count = count.map_or(1, |count| lane_word(turn, count, lane));
        let bytes = expect_bytes.map_or(0, |bytes| lane_word(turn, bytes, lane));
        let block = &mut *turn.block;
        let empty = block.shadow.sync_point();
        let Some(barrier) = block.mbarriers.get_mut(&at) else { return Err(uninitialised(lane, at)) };
        if count == 0 || count > barrier.missing {
            let missing = barrier.missing;
            return Err(Fault::lane(lane, format!("{count} arrivals at an mbarrier that waits for {missing}")));
        }
        let phase = barrier.phase;
        block.shadow.release(Threads::lane(turn.warp, lane as u32), &mut barrier.arriving);
        barrier.bytes += i64::from(bytes);
        barrier.missing -= count;
        barrier.settle(empty);
        if let Some(d) = d {
            turn.registers.set_lane(Reg::D(d), lane, phase);
        }
    }
    Ok(())
}

pub(crate) fn expect(turn: &mut Turn<'_, '_>, address: Address, bytes: W) -> Result<()> {
    let addresses = turn.registers.addresses(address);
    for lane in lanes(turn.mask) {
        let at = locate(turn, lane, addresses[lane], AccessKind::Atomic)?;
        let bytes = lane_word(turn, bytes, lane);
        let Some(barrier) = turn.block.mbarriers.get_mut(&at) else { return Err(uninitialised(lane, at)) };
        barrier.bytes += i64::from(bytes);
    }
    Ok(())
}

/// Whether the phase of the token, or the last one of this parity, is complete. A phase further back than the last one
/// cannot be asked for.
pub(crate) fn test(turn: &mut Turn<'_, '_>, p: P, address: Address, token: Reg, parity: bool) -> Result<()> {
    let addresses = turn.registers.addresses(address);
    let mut done = 0;
    for lane in lanes(turn.mask) {
        let at = locate(turn, lane, addresses[lane], AccessKind::Atomic)?;
        let token = turn.registers.lane(token, lane);
        let block = &mut *turn.block;
        let Some(barrier) = block.mbarriers.get(&at) else { return Err(uninitialised(lane, at)) };
        let complete = match parity {
            true => barrier.phase % 2 != token % 2,
            false => {
                if token > barrier.phase || barrier.phase - token > 1 {
                    let phase = barrier.phase;
                    return Err(Fault::lane(lane, format!("a wait for phase {token} of an mbarrier in phase {phase}")));
                }
                token < barrier.phase
            }
        };
        if complete {
            done |= 1 << lane;
            block.shadow.acquire(Threads::lane(turn.warp, lane as u32), &barrier.completed);
        }
    }
    turn.registers.set_predicate(p, done, turn.mask);
    turn.polled = done != turn.mask;
    Ok(())
}
