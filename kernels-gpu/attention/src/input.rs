//! The element types of Q, K and V, and what follows from them: that of O, and P as operand A.

use core::marker::PhantomData;

#[cfg(target_feature = "sm_89")]
use cuda_std::convert::pack_e4m3x4;
use cuda_std::convert::{Element16, F16};
use layout::Dtype;
use variants::attention::U8_TILE_UNIT;
#[cfg(target_feature = "sm_89")]
use variants::attention::{E4M3_P_EXPONENT, score_of_byte};

/// An element type of Q, K and V.
pub trait Input {
    /// The type.
    const DTYPE: Dtype;
    /// The element type of O, and of a bias.
    type Output: Element16;
    /// The power of two that probabilities are multiplied by before they are rounded.
    const P_EXPONENT: i32;

    /// What an element in a tile is multiplied by, beside the factors of its tensor.
    const TILE_UNIT: f32 = 1.0;

    /// Rounds probabilities to one k-step of operand A. They are scores of the keys of this k-step, as accumulators of
    /// Q K^T: 8 of 16 keys, or 16 of 32 keys.
    fn pack(probabilities: &[f32]) -> [u32; 4];
}

impl<E: Element16> Input for E {
    const DTYPE: Dtype = E::DTYPE;
    type Output = E;
    const P_EXPONENT: i32 = 0;

    /// The accumulators of S lie as operand A of 16-bit elements does, pair by pair.
    #[inline(always)]
    fn pack(probabilities: &[f32]) -> [u32; 4] {
        let mut fragment = [0; 4];
        for register in 0..4 {
            fragment[register] = E::pack(probabilities[2 * register], probabilities[2 * register + 1]);
        }
        fragment
    }
}

/// E4M3, with an O of another type.
#[cfg(target_feature = "sm_89")]
pub struct E4m3To<O>(PhantomData<O>);

#[cfg(target_feature = "sm_89")]
impl<O: Element16> Input for E4m3To<O> {
    const DTYPE: Dtype = Dtype::E4M3;
    type Output = O;
    const P_EXPONENT: i32 = E4M3_P_EXPONENT;

    #[inline(always)]
    fn pack(probabilities: &[f32]) -> [u32; 4] {
        let mut fragment = [0; 4];
        for register in 0..4 {
            let bytes = [0, 1, 2, 3].map(|byte| probabilities[score_of_byte(register, byte) as usize]);
            fragment[register as usize] = pack_e4m3x4(bytes);
        }
        fragment
    }
}

/// 8-bit integers, with an O of another type. Tiles and products are those of f16.
pub struct U8To<O>(PhantomData<O>);

impl<O: Element16> Input for U8To<O> {
    const DTYPE: Dtype = Dtype::U8;
    type Output = O;
    const P_EXPONENT: i32 = 0;
    const TILE_UNIT: f32 = U8_TILE_UNIT;

    #[inline(always)]
    fn pack(probabilities: &[f32]) -> [u32; 4] {
        <F16 as Input>::pack(probabilities)
    }
}
