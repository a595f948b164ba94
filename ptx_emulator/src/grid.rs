//! The blocks of a launch: how each begins, and how its warps take turns.

use std::sync::{Mutex, PoisonError};

use crate::block::Block;
use crate::counters::Tally;
use crate::error::{Error, Result, Thread};
use crate::execute::Simd;
use crate::launch::LaunchConfig;
use crate::memory::{GlobalView, MemoryError, OwnedMemory, Space};
use crate::paths::{Paths, State};
use crate::program::{Program, Special};
use crate::registers::{LANES, Registers};
use crate::report::Report;
use crate::shadow::CtaShadow;
use crate::warp::{End, Warp};

/// Bytes of local memory of a thread.
pub(crate) const MAX_LOCAL_BYTES: u32 = 512 << 10;
/// Rounds through the warps of a block in which all of them only poll, after which nothing is expected to change.
const MAX_IDLE_ROUNDS: u32 = 10_000;

/// What the blocks of a launch share.
#[derive(Clone, Copy)]
pub(crate) struct Grid<'a> {
    pub(crate) program: &'a Program,
    pub(crate) config: LaunchConfig,
    pub(crate) threads: u32,
    pub(crate) params: &'a OwnedMemory,
    pub(crate) shared_bytes: u32,
    pub(crate) instruction_limit: u64,
    pub(crate) simd: Simd,
    /// Where the counts of each instruction go, if they are asked for.
    pub(crate) tally: Option<&'a Mutex<Tally>>,
}

/// The index in x, y, z of a linear one.
fn unravel(index: u64, [x, y, _]: [u32; 3]) -> [u32; 3] {
    let (x, y) = (u64::from(x), u64::from(y));
    [(index % x) as u32, (index / x % y) as u32, (index / x / y) as u32]
}

impl Grid<'_> {
    /// A block that has executed nothing yet.
    pub(crate) fn start<'b>(&'b self, global: (GlobalView, CtaShadow<'b>), index: u64) -> Result<Running<'b>> {
        let place = unravel(index, self.config.grid);
        let limit =
            |error: MemoryError| Error::Launch { kernel: self.program.name.clone(), problem: error.to_string() };
        let shared = OwnedMemory::new(Space::Shared, self.shared_bytes, self.shared_bytes).map_err(limit)?;
        let mut block = Block::new(self.program, self.params, global, shared, self.threads);
        block.tally = self.tally.map(|_| Box::new(Tally::new(self.program)));
        let mut warps = Vec::new();
        for warp in 0..self.threads.div_ceil(LANES as u32) {
            let registers = Registers::new(self.program, |which, lane| self.special(which, place, warp, lane as u32));
            let left = self.threads - warp * LANES as u32;
            let lanes = if left >= LANES as u32 { u32::MAX } else { (1 << left) - 1 };
            let mut local = Vec::new();
            if self.program.local_bytes > 0 {
                let bytes = self.program.local_bytes;
                let one = OwnedMemory::new(Space::Local, bytes, MAX_LOCAL_BYTES).map_err(limit)?;
                local = vec![one; LANES];
            }
            let copies = Default::default();
            warps.push(Warp { index: warp, registers, local, copies, paths: Paths::new(lanes), done: false });
        }
        Ok(Running { grid: self, place, block, warps, idle_rounds: 0 })
    }

    fn special(&self, which: Special, place: [u32; 3], warp: u32, lane: u32) -> u32 {
        let LaunchConfig { grid, block, cluster, shared_bytes } = self.config;
        let axis = |axis: u8| axis as usize % 3;
        let in_cluster = |at: usize| place[at] % cluster[at];
        match which {
            Special::Tid(at) => unravel((warp * LANES as u32 + lane).into(), block)[axis(at)],
            Special::Ntid(at) => block[axis(at)],
            Special::Ctaid(at) => place[axis(at)],
            Special::Nctaid(at) => grid[axis(at)],
            Special::LaneId => lane,
            Special::WarpId => warp,
            Special::NwarpId => self.threads.div_ceil(LANES as u32),
            Special::LanemaskEq => 1 << lane,
            Special::LanemaskLe => u32::MAX >> (31 - lane),
            Special::LanemaskLt => !(u32::MAX << lane),
            Special::LanemaskGe => u32::MAX << lane,
            Special::LanemaskGt => !(u32::MAX >> (31 - lane)),
            Special::ClusterCtaid(at) => in_cluster(axis(at)),
            Special::ClusterNctaid(at) => cluster[axis(at)],
            Special::ClusterId(at) => place[axis(at)] / cluster[axis(at)],
            Special::NclusterId(at) => grid[axis(at)] / cluster[axis(at)],
            Special::ClusterCtarank => in_cluster(0) + cluster[0] * (in_cluster(1) + cluster[1] * in_cluster(2)),
            Special::ClusterNctarank => cluster.iter().product(),
            Special::DynamicSharedBytes => shared_bytes,
            Special::TotalSharedBytes => self.shared_bytes,
        }
    }
}

/// A block under way.
pub(crate) struct Running<'b> {
    grid: &'b Grid<'b>,
    place: [u32; 3],
    block: Block<'b>,
    warps: Vec<Warp>,
    /// Rounds since something other than a poll happened.
    idle_rounds: u32,
}

impl Running<'_> {
    /// Runs it to its end.
    pub(crate) fn finish(mut self) -> Result<Report> {
        loop {
            if let Some(report) = self.round()? {
                return Ok(report);
            }
        }
    }

    /// Gives each warp a turn; the counts when all are done.
    pub(crate) fn round(&mut self) -> Result<Option<Report>> {
        let program = self.grid.program;
        let (mut live, mut moved, mut polled) = (false, false, false);
        for warp in self.warps.iter_mut().filter(|warp| !warp.done) {
            live = true;
            match warp.run(&mut self.block, self.grid.simd) {
                Ok(End::Done) => {
                    warp.done = true;
                    moved = true;
                    self.block.warp_is_done();
                }
                Ok(End::Waits { moved: some }) => moved |= some,
                Ok(End::Polled) => polled = true,
                Ok(End::Share) => moved = true,
                Err((at, fault)) => {
                    return Err(Error::Fault {
                        kernel: program.name.clone(),
                        thread: Thread { block: self.place, warp: warp.index, lane: fault.lane },
                        place: program.place(at),
                        problem: fault.problem,
                    });
                }
            }
        }
        if !live {
            if let (Some(tally), Some(all)) = (self.block.tally.take(), self.grid.tally) {
                // A sum of whole numbers: the order of the blocks does not show.
                all.lock().unwrap_or_else(PoisonError::into_inner).add(&tally);
            }
            return Ok(Some(self.block.report));
        }
        let (kernel, block) = (|| program.name.clone(), self.place);
        if self.block.report.total() > self.grid.instruction_limit {
            let limit = self.grid.instruction_limit;
            return Err(Error::InstructionLimit { kernel: kernel(), block, limit, at: self.waits() });
        }
        self.idle_rounds = if moved { 0 } else { self.idle_rounds + 1 };
        if !moved && (!polled || self.idle_rounds > MAX_IDLE_ROUNDS) {
            return Err(Error::Deadlock { kernel: kernel(), block, waits: self.waits() });
        }
        Ok(None)
    }

    /// What each warp waits for.
    fn waits(&self) -> String {
        let mut waits = Vec::new();
        for warp in self.warps.iter().filter(|warp| !warp.done) {
            for path in &warp.paths.list {
                let place = self.grid.program.place(path.at);
                let what = match path.state {
                    State::Ready => "runs".to_owned(),
                    State::Converging => "waits for lanes of its warp".to_owned(),
                    State::Barrier { id, .. } => format!("waits at barrier {id}"),
                    State::Meeting { .. } | State::Free => continue,
                };
                waits.push(format!("warp {} (lanes {:#010x}) {what}, {place}", warp.index, path.lanes));
            }
        }
        waits.join("; ")
    }
}
