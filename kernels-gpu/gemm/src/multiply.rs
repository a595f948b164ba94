//! The products of fragments that a configuration multiplies with, and the sums that they add to.

use cuda_std::convert::{Bf16, F16};
#[cfg(target_feature = "sm_89")]
use cuda_std::convert::{E4m3, Element8};
use cuda_std::ptx::mma;
use layout::Dtype;

/// The sums of one warp: fragments of A, then pairs of 8 columns, then the registers of `mma`.
pub(crate) type Sums<const A: usize, const B: usize> = [[[[f32; 4]; 2]; B]; A];

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

/// E4M3 by an 8-bit type.
#[cfg(target_feature = "sm_89")]
pub(crate) struct ByE4m3<B>(core::marker::PhantomData<B>);

#[cfg(target_feature = "sm_89")]
impl<B: Element8> Multiply for ByE4m3<B> {
    const A: Dtype = Dtype::E4M3;
    const B: Dtype = B::DTYPE;

    #[inline(always)]
    unsafe fn multiply(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
        // SAFETY: the caller's contract.
        unsafe { mma::m16n8k32::<E4m3, B>(a, b, c) }
    }
}
