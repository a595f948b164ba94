//! The clusters of a launch: how each begins, and how its warps take turns.

use std::sync::{Mutex, PoisonError};

use crate::cluster::{CLUSTER_BARRIER, Cluster};
use crate::counters::Tally;
use crate::error::{Error, PtxLine, Result, Thread};
use crate::execute::{Fault, Simd};
use crate::memory::{GlobalView, MemoryError, OwnedMemory, Space};
use crate::paths::State;
use crate::program::{Hopper, Op, Program, Special};
use crate::progress::Watch;
use crate::registers::{LANES, Registers};
use crate::report::Report;
use crate::shadow::{LaunchRace, LaunchShadow, Mark};
use crate::shape::{LaunchShape, Shape};
use crate::tensor_core::wgmma::Fp8Sums;
use crate::variables::Placed;
use crate::warp::{End, Warp};

/// Bytes of local memory of a thread.
pub(crate) const MAX_LOCAL_BYTES: u32 = 512 << 10;
/// Rounds through the warps of a cluster in which all of them only poll, after which nothing is expected to change.
const MAX_IDLE_ROUNDS: u32 = 10_000;

/// The multiprocessors of an H100, on which the blocks are dealt one after another.
const MULTIPROCESSORS: u32 = 132;

/// What the clusters of a launch share.
#[derive(Clone, Copy)]
pub(crate) struct Grid<'a> {
    pub(crate) program: &'a Program,
    pub(crate) launch: LaunchShape,
    pub(crate) threads: u32,
    pub(crate) params: &'a OwnedMemory,
    pub(crate) shared_bytes: u32,
    pub(crate) instruction_limit: u64,
    pub(crate) fp8_sums: Fp8Sums,
    pub(crate) simd: Simd,
    /// Where the variables of the module are, and what the launch prints.
    pub(crate) variables: &'a Placed,
    pub(crate) printed: &'a Mutex<String>,
    /// Where the counts of each instruction go, if they are asked for.
    pub(crate) tally: Option<&'a Mutex<Tally>>,
}

/// The index in x, y, z of a linear one.
fn unravel(index: u64, [x, y, _]: [u32; 3]) -> [u32; 3] {
    let (x, y) = (u64::from(x), u64::from(y));
    [(index % x) as u32, (index / x % y) as u32, (index / x / y) as u32]
}

impl Grid<'_> {
    fn shape(&self) -> Shape {
        Shape {
            blocks: self.launch.cluster.iter().product(),
            warps: self.threads.div_ceil(LANES as u32),
            shared_bytes: self.shared_bytes,
        }
    }

    /// The block of a rank in the cluster of this index.
    fn place(&self, cluster: u64, rank: u32) -> [u32; 3] {
        let LaunchShape { grid, cluster: dims, .. } = self.launch;
        let clusters = std::array::from_fn(|axis| grid[axis] / dims[axis]);
        let (first, inside) = (unravel(cluster, clusters), unravel(rank.into(), dims));
        std::array::from_fn(|axis| first[axis] * dims[axis] + inside[axis])
    }

    /// The first cluster that one thread of the CPU runs: [`Running::restart`] makes any other of it.
    pub(crate) fn start<'b>(
        &'b self,
        global: GlobalView,
        others: Option<&'b Mutex<LaunchShadow>>,
        index: u64,
    ) -> Result<Running<'b>> {
        let limit =
            |error: MemoryError| Error::Launch { kernel: self.program.name.clone(), problem: error.to_string() };
        let shape = self.shape();
        let shared = OwnedMemory::new(Space::Shared, shape.total_bytes(), shape.total_bytes()).map_err(limit)?;
        let (kind, outside) = ((shape, self.fp8_sums), (self.variables, self.printed));
        let cluster = Cluster::new(self.program, self.params, (global, others), shared, kind, outside);
        let mut warps = Vec::new();
        for number in 0..shape.blocks * shape.warps {
            let mut local = Vec::new();
            if self.program.local_bytes > 0 {
                let bytes = self.program.local_bytes;
                let one = OwnedMemory::new(Space::Local, bytes, MAX_LOCAL_BYTES).map_err(limit)?;
                local = vec![one; LANES];
            }
            warps.push(Warp::new(number, Registers::new(self.program), local));
        }
        let mut running = Running { grid: self, index, cluster, warps, idle_rounds: 0 };
        running.restart(index);
        Ok(running)
    }

    /// The error of what a thread, by its numbers in a cluster, did somewhere.
    fn fault(&self, cluster: u64, place: PtxLine, (warp, lane): (u32, Option<u32>), problem: String) -> Error {
        let shape = self.shape();
        let block = self.place(cluster, shape.rank_of(warp));
        let thread = Thread { block, warp: warp % shape.warps, lane };
        Error::Fault { kernel: self.program.name.clone(), thread, place, problem }
    }

    /// The error of a race between a cluster and another one that ended before.
    pub(crate) fn race(&self, cluster: u64, race: &LaunchRace) -> Error {
        let (warp, lane) = race.later.thread;
        self.fault(cluster, self.program.place_of_line(race.later.line), (warp, Some(lane)), race.to_string())
    }

    fn special(&self, which: Special, place: [u32; 3], warp: u32, lane: u32) -> u32 {
        let LaunchShape { grid, block, cluster, shared_bytes } = self.launch;
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
            Special::SmId => {
                (place[0] + grid[0].wrapping_mul(place[1] + grid[1].wrapping_mul(place[2]))) % MULTIPROCESSORS
            }
            Special::NsmId => MULTIPROCESSORS,
        }
    }
}

/// A cluster that runs.
pub(crate) struct Running<'b> {
    grid: &'b Grid<'b>,
    index: u64,
    cluster: Cluster<'b>,
    warps: Vec<Warp>,
    /// Rounds since something other than a poll in vain happened.
    idle_rounds: u32,
}

impl Running<'_> {
    /// Makes it a cluster that has executed nothing yet.
    pub(crate) fn restart(&mut self, index: u64) {
        let (grid, shape) = (self.grid, self.cluster.shape);
        self.index = index;
        self.idle_rounds = 0;
        self.cluster.restart(index);
        self.cluster.tally = grid.tally.map(|_| Box::new(Tally::new(grid.program)));
        for warp in &mut self.warps {
            let (place, number) = (grid.place(index, shape.rank_of(warp.index)), warp.index % shape.warps);
            let special = |which, lane: usize| grid.special(which, place, number, lane as u32);
            warp.registers.restart(grid.program, special, &grid.variables.addresses);
            let left = grid.threads - number * LANES as u32;
            warp.restart(if left >= LANES as u32 { u32::MAX } else { (1 << left) - 1 });
        }
    }

    /// Runs it to its end.
    pub(crate) fn finish(&mut self) -> Result<Report> {
        let mut watch = Watch::default();
        loop {
            if let Some(report) = self.round(&mut watch, 1)? {
                return Ok(report);
            }
        }
    }

    /// Takes what it did to global memory since its last fence.
    pub(crate) fn publish(&mut self) -> Vec<Mark> {
        self.cluster.shadow.publish()
    }

    /// Its index in the grid.
    pub(crate) fn index(&self) -> u64 {
        self.index
    }

    /// Gives each warp a turn; the counts when all are done. `clusters` run beside each other, and `watch` is on all.
    pub(crate) fn round(&mut self, watch: &mut Watch, clusters: u64) -> Result<Option<Report>> {
        let program = self.grid.program;
        let (mut live, mut moved, mut polled) = (false, false, false);
        let (mut changed, mut looked) = (false, false);
        for index in 0..self.warps.len() {
            let warp = &mut self.warps[index];
            if warp.done {
                continue;
            }
            live = true;
            let end = warp.run(&mut self.cluster, self.grid.simd);
            let progress = self.cluster.progress;
            changed |= !progress.is_in_vain() && (progress.changed || matches!(end, Ok(End::Share)));
            looked |= progress.looks > 0;
            match end {
                Ok(End::Done) => {
                    warp.done = true;
                    moved = true;
                    self.cluster.warp_is_done(warp.index);
                    let rank = self.cluster.shape.rank_of(warp.index);
                    if !self.cluster.is_live(rank)
                        && let Err((at, thread, problem)) = crate::execute::bulk::end_block(&mut self.cluster, rank)
                    {
                        return Err(self.fault(at, thread, problem));
                    }
                }
                Ok(End::Waits { moved: some }) => moved |= some,
                Ok(End::Polled { moved: some }) => (polled, moved) = (true, moved || some),
                Ok(End::Share) => moved = true,
                Err((at, fault)) => {
                    let Fault { lane, problem, elsewhere, stack_bytes } = *fault;
                    let own = warp.index;
                    if let Some(bytes) = stack_bytes {
                        return Err(self.stack_overflow(at, (own, lane), bytes));
                    }
                    let Some((warp, line)) = elsewhere else {
                        return Err(self.fault(at, (own, lane), problem));
                    };
                    return Err(self.grid.fault(self.index, program.place_of_line(line), (warp, lane), problem));
                }
            }
        }
        if !live {
            if let (Some(tally), Some(all)) = (self.cluster.tally.take(), self.grid.tally) {
                // A sum of whole numbers: the order of the clusters does not show.
                all.lock().unwrap_or_else(PoisonError::into_inner).add(&tally);
            }
            return Ok(Some(self.cluster.report));
        }
        let (kernel, block) = (|| program.name.clone(), self.grid.place(self.index, 0));
        if self.cluster.report.total() > self.grid.instruction_limit {
            let limit = self.grid.instruction_limit;
            return Err(Error::InstructionLimit { kernel: kernel(), block, limit, at: self.waits() });
        }
        if let Some(turns) = watch.add(changed, looked, clusters) {
            return Err(Error::NoProgress { kernel: kernel(), block, turns, at: self.waits() });
        }
        self.idle_rounds = if moved { 0 } else { self.idle_rounds + 1 };
        if !moved && (!polled || self.idle_rounds > MAX_IDLE_ROUNDS) {
            return Err(Error::Deadlock { kernel: kernel(), block, waits: self.waits() });
        }
        Ok(None)
    }

    fn stack_overflow(&self, at: u32, (warp, lane): (u32, Option<u32>), bytes: u32) -> Error {
        let (grid, shape) = (self.grid, self.cluster.shape);
        let thread = Thread { block: grid.place(self.index, shape.rank_of(warp)), warp: warp % shape.warps, lane };
        Error::StackOverflow { kernel: grid.program.name.clone(), thread, place: grid.program.place(at), bytes }
    }

    fn fault(&self, at: u32, thread: (u32, Option<u32>), problem: String) -> Error {
        self.grid.fault(self.index, self.grid.program.place(at), thread, problem)
    }

    /// What a path that can run does: where it polls an mbarrier or cannot get registers, what it waits for.
    fn occupation(&self, warp: &Warp, at: u32) -> String {
        if let Some(barrier) = warp.polled.and_then(|address| self.cluster.mbarriers.get(&address).zip(Some(address))) {
            return barrier.0.describe(barrier.1 % self.cluster.shape.stride_bytes());
        }
        if let Some(Op::Hopper(hopper)) = self.grid.program.code.get(at as usize).map(|instruction| &instruction.op)
            && let Hopper::SetRegisters { increase: true, registers } = **hopper
        {
            return self.cluster.registers.describe(self.cluster.shape, warp.index, registers);
        }
        "runs".to_owned()
    }

    /// What each warp waits for.
    fn waits(&self) -> String {
        let shape = self.cluster.shape;
        let mut waits = Vec::new();
        for warp in self.warps.iter().filter(|warp| !warp.done) {
            for path in &warp.paths.list {
                let place = self.grid.program.place(path.at);
                let what = match path.state {
                    State::Ready => self.occupation(warp, path.at),
                    State::Converging => "waits for lanes of its warp".to_owned(),
                    State::Barrier { id: CLUSTER_BARRIER, .. } => "waits at the barrier of the cluster".to_owned(),
                    State::Barrier { id, .. } => format!("waits at barrier {id}"),
                    State::Meeting { .. } | State::Free => continue,
                };
                let mut block = String::new();
                if shape.blocks > 1 {
                    block = format!("block {:?}, ", self.grid.place(self.index, shape.rank_of(warp.index)));
                }
                let warp = warp.index % shape.warps;
                waits.push(format!("{block}warp {warp} (lanes {:#010x}) {what}, {place}", path.lanes));
            }
        }
        waits.join("; ")
    }
}
