//! The products of fragments that a row multiplies with.

use cuda_std::convert::{Bf16, F16};
use cuda_std::ptx::mma;
use layout::Dtype;

/// A pair of element types that `mma.sync` multiplies. Its fragments cover 32 bytes of k.
pub(crate) trait Multiply {
    /// The type of A.
    const A: Dtype;
    /// The type of B.
    const B: Dtype;

    /// Adds the product of 16 rows of A and 8 columns of B to `c`, across the warp.
    ///
    /// # Safety
    /// All lanes of the warp call it together.
    unsafe fn multiply(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4];
}

impl Multiply for F16 {
    const A: Dtype = Dtype::F16;
    const B: Dtype = Dtype::F16;

    #[inline(always)]
    unsafe fn multiply(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
        // SAFETY: the caller's contract.
        unsafe { mma::m16n8k16::<F16>(a, b, c) }
    }
}

impl Multiply for Bf16 {
    const A: Dtype = Dtype::Bf16;
    const B: Dtype = Dtype::Bf16;

    #[inline(always)]
    unsafe fn multiply(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
        // SAFETY: the caller's contract.
        unsafe { mma::m16n8k16::<Bf16>(a, b, c) }
    }
}
