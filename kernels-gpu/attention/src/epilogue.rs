//! The log-sum-exp of rows to global memory.

use cuda_std::global;

use crate::lane::lane;
use crate::softmax::RowResult;
use crate::work::Work;

/// Writes the LSE of this lane's two rows of the 16 of its warp, where it is wanted.
///
/// # Safety
/// The results are those of rows `warp_row + lane / 4` and 8 below.
#[inline(always)]
pub(crate) unsafe fn store_lse(work: &Work, results: &[RowResult; 2], warp_row: u32) {
    for half in 0..2 {
        // SAFETY: the caller's contract.
        unsafe { store_row_lse(work, results[half].lse, warp_row + 8 * half as u32) };
    }
}

/// Writes the LSE of one row of this lane, `lane / 4` below `warp_row`, where it is wanted.
///
/// # Safety
/// It is that of the row.
#[inline(always)]
pub(crate) unsafe fn store_row_lse(work: &Work, lse: f32, warp_row: u32) {
    let lane = lane();
    let row = work.first_row + warp_row + lane / 4;
    if !work.lse.is_null() && lane.is_multiple_of(4) && row < work.q_len {
        // SAFETY: the LSE has `q_len` values for each head.
        unsafe { global::store(work.lse.wrapping_add(row as usize), lse) };
    }
}
