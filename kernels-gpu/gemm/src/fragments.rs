//! Fragments of `mma` from tiles in shared memory, by `ldmatrix`.
//!
//! A tile with contiguous k has a row of k for each m (of A) or n (of B), as long as a row of its swizzle. Any other
//! tile has a row of m or n for each k, cut into panels as wide as its swizzle; `ldmatrix.trans` transposes it on the
//! way.
//!
//! A fragment is four 8x8 matrices, two along m or n and two along k. `mma` wants them in the order m first for A, k
//! first for B. What runs along the rows of the tile decides which lanes give which row.

use cuda_std::ptx::ldmatrix;
use cuda_std::shared::SharedAddr;
use layout::Swizzle;
use layout::descriptor::Major;
use variants::gemm::CHUNK_BYTES;

use crate::work::lane;

/// Which operand a tile is of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    A,
    B,
}

/// How a tile lies; all of it is known at compile time.
#[derive(Clone, Copy)]
pub(crate) struct TileShape {
    pub(crate) side: Side,
    pub(crate) major: Major,
    pub(crate) swizzle: Swizzle,
    /// Rows of k in a panel of a tile with contiguous m or n.
    pub(crate) k: u32,
    /// Bytes of an element.
    pub(crate) element_bytes: u32,
}

/// Rows of a fragment along m or n.
const FRAGMENT_ROWS: u32 = 16;
/// Bytes of k of a fragment.
const STEP_BYTES: u32 = 32;

/// The fragments of one warp, as one lane reads them.
#[derive(Clone, Copy)]
pub(crate) struct Fragments {
    shape: TileShape,
    /// Offset of the lane's row from the start of a stage.
    row_bytes: u32,
    /// Offset of the lane's chunk in its row, swizzled.
    chunk_bytes: u32,
}

impl Fragments {
    /// Those of the warp whose first m or n is `warp_mn`.
    #[inline(always)]
    pub(crate) fn new(shape: TileShape, warp_mn: u32) -> Self {
        let lane = lane();
        let rows_first = matches!((shape.side, shape.major), (Side::A, Major::K) | (Side::B, Major::Mn));
        let (second_row, chunk) = if rows_first { (lane / 8 % 2, lane / 16) } else { (lane / 16, lane / 8 % 2) };
        let pitch = shape.swizzle.row_bytes();
        let in_tile = (lane % 8 + second_row * 8) * pitch;
        let swizzled = shape.swizzle.apply(in_tile) ^ in_tile ^ (chunk * CHUNK_BYTES as u32);
        let (row_bytes, chunk_bytes) = match shape.major {
            Major::K => (in_tile + warp_mn * pitch, swizzled),
            Major::Mn => {
                let start = warp_mn * shape.element_bytes;
                (in_tile + start / pitch * shape.k * pitch, swizzled ^ (start % pitch))
            }
        };
        Self { shape, row_bytes, chunk_bytes }
    }

    /// Fragment `index` of the warp along m or n at `step` along k, of the stage that starts at `stage`.
    ///
    /// # Safety
    /// All lanes of the warp call it together; the stage is written and visible.
    #[inline(always)]
    pub(crate) unsafe fn load(self, stage: SharedAddr, index: u32, step: u32) -> [u32; 4] {
        let pitch = self.shape.swizzle.row_bytes();
        // A step along the contiguous dimension starts at an even chunk, to which the lane's chunk (0 or 1) is added:
        // an XOR, as the swizzle is.
        let row = stage.offset(self.row_bytes);
        // SAFETY: the caller's contract; each address is the start of a chunk of the tile.
        unsafe {
            match self.shape.major {
                Major::K => {
                    let chunk = self.chunk_bytes ^ (step * STEP_BYTES);
                    ldmatrix::x4(row.offset(chunk).offset(index * FRAGMENT_ROWS * pitch))
                }
                Major::Mn => {
                    let start = index * FRAGMENT_ROWS * self.shape.element_bytes;
                    let chunk = self.chunk_bytes ^ (start % pitch);
                    let panel = start / pitch * self.shape.k * pitch;
                    ldmatrix::x4_trans(row.offset(chunk).offset(panel + step * FRAGMENT_ROWS * pitch))
                }
            }
        }
    }
}
