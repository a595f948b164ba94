//! Barriers of a cluster: blocks that run at the same time and reach each other's shared memory; sm_90.
//!
//! The rank of a block is [`thread::cluster_rank`](crate::thread::cluster_rank).
#![cfg(target_feature = "sm_90")]

use core::arch::asm;

/// Arrives at the barrier of the cluster: what this thread did before is visible to those that have waited.
///
/// PTX: `barrier.cluster.arrive.release.aligned` (PTX 7.8, sm_90), release semantics in the cluster.
///
/// # Safety
/// - All threads of the warp execute this call together; every thread of the cluster arrives, and each waits once before it
///   arrives again.
#[inline(always)]
pub unsafe fn arrive() {
    // SAFETY: as required of the caller. The absent `nomem` keeps the compiler from moving accesses across it.
    unsafe { asm!("barrier.cluster.arrive.release.aligned;", options(nostack, preserves_flags)) }
}

/// Arrives at the barrier of the cluster without ordering what this thread did before. After
/// [`fence::mbarrier_init`](crate::ptx::fence::mbarrier_init) that is enough for the barriers that it covers.
///
/// In the machine code, the release of [`arrive`] is a fence of the whole card.
///
/// PTX: `barrier.cluster.arrive.relaxed.aligned` (PTX 8.0, sm_90).
/// Not a memory fence.
///
/// # Safety
/// As for [`arrive`].
#[inline(always)]
pub unsafe fn arrive_relaxed() {
    // SAFETY: as required of the caller. The absent `nomem` keeps the compiler from moving accesses across it.
    unsafe { asm!("barrier.cluster.arrive.relaxed.aligned;", options(nostack, preserves_flags)) }
}

/// Waits until every thread of the cluster has arrived.
///
/// PTX: `barrier.cluster.wait.acquire.aligned` (PTX 7.8, sm_90), acquire semantics in the cluster.
///
/// # Safety
/// - All threads of the warp execute this call together, after [`arrive`].
#[inline(always)]
pub unsafe fn wait() {
    // SAFETY: as required of the caller. The absent `nomem` keeps the compiler from moving accesses across it.
    unsafe { asm!("barrier.cluster.wait.acquire.aligned;", options(nostack, preserves_flags)) }
}

/// [`arrive`] and [`wait`].
///
/// # Safety
/// As for both.
#[inline(always)]
pub unsafe fn sync() {
    // SAFETY: as required of the caller.
    unsafe {
        arrive();
        wait();
    }
}
