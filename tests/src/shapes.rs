//! Sizes at which kernels go wrong: around every tile edge, primes, and nothing at all.

/// One less, equal to and one more than the edge of a tile, for the given tiles, and 1; ascending, without repetition.
pub fn around(tiles: &[usize]) -> Vec<usize> {
    let mut sizes: Vec<usize> = tiles.iter().flat_map(|&tile| [tile - 1, tile, tile + 1]).chain([1]).collect();
    sizes.retain(|&size| size > 0);
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Primes: sizes that no tile divides.
pub const PRIMES: [usize; 4] = [3, 37, 131, 257];

/// The shapes (batch, heads, rows, head dimension) on which the error of a whole call is held to [`ACCEPTED_ERROR`].
pub const ACCEPTANCE: [(&str, [usize; 4]); 3] =
    [("small", [1, 1, 32, 64]), ("mission", [1, 8, 512, 64]), ("long", [1, 8, 2048, 64])];

/// The largest error on [`ACCEPTANCE`] shapes with normally distributed f16 inputs: absolute, and relative to the
/// largest element of the reference.
pub const ACCEPTED_ERROR: f64 = 1e-2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_edge_is_surrounded() {
        assert_eq!(around(&[32, 64]), [1, 31, 32, 33, 63, 64, 65]);
        assert_eq!(around(&[1]), [1, 2]);
        assert_eq!(around(&[]), [1]);
    }

    #[test]
    fn primes_are_prime() {
        for prime in PRIMES {
            assert!((2..prime).all(|divisor| prime % divisor != 0));
        }
    }
}
