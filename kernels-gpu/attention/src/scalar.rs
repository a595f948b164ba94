//! The scalar kernel: one warp computes one query row in f32. It serves every head dimension, stride and alignment, and
//! is the oracle on the card.
//!
//! The warp takes 32 visible keys at a time. Lane i computes the score of key i, and the warp updates the running
//! maximum and sum (see [`crate::softmax`] for the recurrence). Then the lanes divide the columns of O: lane i holds
//! columns i, i + 32, ..

use cuda_std::convert::{Element16, ex2, fma, max};
use cuda_std::global;
use cuda_std::warp::{FULL_MASK, warp_max, warp_shuffle_idx, warp_sum};
use variants::attention::{ATTENTION, AttentionArgs, MAX_HEAD_DIM, ScoreMod};

use crate::lane::{LANES, lane, warp};
use crate::score_mod::HeadScoreMod;
use crate::seqlen::SeqlenInfo;
use crate::softmax::{base, row_result, split_weight};
use crate::work::{Work, sink_of_block};

/// # Safety
/// The launch is that of configuration `ID`, and `args` describes its tensors.
#[inline(always)]
pub(crate) unsafe fn forward<E: Element16, const ID: usize>(args: &AttentionArgs) {
    const { assert!(E::DTYPE as u8 == ATTENTION[ID].dtype as u8) };
    let seqlens = const { ATTENTION[ID].seqlens };
    // SAFETY: the warp is together, and the launch is the configuration's.
    let seqlen = |batch| unsafe { SeqlenInfo::of_warp(args, batch, seqlens) };
    let work = Work::of_block::<u16>(args, ATTENTION[ID].rows() as u32, seqlens, seqlen);
    let score_mod = HeadScoreMod::new(args, &work);
    let lane = lane();
    let row = work.first_row + warp();
    if row >= work.q_len {
        return;
    }
    let keys = work.keys;
    let (start, end) = (keys.start(row as i32) as u32, keys.end(row as i32).max(0) as u32);
    let q = work.q.cast::<u16>().wrapping_offset(i64::from(row) as isize * args.q_strides.row as isize);

    let mut out = [0f32; MAX_HEAD_DIM / LANES as usize];
    let (mut row_max, mut row_sum) = (f32::NEG_INFINITY, 0f32);
    let mut chunk = start;
    while chunk < end {
        let key = chunk + lane;
        let mut score = f32::NEG_INFINITY;
        if key < end {
            let k = work.k.cast::<u16>().wrapping_offset(key as isize * args.k_strides.row as isize);
            score = 0.0;
            for column in 0..args.head_dim as usize {
                // SAFETY: `column` is inside the row, and `row` and `key` are inside their tensors.
                let (q, k) = unsafe { (global::load(q.wrapping_add(column)), global::load(k.wrapping_add(column))) };
                score = fma(E::to_f32(q ^ args.q_sign as u16), E::to_f32(k), score);
            }
            if let ScoreMod::General = const { ATTENTION[ID].score_mod } {
                // SAFETY: `row` and `key` are inside their tensors.
                score = unsafe { score_mod.score::<E>(score, row, key) };
            }
        }
        // SAFETY: the whole warp has the same row, so all its lanes are here.
        let new_max = unsafe { warp_max(max(row_max, score)) };
        let factor = split_weight(row_max, new_max, args.scale_log2);
        let p = ex2((score - base(new_max)) * args.scale_log2);
        // SAFETY: as above.
        row_sum = row_sum * factor + unsafe { warp_sum(p) };
        row_max = new_max;
        for step in 0..out.len() {
            out[step] *= factor;
        }
        for key in 0..LANES.min(end - chunk) {
            // SAFETY: as above.
            let p = unsafe { warp_shuffle_idx(FULL_MASK, p, key, LANES).0 };
            let v = work.v.cast::<u16>().wrapping_offset((chunk + key) as isize * args.v_strides.row as isize);
            for step in 0..out.len() {
                let column = lane as usize + step * LANES as usize;
                if column < args.value_dim as usize {
                    // SAFETY: the key is visible, so inside V, and `column` is inside its row.
                    out[step] = fma(p, E::to_f32(unsafe { global::load(v.wrapping_add(column)) }), out[step]);
                }
            }
        }
        chunk += LANES;
    }

    // SAFETY: the launch is the configuration's.
    let sink = unsafe { sink_of_block(args, ATTENTION[ID].rows() as u32) };
    let result = row_result(row_max, row_sum, args.scale_log2, sink);
    let o = work.o.wrapping_offset(row as isize * args.o_strides.row as isize);
    for step in 0..out.len() {
        let column = lane as usize + step * LANES as usize;
        if column < args.value_dim as usize {
            // SAFETY: `row` and `column` are inside O.
            unsafe { global::store(o.wrapping_add(column), E::from_f32(out[step] * result.normaliser)) };
        }
    }
    if lane == 0 && !work.lse.is_null() {
        // SAFETY: the LSE has `q_len` values for each head.
        unsafe { global::store(work.lse.wrapping_add(row as usize), result.lse) };
    }
}
