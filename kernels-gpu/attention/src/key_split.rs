//! Warpgroups that share query rows: which steps of the keys each takes, and the sum of what they find.
//!
//! The blocks of a cluster take the steps in turns, and within a block its key groups take those of the block. Part p of a tile is
//! that of key group `p % KEY_GROUPS` in the block of rank `p / KEY_GROUPS`.
//!
//! Softmax over all keys is that over each part, weighted: with the maximum m_p, sum l_p and output O_p of part p and the largest
//! maximum m, `l = sum l_p 2^(c (m_p - m))`, and O likewise. Every part leaves what it has in the shared memory of its block, and
//! then adds up a share of the columns from all parts, in their order, so nothing depends on who is first.

use cuda_std::convert::{Element16, ex2, max};
use cuda_std::ptx::cluster::{self, ClusterAddr};
use cuda_std::shared::{SharedAddr, Word};
use cuda_std::thread;
use cuda_std::warp::quad_sum;
use layout::attention::{AttentionArgs, WARPGROUP_THREADS};

use crate::epilogue::store_row_lse;
use crate::epilogue_sm90::{chunk_of, store_chunk};
use crate::row::Row;
use crate::softmax::{RowResult, RowState, row_result, shift};
use crate::work::Work;

/// The most parts of a tile.
const MAX_PARTS: usize = 8;

/// The most loads of four words in the share of a part.
const MAX_QUARTERS: usize = 8;

/// The rank of this block among those that share a tile.
#[inline(always)]
pub(crate) fn rank<const ROW: usize>() -> u32 {
    if const { Row::<ROW>::CLUSTER > 1 } { thread::cluster_rank() } else { 0 }
}

/// The last of the steps `first .. end` of a tile that this block takes, and how many it takes; the one before is that of so many
/// steps before as there are blocks.
#[inline(always)]
pub(crate) fn block_steps<const ROW: usize>((first, end): (u32, u32)) -> (u32, u32) {
    let (rank, blocks) = (rank::<ROW>(), const { Row::<ROW>::CLUSTER });
    let steps = (end.saturating_sub(first) + (blocks - 1) - rank) / blocks;
    (end.wrapping_sub(1 + rank), steps)
}

/// A word's place in the part of a warpgroup, and the distance from one word of a thread to the next.
const fn place(word_bytes: u32) -> u32 {
    WARPGROUP_THREADS * word_bytes
}

/// Words that are moved at a time: four of O, or the maximum and the sum of a row.
const O_BYTES: u32 = 16;
const ROW_BYTES: u32 = 8;

/// Where the maximum and the sum of row `half` of a thread are, from the start of a part; `thread` is its number in its warpgroup.
const fn row_offset<const OUTPUTS: usize>(half: u32, thread: u32) -> u32 {
    OUTPUTS as u32 / 4 * place(O_BYTES) + half * place(ROW_BYTES) + thread * ROW_BYTES
}

/// Where the accumulators `4 quarter ..` of chunk `chunk` of a thread are; chunks are those of one row after those of the other.
const fn chunk_offset(chunk: u32, quarter: u32, thread: u32) -> u32 {
    (2 * chunk + quarter) * place(O_BYTES) + thread * O_BYTES
}

/// This thread's number in its warpgroup.
#[inline(always)]
fn thread_of_group() -> u32 {
    thread::thread_idx_x() % WARPGROUP_THREADS
}

/// Leaves what consumer warpgroup `group` of the block has, for [`gather`].
///
/// # Safety
/// All threads of the warpgroup call it; what was there before has been read.
#[inline(always)]
pub(crate) unsafe fn share<const ROW: usize, const OUTPUTS: usize>(
    base: SharedAddr,
    group: u32,
    out: &[f32; OUTPUTS],
    state: &RowState,
) {
    let (part, thread) = (base.offset(Row::<ROW>::PARTIAL.stage_offset(group)), thread_of_group());
    for half in 0..2 {
        let row = [state.max[half].to_bits(), state.sum[half].to_bits()];
        // SAFETY: the part has room for the words of each thread.
        unsafe { part.offset(row_offset::<OUTPUTS>(half as u32, thread)).store(row) };
        for block in 0..OUTPUTS / 16 {
            let values = chunk_of(out, half, block).map(f32::to_bits);
            let chunk = (half * (OUTPUTS / 16) + block) as u32;
            let quarters = [[values[0], values[1], values[2], values[3]], [values[4], values[5], values[6], values[7]]];
            for quarter in 0..2 {
                // SAFETY: as above.
                unsafe { part.offset(chunk_offset(chunk, quarter as u32, thread)).store(quarters[quarter]) };
            }
        }
    }
}

/// Tells the other blocks of the cluster that this warp has come so far, if there are any.
///
/// # Safety
/// All consumers of the cluster call it together, and then [`wait`].
#[inline(always)]
pub(crate) unsafe fn arrive<const ROW: usize>() {
    if const { Row::<ROW>::CLUSTER > 1 } {
        // SAFETY: the caller's contract. The producer exits, and is not waited for.
        unsafe { cluster::arrive() };
    }
}

/// Waits until all parts of a tile have called [`arrive`]; `sync_block` does so where they are in one block.
///
/// # Safety
/// As [`arrive`].
#[inline(always)]
pub(crate) unsafe fn wait<const ROW: usize>(sync_block: impl FnOnce()) {
    if const { Row::<ROW>::CLUSTER > 1 } {
        // SAFETY: the caller's contract.
        unsafe { cluster::wait() };
    } else {
        sync_block();
    }
}

/// The share of one part in the sum of all: chunks of one row of each thread.
pub(crate) struct Share<const OUTPUTS: usize> {
    /// The chunks, of which the first `OUTPUTS / 8 / PARTS` are used.
    values: [f32; OUTPUTS],
    row: RowResult,
    first_chunk: u32,
}

/// Adds up what all parts have left, for the chunks of part `part`; `row_group` is that of its rows.
///
/// # Safety
/// All threads of the warpgroup call it, after [`wait`] behind the calls of [`share`].
#[inline(always)]
pub(crate) unsafe fn gather<const ROW: usize, const OUTPUTS: usize>(
    base: SharedAddr,
    row_group: u32,
    part: u32,
    scale_log2: f32,
    sink: f32,
) -> Share<OUTPUTS> {
    let (parts, groups) = const { (Row::<ROW>::PARTS as usize, Row::<ROW>::KEY_GROUPS) };
    let (chunks, row_chunks) = (OUTPUTS / 8 / parts, OUTPUTS as u32 / 16);
    let first_chunk = part * chunks as u32;
    let (half, thread) = (first_chunk / row_chunks, thread_of_group());
    let own = |part: u32| base.offset(Row::<ROW>::PARTIAL.stage_offset(row_group * groups + part % groups));
    // All loads before the sums, which wait for the first of them: the parts of other blocks are far away.
    let (mut maxima, mut sums) = ([f32::NEG_INFINITY; MAX_PARTS], [0.0; MAX_PARTS]);
    let mut outs = [[[0u32; 4]; MAX_QUARTERS]; MAX_PARTS];
    for part in 0..parts {
        // SAFETY: the words were written, and are visible.
        let row: [u32; 2] =
            unsafe { load::<_, ROW>(own(part as u32), part as u32, row_offset::<OUTPUTS>(half, thread)) };
        [maxima[part], sums[part]] = row.map(f32::from_bits);
        for quarter in 0..2 * chunks {
            let offset = chunk_offset(first_chunk, quarter as u32, thread);
            // SAFETY: as above.
            outs[part][quarter] = unsafe { load::<_, ROW>(own(part as u32), part as u32, offset) };
        }
    }
    let largest = maxima.into_iter().fold(f32::NEG_INFINITY, max);
    // Both products are rounded as those in the probabilities are.
    let weights = maxima.map(|maximum| ex2(maximum * scale_log2 + shift(largest, scale_log2)));
    let mut sum = 0.0;
    for part in 0..parts {
        sum += weights[part] * sums[part];
    }
    // SAFETY: all lanes of the warp are here.
    let row = row_result(largest, unsafe { quad_sum(sum) }, scale_log2, sink);
    let mut values = [0.0; OUTPUTS];
    for part in 0..parts {
        for quarter in 0..2 * chunks {
            for index in 0..4 {
                values[4 * quarter + index] += weights[part] * f32::from_bits(outs[part][quarter][index]);
            }
        }
    }
    Share { values, row, first_chunk }
}

/// A word of a part, which this block has at `own`.
///
/// # Safety
/// It was written, and is visible.
#[inline(always)]
unsafe fn load<T: Word, const ROW: usize>(own: SharedAddr, part: u32, offset: u32) -> T {
    // SAFETY: the caller's contract.
    unsafe {
        if const { Row::<ROW>::CLUSTER == 1 } {
            own.offset(offset).load()
        } else {
            ClusterAddr::of_block(own, part / const { Row::<ROW>::KEY_GROUPS }).offset(offset).load()
        }
    }
}

/// Writes a share to O and LSE; `warp_row` is the first row of the warp in its tile.
///
/// # Safety
/// As [`crate::epilogue_sm90::store_accumulators`].
#[inline(always)]
pub(crate) unsafe fn store<E: Element16, const ROW: usize, const OUTPUTS: usize>(
    args: &AttentionArgs,
    work: &Work,
    share: &Share<OUTPUTS>,
    warp_row: u32,
) {
    let (chunks, row_chunks) = (OUTPUTS / 8 / const { Row::<ROW>::PARTS as usize }, OUTPUTS as u32 / 16);
    let (half, first_block) = (share.first_chunk / row_chunks, share.first_chunk % row_chunks);
    let warp_row = warp_row + 8 * half;
    for chunk in 0..chunks {
        let values = core::array::from_fn(|index| share.values[8 * chunk + index] * share.row.normaliser);
        // SAFETY: the caller's contract.
        unsafe { store_chunk::<E>(args, work, values, warp_row, first_block + chunk as u32) };
    }
    if first_block == 0 {
        // SAFETY: the row is the share's.
        unsafe { store_row_lse(work, share.row.lse, warp_row) };
    }
}
