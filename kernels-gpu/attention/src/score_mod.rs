//! What happens to a raw score `q . k` before the mask: `softcap(scale * score) + bias`, with
//! `softcap(x) = cap * tanh(x / cap)`.
//!
//! The result is what the softmax takes the exponential of. It is for configurations of
//! [`variants::attention::ScoreMod::General`]; the others leave the scale to the softmax. Those of
//! [`variants::attention::ScoreMod::Softcap`] have `bound`.

use cuda_std::convert::{Element16, fma, rcp};
use cuda_std::global;
use variants::attention::AttentionArgs;

#[cfg(target_feature = "sm_90a")]
use crate::tile::CHUNK_ELEMS;
use crate::work::Work;

/// What the scores of one head become.
#[derive(Clone, Copy)]
pub(crate) struct HeadScoreMod {
    pub(crate) scale: f32,
    /// Infinite where nothing bounds scores.
    pub(crate) softcap: f32,
    /// What the bias is multiplied by, as scale and softcap have been: see [`AttentionArgs::bias_scale`].
    pub(crate) bias_scale: f32,
    /// The bias of row 0 and key 0; null where there is none.
    pub(crate) bias: *const u16,
    /// Elements from one row of the bias to the next.
    pub(crate) row_stride: i64,
    pub(crate) q_len: u32,
    pub(crate) k_len: u32,
    /// Whether rows of the bias are whole aligned chunks of [`CHUNK_ELEMS`] keys.
    #[cfg(target_feature = "sm_90a")]
    pub(crate) in_chunks: bool,
}

impl HeadScoreMod {
    /// That of the head of `work`.
    #[inline(always)]
    pub(crate) fn new(args: &AttentionArgs, work: &Work) -> Self {
        Self::of_head(args, [work.batch, work.head], work.q_len, work.keys.len())
    }

    /// That of a head of a batch entry whose sequences are so long.
    #[inline(always)]
    pub(crate) fn of_head(args: &AttentionArgs, [batch, head]: [u32; 2], q_len: u32, k_len: u32) -> Self {
        let strides = &args.bias_strides;
        let offset = i64::from(batch) * strides.batch + i64::from(head) * strides.head;
        let offset = if args.bias == 0 { 0 } else { offset * size_of::<u16>() as i64 };
        Self {
            scale: args.scale,
            softcap: args.softcap,
            bias_scale: args.bias_scale,
            bias: args.bias.wrapping_add_signed(offset) as *const u16,
            row_stride: strides.row,
            q_len,
            k_len,
            #[cfg(target_feature = "sm_90a")]
            in_chunks: args.bias.is_multiple_of((CHUNK_ELEMS * size_of::<u16>()) as u64)
                && (i64::from(args.k_len) | strides.batch | strides.head | strides.row) % CHUNK_ELEMS as i64 == 0,
        }
    }

    /// What a raw score of this row and key becomes.
    ///
    /// # Safety
    /// There are such a row and key.
    #[inline(always)]
    pub(crate) unsafe fn score<E: Element16>(self, raw: f32, row: u32, key: u32) -> f32 {
        let mut score = [raw];
        self.cap(&mut score);
        if self.bias.is_null() {
            return score[0];
        }
        // SAFETY: the caller's contract.
        fma(unsafe { self.bias::<E>(row, key) }, self.bias_scale, score[0])
    }

    /// The same for this lane's accumulators of 16 rows by keys from `key` on, which lie as for
    /// [`KeyRange::apply`](crate::mask::KeyRange::apply). Scores beyond the last row or key get no bias: nothing uses
    /// them.
    ///
    /// # Safety
    /// The tensors are as long as `work` said.
    #[inline(always)]
    pub(crate) unsafe fn apply<E: Element16>(self, scores: &mut [f32], row: u32, pair: u32, key: u32) {
        self.cap(scores);
        if self.bias.is_null() {
            return;
        }
        for half in 0..2 {
            let row = row + 8 * half as u32;
            for index in 0..scores.len() {
                let key = key + 2 * pair + (8 * (index / 4) + index % 2) as u32;
                if index / 2 % 2 == half && row < self.q_len && key < self.k_len {
                    // SAFETY: there are such a row and key.
                    let bias = unsafe { self.bias::<E>(row, key) };
                    scores[index] = fma(bias, self.bias_scale, scores[index]);
                }
            }
        }
    }

    /// Where the bias of this row, which there is, starts; null where there is no bias.
    #[inline(always)]
    pub(crate) fn bias_row(self, row: u32) -> *const u16 {
        if self.bias.is_null() {
            return self.bias;
        }
        self.bias.wrapping_offset((i64::from(row) * self.row_stride) as isize)
    }

    /// Scales and bounds scores.
    #[inline(always)]
    pub(crate) fn cap(&self, scores: &mut [f32]) {
        for index in 0..scores.len() {
            scores[index] *= self.scale;
        }
        if self.softcap != f32::INFINITY {
            let cap = Cap::new(self.softcap);
            for index in 0..scores.len() {
                scores[index] = cap.bound(scores[index]);
            }
        }
    }

    /// # Safety
    /// There is a bias, with such a row and key.
    #[inline(always)]
    unsafe fn bias<E: Element16>(self, row: u32, key: u32) -> f32 {
        // SAFETY: the caller's contract.
        E::to_f32(unsafe { global::load(self.bias_row(row).wrapping_add(key as usize)) })
    }
}

/// The bias of two rows and 16 keys, on its way, for a lane's accumulators: a word for each two of them, which are
/// neighbours.
#[derive(Clone, Copy)]
pub(crate) struct BiasWords([u32; 4]);

impl BiasWords {
    /// Rows start where [`HeadScoreMod::bias_row`] says, and are null where they have none; `key` is the lane's first,
    /// and keys from `k_len` on have none.
    ///
    /// # Safety
    /// The rows have `k_len` keys.
    #[inline(always)]
    pub(crate) unsafe fn load(rows: [*const u16; 2], key: u32, k_len: u32) -> Self {
        let mut words = [0; 4];
        for index in 0..words.len() {
            let (row, key) = (rows[index % 2], key + 8 * (index as u32 / 2));
            for side in 0..2 {
                if !row.is_null() && key + side < k_len {
                    // SAFETY: there is such a key.
                    let bias = unsafe { global::load(row.wrapping_add((key + side) as usize)) };
                    words[index] |= u32::from(bias) << (16 * side);
                }
            }
        }
        Self(words)
    }

    /// Adds it, times `bias_scale`, to accumulators that lie as [`HeadScoreMod::apply`] has them.
    #[inline(always)]
    pub(crate) fn add_to<E: Element16>(self, scores: &mut [f32; 8], bias_scale: f32) {
        for index in 0..self.0.len() {
            let (low, high) = E::unpack(self.0[index]);
            scores[2 * index] = fma(low, bias_scale, scores[2 * index]);
            scores[2 * index + 1] = fma(high, bias_scale, scores[2 * index + 1]);
        }
    }
}

/// A softcap.
struct Cap {
    /// `1 / cap`.
    inverse: f32,
    /// The score from which on the cap is all that is left of it.
    most: f32,
}

impl Cap {
    /// Where `tanh` is 1 to the last bit.
    const MOST: f32 = 9.01;

    #[inline(always)]
    fn new(cap: f32) -> Self {
        Self { inverse: rcp(cap), most: (Self::MOST * cap).min(f32::MAX) }
    }

    /// `cap * tanh(score / cap)`, to 2^-21 of itself.
    ///
    /// `tanh(x) = x P(x^2) / Q(x^2)` up to [`Self::MOST`], with all coefficients above 0, so that nothing cancels, and
    /// no branch. The two polynomials are the best of degree 4 in the relative error, 2^-25. The score itself is what P
    /// / Q multiplies: near 0, where that is 1, it is kept to the last bits.
    #[inline(always)]
    fn bound(&self, score: f32) -> f32 {
        const P: [f32; 5] = [1.0, 0.133_803_94, 3.494_836e-3, 2.059_664_3e-5, 1.333_728_1e-8];
        const Q: [f32; 5] = [1.0, 0.467_137_1, 2.587_412_5e-2, 3.284_402_3e-4, 7.769_477e-7];
        let score = score.maximum(-self.most).minimum(self.most);
        let x = score * self.inverse;
        let square = x * x;
        let of_square =
            |factors: [f32; 5]| (0..4).rev().fold(factors[4], |sum, index| fma(sum, square, factors[index]));
        score * (of_square(P) * rcp(of_square(Q)))
    }
}
