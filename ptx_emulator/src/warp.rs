//! One warp: it runs until it is done, waits, or had its turn.

use crate::cluster::{CLUSTER_BARRIER, Cluster};
use crate::copies::LaneCopies;
use crate::execute::{self, Fault, Simd};
use crate::in_flight::InFlight;
use crate::memory::OwnedMemory;
use crate::paths::{Paths, State};
use crate::program::{General, Hopper, Instruction, Op, W};
use crate::progress::{Progress, Spin};
use crate::registers::{Registers, lanes};
use crate::shadow::Threads;
use crate::turn::{Then, Turn};

/// Instructions of one turn: so many that turns cost nothing, and so few that a warp which spins on memory lets the
/// others go on.
const TURN: u32 = 1 << 10;

pub(crate) struct Warp {
    /// Its number in the cluster.
    pub(crate) index: u32,
    pub(crate) registers: Registers,
    /// Local memory of each lane; empty where the kernel has none.
    pub(crate) local: Vec<OwnedMemory>,
    pub(crate) copies: LaneCopies,
    pub(crate) in_flight: InFlight,
    pub(crate) paths: Paths,
    pub(crate) done: bool,
    /// The mbarrier that it tested in vain last, if it tested none with success since.
    pub(crate) polled: Option<u32>,
    /// Whether the warp found an `mbarrier` phase complete since it last found an incomplete one.
    passed: bool,
    spin: Spin,
}

/// Why a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// All lanes have exited.
    Done,
    /// No lane can go on before another warp does; whether it executed something.
    Waits { moved: bool },
    /// It looked for another warp's progress and found none; whether it had found some since it last did so.
    Polled { moved: bool },
    /// It had its share of instructions.
    Share,
}

/// A fault, and the instruction.
pub(crate) type Failure = (u32, Box<Fault>);

impl Warp {
    pub(crate) fn new(index: u32, registers: Registers, local: Vec<OwnedMemory>) -> Warp {
        let (copies, in_flight) = (LaneCopies::default(), InFlight::default());
        Warp {
            index,
            registers,
            local,
            copies,
            in_flight,
            paths: Paths::new(0),
            done: false,
            polled: None,
            passed: false,
            spin: Spin::default(),
        }
    }

    /// Makes this warp one that has executed nothing yet. Its registers stay.
    pub(crate) fn restart(&mut self, lanes: u32) {
        self.local.iter_mut().for_each(OwnedMemory::clear);
        self.copies.restart();
        self.in_flight = InFlight::default();
        self.paths = Paths::new(lanes);
        self.done = false;
        (self.polled, self.passed) = (None, false);
        self.spin = Spin::default();
    }

    /// Gives it a turn.
    pub(crate) fn run(&mut self, cluster: &mut Cluster<'_>, simd: Simd) -> Result<End, Failure> {
        cluster.progress = Progress::default();
        let end = self.turn(cluster, simd)?;
        if self.spin.add(cluster.progress) {
            self.paths.release();
        }
        Ok(end)
    }

    fn turn(&mut self, cluster: &mut Cluster<'_>, simd: Simd) -> Result<End, Failure> {
        let mut left = TURN;
        loop {
            let index = self.index;
            let Some(path) = self.paths.ready(|id| cluster.completions(index, id)) else {
                if self.paths.alive == 0 {
                    return Ok(End::Done);
                }
                if self.converge_any(cluster)? {
                    continue;
                }
                return Ok(End::Waits { moved: left < TURN });
            };
            if let Some(end) = self.run_path(cluster, simd, path, &mut left)? {
                self.paths.rotate();
                return Ok(end);
            }
        }
    }

    /// Runs a path until it ends, parts or waits: `None`; or until the turn is over.
    fn run_path(
        &mut self,
        cluster: &mut Cluster<'_>,
        simd: Simd,
        path: usize,
        left: &mut u32,
    ) -> Result<Option<End>, Failure> {
        let code: &[Instruction] = &cluster.program.code;
        let (lanes, meet) = (self.paths.list[path].lanes, self.paths.list[path].meet);
        let mut at = self.paths.list[path].at;
        loop {
            if at == meet {
                self.paths.end(path);
                return Ok(None);
            }
            if *left == 0 {
                self.paths.list[path].at = at;
                return Ok(Some(End::Share));
            }
            *left -= 1;
            let Some(instruction) = code.get(at as usize) else {
                // The end of the code is an exit.
                self.paths.exit(path, lanes);
                return Ok(None);
            };
            let mask = instruction.guard.map_or(lanes, |guard| lanes & self.registers.test(guard));
            cluster.report.add(instruction.op.class());
            if !self.in_flight.is_idle() && mask != 0 {
                let operands = &cluster.program.operands[at as usize];
                self.in_flight.check(&instruction.op, operands).map_err(|fault| (at, fault))?;
            }
            if let Some(tally) = &mut cluster.tally {
                tally.executed(at, mask);
            }
            if execute::arithmetic(simd, &mut self.registers, &instruction.op, mask) {
                at += 1;
                continue;
            }
            match instruction.op {
                Op::Branch { target } if mask == lanes => at = target,
                _ if mask == 0 => at += 1,
                Op::Branch { target } => {
                    self.paths.list[path].at = at;
                    self.paths.part(path, mask, target, instruction.meet);
                    return Ok(None);
                }
                Op::Exit => {
                    cluster.progress.changed = true;
                    self.paths.list[path].at = at + 1;
                    self.paths.exit(path, mask);
                    return Ok(None);
                }
                Op::Call { target } => {
                    self.paths.list[path].at = at;
                    self.paths.call(path, target);
                    return Ok(None);
                }
                Op::Return => {
                    self.paths.end(path);
                    return Ok(None);
                }
                Op::Trap { what } => {
                    return Err((at, Fault::warp(format!("the lanes {mask:#010x} {what}"))));
                }
                ref op => {
                    if let Some(named) = self.required(op, mask).map_err(|fault| (at, fault))? {
                        let missing = named & self.paths.alive & !mask;
                        if missing & lanes != 0 {
                            let fault = format!(
                                "its predicate excludes the lanes {:#010x}, which must execute it",
                                missing & lanes
                            );
                            return Err((at, Fault::warp(fault)));
                        }
                        if missing != 0 {
                            self.paths.list[path].at = at;
                            self.paths.list[path].state = State::Converging;
                            self.converge(cluster, at)?;
                            return Ok(None);
                        }
                    }
                    if let Op::Barrier { id, threads, wait } = *op {
                        self.paths.list[path].at = at;
                        self.barrier(cluster, path, (id, threads, wait)).map_err(|fault| (at, fault))?;
                        if wait {
                            return Ok(None);
                        }
                        at += 1;
                        continue;
                    }
                    if waits_for_cluster(op) {
                        self.paths.list[path].at = at;
                        if self.cluster_wait(cluster, &[path]).map_err(|fault| (at, fault))? {
                            at += 1;
                            continue;
                        }
                        return Ok(None);
                    }
                    match self.execute(cluster, at, mask).map_err(|fault| (at, fault))? {
                        Then::Next => at += 1,
                        Then::Polled(_) => {
                            self.paths.list[path].at = at + 1;
                            let moved = std::mem::take(&mut self.passed);
                            return Ok(Some(End::Polled { moved }));
                        }
                        Then::Again => {
                            let moved = self.paths.list[path].at != at;
                            self.paths.list[path].at = at;
                            return Ok(Some(End::Waits { moved }));
                        }
                    }
                }
            }
        }
    }

    /// The lanes that must execute an instruction together with those that do; `None` if it is each lane's own.
    fn required(&self, op: &Op, mask: u32) -> Result<Option<u32>, Box<Fault>> {
        let named = |slot: W| {
            let named = self.registers.word(slot);
            match lanes(mask).find(|&lane| named[lane] >> lane & 1 == 0) {
                Some(lane) => Err(Fault::lane(lane, format!("the lane is not in its own mask {:#010x}", named[lane]))),
                None => Ok(Some(lanes(mask).fold(0, |all, lane| all | named[lane]))),
            }
        };
        match *op {
            Op::WarpSync { mask } | Op::Shuffle { mask, .. } | Op::Vote { mask, .. } | Op::Redux { mask, .. } => {
                named(mask)
            }
            Op::Match { mask, .. } | Op::Elect { mask, .. } => named(mask),
            Op::Barrier { .. }
            | Op::Ldmatrix { .. }
            | Op::Stmatrix { .. }
            | Op::FragmentLoad(_)
            | Op::FragmentStore(_) => Ok(Some(u32::MAX)),
            Op::Wmma(_) | Op::Mma(_) => Ok(Some(u32::MAX)),
            Op::Hopper(ref hopper) if hopper.is_aligned() => Ok(Some(u32::MAX)),
            Op::General(ref general) if matches!(**general, General::IntegerMma(_)) => Ok(Some(u32::MAX)),
            _ => Ok(None),
        }
    }

    /// Executes the instruction at `at` if the paths that wait there are all the lanes that it needs.
    fn converge(&mut self, cluster: &mut Cluster<'_>, at: u32) -> Result<bool, Failure> {
        let program = cluster.program;
        let instruction = &program.code[at as usize];
        let syncs_warp = matches!(instruction.op, Op::WarpSync { .. });
        // Lanes may meet in different `bar.warp.sync`; any other instruction must be the same one.
        let waiting = |path: usize| {
            let there = &self.paths.list[path];
            there.state == State::Converging
                && (there.at == at || syncs_warp && matches!(program.code[there.at as usize].op, Op::WarpSync { .. }))
        };
        let group: Vec<usize> = (0..self.paths.list.len()).filter(|&path| waiting(path)).collect();
        let mut required = 0;
        let mut together = 0;
        for &path in &group {
            let there = &self.paths.list[path];
            let instruction = &program.code[there.at as usize];
            let mask = instruction.guard.map_or(there.lanes, |guard| there.lanes & self.registers.test(guard));
            required |= self.required(&instruction.op, mask).map_err(|fault| (at, fault))?.unwrap_or(0);
            together |= mask;
        }
        if group.is_empty() || required & self.paths.alive & !together != 0 {
            return Ok(false);
        }
        // Paths that would meet at one place anyway go on as one.
        let group = self.paths.unite(&group);
        if let Op::Barrier { id, threads, wait } = instruction.op {
            // All lanes of the warp are here: the first path stands for them, and the others wait as it does.
            let before = cluster.completions(self.index, self.registers.word(id)[together.trailing_zeros() as usize]);
            self.barrier(cluster, group[0], (id, threads, wait)).map_err(|fault| (at, fault))?;
            for &path in &group[1..] {
                let id = self.registers.word(id)[together.trailing_zeros() as usize];
                self.paths.list[path].state = State::Barrier { id, completions: before };
            }
            if !wait {
                self.go_on(&group);
            }
            return Ok(true);
        }
        if waits_for_cluster(&instruction.op) {
            if self.cluster_wait(cluster, &group).map_err(|fault| (at, fault))? {
                self.go_on(&group);
            }
            return Ok(true);
        }
        if !self.in_flight.is_idle() {
            self.in_flight.check(&instruction.op, &program.operands[at as usize]).map_err(|fault| (at, fault))?;
        }
        let then = self.execute(cluster, at, together).map_err(|fault| (at, fault))?;
        if then == Then::Again {
            return Ok(false);
        }
        self.go_on(&group);
        Ok(true)
    }

    fn go_on(&mut self, group: &[usize]) {
        for &path in group {
            self.paths.list[path].at += 1;
            self.paths.list[path].state = State::Ready;
        }
    }

    /// Looks for paths whose missing lanes have exited since.
    fn converge_any(&mut self, cluster: &mut Cluster<'_>) -> Result<bool, Failure> {
        for path in 0..self.paths.list.len() {
            let there = self.paths.list[path];
            if there.state == State::Converging && self.converge(cluster, there.at)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn barrier(
        &mut self,
        cluster: &mut Cluster<'_>,
        path: usize,
        barrier: (W, Option<W>, bool),
    ) -> Result<(), Box<Fault>> {
        let (id, threads, wait) = barrier;
        cluster.progress.changed = true;
        let lane = self.paths.alive.trailing_zeros() as usize % 32;
        let value = |slot: W| {
            let values = self.registers.word(slot);
            match lanes(self.paths.alive).find(|&other| values[other] != values[lane]) {
                Some(other) => Err(Fault::lane(other, "the lanes of the warp name different barriers")),
                None => Ok(values[lane]),
            }
        };
        let id = value(id)?;
        let threads = threads.map(value).transpose()?;
        let completions = cluster.completions(self.index, id);
        let whole = Threads { warp: self.index, lanes: self.paths.alive };
        if wait {
            self.paths.list[path].state = State::Barrier { id, completions };
        }
        cluster.arrive(id, threads, whole, wait)
    }

    /// The paths, all lanes of the warp, wait at the barrier of the cluster; whether it is complete.
    fn cluster_wait(&mut self, cluster: &mut Cluster<'_>, group: &[usize]) -> Result<bool, Box<Fault>> {
        let completions = cluster.barrier.completions();
        let whole = Threads { warp: self.index, lanes: self.paths.alive };
        cluster.progress.changed = true;
        let complete = cluster.barrier.wait(&mut cluster.shadow, whole)?;
        if !complete {
            for &path in group {
                self.paths.list[path].state = State::Barrier { id: CLUSTER_BARRIER, completions };
            }
        }
        Ok(complete)
    }

    /// Executes an instruction that is neither arithmetic nor a matter of control.
    fn execute(&mut self, cluster: &mut Cluster<'_>, at: u32, mask: u32) -> Result<Then, Box<Fault>> {
        let instruction: &Instruction = &cluster.program.code[at as usize];
        let mut turn = Turn {
            cluster,
            registers: &mut self.registers,
            local: &mut self.local,
            copies: &mut self.copies,
            in_flight: &mut self.in_flight,
            warp: self.index,
            mask,
            at,
            line: instruction.line,
            then: Then::Next,
        };
        let t = &mut turn;
        match instruction.op {
            Op::Load(ref access) => execute::memory::load(t, access)?,
            Op::Store(ref access) => execute::memory::store(t, access)?,
            Op::Atomic(ref atomic) => execute::memory::atomic(t, atomic)?,
            Op::CopyAsync { to, from, bytes, source_bytes } => {
                execute::memory::copy_async(t, to, from, bytes, source_bytes)?
            }
            Op::CopyCommit => execute::memory::copy_commit(t),
            Op::CopyWait { pending } => execute::memory::copy_wait(t, pending)?,
            Op::WarpSync { .. } => t.cluster.shadow.barrier(&[Threads { warp: t.warp, lanes: mask }]),
            Op::Shuffle { kind, d, p, a, b, c, mask } => execute::warp::shuffle(t, kind, (d, p), [a, b, c, mask])?,
            Op::Vote { kind, d, a, mask } => execute::warp::vote(t, kind, d, a, mask),
            Op::Redux { op, d, a, mask } => execute::warp::redux(t, op, d, a, mask),
            Op::Match { all, d, p, a, mask } => execute::warp::matching(t, all, d, p, a, mask),
            Op::Elect { d, p, mask } => execute::warp::elect(t, d, p, mask),
            Op::MbarrierInit { address, count } => execute::mbarrier::init(t, address, count)?,
            Op::MbarrierInvalidate { address } => execute::mbarrier::invalidate(t, address)?,
            Op::MbarrierArrive { d, address, count, expect_bytes } => {
                execute::mbarrier::arrive(t, d, address, count, expect_bytes)?;
            }
            Op::MbarrierExpect { address, bytes, completes } => execute::mbarrier::count(t, address, bytes, completes)?,
            Op::MbarrierTest { p, address, token, parity } => execute::mbarrier::test(t, p, address, token, parity)?,
            Op::Ldmatrix { transposed, ref d, address } => execute::matrix::ldmatrix(t, transposed, d, address)?,
            Op::Stmatrix { transposed, ref s, address } => execute::matrix::stmatrix(t, transposed, s, address)?,
            Op::FragmentLoad(ref fragment) => execute::matrix::load(t, fragment)?,
            Op::FragmentStore(ref fragment) => execute::matrix::store(t, fragment)?,
            Op::Wmma(ref wmma) => execute::matrix::wmma(t, wmma)?,
            Op::Mma(ref mma) => execute::matrix::mma(t, mma)?,
            Op::Hopper(ref hopper) => execute::cluster::hopper(t, hopper)?,
            Op::General(ref general) => execute::general::general(t, general)?,
            Op::Clock { d } => {
                let now = t.cluster.report.total();
                t.registers.set_wide(d, &[now; 32], mask);
            }
            Op::ActiveMask { d } => t.registers.set_word(d, &[mask; 32], mask),
            Op::Fence { device, proxy } => {
                if proxy {
                    t.cluster.shadow.proxy_fence(Threads { warp: t.warp, lanes: mask });
                    execute::mbarrier::publish(t);
                }
                t.cluster.fence(Threads { warp: t.warp, lanes: mask }, device)?;
            }
            // `arithmetic` and `run_path` have done all others.
            ref other => return Err(Fault::warp(format!("{other:?} is not executed here"))),
        }
        let then = turn.then;
        let progress = &mut cluster.progress;
        progress.note(&instruction.op);
        match (&instruction.op, then) {
            (_, Then::Polled(address)) => {
                self.polled = Some(address);
                progress.polls += 1;
            }
            (Op::MbarrierTest { .. }, _) => {
                (self.polled, self.passed) = (None, true);
                progress.changed = true;
            }
            _ => {}
        }
        Ok(then)
    }
}

fn waits_for_cluster(op: &Op) -> bool {
    matches!(op, Op::Hopper(hopper) if **hopper == Hopper::ClusterWait)
}
