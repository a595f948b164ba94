//! Which rows, channel and frames a block computes, and when.

use cuda_std::ptx::cp_async;
use cuda_std::shared::{self, SharedAddr};
use cuda_std::{global, thread};
use variants::ata::{AtaArgs, LIST_PREFIX, PAIR_ROWS, STRIP_PAIR_ROWS, STRIP_ROWS};

use crate::config::Configuration;

/// Lanes of a warp.
pub(crate) const LANES: u32 = 32;

/// Where a block works.
///
/// Blocks of the same rows for different frames follow each other, so that the pairs come from L2.
pub(crate) struct BlockCoord {
    channel: u32,
    /// The strip, over all channels.
    strip_of_all: u32,
    /// First pair row of the block in its strip.
    pub(crate) first_pair_row: u32,
    /// First row of the block.
    pub(crate) first_row: u32,
    /// First frame of the block.
    pub(crate) first_frame: u32,
}

impl BlockCoord {
    /// The place of a block of configuration `C`.
    #[inline(always)]
    pub(crate) fn of_block<C: Configuration>(args: &AtaArgs, block: u32) -> Self {
        let of_strip = const { (STRIP_PAIR_ROWS / C::CONFIG.pair_rows) as u32 };
        let (rows_of_all, frame_tile) = args.frame_tiles.div_rem(block);
        let (strip_of_all, part) = (rows_of_all / of_strip, rows_of_all % of_strip);
        let (channel, strip) = args.strips.div_rem(strip_of_all);
        let first_pair_row = part * const { C::CONFIG.pair_rows as u32 };
        Self {
            channel,
            strip_of_all,
            first_pair_row,
            first_row: strip * STRIP_ROWS as u32 + first_pair_row * PAIR_ROWS as u32,
            first_frame: frame_tile * const { C::CONFIG.frames as u32 },
        }
    }

    /// X of the block's channel, frame 0.
    #[inline(always)]
    pub(crate) fn x(&self, args: &AtaArgs) -> *const f32 {
        (args.x as *const f32).wrapping_offset(self.channel as isize * args.x_strides.channel as isize)
    }

    /// Y of the block's channel, at the first frame and the first row of the block.
    #[inline(always)]
    fn y(&self, args: &AtaArgs) -> *mut f32 {
        (args.y as *mut f32)
            .wrapping_offset(self.channel as isize * args.y_strides.channel as isize)
            .wrapping_offset(self.first_frame as isize * args.y_strides.frame as isize)
            .wrapping_add(self.first_row as usize)
    }

    /// Leaves in shared memory what the end of the block needs ([`EpilogueArgs`]), so that it takes no register until
    /// then and is not found out again. What sums are multiplied by is copied there.
    ///
    /// # Safety
    /// `args` describes the tensors and the matrix, and the launch is that of configuration `C`. All threads of the
    /// block execute this call.
    #[inline(always)]
    pub(crate) unsafe fn store_epilogue_args<C: Configuration>(&self, args: &AtaArgs) {
        if thread::thread_idx_x() != 0 {
            return;
        }
        let y = self.y(args) as u64;
        let (rows, frames) = (args.n.saturating_sub(self.first_row), args.frames - self.first_frame);
        let [place, scale] = epilogue_args_at::<C>();
        // SAFETY: the places are the block's, and there is a scale for each channel.
        unsafe {
            place.store([y as u32, (y >> 32) as u32, rows, frames]);
            if const { C::CONFIG.precision.has_scales() } {
                let of_channel = (args.scales as *const f32).wrapping_add(self.channel as usize);
                cp_async::ca_4(scale, of_channel, size_of::<f32>() as u32);
            }
        }
    }

    /// Where the list prefix of the strip starts, among the prefixes of all strips.
    #[inline(always)]
    pub(crate) fn first_of_prefix(&self) -> u32 {
        self.strip_of_all * LIST_PREFIX as u32
    }

    /// Where the list of the strip starts, and where it ends.
    ///
    /// # Safety
    /// `args` describes the matrix.
    #[inline(always)]
    pub(crate) unsafe fn list_range(&self, args: &AtaArgs) -> [u32; 2] {
        let starts = (args.list_starts as *const u32).wrapping_add(self.strip_of_all as usize);
        // SAFETY: there is a start for each strip of all and one more.
        unsafe { [global::load_nc(starts), global::load_nc(starts.wrapping_add(1))] }
    }
}

/// What the end of a block needs.
pub(crate) struct EpilogueArgs {
    /// Y at the block's first frame and row.
    pub(crate) y: *mut f32,
    /// Rows of Y from the block's first on.
    pub(crate) rows: u32,
    /// Frames from the block's first on.
    pub(crate) frames: u32,
    /// What the sums are multiplied by: 1 in precisions that scale nothing.
    pub(crate) scale: f32,
}

impl EpilogueArgs {
    /// What was left.
    ///
    /// # Safety
    /// The thread that left it ([`BlockCoord::store_epilogue_args`]) has waited for its copies, and a barrier has
    /// followed.
    #[inline(always)]
    pub(crate) unsafe fn load<C: Configuration>() -> Self {
        let [place, scale] = epilogue_args_at::<C>();
        // SAFETY: as required of the caller.
        unsafe {
            let [low, high, rows, frames]: [u32; 4] = place.load();
            let scale = if const { C::CONFIG.precision.has_scales() } { scale.load() } else { 1.0 };
            Self { y: (u64::from(high) << 32 | u64::from(low)) as *mut f32, rows, frames, scale }
        }
    }
}

/// Where what was left is: words of [`EpilogueArgs`], and the scale.
#[inline(always)]
fn epilogue_args_at<C: Configuration>() -> [SharedAddr; 2] {
    const { [C::CONFIG.smem().get("epilogue"), C::CONFIG.smem().get("scale")] }
        .map(|region| shared::dynamic().offset(region.offset_bytes))
}

/// This thread's warp in its block.
#[inline(always)]
pub fn warp() -> u32 {
    thread::thread_idx_x() / LANES
}

/// This thread's lane in its warp.
#[inline(always)]
pub fn lane() -> u32 {
    thread::thread_idx_x() % LANES
}

/// Quotient and remainder for a divisor that is not 0, such as what a launched grid has; without the panic call that a
/// plain `/` links.
#[inline(always)]
pub(crate) fn div_rem(dividend: u32, divisor: u32) -> (u32, u32) {
    // SAFETY: the divisors are frame tiles and pair rows of a launched grid: not 0.
    let quotient = unsafe { dividend.checked_div(divisor).unwrap_unchecked() };
    (quotient, dividend - quotient * divisor)
}
