//! Copies of one operand from global memory to the stages of its tiles.

use cuda_std::global;
use cuda_std::ptx::cp_async;
use cuda_std::shared::SharedAddr;
use cuda_std::thread;
use layout::descriptor::Major;
use variants::gemm::{CHUNK_BYTES, GemmOperand};

use crate::fragments::TileShape;

/// The part of an operand that a block reads.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    /// Batch entry.
    pub(crate) batch: u32,
    /// First m or n.
    pub(crate) first_mn: u32,
    /// All m or n of the operand.
    pub(crate) end_mn: u32,
    /// First k.
    pub(crate) first_k: u32,
    /// End of k.
    pub(crate) end_k: u32,
}

impl Range {
    /// The address of the first element.
    #[inline(always)]
    fn start(&self, operand: &GemmOperand, element_bytes: u32) -> u64 {
        let elements = i64::from(self.batch) * operand.batch_stride
            + i64::from(self.first_mn) * operand.mn_stride
            + i64::from(self.first_k) * operand.k_stride;
        operand.address.wrapping_add_signed(elements * i64::from(element_bytes))
    }
}

/// The copies of one thread by `cp.async`: `COUNT` chunks of 16 bytes a stage, at the same chunk of rows that are
/// equally far apart. Whatever is outside the operand, beyond the last k too, becomes zeros.
#[derive(Clone, Copy)]
pub(crate) struct ChunkCopy<const COUNT: usize> {
    shape: TileShape,
    /// Where the thread's first chunk of the next stage is.
    source: u64,
    /// Bytes from one of its chunks to the next.
    chunk_stride_bytes: i64,
    /// Bytes from one stage to the next.
    stage_stride_bytes: i64,
    /// Offset of its first chunk in a stage.
    offset_bytes: u32,
    /// Rows between its chunks.
    rows_apart: u32,
    /// Rows of the operand from its first chunk on; none or fewer where it is outside.
    rows_left: i32,
    /// Bytes of the operand from its first chunk on in a row.
    row_bytes_left: i32,
}

impl<const COUNT: usize> ChunkCopy<COUNT> {
    /// The copies of this thread of a block of `threads`, of tiles of `mn` rows or columns.
    #[inline(always)]
    pub(crate) fn new(operand: &GemmOperand, shape: TileShape, mn: u32, threads: u32, range: Range) -> Self {
        let TileShape { major, swizzle, k, element_bytes, .. } = shape;
        let chunk_bytes = CHUNK_BYTES as u32;
        let (rows, row_bytes, row_stride, stage_stride) = match major {
            Major::K => (mn, k * element_bytes, operand.mn_stride, i64::from(k)),
            Major::Mn => (k, mn * element_bytes, operand.k_stride, i64::from(k) * operand.k_stride),
        };
        let row_chunks = row_bytes / chunk_bytes;
        let rows_apart = threads / row_chunks;
        let thread = thread::thread_idx_x();
        let (row, column_bytes) = (thread / row_chunks, thread % row_chunks * chunk_bytes);
        let (mn_left, k_left) = ((range.end_mn - range.first_mn) as i32, range.end_k as i32 - range.first_k as i32);
        let (rows_left, row_left) = match major {
            Major::K => (mn_left, k_left),
            Major::Mn => (k_left, mn_left),
        };
        let bytes = i64::from(element_bytes);
        Self {
            shape,
            source: range
                .start(operand, element_bytes)
                .wrapping_add_signed(i64::from(row) * row_stride * bytes + i64::from(column_bytes)),
            chunk_stride_bytes: i64::from(rows_apart) * row_stride * bytes,
            stage_stride_bytes: stage_stride * bytes,
            offset_bytes: swizzle.tile_offset(row, column_bytes, rows),
            rows_apart,
            rows_left: rows_left - row as i32,
            row_bytes_left: row_left * element_bytes as i32 - column_bytes as i32,
        }
    }

    /// Starts the copies of the next stage to `stage`, and moves on.
    ///
    /// # Safety
    /// The stage is free; the operand is as the range says.
    #[inline(always)]
    pub(crate) unsafe fn start(&mut self, stage: SharedAddr) {
        let inside = self.row_bytes_left.clamp(0, CHUNK_BYTES as i32) as u32;
        let destination = stage.offset(self.offset_bytes);
        let stride = self.rows_apart * self.shape.swizzle.row_bytes();
        let mut source = self.source;
        for chunk in 0..COUNT as u32 {
            let bytes = if ((chunk * self.rows_apart) as i32) < self.rows_left { inside } else { 0 };
            // SAFETY: the chunk is inside the stage, and `bytes` of the source inside the operand.
            unsafe { cp_async::cg_16(destination.offset(chunk * stride), source as *const u8, bytes) };
            source = source.wrapping_add_signed(self.chunk_stride_bytes);
        }
        self.source = self.source.wrapping_add_signed(self.stage_stride_bytes);
        match self.shape.major {
            Major::K => self.row_bytes_left -= (self.shape.k * self.shape.element_bytes) as i32,
            Major::Mn => self.rows_left -= self.shape.k as i32,
        }
    }
}

/// The copies of one thread by single 16-bit elements, through registers, to a tile with contiguous k: `COUNT` of them
/// a stage. Threads beside each other read what lies beside each other.
#[derive(Clone, Copy)]
pub(crate) struct ElementCopy<const COUNT: usize> {
    shape: TileShape,
    /// Where the thread's first element of the next stage is.
    source: u64,
    /// Bytes from one of its elements to the next.
    element_stride_bytes: i64,
    /// Bytes from one stage to the next.
    stage_stride_bytes: i64,
    /// Rows of the tile.
    mn: u32,
    /// Row and k of its first element in the tile.
    place: [u32; 2],
    /// The step in rows and in k from one of the thread's elements to the next; one of the two is 0.
    places_apart: [u32; 2],
    /// Rows and k of the operand from its first element on.
    left: [i32; 2],
}

impl<const COUNT: usize> ElementCopy<COUNT> {
    /// The copies of this thread of a block of `threads`, of tiles of `mn` rows.
    #[inline(always)]
    pub(crate) fn new(operand: &GemmOperand, shape: TileShape, mn: u32, threads: u32, range: Range) -> Self {
        let TileShape { k: tile_k, element_bytes, .. } = shape;
        let thread = thread::thread_idx_x();
        let (place, places_apart) = if operand.k_stride == 1 {
            ([thread / tile_k, thread % tile_k], [threads / tile_k, 0])
        } else {
            ([thread % mn, thread / mn], [0, threads / mn])
        };
        let bytes = i64::from(element_bytes);
        let distance =
            |[row, k]: [u32; 2]| (i64::from(row) * operand.mn_stride + i64::from(k) * operand.k_stride) * bytes;
        Self {
            shape,
            source: range.start(operand, element_bytes).wrapping_add_signed(distance(place)),
            element_stride_bytes: distance(places_apart),
            stage_stride_bytes: distance([0, tile_k]),
            mn,
            place,
            places_apart,
            left: [
                (range.end_mn - range.first_mn) as i32 - place[0] as i32,
                range.end_k as i32 - range.first_k as i32 - place[1] as i32,
            ],
        }
    }

    /// Loads the next stage into registers, zeros for what is outside the operand, and moves on.
    ///
    /// # Safety
    /// The operand is as the range says.
    #[inline(always)]
    pub(crate) unsafe fn load(&mut self) -> [u16; COUNT] {
        let mut elements = [0; COUNT];
        let mut source = self.source;
        for index in 0..COUNT {
            let [row, k] = self.places_apart.map(|apart| (apart * index as u32) as i32);
            if row < self.left[0] && k < self.left[1] {
                // SAFETY: the element is inside the operand, which nothing writes.
                elements[index] = unsafe { global::load_nc(source as *const u16) };
            }
            source = source.wrapping_add_signed(self.element_stride_bytes);
        }
        self.source = self.source.wrapping_add_signed(self.stage_stride_bytes);
        self.left[1] -= self.shape.k as i32;
        elements
    }

    /// Stores what [`Self::load`] gave to `stage`.
    ///
    /// # Safety
    /// The stage is free.
    #[inline(always)]
    pub(crate) unsafe fn store(&self, stage: SharedAddr, elements: [u16; COUNT]) {
        for index in 0..COUNT {
            let [row, k] = [0, 1].map(|axis| self.place[axis] + self.places_apart[axis] * index as u32);
            let offset = self.shape.swizzle.tile_offset(row, k * self.shape.element_bytes, self.mn);
            // SAFETY: the place is inside the stage, and this thread's alone.
            unsafe { stage.offset(offset).store(elements[index]) };
        }
    }
}
