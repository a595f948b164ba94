//! What the probe kernels and their tests agree on: shared-memory maps and the strides of their tiles.

pub mod wgmma;

use layout::Swizzle;
use layout::fragment::WmmaShape;
use layout::smem::SmemLayout;

/// Threads of the probes that use a whole block.
pub const BLOCK_THREADS: u32 = 256;

/// One region for each type of word, an element a lane: the map of `shared_words`.
pub const WORDS: SmemLayout = SmemLayout::new()
    .region("u16", 32 * 2, 2)
    .region("u32", 32 * 4, 4)
    .region("f32", 32 * 4, 4)
    .region("u32x2", 32 * 8, 8)
    .region("u32x4", 32 * 16, 16)
    .region("u8", 32, 1);

/// The words that one lane of `shared_words` writes: one u16, u32 and f32, a pair and four u32, a u8, and the base
/// modulo its alignment.
pub const SHARED_WORDS: u32 = 1 + 1 + 1 + 2 + 4 + 1 + 1;

/// The distance between the results of two types of word in `global_words`, in bytes: 32 lanes of the largest word,
/// three times.
pub const GLOBAL_WORDS_BYTES: u32 = 3 * 32 * 16;

/// The number after which `global_atomic_inc` counts from 0 again.
pub const ATOMIC_MOST: u32 = 19;

/// The largest copy of `cp_async`, in bytes a lane.
pub const COPY_BYTES: u32 = 16;

/// The groups that `cp_async_groups` starts, each of one word a lane.
pub const COPY_GROUPS: u32 = 4;

/// The map of the `cp_async` probes.
pub const COPIES: SmemLayout = SmemLayout::new().region("bytes", 32 * COPY_BYTES * COPY_GROUPS, 16);

/// What the shared memory of the `cp_async` probes is filled with before the copy.
pub const COPY_FILL: u32 = 0xaaaa_aaaa;

/// Rows of the tile of the `ldmatrix` probes, of 16-bit elements.
pub const LDMATRIX_ROWS: u32 = 32;

/// Columns of the tile of the `ldmatrix` probes.
pub const LDMATRIX_COLUMNS: u32 = 64;

/// The swizzle of the tile of the `ldmatrix` probes: its rows are 128 bytes long.
pub const LDMATRIX_SWIZZLE: Swizzle = Swizzle::B128;

/// The map of the `ldmatrix` probes.
pub const LDMATRIX: SmemLayout =
    SmemLayout::new().region("tile", LDMATRIX_ROWS * LDMATRIX_COLUMNS * 2, LDMATRIX_SWIZZLE.period_bytes());

/// The map of the `mbarrier` probes.
pub const MBARRIER: SmemLayout = SmemLayout::new().region("barrier", 8, 8).region("values", MBARRIER_THREADS * 4, 4);

/// The threads of `mbarrier_exchange`: two warps.
pub const MBARRIER_THREADS: u32 = 64;

/// The phases of `mbarrier_exchange`.
pub const MBARRIER_PHASES: u32 = 3;

/// The map of the `stmatrix` probes: four matrices, one under the other.
pub const STMATRIX: SmemLayout = SmemLayout::new().region("rows", 4 * 8 * 16, 16);

/// The map of `barrier_warps`: a word a lane.
pub const WARPS: SmemLayout = SmemLayout::new().region("words", 32 * 4, 4);

/// The map of `barrier_numbered`: a word for each lane of two warps.
pub const PAIRS: SmemLayout = SmemLayout::new().region("words", 2 * 32 * 4, 4);

/// The map of `cluster_store_async`: for each lane one word, two, and four, and the barrier that counts them.
pub const STORES: SmemLayout = SmemLayout::new()
    .region("one", 32 * 4, 4)
    .region("two", 32 * 8, 8)
    .region("four", 32 * 16, 16)
    .region("barrier", 8, 8);

/// The words of a lane of `cluster_store_async`.
pub const STORE_WORDS: u32 = 1 + 2 + 4;

/// The map of the TMA probes: the largest box, and the barrier of the copy.
pub const TMA: SmemLayout = SmemLayout::new().region("tile", TMA_TILE_BYTES, 1024).region("barrier", 8, 8);

/// The shared memory that a TMA probe fills and shows, of which the box is the start.
pub const TMA_TILE_BYTES: u32 = 4096;

/// The threads of the probe of `setmaxnreg`: four warpgroups, which start with 128 registers a thread.
pub const SETMAXNREG_THREADS: u32 = 512;

/// The registers a thread after a decrease and an increase in the probe of `setmaxnreg`: what one warpgroup gives up is
/// what another takes.
pub const SETMAXNREG: (u32, u32) = (24, 232);

/// The map of the `wmma` probes: both factors, the accumulator and the result.
pub const WMMA: SmemLayout =
    SmemLayout::new().region("a", 2048, 32).region("b", 2048, 32).region("c", 2048, 32).region("d", 2048, 32);

/// A matrix in memory: its shape, its order, and padding between its rows or columns, so that a wrong stride shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Matrix {
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
    /// Whether the elements of a row follow each other.
    pub row_major: bool,
    /// Elements between the end of one row (or column) and the start of the next.
    pub padding: u32,
}

impl Matrix {
    /// A of a `wmma` probe, padded by the smallest step of a 16-bit stride.
    pub const fn wmma_a(shape: WmmaShape, row_major: bool) -> Matrix {
        Matrix { rows: shape.m(), columns: shape.k(), row_major, padding: 8 }
    }

    /// B of a `wmma` probe, padded likewise.
    pub const fn wmma_b(shape: WmmaShape, row_major: bool) -> Matrix {
        Matrix { rows: shape.k(), columns: shape.n(), row_major, padding: 8 }
    }

    /// C and D of a `wmma` probe, padded by the smallest step of a 32-bit stride.
    pub const fn wmma_c(shape: WmmaShape, row_major: bool) -> Matrix {
        Matrix { rows: shape.m(), columns: shape.n(), row_major, padding: 4 }
    }

    /// The distance between two rows (or columns), in elements.
    pub const fn stride(self) -> u32 {
        self.padding + if self.row_major { self.columns } else { self.rows }
    }

    /// The elements it takes in memory, padding included.
    pub const fn len_elems(self) -> u32 {
        self.stride() * if self.row_major { self.rows } else { self.columns }
    }

    /// Where element (row, column) is.
    pub const fn index(self, row: u32, column: u32) -> u32 {
        if self.row_major { row * self.stride() + column } else { column * self.stride() + row }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wmma_matrix_fits_its_region() {
        for shape in WmmaShape::ALL {
            for row_major in [true, false] {
                assert!(Matrix::wmma_a(shape, row_major).len_elems() * 2 <= WMMA.get("a").stage_bytes);
                assert!(Matrix::wmma_b(shape, row_major).len_elems() * 2 <= WMMA.get("b").stage_bytes);
                assert!(Matrix::wmma_c(shape, row_major).len_elems() * 4 <= WMMA.get("c").stage_bytes);
                assert!(Matrix::wmma_c(shape, row_major).len_elems() * 4 <= WMMA.get("d").stage_bytes);
            }
        }
    }
}
