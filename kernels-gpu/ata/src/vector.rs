//! What a lane needs of X: four elements of a block of 16, those from `4 * (lane % 4)` on, of a frame.

use cuda_std::global;
use layout::ata::{AtaArgs, BLOCK};

use crate::work::{Work, lane};

/// Where the elements of one frame lie.
#[derive(Clone, Copy)]
pub(crate) struct FrameRow {
    /// The lane's first element.
    first: *const f32,
    /// Elements of the frame from the lane's first on.
    len: u32,
    /// Whether 16-byte loads may be used for blocks that end before n.
    aligned: bool,
}

impl FrameRow {
    /// A row that points nowhere, to fill an array with.
    pub(crate) const EMPTY: FrameRow = FrameRow { first: core::ptr::null(), len: 0, aligned: false };

    /// The row of a frame; the last frame's for one beyond it, whose sums are not stored.
    #[inline(always)]
    pub(crate) fn new(args: &AtaArgs, work: &Work, frame: u32) -> Self {
        let frame = frame.min(args.frames - 1) as isize;
        let skipped = lane() % 4 * 4;
        Self {
            first: work.x.wrapping_offset(frame * args.x_strides.frame as isize).wrapping_add(skipped as usize),
            // Below 0 where n is small: the comparison below is signed.
            len: args.n.wrapping_sub(skipped),
            aligned: args.x_aligned != 0,
        }
    }

    /// The lane's elements of block `block` of X; zeros beyond n.
    ///
    /// # Safety
    /// The row is one of X, and the block starts before n.
    #[inline(always)]
    pub(crate) unsafe fn load(self, block: u32) -> [f32; 4] {
        let column = block * BLOCK as u32;
        let elements = self.first.wrapping_add(column as usize);
        let left = self.len.wrapping_sub(column) as i32;
        // 4 left for the lane of the last four elements: the whole block is inside for that lane, and the others see theirs.
        if self.aligned && left >= 4 {
            // SAFETY: four elements are left, on a 16-byte boundary.
            return unsafe { global::load_nc(elements.cast::<[u32; 4]>()) }.map(f32::from_bits);
        }
        let mut x = [0f32; 4];
        for i in 0..4 {
            if (i as i32) < left {
                // SAFETY: the element is left.
                x[i] = unsafe { global::load_nc(elements.wrapping_add(i)) };
            }
        }
        x
    }
}
