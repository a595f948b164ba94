//! Online softmax over the rows of a warp.
//!
//! A lane holds parts of two rows, `lane / 4` and the row 8 below, in the accumulator layout of `mma` and `wgmma`
//! ([`layout::fragment::mma_m16n8k16_c`] for every 8 keys). Registers 0, 1, 4, 5 of 16 keys belong to the first row, 2,
//! 3, 6, 7 to the second. Maxima are the whole row's in every lane of its quad; sums are the lane's own until
//! [`RowState::finalize`].
//!
//! With running maximum m, sum l and scores s of the next keys: `m' = max(m, max s)`, `a = 2^(c (m - m'))`,
//! `p = 2^(c (s - m'))`, `l' = a l + sum p`, `O' = a O + p V` (Milakov and Gimelshein 2018; Dao et al. 2022), where
//! `c = scale * log2(e)`. The maximum is exact: in each step it is that of all keys so far. So the largest probability
//! of a row is 1, which rounding to 16 bits keeps. O is then up to 5 % nearer to the exact result than with a maximum
//! that may lag (`docs/measurements/attention_sm90_softmax.md`).
//!
//! While maxima are small, the exponent takes one instruction a score: `fma(s, c, -c m')`. The rounding of `c m'` stays
//! in the exponent of all terms of a row. It is at most 2^-17 up to [`variants::attention::exact_from`], but tens at
//! 4e8. In a step in which a warp has a larger score, the warp subtracts m' first. The exponent is then `(s - m') c`,
//! exactly 0 for the maximum. Subtracting in every step would cost 3 to 7 % where tiles have many steps.
//! [`Subtraction`] says what each kernel does.

use core::hint::cold_path;

use cuda_std::convert::{ex2, fma, lg2, max, rcp};
use cuda_std::warp::{FULL_MASK, quad_max, quad_sum, warp_vote_any};
use variants::attention::AttentionArgs;

/// How a launch turns scores into powers of two.
#[derive(Clone, Copy)]
pub(crate) struct ScoreScale {
    /// A score times this is the logarithm to base 2 of its term.
    pub(crate) log2: f32,
    /// The bits of the maximum above which it is subtracted first.
    exact_from: u32,
}

impl ScoreScale {
    #[inline(always)]
    pub(crate) fn new(args: &AttentionArgs) -> Self {
        Self { log2: args.scale_log2, exact_from: args.exact_from.to_bits() }
    }

    /// The scale of a tile whose scores have factors of their own: `log2`, above 0, of which `reciprocal` is near the
    /// reciprocal.
    #[inline(always)]
    pub(crate) fn of_tile(log2: f32, reciprocal: f32) -> Self {
        Self { log2, exact_from: (variants::attention::exact_from(1.0) * reciprocal).to_bits() }
    }

    /// Whether a score, or a maximum, is larger on either side than the exponent by one instruction bears; infinite
    /// ones are not.
    #[inline(always)]
    fn is_large(self, score: f32) -> bool {
        const INFINITY: u32 = f32::INFINITY.to_bits();
        (score.to_bits() & !(1 << 31)).wrapping_sub(self.exact_from) < INFINITY.wrapping_sub(self.exact_from)
    }
}

/// When maxima are subtracted from scores before these are scaled, and how a warp finds out that its scores are large.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subtraction {
    /// Never: scores are from 0 to 1, or minus infinity, and scaled by up to 2^8.
    Never,
    /// Where scores are large. A vote of its own finds that before lanes exchange their maxima, so that exponentials
    /// wait less for the vote.
    LargeEarly,
    /// Where scores are large, or a maximum is negative: one vote behind the exchange finds both. It is faster than two
    /// votes in kernels of four consumer warpgroups.
    LargeLate,
    /// In every step: one instruction a score, and no branch. For kernels of few steps a tile.
    Always,
}

/// Running maximum and sum of this lane's two rows.
pub(crate) struct RowState {
    /// Largest score.
    pub(crate) max: [f32; 2],
    /// Sum of the probabilities, this lane's part.
    pub(crate) sum: [f32; 2],
    /// What is added to scaled scores before the power of two.
    shifts: [f32; 2],
    /// Whether a maximum of the warp is negative; or large, with [`Subtraction::LargeLate`].
    unusual: bool,
    subtraction: Subtraction,
    /// The power of two that probabilities are multiplied by, and with them the sum.
    exponent: i32,
}

/// What the epilogue needs of a finished row.
#[derive(Clone, Copy)]
pub(crate) struct RowResult {
    /// What O is multiplied by; 0 where the row saw no score above minus infinity.
    pub(crate) normaliser: f32,
    /// `ln (exp(sink) + sum exp(scale * s))`, or the sink there.
    pub(crate) lse: f32,
}

impl RowState {
    /// Rows that have seen no key.
    #[inline(always)]
    pub(crate) const fn empty(subtraction: Subtraction) -> Self {
        Self::empty_times_power(subtraction, 0)
    }

    /// The same where probabilities are multiplied by `2^exponent`.
    #[inline(always)]
    pub(crate) const fn empty_times_power(subtraction: Subtraction, exponent: i32) -> Self {
        Self {
            max: [f32::NEG_INFINITY; 2],
            sum: [0.0; 2],
            shifts: [0.0; 2],
            unusual: !matches!(subtraction, Subtraction::Never),
            subtraction,
            exponent,
        }
    }

    /// Turns scores into probabilities, adds them up, and returns what O is scaled by: 1 for a row whose maximum stays.
    ///
    /// `CHAINS` maxima and sums of a row are found side by side, where few warps hide each other's latency.
    ///
    /// # Safety
    /// All lanes of the warp call it together.
    #[inline(always)]
    pub(crate) unsafe fn step<const CHAINS: usize>(&mut self, scores: &mut [f32], scale: ScoreScale) -> [f32; 2] {
        // SAFETY: the caller's contract.
        let factors = unsafe { self.update_max::<CHAINS>(scores, scale) };
        self.exp_row_sum::<CHAINS>(scores, scale);
        factors
    }

    /// The first half of a step: the maxima are those of these scores too; returns what O is scaled by, as the sums so
    /// far are. Large maxima are subtracted from the scores.
    ///
    /// # Safety
    /// All lanes of the warp call it together.
    #[inline(always)]
    pub(crate) unsafe fn update_max<const CHAINS: usize>(&mut self, scores: &mut [f32], scale: ScoreScale) -> [f32; 2] {
        let own = self.largest::<CHAINS>(scores);
        let early = self.subtraction == Subtraction::LargeEarly
            // SAFETY: all lanes of the warp are here.
            && unsafe { warp_vote_any(FULL_MASK, own.iter().any(|&own| scale.is_large(own))) };
        // SAFETY: as above.
        let seen = unsafe { own.map(|own| quad_max(own)) };
        let factors = [0, 1].map(|half| split_weight(self.max[half], seen[half], scale.log2));
        self.max = seen;
        self.sum = [0, 1].map(|half| self.sum[half] * factors[half]);
        self.shifts = seen.map(|seen| match self.exponent {
            0 => -base(seen) * scale.log2,
            exponent => fma(-base(seen), scale.log2, exponent as f32),
        });
        let unusual = seen.iter().any(|seen| match self.subtraction {
            Subtraction::Never => false,
            Subtraction::LargeEarly | Subtraction::Always => seen.is_sign_negative(),
            // The bits of a negative number are above those of all others.
            Subtraction::LargeLate => seen.to_bits() > scale.exact_from,
        });
        if self.subtraction != Subtraction::Never {
            // SAFETY: as above.
            self.unusual = unsafe { warp_vote_any(FULL_MASK, unusual) };
        }
        if self.subtraction == Subtraction::Always {
            self.subtract_maxima(scores);
        } else if early || (self.subtraction == Subtraction::LargeLate && self.unusual) {
            cold_path();
            self.subtract_maxima(scores);
        }
        factors
    }

    /// Makes scores relative to their maxima: the exponents of these are then exactly 0.
    #[inline(always)]
    fn subtract_maxima(&mut self, scores: &mut [f32]) {
        for index in 0..scores.len() {
            scores[index] -= base(self.max[row_of(index)]);
        }
        self.shifts = [self.exponent as f32; 2];
    }

    /// The second half of a step, at once or part by part, each of whole fours of scores: turns them into probabilities
    /// and adds them up.
    #[inline(always)]
    pub(crate) fn exp_row_sum<const CHAINS: usize>(&mut self, scores: &mut [f32], scale: ScoreScale) {
        let mut sums = [[0.0; 2]; CHAINS];
        sums[0] = self.sum;
        for index in 0..scores.len() {
            let score = &mut scores[index];
            *score = ex2(fma(*score, scale.log2, self.shifts[row_of(index)]));
            sums[index % CHAINS][row_of(index)] += *score;
        }
        self.sum = total(sums);
    }

    /// Turns whole fours of scores into probabilities, which [`Self::row_sum`] adds up later.
    #[cfg(target_feature = "sm_90a")]
    #[inline(always)]
    pub(crate) fn exp(&self, scores: &mut [f32], scale: ScoreScale) {
        for index in 0..scores.len() {
            scores[index] = ex2(fma(scores[index], scale.log2, self.shifts[row_of(index)]));
        }
    }

    /// Adds up whole fours of probabilities.
    #[cfg(target_feature = "sm_90a")]
    #[inline(always)]
    pub(crate) fn row_sum<const CHAINS: usize>(&mut self, probabilities: &[f32]) {
        let mut sums = [[0.0; 2]; CHAINS];
        sums[0] = self.sum;
        for index in 0..probabilities.len() {
            sums[index % CHAINS][row_of(index)] += probabilities[index];
        }
        self.sum = total(sums);
    }

    /// The largest of the maxima and the scores, of this lane's two rows.
    ///
    /// Positive floats, read as integers, keep their order and are above negative ones. So the maximum of the integers
    /// is that of the floats, unless a maximum is negative and finite. sm_90 finds the maximum of three integers as
    /// fast as that of two floats.
    #[inline(always)]
    fn largest<const CHAINS: usize>(&self, scores: &[f32]) -> [f32; 2] {
        if cfg!(target_feature = "sm_90a") && !self.unusual {
            let bits = |value: f32| value.to_bits() as i32;
            let largest = fold::<_, CHAINS>(self.max.map(bits), i32::MIN, scores, bits, i32::max);
            largest.map(|bits| f32::from_bits(bits as u32))
        } else {
            fold::<_, CHAINS>(self.max, f32::NEG_INFINITY, scores, |score| score, max)
        }
    }

    /// 0, found from the sums: their sign. Whatever uses it is executed after the last step.
    #[cfg(target_feature = "sm_90a")]
    #[inline(always)]
    pub(crate) fn zero(&self) -> u32 {
        (self.sum[0].to_bits() | self.sum[1].to_bits()) >> 31
    }

    /// The result of this lane's two rows.
    ///
    /// # Safety
    /// All lanes of the warp call it together.
    #[inline(always)]
    pub(crate) unsafe fn finalize(&self, scale: ScoreScale, sink: f32) -> [RowResult; 2] {
        // SAFETY: all lanes of the warp are here.
        let sums = self.sum.map(|sum| unsafe { quad_sum(sum) });
        if self.exponent == 0 {
            return [0, 1].map(|half| row_result(self.max[half], sums[half], scale.log2, sink));
        }
        // Exact, as powers of two are.
        let unit = f32::from_bits(((127 - self.exponent) as u32) << 23);
        [0, 1].map(|half| {
            let row = row_result(self.max[half], sums[half] * unit, scale.log2, sink);
            RowResult { normaliser: row.normaliser * unit, ..row }
        })
    }

    /// The same where scores are `above` what they stand for.
    ///
    /// # Safety
    /// As [`Self::finalize`].
    #[cfg(target_feature = "sm_90a")]
    #[inline(always)]
    pub(crate) unsafe fn finalize_above(&self, scale: ScoreScale, sink: f32, above: f32) -> [RowResult; 2] {
        // SAFETY: the caller's contract.
        let results = unsafe { self.finalize(scale, sink + above) };
        results.map(|row| RowResult { lse: row.lse - above, ..row })
    }
}

/// Scales accumulators of this lane's two rows. Each half is scaled only where a factor of the warp is not 1, because
/// after the first steps few maxima grow.
///
/// # Safety
/// All lanes of the warp call it together.
#[inline(always)]
pub(crate) unsafe fn rescale_rows(values: &mut [f32], factors: [f32; 2]) {
    for half in 0..2 {
        // SAFETY: the caller's contract.
        if unsafe { warp_vote_any(FULL_MASK, factors[half] != 1.0) } {
            for pair in 0..values.len() / 4 {
                for column in 0..2 {
                    values[4 * pair + 2 * half + column] *= factors[half];
                }
            }
        }
    }
}

/// The sum of the chains of each row.
#[inline(always)]
fn total<const CHAINS: usize>(sums: [[f32; 2]; CHAINS]) -> [f32; 2] {
    let mut total = sums[0];
    for chain in 1..CHAINS {
        total = [0, 1].map(|half| total[half] + sums[chain][half]);
    }
    total
}

/// Which of a lane's two rows the accumulator of this number belongs to.
#[inline(always)]
const fn row_of(index: usize) -> usize {
    index / 2 % 2
}

/// `larger` over the scores of each of this lane's two rows and `start`, in `CHAINS` chains; `least` is no larger than
/// anything.
#[inline(always)]
fn fold<T: Copy, const CHAINS: usize>(
    start: [T; 2],
    least: T,
    scores: &[f32],
    value: impl Fn(f32) -> T,
    larger: impl Fn(T, T) -> T,
) -> [T; 2] {
    let mut chains = [[least; 2]; CHAINS];
    chains[0] = start;
    for index in 0..scores.len() {
        let seen = &mut chains[index % CHAINS][row_of(index)];
        *seen = larger(*seen, value(scores[index]));
    }
    let mut seen = chains[0];
    for chain in 1..CHAINS {
        seen = [0, 1].map(|row| larger(seen[row], chains[chain][row]));
    }
    seen
}

/// What scores are relative to: their maximum. A row that has seen no score above minus infinity has minus infinity as
/// its maximum. 0 in its place gives 2^-inf = 0 instead of NaN.
#[inline(always)]
pub(crate) fn base(row_max: f32) -> f32 {
    if row_max == f32::NEG_INFINITY { 0.0 } else { row_max }
}

/// What the terms of a part, relative to its maximum, are multiplied by to be relative to that of all parts.
#[inline(always)]
pub(crate) fn split_weight(part_max: f32, row_max: f32, scale_log2: f32) -> f32 {
    ex2((part_max - base(row_max)) * scale_log2)
}

/// The result of a row of this maximum (of scores) and sum, to which `exp(sink)` is added: that of a key whose value is
/// 0.
///
/// The sum is relative to the maximum. A sink above the maximum takes its place, so that the sum does not overflow. The
/// LSE overflows where f32 cannot hold it. A row that has seen no score above minus infinity has the sink as its LSE.
#[inline(always)]
pub(crate) fn row_result(max: f32, sum: f32, scale_log2: f32, sink: f32) -> RowResult {
    // In nats; the true one may be beyond f32 on either side.
    let largest = max * (scale_log2 * core::f32::consts::LN_2);
    let above = (sink - largest.max(f32::MIN)) * core::f32::consts::LOG2_E;
    let factor = ex2((-above).min(0.0));
    let sum = fma(sum, factor, ex2(above.min(0.0)));
    let lse = fma(lg2(sum), core::f32::consts::LN_2, largest.max(sink));
    RowResult { normaliser: if sum == 0.0 { 0.0 } else { factor * rcp(sum) }, lse }
}
