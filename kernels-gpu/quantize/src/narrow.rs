//! The types that elements are quantised to.

use cuda_std::convert::fma;
#[cfg(target_feature = "sm_89")]
use cuda_std::convert::pack_e4m3x4;
use variants::quantize::{LARGEST, U8_HALF_STEP, U8_STEPS, U8_ZERO};

/// A type that elements are quantised to.
pub(crate) trait Narrow {
    /// Rounds values, which are over their factor, to bytes of one word. What is beyond the largest number becomes
    /// that number.
    fn pack(values: [f32; 4]) -> u32;

    /// The value of a byte.
    fn unpack(byte: u32) -> f32;
}

/// E4M3.
pub(crate) enum Quarter {}

/// 8-bit integers.
pub(crate) enum Byte {}

impl Narrow for Quarter {
    #[cfg(target_feature = "sm_89")]
    #[inline(always)]
    fn pack(values: [f32; 4]) -> u32 {
        pack_e4m3x4(values)
    }

    #[cfg(not(target_feature = "sm_89"))]
    #[inline(always)]
    fn pack(values: [f32; 4]) -> u32 {
        let bytes = values.map(e4m3_bits);
        bytes[0] | bytes[1] << 8 | bytes[2] << 16 | bytes[3] << 24
    }

    /// The exponent of f32 with that field is 120 less than that of E4M3, subnormal numbers too.
    #[inline(always)]
    fn unpack(byte: u32) -> f32 {
        const UNIT: f32 = (1u128 << 120) as f32;
        let magnitude = byte & 0x7f;
        let value = f32::from_bits(magnitude << 20) * UNIT;
        let bits = if magnitude == 0x7f { NAN } else { value.to_bits() };
        f32::from_bits(bits | (byte & 0x80) << 24)
    }
}

/// A NaN of f32.
const NAN: u32 = 0x7fc0_0000;

/// The bits of the nearest E4M3 number, ties to even, as `cvt.rn.satfinite.e4m3x2.f32` makes them of NaN too.
#[cfg(not(target_feature = "sm_89"))]
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

impl Narrow for Byte {
    #[inline(always)]
    fn pack(values: [f32; 4]) -> u32 {
        let bytes = values.map(|value| {
            let bits = value.to_bits() & 0x7fff_ffff;
            let value = value.clamp(-LARGEST, LARGEST);
            // 2^23 and more has no bits below 1, so the add rounds to an integer, ties to even.
            let rounded = (fma(value, U8_STEPS, 127.5) + 8_388_608.0).to_bits() & 0xff;
            if bits > 0x7f80_0000 { u32::from(U8_ZERO) } else { rounded }
        });
        bytes[0] | bytes[1] << 8 | bytes[2] << 16 | bytes[3] << 24
    }

    #[inline(always)]
    fn unpack(byte: u32) -> f32 {
        (2 * byte as i32 - 255) as f32 * U8_HALF_STEP
    }
}
