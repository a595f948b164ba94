//! Copies of the rows of a tensor to a tile in shared memory, by all threads of a block.
//!
//! ```text
//! let held = T::fetch(rows, tile, first_row, &shape);   // `cp.async`, or loads into registers
//! ..                                                    // products, while the copy is on its way
//! T::place(rows, held, tile, first_row, &shape);        // nothing, or stores of what the loads have brought
//! ```
//!
//! Elements that are others in a tile, as 8-bit integers are, pass through registers. All others take the first step
//! alone.

use cuda_std::convert::{fma_f16x2, permute_bytes};
use cuda_std::hint::opaque;
use cuda_std::ptx::cp_async;
use cuda_std::shared::SharedAddr;
use cuda_std::{global, thread};
use variants::attention::{TileCopy, U8_TILE_FACTOR, U8_TILE_OFFSET};

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
pub struct Rows<T> {
    pub(crate) base: *const T,
    /// Elements from one row to the next.
    pub(crate) stride: i64,
    /// Rows there are; those beyond are zeros in the tile, or what [`TileShape::pads`] says.
    pub(crate) len: u32,
    /// Columns there are, a multiple of 8; those beyond are zeros in the tile, or what [`TileShape::pads`] says.
    pub(crate) columns: u32,
    /// Whether every row starts on a 16-byte boundary and is whole chunks; of 8-bit integers, whether it starts on a
    /// boundary of 8 bytes.
    pub(crate) aligned: bool,
}

/// A tile, and how a block fills it.
#[derive(Clone, Copy)]
pub struct TileShape {
    /// Rows of the tile.
    pub(crate) rows: usize,
    /// Columns of the tile.
    pub(crate) columns: usize,
    /// Threads of the block.
    pub(crate) threads: u32,
    /// How elements of 16 bits, and of E4M3, are copied.
    pub(crate) copy: TileCopy,
    /// Whether rows and columns that the tensor has not must be zeros. Of two tiles that are multiplied along their
    /// columns, one needs zeros beside its columns; the other may have any finite numbers there. Scores of query rows
    /// that there are not must not be large, because a warp treats all of its rows alike then.
    pub(crate) pads: bool,
}

/// The elements of a tensor whose rows are copied to tiles.
pub trait TileElement: Copy {
    /// Bytes of an element in a tile.
    const TILE_BYTES: usize;
    /// Whether [`Self::place`] has something to do.
    const IS_HELD: bool;
    /// What a thread holds of a copy that is on its way.
    type Held: Copy;
    /// What it holds without a copy.
    const NOTHING: Self::Held;

    /// Starts to copy the rows from `first_row` on into a tile, with all threads of the block. What is not held is
    /// complete as `Rows::copy_to_tile` says.
    ///
    /// # Safety
    /// All threads of the block call it; `first_row` is inside the tensor; the tile is theirs to write, unless copies
    /// are held.
    unsafe fn fetch(rows: Rows<Self>, tile: SharedAddr, first_row: u32, shape: &TileShape) -> Self::Held;

    /// Writes what [`Self::fetch`] of the same arguments has left to do. It is visible to other threads after a
    /// barrier.
    ///
    /// # Safety
    /// As [`Self::fetch`]; the tile is theirs to write.
    unsafe fn place(rows: Rows<Self>, held: Self::Held, tile: SharedAddr, first_row: u32, shape: &TileShape);
}

impl<T: ElementBits> TileElement for T {
    const TILE_BYTES: usize = size_of::<T>();
    const IS_HELD: bool = false;
    type Held = ();
    const NOTHING: () = ();

    #[inline(always)]
    unsafe fn fetch(rows: Rows<T>, tile: SharedAddr, first_row: u32, shape: &TileShape) {
        // SAFETY: the caller's contract.
        unsafe { rows.copy_to_tile(tile, first_row, shape.rows, shape.columns, shape.threads, shape.copy) };
    }

    #[inline(always)]
    unsafe fn place(_rows: Rows<T>, _held: (), _tile: SharedAddr, _first_row: u32, _shape: &TileShape) {}
}

/// An 8-bit integer q, which is `(q - 127.5) * 2^-9` as an f16 in a tile.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct WidenedByte(u8);

impl WidenedByte {
    /// The most chunks of a tile that a thread fills.
    const MAX_CHUNKS: usize = 8;

    /// Eight integers as a chunk of a tile.
    ///
    /// The bits of q are those of the subnormal f16 `q * 2^-24`. A product with 2^15 and the sum with `-127.5 * 2^-9`
    /// are exact, and one instruction for two elements.
    #[inline(always)]
    fn widen(bytes: [u32; 2]) -> [u32; 4] {
        let pair = |bits: u16| u32::from(bits) | u32::from(bits) << 16;
        let mut words = [0; 4];
        for index in 0..words.len() {
            let subnormal = permute_bytes(bytes[index / 2], 0, if index % 2 == 0 { 0x4140 } else { 0x4342 });
            words[index] = fma_f16x2(subnormal, pair(U8_TILE_FACTOR), pair(U8_TILE_OFFSET));
        }
        words
    }

    /// Calls `chunk` for each chunk of a tile that this thread fills: with its number, its row, its first column, and
    /// where it is.
    ///
    /// In each panel a thread has one chunk of every so many rows, whole periods of the swizzle, as
    /// [`Rows::copy_aligned`] has it.
    #[inline(always)]
    fn for_each_chunk(tile: SharedAddr, shape: &TileShape, mut chunk: impl FnMut(usize, u32, u32, SharedAddr)) {
        let panel_chunks = PANEL_CHUNKS as u32;
        let step_rows = shape.threads / panel_chunks;
        // Opaque: found anew at each copy, it takes no registers between copies.
        let thread = opaque(thread::thread_idx_x());
        let (row, column_chunk) = (thread / panel_chunks, thread % panel_chunks);
        let first = tile.offset(chunk_offset(shape.rows, row, column_chunk));
        let steps = shape.rows as u32 / step_rows;
        for panel in 0..(shape.columns / CHUNK_ELEMS) as u32 / panel_chunks {
            for step in 0..steps {
                let place = first.offset((panel * shape.rows as u32 + step * step_rows) * PANEL_ROW_BYTES);
                let column = (panel * panel_chunks + column_chunk) * CHUNK_ELEMS as u32;
                chunk((panel * steps + step) as usize, row + step * step_rows, column, place);
            }
        }
    }

    /// Fills a tile with rows that start anywhere, in a loop as that of [`Rows::gather_to_tile`].
    ///
    /// # Safety
    /// As [`TileElement::place`].
    #[inline(always)]
    unsafe fn gather_to_tile(rows: Rows<Self>, tile: SharedAddr, first_row: u32, shape: &TileShape) {
        let row_chunks = (shape.columns / CHUNK_ELEMS) as u32;
        let mut index = opaque(thread::thread_idx_x());
        while index < shape.rows as u32 * row_chunks {
            let (row, chunk) = (index / row_chunks, index % row_chunks);
            let column = chunk * CHUNK_ELEMS as u32;
            let mut words = [0; 4];
            if column < rows.columns && first_row + row < rows.len {
                let source = rows.base.wrapping_offset((i64::from(first_row + row) * rows.stride) as isize);
                // SAFETY: the eight bytes are inside the tensor.
                let [low, high, ..] = unsafe { u8::gather(source.wrapping_add(column as usize).cast(), 8) };
                words = Self::widen([low, high]);
            }
            // SAFETY: the caller's contract.
            unsafe { tile.offset(chunk_offset(shape.rows, row, chunk)).store(words) };
            index += thread::block_dim_x();
        }
    }
}

impl TileElement for WidenedByte {
    const TILE_BYTES: usize = size_of::<u16>();
    const IS_HELD: bool = true;
    /// The bytes of each chunk that the thread fills.
    type Held = [[u32; 2]; WidenedByte::MAX_CHUNKS];
    const NOTHING: Self::Held = [[0; 2]; WidenedByte::MAX_CHUNKS];

    #[inline(always)]
    unsafe fn fetch(rows: Rows<Self>, tile: SharedAddr, first_row: u32, shape: &TileShape) -> Self::Held {
        let mut held = Self::NOTHING;
        if rows.aligned {
            let step_rows = shape.threads / PANEL_CHUNKS as u32;
            let mut next_source = rows.base;
            Self::for_each_chunk(tile, shape, |index, row, column, _| {
                let source = if index.is_multiple_of(shape.rows / step_rows as usize) {
                    let of_row = rows.base.wrapping_offset((i64::from(first_row + row) * rows.stride) as isize);
                    of_row.wrapping_add(column as usize)
                } else {
                    next_source
                };
                next_source = source.wrapping_offset((i64::from(step_rows) * rows.stride) as isize);
                let is_inside = column < rows.columns && first_row + row < rows.len;
                // SAFETY: the eight bytes are inside the tensor where they are read, and rows are aligned.
                held[index] = unsafe { global::load_where(is_inside, source.cast(), [0; 2]) };
            });
        }
        held
    }

    #[inline(always)]
    unsafe fn place(rows: Rows<Self>, held: Self::Held, tile: SharedAddr, first_row: u32, shape: &TileShape) {
        if rows.aligned {
            Self::for_each_chunk(tile, shape, |index, row, column, place| {
                let words = Self::widen(held[index]);
                let is_zero = shape.pads && (column >= rows.columns || first_row + row >= rows.len);
                // SAFETY: the caller's contract.
                unsafe { place.store(if is_zero { [0; 4] } else { words }) };
            });
        } else {
            // SAFETY: the caller's contract.
            unsafe { Self::gather_to_tile(rows, tile, first_row, shape) };
        }
    }
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
