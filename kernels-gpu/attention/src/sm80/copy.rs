//! Copies of the rows of a tensor to a tile in shared memory, by all threads of a block.

use cuda_std::hint::opaque;
use cuda_std::ptx::cp_async;
use cuda_std::shared::SharedAddr;
use cuda_std::{global, thread};
use variants::attention::TileCopy;

use crate::tile::{CHUNK_ELEMS, PANEL_CHUNKS, PANEL_ROW_BYTES, chunk_offset};

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
