//! Finds data races of global memory between the CTAs of a launch.
//!
//! Two CTAs run in no order, so two accesses of theirs to one byte, one of them a write, race, unless a protocol of
//! fences and atomics orders them. Such a protocol is not followed in detail: the accesses count as ordered if the first
//! CTA executed a fence after its access, and the second one a fence after that moment. So no correct protocol is
//! reported, and some wrong ones are not.
//!
//! For each word of 4 bytes the last write and the last atomic are kept, and the last read of two CTAs. Races inside of one CTA are not looked
//! for here.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::{AccessKind, words};

/// The bytes of memory that one page of the shadow is about.
const PAGE_BYTES: u64 = 1024;

/// One side of a race between CTAs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CtaParty {
    /// The index of the CTA in the launch.
    pub cta: u32,
    /// What it does.
    pub kind: AccessKind,
    /// The line of the PTX.
    pub line: u32,
}

impl fmt::Display for CtaParty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by CTA {} in PTX line {}", self.kind, self.cta, self.line)
    }
}

/// Two accesses of two CTAs, one of them a write, that nothing orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("race on global memory at {address:#x}: {earlier}, {later}: no fences order them")]
pub struct LaunchRace {
    /// The first byte that both touch.
    pub address: u64,
    /// The access that ran first here.
    pub earlier: CtaParty,
    /// The access that found it.
    pub later: CtaParty,
}

/// What the CTAs of one launch did to global memory.
#[derive(Debug)]
pub struct LaunchShadow {
    pages: RwLock<HashMap<u64, Arc<Page>>>,
    /// The fences of all CTAs so far.
    fences: AtomicU32,
    /// The fences of each CTA.
    fences_of: Vec<AtomicU32>,
}

type Page = Mutex<[Word; PAGE_BYTES as usize / 4]>;

#[derive(Debug, Clone, Copy, Default)]
struct Word {
    write: Option<Mark>,
    atomic: Option<Mark>,
    /// Of two different CTAs, the last one first.
    reads: [Option<Mark>; 2],
}

/// An access to some bytes of a word.
#[derive(Debug, Clone, Copy)]
struct Mark {
    party: CtaParty,
    /// Bit `i` is byte `i` of the word.
    bytes: u8,
    /// The fences of all CTAs before it.
    time: u32,
    /// The fences of its CTA before it.
    own_fences: u32,
}

impl LaunchShadow {
    /// For a launch of `ctas` CTAs, none of which accessed anything.
    pub fn new(ctas: u32) -> Self {
        let fences_of = (0..ctas).map(|_| AtomicU32::new(0)).collect();
        LaunchShadow { pages: RwLock::default(), fences: AtomicU32::new(0), fences_of }
    }

    /// The view of one CTA.
    ///
    /// # Panics
    /// If there are not that many.
    pub fn cta(&self, cta: u32) -> CtaShadow<'_> {
        assert!((cta as usize) < self.fences_of.len(), "CTA {cta} is not one of {}", self.fences_of.len());
        CtaShadow { launch: self, cta, fenced: 0, recent: None }
    }

    fn page(&self, number: u64) -> Arc<Page> {
        if let Some(page) = self.pages.read().unwrap_or_else(PoisonError::into_inner).get(&number) {
            return Arc::clone(page);
        }
        let mut pages = self.pages.write().unwrap_or_else(PoisonError::into_inner);
        let page = pages.entry(number).or_insert_with(|| Arc::new(Mutex::new([Word::default(); _])));
        Arc::clone(page)
    }
}

/// The accesses of one CTA, which one thread of the CPU runs.
#[derive(Debug)]
pub struct CtaShadow<'a> {
    launch: &'a LaunchShadow,
    cta: u32,
    /// The fences of all CTAs at the last fence of this one.
    fenced: u32,
    /// The page of the last access, by its number.
    recent: Option<(u64, Arc<Page>)>,
}

impl CtaShadow<'_> {
    /// A fence of any thread of the CTA that reaches other CTAs, or an access with the order of one: what the CTA did
    /// before is published, and what others published is seen.
    pub fn fence(&mut self) {
        self.launch.fences_of[self.cta as usize].fetch_add(1, Relaxed);
        self.fenced = self.launch.fences.fetch_add(1, Relaxed) + 1;
    }

    /// Records an access to `bytes` bytes at `address`. What is strong in the sense of PTX (atomics, volatile, relaxed,
    /// acquire and release accesses) is [`AccessKind::Atomic`].
    ///
    /// # Errors
    /// The race, if there is one. The access counts all the same.
    pub fn access(&mut self, kind: AccessKind, line: u32, address: u64, bytes: u32) -> Result<(), Box<LaunchRace>> {
        let mut result = Ok(());
        let (mut at, end) = (address, address + u64::from(bytes));
        while at < end {
            let count = (PAGE_BYTES - at % PAGE_BYTES).min(end - at);
            result = result.and(self.access_page(kind, line, at, count as u32));
            at += count;
        }
        result
    }

    fn access_page(&mut self, kind: AccessKind, line: u32, address: u64, bytes: u32) -> Result<(), Box<LaunchRace>> {
        let number = address / PAGE_BYTES;
        let page = match &self.recent {
            Some((recent, page)) if *recent == number => Arc::clone(page),
            _ => Arc::clone(&self.recent.insert((number, self.launch.page(number))).1),
        };
        let party = CtaParty { cta: self.cta, kind, line };
        let time = self.launch.fences.load(Relaxed);
        let own_fences = self.launch.fences_of[self.cta as usize].load(Relaxed);
        let mut race = None;
        let mut page_words = page.lock().unwrap_or_else(PoisonError::into_inner);
        for (word, bytes) in words((address % PAGE_BYTES) as u32, bytes) {
            let new = Mark { party, bytes, time, own_fences };
            let earlier = page_words[word].touch(new, |old| self.is_ordered(old));
            race = race.or_else(|| {
                let old = earlier?;
                let byte = (old.bytes & bytes).trailing_zeros();
                let address = number * PAGE_BYTES + word as u64 * 4 + u64::from(byte);
                Some(Box::new(LaunchRace { address, earlier: old.party, later: party }))
            });
        }
        race.map_or(Ok(()), Err)
    }

    fn is_ordered(&self, old: &Mark) -> bool {
        old.party.cta == self.cta
            || (self.launch.fences_of[old.party.cta as usize].load(Relaxed) > old.own_fences && self.fenced > old.time)
    }
}

impl Word {
    /// Adds an access and returns the first one that it races with.
    fn touch(&mut self, new: Mark, is_ordered: impl Fn(&Mark) -> bool) -> Option<Mark> {
        let races =
            |old: &&Mark| old.bytes & new.bytes != 0 && old.party.kind.conflicts(new.party.kind) && !is_ordered(old);
        let race = self.write.iter().chain(&self.atomic).chain(self.reads.iter().flatten()).find(races).copied();
        // The earlier bytes of this CTA stay; those of another one make room.
        let same = |mark: Option<Mark>| mark.filter(|mark| mark.party.cta == new.party.cta);
        let with = |mark| Some(Mark { bytes: new.bytes | same(mark).map_or(0, |mark: Mark| mark.bytes), ..new });
        match new.party.kind {
            AccessKind::Write => self.write = with(self.write),
            AccessKind::Atomic => self.atomic = with(self.atomic),
            AccessKind::Read => {
                let [last, other] = self.reads;
                self.reads = [with(last), if same(last).is_some() { other } else { last }];
            }
        }
        if new.party.kind == AccessKind::Write {
            // What comes after the write need not be compared with what came before it.
            self.reads.iter_mut().flatten().chain(&mut self.atomic).for_each(|old| old.bytes &= !new.bytes);
        }
        race
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: u64 = 0x1_0000_0010;

    #[test]
    fn two_ctas_may_read_or_do_atomics_but_not_write() {
        let kinds = [AccessKind::Read, AccessKind::Write, AccessKind::Atomic];
        for first in kinds {
            for second in kinds {
                let launch = LaunchShadow::new(2);
                launch.cta(0).access(first, 5, ADDRESS, 4).unwrap();
                let result = launch.cta(1).access(second, 7, ADDRESS, 4);
                if first == second && first != AccessKind::Write {
                    assert_eq!(result, Ok(()));
                } else {
                    let (earlier, later) =
                        (CtaParty { cta: 0, kind: first, line: 5 }, CtaParty { cta: 1, kind: second, line: 7 });
                    assert_eq!(*result.unwrap_err(), LaunchRace { address: ADDRESS, earlier, later });
                }
            }
        }
    }

    #[test]
    fn bytes_of_one_word_may_have_different_writers() {
        let launch = LaunchShadow::new(2);
        launch.cta(0).access(AccessKind::Write, 1, ADDRESS, 2).unwrap();
        launch.cta(1).access(AccessKind::Write, 1, ADDRESS + 2, 2).unwrap();
        assert!(launch.cta(0).access(AccessKind::Write, 1, ADDRESS + 3, 1).is_err());
    }

    #[test]
    fn a_reader_between_others_is_not_forgotten() {
        let launch = LaunchShadow::new(2);
        for cta in [0, 1, 1] {
            launch.cta(cta).access(AccessKind::Read, 1, ADDRESS, 4).unwrap();
        }
        let race = launch.cta(1).access(AccessKind::Write, 2, ADDRESS, 4).unwrap_err();
        assert_eq!(race.earlier.cta, 0);
    }

    #[test]
    fn fences_on_both_sides_order() {
        for (writer_fences, reader_fences) in [(false, false), (true, false), (false, true), (true, true)] {
            let launch = LaunchShadow::new(2);
            let (mut writer, mut reader) = (launch.cta(0), launch.cta(1));
            writer.access(AccessKind::Write, 1, ADDRESS, 16).unwrap();
            if writer_fences {
                writer.fence();
            }
            if reader_fences {
                reader.fence();
            }
            let ordered = reader.access(AccessKind::Read, 2, ADDRESS, 16).is_ok();
            assert_eq!(ordered, writer_fences && reader_fences, "writer {writer_fences}, reader {reader_fences}");
        }
        let launch = LaunchShadow::new(2);
        let (mut writer, mut reader) = (launch.cta(0), launch.cta(1));
        reader.fence();
        writer.access(AccessKind::Write, 1, ADDRESS, 16).unwrap();
        writer.fence();
        assert!(reader.access(AccessKind::Read, 2, ADDRESS, 16).is_err(), "the fence of the reader came too early");
    }

    #[test]
    fn accesses_across_pages_are_seen_on_both() {
        let launch = LaunchShadow::new(2);
        let border = 5 * PAGE_BYTES;
        launch.cta(0).access(AccessKind::Write, 1, border - 8, 16).unwrap();
        for (address, clean) in [(border - 12, true), (border - 8, false), (border + 4, false), (border + 8, true)] {
            assert_eq!(launch.cta(1).access(AccessKind::Read, 2, address, 4).is_ok(), clean, "{address:#x}");
        }
    }

    #[test]
    fn a_race_says_what_and_where() {
        let launch = LaunchShadow::new(2);
        launch.cta(0).access(AccessKind::Write, 3, ADDRESS, 4).unwrap();
        let race = launch.cta(1).access(AccessKind::Atomic, 4, ADDRESS, 4).unwrap_err();
        let text = "race on global memory at 0x100000010: write by CTA 0 in PTX line 3, atomic by CTA 1 in PTX line 4: \
                    no fences order them";
        assert_eq!(race.to_string(), text);
    }
}
