//! The accesses of one CTA and the order of its threads.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::clock::{Clock, SyncPoint};
use super::global::{GlobalPages, Mark, PAGE_BYTES};
use super::record::{GRANULE, Granule, Operation, Order, Record, granules, touch};
use super::{Access, Race, Threads};
use crate::memory::Space;

/// What the accesses of one CTA to shared and global memory were, and how its threads are ordered.
#[derive(Debug, Clone)]
pub struct CtaShadow {
    pub(super) shared: Vec<Granule>,
    global: GlobalPages,
    /// That of the granules that count.
    pub(super) generation: u32,
    /// Fences order accesses of the threads.
    fences_order: bool,
    /// What the threads released into fences.
    fenced: SyncPoint,
    warps: u32,
    /// The current epoch of each warp; one more for the agents of the asynchronous proxy.
    epochs: Vec<u32>,
    /// The clock of each thread at the start.
    start: Arc<Clock>,
    /// The clock of each thread.
    clocks: Vec<Arc<Clock>>,
    /// The lanes of the warp have one clock.
    uniform: Vec<bool>,
    /// The byte ranges of each pending operation.
    operations: Vec<Vec<(u32, u32)>>,
    /// The finished ones.
    free: Vec<Operation>,
}

impl CtaShadow {
    /// The agents of the asynchronous proxy that [`finish_into`](Self::finish_into) tells apart.
    pub const AGENTS: u32 = 32;

    /// For a CTA of `threads` threads and `bytes` of shared memory, nothing of which was accessed.
    pub fn new(bytes: u32, threads: u32) -> Self {
        let warps = threads.div_ceil(32);
        let start = Arc::new(Clock::new(threads, warps));
        CtaShadow {
            shared: vec![Granule::default(); bytes.div_ceil(GRANULE) as usize],
            global: GlobalPages::new(),
            generation: 1,
            fences_order: false,
            fenced: SyncPoint::new(warps),
            warps,
            epochs: vec![1; warps as usize + 1],
            clocks: vec![Arc::clone(&start); warps as usize * 32],
            start,
            uniform: vec![true; warps as usize],
            operations: Vec::new(),
            free: Vec::new(),
        }
    }

    /// The same for a kernel whose threads can tell each other something through volatile, relaxed or atomic accesses:
    /// [`fence`](Self::fence) orders what comes before one in time before what comes after the next.
    #[must_use]
    pub fn with_fences(self) -> Self {
        CtaShadow { fences_order: true, ..self }
    }

    /// Makes it as it was when it was new, for another CTA of the launch.
    pub fn restart(&mut self) {
        self.generation += 1;
        self.global.clear();
        self.fenced.clear();
        self.epochs.fill(1);
        self.clocks.fill(Arc::clone(&self.start));
        self.uniform.fill(true);
        self.operations.clear();
        self.free.clear();
    }

    /// An empty point of synchronisation of this CTA: for a named barrier, or a phase of an `mbarrier`.
    pub fn sync_point(&self) -> SyncPoint {
        SyncPoint::new(self.warps)
    }

    /// Records an access to `bytes` bytes of shared memory at `address`.
    ///
    /// # Errors
    /// The race, if there is one. The access counts all the same, so that the next one is not blamed for it.
    ///
    /// # Panics
    /// If the bytes are not in the shared memory or the warp is not in the CTA.
    #[inline]
    pub fn access(&mut self, access: &Access, address: u32, bytes: u32) -> Result<(), Box<Race>> {
        self.record(access, address, (bytes, 0), None)
    }

    /// Records an access of each of the threads to `each` bytes of shared memory of its own, one behind another from
    /// `address` on in the order of the lanes.
    ///
    /// # Errors
    /// As [`access`](Self::access).
    ///
    /// # Panics
    /// As [`access`](Self::access), and if the bytes are not all in one granule of 16.
    #[inline]
    pub fn access_each(&mut self, access: &Access, address: u32, each: u8) -> Result<(), Box<Race>> {
        self.record(access, address, (access.threads.lanes.count_ones() * u32::from(each), each), None)
    }

    /// [`access_each`](Self::access_each) of global memory.
    ///
    /// # Errors
    /// As [`access_global`](Self::access_global).
    ///
    /// # Panics
    /// As [`access_global`](Self::access_global), and if the bytes are not all in one granule of 16.
    pub fn access_global_each(&mut self, access: &Access, address: u64, each: u8) -> Result<(), Box<Race>> {
        self.record_global(access, address, (access.threads.lanes.count_ones() * u32::from(each), each))
    }

    /// Records an access to `bytes` bytes of global memory at `address`.
    ///
    /// # Errors
    /// The race with another thread of the CTA, if there is one. The access counts all the same.
    ///
    /// # Panics
    /// If the warp is not in the CTA.
    pub fn access_global(&mut self, access: &Access, address: u64, bytes: u32) -> Result<(), Box<Race>> {
        let mut result = Ok(());
        let (mut at, end) = (address, address + u64::from(bytes));
        while at < end {
            let count = (PAGE_BYTES - at % PAGE_BYTES).min(end - at);
            result = result.and(self.record_global(access, at, (count as u32, 0)));
            at += count;
        }
        result
    }

    fn record_global(&mut self, access: &Access, address: u64, (bytes, each): (u32, u8)) -> Result<(), Box<Race>> {
        let warp = access.threads.warp as usize;
        let epoch = self.epochs[warp];
        let order = Order { access, clocks: &self.clocks, uniform: self.uniform[warp] };
        let page = address / PAGE_BYTES * PAGE_BYTES;
        let mut race = None;
        for (granule, mask) in granules((address - page) as u32, bytes) {
            let place = page + granule as u64 * u64::from(GRANULE);
            let new = Record { access: *access, epoch, bytes: mask, pending: None, each };
            let Some(records) = self.global.note(place, &new, self.generation) else { continue };
            if let (Some(found), None) = (touch(records, new, &order), &race) {
                race = Some(order.race(&found, (Space::Global, place), self.warps));
            }
        }
        race.map_or(Ok(()), Err)
    }

    /// Takes what the CTA did to global memory since the last call, for [`LaunchShadow`](super::LaunchShadow).
    pub fn publish(&mut self) -> Vec<Mark> {
        self.global.publish()
    }

    /// A new asynchronous operation, of which no access is known yet.
    pub fn start(&mut self) -> Operation {
        if let Some(operation) = self.free.pop() {
            return operation;
        }
        self.operations.push(Vec::new());
        Operation(NonZeroU32::MIN.saturating_add(self.operations.len() as u32 - 1))
    }

    /// Records an access of an asynchronous operation by those who start it; it is pending until the operation is
    /// finished.
    ///
    /// # Errors
    /// As [`access`](Self::access).
    ///
    /// # Panics
    /// As [`access`](Self::access).
    pub fn access_pending(
        &mut self,
        operation: Operation,
        access: &Access,
        address: u32,
        bytes: u32,
    ) -> Result<(), Box<Race>> {
        self.operations[operation.index()].push((address, bytes));
        self.record(access, address, (bytes, 0), Some(operation))
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
        let ranges = &mut self.operations[operation.index()];
        for (address, bytes) in ranges.drain(..) {
            for (granule, _) in granules(address, bytes) {
                for record in self.shared[granule].of(self.generation) {
                    if record.pending == Some(operation) {
                        record.pending = None;
                        record.epoch = epoch;
                        record.access.threads = threads;
                    }
                }
            }
        }
        self.free.push(operation);
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

    /// A fence of any memory by the threads, in a kernel that has accesses which can be flags
    /// ([`with_fences`](Self::with_fences)). The fence comes after the fences of the CTA that were executed before.
    pub fn fence(&mut self, threads: Threads) {
        if self.fences_order {
            let mut fenced = std::mem::replace(&mut self.fenced, SyncPoint::new(0));
            self.release(threads, &mut fenced);
            self.acquire(threads, &fenced);
            self.fenced = fenced;
        }
    }

    fn record(
        &mut self,
        access: &Access,
        address: u32,
        (bytes, each): (u32, u8),
        pending: Option<Operation>,
    ) -> Result<(), Box<Race>> {
        let warp = access.threads.warp as usize;
        let epoch = self.epochs[warp];
        let order = Order { access, clocks: &self.clocks, uniform: self.uniform[warp] };
        let mut race = None;
        for (granule, mask) in granules(address, bytes) {
            let records = self.shared[granule].of(self.generation);
            let new = Record { access: *access, epoch, bytes: mask, pending, each };
            if let (Some(found), None) = (touch(records, new, &order), &race) {
                let place = (Space::Shared, granule as u64 * u64::from(GRANULE));
                race = Some(order.race(&found, place, self.warps));
            }
        }
        race.map_or(Ok(()), Err)
    }
}
