//! The end of a block: each warp writes its sums to shared memory, then threads add them up, warp by warp, and store Y.
//! The order of the additions is always the same.

use core::marker::PhantomData;

use cuda_std::global::{self, Word};
use cuda_std::ptx::cp_async;
use cuda_std::shared::{self, SharedAddr};
use cuda_std::thread;
use variants::ata::{AtaArgs, CELL, PAIR_ROWS};

use crate::config::Configuration;
use crate::work::{EpilogueArgs, lane, warp};

/// Accumulators for the sums of the warps, used round-robin: an addition does not wait for the one before.
const PARTS: usize = 4;

/// The sums of this warp: element (frame, row) is `frame * sums_stride + row`.
pub struct WarpSums<C> {
    base: SharedAddr,
    config: PhantomData<C>,
}

impl<C: Configuration> WarpSums<C> {
    const STRIDE: u32 = C::CONFIG.sums_stride() as u32;

    #[inline(always)]
    pub(crate) fn of_warp() -> Self {
        let sums = const { C::CONFIG.sums() };
        Self { base: shared::dynamic().offset(sums.stage_offset(warp())), config: PhantomData }
    }

    /// The sums of pair row `pair_row` of the block and frame 0.
    #[inline(always)]
    pub fn of_pair_row(&self, pair_row: usize) -> SharedAddr {
        self.base.offset((pair_row * PAIR_ROWS * size_of::<f32>()) as u32)
    }

    /// Stores row `lane` of a pair row and a frame.
    ///
    /// # Safety
    /// The frame is one of the block's; all lanes of the warp store theirs.
    #[inline(always)]
    pub(crate) unsafe fn store_row(&self, frame: u32, pair_row: usize, row: f32) {
        let element = frame * Self::STRIDE + lane();
        // SAFETY: the row is inside the warp's stage, and no other lane's.
        unsafe { self.of_pair_row(pair_row).offset(element * size_of::<f32>() as u32).store(row.to_bits()) }
    }

    /// Stores rows `4 * group` to `4 * group + 3` of a pair row and a frame.
    ///
    /// # Safety
    /// The frame is one of the block's; one lane of each group stores it.
    #[inline(always)]
    pub(crate) unsafe fn store_rows(&self, frame: u32, pair_row: usize, rows: [f32; CELL]) {
        let element = frame * Self::STRIDE + lane() / 4 * CELL as u32;
        let address = self.of_pair_row(pair_row).offset(element * size_of::<f32>() as u32);
        // SAFETY: the rows are inside the warp's stage, on a 16-byte boundary, and no other lane's.
        unsafe { address.store(rows.map(f32::to_bits)) }
    }
}

/// Adds up the sums of all warps and stores the block's part of Y, multiplied by the scale of its channel.
///
/// # Safety
/// The launch is that of configuration `C`; every warp has written its sums; all threads of the block execute this
/// call.
#[inline(always)]
pub(crate) unsafe fn store_result<C: Configuration>(args: &AtaArgs) {
    // Two rows a thread are half as many loads from shared memory, one a thread is sooner done.
    if const { (C::CONFIG.frames * C::CONFIG.rows()) as u32 <= C::CONFIG.threads() } {
        // SAFETY: as required of the caller.
        unsafe { add_up::<C, 1>(args) };
    } else {
        // SAFETY: as required of the caller.
        unsafe { add_up::<C, 2>(args) };
    }
}

/// As [`store_result`], with `TOGETHER` rows of a frame a thread.
///
/// # Safety
/// As for [`store_result`].
#[inline(always)]
unsafe fn add_up<C: Configuration, const TOGETHER: usize>(args: &AtaArgs)
where
    [u32; TOGETHER]: Word,
{
    let sums = const { C::CONFIG.sums() };
    let (rows, stride) = const { (C::CONFIG.rows() as u32, C::CONFIG.sums_stride() as u32) };
    if const { C::CONFIG.precision.has_scales() } {
        cp_async::wait_all();
    }
    // SAFETY: all threads are here. The barrier orders the stores of the sums and of what the end needs before the
    // loads below.
    let EpilogueArgs { y, rows: y_rows, frames, scale } = unsafe {
        thread::sync_threads();
        EpilogueArgs::load::<C>()
    };
    let mut element = thread::thread_idx_x() * const { TOGETHER as u32 };
    while element < const { (C::CONFIG.frames * C::CONFIG.rows()) as u32 } {
        let (frame, row) = (element / rows, element % rows);
        let first = shared::dynamic().offset(sums.offset_bytes + (frame * stride + row) * size_of::<f32>() as u32);
        let mut parts = [[0f32; TOGETHER]; PARTS];
        for warp in 0..const { C::CONFIG.warps } {
            // SAFETY: every element of every warp's sums was stored.
            let of_warp: [u32; TOGETHER] = unsafe { first.offset(warp as u32 * sums.stage_stride_bytes()).load() };
            for i in 0..TOGETHER {
                parts[warp % PARTS][i] += f32::from_bits(of_warp[i]);
            }
        }
        let [first, second, third, fourth] = parts;
        let mut sum = [0f32; TOGETHER];
        for i in 0..TOGETHER {
            sum[i] = (first[i] + second[i]) + (third[i] + fourth[i]);
        }
        if const { C::CONFIG.frames == 1 } || frame < frames {
            let y = y.wrapping_offset(frame as isize * args.y_strides.frame as isize);
            for i in 0..TOGETHER {
                let row = row + i as u32;
                if row < y_rows {
                    // SAFETY: frame and row are inside Y, and no other thread's.
                    unsafe { global::store(y.wrapping_add(row as usize), sum[i] * scale) };
                }
            }
        }
        element += const { C::CONFIG.threads() * TOGETHER as u32 };
    }
}
