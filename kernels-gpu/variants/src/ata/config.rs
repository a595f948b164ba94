//! The catalogue of ATA kernels, what a configuration is made of, and which one runs.

use core::fmt;

use layout::Arch;
use layout::smem::{SmemLayout, SmemRegion};
use layout::text::same_text;

use super::{KIND_PREFIX, LIST_PREFIX, MMA_FRAMES, PAIR_ROWS, Precision, STRIP_PAIR_ROWS, STRIP_ROWS};

/// Which unit a configuration multiplies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AtaUnit {
    /// f32 multiply-adds: the oracle on the card, and the matrix-vector product, of TF32 as well.
    Fma,
    /// `mma.sync`: m16n8k8 on TF32, m16n8k16 on 16-bit numbers.
    Mma,
    /// `wmma` m32n8k16 on bf16, X as the sum of two numbers.
    Wmma,
}

impl AtaUnit {
    /// The name used in entry names.
    pub const fn name(self) -> &'static str {
        match self {
            AtaUnit::Fma => "fma",
            AtaUnit::Mma => "mma",
            AtaUnit::Wmma => "wmma",
        }
    }
}

/// One compiled kernel. A thread block computes the rows of one strip or of one of its pair rows for `frames` frames;
/// its warps share the tile references.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AtaConfig {
    /// Name of the PTX entry.
    pub name: &'static str,
    /// The kernel family that has the entry: `ata`, or `study`.
    pub family: &'static str,
    /// The precision of the matrices that it multiplies.
    pub precision: Precision,
    /// What it runs on.
    pub unit: AtaUnit,
    /// Frames of a thread block.
    pub frames: usize,
    /// Pair rows of a thread block: 1, or all of a strip.
    pub pair_rows: usize,
    /// Warps of a thread block.
    pub warps: usize,
    /// Thread blocks on a multiprocessor that the registers must allow.
    pub min_blocks: u32,
}

/// Registers of a multiprocessor that a configuration may use.
const REGISTERS_OF_ALL: u32 = Arch::Sm80.limits().registers;

/// The most registers that a thread can have.
const MOST_REGISTERS: u32 = 255;

/// The most registers for cells: what else a thread has in registers fits beside them.
const MOST_WORDS: usize = 80;

/// 16-bit elements from one row to the next of the ATA tile that a warp of [`AtaUnit::Wmma`] stages in shared memory.
pub const TILE_STRIDE: usize = PAIR_ROWS + 8;

/// 16-bit elements from one frame to the next of the part of X that a warp of [`AtaUnit::Wmma`] stages, two terms of 32
/// elements.
pub const VECTOR_STRIDE: usize = 2 * PAIR_ROWS + 8;

impl AtaConfig {
    /// Threads of a block.
    pub const fn threads(&self) -> u32 {
        32 * self.warps as u32
    }

    /// Rows of Y of a block.
    pub const fn rows(&self) -> usize {
        self.pair_rows * PAIR_ROWS
    }

    /// The parts of X that a lane holds for a tile, each of 32 elements of a frame. For multiply-adds these are all
    /// frames, on tensor cores one frame for each eight columns.
    pub const fn vectors(&self) -> usize {
        match self.unit {
            AtaUnit::Fma => self.frames,
            AtaUnit::Mma | AtaUnit::Wmma => self.frames.div_ceil(MMA_FRAMES),
        }
    }

    /// Registers that hold a lane's cells of a tile.
    const fn tile_words(&self) -> usize {
        2 * self.precision.cell_words() * self.pair_rows
    }

    /// Whether a warp prefetches its first two tiles at once, for which registers hold the cells of both.
    pub const fn prefetches_two(&self) -> bool {
        self.frames == 1 && self.warps == KIND_PREFIX && 2 * self.tile_words() <= MOST_WORDS
    }

    /// f32 elements from one frame to the next of a warp's sums in shared memory. They are 4 more than the block
    /// has rows, so that the lanes of a store reach all banks.
    pub const fn sums_stride(&self) -> usize {
        self.rows() + 4
    }

    /// Registers that a thread may use.
    pub const fn max_registers(&self) -> u32 {
        let share = REGISTERS_OF_ALL / (self.min_blocks * self.threads());
        if share < MOST_REGISTERS { share } else { MOST_REGISTERS }
    }

    /// The map of dynamic shared memory: `epilogue`, an address and two numbers of 32 bits; `scale`, an f32; a stage a
    /// warp each, `sums`, `[frame][sums_stride]` f32; for [`AtaUnit::Wmma`] also `tiles`, `[32][TILE_STRIDE]`, and
    /// `vectors`, `[frame][VECTOR_STRIDE]`, of 16-bit numbers.
    pub const fn smem(&self) -> SmemLayout {
        let (warps, align) = (self.warps as u32, WMMA_ALIGN);
        let sums = (self.frames * self.sums_stride() * size_of::<f32>()) as u32;
        let map = SmemLayout::new()
            .region("epilogue", EPILOGUE_BYTES, align)
            .region("scale", size_of::<f32>() as u32, size_of::<f32>() as u32)
            .stages("sums", warps, sums, align);
        match self.unit {
            AtaUnit::Fma | AtaUnit::Mma => map,
            AtaUnit::Wmma => map
                .stages("tiles", warps, (PAIR_ROWS * TILE_STRIDE * size_of::<u16>()) as u32, align)
                .stages("vectors", warps, (self.frames * VECTOR_STRIDE * size_of::<u16>()) as u32, align),
        }
    }

    /// The sums in shared memory.
    pub const fn sums(&self) -> SmemRegion {
        self.smem().get("sums")
    }

    /// Blocks that share a row of Y, each with frames of its own.
    pub const fn frame_tiles(&self, frames: usize) -> usize {
        frames.div_ceil(self.frames)
    }

    /// Blocks of the grid; `None` where it exceeds the 2^31 - 1 blocks of a grid.
    pub fn blocks(&self, frames: usize, channels: usize, n: usize) -> Option<u32> {
        let of_strip = STRIP_PAIR_ROWS / self.pair_rows;
        let rows = channels.checked_mul(n.div_ceil(STRIP_ROWS) * of_strip)?;
        i32::try_from(rows.checked_mul(self.frame_tiles(frames))?).ok().map(|blocks| blocks as u32)
    }
}

/// The address of a block's part of Y, its rows and its frames.
const EPILOGUE_BYTES: u32 = (size_of::<u64>() + 2 * size_of::<u32>()) as u32;

/// The alignment that `wmma` asks of a matrix in shared memory.
const WMMA_ALIGN: u32 = 32;

impl fmt::Display for AtaConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

/// Position of the configuration called `name` in [`ATA`]; does not compile (in a constant) where there is none.
pub const fn config_index(name: &str) -> usize {
    let mut index = 0;
    while index < ATA.len() {
        if same_text(ATA[index].name, name) {
            return index;
        }
        index += 1;
    }
    panic!("no configuration of ATA has this name")
}

/// The configuration to run. Among those of the precision it has the fewest frames a block that hold all frames, or
/// else the most frames a block. Among these it is the first whose blocks are on the card all at once, as `fits` says,
/// or else the last.
pub fn preferred(precision: Precision, frames: usize, fits: impl Fn(&AtaConfig) -> bool) -> &'static AtaConfig {
    let rows = || ATA.iter().filter(|config| config.precision as u8 == precision as u8);
    let tile = rows().map(|config| config.frames).filter(|&tile| tile >= frames).min();
    let tile = tile.or_else(|| rows().map(|config| config.frames).max());
    let mut of_tile = rows().filter(|config| Some(config.frames) == tile);
    let last = of_tile.clone().next_back().expect("every precision has a config");
    of_tile.find(|config| fits(config)).unwrap_or(last)
}

pub(crate) const fn config(
    name: &'static str,
    precision: Precision,
    unit: AtaUnit,
    [frames, rows, warps]: [usize; 3],
    min_blocks: u32,
) -> AtaConfig {
    AtaConfig { name, family: "ata", precision, unit, frames, pair_rows: rows / PAIR_ROWS, warps, min_blocks }
}

/// Every compiled ATA kernel. Those of equal precision and frames stand in the order of preference ([`preferred`]); the
/// last of them is for grids of more blocks than are on the card at once.
///
/// Name: `ata_<precision>_<unit>_<frames>x<rows>x<warps>`.
pub const ATA: &[AtaConfig] = {
    use AtaUnit::{Fma, Mma};
    use Precision::{Bf16, F16, F32, Tf32, Tf32x3};
    &[
        // One frame. Configurations for few blocks have as many warps as fit, so that each warp takes a tile or two.
        // The next have more blocks on a multiprocessor, so that all blocks of n = 8192 are on the card at once: a
        // second wave would leave half of the card idle.
        config("ata_f32_fma_1x64x16", F32, Fma, [1, 64, 16], 1),
        config("ata_f32_fma_1x64x5", F32, Fma, [1, 64, 5], 3),
        config("ata_f32_fma_1x32x12", F32, Fma, [1, 32, 12], 2),
        // The oracle on the card: its sums and 8 rows of X take more than 128 registers.
        config("ata_f32_fma_8x32x8", F32, Fma, [8, 32, 8], 1),
        // With one frame seven of eight columns of tensor cores are for nothing: n = 2624 takes 4 to 7 % longer there.
        config("ata_tf32_fma_1x64x16", Tf32, Fma, [1, 64, 16], 1),
        config("ata_tf32_fma_1x64x6", Tf32, Fma, [1, 64, 6], 3),
        config("ata_tf32_mma_8x32x12", Tf32, Mma, [8, 32, 12], 2),
        config("ata_tf32_mma_8x64x6", Tf32, Mma, [8, 64, 6], 3),
        config("ata_tf32_mma_16x32x10", Tf32, Mma, [16, 32, 10], 2),
        config("ata_tf32x3_mma_8x32x8", Tf32x3, Mma, [8, 32, 8], 2),
        config("ata_tf32x3_mma_16x32x8", Tf32x3, Mma, [16, 32, 8], 1),
        config("ata_f16_mma_1x64x16", F16, Mma, [1, 64, 16], 1),
        config("ata_f16_mma_1x64x7", F16, Mma, [1, 64, 7], 3),
        config("ata_f16_mma_8x32x16", F16, Mma, [8, 32, 16], 2),
        config("ata_f16_mma_8x64x6", F16, Mma, [8, 64, 6], 3),
        // X becomes 16-bit numbers once for 64 rows.
        config("ata_f16_mma_16x64x16", F16, Mma, [16, 64, 16], 1),
        config("ata_bf16_mma_1x64x16", Bf16, Mma, [1, 64, 16], 1),
        config("ata_bf16_mma_1x64x6", Bf16, Mma, [1, 64, 6], 3),
        config("ata_bf16_mma_8x64x16", Bf16, Mma, [8, 64, 16], 1),
        config("ata_bf16_mma_8x64x6", Bf16, Mma, [8, 64, 6], 3),
        config("ata_bf16_mma_16x64x16", Bf16, Mma, [16, 64, 16], 1),
    ]
};

const _: () = assert_all_fit(ATA);

/// Does not compile (in a constant) for a configuration whose shared memory or threads cannot fit the smallest
/// architecture.
pub(crate) const fn assert_all_fit(configs: &[AtaConfig]) {
    let mut index = 0;
    while index < configs.len() {
        let config = &configs[index];
        let _ = config.smem().assert_fits(Arch::Sm89);
        assert!(config.threads() <= 1024 && config.min_blocks >= 1);
        assert!(config.pair_rows == 1 || config.pair_rows == STRIP_PAIR_ROWS);
        assert!(
            2 * config.warps <= LIST_PREFIX,
            "the first tile references, and those loaded after them, are in the prefix"
        );
        match config.unit {
            AtaUnit::Mma => {
                assert!(config.frames == 1 || config.frames.is_multiple_of(MMA_FRAMES) && config.frames > 0)
            }
            AtaUnit::Wmma => assert!(config.frames == MMA_FRAMES && config.precision as u8 == Precision::Bf16 as u8),
            AtaUnit::Fma => assert!(matches!(config.precision, Precision::F32 | Precision::Tf32) && config.frames > 0),
        }
        assert!(config.tile_words() <= MOST_WORDS, "the loads in flight fit the registers");
        index += 1;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::study::ATA_STUDY;
    use std::collections::HashSet;
    use std::format;
    use std::vec::Vec;

    #[test]
    fn names_follow_the_grammar_and_are_unique() {
        let mut names = HashSet::new();
        for (index, config) in ATA.iter().enumerate() {
            assert_eq!(config_index(config.name), index);
        }
        for config in ATA.iter().chain(ATA_STUDY) {
            let AtaConfig { precision, frames, warps, .. } = config;
            let rows = config.rows();
            assert_eq!(config.name, format!("ata_{precision}_{}_{frames}x{rows}x{warps}", config.unit.name()));
            assert!(names.insert(config.name));
        }
    }

    #[test]
    fn the_preferred_configuration_wastes_the_fewest_frames() {
        for (precision, frames, expected) in [
            (Precision::F32, 1, 1),
            (Precision::F32, 2, 8),
            (Precision::F32, 33, 8),
            (Precision::Tf32x3, 0, 8),
            (Precision::Tf32, 1, 1),
            (Precision::Tf32, 8, 8),
            (Precision::Tf32, 9, 16),
            (Precision::F16, 33, 16),
        ] {
            let of_tile: Vec<_> =
                ATA.iter().filter(|config| (config.precision, config.frames) == (precision, expected)).collect();
            let (first, last) = (of_tile[0], of_tile[of_tile.len() - 1]);
            assert_eq!(preferred(precision, frames, |_| true), first);
            assert_eq!(preferred(precision, frames, |_| false), last);
            assert_eq!(preferred(precision, frames, |config| config == last), last);
        }
    }

    #[test]
    fn stores_of_sums_reach_all_banks() {
        // A quarter of a warp stores 16 bytes each.
        for config in ATA.iter().chain(ATA_STUDY) {
            for quarter in 0..4 {
                let lanes = quarter * 8..quarter * 8 + 8;
                let first = |lane: usize| lane % 4 * 2 * config.sums_stride() + lane / 4 * 4;
                let banks: HashSet<usize> =
                    lanes.flat_map(|lane| (0..4).map(move |word| (first(lane) + word) % 32)).collect();
                assert_eq!(banks.len(), 32, "{config}");
            }
        }
    }
}
