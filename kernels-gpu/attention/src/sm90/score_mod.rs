//! Score modification in the layout of `wgmma` accumulators: the bias by way of shared memory, a step ahead, and the
//! softcap of [`variants::attention::ScoreMod::Softcap`].

use cuda_std::convert::{Element16, ex2, fma, rcp};
use cuda_std::global;
use cuda_std::hint::opaque;
use cuda_std::ptx::cp_async;
use cuda_std::shared::SharedAddr;
use cuda_std::warp::{FULL_MASK, sync_warp};
use variants::attention::WARP_ROWS;

use crate::lane::{LANES, lane};
use crate::score_mod::HeadScoreMod;
use crate::sm90::config::Config;
use crate::tile::{CHUNK_ELEMS, Fragments, PANEL_CHUNKS, chunk_offset};

impl HeadScoreMod {
    /// Starts to copy the bias of a step to `tile`, as [`Fragments`] read it: 16 rows from `row` on, and the keys from
    /// `key` on, two for each of `SCORES`. Beyond the last row and key the bias is unspecified.
    ///
    /// Lanes do not part, as they must not between a `wgmma` and the wait for it.
    ///
    /// # Safety
    /// As [`HeadScoreMod::apply`], where there are rows and keys; `key` is a multiple of [`CHUNK_ELEMS`]. All lanes of
    /// the warp call it together; the tile is theirs, and they have read what was there.
    #[inline(always)]
    pub(crate) unsafe fn copy_bias<const SCORES: usize>(&self, tile: SharedAddr, row: u32, key: u32) {
        if self.bias.is_null() {
            return;
        }
        let (lane, keys) = (lane(), 2 * SCORES);
        if self.in_chunks {
            for first_chunk in (0..keys / CHUNK_ELEMS).step_by(PANEL_CHUNKS) {
                // Whole sectors of memory from neighbouring lanes, a panel or what is left of one.
                let row_chunks = (keys / CHUNK_ELEMS - first_chunk).min(PANEL_CHUNKS) as u32;
                let (lane_row, chunk) = (lane / row_chunks, first_chunk as u32 + lane % row_chunks);
                let (lane_key, rows) = (key + chunk * CHUNK_ELEMS as u32, LANES / row_chunks);
                let (place, source_row) = (chunk_offset(WARP_ROWS, lane_row, chunk), row + lane_row);
                let rows_left = if lane_key < self.k_len { self.q_len as i32 - source_row as i32 } else { 0 };
                let mut source = self.bias_row(source_row).wrapping_add(lane_key as usize);
                for below in (0..WARP_ROWS as u32).step_by(rows as usize) {
                    // Places are XORed, as the swizzle is: the rows differ in bits that are 0 in the lane's first.
                    let place = tile.offset(place ^ chunk_offset(WARP_ROWS, below, 0));
                    // SAFETY: the chunk is one of the bias, and aligned, or nothing is read.
                    unsafe { cp_async::cg_16(place, source, if (below as i32) < rows_left { 16 } else { 0 }) };
                    source = source.wrapping_offset((i64::from(rows) * self.row_stride) as isize);
                }
            }
        } else {
            // A loop, as it is for correctness: unrolled it would be most of the kernel's code.
            let mut step = 0;
            while step < opaque((WARP_ROWS * keys / CHUNK_ELEMS) as u32 / LANES) {
                let (tile_row, chunk) = (lane % WARP_ROWS as u32, 2 * step + lane / WARP_ROWS as u32);
                let source = self.bias_row((row + tile_row).min(self.q_len - 1));
                let at = |element: usize| {
                    let key = (key + chunk * CHUNK_ELEMS as u32 + element as u32).min(self.k_len - 1);
                    // SAFETY: there is such a row and such a key.
                    u32::from(unsafe { global::load(source.wrapping_add(key as usize)) })
                };
                let words: [u32; 4] = core::array::from_fn(|word| at(2 * word) | at(2 * word + 1) << 16);
                // SAFETY: the tile is this warp's.
                unsafe { tile.offset(chunk_offset(WARP_ROWS, tile_row, chunk)).store(words) };
                step += 1;
            }
        }
    }

    /// [`HeadScoreMod::apply`] with the bias that [`HeadScoreMod::copy_bias`] has brought to `tile`, to which the next
    /// may come then.
    ///
    /// # Safety
    /// All lanes of the warp call it together.
    #[inline(always)]
    pub(crate) unsafe fn apply_tile<E: Element16, const SCORES: usize>(
        &self,
        scores: &mut [f32; SCORES],
        tile: SharedAddr,
    ) {
        let capped = self.softcap != f32::INFINITY;
        if capped || self.bias.is_null() {
            self.cap_in_parts(scores);
        }
        if self.bias.is_null() {
            return;
        }
        let scale = if capped { 1.0 } else { self.scale };
        // SAFETY: all lanes of the warp are here, and each has waited for its copies.
        unsafe {
            cp_async::wait_all();
            sync_warp(FULL_MASK);
            let bias = Fragments::rows_first(tile, WARP_ROWS);
            for eight in 0..SCORES / 8 {
                let words = bias.load(0, eight);
                for pair in 0..4 {
                    let (first, (low, high)) = (8 * eight + 2 * pair, E::unpack(words[pair]));
                    scores[first] = fma(low, self.bias_scale, scores[first] * scale);
                    scores[first + 1] = fma(high, self.bias_scale, scores[first + 1] * scale);
                }
            }
            sync_warp(FULL_MASK);
        }
    }

    /// [`HeadScoreMod::cap`] part by part in one loop, each time the first part: unrolled it would be a third of the
    /// kernel's code, which few calls need. Two parts take `ptxas` no less time than both at once.
    #[inline(always)]
    fn cap_in_parts<const SCORES: usize>(&self, scores: &mut [f32; SCORES]) {
        const PART: usize = 16;
        if SCORES <= 2 * PART {
            return self.cap(scores);
        }
        let mut part = 0;
        while part < opaque((SCORES / PART) as u32) {
            let mut first: [f32; PART] = core::array::from_fn(|index| scores[index]);
            self.cap(&mut first);
            for index in PART..SCORES {
                scores[index - PART] = scores[index];
            }
            for index in 0..PART {
                scores[SCORES - PART + index] = first[index];
            }
            part += 1;
        }
    }
}

/// Raw scores to bounded ones as numbers y from 0 to 1, in configurations of a softcap alone: `softcap(scale * score) =
/// 2 cap y - cap`, where `factor` is `-2 log2(e) scale / cap`.
///
/// `cap * tanh(x)` is `2 cap / (1 + exp(-2 x)) - cap`. The softmax multiplies by `2 cap` anyway, and what is subtracted
/// from all scores of a row changes its log-sum-exp alone. Beside [`Cap`] that takes 4 instructions instead of 15, and
/// has an error of 2^-21 of the cap instead of the score.
#[inline(always)]
pub(crate) fn bound<const ID: usize>(scores: &mut [f32], factor: f32) {
    if Config::<ID>::SOFTCAP {
        for index in 0..scores.len() {
            scores[index] = rcp(1.0 + ex2(scores[index] * factor));
        }
    }
}
