//! Conversions between f32 and the narrow floats, and the fast math of attention.
//!
//! Two 16-bit values travel in one 32-bit register: `lo` is bits 0 to 15, the element with the smaller index in memory.
//! Kernels are generic over [`Element16`], implemented by [`F16`] and [`Bf16`]:
//!
//! ```
//! # use cuda_std::convert::Element16;
//! unsafe fn scale<E: Element16>(pair: u32, factor: f32) -> u32 {
//!     let (lo, hi) = E::unpack(pair);
//!     E::pack(lo * factor, hi * factor)
//! }
//! ```
//!
//! Conversions to a narrower type round to nearest, ties to even (TF32: ties away from zero). f16 and bf16 overflow to
//! infinity; the 8-bit formats saturate at their largest finite value.

use layout::Dtype;

use crate::asm;

mod sealed {
    pub trait Sealed {}
}

/// A 16-bit floating-point type: what tensor-core kernels read and write.
pub trait Element16: sealed::Sealed + Copy + 'static {
    /// The type.
    const DTYPE: Dtype;
    /// Its name in entry names.
    const NAME: &'static str = Self::DTYPE.name();

    /// Rounds two values into one register.
    fn pack(lo: f32, hi: f32) -> u32;
    /// Widens the two values of one register: (lo, hi). Exact.
    fn unpack(pair: u32) -> (f32, f32);
    /// Rounds one value, giving its bits.
    fn from_f32(value: f32) -> u16;
    /// Widens one value, given its bits. Exact.
    fn to_f32(bits: u16) -> f32;
}

/// IEEE 754 binary16.
#[derive(Debug, Clone, Copy)]
pub enum F16 {}

/// bfloat16: the upper half of an f32.
#[derive(Debug, Clone, Copy)]
pub enum Bf16 {}

impl sealed::Sealed for F16 {}
impl sealed::Sealed for Bf16 {}

/// An 8-bit floating-point type: what tensor-core kernels read.
pub trait Element8: sealed::Sealed + Copy + 'static {
    /// The type.
    const DTYPE: Dtype;
}

/// FP8 with 4 exponent bits.
#[derive(Debug, Clone, Copy)]
pub enum E4m3 {}

/// FP8 with 5 exponent bits.
#[derive(Debug, Clone, Copy)]
pub enum E5m2 {}

impl sealed::Sealed for E4m3 {}
impl sealed::Sealed for E5m2 {}

impl Element8 for E4m3 {
    const DTYPE: Dtype = Dtype::E4M3;
}

impl Element8 for E5m2 {
    const DTYPE: Dtype = Dtype::E5M2;
}

impl Element16 for F16 {
    const DTYPE: Dtype = Dtype::F16;

    #[inline(always)]
    fn pack(lo: f32, hi: f32) -> u32 {
        pack_f16x2(lo, hi)
    }
    #[inline(always)]
    fn unpack(pair: u32) -> (f32, f32) {
        unpack_f16x2(pair)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> u16 {
        f16_from_f32(value)
    }
    #[inline(always)]
    fn to_f32(bits: u16) -> f32 {
        f16_to_f32(bits)
    }
}

impl Element16 for Bf16 {
    const DTYPE: Dtype = Dtype::Bf16;

    #[inline(always)]
    fn pack(lo: f32, hi: f32) -> u32 {
        pack_bf16x2(lo, hi)
    }
    #[inline(always)]
    fn unpack(pair: u32) -> (f32, f32) {
        unpack_bf16x2(pair)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> u16 {
        bf16_from_f32(value)
    }
    #[inline(always)]
    fn to_f32(bits: u16) -> f32 {
        bf16_to_f32(bits)
    }
}

/// Rounds two f32 values to f16, in one register.
///
/// PTX: `cvt.rn.f16x2.f32 d, hi, lo` (PTX 7.0, sm_80).
#[inline(always)]
pub fn pack_f16x2(lo: f32, hi: f32) -> u32 {
    let pair: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("cvt.rn.f16x2.f32 {0}, {1}, {2};", lateout(reg32) pair, in(reg32) hi, in(reg32) lo,
            options(pure, nomem, nostack, preserves_flags));
    }
    pair
}

/// Widens the two f16 values of one register: (lo, hi).
///
/// PTX: `cvt.f32.f16` twice (PTX 1.0, sm_10).
#[inline(always)]
pub fn unpack_f16x2(pair: u32) -> (f32, f32) {
    (f16_to_f32(pair as u16), f16_to_f32((pair >> 16) as u16))
}

/// Rounds an f32 value to f16, giving its bits.
///
/// PTX: `cvt.rn.f16.f32` (PTX 1.0, sm_10).
#[inline(always)]
pub fn f16_from_f32(value: f32) -> u16 {
    let bits: u16;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("cvt.rn.f16.f32 {0}, {1};", lateout(reg16) bits, in(reg32) value,
            options(pure, nomem, nostack, preserves_flags));
    }
    bits
}

/// Widens an f16 value, given its bits.
///
/// PTX: `cvt.f32.f16` (PTX 1.0, sm_10).
#[inline(always)]
pub fn f16_to_f32(bits: u16) -> f32 {
    let value: f32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("cvt.f32.f16 {0}, {1};", lateout(reg32) value, in(reg16) bits,
            options(pure, nomem, nostack, preserves_flags));
    }
    value
}

/// Rounds two f32 values to bf16, in one register.
///
/// PTX: `cvt.rn.bf16x2.f32 d, hi, lo` (PTX 7.0, sm_80).
#[inline(always)]
pub fn pack_bf16x2(lo: f32, hi: f32) -> u32 {
    let pair: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("cvt.rn.bf16x2.f32 {0}, {1}, {2};", lateout(reg32) pair, in(reg32) hi, in(reg32) lo,
            options(pure, nomem, nostack, preserves_flags));
    }
    pair
}

/// Widens the two bf16 values of one register: (lo, hi). A shift and a mask.
#[inline(always)]
pub fn unpack_bf16x2(pair: u32) -> (f32, f32) {
    (f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000))
}

/// Rounds an f32 value to bf16, giving its bits.
///
/// PTX: `cvt.rn.bf16.f32` (PTX 7.0, sm_80).
#[inline(always)]
pub fn bf16_from_f32(value: f32) -> u16 {
    let bits: u16;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("cvt.rn.bf16.f32 {0}, {1};", lateout(reg16) bits, in(reg32) value,
            options(pure, nomem, nostack, preserves_flags));
    }
    bits
}

/// Widens a bf16 value, given its bits. A shift.
#[inline(always)]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// Makes a word of any four bytes of `a` (numbers 0 to 3) and `b` (4 to 7). Bits 4i to 4i + 2 of `selector` name byte i
/// of the result; where bit 4i + 3 is set, byte i is the sign of the named byte, eight times.
///
/// PTX: `prmt.b32` (PTX 2.0, sm_20).
#[inline(always)]
pub fn permute_bytes(a: u32, b: u32, selector: u32) -> u32 {
    let bytes: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("prmt.b32 {0}, {1}, {2}, {3};", lateout(reg32) bytes, in(reg32) a, in(reg32) b, in(reg32) selector,
            options(pure, nomem, nostack, preserves_flags));
    }
    bytes
}

/// Rounds an f32 value to TF32 (10 fraction bits), ties away from zero, giving the bits of an f32.
///
/// PTX: `cvt.rna.tf32.f32` (PTX 7.0, sm_80).
#[inline(always)]
pub fn tf32_from_f32(value: f32) -> u32 {
    let bits: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("cvt.rna.tf32.f32 {0}, {1};", lateout(reg32) bits, in(reg32) value,
            options(pure, nomem, nostack, preserves_flags));
    }
    bits
}

/// Rounds two f32 values to e4m3, saturating at 448, in one 16-bit register: `lo` is bits 0 to 7.
///
/// PTX: `cvt.rn.satfinite.e4m3x2.f32 d, hi, lo` (PTX 8.1, sm_89).
#[cfg(any(target_feature = "sm_89", not(target_arch = "nvptx64")))]
#[inline(always)]
pub fn pack_e4m3x2(lo: f32, hi: f32) -> u16 {
    let pair: u16;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("cvt.rn.satfinite.e4m3x2.f32 {0}, {1}, {2};", lateout(reg16) pair, in(reg32) hi, in(reg32) lo,
            options(pure, nomem, nostack, preserves_flags));
    }
    pair
}

/// Rounds four f32 values to e4m3, saturating at 448, in one register: the first is bits 0 to 7.
///
/// One `asm!`, which ptxas makes two instructions of: halves that it gets apart take a third to join.
///
/// PTX: `cvt.rn.satfinite.e4m3x2.f32` twice, `mov.b32` (PTX 8.1, sm_89).
#[cfg(any(target_feature = "sm_89", not(target_arch = "nvptx64")))]
#[inline(always)]
pub fn pack_e4m3x4(values: [f32; 4]) -> u32 {
    let word: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("{{ .reg .b16 lo, hi; cvt.rn.satfinite.e4m3x2.f32 lo, {2}, {1};",
            "cvt.rn.satfinite.e4m3x2.f32 hi, {4}, {3}; mov.b32 {0}, {{lo, hi}}; }}",
            lateout(reg32) word, in(reg32) values[0], in(reg32) values[1], in(reg32) values[2], in(reg32) values[3],
            options(pure, nomem, nostack, preserves_flags));
    }
    word
}

/// Widens two e4m3 values to a pair of f16. Exact.
///
/// PTX: `cvt.rn.f16x2.e4m3x2` (PTX 8.1, sm_89).
#[cfg(any(target_feature = "sm_89", not(target_arch = "nvptx64")))]
#[inline(always)]
pub fn unpack_e4m3x2(pair: u16) -> u32 {
    let f16x2: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("cvt.rn.f16x2.e4m3x2 {0}, {1};", lateout(reg32) f16x2, in(reg16) pair,
            options(pure, nomem, nostack, preserves_flags));
    }
    f16x2
}

/// Widens the four e4m3 values of one register to two pairs of f16, the first of bits 0 to 15. Exact.
///
/// One `asm!`, as [`pack_e4m3x4`]: the instruction takes either half of a register.
///
/// PTX: `mov.b32`, `cvt.rn.f16x2.e4m3x2` twice (PTX 8.1, sm_89).
#[cfg(any(target_feature = "sm_89", not(target_arch = "nvptx64")))]
#[inline(always)]
pub fn unpack_e4m3x4(word: u32) -> [u32; 2] {
    let mut pairs = [0; 2];
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("{{ .reg .b16 lo, hi; mov.b32 {{lo, hi}}, {2};",
            "cvt.rn.f16x2.e4m3x2 {0}, lo; cvt.rn.f16x2.e4m3x2 {1}, hi; }}",
            out(reg32) pairs[0], lateout(reg32) pairs[1], in(reg32) word,
            options(pure, nomem, nostack, preserves_flags));
    }
    pairs
}

/// Rounds two f32 values to e5m2, saturating at 57344, in one 16-bit register: `lo` is bits 0 to 7.
///
/// PTX: `cvt.rn.satfinite.e5m2x2.f32 d, hi, lo` (PTX 8.1, sm_89).
#[cfg(any(target_feature = "sm_89", not(target_arch = "nvptx64")))]
#[inline(always)]
pub fn pack_e5m2x2(lo: f32, hi: f32) -> u16 {
    let pair: u16;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("cvt.rn.satfinite.e5m2x2.f32 {0}, {1}, {2};", lateout(reg16) pair, in(reg32) hi, in(reg32) lo,
            options(pure, nomem, nostack, preserves_flags));
    }
    pair
}

/// Widens two e5m2 values to a pair of f16. Exact.
///
/// PTX: `cvt.rn.f16x2.e5m2x2` (PTX 8.1, sm_89).
#[cfg(any(target_feature = "sm_89", not(target_arch = "nvptx64")))]
#[inline(always)]
pub fn unpack_e5m2x2(pair: u16) -> u32 {
    let f16x2: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("cvt.rn.f16x2.e5m2x2 {0}, {1};", lateout(reg32) f16x2, in(reg16) pair,
            options(pure, nomem, nostack, preserves_flags));
    }
    f16x2
}

/// `2^x`, to about 2 units in the last place; subnormal inputs and results count as zero.
///
/// PTX: `ex2.approx.ftz.f32` (PTX 1.4, sm_10).
#[inline(always)]
pub fn ex2(x: f32) -> f32 {
    let y: f32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("ex2.approx.ftz.f32 {0}, {1};", lateout(reg32) y, in(reg32) x,
            options(pure, nomem, nostack, preserves_flags));
    }
    y
}

/// The logarithm of `x` to base 2, to about 2^-22 absolute near 1; `-inf` for zero and subnormal inputs.
///
/// PTX: `lg2.approx.ftz.f32` (PTX 1.4, sm_10).
#[inline(always)]
pub fn lg2(x: f32) -> f32 {
    let y: f32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("lg2.approx.ftz.f32 {0}, {1};", lateout(reg32) y, in(reg32) x,
            options(pure, nomem, nostack, preserves_flags));
    }
    y
}

/// `1 / x`, to 1 unit in the last place; `inf` for zero and subnormal inputs.
///
/// PTX: `rcp.approx.ftz.f32` (PTX 1.4, sm_10).
#[inline(always)]
pub fn rcp(x: f32) -> f32 {
    let y: f32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("rcp.approx.ftz.f32 {0}, {1};", lateout(reg32) y, in(reg32) x,
            options(pure, nomem, nostack, preserves_flags));
    }
    y
}

/// `a * b + c` with one rounding.
///
/// PTX: `fma.rn.f32` (PTX 2.0, sm_20).
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    crate::fmaf32(a, b, c)
}

/// The larger value; the other one if one is NaN.
///
/// PTX: `max.f32` (PTX 1.0, sm_10).
#[inline(always)]
pub fn max(a: f32, b: f32) -> f32 {
    f32::max(a, b)
}

/// `a * b + c` of two pairs of f16 values at once, each with one rounding; subnormal numbers count.
///
/// PTX: `fma.rn.f16x2` (PTX 4.2, sm_53).
#[inline(always)]
pub fn fma_f16x2(a: u32, b: u32, c: u32) -> u32 {
    let pair: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("fma.rn.f16x2 {0}, {1}, {2}, {3};", lateout(reg32) pair, in(reg32) a, in(reg32) b, in(reg32) c,
            options(pure, nomem, nostack, preserves_flags));
    }
    pair
}

/// Rounds four f32 values to e4m3, saturating at 448, on every architecture to the same bits; the first is bits 0 to 7.
///
/// PTX: that of `pack_e4m3x4` from sm_89 on, integer arithmetic before it.
#[inline(always)]
pub fn round_e4m3x4(values: [f32; 4]) -> u32 {
    #[cfg(all(target_feature = "sm_89", target_arch = "nvptx64"))]
    return pack_e4m3x4(values);
    #[cfg(not(all(target_feature = "sm_89", target_arch = "nvptx64")))]
    {
        let bytes = values.map(e4m3_bits);
        bytes[0] | bytes[1] << 8 | bytes[2] << 16 | bytes[3] << 24
    }
}

/// The bits of the nearest E4M3 number, ties to even, as `cvt.rn.satfinite.e4m3x2.f32` makes them of NaN too.
#[cfg(not(all(target_feature = "sm_89", target_arch = "nvptx64")))]
#[inline(always)]
fn e4m3_bits(value: f32) -> u32 {
    const INFINITY: u32 = 0x7f80_0000;
    const LEAST_NORMAL: u32 = 0x3c80_0000; // 2^-6
    const TO_448: u32 = 0x43e0_0000;
    let (magnitude, sign) = (value.to_bits() & 0x7fff_ffff, value.to_bits() >> 24 & 0x80);
    if magnitude > INFINITY {
        return 0x7f;
    }
    let cut = if magnitude > TO_448 { TO_448 } else { magnitude };
    // The 20 bits that E4M3 has not are rounded off; a carry goes on to the exponent, whose bias is 120 more.
    let normal = ((cut + 0x7_ffff + (cut >> 20 & 1)) >> 20) - (120 << 3);
    // Multiples of 2^-9 are the last bits of numbers from 2^14 on.
    let subnormal = (f32::from_bits(cut) + 16384.0).to_bits() & 0xf;
    sign | if cut < LEAST_NORMAL { subnormal } else { normal }
}
