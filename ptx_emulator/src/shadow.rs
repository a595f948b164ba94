//! Finds data races: two accesses, one of them a write, that nothing puts in an order. [`SharedShadow`] is for the shared
//! memory of one CTA, [`LaunchShadow`] for global memory between the CTAs of a launch.
//!
//! ```
//! use ptx_emulator::shadow::{Access, AccessKind, SharedShadow, Threads};
//!
//! let mut shadow = SharedShadow::new(1024, 64);
//! let (writer, reader) = (Threads::lane(0, 0), Threads::lane(1, 0));
//! let write = Access::new(writer, AccessKind::Write, 10);
//! let read = Access::new(reader, AccessKind::Read, 12);
//! shadow.access(&write, 0, 4)?;
//! assert!(shadow.clone().access(&read, 0, 4).is_err());
//! shadow.barrier(&[Threads::warp(0), Threads::warp(1)]);
//! shadow.access(&read, 0, 4)?;
//! # Ok::<(), Box<ptx_emulator::shadow::Race>>(())
//! ```
//!
//! # Order
//!
//! Every access belongs to an epoch of its warp, and every synchronisation of lanes of the warp ends the epoch. A thread
//! knows of every other thread the epoch up to which that thread's accesses come before its own: its clock. A
//! barrier joins the clocks of its participants. Where some threads only arrive and others only wait (named barriers,
//! `mbarrier`), the clocks go through a [`SyncPoint`]: [`release`](SharedShadow::release) puts the arriving threads' into
//! it, [`acquire`](SharedShadow::acquire) gives it to the waiting ones. The same kernel gives the same reports whatever
//! the order in which its warps run, as long as they pass through their synchronisations in the same order.
//!
//! For each word of 4 bytes, and each byte of it, the accesses are kept that a later access may race with: the last
//! write, and the reads since.
//!
//! # Asynchronous accesses
//!
//! What `cp.async`, a bulk copy or `wgmma` does is pending from its start until somebody waits for it: nobody, not the
//! thread that started it either, may touch bytes it writes, or write bytes it reads. [`SharedShadow::finish`] turns it
//! into an access of the threads that waited, for whom the others wait as for any access, and
//! [`SharedShadow::finish_into`] into one that a [`SyncPoint`] orders. [`CopyGroups`] does this for `cp.async`.
//!
//! An access by the asynchronous proxy also needs a proxy fence between it and the generic writes before it.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use clock::Clock;
pub use clock::SyncPoint;
pub use copy_groups::CopyGroups;
pub use launch::{CtaParty, CtaShadow, LaunchRace, LaunchShadow};

mod clock;
mod copy_groups;
mod launch;

/// The bytes of a word of the shadow.
const WORD: u32 = 4;

/// The accesses kept for one word: above this the oldest is forgotten, so that memory stays bounded.
const MAX_RECORDS: usize = 256;

/// What an access does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// It reads.
    Read,
    /// It writes.
    Write,
    /// It reads and writes in one step: no race with another such access.
    Atomic,
}

impl fmt::Display for AccessKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AccessKind::Read => "read",
            AccessKind::Write => "write",
            AccessKind::Atomic => "atomic",
        })
    }
}

impl AccessKind {
    fn conflicts(self, other: AccessKind) -> bool {
        !matches!((self, other), (AccessKind::Read, AccessKind::Read) | (AccessKind::Atomic, AccessKind::Atomic))
    }
}

/// The way an access takes to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Proxy {
    /// That of loads, stores, `ldmatrix` and `cp.async`.
    Generic,
    /// That of bulk copies and `wgmma`.
    Async,
}

/// Lanes of one warp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Threads {
    /// The index of the warp in the CTA.
    pub warp: u32,
    /// Bit `i` is lane `i`.
    pub lanes: u32,
}

impl Threads {
    /// All lanes of a warp.
    pub fn warp(warp: u32) -> Threads {
        Threads { warp, lanes: u32::MAX }
    }

    /// One lane.
    pub fn lane(warp: u32, lane: u32) -> Threads {
        Threads { warp, lanes: 1 << lane }
    }

    fn each(self) -> impl Iterator<Item = usize> {
        let first = self.warp as usize * 32;
        bits(self.lanes).map(move |lane| first + lane)
    }
}

/// The set bits, from the lowest.
fn bits(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = mask.trailing_zeros();
        mask &= mask.checked_sub(1)?;
        Some(bit as usize)
    })
}

/// Who accesses memory, how, and by which line of the PTX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Who.
    pub threads: Threads,
    /// The threads do it as one, as in `ldmatrix`: it comes after what all of them come after, and before what any of
    /// them comes before. Otherwise each of them does it.
    pub collective: bool,
    /// What.
    pub kind: AccessKind,
    /// Which way.
    pub proxy: Proxy,
    /// The line of the PTX.
    pub line: u32,
}

impl Access {
    /// An access by each of the threads, by the generic proxy.
    pub fn new(threads: Threads, kind: AccessKind, line: u32) -> Access {
        Access { threads, collective: false, kind, proxy: Proxy::Generic, line }
    }

    /// An access that the threads do as one, by the generic proxy.
    pub fn collective(threads: Threads, kind: AccessKind, line: u32) -> Access {
        Access { collective: true, ..Access::new(threads, kind, line) }
    }
}

/// One side of a race.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Party {
    /// The thread, or the first of those that do it as one; of an agent of the asynchronous proxy nothing.
    pub thread: Option<(u32, u32)>,
    /// What it does.
    pub kind: AccessKind,
    /// Which way.
    pub proxy: Proxy,
    /// The line of the PTX.
    pub line: u32,
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let proxy = if self.proxy == Proxy::Async { "asynchronous " } else { "" };
        write!(f, "{proxy}{}", self.kind)?;
        if let Some((warp, lane)) = self.thread {
            write!(f, " by warp {warp}, lane {lane}")?;
        }
        write!(f, " in PTX line {}", self.line)
    }
}

/// Why two accesses race.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RaceCause {
    /// No synchronisation puts them in an order.
    Unordered,
    /// Nobody waited for the earlier one, which is asynchronous.
    Pending,
    /// They are in order, but no proxy fence is between the generic write and the asynchronous access.
    ProxyFence,
}

impl fmt::Display for RaceCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RaceCause::Unordered => "no synchronisation orders them",
            RaceCause::Pending => "the first is asynchronous and not waited for",
            RaceCause::ProxyFence => "no proxy fence is between them",
        })
    }
}

/// Two accesses, one of them a write, that race.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("race on shared memory at {address:#x}: {earlier}, {later}: {cause}")]
pub struct Race {
    /// The first byte that both touch.
    pub address: u32,
    /// The access that ran first here.
    pub earlier: Party,
    /// The access that found it.
    pub later: Party,
    /// Why it is a race.
    pub cause: RaceCause,
}

/// An asynchronous operation that nobody waited for yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Operation(u32);

/// An access to some bytes of a word.
#[derive(Debug, Clone, Copy)]
struct Record {
    access: Access,
    epoch: u32,
    /// Bit `i` is byte `i` of the word.
    bytes: u8,
    /// What it is a part of, while it is pending.
    pending: Option<Operation>,
}

/// What the accesses to the shared memory of one CTA were, and how its threads are ordered.
#[derive(Debug, Clone)]
pub struct SharedShadow {
    words: Vec<Vec<Record>>,
    warps: u32,
    /// The current epoch of each warp; one more for the agents of the asynchronous proxy.
    epochs: Vec<u32>,
    /// The clock of each thread.
    clocks: Vec<Arc<Clock>>,
    /// The lanes of the warp have one clock.
    uniform: Vec<bool>,
    /// The byte ranges of each pending operation.
    operations: HashMap<Operation, Vec<(u32, u32)>>,
    next_operation: u32,
}

impl SharedShadow {
    /// The agents of the asynchronous proxy that [`finish_into`](Self::finish_into) tells apart.
    pub const AGENTS: u32 = 32;

    /// For a CTA of `threads` threads and `bytes` of shared memory, nothing of which was accessed.
    pub fn new(bytes: u32, threads: u32) -> Self {
        let warps = threads.div_ceil(32);
        let clock = Arc::new(Clock::new(threads, warps));
        SharedShadow {
            words: vec![Vec::new(); bytes.div_ceil(WORD) as usize],
            warps,
            epochs: vec![1; warps as usize + 1],
            clocks: vec![clock; warps as usize * 32],
            uniform: vec![true; warps as usize],
            operations: HashMap::new(),
            next_operation: 0,
        }
    }

    /// An empty point of synchronisation of this CTA: for a named barrier, or a phase of an `mbarrier`.
    pub fn sync_point(&self) -> SyncPoint {
        SyncPoint::new(self.warps)
    }

    /// Records an access to `bytes` bytes at `address`.
    ///
    /// # Errors
    /// The race, if there is one. The access counts all the same, so that the next one is not blamed for it.
    ///
    /// # Panics
    /// If the bytes are not in the shared memory or the warp is not in the CTA.
    pub fn access(&mut self, access: &Access, address: u32, bytes: u32) -> Result<(), Box<Race>> {
        self.record(access, address, bytes, None)
    }

    /// A new asynchronous operation, of which no access is known yet.
    pub fn start(&mut self) -> Operation {
        let operation = Operation(self.next_operation);
        self.next_operation += 1;
        self.operations.insert(operation, Vec::new());
        operation
    }

    /// Records an access of an asynchronous operation by those who start it; it is pending until the operation is
    /// finished.
    ///
    /// # Errors
    /// As [`access`](Self::access).
    ///
    /// # Panics
    /// As [`access`](Self::access), and if the operation is finished.
    pub fn access_pending(
        &mut self,
        operation: Operation,
        access: &Access,
        address: u32,
        bytes: u32,
    ) -> Result<(), Box<Race>> {
        self.operations.get_mut(&operation).expect("the operation is not finished").push((address, bytes));
        self.record(access, address, bytes, Some(operation))
    }

    /// Ends an operation for which `threads` waited: from now on its accesses are theirs.
    pub fn finish(&mut self, operation: Operation, threads: Threads) {
        let epoch = self.epochs[threads.warp as usize];
        self.settle(operation, threads, epoch);
    }

    /// Ends an operation that reports to `point`: its accesses come before what acquires the point.
    ///
    /// `agent` tells those apart that report to different points; operations of one agent are finished in one order.
    pub fn finish_into(&mut self, operation: Operation, agent: u32, point: &mut SyncPoint) {
        let threads = Threads::lane(self.warps, agent % Self::AGENTS);
        let epoch = self.epochs[self.warps as usize];
        self.settle(operation, threads, epoch);
        point.raise(threads, epoch);
        self.epochs[self.warps as usize] += 1;
    }

    fn settle(&mut self, operation: Operation, threads: Threads, epoch: u32) {
        for (address, bytes) in self.operations.remove(&operation).unwrap_or_default() {
            for (word, _) in words(address, bytes) {
                for record in self.words[word].iter_mut().filter(|record| record.pending == Some(operation)) {
                    record.pending = None;
                    record.epoch = epoch;
                    record.access.threads = threads;
                }
            }
        }
    }

    /// Orders everything that the participants did before everything that they do from now on.
    ///
    /// A whole CTA for `bar.sync`, the lanes of its mask for `bar.warp.sync`.
    pub fn barrier(&mut self, participants: &[Threads]) {
        let mut point = self.sync_point();
        for &threads in participants {
            self.join_into(threads, &mut point);
        }
        let clock = Arc::new(point.into_clock());
        for &threads in participants {
            for thread in self.existing(threads) {
                self.clocks[thread] = Arc::clone(&clock);
            }
            self.epochs[threads.warp as usize] += 1;
            self.note_uniform(threads.warp);
        }
    }

    /// The threads arrive: what they did before comes before what acquires the point.
    pub fn release(&mut self, threads: Threads, point: &mut SyncPoint) {
        self.join_into(threads, point);
        self.epochs[threads.warp as usize] += 1;
    }

    /// The threads waited: what was released into the point comes before what they do from now on.
    pub fn acquire(&mut self, threads: Threads, point: &SyncPoint) {
        let mut previous: Option<(Arc<Clock>, Arc<Clock>)> = None;
        for thread in self.existing(threads) {
            let old = &self.clocks[thread];
            // Most lanes have the clock of their neighbour.
            let new = match &previous {
                Some((before, after)) if Arc::ptr_eq(before, old) => Arc::clone(after),
                _ if point.is_known_to(old) => Arc::clone(old),
                _ => Arc::new(point.joined(old)),
            };
            previous = Some((Arc::clone(old), Arc::clone(&new)));
            self.clocks[thread] = new;
        }
        self.note_uniform(threads.warp);
    }

    /// `fence.proxy.async`: makes the generic writes that the threads did, or that come before them, visible to the
    /// asynchronous proxy.
    pub fn proxy_fence(&mut self, threads: Threads) {
        let epoch = self.epochs[threads.warp as usize];
        let mut previous: Option<(Arc<Clock>, Arc<Clock>)> = None;
        for thread in self.existing(threads) {
            let old = &self.clocks[thread];
            let new = match &previous {
                Some((before, after)) if Arc::ptr_eq(before, old) => Arc::clone(after),
                _ => Arc::new(old.fenced(threads, epoch)),
            };
            previous = Some((Arc::clone(old), Arc::clone(&new)));
            self.clocks[thread] = new;
        }
        self.epochs[threads.warp as usize] += 1;
        self.note_uniform(threads.warp);
    }

    fn existing(&self, threads: Threads) -> impl Iterator<Item = usize> + use<> {
        assert!(threads.warp < self.warps, "warp {} is not in a CTA of {} warps", threads.warp, self.warps);
        threads.each()
    }

    fn join_into(&self, threads: Threads, point: &mut SyncPoint) {
        let mut previous: Option<&Arc<Clock>> = None;
        for thread in self.existing(threads) {
            let clock = &self.clocks[thread];
            if !previous.is_some_and(|previous| Arc::ptr_eq(previous, clock)) {
                point.join(clock);
            }
            previous = Some(clock);
        }
        point.raise(threads, self.epochs[threads.warp as usize]);
    }

    fn note_uniform(&mut self, warp: u32) {
        let clocks = &self.clocks[warp as usize * 32..][..32];
        self.uniform[warp as usize] = clocks.iter().all(|clock| Arc::ptr_eq(clock, &clocks[0]));
    }

    fn record(
        &mut self,
        access: &Access,
        address: u32,
        bytes: u32,
        pending: Option<Operation>,
    ) -> Result<(), Box<Race>> {
        let epoch = self.epochs[access.threads.warp as usize];
        let order = Order { access, clocks: &self.clocks, uniform: self.uniform[access.threads.warp as usize] };
        let mut race = None;
        for (word, mask) in words(address, bytes) {
            let records = &mut self.words[word];
            let new = Record { access: *access, epoch, bytes: mask, pending };
            let found = touch(records, new, &order);
            if let (None, Some((earlier, cause))) = (&race, found) {
                let overlap = (earlier.bytes & mask).trailing_zeros();
                race = Some(Box::new(Race {
                    address: word as u32 * WORD + overlap,
                    earlier: order.blamed(&earlier, self.warps),
                    later: party(access, access.threads.lanes.trailing_zeros(), self.warps),
                    cause,
                }));
            }
        }
        race.map_or(Ok(()), Err)
    }
}

/// The words of a range, with the mask of the bytes in each.
fn words(address: u32, bytes: u32) -> impl Iterator<Item = (usize, u8)> {
    let end = address + bytes;
    (address / WORD..end.div_ceil(WORD)).map(move |word| {
        let first = address.max(word * WORD) - word * WORD;
        let last = end.min((word + 1) * WORD) - word * WORD;
        (word as usize, ((1u16 << last) - (1u16 << first)) as u8)
    })
}

fn party(access: &Access, lane: u32, warps: u32) -> Party {
    let thread = (access.threads.warp < warps).then_some((access.threads.warp, lane));
    Party { thread, kind: access.kind, proxy: access.proxy, line: access.line }
}

/// Adds a record to those of its word, drops those that it makes superfluous, and returns the first it races with.
fn touch(records: &mut Vec<Record>, new: Record, order: &Order<'_>) -> Option<(Record, RaceCause)> {
    let mut race = None;
    let mut merged = false;
    records.retain_mut(|old| {
        if old.bytes & new.bytes == 0 {
            return true;
        }
        if old.access.kind.conflicts(new.access.kind) {
            if race.is_none() {
                race = order.problem(old).map(|cause| (*old, cause));
            }
            // An atomic does not stand for what comes before it: with another atomic it does not race.
            if new.access.kind != AccessKind::Write {
                return true;
            }
            // What comes after the new write need not be compared with what came before it.
            old.bytes &= !new.bytes;
            return old.bytes != 0;
        }
        if old.pending.is_some() {
            return true;
        }
        // Two reads, or two atomics. Those of the lanes of one instruction become one record.
        let same = old.epoch == new.epoch && old.bytes == new.bytes && new.pending.is_none();
        if same && one_instruction(&old.access, &new.access) {
            merged = true;
            old.access.threads.lanes |= new.access.threads.lanes;
            return true;
        }
        if old.bytes & !new.bytes != 0 || new.pending.is_some() {
            return true;
        }
        // What comes after the new access need not be compared with what comes before it, as far as that is quickly seen.
        if !old.access.collective && old.access.threads.warp == new.access.threads.warp {
            let single = new.access.threads.lanes.is_power_of_two();
            old.access.threads.lanes &= if single { !new.access.threads.lanes } else { u32::MAX };
        }
        old.access.threads.lanes != 0 && !order.is_obvious(old)
    });
    if !merged {
        if records.len() == MAX_RECORDS {
            records.remove(0);
        }
        records.push(new);
    }
    race
}

/// They differ in nothing but their lanes.
fn one_instruction(a: &Access, b: &Access) -> bool {
    let threads = Threads { lanes: b.threads.lanes, ..a.threads };
    !a.collective && Access { threads, ..*a } == *b
}

/// What an access knows about the accesses before it.
struct Order<'a> {
    access: &'a Access,
    clocks: &'a [Arc<Clock>],
    /// The lanes of its warp have one clock.
    uniform: bool,
}

impl Order<'_> {
    /// Why an earlier, conflicting access races with this one, if it does.
    fn problem(&self, old: &Record) -> Option<RaceCause> {
        if old.pending.is_some() {
            return Some(RaceCause::Pending);
        }
        if !self.is_ordered(old) {
            return Some(RaceCause::Unordered);
        }
        let crosses = self.access.proxy == Proxy::Async
            && old.access.proxy == Proxy::Generic
            && old.access.kind != AccessKind::Read;
        let fenced = || {
            self.access.threads.each().all(|thread| {
                old.access.threads.each().all(|writer| self.clocks[thread].fenced_epoch(writer) >= old.epoch)
            })
        };
        (crosses && !fenced()).then_some(RaceCause::ProxyFence)
    }

    /// The earlier access comes before this one.
    fn is_ordered(&self, old: &Record) -> bool {
        let (new, before) = (self.access.threads, old.access.threads);
        if self.is_obvious(old) {
            return true;
        }
        if self.uniform && new.warp != before.warp {
            // What one lane knows of another warp is what all of them know.
            return self.unordered_lanes(old, new.warp as usize * 32) == 0;
        }
        new.each().all(|thread| self.unordered_lanes(old, thread) == 0)
    }

    /// The earlier access comes before this one by the program of its threads, or by what whole warps know.
    fn is_obvious(&self, old: &Record) -> bool {
        let (new, before) = (self.access.threads, old.access.threads);
        let by_program = new.warp == before.warp
            && match old.access.collective {
                true => new.lanes & !before.lanes == 0,
                false => new.lanes == before.lanes && new.lanes.is_power_of_two(),
            };
        by_program || (self.uniform && self.clocks[new.warp as usize * 32].knows_warp(before.warp, old.epoch))
    }

    /// The lanes of the earlier access that `thread` does not come after; none if the lanes are one and it comes after
    /// one of them.
    fn unordered_lanes(&self, old: &Record, thread: usize) -> u32 {
        let clock = &self.clocks[thread];
        let unknown = |other: &usize| *other != thread && clock.known_epoch(*other) < old.epoch;
        let lanes = old.access.threads.each().filter(unknown).fold(0, |lanes, other| lanes | 1u32 << (other % 32));
        if old.access.collective && lanes != old.access.threads.lanes { 0 } else { lanes }
    }

    /// The earlier side of a race, with the first lane that is not ordered.
    fn blamed(&self, old: &Record, warps: u32) -> Party {
        let unordered = self.access.threads.each().map(|thread| self.unordered_lanes(old, thread));
        let lanes = unordered.into_iter().find(|&lanes| lanes != 0).unwrap_or(old.access.threads.lanes);
        party(&old.access, lanes.trailing_zeros(), warps)
    }
}

#[cfg(test)]
mod tests;
