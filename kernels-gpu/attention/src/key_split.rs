//! Results of warpgroups that took different keys of the same query rows, added up through shared memory.
//!
//! Softmax over all keys is that over each part, weighted: with the maximum m_g, sum l_g and output O_g of part g and the largest
//! maximum m, `l = sum l_g 2^(c (m_g - m))`, and O likewise. A thread of the first group adds what the same threads of the others
//! hold, in the order of the groups, so nothing depends on who is first.

use cuda_std::shared::SharedAddr;
use cuda_std::thread;
use layout::attention::WARPGROUP_THREADS;

use crate::row::Row;
use crate::softmax::RowState;

/// Where the words of this thread start in the part of group `key_group`, and the distance from one to the next.
#[inline(always)]
fn words<const ROW: usize>(base: SharedAddr, key_group: u32) -> (SharedAddr, u32) {
    let thread = thread::thread_idx_x() % WARPGROUP_THREADS;
    let part = base.offset(Row::<ROW>::PARTIAL.stage_offset(key_group - 1));
    (part.offset(thread * size_of::<f32>() as u32), WARPGROUP_THREADS * size_of::<f32>() as u32)
}

/// Writes what a warpgroup other than the first has.
///
/// # Safety
/// All threads of the warpgroup call it; the first group has read what was there before.
#[inline(always)]
pub(crate) unsafe fn share<const ROW: usize, const OUTPUTS: usize>(
    base: SharedAddr,
    key_group: u32,
    out: &[f32; OUTPUTS],
    state: &RowState,
) {
    let (first, distance) = words::<ROW>(base, key_group);
    // SAFETY: the part has room for these words of each thread.
    let store = |index: usize, value: f32| unsafe { first.offset(index as u32 * distance).store(value) };
    for index in 0..OUTPUTS {
        store(index, out[index]);
    }
    for half in 0..2 {
        store(OUTPUTS + half, state.max[half]);
        store(OUTPUTS + 2 + half, state.sum[half]);
    }
}

/// Adds what the other warpgroups have shared to what the first one has.
///
/// # Safety
/// All threads of the first group call it, after a barrier behind the calls of [`share`].
#[inline(always)]
pub(crate) unsafe fn gather<const ROW: usize, const OUTPUTS: usize>(
    base: SharedAddr,
    out: &mut [f32; OUTPUTS],
    state: &mut RowState,
    scale_log2: f32,
) {
    for key_group in 1..Row::<ROW>::KEY_GROUPS {
        let (first, distance) = words::<ROW>(base, key_group);
        // SAFETY: the words were written, and are visible.
        let word = |index: usize| unsafe { first.offset(index as u32 * distance).load::<f32>() };
        let other = RowState { max: [word(OUTPUTS), word(OUTPUTS + 1)], sum: [word(OUTPUTS + 2), word(OUTPUTS + 3)] };
        let (own, others) = state.merge(&other, scale_log2);
        for index in 0..OUTPUTS {
            let row = index / 2 % 2;
            out[index] = out[index] * own[row] + word(index) * others[row];
        }
    }
}
