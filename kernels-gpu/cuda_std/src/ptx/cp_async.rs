//! Asynchronous copies from global to shared memory, sm_80 and later.
//!
//! A thread starts copies, closes them into a group, and later waits until at most N of its newest groups are still in
//! flight. The copies are then visible to the thread itself; a block barrier makes them visible to the others.
//!
//! ```no_run
//! # use cuda_std::{ptx::cp_async, shared::SharedAddr, thread};
//! # unsafe fn example(stage: SharedAddr, lane_bytes: u32, src: *const f32, [row, rows]: [u32; 2]) {
//! cp_async::cg_16(stage.offset(lane_bytes), src, if row < rows { 16 } else { 0 });
//! cp_async::commit_group();
//! // .. start the next stage ..
//! cp_async::wait_group::<1>();
//! thread::sync_threads();
//! # }
//! ```
//!
//! Every copy takes the number of bytes to read; the rest of the destination is filled with zeros, so the edge of a
//! tile needs no branch. With 0 bytes nothing is read, but `src` must still be aligned.

use crate::asm;
use crate::shared::SharedAddr;

/// Starts a copy of 4 bytes through all caches: `source_bytes` from `src`, then zeros.
///
/// PTX: `cp.async.ca.shared.global [dst], [src], 4, source_bytes` (PTX 7.0, sm_80).
/// Not a memory fence.
///
/// # Safety
/// - `dst` is 4-byte aligned in the shared memory of the block; no thread touches it until the copy has been waited
///   for.
/// - `src` is 4-byte aligned; `source_bytes` is at most 4, and so many bytes of global memory are readable there.
#[inline(always)]
pub unsafe fn ca_4<T>(dst: SharedAddr, src: *const T, source_bytes: u32) {
    // SAFETY: as required of the caller.
    unsafe {
        asm!("cp.async.ca.shared.global [{0}], [{1}], 4, {2};", in(reg32) dst.as_raw(), in(reg64) src,
            in(reg32) source_bytes, options(nostack, preserves_flags));
    }
}

/// Starts a copy of 8 bytes through all caches: `source_bytes` from `src`, then zeros.
///
/// PTX: `cp.async.ca.shared.global [dst], [src], 8, source_bytes` (PTX 7.0, sm_80).
/// Not a memory fence.
///
/// # Safety
/// As for [`ca_4`], with 8 for 4.
#[inline(always)]
pub unsafe fn ca_8<T>(dst: SharedAddr, src: *const T, source_bytes: u32) {
    // SAFETY: as required of the caller.
    unsafe {
        asm!("cp.async.ca.shared.global [{0}], [{1}], 8, {2};", in(reg32) dst.as_raw(), in(reg64) src,
            in(reg32) source_bytes, options(nostack, preserves_flags));
    }
}

/// Starts a copy of 16 bytes through the L2 cache alone: `source_bytes` from `src`, then zeros.
///
/// PTX: `cp.async.cg.shared.global [dst], [src], 16, source_bytes` (PTX 7.0, sm_80).
/// Not a memory fence.
///
/// # Safety
/// As for [`ca_4`], with 16 for 4.
#[inline(always)]
pub unsafe fn cg_16<T>(dst: SharedAddr, src: *const T, source_bytes: u32) {
    // SAFETY: as required of the caller.
    unsafe {
        asm!("cp.async.cg.shared.global [{0}], [{1}], 16, {2};", in(reg32) dst.as_raw(), in(reg64) src,
            in(reg32) source_bytes, options(nostack, preserves_flags));
    }
}

/// Closes the copies that this thread has started since its last group into a new group, which may be empty.
///
/// PTX: `cp.async.commit_group` (PTX 7.0, sm_80).
/// Not a memory fence.
#[inline(always)]
pub fn commit_group() {
    // SAFETY: has no precondition.
    unsafe { asm!("cp.async.commit_group;", options(nostack, preserves_flags)) }
}

/// Waits until at most `PENDING` of this thread's newest groups are in flight. The copies of the older ones are then
/// visible to this thread.
///
/// PTX: `cp.async.wait_group PENDING` (PTX 7.0, sm_80).
/// Not a memory fence: a barrier makes the copies visible to other threads.
#[inline(always)]
pub fn wait_group<const PENDING: u32>() {
    // SAFETY: has no precondition. The absent `nomem` keeps the compiler from moving accesses across it.
    unsafe { asm!("cp.async.wait_group {0};", const PENDING, options(nostack, preserves_flags)) }
}

/// Waits for all copies of this thread, committed or not. They are then visible to this thread.
///
/// PTX: `cp.async.wait_all` (PTX 7.0, sm_80).
/// Not a memory fence: a barrier makes the copies visible to other threads.
#[inline(always)]
pub fn wait_all() {
    // SAFETY: has no precondition. The absent `nomem` keeps the compiler from moving accesses across it.
    unsafe { asm!("cp.async.wait_all;", options(nostack, preserves_flags)) }
}
