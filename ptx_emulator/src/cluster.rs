//! What the warps of a cluster share: memory, barriers and counters. A block of a launch without clusters is a cluster
//! of one.

mod barrier;
pub(crate) mod bulk_copies;
pub(crate) mod mbarrier;
mod registers;
mod votes;
pub(crate) mod warpgroups;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use barrier::ClusterBarrier;
use bulk_copies::BulkCopies;
use mbarrier::Mbarrier;
use registers::RegisterPool;
use votes::BarrierVotes;
use warpgroups::Warpgroups;

use crate::counters::Tally;
use crate::execute::Fault;
use crate::memory::{GlobalView, OwnedMemory};
use crate::program::Program;
use crate::progress::Progress;
use crate::report::Report;
use crate::shadow::{CopyGroups, CtaShadow, LaunchShadow, Threads};
use crate::shape::Shape;
use crate::tensor_core::wgmma::Fp8Sums;
use crate::variables::Placed;

/// Bytes that are kept of what kernels print: as many as a card has room for.
const MAX_PRINTED_BYTES: usize = 1 << 20;
/// The named barriers of a block.
pub(crate) const BARRIERS: usize = 16;
/// The number that stands for the barrier of the cluster.
pub(crate) const CLUSTER_BARRIER: u32 = BARRIERS as u32;

/// The blocks of a cluster, in flight: what they share, and what each of them has.
pub(crate) struct Cluster<'a> {
    pub(crate) program: &'a Program,
    pub(crate) shape: Shape,
    pub(crate) fp8_sums: Fp8Sums,
    pub(crate) params: &'a OwnedMemory,
    pub(crate) global: GlobalView,
    pub(crate) shared: OwnedMemory,
    /// Its accesses to shared and global memory.
    pub(crate) shadow: CtaShadow,
    /// Its index in the grid.
    pub(crate) index: u64,
    /// What the other blocks did to global memory, in a kernel whose blocks talk to each other.
    others: Option<&'a Mutex<LaunchShadow>>,
    pub(crate) copies: CopyGroups,
    pub(crate) mbarriers: BTreeMap<u32, Mbarrier>,
    pub(crate) bulk: BulkCopies,
    pub(crate) warpgroups: Warpgroups,
    pub(crate) barrier: ClusterBarrier,
    pub(crate) registers: RegisterPool,
    /// Where the variables of the module are.
    pub(crate) variables: &'a Placed,
    /// What the warps gave to `bar.red`.
    pub(crate) votes: BarrierVotes,
    /// What the launch printed.
    printed: &'a Mutex<String>,
    pub(crate) report: Report,
    /// What the warp that has its turn does for others.
    pub(crate) progress: Progress,
    /// The counts of each instruction, where they are asked for.
    pub(crate) tally: Option<Box<Tally>>,
    /// Of each block.
    block_barriers: Vec<[Barrier; BARRIERS]>,
    /// Warps of each block that have threads which did not exit.
    live_warps: Vec<u32>,
}

/// One named barrier, between two completions.
#[derive(Default)]
struct Barrier {
    /// The threads that the instructions name; none if all of the block.
    threads: Option<u32>,
    waiting: Vec<Threads>,
    arrived: Vec<Threads>,
    completions: u32,
}

impl<'a> Cluster<'a> {
    pub(crate) fn new(
        program: &'a Program,
        params: &'a OwnedMemory,
        (global, others): (GlobalView, Option<&'a Mutex<LaunchShadow>>),
        shared: OwnedMemory,
        (shape, fp8_sums): (Shape, Fp8Sums),
        (variables, printed): (&'a Placed, &'a Mutex<String>),
    ) -> Cluster<'a> {
        let threads = shape.blocks * shape.warps * 32;
        let shadow = CtaShadow::new(shared.len(), threads);
        let shadow = if program.signals { shadow.with_fences() } else { shadow };
        Cluster {
            program,
            shape,
            fp8_sums,
            params,
            global,
            index: 0,
            others,
            copies: CopyGroups::new(threads),
            bulk: BulkCopies::default(),
            warpgroups: Warpgroups::new(shape),
            barrier: ClusterBarrier::new(shape, &shadow),
            registers: RegisterPool::new(program, shape),
            variables,
            votes: BarrierVotes::new(shape),
            printed,
            shadow,
            shared,
            mbarriers: BTreeMap::new(),
            report: Report::default(),
            progress: Progress::default(),
            tally: None,
            block_barriers: (0..shape.blocks).map(|_| Default::default()).collect(),
            live_warps: vec![shape.warps; shape.blocks as usize],
        }
    }

    /// Makes this cluster as it was when it was new, for the next cluster of the launch.
    pub(crate) fn restart(&mut self, index: u64) {
        let shape = self.shape;
        self.index = index;
        self.shared.clear();
        self.shadow.restart();
        self.copies.restart();
        self.mbarriers.clear();
        self.bulk = BulkCopies::default();
        self.warpgroups = Warpgroups::new(shape);
        self.barrier = ClusterBarrier::new(shape, &self.shadow);
        self.registers = RegisterPool::new(self.program, shape);
        self.votes = BarrierVotes::new(shape);
        self.report = Report::default();
        self.block_barriers.fill_with(Default::default);
        self.live_warps.fill(shape.warps);
    }

    /// A fence between the threads of all blocks, or of one.
    pub(crate) fn fence(&mut self, threads: Threads, device: bool) -> Result<(), Box<Fault>> {
        self.global.fence();
        self.shadow.fence(threads);
        match self.others {
            Some(others) if device => {
                let mut others = others.lock().unwrap_or_else(PoisonError::into_inner);
                others.fence(self.index as u32, &self.shadow.publish()).map_err(|race| Fault::race(&race))
            }
            _ => Ok(()),
        }
    }

    /// Adds to what the launch prints, as long as there is room.
    pub(crate) fn print(&mut self, text: &str) {
        let mut printed = self.printed.lock().unwrap_or_else(PoisonError::into_inner);
        if printed.len() + text.len() <= MAX_PRINTED_BYTES {
            printed.push_str(text);
        }
    }

    /// How often barrier `id` of the block of a warp was completed.
    pub(crate) fn completions(&self, warp: u32, id: u32) -> u32 {
        if id == CLUSTER_BARRIER {
            return self.barrier.completions();
        }
        self.block_barriers[self.shape.rank_of(warp) as usize][id as usize % BARRIERS].completions
    }

    /// Whether the block of this rank has threads that did not exit.
    pub(crate) fn is_live(&self, rank: u32) -> bool {
        self.live_warps[rank as usize] > 0
    }

    /// A warp arrives at a barrier, to wait there or to go on.
    pub(crate) fn arrive(
        &mut self,
        id: u32,
        threads: Option<u32>,
        warp: Threads,
        waits: bool,
    ) -> Result<(), Box<Fault>> {
        let rank = self.shape.rank_of(warp.warp) as usize;
        let Some(barrier) = self.block_barriers[rank].get_mut(id as usize) else {
            return Err(Fault::warp(format!("there is no barrier {id}: a block has {BARRIERS}")));
        };
        if let Some(threads) = threads
            && (threads == 0 || threads % 32 != 0)
        {
            return Err(Fault::warp(format!("a barrier of {threads} threads, which is no multiple of 32")));
        }
        let is_first = barrier.waiting.is_empty() && barrier.arrived.is_empty();
        if !is_first && barrier.threads != threads {
            let show =
                |threads: Option<u32>| threads.map_or("all threads".to_owned(), |threads| format!("{threads} threads"));
            let (there, here) = (show(barrier.threads), show(threads));
            return Err(Fault::warp(format!("barrier {id} is of {there} for others, of {here} here")));
        }
        if barrier.waiting.iter().chain(&barrier.arrived).any(|other| other.warp == warp.warp) {
            return Err(Fault::warp(format!("the warp arrives at barrier {id} twice before it is complete")));
        }
        barrier.threads = threads;
        if waits { &mut barrier.waiting } else { &mut barrier.arrived }.push(warp);
        self.complete(rank, id as usize);
        Ok(())
    }

    fn complete(&mut self, rank: usize, id: usize) {
        let barrier = &mut self.block_barriers[rank][id];
        let there = (barrier.waiting.len() + barrier.arrived.len()) as u32;
        let expected = barrier.threads.map_or(self.live_warps[rank], |threads| threads / 32);
        if there == 0 || there < expected {
            return;
        }
        let (waiting, arrived) = (std::mem::take(&mut barrier.waiting), std::mem::take(&mut barrier.arrived));
        self.votes.complete(waiting.iter().map(|threads| threads.warp));
        barrier.completions = barrier.completions.wrapping_add(1);
        if arrived.is_empty() {
            self.shadow.barrier(&waiting);
            return;
        }
        let mut point = self.shadow.sync_point();
        for &threads in arrived.iter().chain(&waiting) {
            self.shadow.release(threads, &mut point);
        }
        for &threads in &waiting {
            self.shadow.acquire(threads, &point);
        }
    }

    /// All threads of a warp have exited: barriers of all threads no longer wait for it.
    pub(crate) fn warp_is_done(&mut self, warp: u32) {
        let rank = self.shape.rank_of(warp) as usize;
        self.live_warps[rank] -= 1;
        for id in 0..BARRIERS {
            if self.block_barriers[rank][id].threads.is_none() {
                self.complete(rank, id);
            }
        }
        self.barrier.exit(&mut self.shadow, warp);
    }
}
