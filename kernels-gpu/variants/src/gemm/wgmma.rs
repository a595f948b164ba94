//! The kernels on `wgmma`, for Hopper: operands, boxes of tensor maps, registers and shared memory.
//!
//! A block has a producer warpgroup, one thread of which copies tiles by TMA, and consumer warpgroups, each of which
//! computes [`CONSUMER_ROWS`] rows of D. The blocks of a cluster compute tiles under each other and share the columns
//! of B.

use layout::descriptor::{Major, Operand};
use layout::smem::SmemLayout;
use layout::{Dtype, Swizzle};

use super::{CHUNK_BYTES, GemmConfig, GemmTile, GemmUnit, TWO_LEVEL_K};
use crate::gemm::Accumulation;

/// Threads of a warpgroup.
pub const WARPGROUP: u32 = 128;

/// Rows of D of one consumer: those of a `wgmma`.
pub const CONSUMER_ROWS: u32 = 64;

/// Rows of D of one warp of a consumer.
pub const WARP_ROWS: u32 = CONSUMER_ROWS / 4;

/// Registers of a thread of the producer, after it has given up the others.
pub const PRODUCER_REGISTERS: u32 = 24;

/// How tiles are swizzled, of A, B and D: rows are as long as a line of memory.
pub const SWIZZLE: Swizzle = Swizzle::B128;

/// Columns of 16 bits that one store of D by TMA writes.
pub const STORE_COLUMNS: u32 = SWIZZLE.row_bytes() / Dtype::F16.size_bytes() as u32;

const MBARRIER_BYTES: u32 = 8;

/// One of the two operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// A, whose rows are those of D.
    A,
    /// B, whose columns are those of D.
    B,
}

/// What holds of configurations on `wgmma` alone.
impl GemmConfig {
    /// Consumer warpgroups.
    pub const fn consumers(&self) -> u32 {
        self.tile.m as u32 / CONSUMER_ROWS
    }

    /// Registers of a thread of a consumer, after it has taken its share of what the producer gave up.
    pub const fn consumer_registers(&self) -> u32 {
        let share = self.max_registers() + (self.max_registers() - PRODUCER_REGISTERS) / self.consumers();
        if share > 240 { 240 } else { share / 8 * 8 }
    }

    /// Whether consumers take registers of the producer: where all start with the most that a thread can have, they
    /// need none.
    pub const fn moves_registers(&self) -> bool {
        self.consumer_registers() > self.max_registers()
    }

    /// Accumulators of a thread of a consumer.
    pub const fn accumulators(&self) -> usize {
        self.tile.n / 2
    }

    /// How a stage of an operand is stored.
    pub const fn operand(&self, side: Side) -> Operand {
        let layout = self.tile_layout();
        let (dtype, major, mn) = match side {
            Side::A => (self.a, layout.a(), self.tile.m),
            Side::B => (self.b, layout.b(), self.tile.n),
        };
        match major {
            Major::K => Operand::new(dtype, major, SWIZZLE, mn as u32),
            Major::Mn => Operand::new(dtype, major, SWIZZLE, self.tile.k as u32),
        }
    }

    /// Bytes of one stage of an operand.
    pub const fn stage_bytes_of(&self, side: Side) -> u32 {
        let mn = match side {
            Side::A => self.tile.m,
            Side::B => self.tile.n,
        };
        (mn * self.k_bytes()) as u32
    }

    /// Bytes of A and B that arrive in a stage.
    pub const fn stage_bytes(&self) -> u32 {
        self.stage_bytes_of(Side::A) + self.stage_bytes_of(Side::B)
    }

    /// Rows of A or columns of B that a block copies to a stage: its own rows, and its part of the columns of the
    /// cluster.
    const fn copied(&self, side: Side) -> u32 {
        match side {
            Side::A => self.tile.m as u32,
            Side::B => self.tile.n as u32 / self.cluster,
        }
    }

    /// Rows of A or columns of B in one TMA box: all that a block copies if k is contiguous, else a row of the swizzle.
    pub const fn box_mn(&self, side: Side) -> u32 {
        let operand = self.operand(side);
        match operand.major() {
            Major::K => self.copied(side),
            Major::Mn => SWIZZLE.row_bytes() / operand.dtype().size_bytes() as u32,
        }
    }

    /// The box of an operand's tensor map, the contiguous dimension last.
    pub const fn box_shape(&self, side: Side) -> [u32; 2] {
        match self.operand(side).major() {
            Major::K => [self.box_mn(side), self.tile.k as u32],
            Major::Mn => [self.tile.k as u32, self.box_mn(side)],
        }
    }

    /// Bytes of one box: the distance of two in a stage.
    pub const fn box_bytes(&self, side: Side) -> u32 {
        self.box_mn(side) * self.k_bytes() as u32
    }

    /// Boxes of an operand that a block copies to a stage.
    pub const fn boxes(&self, side: Side) -> u32 {
        self.copied(side) / self.box_mn(side)
    }

    /// Buffers for stores of each consumer: enough for a tile.
    pub const fn buffers(&self) -> u32 {
        self.tile.n as u32 / STORE_COLUMNS
    }

    /// Whether each warp stores its own rows of D, where nothing but rounding is to be done. TMA could start only after
    /// a fence and a barrier of the consumer, and blocks of one consumer are for products so short that this shows.
    pub const fn warps_store(&self) -> bool {
        self.consumers() == 1
    }

    /// Arrivals of the consumers of a cluster at an `empty` barrier: one of each warp.
    pub const fn releases(&self) -> u32 {
        self.cluster * self.consumers() * WARPGROUP / 32
    }

    /// Blocks of the grid for `blocks` tiles on a card with so many multiprocessors: each computes one tile after the
    /// other.
    pub const fn resident_blocks(&self, blocks: u32, multiprocessors: u32) -> u32 {
        let at_once = multiprocessors * self.min_blocks / self.cluster * self.cluster;
        if at_once == 0 {
            self.cluster
        } else if at_once < blocks {
            at_once
        } else {
            blocks
        }
    }

    /// The map of dynamic shared memory: stages of `a` and `b`, buffers of `d` for each consumer, and for each stage
    /// the mbarriers `full` and `empty`.
    pub(super) const fn wgmma_smem(&self) -> SmemLayout {
        let (period, stages) = (SWIZZLE.period_bytes(), self.tile.stages as u32);
        SmemLayout::new()
            .stages("a", stages, self.stage_bytes_of(Side::A), period)
            .stages("b", stages, self.stage_bytes_of(Side::B), period)
            .stages("d", self.consumers() * self.buffers(), CONSUMER_ROWS * SWIZZLE.row_bytes(), period)
            .stages("full", stages, MBARRIER_BYTES, MBARRIER_BYTES)
            .stages("empty", stages, MBARRIER_BYTES, MBARRIER_BYTES)
    }
}

/// Refuses a configuration of `wgmma` whose tile the instruction and the copies cannot serve.
pub(super) const fn check_wgmma(config: &GemmConfig) {
    assert!(matches!(config.unit, GemmUnit::Wgmma));
    let GemmTile { m, n, k, .. } = config.tile;
    assert!(
        m == config.consumers() as usize * CONSUMER_ROWS as usize && config.consumers() >= 1 && config.consumers() <= 2
    );
    assert!(n.is_multiple_of(STORE_COLUMNS as usize) && n <= 256);
    assert!(config.k_bytes() == SWIZZLE.row_bytes() as usize, "a config of k is a config of the swizzle");
    let part = config.copied(Side::B);
    assert!(
        part.is_multiple_of(8) && part.is_multiple_of(config.box_mn(Side::B)),
        "the blocks of a cluster share B evenly"
    );
    assert!(config.box_bytes(Side::A).is_multiple_of(CHUNK_BYTES as u32));
    let two_level = matches!(config.accumulation, Accumulation::TwoLevel);
    assert!(!two_level || k == TWO_LEVEL_K, "a stage is what the tensor cores add up");
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::gemm::GEMM;

    #[test]
    fn the_boxes_of_a_cluster_fill_a_stage() {
        for config in GEMM.iter().filter(|config| config.unit == GemmUnit::Wgmma) {
            for (side, blocks) in [(Side::A, 1), (Side::B, config.cluster)] {
                assert_eq!(
                    blocks * config.boxes(side) * config.box_bytes(side),
                    config.stage_bytes_of(side),
                    "{config}"
                );
                let columns = config.box_shape(side)[1];
                assert_eq!(columns * config.operand(side).dtype().size_bytes() as u32, SWIZZLE.row_bytes(), "{config}");
            }
        }
    }

    #[test]
    fn registers_are_moved_and_not_made() {
        for config in GEMM.iter().filter(|config| config.unit == GemmUnit::Wgmma && config.moves_registers()) {
            let after = PRODUCER_REGISTERS + config.consumers() * config.consumer_registers();
            assert!(after * WARPGROUP <= config.max_registers() * config.threads(), "{config}");
        }
    }

    #[test]
    fn a_grid_is_whole_clusters_and_no_more_than_there_are_tiles() {
        for config in GEMM.iter().filter(|config| config.unit == GemmUnit::Wgmma) {
            for tiles in [1, 2, 7, 66, 1000] {
                let blocks = config.resident_blocks(tiles * config.cluster, 131);
                assert!(
                    blocks >= config.cluster
                        && blocks <= tiles * config.cluster
                        && blocks.is_multiple_of(config.cluster)
                );
            }
        }
    }
}
