//! Fences between the proxies of sm_90: ordinary accesses on one side, tensor memory accelerator and `wgmma` on the
//! other.
//!
//! The fences between ordinary accesses are in [`thread`](crate::thread).
#![cfg(any(target_feature = "sm_90", not(target_arch = "nvptx64")))]

use crate::asm;

/// Orders this thread's ordinary accesses to shared memory before it ahead of the asynchronous ones after it.
///
/// PTX: `fence.proxy.async.shared::cta` (PTX 8.0, sm_90).
#[inline(always)]
pub fn proxy_async_shared() {
    // SAFETY: a fence has no precondition. The absent `nomem` keeps the compiler from moving accesses across it.
    unsafe { asm!("fence.proxy.async.shared::cta;", options(nostack, preserves_flags)) }
}

/// Makes the mbarriers that this thread has initialised visible to the cluster and to asynchronous copies.
///
/// PTX: `fence.mbarrier_init.release.cluster` (PTX 8.0, sm_90).
#[inline(always)]
pub fn mbarrier_init() {
    // SAFETY: a fence has no precondition. The absent `nomem` keeps the compiler from moving accesses across it.
    unsafe { asm!("fence.mbarrier_init.release.cluster;", options(nostack, preserves_flags)) }
}

/// Orders this thread's accesses to global memory across the two proxies: ordinary accesses before the fence come
/// before asynchronous ones after it, and the other way round.
///
/// PTX: `fence.proxy.async.global` (PTX 8.0, sm_90).
#[inline(always)]
pub fn proxy_async_global() {
    // SAFETY: a fence has no precondition. The absent `nomem` keeps the compiler from moving accesses across it.
    unsafe { asm!("fence.proxy.async.global;", options(nostack, preserves_flags)) }
}
