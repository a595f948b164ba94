//! Online softmax over the rows of a warp.
//!
//! A lane holds parts of two rows, `lane / 4` and 8 below, in the accumulator layout of `wmma` m16n16k16
//! ([`layout::fragment`]): registers 0, 1, 4, 5 of a tile belong to the first row, 2, 3, 6, 7 to the second. Maxima are the
//! whole row's in every lane of its quad; sums are the lane's own until [`RowState::finish`].
//!
//! With running maximum m, sum l and scores s of the next keys: `m' = max(m, max s)`, `a = 2^(c (m - m'))`,
//! `p = 2^(c (s - m'))`, `l' = a l + sum p`, `O' = a O + p V` (Milakov and Gimelshein 2018; Dao et al. 2022), where
//! `c = scale * log2(e)`.

use cuda_std::convert::{ex2, fma, lg2, max, rcp};
use cuda_std::warp;

/// Running maximum and sum of this lane's two rows.
pub(crate) struct RowState {
    max: [f32; 2],
    sum: [f32; 2],
}

/// What the epilogue needs of a finished row.
pub(crate) struct RowResult {
    /// `1 / l`, or 0 where the row saw no key.
    pub(crate) normaliser: f32,
    /// `ln sum exp(scale * s)`, or minus infinity where the row saw no key.
    pub(crate) lse: f32,
}

impl RowState {
    pub(crate) const EMPTY: Self = Self { max: [f32::NEG_INFINITY; 2], sum: [0.0; 2] };

    /// Turns raw scores into probabilities relative to the new maximum and returns what the sums so far, and O, are scaled by.
    ///
    /// # Safety
    /// All lanes of the warp call it together.
    #[inline(always)]
    pub(crate) unsafe fn step<const KEY_TILES: usize>(
        &mut self,
        scores: &mut [[f32; 8]; KEY_TILES],
        scale_log2: f32,
    ) -> [f32; 2] {
        let mut factors = [0.0; 2];
        for half in 0..2 {
            let mut row_max = self.max[half];
            for tile in 0..KEY_TILES {
                for register in 0..4 {
                    row_max = max(row_max, scores[tile][element(register, half)]);
                }
            }
            // SAFETY: all lanes of the warp are here.
            row_max = unsafe { warp::quad_max(row_max) };
            // A row that has seen no key yet keeps -inf as its maximum; 0 in its place gives 2^-inf = 0 instead of NaN.
            let shift = if row_max == f32::NEG_INFINITY { 0.0 } else { -row_max * scale_log2 };
            factors[half] = ex2(self.max[half] * scale_log2 + shift);
            let mut sum = self.sum[half] * factors[half];
            for tile in 0..KEY_TILES {
                for register in 0..4 {
                    let score = &mut scores[tile][element(register, half)];
                    *score = ex2(fma(*score, scale_log2, shift));
                    sum += *score;
                }
            }
            self.max[half] = row_max;
            self.sum[half] = sum;
        }
        factors
    }

    /// The result of this lane's two rows.
    ///
    /// # Safety
    /// All lanes of the warp call it together.
    #[inline(always)]
    pub(crate) unsafe fn finish(&self, scale_log2: f32) -> [RowResult; 2] {
        // SAFETY: all lanes of the warp are here.
        [0, 1].map(|half| row_result(self.max[half], unsafe { warp::quad_sum(self.sum[half]) }, scale_log2))
    }
}

/// The result of a row of this maximum (of raw scores) and sum.
#[inline(always)]
pub(crate) fn row_result(max: f32, sum: f32, scale_log2: f32) -> RowResult {
    if sum == 0.0 {
        RowResult { normaliser: 0.0, lse: f32::NEG_INFINITY }
    } else {
        RowResult { normaliser: rcp(sum), lse: (max * scale_log2 + lg2(sum)) * core::f32::consts::LN_2 }
    }
}

/// Register of a tile that holds the `register`-th of the four elements of row `half`.
#[inline(always)]
const fn element(register: usize, half: usize) -> usize {
    4 * (register / 2) + 2 * half + register % 2
}
