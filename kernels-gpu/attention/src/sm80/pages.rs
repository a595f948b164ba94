//! Where the keys of one batch entry lie, one after the other or in pages, and how one warp copies 16 of these keys.

use cuda_std::global;
use cuda_std::ptx::cp_async;
use cuda_std::shared::SharedAddr;
use variants::attention::{AttentionArgs, AttentionStrides, DECODE_KEYS, DecodeArgs, TILE_SWIZZLE};

use crate::lane::{div_rem, lane, warp_uniform};
use crate::sm80::copy::gather_chunk;
use crate::tile::{CHUNK_ELEMS, chunk_offset};

/// Rows of a tile that a warp copies at a time: each takes 8 lanes, a chunk of a panel each.
const COPY_ROWS: u32 = 4;
/// Chunks of a row of a panel.
const PANEL_CHUNKS: u32 = TILE_SWIZZLE.row_bytes() / (2 * CHUNK_ELEMS as u32);

/// The pages of one batch entry. Keys that follow each other without pages are one page.
#[derive(Clone, Copy)]
pub(crate) struct Pages {
    /// The entry's row of the block table; null for one page.
    table: *const u32,
    /// The only page, for one.
    page: u32,
    /// Keys of a page.
    page_len: u32,
    /// Pages that there are.
    count: u32,
}

/// 16 keys of one page.
#[derive(Clone, Copy)]
pub(crate) struct PageSlot {
    /// The page; it need not exist.
    page: u32,
    /// The first key in it.
    row: u32,
}

impl PageSlot {
    /// Where no step lies.
    pub(crate) const NONE: Self = Self { page: u32::MAX, row: 0 };
}

impl Pages {
    /// The pages of batch entry `batch`.
    #[inline(always)]
    pub(crate) fn new(decode: &DecodeArgs, batch: u32) -> Self {
        if decode.table == 0 {
            return Self { table: core::ptr::null(), page: batch, page_len: 0, count: u32::MAX };
        }
        let table = (decode.table as *const u32).wrapping_offset((i64::from(batch) * decode.table_stride) as isize);
        Self { table, page: 0, page_len: decode.page_len, count: decode.pages }
    }

    /// Where step `step` of [`DECODE_KEYS`] keys lies.
    ///
    /// # Safety
    /// The step has keys of the batch entry, so that its block table is that long.
    #[inline(always)]
    pub(crate) unsafe fn place(self, step: u32) -> PageSlot {
        let key = step * DECODE_KEYS as u32;
        if self.table.is_null() {
            return PageSlot { page: self.page, row: key };
        }
        let (index, row) = div_rem(key, self.page_len);
        // SAFETY: the caller's contract.
        PageSlot { page: unsafe { global::load(self.table.wrapping_add(index as usize)) }, row }
    }

    /// The place that the first lane of the warp has: the block table may be written meanwhile. Not where the entry is
    /// loaded, which would wait for it, but where it is used.
    ///
    /// # Safety
    /// All lanes of the warp call it together.
    #[inline(always)]
    pub(crate) unsafe fn warp_uniform(self, place: PageSlot) -> PageSlot {
        if self.table.is_null() {
            return place;
        }
        // SAFETY: the caller's contract.
        PageSlot { page: unsafe { warp_uniform(place.page) }, row: place.row }
    }

    /// Whether the block table names a page that there is.
    #[inline(always)]
    pub(crate) fn has(self, place: PageSlot) -> bool {
        place.page < self.count
    }
}

/// K or V of one key-value head.
#[derive(Clone, Copy)]
pub(crate) struct KeyRows {
    /// This lane's chunk of the first row of the first page.
    chunk: *const u16,
    /// Elements from one page to the next.
    page_stride: i64,
    /// Elements from one row to the next.
    row_stride: i64,
    columns: u32,
    aligned: bool,
}

impl KeyRows {
    /// The rows of `columns` elements of head `kv_head` of K or V at `base`, for this lane.
    #[inline(always)]
    pub(crate) fn new(args: &AttentionArgs, base: u64, strides: &AttentionStrides, kv_head: u32, columns: u32) -> Self {
        let lane = lane();
        let row = i64::from(kv_head) * strides.head + i64::from(lane / PANEL_CHUNKS) * strides.row;
        Self {
            chunk: (base as *const u16)
                .wrapping_offset(row as isize)
                .wrapping_add((lane % PANEL_CHUNKS) as usize * CHUNK_ELEMS),
            page_stride: strides.batch,
            row_stride: strides.row,
            columns,
            aligned: args.inputs_aligned != 0,
        }
    }

    /// Copies the first `len` of [`DECODE_KEYS`] rows at `place` into a tile of `columns` columns; the others, and the
    /// columns beyond those there are, become zeros. An asynchronous copy is complete after its group was waited for,
    /// and all are visible to the other lanes after a barrier of the warp.
    ///
    /// # Safety
    /// All lanes of the warp call it together; the tile is the warp's to write; `len` is 0 or the rows are there.
    #[inline(always)]
    pub(crate) unsafe fn copy_to_tile(self, tile: SharedAddr, place: PageSlot, len: u32, columns: usize) {
        let lane = lane();
        let (lane_row, lane_chunk) = (lane / PANEL_CHUNKS, lane % PANEL_CHUNKS);
        let start = i64::from(place.page) * self.page_stride + i64::from(place.row) * self.row_stride;
        let first = self.chunk.wrapping_offset(start as isize);
        for step in 0..DECODE_KEYS as u32 / COPY_ROWS {
            let row = lane_row + step * COPY_ROWS;
            let source_row = first.wrapping_offset((i64::from(step * COPY_ROWS) * self.row_stride) as isize);
            for panel in 0..(columns / CHUNK_ELEMS) as u32 / PANEL_CHUNKS {
                let chunk = panel * PANEL_CHUNKS + lane_chunk;
                let inside = row < len && chunk * (CHUNK_ELEMS as u32) < self.columns;
                let source = source_row.wrapping_add((panel * PANEL_CHUNKS) as usize * CHUNK_ELEMS);
                let destination = tile.offset(chunk_offset(DECODE_KEYS, row, chunk));
                // SAFETY: `source` starts a chunk of a row that is there, or nothing is read.
                unsafe {
                    if self.aligned {
                        cp_async::cg_16(destination, source, if inside { 16 } else { 0 });
                    } else {
                        destination.store(if inside { gather_chunk(source) } else { [0u32; 4] });
                    }
                }
            }
        }
    }
}
