//! Finds data races of global memory between the CTAs of a launch.
//!
//! Two CTAs run in no order, so two accesses of theirs to one byte, one of them a write, race, unless a protocol of
//! fences and atomics orders them. Such a protocol is not followed in detail: the accesses count as ordered if the
//! first CTA executed a fence after its access, and the second one a fence after that fence and before its own access.
//! So no correct protocol is reported, and some wrong ones are not.
//!
//! A CTA publishes what it did ([`CtaShadow::publish`](super::CtaShadow::publish)) at its fences and at its end. For
//! each byte the last write and the last atomics are kept, and the reads of two CTAs. That is enough: a later writer
//! that races with any reader races with one of these two.

use std::collections::HashMap;
use std::fmt;

use smallvec::SmallVec;

use super::AccessKind;
use super::global::{Mark, PAGE_BYTES};
use super::record::GRANULE;

/// One side of a race between CTAs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CtaParty {
    /// The index of the CTA in the launch.
    pub cta: u32,
    /// What it does.
    pub kind: AccessKind,
    /// Warp and lane of the first thread that does it.
    pub thread: (u32, u32),
    /// The line of the PTX.
    pub line: u32,
}

impl fmt::Display for CtaParty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (warp, lane) = self.thread;
        write!(f, "{} by CTA {}, warp {warp}, lane {lane} in PTX line {}", self.kind, self.cta, self.line)
    }
}

/// Two accesses of two CTAs, one of them a write, that nothing orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("race on global memory at {address:#x}: {earlier}, {later}: no fences order them")]
pub struct LaunchRace {
    /// The first byte that both touch.
    pub address: u64,
    /// The access that was published first.
    pub earlier: CtaParty,
    /// The access that found it.
    pub later: CtaParty,
}

/// What the CTAs of one launch did to global memory.
#[derive(Debug)]
pub struct LaunchShadow {
    pages: HashMap<u64, Page>,
    /// The fences of all CTAs so far.
    fences: u32,
    /// That number at the last fence of each CTA that had one.
    fenced: HashMap<u32, u32>,
}

type Page = [Granule; (PAGE_BYTES / GRANULE as u64) as usize];
type Granule = SmallVec<[Published; 2]>;

/// What a CTA did to some bytes of a granule.
#[derive(Debug, Clone, Copy)]
struct Published {
    party: CtaParty,
    bytes: u16,
    /// The number of the fence that published it; of what no fence follows the highest.
    time: u32,
}

impl Default for LaunchShadow {
    fn default() -> Self {
        LaunchShadow::new()
    }
}

impl LaunchShadow {
    /// That of a launch whose CTAs accessed nothing yet.
    pub fn new() -> Self {
        LaunchShadow { pages: HashMap::new(), fences: 0, fenced: HashMap::new() }
    }

    /// A fence that reaches other CTAs, by any thread of a CTA, or an access with the order of such a fence. What the
    /// CTA did before (the marks) is published, and what others published is seen.
    ///
    /// # Errors
    /// The first race of a mark, if there is one. All marks count all the same.
    pub fn fence(&mut self, cta: u32, marks: &[Mark]) -> Result<(), Box<LaunchRace>> {
        self.fences += 1;
        let result = self.publish(cta, marks, self.fences);
        self.fenced.insert(cta, self.fences);
        result
    }

    /// The end of a CTA, which publishes nothing: the marks are ordered with no other CTA's.
    ///
    /// # Errors
    /// As [`fence`](Self::fence).
    pub fn end(&mut self, cta: u32, marks: &[Mark]) -> Result<(), Box<LaunchRace>> {
        self.publish(cta, marks, u32::MAX)
    }

    fn publish(&mut self, cta: u32, marks: &[Mark], time: u32) -> Result<(), Box<LaunchRace>> {
        let fenced = self.fenced.get(&cta).copied().unwrap_or(0);
        let mut race = None;
        for marks in marks.chunk_by(|a, b| a.address / PAGE_BYTES == b.address / PAGE_BYTES) {
            let page = self.pages.entry(marks[0].address / PAGE_BYTES);
            let page = page.or_insert_with(|| std::array::from_fn(|_| Granule::new()));
            for mark in marks {
                let granule = &mut page[(mark.address % PAGE_BYTES) as usize / GRANULE as usize];
                let Mark { address, kind, bytes, thread, line } = *mark;
                let new = Published { party: CtaParty { cta, kind, thread, line }, bytes, time };
                let earlier = touch(granule, new, fenced);
                race = race.or_else(|| {
                    let old = earlier?;
                    let address = address + u64::from((old.bytes & bytes).trailing_zeros());
                    Some(Box::new(LaunchRace { address, earlier: old.party, later: new.party }))
                });
            }
        }
        race.map_or(Ok(()), Err)
    }
}

/// Adds what a CTA did whose last fence was the one with the number `fenced`, and returns the first that races with it.
fn touch(granule: &mut Granule, new: Published, fenced: u32) -> Option<Published> {
    let CtaParty { cta, kind, .. } = new.party;
    let races = |old: &&Published| {
        let ordered = old.party.cta == cta || fenced > old.time;
        old.bytes & new.bytes != 0 && old.party.kind.conflicts(kind) && !ordered
    };
    let race = granule.iter().find(races).copied();
    // The bytes that one other CTA reads as well, of those seen so far.
    let mut shared = 0;
    for old in granule.iter_mut().rev() {
        match kind {
            // What comes after the write need not be compared with what came before it.
            AccessKind::Write => old.bytes &= !new.bytes,
            _ if old.party.kind != kind => {}
            _ if old.party.cta == cta => old.bytes &= !new.bytes,
            _ => {
                let both = old.bytes & new.bytes;
                old.bytes &= !(both & shared);
                shared |= both;
            }
        }
    }
    granule.retain(|old| old.bytes != 0);
    granule.push(new);
    race
}

#[cfg(test)]
mod tests {
    use super::super::{Access, CtaShadow, Threads};
    use super::*;

    const ADDRESS: u64 = 0x1_0000_0010;

    fn marks(kind: AccessKind, line: u32, address: u64, bytes: u32) -> Vec<Mark> {
        let mut cta = CtaShadow::new(0, 64);
        cta.access_global(&Access::new(Threads::lane(1, 3), kind, line), address, bytes).unwrap();
        cta.publish()
    }

    fn party(cta: u32, kind: AccessKind, line: u32) -> CtaParty {
        CtaParty { cta, kind, thread: (1, 3), line }
    }

    #[test]
    fn two_ctas_may_read_or_do_atomics_but_not_write() {
        for first in AccessKind::ALL {
            for second in AccessKind::ALL {
                let mut launch = LaunchShadow::new();
                launch.end(0, &marks(first, 5, ADDRESS, 4)).unwrap();
                let result = launch.end(1, &marks(second, 7, ADDRESS, 4));
                if first == second && first != AccessKind::Write {
                    assert_eq!(result, Ok(()));
                } else {
                    let (earlier, later) = (party(0, first, 5), party(1, second, 7));
                    assert_eq!(*result.unwrap_err(), LaunchRace { address: ADDRESS, earlier, later });
                }
            }
        }
    }

    #[test]
    fn bytes_of_one_granule_may_have_different_writers() {
        let mut launch = LaunchShadow::new();
        for cta in 0..4 {
            launch.end(cta, &marks(AccessKind::Write, 1, ADDRESS + 2 * u64::from(cta), 2)).unwrap();
        }
        for byte in 0..8u32 {
            let read = marks(AccessKind::Read, 2, ADDRESS + u64::from(byte), 1);
            let race = launch.end(9, &read).unwrap_err();
            assert_eq!((race.address, race.earlier.cta), (ADDRESS + u64::from(byte), byte / 2));
        }
    }

    #[test]
    fn one_of_many_readers_is_not_the_writer() {
        for writer in 0..5 {
            let mut launch = LaunchShadow::new();
            for cta in [0, 1, 1, 2, 3, 1] {
                launch.end(cta, &marks(AccessKind::Read, 1, ADDRESS, 4)).unwrap();
            }
            let race = launch.end(writer, &marks(AccessKind::Write, 2, ADDRESS, 4)).unwrap_err();
            assert_ne!(race.earlier.cta, writer);
        }
        let mut launch = LaunchShadow::new();
        launch.end(7, &marks(AccessKind::Read, 1, ADDRESS, 4)).unwrap();
        launch.end(7, &marks(AccessKind::Write, 2, ADDRESS, 4)).unwrap();
    }

    #[test]
    fn fences_on_both_sides_order() {
        for (writer_fences, reader_fences) in [(false, false), (true, false), (false, true), (true, true)] {
            let mut launch = LaunchShadow::new();
            let write = marks(AccessKind::Write, 1, ADDRESS, 16);
            if writer_fences { launch.fence(0, &write) } else { launch.end(0, &write) }.unwrap();
            if reader_fences {
                launch.fence(1, &[]).unwrap();
            }
            let ordered = launch.end(1, &marks(AccessKind::Read, 2, ADDRESS, 16)).is_ok();
            assert_eq!(ordered, writer_fences && reader_fences, "writer {writer_fences}, reader {reader_fences}");
        }
        let mut launch = LaunchShadow::new();
        launch.fence(1, &[]).unwrap();
        launch.fence(0, &marks(AccessKind::Write, 1, ADDRESS, 16)).unwrap();
        let read = marks(AccessKind::Read, 2, ADDRESS, 16);
        assert!(launch.end(1, &read).is_err(), "the fence of the reader came too early");
    }

    #[test]
    fn accesses_across_pages_are_seen_on_both() {
        let mut launch = LaunchShadow::new();
        let border = 5 * PAGE_BYTES;
        launch.end(0, &marks(AccessKind::Write, 1, border - 8, 16)).unwrap();
        for (address, clean) in [(border - 12, true), (border - 8, false), (border + 4, false), (border + 8, true)] {
            let read = marks(AccessKind::Read, 2, address, 4);
            assert_eq!(launch.end(1, &read).is_ok(), clean, "{address:#x}");
        }
    }

    #[test]
    fn a_race_says_what_and_where() {
        let mut launch = LaunchShadow::new();
        launch.end(0, &marks(AccessKind::Write, 3, ADDRESS, 4)).unwrap();
        let race = launch.end(1, &marks(AccessKind::Atomic, 4, ADDRESS, 4)).unwrap_err();
        let text = "race on global memory at 0x100000010: write by CTA 0, warp 1, lane 3 in PTX line 3, atomic by CTA 1, \
                    warp 1, lane 3 in PTX line 4: no fences order them";
        assert_eq!(race.to_string(), text);
    }
}
