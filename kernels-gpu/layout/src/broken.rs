//! What the deliberately broken kernels and their tests agree on.

use crate::smem::SmemLayout;
use crate::swizzle::Swizzle;

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
