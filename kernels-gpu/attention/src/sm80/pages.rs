//! Where the keys of one batch entry lie, one after the other or in pages, and how one warp copies 16 of these keys.

use cuda_std::global;
use cuda_std::hint::opaque;
use cuda_std::ptx::cp_async;
use cuda_std::shared::SharedAddr;
use layout::Swizzle;
use variants::attention::{AttentionArgs, AttentionStrides, DECODE_KEYS, DecodeArgs};

use crate::lane::{LANES, div_rem, lane, warp_uniform};
use crate::sm80::copy::ElementBits;
use crate::tile::CHUNK_BYTES;

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

/// K or V of one key-value head, in tiles of this swizzle: a warp copies some rows of a panel at a time, and each lane
/// one chunk of them.
#[derive(Clone, Copy)]
pub(crate) struct KeyRows<T> {
    /// This lane's chunk of the first row of the first page.
    chunk: *const T,
    /// Elements from one page to the next.
    page_stride: i64,
    /// Elements from one row to the next.
    row_stride: i64,
    columns: u32,
    aligned: bool,
    swizzle: Swizzle,
}

impl<T: ElementBits> KeyRows<T> {
    /// Elements of a chunk.
    const CHUNK_ELEMS: u32 = CHUNK_BYTES / size_of::<T>() as u32;

    /// The rows of `columns` elements of head `kv_head` of K or V at `base`, for this lane.
    #[inline(always)]
    pub(crate) fn new(
        args: &AttentionArgs,
        (base, strides): (u64, &AttentionStrides),
        kv_head: u32,
        columns: u32,
        swizzle: Swizzle,
    ) -> Self {
        let (lane, panel_chunks) = (lane(), swizzle.row_bytes() / CHUNK_BYTES);
        let row = i64::from(kv_head) * strides.head + i64::from(lane / panel_chunks) * strides.row;
        Self {
            chunk: (base as *const T)
                .wrapping_offset(row as isize)
                .wrapping_add((lane % panel_chunks) as usize * Self::CHUNK_ELEMS as usize),
            page_stride: strides.batch,
            row_stride: strides.row,
            columns,
            aligned: args.inputs_aligned != 0,
            swizzle,
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
        let steps = DECODE_KEYS as u32 / self.copy_rows();
        // SAFETY: a source starts a chunk of a row that is there, or nothing is read.
        let start_copy = |to: SharedAddr, from: *const T, inside: bool, bytes: u32| unsafe {
            cp_async::cg_16(to, from, if inside { bytes } else { 0 });
        };
        // SAFETY: as above.
        let copy = |to: SharedAddr, from: *const T, inside: bool, bytes: u32| unsafe {
            to.store(if inside { T::gather(from, bytes) } else { [0u32; 4] });
        };
        if size_of::<T>() == 1 {
            // Two loops: a step has half as many bytes for its instructions as one of 16-bit elements. The loop of
            // unaligned rows stays one.
            if self.aligned {
                self.for_each_chunk(tile, place, len, columns, steps, start_copy);
            } else {
                self.for_each_chunk(tile, place, len, columns, opaque(steps), copy);
            }
        } else {
            self.for_each_chunk(tile, place, len, columns, steps, |to, from, inside, bytes| {
                if self.aligned { start_copy(to, from, inside, bytes) } else { copy(to, from, inside, bytes) }
            });
        }
    }

    /// Rows of a tile that a warp copies at a time: a lane a chunk of a panel.
    #[inline(always)]
    fn copy_rows(&self) -> u32 {
        LANES * CHUNK_BYTES / self.swizzle.row_bytes()
    }

    /// Calls `copy` for each chunk of this lane: where it goes, where it starts, whether any of it is there, and then
    /// how many bytes.
    #[inline(always)]
    fn for_each_chunk(
        self,
        tile: SharedAddr,
        place: PageSlot,
        len: u32,
        columns: usize,
        steps: u32,
        copy: impl Fn(SharedAddr, *const T, bool, u32),
    ) {
        let (lane, panel_chunks, copy_rows) = (lane(), self.swizzle.row_bytes() / CHUNK_BYTES, self.copy_rows());
        let (lane_row, lane_chunk) = (lane / panel_chunks, lane % panel_chunks);
        let start = i64::from(place.page) * self.page_stride + i64::from(place.row) * self.row_stride;
        let first = self.chunk.wrapping_offset(start as isize);
        for step in 0..steps {
            let row = lane_row + step * copy_rows;
            let source_row = first.wrapping_offset((i64::from(step * copy_rows) * self.row_stride) as isize);
            for panel in 0..columns as u32 / Self::CHUNK_ELEMS / panel_chunks {
                let chunk = panel * panel_chunks + lane_chunk;
                let inside = row < len && chunk * Self::CHUNK_ELEMS < self.columns;
                // Rows of 8-bit elements may end with half a chunk.
                let bytes = if size_of::<T>() == 1 {
                    self.columns.wrapping_sub(chunk * Self::CHUNK_ELEMS).min(CHUNK_BYTES)
                } else {
                    CHUNK_BYTES
                };
                let source = source_row.wrapping_add((panel * panel_chunks * Self::CHUNK_ELEMS) as usize);
                let offset = self.swizzle.tile_offset(row, chunk * CHUNK_BYTES, DECODE_KEYS as u32);
                copy(tile.offset(offset), source, inside, bytes);
            }
        }
    }
}
