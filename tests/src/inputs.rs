//! Inputs that a seed determines.

use ferrotile::Float;
use half::{bf16, f16};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;

use crate::poison::Poison;

/// The generator of every random input: the same numbers from the same seed on every machine.
pub type Random = Xoshiro256PlusPlus;

/// The environment variable that sets the seed of the property tests.
pub const VARIABLE: &str = "FERROTILE_SEED";

/// A 16-bit float type that kernels read and write.
pub trait Half: Float + Poison + Into<f64> {}

impl Half for f16 {}
impl Half for bf16 {}

/// A generator with this seed.
pub fn random(seed: u64) -> Random {
    Random::seed_from_u64(seed)
}

/// The seed of a property test: `FERROTILE_SEED`, or the time.
///
/// # Panics
/// When `FERROTILE_SEED` is not a number.
pub fn property_seed() -> u64 {
    match std::env::var(VARIABLE) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{VARIABLE} is '{text}', expected a number")),
        Err(_) => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.map_or(0, |time| time.as_nanos() as u64)
        }
    }
}

/// A normally distributed number with mean 0 and deviation 1.
pub fn normal_number(random: &mut Random) -> f64 {
    random.sample(StandardNormal)
}

/// An integer in `-largest..=largest`.
pub fn integer(random: &mut Random, largest: i32) -> f64 {
    f64::from(random.random_range(-largest..=largest))
}

/// Normally distributed elements with mean 0 and the given standard deviation.
pub fn normal<T: Half>(random: &mut Random, len: usize, deviation: f64) -> Vec<T> {
    (0..len).map(|_| T::from_f64(deviation * normal_number(random))).collect()
}

/// Integers in `-largest..=largest`: sums of their products are exact in f32, whatever the order.
pub fn integers<T: Half>(random: &mut Random, len: usize, largest: i32) -> Vec<T> {
    (0..len).map(|_| T::from_f64(integer(random, largest))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_the_input() {
        let draw = |seed| normal::<f16>(&mut random(seed), 100, 1.0);
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn normal_inputs_have_the_deviation_asked_for() {
        let values = normal::<bf16>(&mut random(7), 10_000, 3.0);
        let mean = values.iter().map(|x| x.to_f64()).sum::<f64>() / 1e4;
        let variance = values.iter().map(|x| x.to_f64().powi(2)).sum::<f64>() / 1e4;
        assert!(mean.abs() < 0.15 && (variance.sqrt() - 3.0).abs() < 0.15, "{mean} {variance}");
    }

    #[test]
    fn integer_inputs_are_integers_of_both_signs() {
        let values = integers::<f16>(&mut random(7), 1000, 2);
        for wanted in -2..=2 {
            assert!(values.contains(&f16::from_f32(wanted as f32)), "{wanted}");
        }
        assert!(values.iter().all(|x| x.to_f32().fract() == 0.0 && x.to_f32().abs() <= 2.0));
    }
}
