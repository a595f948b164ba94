//! What happens to a raw score `q . k` before the mask: `softcap(scale * score) + bias`, with `softcap(x) = cap * tanh(x / cap)`.
//!
//! The result is what the softmax takes the exponential of. It is for rows of [`layout::attention::Scores::General`]; the others
//! leave the scale to the softmax.

use cuda_std::convert::{Element16, ex2, fma, rcp};
use cuda_std::global;
use layout::attention::AttentionArgs;

use crate::work::Work;

/// What the scores of one head become.
#[derive(Clone, Copy)]
pub(crate) struct Scoring {
    scale: f32,
    /// Infinite where nothing bounds scores.
    softcap: f32,
    /// The bias of row 0 and key 0; null where there is none.
    bias: *const u16,
    /// Elements from one row of the bias to the next.
    row_stride: i64,
    q_len: u32,
    k_len: u32,
    /// Whether there is a bias of which every two keys, from an even one on, are an aligned word.
    in_pairs: bool,
}

impl Scoring {
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
            bias: args.bias.wrapping_add_signed(offset) as *const u16,
            row_stride: strides.row,
            q_len,
            k_len,
            in_pairs: (args.bias / size_of::<u16>() as u64 | u64::from(args.k_len)).is_multiple_of(2)
                && (strides.batch | strides.head | strides.row) % 2 == 0,
        }
    }

    /// What a raw score of this row and key becomes.
    ///
    /// # Safety
    /// There are such a row and key.
    #[inline(always)]
    pub(crate) unsafe fn score<E: Element16>(self, raw: f32, row: u32, key: u32) -> f32 {
        let score = self.capped(raw);
        if self.bias.is_null() {
            return score;
        }
        // SAFETY: the caller's contract.
        score + unsafe { self.bias::<E>(row, key) }
    }

    /// The same for this lane's accumulators of 16 rows by keys from `key` on, which lie as for
    /// [`KeyRange::apply`](crate::mask::KeyRange::apply). Scores beyond the last row or key get no bias: nothing uses them.
    ///
    /// # Safety
    /// The tensors are as long as `work` said.
    #[inline(always)]
    pub(crate) unsafe fn apply<E: Element16>(self, scores: &mut [f32], row: u32, pair: u32, key: u32) {
        for index in 0..scores.len() {
            scores[index] = self.capped(scores[index]);
        }
        if self.bias.is_null() {
            return;
        }
        for half in 0..2 {
            let row = row + 8 * half as u32;
            for index in 0..scores.len() {
                let key = key + 2 * pair + (8 * (index / 4) + index % 2) as u32;
                if index / 2 % 2 == half && row < self.q_len && key < self.k_len {
                    // SAFETY: there are such a row and key.
                    scores[index] += unsafe { self.bias::<E>(row, key) };
                }
            }
        }
    }

    /// The bias of this lane's accumulators, as [`Scoring::apply`] has them, in words of two adjacent keys; half of the words are used.
    /// Lanes do not part, as they must not between a `wgmma` and the wait for it: rows and keys beyond the last get the bias of the
    /// last.
    ///
    /// # Safety
    /// As [`Scoring::apply`]; there are rows and keys, and `key` is even.
    #[cfg(target_feature = "sm_90a")]
    #[inline(always)]
    pub(crate) unsafe fn bias_pairs<const SCORES: usize>(&self, row: u32, pair: u32, key: u32) -> [u32; SCORES] {
        let mut words = [0; SCORES];
        if self.bias.is_null() {
            return words;
        }
        let last = self.k_len - 1;
        for half in 0..2 {
            let row = (row + 8 * half as u32).min(self.q_len - 1);
            let row = self.bias.wrapping_offset((i64::from(row) * self.row_stride) as isize);
            for four in 0..SCORES / 4 {
                let key = key + 2 * pair + 8 * four as u32;
                // SAFETY: there is such a row and such a key; beyond the last one of an odd number of them is one of a longer sequence.
                words[2 * four + half] = unsafe {
                    if self.in_pairs {
                        global::load(row.wrapping_add((key.min(last) & !1) as usize).cast())
                    } else {
                        let [first, second] =
                            [key, key + 1].map(|key| global::load(row.wrapping_add(key.min(last) as usize)));
                        u32::from(first) | u32::from(second) << 16
                    }
                };
            }
        }
        words
    }

    /// [`Scoring::apply`] with the bias that [`Scoring::bias_pairs`] has loaded.
    #[cfg(target_feature = "sm_90a")]
    #[inline(always)]
    pub(crate) fn apply_pairs<E: Element16, const SCORES: usize>(
        &self,
        scores: &mut [f32; SCORES],
        bias: &[u32; SCORES],
    ) {
        for index in 0..SCORES {
            scores[index] *= self.scale;
        }
        if self.softcap != f32::INFINITY {
            let inverse = rcp(self.softcap);
            for index in 0..SCORES {
                scores[index] = self.softcap * tanh(scores[index] * inverse);
            }
        }
        if !self.bias.is_null() {
            for index in 0..SCORES {
                scores[index] += E::to_f32((bias[index / 2] >> (16 * (index % 2))) as u16);
            }
        }
    }

    /// # Safety
    /// There is a bias, with such a row and key.
    #[inline(always)]
    unsafe fn bias<E: Element16>(self, row: u32, key: u32) -> f32 {
        let row = self.bias.wrapping_offset((i64::from(row) * self.row_stride) as isize);
        // SAFETY: the caller's contract.
        E::to_f32(unsafe { global::load(row.wrapping_add(key as usize)) })
    }

    #[inline(always)]
    fn capped(self, raw: f32) -> f32 {
        let score = raw * self.scale;
        if self.softcap == f32::INFINITY { score } else { self.softcap * tanh(score * rcp(self.softcap)) }
    }
}

/// The hyperbolic tangent, to 2^-22 of itself.
///
/// Near 0, `1 - 2 / (e^2x + 1)` would be a small difference of large numbers: there it is `x (1 + x^2 P(x^2))`, where P
/// interpolates at Chebyshev's nodes.
#[inline(always)]
fn tanh(x: f32) -> f32 {
    const NEAR: f32 = 0.55;
    const P: [f32; 5] = [-0.333_333_3, 0.133_331_13, -0.053_909_43, 0.021_309_389, -0.006_610_227_7];
    let square = x * x;
    let near = fma(x, square * P.iter().rev().fold(0.0, |sum, &factor| fma(sum, square, factor)), x);
    let far = fma(-2.0, rcp(ex2(x.abs() * (2.0 * core::f32::consts::LOG2_E)) + 1.0), 1.0).copysign(x);
    if x.abs() < NEAR { near } else { far }
}
