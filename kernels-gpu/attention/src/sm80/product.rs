//! The product of two fragments of 16x16 elements.

use cuda_std::convert::Element16;
use cuda_std::ptx::mma;

/// Adds the product of two 16x16 fragments, `A B + C`: two `mma` m16n8k16 side by side, each with two registers of B
/// and four accumulators.
///
/// # Safety
/// All lanes of the warp call it together.
#[inline(always)]
pub(crate) unsafe fn multiply<E: Element16>(a: [u32; 4], b: [u32; 4], c: [f32; 8]) -> [f32; 8] {
    let ([b0, b1, b2, b3], [c0, c1, c2, c3, c4, c5, c6, c7]) = (b, c);
    // SAFETY: the caller's contract.
    let (left, right) = unsafe {
        (mma::m16n8k16::<E>(a, [b0, b1], [c0, c1, c2, c3]), mma::m16n8k16::<E>(a, [b2, b3], [c4, c5, c6, c7]))
    };
    let ([d0, d1, d2, d3], [d4, d5, d6, d7]) = (left, right);
    [d0, d1, d2, d3, d4, d5, d6, d7]
}
