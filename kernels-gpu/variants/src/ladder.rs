//! The ladder: six small kernels of the product `C = A B^T` on the matrix unit of Hopper, each one idea further than
//! the one before. `docs/wgmma.md` explains them; the library does not use them.
//!
//! A, M x K, and B, N x K, are f16 and row-major, so that both are K-major for `wgmma`; C, M x N, is f32 and row-major.
//! Sizes are multiples of the step's tile.

use core::fmt;

use layout::descriptor::{K_STEP_BYTES, Major, Operand};
use layout::smem::SmemLayout;
use layout::text::same_text;
use layout::{Arch, Dtype, Swizzle};

/// Threads of a warpgroup.
pub const WARPGROUP: u32 = 128;

/// Rows of C that one `wgmma` computes.
pub const WGMMA_ROWS: u32 = 64;

/// Registers of a thread of the producer, which the consumers have no use for otherwise,
pub const PRODUCER_REGISTERS: u32 = 40;
/// and of a thread of the two consumer warpgroups. All three start with 168 of the 65536 of a multiprocessor.
pub const CONSUMER_REGISTERS: u32 = 232;

/// f32 columns of C that one TMA store writes: the width of the 128-byte swizzle.
pub const STORE_COLUMNS: u32 = 32;

/// Buffers for stores of each warpgroup: one is filled while the other is written.
pub const STORE_BUFFERS: u32 = 2;

/// Rows of clusters whose tiles are computed column by column. The tiles that run at a time then form about a square,
/// and read the least from L2.
pub const GROUP_ROWS: u32 = 8;

/// The sizes of a product, the last parameter of every kernel.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LadderSizes {
    /// Rows of A and C.
    pub m: u32,
    /// Rows of B, columns of C.
    pub n: u32,
    /// Columns of A and B.
    pub k: u32,
}

/// How data comes to shared memory, and who waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pipeline {
    /// Every thread copies its part through registers, and a barrier of the block follows.
    Threads,
    /// One thread of those that multiply starts TMA copies, stages ahead.
    Tma,
    /// A warpgroup of its own starts the copies; the others multiply.
    Specialised,
    /// As [`Pipeline::Specialised`], with clusters whose blocks share what they load. A block computes one tile after
    /// the other.
    Persistent,
}

/// One kernel of the ladder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LadderStep {
    /// Name of the PTX entry.
    pub name: &'static str,
    /// What it adds to the step before.
    pub adds: &'static str,
    /// Rows of C that a block computes at a time.
    pub m: u32,
    /// Columns of C that a block computes at a time.
    pub n: u32,
    /// Columns of A and B in one stage.
    pub k: u32,
    /// Stages of A and B in shared memory.
    pub stages: u32,
    /// Warpgroups that multiply, each an equal part of the rows.
    pub consumers: u32,
    /// Who copies.
    pub pipeline: Pipeline,
    /// Blocks of a cluster: they compute tiles under each other and share the columns of B.
    pub cluster: u32,
}

impl LadderStep {
    /// Threads of a block.
    pub const fn threads(&self) -> u32 {
        let producers = match self.pipeline {
            Pipeline::Threads | Pipeline::Tma => 0,
            Pipeline::Specialised | Pipeline::Persistent => 1,
        };
        (self.consumers + producers) * WARPGROUP
    }

    /// Registers that a thread may start with.
    pub const fn max_registers(&self) -> u32 {
        match self.pipeline {
            Pipeline::Threads if self.k_steps() == 1 => 60,
            Pipeline::Threads | Pipeline::Tma => 128,
            Pipeline::Specialised | Pipeline::Persistent => 168,
        }
    }

    /// How a stage of A is stored.
    pub const fn a(&self) -> Operand {
        Operand::new(Dtype::F16, Major::K, self.swizzle(), self.m)
    }

    /// How a stage of B is stored.
    pub const fn b(&self) -> Operand {
        Operand::new(Dtype::F16, Major::K, self.swizzle(), self.n)
    }

    /// The swizzle of A and B: none for the one k-step of the first kernel, whose rows have two units, else that of the
    /// rows.
    pub const fn swizzle(&self) -> Swizzle {
        if self.k * F16_BYTES == K_STEP_BYTES { Swizzle::None } else { Swizzle::B128 }
    }

    /// The `wgmma` along K of one stage.
    pub const fn k_steps(&self) -> u32 {
        self.k * F16_BYTES / K_STEP_BYTES
    }

    /// Rows of C of one consumer warpgroup.
    pub const fn consumer_rows(&self) -> u32 {
        self.m / self.consumers
    }

    /// Accumulators of a thread.
    pub const fn accumulators(&self) -> usize {
        (self.n / 2) as usize
    }

    /// Rows of B that one block of a cluster loads, for all of them.
    pub const fn b_rows_loaded(&self) -> u32 {
        self.n / self.cluster
    }

    /// Bytes of A and B that arrive in a stage.
    pub const fn stage_bytes(&self) -> u32 {
        self.a().tile_bytes(self.k) + self.b().tile_bytes(self.k)
    }

    /// The map of dynamic shared memory: stages of `a` and `b`, buffers for `c` where TMA stores it, and an mbarrier
    /// `full` and `empty` for each stage.
    pub const fn smem(&self) -> SmemLayout {
        let period = self.swizzle().period_bytes();
        let c_buffers = match self.pipeline {
            Pipeline::Persistent => self.consumers * STORE_BUFFERS,
            _ => 0,
        };
        SmemLayout::new()
            .stages("a", self.stages, self.a().tile_bytes(self.k), period)
            .stages("b", self.stages, self.b().tile_bytes(self.k), period)
            .stages("c", c_buffers, WGMMA_ROWS * Swizzle::B128.row_bytes(), Swizzle::B128.period_bytes())
            .stages("full", self.stages, MBARRIER_BYTES, MBARRIER_BYTES)
            .stages("empty", self.stages, MBARRIER_BYTES, MBARRIER_BYTES)
    }

    /// Whether the kernel takes the sizes: they are multiples of what a cluster computes at a time.
    pub const fn takes(&self, sizes: LadderSizes) -> bool {
        let LadderSizes { m, n, k } = sizes;
        // The first step has no loop.
        let enough_stages = self.stages > 1 || self.k_steps() > 1 || k == self.k;
        m > 0
            && n > 0
            && k > 0
            && enough_stages
            && m.is_multiple_of(self.m * self.cluster)
            && n.is_multiple_of(self.n)
            && k.is_multiple_of(self.k)
    }

    /// The first row and column of C that block `block` computes, of a grid that has a block for each tile.
    #[inline(always)]
    pub const fn tile_of(&self, block: u32, sizes: LadderSizes) -> (u32, u32) {
        let (row, column) = div_rem(block, sizes.n / self.n);
        (row * self.m, column * self.n)
    }

    /// Blocks of the grid, on a card with so many multiprocessors.
    pub const fn blocks(&self, sizes: LadderSizes, multiprocessors: u32) -> u32 {
        let tiles = (sizes.m / self.m) * (sizes.n / self.n);
        let at_once = multiprocessors / self.cluster * self.cluster;
        match self.pipeline {
            Pipeline::Persistent if at_once < tiles => at_once,
            _ => tiles,
        }
    }
}

impl fmt::Display for LadderStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

const F16_BYTES: u32 = Dtype::F16.size_bytes() as u32;
const MBARRIER_BYTES: u32 = 8;

/// Position of the step called `name` in [`LADDER`]; does not compile (in a constant) where there is none.
pub const fn step_index(name: &str) -> usize {
    let mut index = 0;
    while index < LADDER.len() {
        if same_text(LADDER[index].name, name) {
            return index;
        }
        index += 1;
    }
    panic!("no step of the ladder has this name")
}

/// The position of a cluster's tile: (row of clusters, column of tiles), for the `index`-th of them.
///
/// [`GROUP_ROWS`] rows of clusters are computed column by column, then the next ones.
#[inline(always)]
pub const fn rasterize(index: u32, cluster_rows: u32, columns: u32) -> (u32, u32) {
    let (group, inside) = div_rem(index, GROUP_ROWS * columns);
    let first_row = group * GROUP_ROWS;
    let rows_left = cluster_rows - first_row;
    let rows = if rows_left < GROUP_ROWS { rows_left } else { GROUP_ROWS };
    let (column, row) = div_rem(inside, rows);
    (first_row + row, column)
}

/// Quotient and remainder, without the panic that a plain `/` would link into a kernel; no divisor here is 0.
#[inline(always)]
const fn div_rem(dividend: u32, divisor: u32) -> (u32, u32) {
    let quotient = match dividend.checked_div(divisor) {
        Some(quotient) => quotient,
        None => 0,
    };
    (quotient, dividend - quotient * divisor)
}

/// Every kernel, in the order of the steps. Name: `ladder<step>_<what it adds>_<M>x<N>x<K>_s<stages>`.
pub const LADDER: &[LadderStep] = {
    use Pipeline::{Persistent, Specialised, Threads, Tma};
    &[
        LadderStep {
            name: "ladder1_wgmma_64x64x16_s1",
            adds: "one wgmma",
            m: 64,
            n: 64,
            k: 16,
            stages: 1,
            consumers: 1,
            pipeline: Threads,
            cluster: 1,
        },
        LadderStep {
            name: "ladder2_loop_64x64x64_s1",
            adds: "a loop along K, swizzled tiles",
            m: 64,
            n: 64,
            k: 64,
            stages: 1,
            consumers: 1,
            pipeline: Threads,
            cluster: 1,
        },
        LadderStep {
            name: "ladder3_tma_64x128x64_s2",
            adds: "TMA and mbarriers, two stages",
            m: 64,
            n: 128,
            k: 64,
            stages: 2,
            consumers: 1,
            pipeline: Tma,
            cluster: 1,
        },
        LadderStep {
            name: "ladder4_producer_128x128x64_s4",
            adds: "a producer and two consumer warpgroups, setmaxnreg, four stages",
            m: 128,
            n: 128,
            k: 64,
            stages: 4,
            consumers: 2,
            pipeline: Specialised,
            cluster: 1,
        },
        LadderStep {
            name: "ladder5_wide_128x256x64_s4",
            adds: "tiles of 128x256",
            m: 128,
            n: 256,
            k: 64,
            stages: 4,
            consumers: 2,
            pipeline: Specialised,
            cluster: 1,
        },
        LadderStep {
            name: "ladder6_cluster_128x256x64_s4",
            adds: "clusters with multicast, an order for L2, persistent blocks, TMA stores",
            m: 128,
            n: 256,
            k: 64,
            stages: 4,
            consumers: 2,
            pipeline: Persistent,
            cluster: 2,
        },
    ]
};

/// A step whose shared memory or parts cannot fit does not compile.
const _: () = {
    let mut index = 0;
    while index < LADDER.len() {
        let step = &LADDER[index];
        let _ = step.smem().assert_fits(Arch::Sm90a);
        assert!(step.consumer_rows() == WGMMA_ROWS, "a warpgroup multiplies 64 rows");
        assert!(matches!(step.k_steps(), 1 | 4) && step.n <= 256);
        assert!(step.n.is_multiple_of(STORE_COLUMNS) && step.b_rows_loaded().is_multiple_of(8));
        index += 1;
    }
};

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::collections::HashSet;
    use std::format;

    #[test]
    fn names_number_the_steps_and_say_their_sizes() {
        for (index, step) in LADDER.iter().enumerate() {
            let LadderStep { m, n, k, stages, .. } = step;
            assert!(step.name.starts_with(&format!("ladder{}_", index + 1)), "{step}");
            assert!(step.name.ends_with(&format!("_{m}x{n}x{k}_s{stages}")), "{step}");
            assert_eq!(step_index(step.name), index);
        }
    }

    #[test]
    fn every_tile_is_computed_once() {
        for (cluster_rows, columns) in [(1, 1), (8, 3), (16, 16), (13, 5), (7, 4), (9, 1)] {
            let places: HashSet<_> =
                (0..cluster_rows * columns).map(|index| rasterize(index, cluster_rows, columns)).collect();
            assert_eq!(places.len() as u32, cluster_rows * columns);
            assert!(places.iter().all(|&(row, column)| row < cluster_rows && column < columns));
        }
    }

    #[test]
    fn the_registers_of_a_specialised_block_are_those_it_starts_with() {
        for step in LADDER.iter().filter(|step| step.threads() > step.consumers * WARPGROUP) {
            let start = step.max_registers() * step.threads();
            assert!(WARPGROUP * (PRODUCER_REGISTERS + step.consumers * CONSUMER_REGISTERS) <= start, "{step}");
            assert!(start <= Arch::Sm90a.limits().registers, "{step}");
        }
    }

    #[test]
    fn sizes_are_multiples_of_the_tile() {
        let sizes = |m, n, k| LadderSizes { m, n, k };
        assert!(LADDER[5].takes(sizes(256, 256, 64)) && !LADDER[5].takes(sizes(128, 256, 64)));
        assert!(!LADDER[5].takes(sizes(256, 256, 32)) && !LADDER[5].takes(sizes(0, 256, 64)));
        assert_eq!(LADDER[5].blocks(sizes(4096, 4096, 64), 132), 132);
        assert_eq!(LADDER[5].blocks(sizes(512, 256, 64), 132), 4);
        assert_eq!(LADDER[4].blocks(sizes(4096, 4096, 64), 132), 512);
    }
}
