//! ATA, the product `Y = A X` with a symmetric matrix of 16x16 blocks: how blocks are stored, the argument struct and the table of
//! compiled variants.
//!
//! Two blocks under each other are a *pair*, 32 rows by 16 columns: pair row R and block column c hold the blocks (2R, c) and
//! (2R + 1, c). Stored are the pairs of the upper triangle, c >= 2R, that have an element other than 0; the pairs of c = 2R and
//! c = 2R + 1 hold the whole of the 32x32 square on the diagonal. A missing block of a stored pair is zeros.
//!
//! A pair serves twice: as it is for the rows of R (*upper*), and transposed for the rows of c (*lower*), unless c is one of the
//! two columns on the diagonal. It lies in memory so that one 16-byte load a lane brings registers of `mma.m16n8k8` for either
//! use, in an order of rows and columns that makes the lane's part of X four elements in a row:
//!
//! | use | row `group` and `group + 8` of operand `part`, `step` | k = `thread` and `thread + 4` |
//! | --- | --- | --- |
//! | upper | rows `4 * group + 2 * part`, and one further | columns `4 * thread + 2 * step`, and one further |
//! | lower | columns `2 * group`, and one further | rows `16 * part + 4 * thread + 2 * step`, and one further |

use core::fmt;

use crate::smem::{SmemLayout, SmemRegion};
use crate::text::same_text;
use crate::{Arch, Dtype};

/// Rows and columns of a block.
pub const BLOCK: usize = 16;

/// Rows of a pair of blocks: the rows of Y that a thread block computes.
pub const PAIR_ROWS: usize = 2 * BLOCK;

/// Elements of a pair.
pub const PAIR_ELEMS: usize = PAIR_ROWS * BLOCK;

/// The largest n: row and column numbers fit 32 bits with room for sums.
pub const MAX_N: usize = 1 << 30;

/// Frames that one `mma` serves: its columns.
pub const MMA_FRAMES: usize = 8;

/// Registers of the A operand of `mma.m16n8k8`, and of a 16-byte load.
const REGISTERS: usize = 4;

/// What a product is computed in. Sums are f32 in every one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// f32 elements and multiply-adds.
    F32,
    /// A and X rounded to TF32: 11 significant bits.
    #[default]
    Tf32,
    /// A and X as sums of two TF32 numbers, three products: about the precision of f32, at twice the memory of A.
    Tf32x3,
    /// A as f16 times a power of two of its channel, X rounded to TF32. Half the memory of A. Elements below 2^-38 of the
    /// channel's largest become 0.
    F16,
    /// A as bf16, 8 significant bits, and X rounded to TF32. Half the memory of A.
    Bf16,
}

impl Precision {
    /// Every precision.
    pub const ALL: [Precision; 5] =
        [Precision::F32, Precision::Tf32, Precision::Tf32x3, Precision::F16, Precision::Bf16];

    /// The name used in entry names and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Tf32 => "tf32",
            Precision::Tf32x3 => "tf32x3",
            Precision::F16 => "f16",
            Precision::Bf16 => "bf16",
        }
    }

    /// The element type of a stored number.
    pub const fn stored(self) -> Dtype {
        match self {
            Precision::F32 | Precision::Tf32 | Precision::Tf32x3 => Dtype::F32,
            Precision::F16 => Dtype::F16,
            Precision::Bf16 => Dtype::Bf16,
        }
    }

    /// Numbers that are stored for an element and whose sum it is.
    pub const fn terms(self) -> usize {
        match self {
            Precision::Tf32x3 => 2,
            _ => 1,
        }
    }

    /// The size of a stored pair.
    pub const fn pair_bytes(self) -> usize {
        self.terms() * self.term_bytes()
    }

    /// The 16-byte chunks of a stored pair that each of 32 lanes loads.
    pub const fn chunks(self) -> usize {
        self.pair_bytes() / (32 * CHUNK_BYTES)
    }

    const fn term_bytes(self) -> usize {
        PAIR_ELEMS * self.stored().size_bytes()
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The text is not a precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParsePrecisionError;

impl fmt::Display for ParsePrecisionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected f32, tf32, tf32x3, f16 or bf16")
    }
}

impl core::error::Error for ParsePrecisionError {}

impl core::str::FromStr for Precision {
    type Err = ParsePrecisionError;

    fn from_str(text: &str) -> Result<Self, ParsePrecisionError> {
        Precision::ALL.into_iter().find(|precision| precision.name() == text).ok_or(ParsePrecisionError)
    }
}

/// Bytes of one load of one lane.
pub const CHUNK_BYTES: usize = 16;

/// Where the number of `term` (0 for the larger) of element (row, column) of a pair is stored, in bytes from the pair's start.
///
/// 32-bit numbers come in chunks of 2 rows by 2 columns, column by column; 16-bit ones in chunks of 4 rows by 2 columns, row
/// by row.
pub const fn element_offset(precision: Precision, term: usize, row: usize, column: usize) -> usize {
    let (chunk, place) = match precision.stored().size_bytes() {
        4 => ((column / 2 % 2 * 2 + row / 2 % 2) * 32 + row / 4 * 4 + column / 4, column % 2 * 2 + row % 2),
        _ => (column / 2 % 2 * 32 + row / 4 * 4 + column / 4, row % 4 * 2 + column % 2),
    };
    term * precision.term_bytes() + chunk * CHUNK_BYTES + place * precision.stored().size_bytes()
}

/// Where the chunks of a lane start for the upper use, in bytes from the pair's start.
#[inline(always)]
pub const fn upper_lane_offset(lane: u32) -> u32 {
    lane * CHUNK_BYTES as u32
}

/// Where chunk `chunk` of a lane is for the upper use, in bytes from [`upper_lane_offset`]: a warp reads 512 bytes in a row.
#[inline(always)]
pub const fn upper_chunk_offset(chunk: usize) -> u32 {
    (chunk * 32 * CHUNK_BYTES) as u32
}

/// Where the chunks of a lane start for the lower use, in bytes from the pair's start.
#[inline(always)]
pub const fn lower_lane_offset(precision: Precision, lane: u32) -> u32 {
    let (group, thread) = (lane / 4, lane % 4);
    let odd_column = if precision.stored().size_bytes() == 4 { 64 } else { 32 };
    (group % 2 * odd_column + thread * 4 + group / 2) * CHUNK_BYTES as u32
}

/// Where chunk `chunk` of a lane is for the lower use, in bytes from [`lower_lane_offset`]: a warp reads four lines of 128 bytes.
#[inline(always)]
pub const fn lower_chunk_offset(precision: Precision, chunk: usize) -> u32 {
    let of_term = precision.chunks() / precision.terms();
    let (term, chunk) = (chunk / of_term, chunk % of_term);
    (term * precision.term_bytes() + (chunk / 2 * 32 + chunk % 2 * 16) * CHUNK_BYTES) as u32
}

/// Which word of a lane's chunks a register of the A operand is: the chunk, its 32-bit word, and whether a 16-bit number is in
/// the upper half of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// The chunk.
    pub chunk: usize,
    /// The 32-bit word of the chunk.
    pub word: usize,
    /// Whether it is the upper half; false for 32-bit numbers.
    pub high: bool,
}

/// Where `register` of the A operand of `part` and `step` (0 or 1 each) is, for the upper use.
#[inline(always)]
pub const fn upper_source(precision: Precision, term: usize, part: usize, step: usize, register: usize) -> Source {
    let (odd_row, odd_column) = (register % 2, register / 2);
    match precision.stored().size_bytes() {
        4 => Source { chunk: term * 4 + 2 * step + part, word: odd_column * 2 + odd_row, high: false },
        _ => Source { chunk: step, word: part * 2 + odd_row, high: odd_column == 1 },
    }
}

/// Where `register` of the A operand of `part` and `step` (0 or 1 each) is, for the lower use.
#[inline(always)]
pub const fn lower_source(precision: Precision, term: usize, part: usize, step: usize, register: usize) -> Source {
    let (odd_column, odd_row) = (register % 2, register / 2);
    match precision.stored().size_bytes() {
        4 => Source { chunk: term * 4 + 2 * step + part, word: odd_column * 2 + odd_row, high: false },
        _ => Source { chunk: part, word: step * 2 + odd_row, high: odd_column == 1 },
    }
}

/// One use of a stored pair by the thread block of one pair row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PairUse {
    /// Of block column `column`, as it is: Y of the pair row gains the pair times X of that column.
    Upper {
        /// The block column.
        column: u32,
    },
    /// Transposed: Y of one of the two blocks of the pair row gains the transpose times X of pair row `pair_row`.
    Lower {
        /// The pair row that the pair is stored in.
        pair_row: u32,
        /// Whether it is the second block that gains.
        second: bool,
    },
}

impl PairUse {
    /// The number that the kernel reads: the block of X that is read (first), twice, plus the kind and the block in bits 0 and 1.
    pub const fn encode(self) -> u32 {
        match self {
            PairUse::Upper { column } => column << 2,
            PairUse::Lower { pair_row, second } => (pair_row * 2) << 2 | (second as u32) << 1 | 1,
        }
    }
}

/// Element strides of X or Y; the last dimension is contiguous.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AtaStrides {
    /// From one frame to the next, in elements.
    pub frame: i64,
    /// From one channel to the next, in elements.
    pub channel: i64,
}

/// The one parameter of every ATA kernel.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct AtaArgs {
    /// Device address of X, f32 `[frames, channels, n]`.
    pub x: u64,
    /// Device address of Y, f32 `[frames, channels, n]`.
    pub y: u64,
    /// Device address of the stored pairs.
    pub pairs: u64,
    /// Device address of the uses, two words each: the number of the pair and [`PairUse::encode`]; those of one pair row of one
    /// channel follow each other.
    pub uses: u64,
    /// Device address of where the uses of each pair row start, `channels * pair_rows + 1` words.
    pub starts: u64,
    /// Device address of an f32 for each channel, by which sums are multiplied.
    pub scales: u64,
    /// Strides of X.
    pub x_strides: AtaStrides,
    /// Strides of Y.
    pub y_strides: AtaStrides,
    /// Frames.
    pub frames: u32,
    /// Rows of A.
    pub n: u32,
    /// Pair rows of a channel.
    pub pair_rows: u32,
    /// Whether every row of X starts on a 16-byte boundary (1) or not (0).
    pub x_aligned: u32,
}

/// Which algorithm a variant runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AtaUnit {
    /// f32 multiply-adds: the oracle on the card, and the matrix-vector product.
    Fma,
    /// `mma.sync` m16n8k8 on TF32.
    Mma,
}

/// One compiled kernel. A thread block computes the rows of one pair row for `frames` frames; its warps share the uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AtaVariant {
    /// Name of the PTX entry.
    pub name: &'static str,
    /// The precision of the matrices that it multiplies.
    pub precision: Precision,
    /// What it runs on.
    pub unit: AtaUnit,
    /// Frames of a thread block.
    pub frames: usize,
    /// Warps of a thread block.
    pub warps: usize,
    /// Uses whose loads a warp has in flight at once.
    pub depth: usize,
    /// Thread blocks on a multiprocessor that the registers must allow.
    pub min_blocks: u32,
}

/// Registers of a multiprocessor that a variant may use.
const REGISTERS_OF_ALL: u32 = Arch::Sm80.limits().registers;

/// The most registers that a thread can have.
const MOST_REGISTERS: u32 = 255;

/// f32 elements from one frame to the next of a warp's sums in shared memory: 4 more than rows, so that the lanes of a store
/// reach all banks.
pub const SUMS_STRIDE: usize = PAIR_ROWS + 4;

impl AtaVariant {
    /// Threads of a block.
    pub const fn threads(&self) -> u32 {
        32 * self.warps as u32
    }

    /// Columns of `mma` for the frames of a block, in units of [`MMA_FRAMES`].
    pub const fn frame_tiles(&self) -> usize {
        self.frames / MMA_FRAMES
    }

    /// Registers that a thread may use.
    pub const fn max_registers(&self) -> u32 {
        let share = REGISTERS_OF_ALL / (self.min_blocks * self.threads());
        if share < MOST_REGISTERS { share } else { MOST_REGISTERS }
    }

    /// The map of dynamic shared memory: `sums`, a stage a warp, `[frame][SUMS_STRIDE]` f32.
    pub const fn smem(&self) -> SmemLayout {
        SmemLayout::new().stages("sums", self.warps as u32, (self.frames * SUMS_STRIDE * size_of::<f32>()) as u32, 16)
    }

    /// The sums in shared memory.
    pub const fn sums(&self) -> SmemRegion {
        self.smem().get("sums")
    }

    /// Blocks of the grid; `None` where it exceeds the 2^31 - 1 blocks of a grid.
    pub fn blocks(&self, frames: usize, channels: usize, n: usize) -> Option<u32> {
        let blocks = channels.checked_mul(n.div_ceil(PAIR_ROWS))?.checked_mul(frames.div_ceil(self.frames))?;
        i32::try_from(blocks).ok().map(|blocks| blocks as u32)
    }
}

impl fmt::Display for AtaVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

/// Position of the row called `name` in [`ATA`]; does not compile (in a constant) where there is none.
pub const fn row_index(name: &str) -> usize {
    let mut index = 0;
    while index < ATA.len() {
        if same_text(ATA[index].name, name) {
            return index;
        }
        index += 1;
    }
    panic!("no row of ATA has this name")
}

/// The variant to run: of those of the precision, the one with the fewest frames a block that holds all frames, else the one with
/// the most; the first of equals.
pub fn preferred(precision: Precision, frames: usize) -> &'static AtaVariant {
    let rows = || ATA.iter().filter(|row| row.precision as u8 == precision as u8);
    let all_at_once = rows().filter(|row| row.frames >= frames).min_by_key(|row| row.frames);
    // Of equals `max_by_key` takes the last, hence the reversal.
    let most = || rows().rev().max_by_key(|row| row.frames);
    all_at_once.or_else(most).expect("every precision has a row")
}

const fn row(
    name: &'static str,
    precision: Precision,
    unit: AtaUnit,
    [frames, warps, depth]: [usize; 3],
    min_blocks: u32,
) -> AtaVariant {
    AtaVariant { name, precision, unit, frames, warps, depth, min_blocks }
}

/// Every compiled ATA kernel, those of equal precision and frames in the order of preference ([`preferred`]).
///
/// Name: `ata_<precision>_<unit>_<frames>x<warps>x<depth>`.
pub const ATA: &[AtaVariant] = {
    use AtaUnit::{Fma, Mma};
    use Precision::{Bf16, F16, F32, Tf32, Tf32x3};
    &[
        // One frame: each loaded element is used once, so that the kernel runs at the speed of the memory.
        row("ata_f32_fma_1x8x2", F32, Fma, [1, 8, 2], 2),
        // The oracle on the card: its 64 sums and 8 rows of X take more than 128 registers.
        row("ata_f32_fma_8x8x1", F32, Fma, [8, 8, 1], 1),
        // Two blocks of eight warps on a multiprocessor: 246 blocks of n = 2624 and 3 channels run at once on 132.
        row("ata_tf32_mma_8x8x2", Tf32, Mma, [8, 8, 2], 2),
        row("ata_tf32_mma_16x8x2", Tf32, Mma, [16, 8, 2], 2),
        // What more loads in flight gain: by depth, and by warps.
        row("ata_tf32_mma_8x8x3", Tf32, Mma, [8, 8, 3], 2),
        row("ata_tf32_mma_8x16x1", Tf32, Mma, [8, 16, 1], 2),
        row("ata_tf32x3_mma_8x8x1", Tf32x3, Mma, [8, 8, 1], 2),
        row("ata_tf32x3_mma_16x8x1", Tf32x3, Mma, [16, 8, 1], 2),
        row("ata_f16_mma_8x8x4", F16, Mma, [8, 8, 4], 2),
        row("ata_f16_mma_16x8x2", F16, Mma, [16, 8, 2], 2),
        row("ata_f16_mma_8x8x2", F16, Mma, [8, 8, 2], 2),
        row("ata_f16_mma_8x16x1", F16, Mma, [8, 16, 1], 2),
        row("ata_bf16_mma_8x8x4", Bf16, Mma, [8, 8, 4], 2),
        row("ata_bf16_mma_16x8x2", Bf16, Mma, [16, 8, 2], 2),
    ]
};

/// A row whose shared memory or threads cannot fit the smallest architecture does not compile.
const _: () = {
    let mut index = 0;
    while index < ATA.len() {
        let row = &ATA[index];
        let _ = row.smem().assert_fits(Arch::Sm89);
        assert!(row.threads() <= 1024 && row.min_blocks >= 1 && row.depth >= 1);
        match row.unit {
            AtaUnit::Mma => assert!(row.frames.is_multiple_of(MMA_FRAMES) && row.frames > 0),
            AtaUnit::Fma => assert!(row.precision as u8 == Precision::F32 as u8 && row.frames > 0),
        }
        assert!(row.precision.chunks() * REGISTERS * row.depth <= 64, "the loads in flight fit the registers");
        index += 1;
    }
};

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::fragment::mma_m16n8k8_a;
    use std::collections::HashSet;
    use std::format;

    #[test]
    fn names_follow_the_grammar_and_are_unique() {
        let mut names = HashSet::new();
        for (index, row) in ATA.iter().enumerate() {
            let unit = if row.unit == AtaUnit::Fma { "fma" } else { "mma" };
            let AtaVariant { precision, frames, warps, depth, .. } = row;
            assert_eq!(row.name, format!("ata_{precision}_{unit}_{frames}x{warps}x{depth}"));
            assert_eq!(row_index(row.name), index);
            assert!(names.insert(row.name));
        }
    }

    #[test]
    fn every_stored_number_has_its_own_place() {
        for precision in Precision::ALL {
            let mut places = HashSet::new();
            for (term, row, column) in (0..precision.terms())
                .flat_map(|term| (0..PAIR_ROWS).flat_map(move |row| (0..BLOCK).map(move |column| (term, row, column))))
            {
                let offset = element_offset(precision, term, row, column);
                assert!(offset.is_multiple_of(precision.stored().size_bytes()) && offset < precision.pair_bytes());
                assert!(places.insert(offset), "{precision} {term} {row} {column}");
            }
            assert_eq!(places.len() * precision.stored().size_bytes(), precision.pair_bytes());
        }
    }

    /// Compares the source of each register with the place of the element that the module's table says it is.
    fn check_sources(
        precision: Precision,
        lane_offset: impl Fn(u32) -> u32,
        chunk_offset: impl Fn(usize) -> u32,
        source: impl Fn(usize, usize, usize, usize) -> Source,
        element: impl Fn(usize, usize, usize, usize) -> (usize, usize),
    ) {
        let mut read = HashSet::new();
        for (lane, term, part, step, register) in (0..32).flat_map(|lane| {
            (0..precision.terms()).flat_map(move |term| (0..16).map(move |i| (lane, term, i / 8, i / 4 % 2, i % 4)))
        }) {
            let Source { chunk, word, high } = source(term, part, step, register);
            assert!(chunk < precision.chunks() && word < REGISTERS);
            let byte = lane_offset(lane) as usize + chunk_offset(chunk) as usize + word * 4 + if high { 2 } else { 0 };
            let (row, k) = mma_m16n8k8_a(lane, register as u32);
            let (row, column) = element(part, step, row as usize, k as usize);
            assert_eq!(
                byte,
                element_offset(precision, term, row, column),
                "{precision} {lane} {part} {step} {register}"
            );
            assert!(read.insert(byte), "{precision}: byte {byte} is read twice");
        }
        assert_eq!(read.len() * precision.stored().size_bytes(), precision.pair_bytes(), "{precision}");
    }

    #[test]
    fn fragments_are_those_of_the_table_for_both_uses() {
        for precision in Precision::ALL {
            check_sources(
                precision,
                upper_lane_offset,
                upper_chunk_offset,
                |term, part, step, register| upper_source(precision, term, part, step, register),
                |part, step, row, k| (4 * (row % 8) + 2 * part + row / 8, 4 * (k % 4) + 2 * step + k / 4),
            );
            check_sources(
                precision,
                |lane| lower_lane_offset(precision, lane),
                |chunk| lower_chunk_offset(precision, chunk),
                |term, part, step, register| lower_source(precision, term, part, step, register),
                |part, step, row, k| (16 * part + 4 * (k % 4) + 2 * step + k / 4, 2 * (row % 8) + row / 8),
            );
        }
    }

    #[test]
    fn every_load_of_a_warp_is_four_whole_lines() {
        for precision in Precision::ALL {
            for chunk in 0..precision.chunks() {
                let upper = |lane| upper_lane_offset(lane) + upper_chunk_offset(chunk);
                let lower = |lane| lower_lane_offset(precision, lane) + lower_chunk_offset(precision, chunk);
                for offsets in [(0..32).map(upper).collect::<HashSet<_>>(), (0..32).map(lower).collect()] {
                    assert_eq!(offsets.len(), 32);
                    let lines: HashSet<u32> = offsets.iter().map(|offset| offset / 128).collect();
                    assert_eq!(lines.len(), 4, "{precision} {chunk}");
                }
            }
        }
    }

    #[test]
    fn the_preferred_row_wastes_the_fewest_frames() {
        for (precision, frames, expected) in [
            (Precision::F32, 1, 1),
            (Precision::F32, 2, 8),
            (Precision::F32, 33, 8),
            (Precision::Tf32, 0, 8),
            (Precision::Tf32, 8, 8),
            (Precision::Tf32, 9, 16),
            (Precision::F16, 33, 16),
        ] {
            let row = preferred(precision, frames);
            assert_eq!((row.precision, row.frames), (precision, expected));
            let first = ATA.iter().find(|other| (other.precision, other.frames) == (precision, expected));
            assert_eq!(Some(row), first);
        }
    }

    #[test]
    fn stores_of_sums_reach_all_banks() {
        // A quarter of a warp stores 16 bytes each of the upper use, half a warp 8 bytes each of the lower one.
        let banks = |lanes: core::ops::Range<u32>, first: fn(u32) -> u32, words: u32| {
            let all = lanes.flat_map(|lane| (0..words).map(move |word| (first(lane) + word) % 32));
            all.collect::<HashSet<_>>().len()
        };
        let upper = |lane: u32| lane % 4 * 2 * SUMS_STRIDE as u32 + lane / 4 * 4;
        let lower = |lane: u32| lane % 4 * 2 * SUMS_STRIDE as u32 + lane / 4 * 2;
        for quarter in 0..4 {
            assert_eq!(banks(quarter * 8..quarter * 8 + 8, upper, 4), 32);
        }
        for half in 0..2 {
            assert_eq!(banks(half * 16..half * 16 + 16, lower, 2), 32);
        }
    }

    #[test]
    fn precisions_are_read_as_they_are_written() {
        for precision in Precision::ALL {
            assert_eq!(precision.name().parse(), Ok(precision));
        }
        assert_eq!("f64".parse::<Precision>(), Err(ParsePrecisionError));
    }
}
