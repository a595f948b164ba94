//! Tiles of 16-bit elements in shared memory: panels `[columns / 64][rows][64]` with the 128-byte swizzle.
//!
//! A row of a panel is 128 bytes, eight 16-byte chunks. Chunk c of row r lies at place c ^ (r % 8). The eight rows of
//! one `ldmatrix` operand then touch all 32 banks once, and so do the eight chunks of a row as they are copied in.

use cuda_std::ptx::ldmatrix;
use cuda_std::shared::SharedAddr;
use variants::attention::TILE_SWIZZLE;

use crate::lane::lane;

/// Elements of one 16-byte chunk.
pub(crate) const CHUNK_ELEMS: usize = 8;
/// Bytes of one chunk.
pub(crate) const CHUNK_BYTES: u32 = 16;
/// Bytes of one row of a panel.
pub(crate) const PANEL_ROW_BYTES: u32 = TILE_SWIZZLE.row_bytes();
/// Chunks of one row of a panel.
pub(crate) const PANEL_CHUNKS: usize = (PANEL_ROW_BYTES / CHUNK_BYTES) as usize;
/// 16-column tiles of one panel.
const PANEL_TILES: usize = PANEL_ROW_BYTES as usize / 32;

/// Byte offset of a 16-byte chunk in a tile of `rows` rows.
#[inline(always)]
pub fn chunk_offset(rows: usize, row: u32, chunk: u32) -> u32 {
    TILE_SWIZZLE.tile_offset(row, chunk * CHUNK_BYTES, rows as u32)
}

/// The 16x16 fragments of a tile, as one lane reads them with `ldmatrix.x4`.
///
/// The four 8x8 matrices of a fragment are its quarters in the order of the registers that the operand wants: A (and V,
/// which is transposed on the way) takes rows first, B takes columns first.
///
/// It is made anew at each use of a tile: addresses held through the loop over the keys would take a quarter of the
/// registers.
#[derive(Clone, Copy)]
pub(crate) struct Fragments {
    /// The lane's row in the first panel.
    row: SharedAddr,
    /// Offset of the lane's chunk in its row, already XORed with the row.
    chunk_bytes: u32,
    /// Rows of the tile.
    rows: usize,
}

impl Fragments {
    /// Quarters in the order (rows 0-7, chunk 0), (rows 8-15, chunk 0), (rows 0-7, chunk 1), (rows 8-15, chunk 1).
    #[inline(always)]
    pub(crate) fn rows_first(tile: SharedAddr, rows: usize) -> Self {
        let lane = lane();
        Self::new(tile, rows, lane % 8 + (lane / 8 % 2) * 8, lane / 16)
    }

    /// Quarters in the order (rows 0-7, chunk 0), (rows 0-7, chunk 1), (rows 8-15, chunk 0), (rows 8-15, chunk 1).
    #[inline(always)]
    pub(crate) fn columns_first(tile: SharedAddr, rows: usize) -> Self {
        let lane = lane();
        Self::new(tile, rows, lane % 8 + (lane / 16) * 8, lane / 8 % 2)
    }

    #[inline(always)]
    fn new(tile: SharedAddr, rows: usize, row: u32, chunk: u32) -> Self {
        Self { row: tile.offset(row * PANEL_ROW_BYTES), chunk_bytes: (chunk ^ (row % 8)) * CHUNK_BYTES, rows }
    }

    /// Address of this lane's part of the fragment whose rows start at `16 * row_tile` and columns at
    /// `16 * column_tile`.
    #[inline(always)]
    fn address(self, row_tile: usize, column_tile: usize) -> SharedAddr {
        let panel_row = (column_tile / PANEL_TILES * self.rows + row_tile * 16) as u32;
        // A 16-column tile starts at an even chunk, to which the lane's chunk (0 or 1) is added: an XOR, as the swizzle
        // is.
        let chunk_bytes = ((column_tile % PANEL_TILES * 2) as u32 * CHUNK_BYTES) ^ self.chunk_bytes;
        self.row.offset(chunk_bytes).offset(panel_row * PANEL_ROW_BYTES)
    }

    /// A fragment as it lies.
    ///
    /// # Safety
    /// All lanes of the warp call it together; the tile is written and visible.
    #[inline(always)]
    pub(crate) unsafe fn load(self, row_tile: usize, column_tile: usize) -> [u32; 4] {
        // SAFETY: the caller's contract; each address is the start of a 16-byte chunk.
        unsafe { ldmatrix::x4(self.address(row_tile, column_tile)) }
    }

    /// A fragment with each quarter transposed.
    ///
    /// # Safety
    /// As [`Self::load`].
    #[inline(always)]
    pub(crate) unsafe fn load_transposed(self, row_tile: usize, column_tile: usize) -> [u32; 4] {
        // SAFETY: the caller's contract; each address is the start of a 16-byte chunk.
        unsafe { ldmatrix::x4_trans(self.address(row_tile, column_tile)) }
    }
}
