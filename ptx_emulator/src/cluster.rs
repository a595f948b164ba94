//! What the blocks of a cluster share: their barrier, each other's shared memory, and within a block its registers.

use crate::execute::Fault;
use crate::program::Program;
use crate::shadow::{CtaShadow, SyncPoint, Threads};

/// The blocks that run together, one where there are no clusters, and what each of them has.
///
/// Their warps are numbered through the cluster. Their shared memories lie one behind the other in one memory, so that one
/// record of accesses serves them all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) blocks: u32,
    /// Warps of a block.
    pub(crate) warps: u32,
    /// Shared memory of a block.
    pub(crate) shared_bytes: u32,
}

impl Shape {
    /// From the shared memory of one block to that of the next: a multiple of every alignment there is.
    pub(crate) fn stride_bytes(self) -> u32 {
        self.shared_bytes.next_multiple_of(1024)
    }

    /// The shared memory of all of them.
    pub(crate) fn total_bytes(self) -> u32 {
        self.stride_bytes() * (self.blocks - 1) + self.shared_bytes
    }

    pub(crate) fn rank_of(self, warp: u32) -> u32 {
        warp / self.warps
    }

    /// What makes the numbers in an error ones of a cluster.
    pub(crate) fn note(self) -> String {
        if self.blocks == 1 {
            return String::new();
        }
        let (warps, stride) = (self.warps, self.stride_bytes());
        format!(" (warps and addresses count through the cluster, {warps} warps and {stride:#x} bytes a block)")
    }
}

/// The barrier of a cluster.
pub(crate) struct ClusterBarrier {
    completions: u32,
    warps: Vec<Arrival>,
    waiting: Vec<Threads>,
    /// What comes before the end of the current phase, and of the last complete one.
    arriving: SyncPoint,
    completed: SyncPoint,
}

#[derive(Clone, Copy, Default)]
struct Arrival {
    /// In the current phase.
    arrived: bool,
    /// The phase that the warp arrived in and did not wait for.
    due: Option<u32>,
    exited: bool,
}

impl ClusterBarrier {
    pub(crate) fn new(shape: Shape, shadow: &CtaShadow) -> ClusterBarrier {
        let warps = vec![Arrival::default(); (shape.blocks * shape.warps) as usize];
        let (arriving, completed) = (shadow.sync_point(), shadow.sync_point());
        ClusterBarrier { completions: 0, warps, waiting: Vec::new(), arriving, completed }
    }

    pub(crate) fn completions(&self) -> u32 {
        self.completions
    }

    pub(crate) fn arrive(&mut self, shadow: &mut CtaShadow, threads: Threads) -> Result<(), Box<Fault>> {
        let warp = &mut self.warps[threads.warp as usize];
        if warp.due.is_some() {
            return Err(Fault::warp(
                "the warp arrives at the barrier of the cluster twice and does not wait in between",
            ));
        }
        *warp = Arrival { arrived: true, due: Some(self.completions), exited: false };
        shadow.release(threads, &mut self.arriving);
        self.complete(shadow);
        Ok(())
    }

    /// Waits for the phase that the warp arrived in: whether it is complete, or else it is when the completions change.
    pub(crate) fn wait(&mut self, shadow: &mut CtaShadow, threads: Threads) -> Result<bool, Box<Fault>> {
        let Some(due) = self.warps[threads.warp as usize].due.take() else {
            return Err(Fault::warp("the warp waits at the barrier of the cluster, where it did not arrive"));
        };
        if due == self.completions {
            self.waiting.push(threads);
            return Ok(false);
        }
        shadow.acquire(threads, &self.completed);
        Ok(true)
    }

    /// A warp that has exited is not waited for.
    pub(crate) fn exit(&mut self, shadow: &mut CtaShadow, warp: u32) {
        self.warps[warp as usize].exited = true;
        self.complete(shadow);
    }

    fn complete(&mut self, shadow: &mut CtaShadow) {
        let is_missing = |warp: &Arrival| !warp.arrived && !warp.exited;
        if self.warps.iter().any(is_missing) || !self.warps.iter().any(|warp| warp.arrived) {
            return;
        }
        self.completions += 1;
        self.warps.iter_mut().for_each(|warp| warp.arrived = false);
        self.completed = std::mem::replace(&mut self.arriving, shadow.sync_point());
        for threads in std::mem::take(&mut self.waiting) {
            shadow.acquire(threads, &self.completed);
        }
    }
}

/// The registers of each block, which `setmaxnreg` moves between its warps.
pub(crate) struct RegisterPool {
    /// Registers a thread of each warp has; none where the hardware ignores the instruction.
    held: Option<Vec<u32>>,
    /// Of each block, in registers a thread of one warp.
    free: Vec<u32>,
}

/// The registers of a multiprocessor.
const REGISTERS: u32 = 1 << 16;
/// The most of a thread.
const MAX_REGISTERS: u32 = 256;

impl RegisterPool {
    /// At the start of a kernel, whose threads have what its launch bounds let all of them have. Without bounds the
    /// assembler ignores the instruction.
    pub(crate) fn new(program: &Program, shape: Shape) -> RegisterPool {
        let blocks = program.min_blocks.unwrap_or(1).max(1);
        let bound = |threads: u32| REGISTERS / threads.next_multiple_of(32).saturating_mul(blocks).max(1);
        let start = program.max_registers.or(program.max_threads.map(bound));
        let start = start.map(|registers| registers.min(MAX_REGISTERS) / 8 * 8);
        let held = start.map(|start| vec![start; (shape.blocks * shape.warps) as usize]);
        RegisterPool { held, free: vec![0; shape.blocks as usize] }
    }

    /// Changes what a warp has; false if it must wait for registers that are not free.
    pub(crate) fn set(&mut self, shape: Shape, warp: u32, increase: bool, registers: u32) -> Result<bool, Box<Fault>> {
        let Some(held) = &mut self.held else { return Ok(true) };
        let (held, free) = (&mut held[warp as usize], &mut self.free[shape.rank_of(warp) as usize]);
        let (from, to) = if increase { (*held, registers) } else { (registers, *held) };
        let Some(difference) = to.checked_sub(from) else {
            let what = if increase { "an increase" } else { "a decrease" };
            return Err(Fault::warp(format!("{what} to {registers} registers of threads that have {held}")));
        };
        if increase && difference > *free {
            return Ok(false);
        }
        *held = registers;
        *free = if increase { *free - difference } else { *free + difference };
        Ok(true)
    }

    /// Why a warp waits for `registers`.
    pub(crate) fn describe(&self, shape: Shape, warp: u32, registers: u32) -> String {
        let held = self.held.as_ref().map_or(0, |held| held[warp as usize]);
        let free = self.free[shape.rank_of(warp) as usize];
        format!("waits for {} more registers a thread, of which {free} are free", registers.saturating_sub(held))
    }
}
