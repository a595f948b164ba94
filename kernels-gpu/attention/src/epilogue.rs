//! The log-sum-exp of rows to global memory, and where rows of an O of E4M3 are.

use cuda_std::global;
use variants::attention::AttentionArgs;

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

/// The start of row 0 of an O of E4M3.
///
/// [`Work::o`] counts two bytes an element.
#[inline(always)]
pub(crate) fn e4m3_out(args: &AttentionArgs, work: &Work) -> *mut u8 {
    let elements = (work.o as u64).wrapping_sub(args.o) as i64 / 2;
    args.o.wrapping_add_signed(elements) as *mut u8
}
