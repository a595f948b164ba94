//! Clusters, and where the instructions of sm_90 go.

use super::{Fault, bulk, mbarrier, wgmma};
use crate::program::{Hopper, Reg, Space, W};
use crate::registers::lanes;
use crate::turn::{Then, Turn};
use crate::windows;

type Result<T> = std::result::Result<T, Box<Fault>>;

pub(crate) fn hopper(turn: &mut Turn<'_, '_>, hopper: &Hopper) -> Result<()> {
    match *hopper {
        Hopper::Wgmma(ref it) => wgmma::run(turn, it)?,
        // What it orders is found when the module is loaded.
        Hopper::WgmmaFence => {}
        Hopper::WgmmaCommit => turn.in_flight.commit(),
        Hopper::WgmmaWait { pending } => {
            let threads = turn.threads();
            turn.in_flight.wait(&mut turn.cluster.shadow, threads, pending);
        }
        Hopper::Bulk(ref copy) => bulk::start(turn, copy)?,
        Hopper::BulkCommit => bulk::commit(turn),
        Hopper::BulkWait { pending, read } => bulk::wait(turn, pending, read)?,
        Hopper::StoreAsync { ref store, barrier } => bulk::store_async(turn, store, barrier)?,
        Hopper::PrefetchMap { map } => {
            let addresses = turn.registers.addresses(map);
            for lane in lanes(turn.mask) {
                bulk::read_map(turn, lane, addresses[lane])?;
            }
        }
        Hopper::PrefetchBulk(ref global) => bulk::prefetch(turn, global)?,
        Hopper::ClusterArrive => {
            let threads = turn.threads();
            let cluster = &mut *turn.cluster;
            cluster.barrier.arrive(&mut cluster.shadow, threads)?;
            cluster.global.fence();
        }
        Hopper::MapAddress { generic, d, a, rank } => map_address(turn, generic, (d, a), rank)?,
        Hopper::RankOfAddress { generic, d, a } => {
            for lane in lanes(turn.mask) {
                let (rank, _) = own_window(turn, lane, generic, turn.registers.lane(a, lane))?;
                turn.registers.set_lane(Reg::W(d), lane, rank.into());
            }
        }
        Hopper::SetRegisters { increase, registers } => {
            let shape = turn.cluster.shape;
            if !turn.cluster.registers.set(shape, turn.warp, increase, registers)? {
                turn.then = Then::Again;
            }
        }
        Hopper::MbarrierInitFence => mbarrier::publish(turn),
        // `run_path` waits for the cluster.
        Hopper::ClusterWait | Hopper::Hint => {}
    }
    Ok(())
}

/// The block that a shared address is of, and where in it.
fn own_window(turn: &Turn<'_, '_>, lane: usize, generic: bool, address: u64) -> Result<(u32, u32)> {
    let base = if generic { windows::SHARED } else { 0 };
    let inside = address.checked_sub(base).filter(|&offset| offset < windows::BYTES);
    let found = inside.and_then(|offset| turn.split(Space::Cluster, offset));
    found.ok_or_else(|| Fault::lane(lane, format!("{address:#x} is no address in shared memory of the cluster")))
}

fn map_address(turn: &mut Turn<'_, '_>, generic: bool, (d, a): (Reg, Reg), rank: W) -> Result<()> {
    for lane in lanes(turn.mask) {
        let (_, offset) = own_window(turn, lane, generic, turn.registers.lane(a, lane))?;
        let (rank, blocks) = (turn.registers.word(rank)[lane], turn.cluster.shape.blocks);
        if rank >= blocks {
            return Err(Fault::lane(lane, format!("rank {rank} of a cluster of {blocks} blocks")));
        }
        // An address of the own block is the same in both windows.
        let window = if rank == turn.rank() { 0 } else { (rank + 1) << windows::RANK_SHIFT };
        let base = if generic { windows::SHARED } else { 0 };
        turn.registers.set_lane(d, lane, base + u64::from(window | offset));
    }
    Ok(())
}
