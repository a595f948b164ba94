//! The accesses to one granule of memory that a later access may race with.

use std::num::NonZeroU32;
use std::sync::Arc;

use smallvec::SmallVec;

use super::clock::Clock;
use super::{Access, AccessKind, Party, Proxy, Race, RaceCause, Threads, bits};
use crate::memory::Space;

/// The bytes of a granule: the longest access of a thread, and a row of `ldmatrix`.
pub(super) const GRANULE: u32 = 16;

/// The accesses kept for one granule: above this the oldest is forgotten, so that memory stays bounded.
const MAX_RECORDS: usize = 1024;

/// An asynchronous operation that nobody waited for yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Operation(pub(super) NonZeroU32);

impl Operation {
    /// Operations are numbered from 1, for an `Option` of them to be as small.
    pub(super) fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// An access to some bytes of a granule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) access: Access,
    pub(super) epoch: u32,
    /// What it is a part of, while it is pending.
    pub(super) pending: Option<Operation>,
    /// Bit `i` is byte `i` of the granule.
    pub(super) bytes: u16,
    /// If not 0, each lane accesses as many of the bytes, in the order of the lanes; otherwise each accesses all.
    pub(super) each: u8,
}

impl Record {
    /// The lanes that access some of the bytes.
    fn lanes_of(&self, bytes: u16) -> u32 {
        let lanes = self.access.threads.lanes;
        match self.each {
            0 => lanes,
            _ => {
                bits(lanes).zip(self.parts()).filter(|part| part.1 & bytes != 0).fold(0, |set, part| set | 1 << part.0)
            }
        }
    }

    /// The bytes of each lane in turn, where they are its own.
    fn parts(&self) -> impl Iterator<Item = u16> + use<> {
        let (first, each) = (self.bytes.trailing_zeros(), u32::from(self.each));
        let part = ((1u32 << each) - 1) << first;
        (0..u16::BITS / each.max(1)).map(move |at| (part << (each * at)) as u16)
    }

    /// The record of each lane.
    fn split(self) -> impl Iterator<Item = Record> {
        let Threads { warp, lanes } = self.access.threads;
        bits(lanes).zip(self.parts()).map(move |(lane, bytes)| {
            let access = Access { threads: Threads::lane(warp, lane as u32), ..self.access };
            Record { access, bytes, each: 0, ..self }
        })
    }
}

/// One granule. What another generation left in it does not count, so that a new CTA begins without a pass through
/// the memory.
#[derive(Debug, Clone, Default)]
pub(super) struct Granule {
    generation: u32,
    records: SmallVec<[Record; 2]>,
}

impl Granule {
    /// The records of this generation.
    #[inline]
    pub(super) fn of(&mut self, generation: u32) -> &mut SmallVec<[Record; 2]> {
        if self.generation != generation {
            self.generation = generation;
            self.records.clear();
        }
        &mut self.records
    }
}

/// The granules of a range, with the mask of the bytes in each.
#[inline]
pub(super) fn granules(address: u32, bytes: u32) -> impl Iterator<Item = (usize, u16)> {
    let end = address + bytes;
    (address / GRANULE..end.div_ceil(GRANULE)).map(move |granule| {
        let first = address.max(granule * GRANULE) - granule * GRANULE;
        let last = end.min((granule + 1) * GRANULE) - granule * GRANULE;
        (granule as usize, ((1u32 << last) - (1u32 << first)) as u16)
    })
}

/// Two records that race, and why.
pub(super) struct Found {
    old: Record,
    new: Record,
    cause: RaceCause,
}

/// Adds a record to those of its granule, and drops the records that are superfluous then. Returns the first record
/// that the new one races with.
#[inline]
pub(super) fn touch(records: &mut SmallVec<[Record; 2]>, new: Record, order: &Order<'_>) -> Option<Found> {
    if new.each == 0 {
        return touch_by(records, new, |old, race| compare(old, &new, order, race));
    }
    if !records.iter().any(|old| old.bytes & new.bytes != 0 && order.needs_lanes(old, &new)) {
        return touch_by(records, new, |old, _| (!order.is_replaced(old, &new), false));
    }
    let mut race = None;
    for new in new.split() {
        let order = Order { access: &new.access, ..*order };
        let found = touch_by(records, new, |old, race| compare(old, &new, &order, race));
        race = race.or(found);
    }
    race
}

/// Calls `keep` for every record: whether it is still needed, and whether it now stands for the new one too.
#[inline(always)]
fn touch_by(
    records: &mut SmallVec<[Record; 2]>,
    new: Record,
    mut keep: impl FnMut(&mut Record, &mut Option<Found>) -> (bool, bool),
) -> Option<Found> {
    let mut race = None;
    let mut merged = false;
    records.retain(|old| {
        let (keep, joined) = keep(old, &mut race);
        merged |= joined;
        keep
    });
    if !merged {
        if records.len() == MAX_RECORDS {
            records.remove(0);
        }
        records.push(new);
    }
    race
}

/// Whether an old record is still needed beside a new one, and whether it now stands for the new one too.
#[inline]
fn compare(old: &mut Record, new: &Record, order: &Order<'_>, race: &mut Option<Found>) -> (bool, bool) {
    let same_time = old.epoch == new.epoch && old.pending.is_none() && new.pending.is_none() && old.each == 0;
    if old.bytes & new.bytes == 0 {
        // Bytes that one instruction accesses one after another become one record.
        let joined = same_time && old.access == new.access;
        if joined {
            old.bytes |= new.bytes;
        }
        return (true, joined);
    }
    if old.access.kind.conflicts(new.access.kind) {
        if race.is_none() {
            let mut part = Record { each: 0, ..*old };
            part.access.threads.lanes = old.lanes_of(new.bytes);
            *race = order.problem(&part).map(|cause| Found { old: part, new: *new, cause });
        }
        // An atomic does not stand for what comes before it: with another atomic it does not race.
        if new.access.kind != AccessKind::Write {
            return (true, false);
        }
        // What comes after the new write need not be compared with what came before it.
        return (!remove(old, new.bytes), false);
    }
    if old.pending.is_some() {
        return (true, false);
    }
    // Two reads, or two atomics. Those of the lanes of one instruction become one record.
    if same_time && old.bytes == new.bytes && one_instruction(&old.access, &new.access) {
        old.access.threads.lanes |= new.access.threads.lanes;
        return (true, true);
    }
    if old.bytes & !new.bytes != 0 || new.pending.is_some() {
        return (true, false);
    }
    // What comes after the new access need not be compared with what comes before it, as far as that is quickly seen.
    if !old.access.collective && old.each == 0 && old.access.threads.warp == new.access.threads.warp {
        let single = new.access.threads.lanes.is_power_of_two();
        old.access.threads.lanes &= if single { !new.access.threads.lanes } else { u32::MAX };
    }
    (old.access.threads.lanes != 0 && !order.is_obvious(old), false)
}

/// Takes bytes from a record, as far as the rest is still one; whether nothing is left.
fn remove(old: &mut Record, bytes: u16) -> bool {
    let rest = old.bytes & !bytes;
    if old.each == 0 {
        old.bytes = rest;
    }
    rest == 0
}

/// The same lanes access the same bytes each.
fn same_lanes(old: &Record, new: &Record) -> bool {
    (old.access.threads, old.bytes, old.each) == (new.access.threads, new.bytes, new.each)
}

/// They differ in nothing but their lanes.
fn one_instruction(a: &Access, b: &Access) -> bool {
    let threads = Threads { lanes: b.threads.lanes, ..a.threads };
    !a.collective && Access { threads, ..*a } == *b
}

/// What an access knows about the accesses before it.
#[derive(Clone, Copy)]
pub(super) struct Order<'a> {
    pub(super) access: &'a Access,
    pub(super) clocks: &'a [Arc<Clock>],
    /// The lanes of its warp have one clock.
    pub(super) uniform: bool,
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
        let is_fenced = |thread: usize| self.clocks[thread].unfenced_lanes(old.access.threads, old.epoch) == 0;
        let fenced = || self.access.threads.each().all(is_fenced);
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

    /// Whether a new record of lanes with bytes of their own must be compared with an old one lane by lane.
    fn needs_lanes(&self, old: &Record, new: &Record) -> bool {
        let conflicts = old.access.kind.conflicts(new.access.kind);
        conflicts && (old.pending.is_some() || !(same_lanes(old, new) || self.knows_warp(old)))
    }

    /// Whether a new record of lanes with bytes of their own stands for an old one.
    fn is_replaced(&self, old: &mut Record, new: &Record) -> bool {
        let overlaps = old.bytes & new.bytes != 0;
        if !overlaps
            || old.pending.is_some()
            || new.access.kind == AccessKind::Atomic && old.access.kind != new.access.kind
        {
            return false;
        }
        if new.access.kind == AccessKind::Write {
            return remove(old, new.bytes);
        }
        let covers = old.bytes & !new.bytes == 0 && old.access.kind == new.access.kind;
        covers && (same_lanes(old, new) || self.knows_warp(old))
    }

    /// All lanes of its warp know what the whole warp of the earlier access did up to then.
    #[inline]
    fn knows_warp(&self, old: &Record) -> bool {
        self.uniform
            && self.clocks[self.access.threads.warp as usize * 32].knows_warp(old.access.threads.warp, old.epoch)
    }

    /// The earlier access comes before this one by the program of its threads, or by what whole warps know.
    fn is_obvious(&self, old: &Record) -> bool {
        let (new, before) = (self.access.threads, old.access.threads);
        let by_program = new.warp == before.warp
            && match old.access.collective {
                true => new.lanes & !before.lanes == 0,
                false => new.lanes == before.lanes && new.lanes.is_power_of_two() && old.each == 0,
            };
        by_program || self.knows_warp(old)
    }

    /// The lanes of the earlier access that `thread` does not come after. There are none if the lanes act as one and
    /// `thread` comes after one of them.
    fn unordered_lanes(&self, old: &Record, thread: usize) -> u32 {
        let before = old.access.threads;
        // A thread's entry for itself says nothing.
        let itself = if thread / 32 == before.warp as usize { 1 << (thread % 32) } else { 0 };
        let lanes = self.clocks[thread].unknown_lanes(before, old.epoch) & !itself;
        if old.access.collective && lanes != old.access.threads.lanes { 0 } else { lanes }
    }

    /// The race of two accesses to the granule at an address.
    pub(super) fn race(&self, found: &Found, (space, granule): (Space, u64), warps: u32) -> Box<Race> {
        let Found { old, new, cause } = found;
        let order = Order { access: &new.access, ..*self };
        let address = granule + u64::from((old.bytes & new.bytes).trailing_zeros());
        let later = party(&new.access, new.access.threads.lanes.trailing_zeros(), warps);
        Box::new(Race { space, address, earlier: order.blamed(old, warps), later, cause: *cause })
    }

    /// The earlier side of a race, with the first lane that is not ordered.
    fn blamed(&self, old: &Record, warps: u32) -> Party {
        let unordered = self.access.threads.each().map(|thread| self.unordered_lanes(old, thread));
        let lanes = unordered.into_iter().find(|&lanes| lanes != 0).unwrap_or(old.access.threads.lanes);
        party(&old.access, lanes.trailing_zeros(), warps)
    }
}

fn party(access: &Access, lane: u32, warps: u32) -> Party {
    let thread = (access.threads.warp < warps).then_some((access.threads.warp, lane));
    Party { thread, kind: access.kind, proxy: access.proxy, line: access.line }
}
