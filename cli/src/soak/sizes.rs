//! What is drawn: sizes, log-uniform around every edge, and the element types of kernels.

use ferrotile::Dtype;
use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;

/// The generator of everything that is drawn: the same numbers from the same seed on every machine.
pub(crate) type Random = Xoshiro256PlusPlus;

/// The 16-bit types.
pub(crate) const HALVES: [Dtype; 2] = [Dtype::F16, Dtype::Bf16];

/// Edges of the tiles, steps and pages of kernels.
const EDGES: [usize; 14] = [8, 16, 32, 48, 64, 96, 128, 160, 176, 192, 256, 384, 512, 1024];

/// Sizes that no tile divides.
const PRIMES: [usize; 12] = [2, 3, 5, 7, 13, 37, 67, 131, 197, 257, 521, 1031];

/// A length of at most `most`: nothing, one, around an edge, a prime, or any, small ones as likely as large ones.
pub(crate) fn length(random: &mut Random, most: usize) -> usize {
    let within = |list: &[usize]| list.iter().filter(|&&size| size <= most).count();
    let size = match random.random_range(0..20) {
        0 => 0,
        1 => 1,
        2..10 if within(&EDGES) > 0 => EDGES[random.random_range(0..within(&EDGES))] + random.random_range(0..3) - 1,
        10..13 if within(&PRIMES) > 0 => PRIMES[random.random_range(0..within(&PRIMES))],
        _ => log_uniform(random, most),
    };
    size.min(most)
}

/// A number from 1 to `most`, each power of two as likely; 0 where `most` is.
pub(crate) fn log_uniform(random: &mut Random, most: usize) -> usize {
    if most == 0 {
        return 0;
    }
    let exponent = random.random_range(0.0..=((most + 1) as f64).log2());
    (exponent.exp2() as usize).clamp(1, most)
}

/// A head dimension: half of them are those that tensor-core kernels are made for.
pub(crate) fn head_dim(random: &mut Random) -> usize {
    if random.random() { [64, 128, 192, 256][random.random_range(0..4)] } else { 8 * random.random_range(1..=32) }
}

/// One of the names, drawn at random; `None` for an empty list.
pub(crate) fn pick(random: &mut Random, names: impl Iterator<Item = &'static str>) -> Option<String> {
    let names: Vec<_> = names.collect();
    (!names.is_empty()).then(|| names[random.random_range(0..names.len())].to_owned())
}

/// Draws with sizes of at most `most`, and of ever fewer until the cost of what is drawn is within `work`.
pub(crate) fn within<P>(
    random: &mut Random,
    [most, work]: [usize; 2],
    draw: impl Fn(&mut Random, usize) -> P,
    cost: impl Fn(&P) -> usize,
) -> P {
    let mut most = most;
    loop {
        let drawn = draw(random, most);
        if most == 1 || cost(&drawn) <= work {
            return drawn;
        }
        most = (most * 7 / 8).max(1);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use rand::SeedableRng;

    use super::*;

    #[test]
    fn lengths_are_of_every_kind() {
        let mut random = Random::seed_from_u64(2);
        let drawn: HashSet<usize> = (0..3000).map(|_| length(&mut random, 300)).collect();
        assert!([0, 1, 63, 64, 65, 127, 128, 129, 131, 257].iter().all(|size| drawn.contains(size)));
        assert!(drawn.iter().all(|&size| size <= 300));
        assert_eq!(length(&mut random, 0), 0);
    }

    #[test]
    fn what_costs_too_much_is_drawn_again() {
        let mut random = Random::seed_from_u64(3);
        for _ in 0..100 {
            let [a, b] =
                within(&mut random, [1000, 500], |r, most| [length(r, most), length(r, most)], |s| s[0] * s[1]);
            assert!(a * b <= 500);
        }
    }
}
