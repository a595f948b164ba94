//! Attention on 8-bit integers with factors: what its kernels have beside those of 16-bit elements.
//!
//! The integer q stands for `(q / 127.5 - 1) * 448`, times the factor of its head (see [`crate::quantize`]). `q -
//! 127.5` has nine bits, so an f16 holds it exactly: tiles in shared memory are of f16, and products are those of f16.
//! What a unit of such a tile is worth is part of the factors, which multiply scores and O.

use layout::Dtype;

use super::config::{AttentionConfig, MAX_REGISTERS, MAX_WIDE_REGISTERS, MAX_WIDEST_REGISTERS, ScoreMod};
use crate::quantize::U8_HALF_STEP;

/// What an integer as a subnormal f16, `q * 2^-24`, is multiplied by on its way to a tile, as f16 bits: 2^15. It is the
/// largest power of two that f16 has.
pub const U8_TILE_FACTOR: u16 = 0x7800;

/// What is added to the product, as f16 bits: `-127.5 * 2^-9`. A tile has `(q - 127.5) * 2^-9`.
pub const U8_TILE_OFFSET: u16 = 0xb3f8;

/// What an element of a tile is multiplied by to be the value of the integer: `448 / 127.5 * 2^9`.
pub const U8_TILE_UNIT: f32 = U8_HALF_STEP * 1024.0;

impl AttentionConfig {
    /// The same of this name, for inputs of 8-bit integers and an O of this element type.
    pub(super) const fn named_u8(self, name: &'static str, out: Dtype) -> Self {
        Self { name, dtype: Dtype::U8, kv_dtype: Dtype::U8, out, ..self }
    }

    /// Registers that a thread of an `mma` kernel may use, which holds the copies that are on their way.
    pub(super) const fn u8_registers(&self) -> u32 {
        match (self.score_mod, self.head_dim > 64) {
            (ScoreMod::None, false) => MAX_REGISTERS,
            (ScoreMod::None, true) | (_, false) => MAX_WIDE_REGISTERS,
            (_, true) => MAX_WIDEST_REGISTERS,
        }
    }

    /// Bytes of an element of K and V in a tile: 8-bit integers are f16 there.
    pub const fn tile_elem_bytes(&self) -> usize {
        match self.kv_dtype {
            Dtype::U8 => 2,
            dtype => dtype.size_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    /// The value of normal f16 bits.
    fn f16(bits: u16) -> f64 {
        let (sign, exponent, fraction) = (bits >> 15, i32::from(bits >> 10 & 31), f64::from(bits & 1023));
        let magnitude = (1.0 + fraction / 1024.0) * f64::from(exponent - 15).exp2();
        if sign == 1 { -magnitude } else { magnitude }
    }

    #[test]
    fn every_integer_has_an_f16_of_its_own() {
        for q in 0..=u8::MAX {
            let in_tile = f64::from(q) * (-24f64).exp2() * f16(U8_TILE_FACTOR) + f16(U8_TILE_OFFSET);
            assert_eq!(in_tile, (f64::from(q) - 127.5) / 512.0);
            // At most 11 bits, above the subnormal numbers.
            assert!((in_tile * 1024.0).fract() == 0.0 && in_tile.abs() >= (-14f64).exp2());
            let value = (f64::from(q) / 127.5 - 1.0) * 448.0;
            assert!((in_tile * f64::from(U8_TILE_UNIT) - value).abs() <= value.abs() * (-23f64).exp2());
        }
    }
}
