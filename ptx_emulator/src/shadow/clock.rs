//! What a thread knows about the others: the epoch of each up to which their accesses come before its own.

use super::Threads;

/// The clock of a thread, or of many threads that know the same.
///
/// A thread's entry for itself says nothing: its own accesses come before it anyway.
#[derive(Debug, Clone)]
pub(super) struct Clock {
    /// For each thread, and each agent of the asynchronous proxy as one more warp.
    known: Vec<u32>,
    /// The same for generic writes that a proxy fence follows.
    fenced: Vec<u32>,
    /// The lowest entry of `known` in each warp.
    floors: Vec<u32>,
}

impl Clock {
    /// That of every thread of a CTA at its start.
    pub(super) fn new(threads: u32, warps: u32) -> Clock {
        let mut point = SyncPoint::new(warps);
        // Lanes that are not there have no accesses: whatever they do, it is known.
        point.known[threads as usize..warps as usize * 32].fill(u32::MAX);
        point.into_clock()
    }

    /// The lanes of `threads` whose accesses of `epoch` are not known.
    pub(super) fn unknown_lanes(&self, threads: Threads, epoch: u32) -> u32 {
        lanes_below(&self.known, threads, epoch)
    }

    /// The lanes of `threads` whose writes of `epoch` are not visible to the asynchronous proxy.
    pub(super) fn unfenced_lanes(&self, threads: Threads, epoch: u32) -> u32 {
        lanes_below(&self.fenced, threads, epoch)
    }

    /// The accesses of every lane of `warp` up to `epoch` are known.
    pub(super) fn knows_warp(&self, warp: u32, epoch: u32) -> bool {
        self.floors[warp as usize] >= epoch
    }

    /// This clock after a proxy fence of `threads`, which are in `epoch`.
    ///
    /// A lane's entries for its neighbours count too. Without an order between the two lanes such an entry does not
    /// matter, and whatever orders them later comes after the fence.
    pub(super) fn fenced(&self, threads: Threads, epoch: u32) -> Clock {
        let mut clock = self.clone();
        raise(&mut clock.fenced, &self.known);
        for thread in threads.each() {
            clock.fenced[thread] = epoch;
        }
        clock
    }
}

/// What threads release into a barrier and others acquire from it.
#[derive(Debug, Clone)]
pub struct SyncPoint {
    known: Vec<u32>,
    fenced: Vec<u32>,
}

impl SyncPoint {
    /// An empty one, for `warps` warps and the agents.
    pub(super) fn new(warps: u32) -> SyncPoint {
        let entries = (warps as usize + 1) * 32;
        SyncPoint { known: vec![0; entries], fenced: vec![0; entries] }
    }

    /// Forgets what was released into it.
    pub fn clear(&mut self) {
        self.known.fill(0);
        self.fenced.fill(0);
    }

    /// Adds what another point holds.
    pub fn merge(&mut self, other: &SyncPoint) {
        raise(&mut self.known, &other.known);
        raise(&mut self.fenced, &other.fenced);
    }

    /// Adds what a thread knows.
    pub(super) fn join(&mut self, clock: &Clock) {
        raise(&mut self.known, &clock.known);
        raise(&mut self.fenced, &clock.fenced);
    }

    /// Adds the accesses of the threads themselves, up to `epoch`.
    pub(super) fn raise(&mut self, threads: Threads, epoch: u32) {
        for thread in threads.each() {
            self.known[thread] = self.known[thread].max(epoch);
        }
    }

    /// Whether joining it would not change the clock.
    pub(super) fn is_known_to(&self, clock: &Clock) -> bool {
        let covered = |ours: &[u32], theirs: &[u32]| ours.iter().zip(theirs).all(|(ours, theirs)| ours <= theirs);
        covered(&self.known, &clock.known) && covered(&self.fenced, &clock.fenced)
    }

    /// The clock that knows what `clock` does and what was released here.
    pub(super) fn joined(&self, clock: &Clock) -> Clock {
        let mut point = self.clone();
        point.join(clock);
        point.into_clock()
    }

    pub(super) fn into_clock(self) -> Clock {
        let floor = |warp: &[u32; 32]| warp.iter().copied().min().unwrap_or(0);
        let floors = self.known.as_chunks().0.iter().map(floor).collect();
        Clock { known: self.known, fenced: self.fenced, floors }
    }
}

/// The lanes of `threads` whose entries are below `epoch`.
#[inline]
fn lanes_below(entries: &[u32], threads: Threads, epoch: u32) -> u32 {
    let first = threads.warp as usize * 32;
    if threads.lanes.is_power_of_two() {
        return if entries[first + threads.lanes.trailing_zeros() as usize] < epoch { threads.lanes } else { 0 };
    }
    // All of them without a branch, which the compiler makes vectors of.
    let below = entries[first..][..32].iter().enumerate();
    below.fold(0, |lanes, (lane, &entry)| lanes | u32::from(entry < epoch) << lane) & threads.lanes
}

/// Raises each entry to that of `other`.
fn raise(entries: &mut [u32], other: &[u32]) {
    for (entry, &other) in entries.iter_mut().zip(other) {
        *entry = (*entry).max(other);
    }
}
