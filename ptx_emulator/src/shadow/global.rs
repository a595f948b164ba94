//! What one CTA did to global memory. The record is kept by page, so that only pages which the CTA touches take space,
//! and in the same granules as for shared memory.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::AccessKind;
use super::record::{GRANULE, Granule, Record};

/// The bytes of memory that one page of the shadow is about.
pub(super) const PAGE_BYTES: u64 = 1024;
const PAGE_GRANULES: usize = (PAGE_BYTES / GRANULE as u64) as usize;
/// The pages that are found without the table.
const RECENT: usize = 64;
/// The reads of a page that are kept until they are compared. Their list is then about as large as the granules are.
const MAX_READS: usize = 256;

/// What a CTA did to some bytes of a granule of global memory since it published that last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The first address of the granule.
    pub(super) address: u64,
    pub(super) kind: AccessKind,
    /// Bit `i` is byte `i` of the granule.
    pub(super) bytes: u16,
    /// Warp and lane of the first such access.
    pub(super) thread: (u32, u32),
    /// Its line of the PTX.
    pub(super) line: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    bytes: u16,
    thread: u16,
    line: u32,
}

/// The pages of one CTA.
#[derive(Debug, Clone)]
pub(super) struct GlobalPages {
    /// The index of each page of this generation in `pages`.
    table: HashMap<u64, u32>,
    /// The first of them are of this generation, as many as the table has.
    pages: Vec<Page>,
    recent: [(u64, u32); RECENT],
    /// The pages with something that is not published.
    changed: Vec<u32>,
}

#[derive(Debug, Clone)]
struct Page {
    number: u64,
    changed: bool,
    /// The reads since the CTA began, with the index of the granule, while there is nothing else. Reads do not race, so
    /// they are compared with what follows only where that is no read, or where they are many.
    reads: Option<Vec<(usize, Record)>>,
    granules: Vec<(Granule, [Sum; AccessKind::ALL.len()])>,
}

impl GlobalPages {
    pub(super) fn new() -> GlobalPages {
        GlobalPages { table: HashMap::new(), pages: Vec::new(), recent: [(u64::MAX, 0); RECENT], changed: Vec::new() }
    }

    /// Forgets everything; the next access is of another generation.
    pub(super) fn clear(&mut self) {
        // What was not published is of no granule that is looked at again without being cleared first.
        for index in self.changed.drain(..) {
            self.pages[index as usize].publish(|_| {});
        }
        self.table.clear();
        self.recent = [(u64::MAX, 0); RECENT];
    }

    fn page(&mut self, number: u64) -> u32 {
        let recent = &mut self.recent[number as usize % RECENT];
        if recent.0 == number {
            return recent.1;
        }
        let next = self.table.len();
        let index = *self.table.entry(number).or_insert(next as u32);
        *recent = (number, index);
        if index as usize == next {
            match self.pages.get_mut(next) {
                Some(page) => {
                    page.number = number;
                    page.reads.get_or_insert_default().clear();
                }
                None => {
                    let granules = vec![Default::default(); PAGE_GRANULES];
                    self.pages.push(Page { number, changed: false, reads: Some(Vec::new()), granules });
                }
            }
        }
        index
    }

    /// The records of a granule by its address, for the new one to be compared with, after the access is noted for the
    /// other CTAs; `None` where there is nothing to compare yet.
    pub(super) fn note(&mut self, address: u64, new: &Record, generation: u32) -> Option<&mut SmallVec<[Record; 2]>> {
        let &Record { access, bytes, .. } = new;
        let index = self.page(address / PAGE_BYTES);
        let page = &mut self.pages[index as usize];
        if !page.changed {
            page.changed = true;
            self.changed.push(index);
        }
        let index = (address % PAGE_BYTES) as usize / GRANULE as usize;
        let sum = &mut page.granules[index].1[access.kind as usize];
        if sum.bytes == 0 {
            let thread = access.threads.warp * 32 + access.threads.lanes.trailing_zeros();
            (sum.thread, sum.line) = (thread as u16, access.line);
        }
        sum.bytes |= bytes;
        if let Some(reads) = &mut page.reads {
            if access.kind == AccessKind::Read && reads.len() < MAX_READS {
                reads.push((index, *new));
                return None;
            }
            page.settle(generation);
        }
        Some(page.granules[index].0.of(generation))
    }

    /// Takes what was done since the last time, in the order of the pages' first accesses.
    pub(super) fn publish(&mut self) -> Vec<Mark> {
        let mut marks = Vec::new();
        self.changed.sort_unstable();
        for index in self.changed.drain(..) {
            self.pages[index as usize].publish(|mark| marks.push(mark));
        }
        marks
    }
}

impl Page {
    /// Makes records of the reads that were kept.
    fn settle(&mut self, generation: u32) {
        for (index, read) in self.reads.take().into_iter().flatten() {
            self.granules[index].0.of(generation).push(read);
        }
    }

    fn publish(&mut self, mut take: impl FnMut(Mark)) {
        self.changed = false;
        for (index, (_, sums)) in self.granules.iter_mut().enumerate() {
            for (sum, kind) in sums.iter_mut().zip(AccessKind::ALL) {
                let Sum { bytes, thread, line } = std::mem::take(sum);
                if bytes != 0 {
                    let address = self.number * PAGE_BYTES + index as u64 * u64::from(GRANULE);
                    let thread = (u32::from(thread) / 32, u32::from(thread) % 32);
                    take(Mark { address, kind, bytes, thread, line });
                }
            }
        }
    }
}
