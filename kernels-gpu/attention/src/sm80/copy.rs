//! Copies of the rows of a tensor to a tile in shared memory, by all threads of a block.

use cuda_std::hint::opaque;
use cuda_std::ptx::cp_async;
use cuda_std::shared::SharedAddr;
use cuda_std::{global, thread};
use variants::attention::TileCopy;

use crate::tile::{CHUNK_BYTES, CHUNK_ELEMS, PANEL_CHUNKS, PANEL_ROW_BYTES, chunk_offset};

/// The bits of an element of a tensor.
pub trait ElementBits: Copy {
    /// A chunk of 16 bytes from an address that is aligned to one element, of which the first `bytes` are there; the
    /// others are zeros.
    ///
    /// # Safety
    /// So many bytes are readable global memory.
    unsafe fn gather(source: *const Self, bytes: u32) -> [u32; 4];
}

impl ElementBits for u16 {
    #[inline(always)]
    unsafe fn gather(source: *const u16, _bytes: u32) -> [u32; 4] {
        core::array::from_fn(|word| {
            // SAFETY: the caller's contract; rows are whole chunks.
            let [low, high] = [0, 1].map(|half| unsafe { global::load(source.wrapping_add(2 * word + half)) });
            u32::from(low) | u32::from(high) << 16
        })
    }
}

impl ElementBits for u8 {
    #[inline(always)]
    unsafe fn gather(source: *const u8, bytes: u32) -> [u32; 4] {
        core::array::from_fn(|word| {
            // Rows are whole halves of chunks.
            let is_there = 8 * (word as u32 / 2) < bytes;
            let byte = |index: usize| {
                // SAFETY: the caller's contract.
                if is_there { u32::from(unsafe { global::load(source.wrapping_add(4 * word + index)) }) } else { 0 }
            };
            byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24
        })
    }
}

/// Rows of a global tensor, for copies into a tile.
#[derive(Clone, Copy)]
pub(crate) struct Rows<T> {
    pub(crate) base: *const T,
    /// Elements from one row to the next.
    pub(crate) stride: i64,
    /// Rows there are; those beyond are zeros in the tile.
    pub(crate) len: u32,
    /// Columns there are, a multiple of 8; those beyond are zeros in the tile.
    pub(crate) columns: u32,
    /// Whether every row starts on a 16-byte boundary and is whole chunks.
    pub(crate) aligned: bool,
}

impl<T: ElementBits> Rows<T> {
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
        // SAFETY: the caller's contract.
        unsafe {
            if self.aligned {
                let pair = const { size_of::<u16>() / size_of::<T>() };
                self.in_pairs().copy_aligned(tile, first_row, rows, columns / pair, threads, copy);
            } else {
                self.gather_to_tile(tile, first_row, rows, columns);
            }
        }
    }

    /// The same rows as elements of 16 bits: whole chunks on 16-byte boundaries, whatever is in them.
    #[inline(always)]
    fn in_pairs(self) -> Rows<u16> {
        let pair = const { size_of::<u16>() / size_of::<T>() };
        let Rows { base, stride, len, columns, aligned } = self;
        Rows { base: base.cast(), stride: stride / pair as i64, len, columns: columns / pair as u32, aligned }
    }

    /// As [`Self::copy_to_tile`], for rows that start anywhere. The loop takes its step from the launch, so that LLVM
    /// does not unroll it: this path is for correctness, and unrolled it would be most of the kernel's code.
    ///
    /// # Safety
    /// As [`Self::copy_to_tile`].
    #[inline(always)]
    unsafe fn gather_to_tile(self, tile: SharedAddr, first_row: u32, rows: usize, columns: usize) {
        let chunk_elems = const { CHUNK_BYTES / size_of::<T>() as u32 };
        let row_chunks = columns as u32 / chunk_elems;
        let mut index = opaque(thread::thread_idx_x());
        while index < rows as u32 * row_chunks {
            let (row, column) = (index / row_chunks, index % row_chunks * chunk_elems);
            let inside = column < self.columns && first_row + row < self.len;
            // SAFETY: the chunk is inside the tensor where it is read.
            unsafe {
                let source = self.base.wrapping_offset((i64::from(first_row + row) * self.stride) as isize);
                // The last chunk of a row of 8-bit elements may be half a chunk.
                let left = self.columns.wrapping_sub(column).wrapping_mul(size_of::<T>() as u32);
                let words = if inside {
                    T::gather(source.wrapping_add(column as usize), left.min(CHUNK_BYTES))
                } else {
                    [0; 4]
                };
                tile.offset(chunk_offset(rows, row, index % row_chunks)).store(words);
            }
            index += thread::block_dim_x();
        }
    }
}

impl Rows<u16> {
    /// As [`Self::copy_to_tile`], for rows that start on 16-byte boundaries.
    ///
    /// # Safety
    /// As [`Self::copy_to_tile`].
    #[inline(always)]
    unsafe fn copy_aligned(
        self,
        tile: SharedAddr,
        first_row: u32,
        rows: usize,
        columns: usize,
        threads: u32,
        copy: TileCopy,
    ) {
        // In each panel a thread copies one chunk of every `step_rows`-th row. That is a multiple of the 8 rows after
        // which the swizzle repeats, so the destinations are constant distances apart, which the instructions hold.
        let panel_chunks = PANEL_CHUNKS as u32;
        let step_rows = threads / panel_chunks;
        // Opaque: found anew at each copy, it takes no registers between copies.
        let thread = opaque(thread::thread_idx_x());
        let (thread_row, thread_chunk) = (thread / panel_chunks, thread % panel_chunks);
        let destination = tile.offset(chunk_offset(rows, thread_row, thread_chunk));
        let row_chunks = (columns / CHUNK_ELEMS) as u32;
        for panel in 0..row_chunks.div_ceil(panel_chunks) {
            let chunk = panel * panel_chunks + thread_chunk;
            if !row_chunks.is_multiple_of(panel_chunks) && chunk >= row_chunks {
                continue;
            }
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

    /// Address of a chunk of a row.
    #[inline(always)]
    fn chunk(self, row: u32, chunk: u32) -> *const u16 {
        self.base.wrapping_offset((i64::from(row) * self.stride) as isize).wrapping_add(chunk as usize * CHUNK_ELEMS)
    }
}
