//! What a compiled GEMM kernel is made of, and what it needs: tile, shared memory, grid.

use core::fmt;

use layout::descriptor::Major;
use layout::smem::{BASE_ALIGN_BYTES, SmemLayout};
use layout::{Arch, Dtype, Swizzle};

use super::wgmma::WARPGROUP;
use super::{Accumulation, GemmLayout, TileScheduler};

/// Which instructions multiply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GemmUnit {
    /// `mma.sync`, operands by `cp.async` and `ldmatrix`.
    Mma,
    /// `wgmma`, operands by TMA.
    Wgmma,
}

/// What operands a configuration takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operands {
    /// Those stored as the layout says, with rows that start on 16-byte boundaries.
    Aligned(GemmLayout),
    /// Any: elements are copied one at a time.
    Any,
}

impl Operands {
    /// The name used in entry names.
    pub const fn name(self) -> &'static str {
        match self {
            Operands::Aligned(layout) => layout.name(),
            Operands::Any => "any",
        }
    }
}

/// The tile of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GemmTile {
    /// Rows of D.
    pub m: usize,
    /// Columns of D.
    pub n: usize,
    /// Elements of k of one stage.
    pub k: usize,
    /// Stages in shared memory.
    pub stages: usize,
    /// Warps that multiply, along m and n.
    pub warps: [usize; 2],
}

/// One compiled kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GemmConfig {
    /// Name of the PTX entry.
    pub name: &'static str,
    /// Element type of A.
    pub a: Dtype,
    /// Element type of B.
    pub b: Dtype,
    /// How A and B may be stored.
    pub operands: Operands,
    /// Which instructions multiply.
    pub unit: GemmUnit,
    /// How products are summed.
    pub accumulation: Accumulation,
    /// The tile.
    pub tile: GemmTile,
    /// Blocks of a cluster, whose tiles lie under each other; 1 without clusters.
    pub cluster: u32,
    /// Resident blocks that the register budget must allow on a multiprocessor.
    pub min_blocks: u32,
    /// Products that a multiprocessor adds in a cycle while its blocks are in their main loop, as measured on an H100.
    /// The library's choice of a configuration rests on this number.
    pub products_per_cycle: u32,
}

/// Rows and columns of one product of `mma` fragments as `ldmatrix` brings them.
pub(super) const FRAGMENT: usize = 16;

/// Bytes of k that one `mma` instruction takes.
const STEP_BYTES: usize = 32;

impl GemmConfig {
    /// The oldest architecture whose PTX has the kernel.
    pub const fn arch(&self) -> Arch {
        match (self.unit, self.a) {
            (GemmUnit::Wgmma, _) => Arch::Sm90a,
            (GemmUnit::Mma, Dtype::E4M3 | Dtype::E5M2) => Arch::Sm89,
            (GemmUnit::Mma, _) => Arch::Sm80,
        }
    }

    /// Whether the PTX of `arch` has the kernel: those of its architecture and of later ones that have the shared
    /// memory.
    pub const fn is_in(&self, arch: Arch) -> bool {
        arch as u8 >= self.arch() as u8 && self.smem().fits(arch)
    }

    /// Whether it multiplies elements of these types, and sums at least as exactly as `accumulation`.
    pub const fn multiplies(&self, a: Dtype, b: Dtype, accumulation: Accumulation) -> bool {
        let exact_enough = match (accumulation, self.accumulation) {
            (Accumulation::TwoLevel, Accumulation::Direct) => a.size_bytes() > 1,
            _ => true,
        };
        self.a as u8 == a as u8 && self.b as u8 == b as u8 && exact_enough
    }

    /// Whether it takes operands of this layout, whose rows start on 16-byte boundaries or not.
    pub const fn takes(&self, layout: GemmLayout, aligned: bool) -> bool {
        match self.operands {
            Operands::Aligned(own) => aligned && own as u8 == layout as u8,
            Operands::Any => true,
        }
    }

    /// The layout of the tiles in shared memory.
    pub const fn tile_layout(&self) -> GemmLayout {
        match self.operands {
            Operands::Aligned(layout) => layout,
            Operands::Any => GemmLayout::Nt,
        }
    }

    /// Bytes of k of one stage.
    pub const fn k_bytes(&self) -> usize {
        self.tile.k * self.a.size_bytes()
    }

    /// Steps of `mma` instructions of one stage.
    pub const fn k_steps(&self) -> usize {
        self.k_bytes() / STEP_BYTES
    }

    /// Rows of D of one warp.
    pub const fn warp_m(&self) -> usize {
        self.tile.m / self.tile.warps[0]
    }

    /// Columns of D of one warp.
    pub const fn warp_n(&self) -> usize {
        self.tile.n / self.tile.warps[1]
    }

    /// Fragments of A of one warp and step: 16 rows each.
    pub const fn a_fragments(&self) -> usize {
        self.warp_m() / FRAGMENT
    }

    /// Fragments of B of one warp and step: 16 columns each.
    pub const fn b_fragments(&self) -> usize {
        self.warp_n() / FRAGMENT
    }

    /// Threads of one block.
    pub const fn threads(&self) -> u32 {
        let multiply = 32 * (self.tile.warps[0] * self.tile.warps[1]) as u32;
        match self.unit {
            GemmUnit::Mma => multiply,
            // The producer.
            GemmUnit::Wgmma => multiply + WARPGROUP,
        }
    }

    /// Registers that a thread may use.
    pub const fn max_registers(&self) -> u32 {
        let share = Arch::Sm80.limits().registers / (self.threads() * self.min_blocks);
        if share > 255 { 255 } else { share / 8 * 8 }
    }

    /// The swizzle of a tile of A or B, whose rows of contiguous elements are as wide as it or cut into panels of that
    /// width.
    pub const fn swizzle(&self, major: Major, mn: usize) -> Swizzle {
        let row_bytes = match major {
            Major::K => self.k_bytes(),
            Major::Mn => mn * self.a.size_bytes(),
        };
        match row_bytes {
            32 => Swizzle::B32,
            64 => Swizzle::B64,
            _ => Swizzle::B128,
        }
    }

    /// The swizzle of the tiles of A.
    pub const fn a_swizzle(&self) -> Swizzle {
        self.swizzle(self.tile_layout().a(), self.tile.m)
    }

    /// The swizzle of the tiles of B.
    pub const fn b_swizzle(&self) -> Swizzle {
        self.swizzle(self.tile_layout().b(), self.tile.n)
    }

    /// The map of dynamic shared memory.
    ///
    /// - `a`, `b`: the stages of the tiles. A tile with contiguous k has a row of k for each m or n; any other has a
    ///   row of m or n, in panels, for each k.
    ///
    /// After the last stage it holds the sums of each warp instead ([`GemmConfig::sums_offset`]). Configurations on
    /// `wgmma` have buffers for D and mbarriers too.
    pub const fn smem(&self) -> SmemLayout {
        if matches!(self.unit, GemmUnit::Wgmma) {
            return self.wgmma_smem();
        }
        let stages = self.tile.stages as u32;
        SmemLayout::new().stages("a", stages, (self.tile.m * self.k_bytes()) as u32, BASE_ALIGN_BYTES).stages(
            "b",
            stages,
            (self.tile.n * self.k_bytes()) as u32,
            BASE_ALIGN_BYTES,
        )
    }

    /// Floats from one row of a warp's sums to the next. They are 8 more than the columns of a row, so that the four
    /// rows that half a warp writes lie in different banks.
    pub const fn sums_stride(&self) -> u32 {
        (self.warp_n() + 8) as u32
    }

    /// Where the sums of a warp, 16 rows at a time, lie in the dynamic shared memory.
    #[inline(always)]
    pub const fn sums_offset(&self, warp: u32) -> u32 {
        warp * FRAGMENT as u32 * self.sums_stride() * size_of::<f32>() as u32
    }

    /// The tiles of a problem, those of a cluster as one, and their blocks, with `splits` splits of k; `None` where
    /// they or the blocks exceed the 2^31 - 1 of a grid.
    pub fn schedule(&self, batch: usize, m: usize, n: usize, splits: usize) -> Option<(TileScheduler, u32)> {
        let cluster = self.cluster as usize;
        let (m_tiles, n_tiles) = (m.div_ceil(self.tile.m * cluster), n.div_ceil(self.tile.n));
        let clusters = batch.checked_mul(m_tiles)?.checked_mul(n_tiles)?.checked_mul(splits)?;
        let blocks = clusters.checked_mul(cluster)?;
        let blocks = i32::try_from(blocks).ok()? as u32;
        let (m_tiles, n_tiles, splits) = (m_tiles as u32, n_tiles as u32, splits as u32);
        Some((TileScheduler { m_tiles, n_tiles, splits, cluster: self.cluster }, blocks))
    }
}

impl fmt::Display for GemmConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}
