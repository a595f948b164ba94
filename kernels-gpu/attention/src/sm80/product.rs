//! The product of two fragments of 16 rows of 32 bytes.

#[cfg(target_feature = "sm_89")]
use cuda_std::convert::E4m3;
use cuda_std::convert::{Element16, F16};
use cuda_std::ptx::mma;

#[cfg(target_feature = "sm_89")]
use crate::input::E4m3To;
use crate::input::{Input, U8To};
use crate::sm80::copy::{TileElement, WidenedByte};

/// Adds the product of two 16x16 fragments, `A B + C`.
///
/// # Safety
/// All lanes of the warp call it together.
#[inline(always)]
pub(crate) unsafe fn multiply<E: Element16>(a: [u32; 4], b: [u32; 4], c: [f32; 8]) -> [f32; 8] {
    // SAFETY: the caller's contract.
    side_by_side(b, c, |b, c| unsafe { mma::m16n8k16::<E>(a, b, c) })
}

/// Two `mma` side by side, each with two registers of B and four accumulators.
#[inline(always)]
fn side_by_side(
    [b0, b1, b2, b3]: [u32; 4],
    [c0, c1, c2, c3, c4, c5, c6, c7]: [f32; 8],
    mma: impl Fn([u32; 2], [f32; 4]) -> [f32; 4],
) -> [f32; 8] {
    let [d0, d1, d2, d3] = mma([b0, b1], [c0, c1, c2, c3]);
    let [d4, d5, d6, d7] = mma([b2, b3], [c4, c5, c6, c7]);
    [d0, d1, d2, d3, d4, d5, d6, d7]
}

/// An element type of Q, K and V whose fragments `mma` multiplies.
pub trait MmaInput: Input {
    /// An element of a tensor.
    type Bits: TileElement;

    /// Adds the product of two fragments of 16 rows of 32 bytes, `A B + C`.
    ///
    /// # Safety
    /// All lanes of the warp call it together.
    unsafe fn multiply(a: [u32; 4], b: [u32; 4], c: [f32; 8]) -> [f32; 8];
}

impl<E: Element16> MmaInput for E {
    type Bits = u16;

    #[inline(always)]
    unsafe fn multiply(a: [u32; 4], b: [u32; 4], c: [f32; 8]) -> [f32; 8] {
        // SAFETY: the caller's contract.
        unsafe { multiply::<E>(a, b, c) }
    }
}

#[cfg(target_feature = "sm_89")]
impl<O: Element16> MmaInput for E4m3To<O> {
    type Bits = u8;

    #[inline(always)]
    unsafe fn multiply(a: [u32; 4], b: [u32; 4], c: [f32; 8]) -> [f32; 8] {
        // SAFETY: the caller's contract.
        side_by_side(b, c, |b, c| unsafe { mma::m16n8k32::<E4m3, E4m3>(a, b, c) })
    }
}

impl<O: Element16> MmaInput for U8To<O> {
    type Bits = WidenedByte;

    #[inline(always)]
    unsafe fn multiply(a: [u32; 4], b: [u32; 4], c: [f32; 8]) -> [f32; 8] {
        // SAFETY: the caller's contract.
        unsafe { multiply::<F16>(a, b, c) }
    }
}
