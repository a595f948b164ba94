//! Matrix products of a warpgroup (four warps) with operands in shared memory, asynchronous; Hopper only.
//!
//! D, 64xN, is in registers: an array of N / 2 `f32` ([`layout::fragment::wgmma_d`]), or of N / 4 registers of two f16
//! ([`layout::fragment::wgmma_d_f16`]). The array's length gives N, any multiple of 8 up to 256. B is in shared memory;
//! A is there too, or in registers ([`layout::fragment::wgmma_a`]). A [`Product`] says how A and B are stored. It is
//! made of the [`Operand`]s of `layout`, which also give the descriptors.
//!
//! ```no_run
//! # use cuda_std::ptx::wgmma::{self, Product};
//! # use layout::descriptor::{Descriptor, Major, Operand};
//! # use layout::{Dtype, Swizzle};
//! enum Mainloop {}
//! impl Product for Mainloop {
//!     const A: Operand = Operand::new(Dtype::F16, Major::K, Swizzle::B128, 64);
//!     const B: Operand = Operand::new(Dtype::F16, Major::K, Swizzle::B128, 128);
//! }
//! const A_TILE: Descriptor = Mainloop::A.descriptor(0);
//! const B_TILE: Descriptor = Mainloop::B.descriptor(64 * 128);
//!
//! # unsafe fn example(base: u32, next_a: Descriptor, next_b: Descriptor) {
//! let (a, b) = (A_TILE.offset(base), B_TILE.offset(base));           // base of the dynamic shared memory
//! let mut d: [f32; 64] = wgmma::product::<Mainloop, _, 4>(a, b);     // m64n128, K = 4 * 16
//! wgmma::mma_async::<Mainloop, _, 4>(&mut d, next_a, next_b, true);
//! wgmma::wait_group::<0, _>(&mut d);
//! # }
//! ```
//!
//! One call is a group: `wgmma.fence`, the instructions of all its k-steps, `wgmma.commit_group`. All of them are one
//! `asm!`, because a move of an accumulator between two of them would serialise them, and the compiler cannot put one
//! inside. From the call to the wait that covers its group, nothing else may touch the accumulators, the registers of
//! A, or the tiles. Other numbers of k-steps are several groups, of which the later ones start at
//! `b.offset(P::B.k_step_offset_bytes(first_step))`.
//!
//! Dtype F32 stands for tf32, which reads the upper 19 bits of an f32.
#![cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]

use core::mem::MaybeUninit;

use layout::Dtype;
use layout::descriptor::{Descriptor, Major, Operand};

use crate::asm;

/// What a group multiplies.
pub trait Product {
    /// How A is stored; [`Operand::in_registers`] if it is in registers.
    const A: Operand;
    /// How B is stored.
    const B: Operand;
    /// Whether A is negated.
    const NEGATE_A: bool = false;
    /// Whether B is negated.
    const NEGATE_B: bool = false;
}

/// The pairs of types that `wgmma` multiplies, with the numbers that `wgmma_accumulators!` knows them by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Types {
    F16 = 0,
    Bf16 = 1,
    Tf32 = 2,
    E4M3E4M3 = 3,
    E4M3E5M2 = 4,
    E5M2E4M3 = 5,
    E5M2E5M2 = 6,
}

impl Types {
    /// The pair of a product.
    const fn of<P: Product>() -> Types {
        const {
            match (P::A.dtype(), P::B.dtype()) {
                (Dtype::F16, Dtype::F16) => Types::F16,
                (Dtype::Bf16, Dtype::Bf16) => Types::Bf16,
                (Dtype::F32, Dtype::F32) => Types::Tf32,
                (Dtype::E4M3, Dtype::E4M3) => Types::E4M3E4M3,
                (Dtype::E4M3, Dtype::E5M2) => Types::E4M3E5M2,
                (Dtype::E5M2, Dtype::E4M3) => Types::E5M2E4M3,
                (Dtype::E5M2, Dtype::E5M2) => Types::E5M2E5M2,
                _ => panic!("wgmma does not multiply these types"),
            }
        }
    }
}

mod sealed {
    pub trait Sealed {}
}

/// The registers of D in one thread: `[f32; N / 2]`, or `[u32; N / 4]` of two f16 each.
///
/// The functions are the instructions themselves; those of this module are their callers, and say what each requires.
pub trait Accumulator: sealed::Sealed + Copy {
    /// N, the columns of D.
    const COLUMNS: u32;
    /// The type of the elements.
    const DTYPE: Dtype;

    #[doc(hidden)]
    unsafe fn group<P: Product, const STEPS: usize>(d: &mut Self, a: u64, b: u64, scale_d: u32);
    #[doc(hidden)]
    unsafe fn group_registers<P: Product, const STEPS: usize>(
        d: &mut Self,
        a: &[[u32; 4]; STEPS],
        b: u64,
        scale_d: u32,
    );
    #[doc(hidden)]
    unsafe fn product<P: Product, const STEPS: usize>(a: u64, b: u64) -> Self;
    #[doc(hidden)]
    unsafe fn product_registers<P: Product, const STEPS: usize>(a: &[[u32; 4]; STEPS], b: u64) -> Self;
    #[doc(hidden)]
    unsafe fn wait_group<const PENDING: u32>(&mut self);
    #[doc(hidden)]
    fn settle(&mut self);
}

cuda_std_macros::wgmma_accumulators!(steps: 1, 2, 4, 8);

/// What the arms of [`Accumulator`] are chosen by. A constant, so that rustc leaves out the arms that are not chosen.
const fn case<P: Product>(steps: usize) -> u32 {
    (Types::of::<P>() as u32) << 8 | steps as u32
}

/// Refuses at compile time what the arms of [`Accumulator`] have no instruction for.
const fn check<P: Product, D: Accumulator>(steps: usize, a_in_registers: bool) {
    assert!(matches!(steps, 1 | 2 | 4 | 8), "a wgmma group has 1, 2, 4 or 8 k-steps");
    let f16 = matches!(D::DTYPE, Dtype::F16);
    assert!(
        !f16 || !matches!(Types::of::<P>(), Types::Bf16 | Types::Tf32),
        "wgmma accumulates these types in f32 alone"
    );
    assert!(a_in_registers == P::A.is_in_registers(), "operand A is not where this form of wgmma takes it from");
}

/// What a descriptor grows by from the first to a later k-step.
const fn k_step(operand: Operand, step: u32) -> u32 {
    operand.k_step_offset_bytes(step) / 16
}

/// The immediate that negates an operand or does not.
const fn sign(negate: bool) -> i32 {
    if negate { -1 } else { 1 }
}

/// The immediate that says in which order an operand is stored.
const fn order(operand: Operand) -> u32 {
    match operand.major() {
        Major::K => 0,
        Major::Mn => 1,
    }
}

/// Starts D = A B + D, or D = A B if not `scale_d`, with `STEPS` instructions along K, across the warpgroup.
///
/// PTX: `wgmma.fence.sync.aligned`, then `wgmma.mma_async.sync.aligned.m64nNkK.dtype.atype.btype` `STEPS` times, then
/// `wgmma.commit_group.sync.aligned` (PTX 8.0, sm_90a); `STEPS` is 1, 2, 4 or 8.
/// Fragments: [`layout::fragment::wgmma_d`] or, in f16, [`layout::fragment::wgmma_d_f16`].
/// Not a memory fence.
///
/// # Safety
/// - All 128 threads of the warpgroup execute this call together with the same operands; none has exited.
/// - `a` and `b` describe tiles of 64 rows and `D::COLUMNS` columns, stored as `P` says and long enough for the steps.
///   They were written by asynchronous copies that have been waited for, or before a
///   [`fence::proxy_async_shared`](crate::ptx::fence::proxy_async_shared) and a barrier.
/// - Until [`wait_group`] has covered this group, `d` is touched by nothing but further groups of the same shape and
///   the tiles are not written.
#[inline(always)]
pub unsafe fn mma_async<P: Product, D: Accumulator, const STEPS: usize>(
    d: &mut D,
    a: Descriptor,
    b: Descriptor,
    scale_d: bool,
) {
    const { check::<P, D>(STEPS, false) };
    // SAFETY: as required of the caller.
    unsafe { D::group::<P, STEPS>(d, a.as_raw(), b.as_raw(), scale_d as u32) }
}

/// Starts D = A B + D, or D = A B if not `scale_d`, with A in registers: four of them a k-step.
///
/// PTX: as for [`mma_async`], with registers for the first descriptor (PTX 8.0, sm_90a).
/// Fragments: as for [`mma_async`]; A is [`layout::fragment::wgmma_a`].
/// Not a memory fence.
///
/// # Safety
/// As for [`mma_async`], of which the tile of A does not apply: `a` holds this thread's fragments.
#[inline(always)]
pub unsafe fn mma_async_registers<P: Product, D: Accumulator, const STEPS: usize>(
    d: &mut D,
    a: &[[u32; 4]; STEPS],
    b: Descriptor,
    scale_d: bool,
) {
    const { check::<P, D>(STEPS, true) };
    // SAFETY: as required of the caller.
    unsafe { D::group_registers::<P, STEPS>(d, a, b.as_raw(), scale_d as u32) }
}

/// Starts D = A B in new registers: [`mma_async`] without `scale_d`, and with nothing to be set to zero first.
///
/// PTX: as for [`mma_async`] (PTX 8.0, sm_90a).
/// Fragments: as for [`mma_async`].
/// Not a memory fence.
///
/// # Safety
/// As for [`mma_async`]; `d` is the result.
#[inline(always)]
#[must_use = "the product is in the registers that this returns"]
pub unsafe fn product<P: Product, D: Accumulator, const STEPS: usize>(a: Descriptor, b: Descriptor) -> D {
    const { check::<P, D>(STEPS, false) };
    // SAFETY: as required of the caller.
    unsafe { D::product::<P, STEPS>(a.as_raw(), b.as_raw()) }
}

/// Starts D = A B in new registers, with A in registers: [`mma_async_registers`] without `scale_d`.
///
/// PTX: as for [`mma_async_registers`] (PTX 8.0, sm_90a).
/// Fragments: as for [`mma_async_registers`].
/// Not a memory fence.
///
/// # Safety
/// As for [`mma_async_registers`]; `d` is the result.
#[inline(always)]
#[must_use = "the product is in the registers that this returns"]
pub unsafe fn product_registers<P: Product, D: Accumulator, const STEPS: usize>(
    a: &[[u32; 4]; STEPS],
    b: Descriptor,
) -> D {
    const { check::<P, D>(STEPS, true) };
    // SAFETY: as required of the caller.
    unsafe { D::product_registers::<P, STEPS>(a, b.as_raw()) }
}

/// Waits until at most `PENDING` of the warpgroup's newest groups are in flight; `d` is then complete if its group is
/// among the older ones.
///
/// Naming the accumulators keeps the compiler from reading them earlier. If the groups of several accumulators are
/// waited for at once, the others go through [`settle`] after this.
///
/// PTX: `wgmma.wait_group.sync.aligned PENDING` (PTX 8.0, sm_90a).
/// Not a memory fence.
///
/// # Safety
/// - All 128 threads of the warpgroup execute this call together; none has exited.
#[inline(always)]
pub unsafe fn wait_group<const PENDING: u32, D: Accumulator>(d: &mut D) {
    const { assert!(PENDING < 8, "wgmma.wait_group counts up to 7 groups") };
    // SAFETY: as required of the caller.
    unsafe { d.wait_group::<PENDING>() }
}

/// Keeps the compiler from moving uses of `d` from after this to before it; no instruction.
#[inline(always)]
pub fn settle<D: Accumulator>(d: &mut D) {
    d.settle();
}

/// Orders this warpgroup's accesses to registers before the fence ahead of the `wgmma` after it. [`mma_async`] and its
/// kin have a fence of their own.
///
/// PTX: `wgmma.fence.sync.aligned` (PTX 8.0, sm_90a).
/// Not a memory fence.
///
/// # Safety
/// - All 128 threads of the warpgroup execute this call together; none has exited.
#[inline(always)]
pub unsafe fn fence() {
    // SAFETY: as required of the caller.
    unsafe { asm!("wgmma.fence.sync.aligned;", options(nostack, preserves_flags)) }
}

/// Closes the `wgmma` that this warpgroup has started since its last group into a new group. Here the new group is
/// empty, because each call of [`mma_async`] and its kin is a group of its own.
///
/// PTX: `wgmma.commit_group.sync.aligned` (PTX 8.0, sm_90a).
/// Not a memory fence.
///
/// # Safety
/// - All 128 threads of the warpgroup execute this call together; none has exited.
#[inline(always)]
pub unsafe fn commit_group() {
    // SAFETY: as required of the caller.
    unsafe { asm!("wgmma.commit_group.sync.aligned;", options(nostack, preserves_flags)) }
}
