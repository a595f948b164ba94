//! The end of a block: each warp writes its sums to shared memory, then threads add them up, warp by warp, and store Y. The order
//! of the additions is always the same.

use cuda_std::shared::{self, SharedAddr};
use cuda_std::warp::{FULL_MASK, sync_warp};
use cuda_std::{global, thread};
use layout::ata::{ATA, AtaArgs, BLOCK, PAIR_ROWS, SUMS_STRIDE};

use crate::work::{Work, lane, warp};

/// The sums of this warp: element (frame, row) is `frame * SUMS_STRIDE + row`.
pub(crate) struct WarpSums {
    base: SharedAddr,
}

impl WarpSums {
    #[inline(always)]
    pub(crate) fn of_warp<const ROW: usize>() -> Self {
        let sums = const { ATA[ROW].sums() };
        Self { base: shared::dynamic().offset(sums.stage_offset(warp())) }
    }

    #[inline(always)]
    fn at(&self, frame: u32, row: u32) -> SharedAddr {
        self.base.offset((frame * SUMS_STRIDE as u32 + row) * size_of::<f32>() as u32)
    }

    /// Stores what upper uses gave of a frame: rows `4 * group` to `4 * group + 3`.
    ///
    /// # Safety
    /// The frame is one of the block's; one lane of each group stores it.
    #[inline(always)]
    pub(crate) unsafe fn store_upper(&self, frame: u32, rows: [f32; 4]) {
        // SAFETY: the rows are inside the warp's stage, on a 16-byte boundary, and no other lane's.
        unsafe { self.at(frame, lane() / 4 * 4).store(rows.map(f32::to_bits)) }
    }

    /// Waits until the lanes have stored what upper uses gave.
    ///
    /// # Safety
    /// All lanes of the warp execute this call together.
    #[inline(always)]
    pub(crate) unsafe fn sync(&self) {
        // SAFETY: as required of the caller. It orders the stores before the loads of `add_lower`.
        unsafe { sync_warp(FULL_MASK) }
    }

    /// Adds what lower uses gave of a frame: rows `2 * group` and one further, of the first or second block.
    ///
    /// # Safety
    /// As [`WarpSums::store_upper`], which every lane has done before a [`WarpSums::sync`].
    #[inline(always)]
    pub(crate) unsafe fn add_lower(&self, frame: u32, second: u32, rows: [f32; 2]) {
        let address = self.at(frame, second * BLOCK as u32 + lane() / 4 * 2);
        // SAFETY: the rows are inside the warp's stage, on an 8-byte boundary, and were stored; no other lane touches them now.
        unsafe {
            let [first, next] = address.load::<[u32; 2]>().map(f32::from_bits);
            address.store([first + rows[0], next + rows[1]].map(f32::to_bits));
        }
    }
}

/// Adds up the sums of all warps and stores the block's part of Y.
///
/// # Safety
/// The launch is that of row `ROW`; every warp has written its sums; all threads of the block execute this call.
#[inline(always)]
pub(crate) unsafe fn store_result<const ROW: usize>(args: &AtaArgs, work: &Work) {
    let sums = const { ATA[ROW].sums() };
    let elements = const { (ATA[ROW].frames * PAIR_ROWS) as u32 };
    // SAFETY: all threads are here. It orders the stores of the sums before the loads below.
    unsafe { thread::sync_threads() };
    let mut element = thread::thread_idx_x();
    while element < elements {
        let (frame, row) = (element / PAIR_ROWS as u32, element % PAIR_ROWS as u32);
        let first =
            shared::dynamic().offset(sums.offset_bytes + (frame * SUMS_STRIDE as u32 + row) * size_of::<f32>() as u32);
        let mut sum = 0f32;
        for warp in 0..const { ATA[ROW].warps as u32 } {
            // SAFETY: every element of every warp's sums was stored.
            sum += unsafe { first.offset(warp * sums.stage_stride_bytes()).load::<f32>() };
        }
        let frame = work.first_frame + frame;
        if frame < args.frames && row < work.rows {
            let y = work.y.wrapping_offset(frame as isize * args.y_strides.frame as isize).wrapping_add(row as usize);
            // SAFETY: frame and row are inside Y, and no other thread's.
            unsafe { global::store(y, sum * work.scale) };
        }
        element += const { ATA[ROW].threads() };
    }
}
