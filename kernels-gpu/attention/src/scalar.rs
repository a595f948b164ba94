//! The scalar kernel: one warp computes one query row in f32. It serves every head dimension, stride and alignment, and
//! is the oracle on the card.
//!
//! The warp takes 32 visible keys at a time. Lane i computes the score of key i, and the warp updates the running
//! maximum and sum (see [`crate::softmax`] for the recurrence). Then the lanes divide the columns of O: lane i holds
//! columns i, i + 32, ..

use cuda_std::convert::{Element16, ex2, fma, max};
use cuda_std::global;
use cuda_std::warp::{FULL_MASK, warp_max, warp_shuffle_idx, warp_sum};
use variants::attention::{ATTENTION, AttentionArgs, DescaleArgs, MAX_HEAD_DIM, ScoreMod};

use crate::descale::factors;
use crate::input::{Input, U8To};
use crate::lane::{LANES, div_rem, lane, warp};
use crate::score_mod::HeadScoreMod;
use crate::seqlen::SeqlenInfo;
use crate::softmax::{base, row_result, split_weight};
use crate::work::{Work, sink_of_block};

/// An element type of Q, K and V that is widened to f32.
pub(crate) trait ScalarInput: Input {
    /// The bits of an element.
    type Bits: global::Word;

    /// The number, with its sign changed as [`AttentionArgs::q_sign`] says, in units of [`Input::TILE_UNIT`].
    fn widen(bits: Self::Bits, sign: u32) -> f32;
}

impl<E: Element16> ScalarInput for E {
    type Bits = u16;

    #[inline(always)]
    fn widen(bits: u16, sign: u32) -> f32 {
        E::to_f32(bits ^ sign as u16)
    }
}

impl<O: Element16> ScalarInput for U8To<O> {
    type Bits = u8;

    /// `(q - 127.5) * 2^-9`, as in the tiles of the other kernels; exact.
    #[inline(always)]
    fn widen(bits: u8, sign: u32) -> f32 {
        const UNIT: f32 = 1.0 / 512.0;
        f32::from_bits(fma(f32::from(bits), UNIT, -127.5 * UNIT).to_bits() ^ sign & 0x8000_0000)
    }
}

/// # Safety
/// The launch is that of configuration `ID`, and `args` and `descales` describe its tensors and their factors.
#[inline(always)]
pub(crate) unsafe fn forward<E: ScalarInput, const ID: usize>(args: &AttentionArgs, descales: Option<&DescaleArgs>) {
    const { assert!(E::DTYPE as u8 == ATTENTION[ID].dtype as u8) };
    let seqlens = const { ATTENTION[ID].seqlens };
    // SAFETY: the warp is together, and the launch is the configuration's.
    let seqlen = |batch| unsafe { SeqlenInfo::of_warp(args, batch, seqlens) };
    let work = Work::of_block::<E::Bits>(args, ATTENTION[ID].rows() as u32, seqlens, seqlen);
    let score_mod = HeadScoreMod::new(args, &work);
    let lane = lane();
    let row = work.first_row + warp();
    if row >= work.q_len {
        return;
    }
    let keys = work.keys;
    let (start, end) = (keys.start(row as i32) as u32, keys.end(row as i32).max(0) as u32);
    let q = work.q.cast::<E::Bits>().wrapping_offset(i64::from(row) as isize * args.q_strides.row as isize);
    let [score_factor, value_factor] = descales.map_or([1.0; 2], |descales| {
        let (kv_head, _) = div_rem(work.head, args.heads_per_kv);
        // SAFETY: the caller's contract.
        unsafe { factors(descales, work.batch, [work.head, kv_head], E::TILE_UNIT) }
    });

    let mut out = [0f32; MAX_HEAD_DIM / LANES as usize];
    let (mut row_max, mut row_sum) = (f32::NEG_INFINITY, 0f32);
    let mut chunk = start;
    while chunk < end {
        let key = chunk + lane;
        let mut score = f32::NEG_INFINITY;
        if key < end {
            let k = work.k.cast::<E::Bits>().wrapping_offset(key as isize * args.k_strides.row as isize);
            score = 0.0;
            for column in 0..args.head_dim as usize {
                // SAFETY: `column` is inside the row, and `row` and `key` are inside their tensors.
                let (q, k) = unsafe { (global::load(q.wrapping_add(column)), global::load(k.wrapping_add(column))) };
                score = fma(E::widen(q, args.q_sign), E::widen(k, 0), score);
            }
            if descales.is_some() {
                score *= score_factor;
            }
            if let ScoreMod::General = const { ATTENTION[ID].score_mod } {
                // SAFETY: `row` and `key` are inside their tensors.
                score = unsafe { score_mod.score::<E::Output>(score, row, key) };
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
            let v = work.v.cast::<E::Bits>().wrapping_offset((chunk + key) as isize * args.v_strides.row as isize);
            for step in 0..out.len() {
                let column = lane as usize + step * LANES as usize;
                if column < args.value_dim as usize {
                    // SAFETY: the key is visible, so inside V, and `column` is inside its row.
                    out[step] = fma(p, E::widen(unsafe { global::load(v.wrapping_add(column)) }, 0), out[step]);
                }
            }
        }
        chunk += LANES;
    }

    // SAFETY: the launch is the configuration's.
    let sink = unsafe { sink_of_block(args, ATTENTION[ID].rows() as u32) };
    let result = row_result(row_max, row_sum, args.scale_log2, sink);
    let normaliser = result.normaliser * value_factor;
    let o = work.o.wrapping_offset(row as isize * args.o_strides.row as isize);
    for step in 0..out.len() {
        let column = lane as usize + step * LANES as usize;
        if column < args.value_dim as usize {
            // SAFETY: `row` and `column` are inside O.
            unsafe { global::store(o.wrapping_add(column), E::Output::from_f32(out[step] * normaliser)) };
        }
    }
    if lane == 0 && !work.lse.is_null() {
        // SAFETY: the LSE has `q_len` values for each head.
        unsafe { global::store(work.lse.wrapping_add(row as usize), result.lse) };
    }
}
