//! What the deliberately broken kernels and their tests agree on.

use layout::Dtype;
use layout::Swizzle;
use layout::descriptor::{Major, Operand};
use layout::smem::SmemLayout;

/// Threads of a block: two warps.
pub const THREADS: u32 = 64;

/// Words of the input and of the output, and of a stage: one for each thread.
pub const WORDS: u32 = THREADS;

/// Stages of a pipeline through shared memory.
pub const STAGES: u32 = 2;

/// Tiles that a pipeline copies, each of [`WORDS`].
pub const TILES: u32 = 6;

/// Rows of the tile that `ldmatrix` reads, and the bytes of each that are used: half of a row.
pub const TILE_ROWS: u32 = 32;
/// See [`TILE_ROWS`].
pub const TILE_ROW_BYTES: u32 = TILE_SWIZZLE.row_bytes() / 2;

/// The swizzle of the tile.
pub const TILE_SWIZZLE: Swizzle = Swizzle::B128;

/// Arrivals that a phase of the mbarrier takes.
pub const ARRIVALS: u32 = THREADS;

/// The map of every kernel.
pub const MAP: SmemLayout = SmemLayout::new()
    .region("tile", TILE_ROWS * TILE_SWIZZLE.row_bytes(), TILE_SWIZZLE.period_bytes())
    .stages("words", STAGES, WORDS * 4, 16)
    .region("barrier", 8, 8);

/// Threads of the kernels of sm_90: a warpgroup.
pub const WARPGROUP: u32 = 128;

/// How the factors of `wgmma` are stored, each of 64 x 64 numbers.
pub const FACTOR: Operand = Operand::new(Dtype::F16, Major::K, Swizzle::B128, FACTOR_ROWS);
/// Rows of a factor, and numbers in each.
pub const FACTOR_ROWS: u32 = 64;
/// The size of a factor.
pub const FACTOR_BYTES: u32 = FACTOR.tile_bytes(FACTOR_ROWS);
/// Instructions along K.
pub const FACTOR_STEPS: usize = (FACTOR_ROWS / FACTOR.k_step_elems()) as usize;

/// Rows of the tensor of the tensor map: two factors, one under the other.
pub const TENSOR_ROWS: u32 = 2 * FACTOR_ROWS;

/// The map of the kernels of sm_90.
pub const HOPPER: SmemLayout = SmemLayout::new()
    .region("a", FACTOR_BYTES, Swizzle::B128.period_bytes())
    .region("b", FACTOR_BYTES, Swizzle::B128.period_bytes())
    .region("barrier", 8, 8);
