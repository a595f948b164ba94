//! What the instructions of a launch did: how often each ran, and how well its accesses use the memories.
//!
//! [`Module::count`](crate::Module::count) counts, [`Module::launch`](crate::Module::launch) does not; they take the
//! same time within the spread of repeated launches, which `tests/counters.rs` measures. Counts are sums over blocks,
//! so they do not depend on the number of cores.
//!
//! # Global memory
//!
//! The unit is the sector of 32 bytes. An access of a warp moves every sector that one of its lanes touches;
//! [`GlobalTraffic::least_sectors`] is what the bytes would need if they lay side by side. Caches are not modelled.
//!
//! # Shared memory
//!
//! There are 32 banks of 4-byte words, and a wavefront serves one word of each bank. Lanes with elements of up to 4
//! bytes share wavefronts within the warp, those of 8 bytes within a half warp, those of 16 bytes within a quarter
//! warp. `ldmatrix`, `stmatrix` and the factors of `wmma` are served in matrices of eight rows of 16 bytes. Lanes that
//! read one word need it once; atomics on one word take turns. Wavefronts of such a part beyond its first are
//! [`SharedTraffic::conflicts`]. What `wgmma` and bulk copies do to shared memory is not counted.

use std::iter::Sum;
use std::ops::AddAssign;
use std::sync::Arc;

use crate::error::{PtxLine, RustLine};
use crate::program::Program;
use crate::registers::{LANES, lanes};
use crate::report::Class;
use crate::shape::LaunchShape;

/// Bytes of a sector of global memory.
const SECTOR_BYTES: u64 = 32;

/// Banks of shared memory, and bytes of a word.
const BANKS: u32 = 32;
const WORD_BYTES: u32 = 4;

/// Accesses to global memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GlobalTraffic {
    /// Bytes that lanes asked for. A byte that several lanes asked for counts several times.
    pub bytes: u64,
    /// Sectors of 32 bytes moved.
    pub sectors: u64,
    /// Sectors that the same bytes would need side by side.
    pub least_sectors: u64,
}

/// Accesses to shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SharedTraffic {
    /// Bytes that lanes asked for.
    pub bytes: u64,
    /// Wavefronts.
    pub wavefronts: u64,
    /// Wavefronts that bank conflicts added.
    pub conflicts: u64,
}

/// What instructions did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// How often a warp, or a part of one that had parted from the rest, executed them.
    pub executed: u64,
    /// The lanes that did, summed.
    pub lanes: u64,
    /// Operations of tensor cores: two for each product and sum.
    pub tensor_operations: u64,
    /// Global memory.
    pub global: GlobalTraffic,
    /// Shared memory.
    pub shared: SharedTraffic,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, more: Counts) {
        self.executed += more.executed;
        self.lanes += more.lanes;
        self.tensor_operations += more.tensor_operations;
        self.global.bytes += more.global.bytes;
        self.global.sectors += more.global.sectors;
        self.global.least_sectors += more.global.least_sectors;
        self.shared.bytes += more.shared.bytes;
        self.shared.wavefronts += more.shared.wavefronts;
        self.shared.conflicts += more.shared.conflicts;
    }
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Counts>>(all: I) -> Counts {
        let mut total = Counts::default();
        all.for_each(|counts| total += counts);
        total
    }
}

/// One instruction of the PTX.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstructionCounts {
    /// The instruction without its operands.
    pub opcode: Arc<str>,
    /// Where it stands.
    pub place: PtxLine,
    /// What kind it is.
    pub class: Class,
    /// What it did.
    pub counts: Counts,
}

/// What a launch did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counters {
    /// The kernel.
    pub kernel: String,
    /// The launch.
    pub shape: LaunchShape,
    /// The instructions that ran, in the order of the PTX.
    pub instructions: Vec<InstructionCounts>,
}

impl Counters {
    pub(crate) fn new(program: &Program, shape: LaunchShape, tally: &Tally) -> Counters {
        let ran = tally.counts.iter().enumerate().filter(|(_, counts)| counts.executed > 0);
        let instructions = ran.map(|(at, &counts)| InstructionCounts {
            opcode: Arc::clone(&program.opcodes[at]),
            place: program.place(at as u32),
            class: program.code[at].op.class(),
            counts,
        });
        Counters { kernel: program.name.clone(), shape, instructions: instructions.collect() }
    }

    /// All of it.
    #[must_use]
    pub fn total(&self) -> Counts {
        self.instructions.iter().map(|instruction| instruction.counts).sum()
    }

    /// What the instructions of one class did.
    #[must_use]
    pub fn of_class(&self, class: Class) -> Counts {
        self.instructions.iter().filter(|at| at.class == class).map(|at| at.counts).sum()
    }

    /// The same by lines of Rust, in the order in which the PTX first names them. Instructions without a line are left
    /// out.
    #[must_use]
    pub fn by_rust_line(&self) -> Vec<(RustLine, Counts)> {
        let mut lines: Vec<(RustLine, Counts)> = Vec::new();
        for instruction in &self.instructions {
            let Some(place) = &instruction.place.rust else { continue };
            match lines.iter_mut().find(|line| line.0 == *place) {
                Some(line) => line.1 += instruction.counts,
                None => lines.push((place.clone(), instruction.counts)),
            }
        }
        lines
    }
}

/// The counts while a launch runs: one for each instruction of the program.
#[derive(Debug, Clone)]
pub(crate) struct Tally {
    counts: Vec<Counts>,
    /// The sectors of the access at hand, and which of their bytes it touches.
    sectors: Vec<(u64, u32)>,
}

impl Tally {
    pub(crate) fn new(program: &Program) -> Tally {
        Tally { counts: vec![Counts::default(); program.code.len()], sectors: Vec::new() }
    }

    pub(crate) fn add(&mut self, other: &Tally) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(counts, &more)| *counts += more);
    }

    #[inline]
    pub(crate) fn executed(&mut self, at: u32, mask: u32) {
        let counts = &mut self.counts[at as usize];
        counts.executed += 1;
        counts.lanes += u64::from(mask.count_ones());
    }

    pub(crate) fn tensor_operations(&mut self, at: u32, operations: u64) {
        self.counts[at as usize].tensor_operations += operations;
    }

    /// An access to global memory: the address and the bytes of each lane that takes part.
    pub(crate) fn global(&mut self, at: u32, parts: impl IntoIterator<Item = (u64, u32)>) {
        self.sectors.clear();
        let mut bytes = 0;
        for (address, length) in parts {
            bytes += u64::from(length);
            self.touch(address, length.into());
        }
        let distinct: u64 = self.sectors.iter().map(|sector| u64::from(sector.1.count_ones())).sum();
        let traffic = &mut self.counts[at as usize].global;
        traffic.bytes += bytes;
        traffic.sectors += self.sectors.len() as u64;
        traffic.least_sectors += distinct.div_ceil(SECTOR_BYTES);
    }

    fn touch(&mut self, mut address: u64, mut length: u64) {
        while length > 0 {
            let first = address % SECTOR_BYTES;
            let count = length.min(SECTOR_BYTES - first);
            let touched = (u32::MAX >> (SECTOR_BYTES - count)) << first;
            let sector = address / SECTOR_BYTES;
            // Neighbours come one after another.
            match self.sectors.iter_mut().rev().find(|known| known.0 == sector) {
                Some(known) => known.1 |= touched,
                None => self.sectors.push((sector, touched)),
            }
            address = address.wrapping_add(count);
            length -= count;
        }
    }

    /// An access of the lanes of `mask` to shared memory, each to `length` bytes.
    pub(crate) fn shared(&mut self, at: u32, addresses: &[u32; LANES], length: u32, mask: u32, kind: SharedKind) {
        let traffic = &mut self.counts[at as usize].shared;
        traffic.bytes += u64::from(length) * u64::from(mask.count_ones());
        let lanes_at_a_time = (BANKS * WORD_BYTES / length.max(1)).clamp(1, LANES as u32);
        for first in (0..LANES as u32).step_by(lanes_at_a_time as usize) {
            let part = mask & (u32::MAX >> (LANES as u32 - lanes_at_a_time)) << first;
            if part != 0 {
                let wavefronts = wavefronts(part, addresses, length, kind);
                traffic.wavefronts += wavefronts;
                traffic.conflicts += wavefronts - 1;
            }
        }
    }
}

/// Whether lanes that name one word share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SharedKind {
    Plain,
    Atomic,
}

/// The most words that one bank has to give.
fn wavefronts(part: u32, addresses: &[u32; LANES], length: u32, kind: SharedKind) -> u64 {
    // A part of a warp names at most as many words as there are banks, or each lane one more where it is misaligned.
    let (mut words, mut count) = ([0; 2 * LANES], 0);
    for lane in lanes(part) {
        let last = addresses[lane].wrapping_add(length.saturating_sub(1)) / WORD_BYTES;
        for word in addresses[lane] / WORD_BYTES..=last {
            if count < words.len() {
                words[count] = word;
                count += 1;
            }
        }
    }
    let words = &mut words[..count];
    words.sort_unstable();
    let mut in_bank = [0u64; BANKS as usize];
    let mut before = None;
    for &word in &*words {
        if kind == SharedKind::Atomic || before != Some(word) {
            in_bank[(word % BANKS) as usize] += 1;
        }
        before = Some(word);
    }
    in_bank.into_iter().max().unwrap_or(0).max(1)
}
