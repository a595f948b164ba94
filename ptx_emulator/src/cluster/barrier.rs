//! The barrier of a cluster.

use crate::execute::Fault;
use crate::shadow::{CtaShadow, SyncPoint, Threads};
use crate::shape::Shape;

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
