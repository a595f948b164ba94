//! Where the elements of tensors come from: ordinary numbers, and the ends of what a type holds.

use ferrotile::{Dtype, Float};
use rand::RngExt;
use rand_distr::StandardNormal;
use serde::{Deserialize, Serialize};

use super::sizes::Random;

/// A distribution of the elements of a tensor, whatever its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Values {
    /// Normally distributed, of deviation 1.
    #[default]
    Normal,
    /// Integers from -2 to 2: most sums are exact.
    Integers,
    /// Zeros, of both signs.
    Zeros,
    /// Ones.
    Ones,
    /// Normally distributed, of deviation 100.
    Hundreds,
    /// Normally distributed, of deviation 0.16, and one in sixteen of 16: sums cut off the small ones.
    Spikes,
    /// The least normal number, times -2 to 2.
    Tiny,
    /// Numbers below the normal ones.
    Denormals,
    /// Magnitudes from the least to the largest, each binade as likely.
    Wide,
    /// From half of the largest finite number to all of it, of both signs.
    Huge,
    /// One element of the largest finite number or its negative, among tiny ones.
    OneHuge,
    /// The lowest finite number everywhere.
    Lowest,
    /// The largest finite number everywhere.
    Largest,
    /// Normal numbers, and some infinities of both signs.
    Infinities,
}

impl Values {
    /// Distributions of which a sum of a few thousand products stays within f32, whatever the type.
    const TAME: [Values; 8] = [
        Values::Normal,
        Values::Integers,
        Values::Zeros,
        Values::Ones,
        Values::Hundreds,
        Values::Spikes,
        Values::Tiny,
        Values::Denormals,
    ];

    /// Distributions that reach the ends of the type.
    const VAST: [Values; 5] = [Values::Wide, Values::Huge, Values::OneHuge, Values::Lowest, Values::Largest];

    /// A distribution of finite numbers; half of the time the normal one.
    pub(crate) fn draw(random: &mut Random) -> Values {
        match random.random_range(0..10) {
            0..5 => Values::Normal,
            5..8 => Values::TAME[random.random_range(0..Values::TAME.len())],
            _ => Values::VAST[random.random_range(0..Values::VAST.len())],
        }
    }

    /// A distribution without the ends of the type.
    pub(crate) fn draw_tame(random: &mut Random) -> Values {
        if random.random() { Values::Normal } else { Values::TAME[random.random_range(0..Values::TAME.len())] }
    }

    /// Normal numbers in the place of those that reach the ends of the type.
    pub(crate) fn tame(&mut self) {
        if self.are_vast() || *self == Values::Infinities {
            *self = Values::Normal;
        }
    }

    /// Whether numbers reach the ends of the type.
    pub(crate) fn are_vast(self) -> bool {
        Values::VAST.contains(&self)
    }

    /// Simpler distributions, the simplest first.
    pub(crate) fn simpler(self) -> Vec<Values> {
        let all = [Values::Zeros, Values::Ones, Values::Integers, Values::Normal, Values::Lowest, Values::Huge];
        let known = all.iter().position(|&values| values == self).unwrap_or(all.len());
        all[..known].to_vec()
    }

    /// Elements of the distribution.
    pub(crate) fn fill<T: Float>(self, random: &mut Random, len: usize) -> Vec<T> {
        let Range { least, least_normal, largest } = Range::of(T::DTYPE);
        let special = if len > 0 { random.random_range(0..len) } else { 0 };
        let sign = |random: &mut Random| if random.random() { 1.0 } else { -1.0 };
        let normal = |random: &mut Random| random.sample::<f64, _>(StandardNormal);
        let element = |index: usize| {
            let value = match self {
                Values::Normal => normal(random),
                Values::Integers => f64::from(random.random_range(-2..=2)),
                Values::Zeros => 0.0 * sign(random),
                Values::Ones => 1.0,
                Values::Hundreds => 100.0 * normal(random),
                Values::Spikes if random.random_bool(1.0 / 16.0) => 16.0 * sign(random),
                Values::Spikes => 0.16 * normal(random),
                Values::Tiny => least_normal * random.random_range(-2.0..=2.0),
                Values::Denormals => least * f64::from(random.random_range(-7..=7)),
                Values::Wide => random.random_range(least.log2()..=largest.log2()).exp2() * sign(random),
                Values::Huge => largest * random.random_range(0.5..=1.0) * sign(random),
                Values::OneHuge if index == special => largest * sign(random),
                Values::OneHuge => least_normal * random.random_range(-2.0..=2.0),
                Values::Lowest => -largest,
                Values::Largest => largest,
                Values::Infinities if random.random_bool(0.02) => f64::INFINITY * sign(random),
                Values::Infinities => normal(random),
            };
            T::from_f64(if value.is_finite() { value.clamp(-largest, largest) } else { value })
        };
        (0..len).map(element).collect()
    }
}

/// The magnitudes that a type holds.
pub(crate) struct Range {
    /// The least number above 0.
    pub(crate) least: f64,
    /// The least that has all bits.
    pub(crate) least_normal: f64,
    /// The largest finite number.
    pub(crate) largest: f64,
}

impl Range {
    /// The magnitudes of a type.
    pub(crate) fn of(dtype: Dtype) -> Range {
        let (normal_exponent, largest) = match dtype {
            Dtype::F16 => (-14, 65504.0),
            Dtype::Bf16 => (-126, f64::from(f32::from_bits(0x7f7f_0000))),
            Dtype::F32 => (-126, f64::from(f32::MAX)),
            Dtype::E4M3 => (-6, 448.0),
            Dtype::E5M2 => (-14, 57344.0),
            // Its step is less than 2^2.
            Dtype::U8 => (0, 448.0),
        };
        let least_normal = f64::from(normal_exponent).exp2();
        Range { least: least_normal * f64::from(dtype.epsilon_exponent()).exp2(), least_normal, largest }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn every_distribution_stays_within_its_type() {
        let mut random = Random::seed_from_u64(1);
        for values in Values::TAME.into_iter().chain(Values::VAST) {
            assert!(values.fill::<half::f16>(&mut random, 500).iter().all(|x| x.is_finite()), "{values:?}");
            assert!(values.fill::<bf16>(&mut random, 500).iter().all(|x| x.is_finite()), "{values:?}");
        }
        assert!(Values::Infinities.fill::<bf16>(&mut random, 500).iter().any(|x| x.is_infinite()));
        let one = Values::OneHuge.fill::<bf16>(&mut random, 500);
        assert_eq!(one.iter().filter(|x| x.to_f32().abs() > 1.0).count(), 1);
        let wide = Values::Wide.fill::<bf16>(&mut random, 500);
        assert!(wide.iter().any(|x| x.to_f32().abs() > 1e30) && wide.iter().any(|x| x.to_f32().abs() < 1e-30));
        let denormal = Values::Denormals.fill::<bf16>(&mut random, 500);
        assert!(
            denormal.iter().all(|x| x.to_f32().abs() < f32::MIN_POSITIVE) && denormal.iter().any(|x| x.to_f32() != 0.0)
        );
    }
}
