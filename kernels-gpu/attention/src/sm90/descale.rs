//! The factors of inputs of E4M3: the producer finds those of a tile, and broadcasts what consumers need of them.

use cuda_std::convert::rcp;
use variants::attention::{AttentionArgs, DescaleArgs};

use crate::descale::factors;
use crate::sm90::config::Config;
use crate::softmax::ScoreScale;

/// What the factors of Q, K and V come to in a tile.
#[derive(Clone, Copy)]
pub(crate) struct Descale {
    /// What raw scores are multiplied by: to be logarithms to base 2, or, where they are bounded or have a bias, as
    /// [`AttentionArgs::scale`] says. Its sign is that of the scores.
    pub(crate) score: f32,
    /// What O is multiplied by.
    pub(crate) value: f32,
}

impl Descale {
    /// What no tile reads.
    pub(crate) const NONE: Self = Self { score: 1.0, value: 1.0 };

    /// Those of a head of Q and the head of K and V that it sees.
    ///
    /// # Safety
    /// There are factors of the heads, which the kernel before has written.
    #[inline(always)]
    pub(crate) unsafe fn of_head<const ID: usize>(
        args: &AttentionArgs,
        descales: &DescaleArgs,
        batch: u32,
        heads: [u32; 2],
    ) -> Self {
        // SAFETY: the caller's contract.
        let [score, value] = unsafe { factors(descales, batch, heads, 1.0) };
        let sign = if args.q_sign == 0 { 1.0 } else { -1.0 };
        let scale = if const { Config::<ID>::PLAIN_SCORES } { args.scale_log2 } else { args.scale.abs() };
        Self { score: score * (sign * scale), value }
    }

    /// What consumers read: see [`Self::of_words`].
    #[inline(always)]
    pub(crate) fn words(self) -> [u32; 2] {
        [self.score, self.value].map(f32::to_bits)
    }

    /// Of words that another thread has.
    #[inline(always)]
    pub(crate) fn of_words(words: [u32; 2]) -> Self {
        let [score, value] = words.map(f32::from_bits);
        Self { score, value }
    }

    /// Whether scores have the other sign.
    #[inline(always)]
    pub(crate) fn negates_scores(self) -> bool {
        self.score.is_sign_negative()
    }

    /// What raw scores are multiplied by, without its sign, where they are bounded or have a bias. It is finite, as the
    /// factors and a small softcap may not be together; NaN stays.
    #[inline(always)]
    pub(crate) fn magnitude(self) -> f32 {
        let score = self.score.abs();
        if score == f32::INFINITY { f32::MAX } else { score }
    }

    /// The scale of scores without its sign. It is above 0, so that hidden keys stay at minus infinity; NaN stays.
    #[inline(always)]
    pub(crate) fn scale(self) -> ScoreScale {
        let score = self.score.abs();
        let log2 = if score < f32::MIN_POSITIVE { f32::MIN_POSITIVE } else { score };
        ScoreScale::of_tile(log2, rcp(log2))
    }
}
