//! What all functions have in common: a quadratic in each of some tens of segments, in integers.
//!
//! An argument of fixed point is the number of a segment and an offset of 17 bits in it. The result is
//! `c0 + c1 * offset + c2 * square(offset)`, a sum of fixed point in which nothing is rounded, cut off at the last
//! place of an f32. Only the square is not exact. Its partial products below 2^19 are left out, and a constant makes up
//! for their mean. In some functions the constant makes up for the cut, too. That is the design of Oberman and Siu, "A
//! High-Performance Area-Efficient Multifunction Interpolator" (ARITH 2005).

/// Bits of an offset.
pub(super) const OFFSET: u32 = 17;

/// The segments of a function.
pub(super) struct Segments<const N: usize> {
    /// The exponent of two by which results count.
    pub(super) unit: i32,
    /// The places of a result below the last of `constant`.
    pub(super) shift: u32,
    /// What is added to every result.
    pub(super) bias: i64,
    /// The places of a result below the last of `curvature`.
    pub(super) square_shift: u32,
    pub(super) constant: [u32; N],
    pub(super) slope: [i32; N],
    pub(super) curvature: [i32; N],
}

impl<const N: usize> Segments<N> {
    /// The function at an offset in a segment.
    #[inline(always)]
    pub(super) fn at(&self, segment: u32, offset: u32) -> i64 {
        let segment = segment as usize;
        let square = i64::from(square(offset));
        (i64::from(self.constant[segment]) << self.shift)
            + self.bias
            + i64::from(self.slope[segment]) * i64::from(offset)
            + ((i64::from(self.curvature[segment]) * square) << self.square_shift)
    }

    /// The function at a fraction of which the upper bits are the number of the segment; `first` is that of fraction 0.
    #[inline(always)]
    pub(super) fn at_fraction(&self, first: u32, fraction: u32) -> i64 {
        self.at(first + (fraction >> OFFSET), fraction & ((1 << OFFSET) - 1))
    }

    /// A result as a float, cut off.
    #[inline(always)]
    pub(super) fn float(&self, result: i64) -> f32 {
        let surplus = (i64::BITS - f32::MANTISSA_DIGITS).saturating_sub(result.leading_zeros());
        ((result >> surplus) << surplus) as f32 * f32::from_bits(((127 + self.unit) as u32) << 23)
    }
}

/// The square of an offset in units of 2^19, without partial products below.
///
/// Bits i < j give a product of place i + j + 1, bit i alone one of place 2i. From bit 10 on no product is left out;
/// what a bit below has with bits above it is those bits, shifted.
#[inline(always)]
fn square(offset: u32) -> u32 {
    let upper = offset >> 10;
    let times = |bit: u32, bits: u32| if offset >> bit & 1 == 1 { bits } else { 0 };
    let lower: u32 = (2..9).map(|bit| times(bit, offset >> (18 - bit))).sum();
    2 * upper * upper + times(9, 2 * upper) + lower
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_square_is_the_sum_of_its_upper_partial_products() {
        for offset in 0..1u32 << OFFSET {
            let bit = |at: u32| u64::from(offset >> at & 1);
            let mut sum = 0;
            for i in 0..OFFSET {
                for (place, product) in (i + 1..OFFSET).map(|j| (i + j + 1, bit(i) * bit(j))).chain([(2 * i, bit(i))]) {
                    sum += if place >= 19 { product << place } else { 0 };
                }
            }
            assert_eq!(u64::from(square(offset)) << 19, sum, "{offset}");
        }
    }
}
