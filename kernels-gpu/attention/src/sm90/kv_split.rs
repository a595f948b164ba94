//! Split-KV: warpgroups that share query rows. Which steps of the keys each takes, and how their partial results are
//! added.
//!
//! The blocks of a cluster take the steps round-robin, and within a block its split-KV warpgroups take those of the
//! block. Split p of a tile is that of split-KV warpgroup `p % SPLIT_KV_WARPGROUPS` in the block of rank `p /
//! SPLIT_KV_WARPGROUPS`.
//!
//! The softmax over all keys is the weighted sum of the softmax over each split. Let split p have maximum m_p, sum l_p
//! and output O_p, and let m be the largest maximum: then `l = sum l_p 2^(c (m_p - m))`, and O likewise.
//!
//! Every split reduces a slice of the columns over all splits, in their order, so nothing depends on who is first. The
//! partial results of its slice lie in shared memory of its own block, where the other splits have written them. Within
//! a block they come by stores and a barrier, from other blocks by `st.async`, whose bytes count on an mbarrier. A
//! barrier of the cluster would be slower, because the release of an arrival there is a fence of the whole card.

use cuda_std::convert::{Element16, fma, max};
use cuda_std::ptx::cluster::{self, ClusterAddr};
use cuda_std::ptx::mbarrier;
use cuda_std::shared::SharedAddr;
use cuda_std::thread;
use cuda_std::warp::{FULL_MASK, quad_sum, sync_warp};
use variants::attention::{AttentionArgs, WARPGROUP_THREADS};

use crate::epilogue::store_row_lse;
use crate::lane::{LANES, lane};
use crate::sm90::config::Config;
use crate::sm90::epilogue::{chunk_of, store_chunk};
use crate::softmax::{RowState, row_result, split_weight};
use crate::work::Work;

/// The most splits of a tile.
const MAX_SPLITS: usize = 8;

/// The most loads of four words in the slice of a split.
const MAX_QUARTERS: usize = 8;

/// The rank of this block among those that share a tile.
#[inline(always)]
pub(crate) fn rank<const ID: usize>() -> u32 {
    if const { Config::<ID>::SPLIT_KV_CTAS > 1 } { thread::cluster_rank() } else { 0 }
}

/// The last of the steps `first .. end` of a tile that this block takes, and how many it takes. From one of its steps
/// to the one before lie as many steps as there are blocks.
#[inline(always)]
pub(crate) fn block_steps<const ID: usize>((first, end): (u32, u32)) -> (u32, u32) {
    let (rank, blocks) = (rank::<ID>(), const { Config::<ID>::SPLIT_KV_CTAS });
    let steps = (end.saturating_sub(first) + (blocks - 1) - rank) / blocks;
    (end.wrapping_sub(1 + rank), steps)
}

/// The distance from one word of a thread to the next.
const fn word_stride_bytes(word_bytes: u32) -> u32 {
    WARPGROUP_THREADS * word_bytes
}

/// Words that are moved at a time: four of O, or the maximum and the sum of a row.
const O_BYTES: u32 = 16;
const ROW_BYTES: u32 = 8;

/// Chunks of eight accumulators of a thread in the slice of a split.
const fn slice_chunks<const ID: usize, const OUTPUTS: usize>() -> usize {
    OUTPUTS / 8 / Config::<ID>::KV_SPLITS as usize
}

/// Where the accumulators `4 quarter ..` of a thread's slice are, from the start of what one split has for another;
/// `thread` is its number in its warpgroup.
const fn quarter_offset(quarter: u32, thread: u32) -> u32 {
    quarter * word_stride_bytes(O_BYTES) + thread * O_BYTES
}

/// Where the maximum and the sum of the row of the slice are.
const fn row_offset<const ID: usize, const OUTPUTS: usize>(thread: u32) -> u32 {
    2 * slice_chunks::<ID, OUTPUTS>() as u32 * word_stride_bytes(O_BYTES) + thread * ROW_BYTES
}

/// Where the partial result of split `from` for consumer warpgroup `group` of a block is.
#[inline(always)]
fn section<const ID: usize, const OUTPUTS: usize>(base: SharedAddr, group: u32, from: u32) -> SharedAddr {
    let bytes = const { row_offset::<ID, OUTPUTS>(WARPGROUP_THREADS) };
    base.offset(Config::<ID>::PARTIAL.stage_offset(group) + from * bytes)
}

/// The bytes of partial results that come for a warpgroup from other blocks.
pub(crate) const fn partial_bytes<const ID: usize, const OUTPUTS: usize>() -> u32 {
    (Config::<ID>::KV_SPLITS - Config::<ID>::SPLIT_KV_WARPGROUPS) * row_offset::<ID, OUTPUTS>(WARPGROUP_THREADS)
}

/// The warps of a block that write partial results for a warpgroup.
pub(crate) const fn partial_warps<const ID: usize>() -> u32 {
    Config::<ID>::SPLIT_KV_WARPGROUPS * (WARPGROUP_THREADS / LANES)
}

/// This thread's number in its warpgroup.
#[inline(always)]
fn thread_of_group() -> u32 {
    thread::thread_idx_x() % WARPGROUP_THREADS
}

/// Waits until the mbarriers of all blocks of the cluster can be used, behind the arrival of each at the barrier of the
/// cluster.
///
/// # Safety
/// All threads of the warpgroup call it, once.
#[inline(always)]
pub(crate) unsafe fn wait_cluster<const ID: usize>() {
    if const { Config::<ID>::SPLIT_KV_CTAS > 1 } {
        // SAFETY: the caller's contract.
        unsafe { cluster::wait() };
    }
}

/// Writes the partial result of a split where [`reduce`] of each split of its rows, those of `m_warpgroup`, reads it.
///
/// # Safety
/// All threads of the warpgroup call it, after [`wait_cluster`]; what was there before has been read.
#[inline(always)]
pub(crate) unsafe fn write_partial<const ID: usize, const OUTPUTS: usize>(
    base: SharedAddr,
    m_warpgroup: u32,
    split: u32,
    out: &[f32; OUTPUTS],
    state: &RowState,
) {
    let (groups, blocks) = const { (Config::<ID>::SPLIT_KV_WARPGROUPS, Config::<ID>::SPLIT_KV_CTAS) };
    let (chunks, row_chunks) = (const { slice_chunks::<ID, OUTPUTS>() }, OUTPUTS / 16);
    let (thread, own_rank) = (thread_of_group(), rank::<ID>());
    for rank in 0..blocks {
        for kv_warpgroup in 0..groups {
            let to = m_warpgroup * groups + kv_warpgroup;
            let first_chunk = (rank * groups + kv_warpgroup) as usize * chunks;
            let half = first_chunk / row_chunks;
            let place = section::<ID, OUTPUTS>(base, to, split);
            let row = [state.max[half].to_bits(), state.sum[half].to_bits()];
            let mut quarters = [[0; 4]; MAX_QUARTERS];
            for chunk in 0..chunks {
                let values = chunk_of(out, half, first_chunk % row_chunks + chunk).map(f32::to_bits);
                quarters[2 * chunk] = [values[0], values[1], values[2], values[3]];
                quarters[2 * chunk + 1] = [values[4], values[5], values[6], values[7]];
            }
            // SAFETY: the section has room for the words of each thread; the mbarrier of the section counts those from
            // other blocks.
            unsafe {
                if rank == own_rank {
                    place.offset(row_offset::<ID, OUTPUTS>(thread)).store(row);
                    for quarter in 0..2 * chunks {
                        place.offset(quarter_offset(quarter as u32, thread)).store(quarters[quarter]);
                    }
                } else {
                    let full = base.offset(Config::<ID>::PARTIAL_FULL.stage_offset(to));
                    let [place, full] = [place, full].map(|own| ClusterAddr::of_block(own, rank));
                    place.offset(row_offset::<ID, OUTPUTS>(thread)).store_async(row, full);
                    for quarter in 0..2 * chunks {
                        place.offset(quarter_offset(quarter as u32, thread)).store_async(quarters[quarter], full);
                    }
                }
            }
        }
    }
    if blocks > 1 {
        // SAFETY: the warp is together: what all of its lanes have stored is behind the arrival of one.
        unsafe {
            sync_warp(FULL_MASK);
            for kv_warpgroup in 0..groups {
                let full = Config::<ID>::PARTIAL_FULL.stage_offset(m_warpgroup * groups + kv_warpgroup);
                mbarrier::arrive_if(base.offset(full), lane() == 0);
            }
        }
    }
}

/// Waits until all splits have written their partial results for consumer warpgroup `group`; `sync_block` does so where
/// they are in one block.
///
/// # Safety
/// All threads of all splits call it, after [`write_partial`].
#[inline(always)]
pub(crate) unsafe fn wait<const ID: usize>(base: SharedAddr, group: u32, sync_block: impl FnOnce()) {
    if const { Config::<ID>::SPLIT_KV_CTAS > 1 } {
        // SAFETY: the caller's contract. A cluster computes one tile: the first phase is the only one.
        unsafe { mbarrier::wait_parity(base.offset(Config::<ID>::PARTIAL_FULL.stage_offset(group)), 0) };
    } else {
        sync_block();
    }
}

/// The slice of the result that one split has reduced: chunks of one row of each thread.
pub(crate) struct Slice<const OUTPUTS: usize> {
    /// The chunks of O, of which the first `OUTPUTS / 8 / KV_SPLITS` are used.
    values: [f32; OUTPUTS],
    lse: f32,
    first_chunk: u32,
}

/// Adds up the partial results that all splits have written for consumer warpgroup `group`, whose split is `split`.
///
/// # Safety
/// All threads of the warpgroup call it, after [`wait`] behind the calls of [`write_partial`].
#[inline(always)]
pub(crate) unsafe fn reduce<const ID: usize, const OUTPUTS: usize>(
    base: SharedAddr,
    group: u32,
    split: u32,
    scale_log2: f32,
    sink: f32,
) -> Slice<OUTPUTS> {
    let (splits, chunks) = const { (Config::<ID>::KV_SPLITS as usize, slice_chunks::<ID, OUTPUTS>()) };
    let (first_chunk, thread) = (split * chunks as u32, thread_of_group());
    // All loads before the sums, which wait for the first of them.
    let (mut maxima, mut sums) = ([f32::NEG_INFINITY; MAX_SPLITS], [0.0; MAX_SPLITS]);
    let mut outs = [[[0u32; 4]; MAX_QUARTERS]; MAX_SPLITS];
    for from in 0..splits {
        let place = section::<ID, OUTPUTS>(base, group, from as u32);
        // SAFETY: the words were written, and are visible.
        unsafe {
            let row: [u32; 2] = place.offset(row_offset::<ID, OUTPUTS>(thread)).load();
            [maxima[from], sums[from]] = row.map(f32::from_bits);
            for quarter in 0..2 * chunks {
                outs[from][quarter] = place.offset(quarter_offset(quarter as u32, thread)).load();
            }
        }
    }
    let largest = maxima.into_iter().fold(f32::NEG_INFINITY, max);
    let weights = maxima.map(|maximum| split_weight(maximum, largest, scale_log2));
    let mut sum = 0.0;
    for from in 0..splits {
        sum += weights[from] * sums[from];
    }
    // SAFETY: all lanes of the warp are here.
    let row = row_result(largest, unsafe { quad_sum(sum) }, scale_log2, sink);
    // With the normaliser in its weight, a split takes one instruction for each value: all warps end at once.
    let mut values = [0.0; OUTPUTS];
    for from in 0..splits {
        let weight = weights[from] * row.normaliser;
        for quarter in 0..2 * chunks {
            for index in 0..4 {
                let (value, out) = (&mut values[4 * quarter + index], f32::from_bits(outs[from][quarter][index]));
                *value = if from == 0 { weight * out } else { fma(weight, out, *value) };
            }
        }
    }
    Slice { values, lse: row.lse, first_chunk }
}

/// Writes a slice to O and LSE; `warp_row` is the first row of the warp in its tile.
///
/// # Safety
/// As [`crate::sm90::epilogue::store_accumulators`].
#[inline(always)]
pub(crate) unsafe fn store<E: Element16, const ID: usize, const OUTPUTS: usize>(
    args: &AttentionArgs,
    work: &Work,
    slice: &Slice<OUTPUTS>,
    warp_row: u32,
) {
    let (chunks, row_chunks) = (const { slice_chunks::<ID, OUTPUTS>() }, OUTPUTS as u32 / 16);
    let (half, first_block) = (slice.first_chunk / row_chunks, slice.first_chunk % row_chunks);
    let warp_row = warp_row + 8 * half;
    for chunk in 0..chunks {
        let values = core::array::from_fn(|index| slice.values[8 * chunk + index]);
        // SAFETY: the caller's contract.
        unsafe { store_chunk::<E>(args, work, values, warp_row, first_block + chunk as u32) };
    }
    if first_block == 0 {
        // SAFETY: the row is the slice's.
        unsafe { store_row_lse(work, slice.lse, warp_row) };
    }
}
