//! Which rows, channel and frames a block computes.

use cuda_std::{global, thread};
use layout::ata::{AtaArgs, PAIR_ROWS};

/// Lanes of a warp.
pub(crate) const LANES: u32 = 32;

/// The part of X and Y that is the block's, and the uses of stored pairs that give it.
///
/// Blocks of one pair row for different frames follow each other, so that the pairs come from L2.
pub(crate) struct Work {
    /// X of the block's channel, frame 0.
    pub(crate) x: *const f32,
    /// Y of the block's channel, frame 0, at the first row of the block.
    pub(crate) y: *mut f32,
    /// Rows of the block that Y has.
    pub(crate) rows: u32,
    /// First frame of the block.
    pub(crate) first_frame: u32,
    /// First use of the pair row.
    pub(crate) begin: u32,
    /// End of the uses of the pair row.
    pub(crate) end: u32,
    /// What sums are multiplied by.
    pub(crate) scale: f32,
}

impl Work {
    /// The work of this block when each block takes `frames` frames.
    ///
    /// # Safety
    /// The grid has one block for each (channel, pair row, `frames` frames) of `args`, which describes the matrix.
    #[inline(always)]
    pub(crate) unsafe fn of_block(args: &AtaArgs, frames: u32) -> Self {
        let (row_of_all, frame_tile) = div_rem(thread::block_idx_x(), args.frames.div_ceil(frames));
        let (channel, pair_row) = div_rem(row_of_all, args.pair_rows);
        let first_row = pair_row * PAIR_ROWS as u32;
        let starts = (args.starts as *const u32).wrapping_add(row_of_all as usize);
        let scale = (args.scales as *const f32).wrapping_add(channel as usize);
        let channel = channel as isize;
        // SAFETY: there is a start for each pair row of all and one more, and a scale for each channel.
        let (begin, end, scale) =
            unsafe { (global::load_nc(starts), global::load_nc(starts.wrapping_add(1)), global::load_nc(scale)) };
        Self {
            x: (args.x as *const f32).wrapping_offset(channel * args.x_strides.channel as isize),
            y: (args.y as *mut f32)
                .wrapping_offset(channel * args.y_strides.channel as isize)
                .wrapping_add(first_row as usize),
            rows: args.n - first_row,
            first_frame: frame_tile * frames,
            begin,
            end,
            scale,
        }
    }
}

/// This thread's warp in its block.
#[inline(always)]
pub(crate) fn warp() -> u32 {
    thread::thread_idx_x() / LANES
}

/// This thread's lane in its warp.
#[inline(always)]
pub(crate) fn lane() -> u32 {
    thread::thread_idx_x() % LANES
}

/// Quotient and remainder for a divisor that is not 0, such as what a launched grid has; without the panic call that a plain `/` links.
#[inline(always)]
pub(crate) fn div_rem(dividend: u32, divisor: u32) -> (u32, u32) {
    // SAFETY: the divisors are frame tiles and pair rows of a launched grid: not 0.
    let quotient = unsafe { dividend.checked_div(divisor).unwrap_unchecked() };
    (quotient, dividend - quotient * divisor)
}
