//! Sums of f32 rounded down, as range reductions of `exp` use them.

/// `a b + c` rounded once, towards minus infinity.
pub(crate) fn fma_down(a: f32, b: f32, c: f32) -> f32 {
    // The product of two f32 is exact in f64; the sum and its error are a pair without an error (Knuth's TwoSum).
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    let rounded = sum as f32;
    if !sum.is_finite() {
        return rounded;
    }
    let other = sum - product;
    let error = (product - (sum - other)) + (c - other);
    let nearest = f64::from(rounded);
    if nearest > sum || nearest == sum && error < 0.0 {
        return rounded.next_down();
    }
    // What cancels is -0 in this rounding.
    if rounded == 0.0 && product != 0.0 && product == -c { -0.0 } else { rounded }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_rounded_down() {
        let tiny = f32::from_bits(1);
        for (a, b, c, expected) in [
            (2.0, 3.0, 1.0, 7.0),
            (1.0, 1.0, -tiny, 1f32.next_down()),
            (1.0, 1.0, tiny, 1.0),
            (-1.0, 1.0, -tiny, (-1f32).next_down()),
            (-1.0, 1.0, tiny, -1.0),
            (f32::MAX, 2.0, 0.0, f32::MAX),
            (-f32::MAX, 2.0, 0.0, f32::NEG_INFINITY),
            (f32::INFINITY, 1.0, 1.0, f32::INFINITY),
            // 1 + 2^-24 is between two f32.
            (1.0, 1.0, 0.5 * f32::EPSILON, 1.0),
            (-1.0, 1.0, -0.5 * f32::EPSILON, -1.0 - f32::EPSILON),
            (tiny, tiny, 0.0, 0.0),
            (-tiny, tiny, 0.0, -tiny),
        ] {
            assert_eq!(fma_down(a, b, c).to_bits(), f32::to_bits(expected), "{a:e} * {b:e} + {c:e}");
        }
        assert_eq!(fma_down(2.0, 3.0, -6.0).to_bits(), (-0f32).to_bits());
        assert!(fma_down(f32::INFINITY, 0.0, 1.0).is_nan());
    }

    #[test]
    fn a_sum_rounded_down_is_the_next_below_or_the_nearest() {
        let mut state = 7u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) as i32 as f32) * 2f32.powi((state >> 20 & 15) as i32 - 30)
        };
        for _ in 0..20_000 {
            let (a, b, c) = (random(), random(), random());
            let (down, nearest) = (fma_down(a, b, c), a.mul_add(b, c));
            assert!(down == nearest || down == nearest.next_down(), "{a:e} * {b:e} + {c:e}: {down:e}, {nearest:e}");
            assert!(
                down == nearest || -fma_down(-a, b, -c) != down,
                "both roundings are the same only where it is exact"
            );
        }
    }
}
