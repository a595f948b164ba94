//! Tiles of 16-bit elements in shared memory: panels `[columns / 64][rows][64]` with the 128-byte swizzle.
//!
//! A row of a panel is 128 bytes, eight 16-byte chunks. Chunk c of row r lies at place c ^ (r % 8). The eight rows of
//! one `ldmatrix` operand then touch all 32 banks once, and so do the eight chunks of a row as they are copied in.

use cuda_std::convert::Element16;
use cuda_std::hint::opaque;
use cuda_std::ptx::{cp_async, ldmatrix, mma};
use cuda_std::shared::SharedAddr;
use cuda_std::{global, thread};
use variants::attention::{TILE_SWIZZLE, TileCopy};

use crate::work::lane;

/// Elements of one 16-byte chunk.
pub(crate) const CHUNK_ELEMS: usize = 8;
/// Bytes of one chunk.
const CHUNK_BYTES: u32 = 16;
/// Bytes of one row of a panel.
const PANEL_ROW_BYTES: u32 = TILE_SWIZZLE.row_bytes();
/// Chunks of one row of a panel.
pub(crate) const PANEL_CHUNKS: usize = (PANEL_ROW_BYTES / CHUNK_BYTES) as usize;
/// 16-column tiles of one panel.
const PANEL_TILES: usize = PANEL_ROW_BYTES as usize / 32;

/// Rows of a global tensor, for copies into a tile.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) base: *const u16,
    /// Elements from one row to the next.
    pub(crate) stride: i64,
    /// Rows there are; those beyond are zeros in the tile.
    pub(crate) len: u32,
    /// Columns there are, a multiple of 8; those beyond are zeros in the tile.
    pub(crate) columns: u32,
    /// Whether every row starts on a 16-byte boundary.
    pub(crate) aligned: bool,
}

/// Byte offset of a 16-byte chunk in a tile of `rows` rows.
#[inline(always)]
pub(crate) fn chunk_offset(rows: usize, row: u32, chunk: u32) -> u32 {
    TILE_SWIZZLE.tile_offset(row, chunk * CHUNK_BYTES, rows as u32)
}

impl Rows {
    /// Copies the rows from `first_row` on into a tile of `rows` rows by `columns` columns, with all `threads` threads
    /// of the block. An asynchronous copy is complete after its group was waited for; any copy is visible to other
    /// threads after a barrier.
    ///
    /// # Safety
    /// All threads of the block call it; the tile is theirs to write; `first_row` is inside the tensor.
    #[inline(always)]
    pub(crate) unsafe fn copy_to_tile(
        self,
        tile: SharedAddr,
        first_row: u32,
        rows: usize,
        columns: usize,
        threads: u32,
        copy: TileCopy,
    ) {
        if !self.aligned {
            // SAFETY: the caller's contract.
            return unsafe { self.gather_to_tile(tile, first_row, rows, columns) };
        }
        // In each panel a thread copies one chunk of every `step_rows`-th row. That is a multiple of the 8 rows after
        // which the swizzle repeats, so the destinations are constant distances apart, which the instructions hold.
        let panel_chunks = PANEL_CHUNKS as u32;
        let step_rows = threads / panel_chunks;
        // Opaque: found anew at each copy, it takes no registers between copies.
        let thread = opaque(thread::thread_idx_x());
        let (thread_row, thread_chunk) = (thread / panel_chunks, thread % panel_chunks);
        let destination = tile.offset(chunk_offset(rows, thread_row, thread_chunk));
        for panel in 0..(columns / CHUNK_ELEMS) as u32 / panel_chunks {
            let chunk = panel * panel_chunks + thread_chunk;
            let mut next_source = self.chunk(first_row + thread_row, chunk);
            for step in 0..rows as u32 / step_rows {
                let inside =
                    chunk * (CHUNK_ELEMS as u32) < self.columns && first_row + thread_row + step * step_rows < self.len;
                let source = next_source;
                next_source = next_source.wrapping_offset((i64::from(step_rows) * self.stride) as isize);
                let destination = destination.offset((panel * rows as u32 + step * step_rows) * PANEL_ROW_BYTES);
                // SAFETY: `source` starts a chunk of the tensor, which is read, or lies outside, and nothing is read.
                unsafe {
                    if let TileCopy::Async = copy {
                        cp_async::cg_16(destination, source, if inside { 16 } else { 0 });
                    } else {
                        destination.store(if inside { global::load(source.cast::<[u32; 4]>()) } else { [0u32; 4] });
                    }
                }
            }
        }
    }

    /// As [`Self::copy_to_tile`], for rows that start anywhere. The loop takes its step from the launch, so that LLVM
    /// does not unroll it: this path is for correctness, and unrolled it would be most of the kernel's code.
    ///
    /// # Safety
    /// As [`Self::copy_to_tile`].
    #[inline(always)]
    unsafe fn gather_to_tile(self, tile: SharedAddr, first_row: u32, rows: usize, columns: usize) {
        let row_chunks = (columns / CHUNK_ELEMS) as u32;
        let mut index = opaque(thread::thread_idx_x());
        while index < rows as u32 * row_chunks {
            let (row, chunk) = (index / row_chunks, index % row_chunks);
            let inside = chunk * (CHUNK_ELEMS as u32) < self.columns && first_row + row < self.len;
            // SAFETY: the chunk is inside the tensor where it is read.
            unsafe {
                let words = if inside { gather_chunk(self.chunk(first_row + row, chunk)) } else { [0; 4] };
                tile.offset(chunk_offset(rows, row, chunk)).store(words);
            }
            index += thread::block_dim_x();
        }
    }

    /// Address of a chunk of a row.
    #[inline(always)]
    fn chunk(self, row: u32, chunk: u32) -> *const u16 {
        self.base.wrapping_offset((i64::from(row) * self.stride) as isize).wrapping_add(chunk as usize * CHUNK_ELEMS)
    }
}

/// Eight elements from an address that is aligned to two bytes only.
///
/// # Safety
/// The eight elements are readable global memory.
#[inline(always)]
pub(crate) unsafe fn gather_chunk(source: *const u16) -> [u32; 4] {
    core::array::from_fn(|word| {
        // SAFETY: the caller's contract.
        let [low, high] = [0, 1].map(|half| unsafe { global::load(source.wrapping_add(2 * word + half)) });
        u32::from(low) | u32::from(high) << 16
    })
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

/// Adds the product of two 16x16 fragments, `A B + C`: two `mma` m16n8k16 side by side, each with two registers of B
/// and four accumulators.
///
/// # Safety
/// All lanes of the warp call it together.
#[inline(always)]
pub(crate) unsafe fn multiply<E: Element16>(a: [u32; 4], b: [u32; 4], c: [f32; 8]) -> [f32; 8] {
    let ([b0, b1, b2, b3], [c0, c1, c2, c3, c4, c5, c6, c7]) = (b, c);
    // SAFETY: the caller's contract.
    let (left, right) = unsafe {
        (mma::m16n8k16::<E>(a, [b0, b1], [c0, c1, c2, c3]), mma::m16n8k16::<E>(a, [b2, b3], [c4, c5, c6, c7]))
    };
    let ([d0, d1, d2, d3], [d4, d5, d6, d7]) = (left, right);
    [d0, d1, d2, d3, d4, d5, d6, d7]
}

/// Writes two elements of configuration `id`, columns `column` (even) and the next, packed.
///
/// # Safety
/// The place is this thread's to write.
#[inline(always)]
pub(crate) unsafe fn store_pair<E: Element16>(tile: SharedAddr, rows: usize, row: u32, column: u32, pair: [f32; 2]) {
    let offset = chunk_offset(rows, row, column / CHUNK_ELEMS as u32) + column % CHUNK_ELEMS as u32 * 2;
    // SAFETY: the caller's contract; an even column is 4-byte aligned.
    unsafe { tile.offset(offset).store(E::pack(pair[0], pair[1])) }
}
