//! What a lane needs of X: four elements of a block of 16, those from `4 * (lane % 4)` on, of a frame.

use cuda_std::global;
use variants::ata::{AtaArgs, BLOCK, CELL, PAIR_ROWS};

use crate::unit::Four;
use crate::work::{BlockCoord, lane};

/// Where the elements of one frame lie.
#[derive(Clone, Copy)]
pub(crate) struct FrameRow {
    /// The lane's first element.
    first: *const f32,
    /// Elements of the frame from the lane's first on.
    len: u32,
    /// Whether 16-byte loads may be used where four elements are left.
    aligned: bool,
}

impl FrameRow {
    /// A row that points nowhere, to fill an array with.
    pub(crate) const EMPTY: FrameRow = FrameRow { first: core::ptr::null(), len: 0, aligned: false };

    /// The row of a frame; the last frame's for one beyond it, whose sums are not stored.
    #[inline(always)]
    pub(crate) fn new(args: &AtaArgs, place: &BlockCoord, frame: u32) -> Self {
        let frame = frame.min(args.frames - 1) as isize;
        let skipped = lane() % 4 * CELL as u32;
        Self {
            first: place.x(args).wrapping_offset(frame * args.x_strides.frame as isize).wrapping_add(skipped as usize),
            // Below 0 where n is small: the comparison below is signed.
            len: args.n.wrapping_sub(skipped),
            aligned: args.x_aligned != 0,
        }
    }

    /// The lane's elements of both blocks of pair row `pair_row` of X; zeros beyond n. A kernel before may have written
    /// them while this one had started, so they are not read through the read-only cache.
    ///
    /// # Safety
    /// The row is one of X, and the pair row starts before n.
    #[inline(always)]
    pub(crate) unsafe fn load(self, pair_row: u32) -> [Four; 2] {
        let column = pair_row * PAIR_ROWS as u32;
        let elements = self.first.wrapping_add(column as usize);
        let left = self.len.wrapping_sub(column) as i32;
        let mut x = [[0f32; CELL]; 2];
        if self.aligned && left >= (BLOCK + CELL) as i32 {
            for half in 0..2 {
                // SAFETY: four elements are left, on a 16-byte boundary.
                let four: [u32; CELL] = unsafe { global::load(elements.wrapping_add(half * BLOCK).cast()) };
                x[half] = four.map(f32::from_bits);
            }
            return x;
        }
        for half in 0..2 {
            for i in 0..CELL {
                let at = half * BLOCK + i;
                if (at as i32) < left {
                    // SAFETY: the element is left.
                    x[half][i] = unsafe { global::load(elements.wrapping_add(at)) };
                }
            }
        }
        x
    }

    /// As [`FrameRow::load`], without a branch: zeros unless `condition` holds.
    ///
    /// # Safety
    /// The row is one of X on a 16-byte boundary, and n is a multiple of four.
    #[inline(always)]
    pub(crate) unsafe fn load_where(self, condition: bool, pair_row: u32) -> [Four; 2] {
        let column = pair_row * PAIR_ROWS as u32;
        let elements = self.first.wrapping_add(column as usize);
        let left = self.len.wrapping_sub(column) as i32;
        [0, BLOCK].map(|first| {
            // SAFETY: four elements are left, on a 16-byte boundary.
            let four = unsafe {
                global::load_where(condition & (left > first as i32), elements.wrapping_add(first).cast(), [0u32; CELL])
            };
            four.map(f32::from_bits)
        })
    }
}
