//! The tables of cosines and sines, with the frequency scalings of models.

use std::f64::consts::PI;
use std::ops::Range;

use crate::checks::argument;
use crate::error::Result;

/// How frequencies are scaled to contexts longer than those of the training. With `f_i = base^(-2i / R)` for pair i of
/// R / 2, and the names of Hugging Face's `transformers` (`modeling_rope_utils.py`), whose results these are:
///
/// | scaling | frequency of pair i |
/// | --- | --- |
/// | none | `f_i` |
/// | linear | `f_i / factor` |
/// | dynamic NTK | `f_i` of the base `base (factor L / L0 - (factor - 1))^(R / (R - 2))`, L at least L0 |
/// | Llama 3 | `f_i` for short waves, `f_i / factor` for long ones, between them a mean of both |
/// | YaRN | a mean of `f_i` and `f_i / factor` by the turns in L0; cosines and sines are times `attention_factor` |
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum RotaryScaling {
    /// As trained (Su et al., RoFormer, arXiv 2104.09864).
    None,
    /// Positions divided by a factor (Chen et al., arXiv 2306.15595).
    Linear {
        /// What positions are divided by.
        factor: f64,
    },
    /// A larger base for longer sequences ("NTK-aware", `dynamic` of `transformers`).
    DynamicNtk {
        /// The factor of the configuration.
        factor: f64,
        /// L0: the context of the training.
        original_len: usize,
        /// L: the length of the sequence. Up to L0 nothing is scaled.
        len: usize,
    },
    /// That of Llama 3.1. With the wave length `w_i = 2 pi / f_i` a wave is short where `w_i < L0 / high_freq_factor`,
    /// long where `w_i > L0 / low_freq_factor`. Between them `f_i` has the weight
    /// `(L0 / w_i - low_freq_factor) / (high_freq_factor - low_freq_factor)`.
    Llama3 {
        /// What the frequencies of long waves are divided by.
        factor: f64,
        /// The turns in L0 below which a wave is long.
        low_freq_factor: f64,
        /// The turns in L0 above which a wave is short.
        high_freq_factor: f64,
        /// L0: the context of the training.
        original_len: usize,
    },
    /// Peng et al., arXiv 2309.00071. The pair with r turns in L0 is `d(r) = R ln(L0 / (2 pi r)) / (2 ln base)`. From
    /// `low = floor(d(beta_fast))` to `high = ceil(d(beta_slow))`, cut to 0 and R - 1, the weight of `f_i / factor`
    /// rises from 0 to 1.
    Yarn {
        /// What low frequencies are divided by.
        factor: f64,
        /// The turns above which a frequency stays: 32 in the paper.
        beta_fast: f64,
        /// The turns below which it is divided: 1 in the paper.
        beta_slow: f64,
        /// L0: the context of the training.
        original_len: usize,
        /// What cosines and sines are multiplied by; `None` for `0.1 ln(factor) + 1`, or 1 for factors up to 1.
        attention_factor: Option<f64>,
    },
}

/// The frequencies of a model, and its tables.
///
/// ```
/// use ferrotile::{RotaryFrequencies, RotaryScaling};
///
/// let llama2 = RotaryFrequencies { base: 10_000.0, rotary_dim: 128, scaling: RotaryScaling::None };
/// let (cos, sin) = llama2.table(0..4096)?;
/// assert_eq!((cos.len(), sin.len()), (4096 * 64, 4096 * 64)); // [positions, rotary_dim / 2]
/// assert_eq!((cos[0], sin[0]), (1.0, 0.0));
/// assert_eq!(sin[3 * 64], 3_f64.sin() as f32);
/// # Ok::<(), ferrotile::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RotaryFrequencies {
    /// The base of the frequencies: 10,000 or 500,000 (`rope_theta`).
    pub base: f64,
    /// The columns that are rotated, even.
    pub rotary_dim: usize,
    /// How frequencies are scaled.
    pub scaling: RotaryScaling,
}

impl RotaryFrequencies {
    /// Radians from one position to the next, of each pair.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) for a rotary dimension that is odd, and numbers that are not above 0
    /// and finite, or not what their formula takes.
    pub fn inverse_frequencies(&self) -> Result<Vec<f64>> {
        let dim = self.rotary_dim as f64;
        if !self.rotary_dim.is_multiple_of(2) {
            return Err(argument("rotary", "rotary_dim", self.rotary_dim, "an even number"));
        }
        self.check()?;
        let of_base = |base: f64| move |pair: usize| base.powf(-((2 * pair) as f64) / dim);
        let of_pair = of_base(self.base);
        let pairs = 0..self.rotary_dim / 2;
        Ok(match self.scaling {
            RotaryScaling::None => pairs.map(of_pair).collect(),
            RotaryScaling::Linear { factor } => pairs.map(|pair| of_pair(pair) / factor).collect(),
            RotaryScaling::DynamicNtk { factor, original_len, len } => {
                let ratio = len.max(original_len) as f64 / original_len as f64;
                let base = self.base * (factor * ratio - (factor - 1.0)).powf(dim / (dim - 2.0));
                pairs.map(of_base(base)).collect()
            }
            RotaryScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_len } => {
                let scaled = |frequency: f64| {
                    let turns = original_len as f64 * frequency / (2.0 * PI);
                    let weight = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    let weight = weight.clamp(0.0, 1.0);
                    (1.0 - weight) * frequency / factor + weight * frequency
                };
                pairs.map(of_pair).map(scaled).collect()
            }
            RotaryScaling::Yarn { factor, beta_fast, beta_slow, original_len, .. } => {
                let pair_of =
                    |turns: f64| dim * (original_len as f64 / (2.0 * PI * turns)).ln() / (2.0 * self.base.ln());
                let low = pair_of(beta_fast).floor().max(0.0);
                let high = pair_of(beta_slow).ceil().min(dim - 1.0);
                let high = if low == high { high + 0.001 } else { high };
                let scaled = |pair: usize| {
                    let weight = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    of_pair(pair) / factor * weight + of_pair(pair) * (1.0 - weight)
                };
                pairs.map(scaled).collect()
            }
        })
    }

    /// Cosines and sines, `[positions, rotary_dim / 2]` each: angles and their functions are f64, rounded to f32 once.
    ///
    /// # Errors
    /// Those of [`RotaryFrequencies::inverse_frequencies`].
    pub fn table(&self, positions: Range<usize>) -> Result<(Vec<f32>, Vec<f32>)> {
        let frequencies = self.inverse_frequencies()?;
        let times = match self.scaling {
            RotaryScaling::Yarn { factor, attention_factor, .. } => {
                attention_factor.unwrap_or(if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 })
            }
            _ => 1.0,
        };
        let angles = positions.flat_map(|position| frequencies.iter().map(move |step| position as f64 * step));
        Ok(angles.map(|angle| ((times * angle.cos()) as f32, (times * angle.sin()) as f32)).unzip())
    }

    /// Whether the numbers are what the formulas take.
    fn check(&self) -> Result<()> {
        let mut above_0 = vec![("base", self.base)];
        match self.scaling {
            RotaryScaling::None => {}
            RotaryScaling::Linear { factor } => above_0.push(("factor", factor)),
            RotaryScaling::DynamicNtk { factor, original_len, .. } => {
                above_0.extend([("factor", factor), ("original_len", original_len as f64)]);
                if self.rotary_dim == 2 {
                    return Err(argument("rotary", "rotary_dim", 2, "more than 2 for dynamic NTK"));
                }
                if factor < 1.0 {
                    return Err(argument("rotary", "factor", factor, "at least 1 for dynamic NTK"));
                }
            }
            RotaryScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_len } => {
                above_0.extend([("factor", factor), ("original_len", original_len as f64)]);
                above_0.push(("high_freq_factor - low_freq_factor", high_freq_factor - low_freq_factor));
            }
            RotaryScaling::Yarn { factor, beta_fast, beta_slow, original_len, attention_factor } => {
                above_0.extend([("factor", factor), ("original_len", original_len as f64), ("beta_fast", beta_fast)]);
                above_0.extend([("beta_slow", beta_slow), ("attention_factor", attention_factor.unwrap_or(1.0))]);
                above_0.push(("base - 1", self.base - 1.0));
            }
        }
        match above_0.into_iter().find(|(_, number)| !(number.is_finite() && *number > 0.0)) {
            Some((name, number)) => Err(argument("rotary", name, number, "a finite number above 0")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(base: f64, rotary_dim: usize, scaling: RotaryScaling) -> Vec<f64> {
        RotaryFrequencies { base, rotary_dim, scaling }.inverse_frequencies().unwrap()
    }

    fn close(got: f64, expected: f64) {
        assert!((got / expected - 1.0).abs() < 1e-12, "{got}, expected {expected}");
    }

    #[test]
    fn dynamic_ntk_stretches_the_slowest_wave_by_the_ratio() {
        let plain = steps(1e4, 64, RotaryScaling::None);
        let of_len = |len| steps(1e4, 64, RotaryScaling::DynamicNtk { factor: 2.0, original_len: 100, len });
        assert_eq!(of_len(99), plain);
        // (2 * 3 - 1)^(64 / 62) to the power of -62 / 64.
        close(of_len(300)[31], plain[31] / 5.0);
        close(of_len(300)[0], 1.0);
    }

    #[test]
    fn llama3_divides_long_waves_alone() {
        let (factor, low_freq_factor, high_freq_factor, original_len) = (8.0, 1.0, 4.0, 8192);
        let scaling = RotaryScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_len };
        let (plain, scaled) = (steps(5e5, 128, RotaryScaling::None), steps(5e5, 128, scaling));
        let mut kinds = [0; 3];
        for (plain, scaled) in plain.into_iter().zip(scaled) {
            let wave = 2.0 * PI / plain;
            if wave < 8192.0 / 4.0 {
                close(scaled, plain);
                kinds[0] += 1;
            } else if wave > 8192.0 {
                close(scaled, plain / 8.0);
                kinds[1] += 1;
            } else {
                let smooth = (8192.0 / wave - 1.0) / 3.0;
                close(scaled, (1.0 - smooth) * plain / 8.0 + smooth * plain);
                kinds[2] += 1;
            }
        }
        assert!(kinds.iter().all(|&count| count > 0), "{kinds:?}");
    }

    #[test]
    fn yarn_keeps_fast_waves_divides_slow_ones_and_has_a_factor() {
        let (factor, beta_fast, beta_slow, original_len) = (4.0, 32.0, 1.0, 4096);
        let scaling = RotaryScaling::Yarn { factor, beta_fast, beta_slow, original_len, attention_factor: None };
        let (plain, scaled) = (steps(1e4, 128, RotaryScaling::None), steps(1e4, 128, scaling));
        // low = floor(20.94), high = ceil(45.03).
        close(scaled[20], plain[20]);
        close(scaled[46], plain[46] / 4.0);
        close(scaled[33], plain[33] / 4.0 * 0.5 + plain[33] * 0.5);
        let (cos, sin) = RotaryFrequencies { base: 1e4, rotary_dim: 128, scaling }.table(0..1).unwrap();
        assert_eq!((cos[5], sin[5]), ((0.1 * 4_f64.ln() + 1.0) as f32, 0.0));
    }

    #[test]
    fn linear_scaling_is_that_of_positions() {
        close(steps(1e4, 64, RotaryScaling::Linear { factor: 4.0 })[3], steps(1e4, 64, RotaryScaling::None)[3] / 4.0);
    }

    /// Angles of a million radians keep the digits that f32 shows.
    #[test]
    fn large_positions_are_angles_in_f64() {
        let plain = RotaryFrequencies { base: 1e4, rotary_dim: 2, scaling: RotaryScaling::None };
        let (cos, _) = plain.table(1_048_576..1_048_577).unwrap();
        let angle = 1_048_576_f64 - 2.0 * PI * (1_048_576_f64 / (2.0 * PI)).floor();
        assert!((f64::from(cos[0]) - angle.cos()).abs() < 1e-7, "{}", cos[0]);
    }

    #[test]
    fn numbers_that_no_formula_takes_are_refused() {
        let of = |base, rotary_dim, scaling| RotaryFrequencies { base, rotary_dim, scaling }.table(0..1).is_err();
        assert!(of(1e4, 3, RotaryScaling::None) && of(0.0, 4, RotaryScaling::None));
        assert!(of(1e4, 4, RotaryScaling::Linear { factor: f64::NAN }));
        assert!(of(1e4, 2, RotaryScaling::DynamicNtk { factor: 2.0, original_len: 4, len: 8 }));
    }
}
