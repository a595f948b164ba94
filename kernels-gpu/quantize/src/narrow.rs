//! The types that elements are quantised to.

use cuda_std::convert::{fma, round_e4m3x4};
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
    #[inline(always)]
    fn pack(values: [f32; 4]) -> u32 {
        round_e4m3x4(values)
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
