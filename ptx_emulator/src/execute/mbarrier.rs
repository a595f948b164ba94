//! The instructions of `mbarrier`.

use super::access::lane_word;
use super::{Fault, bulk};
use crate::cluster::mbarrier::{Mbarrier, uninitialised};
use crate::program::{Address, D, P, Reg, Space, W};
use crate::registers::lanes;
use crate::shadow::{AccessKind, Threads};
use crate::turn::{Then, Turn};

type Result<T> = std::result::Result<T, Box<Fault>>;

/// The largest count of arrivals (PTX ISA, "mbarrier.init").
const MAX_COUNT: u32 = (1 << 20) - 1;

/// A fence of the threads makes the objects that they initialised visible to copies.
pub(crate) fn publish(turn: &mut Turn<'_, '_>) {
    let fencing = turn.threads();
    for barrier in turn.cluster.mbarriers.values_mut() {
        let hidden = barrier.hidden_by.filter(|by| by.warp != fencing.warp || by.lanes & fencing.lanes == 0);
        barrier.hidden_by = hidden;
    }
}

/// The address of the object for a lane, aligned and in bounds, in the memory of the cluster.
fn locate(turn: &mut Turn<'_, '_>, lane: usize, address: u64, kind: AccessKind) -> Result<u32> {
    let at = turn.shared_at(Space::Cluster, lane, address, 8).ok().filter(|at| at.is_multiple_of(8));
    let Some(at) = at else {
        let shared = turn.cluster.shape.shared_bytes;
        return Err(Fault::lane(lane, format!("no mbarrier can be at shared address {address:#x} of {shared} bytes")));
    };
    turn.note(kind, lane, at, 8)?;
    Ok(at)
}

pub(crate) fn init(turn: &mut Turn<'_, '_>, address: Address, count: W) -> Result<()> {
    let addresses = turn.registers.addresses(address);
    for lane in lanes(turn.mask) {
        let at = locate(turn, lane, addresses[lane], AccessKind::Write)?;
        let count = lane_word(turn, count, lane);
        if !(1..=MAX_COUNT).contains(&count) {
            return Err(Fault::lane(lane, format!("an mbarrier for {count} arrivals")));
        }
        turn.cluster.shared.store(at, &[0; 8]).map_err(|error| Fault::lane(lane, error))?;
        let point = turn.cluster.shadow.sync_point();
        let barrier = Mbarrier::new(count, Threads::lane(turn.warp, lane as u32), point);
        turn.cluster.mbarriers.insert(at, barrier);
    }
    Ok(())
}

pub(crate) fn invalidate(turn: &mut Turn<'_, '_>, address: Address) -> Result<()> {
    let addresses = turn.registers.addresses(address);
    for lane in lanes(turn.mask) {
        let at = locate(turn, lane, addresses[lane], AccessKind::Write)?;
        if turn.cluster.mbarriers.remove(&at).is_none() {
            return Err(uninitialised(lane, at));
        }
    }
    Ok(())
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
        let cluster = &mut *turn.cluster;
        let empty = cluster.shadow.sync_point();
        let Some(barrier) = cluster.mbarriers.get_mut(&at) else { return Err(uninitialised(lane, at)) };
        if count == 0 || count > barrier.missing {
            let missing = barrier.missing;
            return Err(Fault::lane(lane, format!("{count} arrivals at an mbarrier that waits for {missing}")));
        }
        let phase = barrier.phase;
        cluster.shadow.release(Threads::lane(turn.warp, lane as u32), &mut barrier.arriving);
        barrier.missing -= count;
        barrier.count_bytes(bytes, 0, empty).map_err(|problem| Fault::lane(lane, problem))?;
        if let Some(d) = d {
            turn.registers.set_lane(Reg::D(d), lane, phase);
        }
    }
    Ok(())
}

/// Counts bytes as expected, or as arrived.
pub(crate) fn count(turn: &mut Turn<'_, '_>, address: Address, bytes: W, completes: bool) -> Result<()> {
    let addresses = turn.registers.addresses(address);
    for lane in lanes(turn.mask) {
        let at = locate(turn, lane, addresses[lane], AccessKind::Atomic)?;
        let bytes = lane_word(turn, bytes, lane);
        let (expected, arrived) = if completes { (0, bytes) } else { (bytes, 0) };
        let cluster = &mut *turn.cluster;
        let empty = cluster.shadow.sync_point();
        let Some(barrier) = cluster.mbarriers.get_mut(&at) else { return Err(uninitialised(lane, at)) };
        barrier.count_bytes(expected, arrived, empty).map_err(|problem| Fault::lane(lane, problem))?;
    }
    Ok(())
}

/// Whether the phase of the token, or the last one of this parity, is complete. A phase further back than the last one
/// cannot be asked for.
///
/// Copies arrive when somebody looks for them in vain.
pub(crate) fn test(turn: &mut Turn<'_, '_>, p: P, address: Address, token: Reg, parity: bool) -> Result<()> {
    let addresses = turn.registers.addresses(address);
    let mut done = 0;
    for lane in lanes(turn.mask) {
        let at = locate(turn, lane, addresses[lane], AccessKind::Atomic)?;
        let token = turn.registers.lane(token, lane);
        let mut complete = is_complete(turn, lane, at, token, parity)?;
        if !complete && bulk::deliver(turn.cluster, at).map_err(|problem| Fault::lane(lane, problem))? {
            complete = is_complete(turn, lane, at, token, parity)?;
        }
        if complete {
            done |= 1 << lane;
            let cluster = &mut *turn.cluster;
            let Some(barrier) = cluster.mbarriers.get(&at) else { return Err(uninitialised(lane, at)) };
            cluster.shadow.acquire(Threads::lane(turn.warp, lane as u32), &barrier.completed);
        } else {
            turn.then = Then::Polled(at);
        }
    }
    turn.registers.set_predicate(p, done, turn.mask);
    Ok(())
}

fn is_complete(turn: &Turn<'_, '_>, lane: usize, at: u32, token: u64, parity: bool) -> Result<bool> {
    let Some(barrier) = turn.cluster.mbarriers.get(&at) else { return Err(uninitialised(lane, at)) };
    let phase = barrier.phase;
    if parity {
        return Ok(phase % 2 != token % 2);
    }
    if token > phase || phase - token > 1 {
        return Err(Fault::lane(lane, format!("a wait for phase {token} of an mbarrier in phase {phase}")));
    }
    Ok(token < phase)
}
