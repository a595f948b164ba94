//! What the 32 lanes of a warp do together: shuffles, votes, reductions.
//!
//! The functions called `warp_..` have the names and arguments of Rust-CUDA's; `mask` names the lanes that take part,
//! [`FULL_MASK`] all of them. Reductions work on all lanes, or on each quad, and leave the result in every lane. A quad
//! is lanes 4q to 4q + 3, which hold one row of a tensor-core accumulator.
//!
//! ```no_run
//! # use cuda_std::{convert, warp};
//! # unsafe fn example(s: [f32; 2], partial: f32) {
//! let row_max = warp::quad_max(convert::max(s[0], s[1]));
//! let total = warp::warp_sum(partial);
//! # }
//! ```

use crate::asm;
use crate::convert;

/// The mask of all lanes.
pub const FULL_MASK: u32 = u32::MAX;

/// The index of the thread in its warp, 0 to 31.
///
/// PTX: `mov.u32 d, %laneid` (PTX 1.3, sm_10).
#[inline(always)]
pub fn lane_id() -> u32 {
    let lane: u32;
    // SAFETY: reads a special register that does not change.
    unsafe { asm!("mov.u32 {0}, %laneid;", out(reg32) lane, options(pure, nomem, nostack, preserves_flags)) }
    lane
}

/// Waits until the lanes in `mask` have arrived; memory that any of them wrote before is then visible to all of them.
///
/// PTX: `bar.warp.sync` (PTX 6.0, sm_30).
///
/// # Safety
/// - Every lane in `mask` executes this call with the same mask, and none has exited; the caller is in `mask`.
#[inline(always)]
pub unsafe fn sync_warp(mask: u32) {
    // SAFETY: as required of the caller. The absent `nomem` keeps the compiler from moving accesses across it.
    unsafe { asm!("bar.warp.sync {0};", in(reg32) mask, options(nostack)) }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for f32 {}
}

/// A value that one shuffle moves.
pub trait WarpShuffleValue: sealed::Sealed + Copy {
    #[doc(hidden)]
    fn to_register(self) -> u32;
    #[doc(hidden)]
    fn from_register(register: u32) -> Self;
}

impl WarpShuffleValue for u32 {
    #[inline(always)]
    fn to_register(self) -> u32 {
        self
    }
    #[inline(always)]
    fn from_register(register: u32) -> Self {
        register
    }
}

impl WarpShuffleValue for f32 {
    #[inline(always)]
    fn to_register(self) -> u32 {
        self.to_bits()
    }
    #[inline(always)]
    fn from_register(register: u32) -> Self {
        f32::from_bits(register)
    }
}

/// One `shfl.sync`: the operands differ between the forms only in how the source lane and its bound are given.
macro_rules! shuffle {
    ($mode:literal, $value:expr, $lane:expr, $clamp:expr, $width:expr, $mask:expr) => {{
        let (register, in_range): (u32, u32);
        asm!(
            "{{",
            ".reg .pred p;",
            concat!("shfl.sync.", $mode, ".b32 {0}|p, {2}, {3}, {4}, {5};"),
            "selp.u32 {1}, 1, 0, p;",
            "}}",
            out(reg32) register, out(reg32) in_range, in(reg32) $value.to_register(), in(reg32) $lane,
            in(reg32) ((32 - $width) << 8) | $clamp, in(reg32) $mask, options(nomem, nostack)
        );
        (WarpShuffleValue::from_register(register), in_range != 0)
    }};
}

/// Returns the value of lane `lane % width` of the caller's group of `width` lanes, and true.
///
/// PTX: `shfl.sync.idx.b32` (PTX 6.0, sm_30).
/// Not a memory fence.
///
/// # Safety
/// - Every lane in `mask` executes this call together, with the same mask and width; the caller and the source are in
///   it.
/// - `width` is a power of two up to 32. Of `lane`, `lane_mask` or `delta` the low five bits count.
#[inline(always)]
pub unsafe fn warp_shuffle_idx<T: WarpShuffleValue>(mask: u32, value: T, lane: u32, width: u32) -> (T, bool) {
    // SAFETY: as required of the caller.
    unsafe { shuffle!("idx", value, lane, 0x1f, width, mask) }
}

/// Returns the value of the lane whose index differs from the caller's in the bits of `lane_mask`, and true. If that
/// lane is above the caller's group of `width` lanes, returns the caller's own value and false.
///
/// PTX: `shfl.sync.bfly.b32` (PTX 6.0, sm_30).
/// Not a memory fence.
///
/// # Safety
/// As for [`warp_shuffle_idx`].
#[inline(always)]
pub unsafe fn warp_shuffle_xor<T: WarpShuffleValue>(mask: u32, value: T, lane_mask: u32, width: u32) -> (T, bool) {
    // SAFETY: as required of the caller.
    unsafe { shuffle!("bfly", value, lane_mask, 0x1f, width, mask) }
}

/// Returns the value of the lane `delta` below the caller, and true. If that lane is outside the caller's group of
/// `width` lanes, returns the caller's own value and false.
///
/// PTX: `shfl.sync.up.b32` (PTX 6.0, sm_30).
/// Not a memory fence.
///
/// # Safety
/// As for [`warp_shuffle_idx`].
#[inline(always)]
pub unsafe fn warp_shuffle_up<T: WarpShuffleValue>(mask: u32, value: T, delta: u32, width: u32) -> (T, bool) {
    // SAFETY: as required of the caller.
    unsafe { shuffle!("up", value, delta, 0, width, mask) }
}

/// Returns the value of the lane `delta` above the caller, and true. If that lane is outside the caller's group of
/// `width` lanes, returns the caller's own value and false.
///
/// PTX: `shfl.sync.down.b32` (PTX 6.0, sm_30).
/// Not a memory fence.
///
/// # Safety
/// As for [`warp_shuffle_idx`].
#[inline(always)]
pub unsafe fn warp_shuffle_down<T: WarpShuffleValue>(mask: u32, value: T, delta: u32, width: u32) -> (T, bool) {
    // SAFETY: as required of the caller.
    unsafe { shuffle!("down", value, delta, 0x1f, width, mask) }
}

/// Whether `predicate` holds in every lane of `mask`.
///
/// PTX: `vote.sync.all.pred` (PTX 6.0, sm_30).
/// Not a memory fence.
///
/// # Safety
/// - Every lane in `mask` executes this call together with the same mask, and the caller is in it.
#[inline(always)]
pub unsafe fn warp_vote_all(mask: u32, predicate: bool) -> bool {
    let all: u32;
    // SAFETY: as required of the caller.
    unsafe {
        asm!(
            "{{ .reg .pred p; setp.ne.u32 p, {1}, 0; vote.sync.all.pred p, p, {2}; selp.u32 {0}, 1, 0, p; }}",
            out(reg32) all, in(reg32) predicate as u32, in(reg32) mask, options(nomem, nostack)
        );
    }
    all != 0
}

/// Whether `predicate` holds in any lane of `mask`.
///
/// PTX: `vote.sync.any.pred` (PTX 6.0, sm_30).
/// Not a memory fence.
///
/// # Safety
/// As for [`warp_vote_all`].
#[inline(always)]
pub unsafe fn warp_vote_any(mask: u32, predicate: bool) -> bool {
    let any: u32;
    // SAFETY: as required of the caller.
    unsafe {
        asm!(
            "{{ .reg .pred p; setp.ne.u32 p, {1}, 0; vote.sync.any.pred p, p, {2}; selp.u32 {0}, 1, 0, p; }}",
            out(reg32) any, in(reg32) predicate as u32, in(reg32) mask, options(nomem, nostack)
        );
    }
    any != 0
}

/// The lanes of `mask` in which `predicate` holds, one bit a lane.
///
/// PTX: `vote.sync.ballot.b32` (PTX 6.0, sm_30).
/// Not a memory fence.
///
/// # Safety
/// As for [`warp_vote_all`].
#[inline(always)]
pub unsafe fn warp_vote_ballot(mask: u32, predicate: bool) -> u32 {
    let lanes: u32;
    // SAFETY: as required of the caller.
    unsafe {
        asm!(
            "{{ .reg .pred p; setp.ne.u32 p, {1}, 0; vote.sync.ballot.b32 {0}, p, {2}; }}",
            out(reg32) lanes, in(reg32) predicate as u32, in(reg32) mask, options(nomem, nostack)
        );
    }
    lanes
}

/// True in exactly one lane of the warp, the same at every call, and in uniform control flow for the compiler.
///
/// PTX: `elect.sync` (PTX 8.0, sm_90).
/// Not a memory fence.
///
/// # Safety
/// - All 32 lanes of the warp execute this call together; none has exited.
#[cfg(any(target_feature = "sm_90", not(target_arch = "nvptx64")))]
#[inline(always)]
pub unsafe fn elect() -> bool {
    let elected: u32;
    // SAFETY: as required of the caller.
    unsafe {
        asm!(
            "{{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 {0}, 1, 0, p; }}",
            out(reg32) elected, options(nomem, nostack)
        );
    }
    elected != 0
}

/// Combines the values of the lanes whose indices differ in the low bits: one exchange for each bit of `lanes - 1`.
///
/// # Safety
/// - All 32 lanes of the warp execute this call together; none has exited.
#[inline(always)]
unsafe fn reduce<const LANES: u32>(mut value: f32, combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lane_mask = LANES / 2;
    while lane_mask > 0 {
        // SAFETY: as required of the caller; the full mask names all lanes.
        let (other, _) = unsafe { warp_shuffle_xor(FULL_MASK, value, lane_mask, 32) };
        value = combine(value, other);
        lane_mask /= 2;
    }
    value
}

/// The sum over the four lanes of the caller's quad.
///
/// # Safety
/// - All 32 lanes of the warp execute this call together; none has exited.
#[inline(always)]
pub unsafe fn quad_sum(value: f32) -> f32 {
    // SAFETY: as required of the caller.
    unsafe { reduce::<4>(value, |a, b| a + b) }
}

/// The maximum over the four lanes of the caller's quad; a NaN is ignored unless all four are.
///
/// # Safety
/// - All 32 lanes of the warp execute this call together; none has exited.
#[inline(always)]
pub unsafe fn quad_max(value: f32) -> f32 {
    // SAFETY: as required of the caller.
    unsafe { reduce::<4>(value, convert::max) }
}

/// The sum over the warp. The order of the additions is the same in every lane, so all lanes have the same bits.
///
/// # Safety
/// - All 32 lanes of the warp execute this call together; none has exited.
#[inline(always)]
pub unsafe fn warp_sum(value: f32) -> f32 {
    // SAFETY: as required of the caller.
    unsafe { reduce::<32>(value, |a, b| a + b) }
}

/// The maximum over the warp; a NaN is ignored unless all lanes have one.
///
/// # Safety
/// - All 32 lanes of the warp execute this call together; none has exited.
#[inline(always)]
pub unsafe fn warp_max(value: f32) -> f32 {
    // SAFETY: as required of the caller.
    unsafe { reduce::<32>(value, convert::max) }
}
