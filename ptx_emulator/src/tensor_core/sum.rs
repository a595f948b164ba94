//! The sums of tensor cores, as those of Hopper compute them. They were compared with an H100 and an H200: 50,000
//! results of random factors of f16, bf16, tf32 and FP8, tiny, huge and special ones among them, have the same bits.
//!
//! An instruction adds its k products and the accumulator in one step. The products are exact. All terms are aligned to
//! the largest exponent among them, that of a product being the sum of its factors' exponents; [`FRACTION_BITS`] bits
//! below it are kept, and what is lower is cut off. The sum of what is kept is exact and is rounded to f32 towards
//! zero, or to infinity beyond its range. Subnormal numbers are not normalised: they count with the lowest exponent of
//! their type. The order of the terms does not matter.

use crate::float::NAN;

/// Bits of a term below the largest exponent.
pub const FRACTION_BITS: i32 = 25;

/// The lowest exponent of f16 and E5M2, and of the FP8 types where `mma.sync` makes f16 of them.
pub const LOWEST_OF_F16: i32 = -14;

/// The lowest exponent of E4M3 in `wgmma`.
pub const LOWEST_OF_E4M3: i32 = -6;

/// The lowest exponent of f32, bf16 and tf32.
pub const LOWEST: i32 = -126;

/// The exponent of a zero: below any other, and such that products of zeros stay in range.
const ZERO: i32 = -400;

/// The exponent in which a number is stored, of those of its type from `lowest` on: a subnormal number has the lowest.
#[inline(always)]
fn exponent(value: f32, lowest: i32) -> i32 {
    let magnitude = value.to_bits() & 0x7fff_ffff;
    if magnitude == 0 { ZERO } else { ((magnitude >> 23) as i32 - 127).max(lowest) }
}

#[inline(always)]
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

/// Rounds towards zero; what has no exponent in f32 is infinite.
#[inline(always)]
fn truncate(value: f64) -> f32 {
    let nearest = value as f32;
    // The bits of a number and of the next one beyond it differ by one, whatever the sign.
    let is_beyond = f64::from(nearest).abs() > value.abs() && value.abs() < 2f64.powi(128);
    if is_beyond { f32::from_bits(nearest.to_bits() - 1) } else { nearest }
}

/// Cuts off what is more than so many bits below the leading one of a normal number.
#[inline(always)]
fn cut(value: f64, bits: i32) -> f64 {
    f64::from_bits(value.to_bits() & (u64::MAX << (52 - bits)))
}

/// The precision of a sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Where the exponents of the types of A and B begin.
    pub lowest: [i32; 2],
    /// Bits of a term below the largest exponent.
    pub fraction_bits: i32,
    /// Bits of the result below its leading one, where those are fewer than f32 has.
    pub result_bits: Option<i32>,
    /// The result is rounded again, to a shorter type: its last bit tells that something was cut off behind it.
    pub is_rounded_again: bool,
}

/// Adds the product of A and B to C, each of its elements the sum of one instruction. The exponents of the factors'
/// type begin at `lowest`.
pub fn multiply<const K: usize, const N: usize>(a: &[[f32; K]], b: &[[f32; N]; K], c: &mut [[f32; N]], lowest: i32) {
    let lowest = [lowest; 2];
    multiply_by(Rule { lowest, fraction_bits: FRACTION_BITS, result_bits: None, is_rounded_again: false }, a, b, c);
}

/// [`multiply`] in any precision.
pub fn multiply_by<const K: usize, const N: usize>(rule: Rule, a: &[[f32; K]], b: &[[f32; N]; K], c: &mut [[f32; N]]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has the feature.
        return unsafe { multiply_avx2(rule, a, b, c) };
    }
    multiply_inline(rule, a, b, c);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn multiply_avx2<const K: usize, const N: usize>(rule: Rule, a: &[[f32; K]], b: &[[f32; N]; K], c: &mut [[f32; N]]) {
    multiply_inline(rule, a, b, c);
}

#[inline(always)]
fn multiply_inline<const K: usize, const N: usize>(rule: Rule, a: &[[f32; K]], b: &[[f32; N]; K], c: &mut [[f32; N]]) {
    let Rule { lowest, fraction_bits, result_bits, is_rounded_again } = rule;
    let mut exponents = [[0; N]; K];
    let mut wide = [[0.0; N]; K];
    for k in 0..K {
        for n in 0..N {
            exponents[k][n] = exponent(b[k][n], lowest[1]);
            wide[k][n] = f64::from(b[k][n]);
        }
    }
    for (a, c) in a.iter().zip(c) {
        let (mut largest, mut scales, mut sums) = ([ZERO; N], [0.0; N], [0.0; N]);
        for n in 0..N {
            largest[n] = largest[n].max(exponent(c[n], LOWEST));
        }
        for k in 0..K {
            let exponent = exponent(a[k], lowest[0]);
            for n in 0..N {
                // A product of which one factor is zero counts no more than a zero.
                largest[n] = largest[n].max(exponent + exponents[k][n]);
            }
        }
        for n in 0..N {
            scales[n] = power_of_two(fraction_bits - largest[n]);
            sums[n] = (f64::from(c[n]) * scales[n]).trunc();
        }
        for k in 0..K {
            let a = f64::from(a[k]);
            for n in 0..N {
                sums[n] += (a * wide[k][n] * scales[n]).trunc();
            }
        }
        for n in 0..N {
            // A power of two: exact.
            let sum = sums[n] / scales[n];
            let result = truncate(result_bits.map_or(sum, |bits| cut(sum, bits)));
            let is_cut = is_rounded_again && f64::from(result) != sum;
            c[n] = if sum.is_nan() { NAN } else { f32::from_bits(result.to_bits() | u32::from(is_cut)) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lowest exponent, a row of A, a column of B, C and what an H100 makes of them, all as bits of f32: of f16, of
    /// bf16 and of tf32 (8 products) one each of mixed exponents, of tiny numbers and of huge ones.
    type Measured<'a> = (i32, &'a [u32], &'a [u32], u32, u32);

    #[rustfmt::skip]
    const MEASURED: [Measured<'_>; 9] = [
        (LOWEST_OF_F16, &[0x3fdf_a000, 0xbc7e_c000, 0xc260_a000, 0x3e39_c000, 0xc126_4000, 0x4295_0000, 0xbfa8_c000, 0x3cf8_2000, 0x3fb7_0000, 0x3eb4_2000, 0x3dca_c000, 0x3fbf_4000, 0xc118_4000, 0xbc44_2000, 0x4218_c000, 0x3f6f_2000], &[0xbc98_2000, 0x41df_e000, 0xbd13_4000, 0x3d0f_c000, 0x3c83_0000, 0xc05f_2000, 0xbd76_c000, 0x3ebe_4000, 0x3cad_c000, 0xc024_8000, 0xbe37_c000, 0x3cc7_4000, 0xbced_c000, 0xc170_e000, 0x40c0_e000, 0x3bf8_4000], 0x4008_812c, 0xc1d2_b69a),
        (LOWEST_OF_F16, &[0x3440_0000, 0xb885_8000, 0xb718_0000, 0x35b0_0000, 0xb79a_8000, 0xb764_0000, 0xb70f_0000, 0xb720_0000, 0x3684_0000, 0x35a0_0000, 0x37a0_8000, 0xb80b_4000, 0xb7ea_8000, 0xb75f_0000, 0xb83b_0000, 0xb8d4_2000], &[0x3604_0000, 0xb620_0000, 0x3772_0000, 0x3688_0000, 0x3480_0000, 0x3763_0000, 0x3648_0000, 0x36ec_0000, 0x3860_8000, 0x3560_0000, 0xb84b_4000, 0x3769_0000, 0xb68a_0000, 0xb703_0000, 0x0000_0000, 0x375b_0000], 0xb0f7_ce13, 0xb194_f574),
        (LOWEST_OF_F16, &[0xc6c0_4000, 0xc5f7_4000, 0xc3d0_6000, 0x45a3_2000, 0x45c3_2000, 0xc486_a000, 0x45d7_6000, 0x453d_e000, 0xc59b_6000, 0xc6a5_a000, 0xc485_6000, 0xc6c9_2000, 0xc675_8000, 0xc4bd_a000, 0xc5fd_4000, 0xc69e_c000], &[0xc61c_a000, 0x4568_e000, 0xc603_6000, 0xc5c3_4000, 0x4545_4000, 0xc32c_e000, 0xc689_a000, 0xc3f6_e000, 0xc4c0_c000, 0xc41f_c000, 0x438b_6000, 0x475b_c000, 0x4694_c000, 0xc4b2_4000, 0x43b4_2000, 0x44e7_2000], 0xcb60_431d, 0xcec9_feba),
        (LOWEST, &[0xc0a3_0000, 0x3dbe_0000, 0x3c94_0000, 0x3c8b_0000, 0x3dec_0000, 0x422b_0000, 0xbf48_0000, 0x3d1a_0000, 0xc0b5_0000, 0xbcd8_0000, 0x3f2a_0000, 0xc180_0000, 0x3e46_0000, 0x3d2f_0000, 0xbfcf_0000, 0xc06d_0000], &[0xbf9b_0000, 0xbf00_0000, 0xbebc_0000, 0x3f20_0000, 0x3de4_0000, 0x3e7e_0000, 0xbf8a_0000, 0x3ebc_0000, 0x3f05_0000, 0xc1cc_0000, 0x3d2d_0000, 0xc024_0000, 0xc03d_0000, 0x3ece_0000, 0x4084_0000, 0xbc3a_0000], 0x4386_5e29, 0x439e_f4ec),
        (LOWEST, &[0x1d8d_0000, 0x2030_0000, 0x9f0a_0000, 0x9ce0_0000, 0x1c20_0000, 0x1ce3_0000, 0x1c55_0000, 0x1bbf_0000, 0x9e31_0000, 0xa16b_0000, 0xa02c_0000, 0x9dd9_0000, 0x9d6c_0000, 0x2013_0000, 0x1d53_0000, 0x1eb4_0000], &[0xa102_0000, 0x1d1a_0000, 0xa024_0000, 0x20a2_0000, 0x9c2b_0000, 0x9f5f_0000, 0xa217_0000, 0x9d1d_0000, 0x9d04_0000, 0xa12c_0000, 0x9c56_0000, 0x1ac6_0000, 0x1eec_0000, 0x1dcd_0000, 0x1b1f_0000, 0x9acf_0000], 0x0000_25a0, 0x031e_690c),
        (LOWEST, &[0x5e9b_0000, 0x5e68_0000, 0xdf99_0000, 0x5e85_0000, 0x5e2f_0000, 0xdf6a_0000, 0x5b58_0000, 0x5eb1_0000, 0xdbd4_0000, 0x5f11_0000, 0x5ebe_0000, 0x5d30_0000, 0xddec_0000, 0xde2f_0000, 0xdfb6_0000, 0x5ca4_0000], &[0xdb0d_0000, 0xdec6_0000, 0xdca8_0000, 0xdeb9_0000, 0xdd98_0000, 0x5e79_0000, 0x5f2d_0000, 0x5f21_0000, 0x5ef0_0000, 0x5eac_0000, 0xdd51_0000, 0xde57_0000, 0x5e71_0000, 0x5f3b_0000, 0x5ec7_0000, 0x5d03_0000], 0x7d0a_4520, 0xff2f_0fff),
        (LOWEST, &[0xc2f5_4000, 0x3ce8_6000, 0x3ca7_0000, 0x3f48_4000, 0x3e9c_4000, 0x3ce7_6000, 0x3c40_2000, 0xbffa_0000], &[0x3c72_0000, 0xba1f_8000, 0xbdeb_2000, 0xbf97_a000, 0xc1e1_e000, 0x3d32_e000, 0xbdcb_c000, 0xc2db_c000], 0xc34c_1153, 0xbf53_1b00),
        (LOWEST, &[0xa139_4000, 0xa18c_0000, 0x9c02_a000, 0x9fa4_c000, 0xa135_8000, 0x1f40_e000, 0x1c10_8000, 0x9cc7_2000], &[0xa0e4_6000, 0x19dc_c000, 0x9c0b_6000, 0x9e3f_4000, 0x9d3c_8000, 0x9c87_a000, 0x1c19_0000, 0x9ddf_4000], 0x8018_98c6, 0x02a5_368f),
        (LOWEST, &[0x5d30_6000, 0xdb07_a000, 0xdd7e_0000, 0x5ca1_a000, 0x5d83_c000, 0xdbca_6000, 0x5f52_2000, 0x5d85_0000], &[0xdf3a_e000, 0xdd86_a000, 0xde8a_8000, 0x5df5_e000, 0xdec7_4000, 0xdd01_2000, 0x5dd7_4000, 0xddca_8000], 0x7d0d_4c98, 0x7d9e_6984),
    ];

    #[test]
    fn sums_have_the_bits_of_a_card() {
        for (lowest, a, b, c, expected) in MEASURED {
            // Zeros change nothing: eight products fit sixteen.
            let number = |bits: &[u32], k: usize| bits.get(k).map_or(0.0, |&bits| f32::from_bits(bits));
            let (a, b): ([f32; 16], [[f32; 1]; 16]) =
                (std::array::from_fn(|k| number(a, k)), std::array::from_fn(|k| [number(b, k)]));
            let mut d = [[f32::from_bits(c)]];
            multiply(&[a], &b, &mut d, lowest);
            assert_eq!(d[0][0].to_bits(), expected, "{:e}, expected {:e}", d[0][0], f32::from_bits(expected));
        }
    }

    #[test]
    fn zeros_and_what_is_not_finite_go_through() {
        let sum = |a: f32, b: f32, c: f32| {
            let mut d = [[c; 2]];
            multiply(&[[a, 0.0]], &[[b; 2], [0.0; 2]], &mut d, LOWEST);
            d[0][1].to_bits()
        };
        assert_eq!(sum(0.0, 1e38, 1e-45), 1);
        assert_eq!(sum(0.0, 0.0, 0.0), 0);
        assert_eq!(sum(1.0, f32::INFINITY, 1.0), f32::INFINITY.to_bits());
        assert_eq!(sum(1.0, f32::INFINITY, f32::NEG_INFINITY), NAN.to_bits());
        assert_eq!(sum(0.0, f32::INFINITY, 1.0), NAN.to_bits());
        assert_eq!(sum(1e30, -1e30, 1.0), f32::NEG_INFINITY.to_bits());
        assert_eq!(sum(f32::from_bits(0x7f7f_0000), 1.0, f32::from_bits(0x7f7f_ffff)), f32::INFINITY.to_bits());
    }
}
