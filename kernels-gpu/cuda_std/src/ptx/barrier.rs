//! Barriers of some of the warps of a block. A block has 16 of them, of which number 0 is that of
//! [`thread::sync_threads`](crate::thread::sync_threads).

use crate::asm;

/// Waits on barrier `ID` until `THREADS` threads have arrived there.
///
/// PTX: `bar.sync ID, THREADS` (PTX 2.0, sm_20). Accesses of these threads before the barrier come before their
/// accesses after it.
///
/// # Safety
/// - All threads of the warp execute this call together; `THREADS / 32` warps of the block arrive in each round.
#[inline(always)]
pub unsafe fn sync<const ID: u32, const THREADS: u32>() {
    const { check(ID, THREADS) };
    // SAFETY: as required of the caller. The absent `nomem` keeps the compiler from moving accesses across it.
    unsafe { asm!("bar.sync {0}, {1};", const ID, const THREADS, options(nostack, preserves_flags)) }
}

/// Waits on barrier `id`, which is found out at run time, until `THREADS` threads have arrived there.
///
/// PTX: `bar.sync id, THREADS` (PTX 2.0, sm_20), as [`sync`].
///
/// # Safety
/// As for [`sync`]; `id` is at most 15 and the same in all threads of the warp.
#[inline(always)]
pub unsafe fn sync_numbered<const THREADS: u32>(id: u32) {
    const { check(0, THREADS) };
    // SAFETY: as required of the caller. The absent `nomem` keeps the compiler from moving accesses across it.
    unsafe { asm!("bar.sync {0}, {1};", in(reg32) id, const THREADS, options(nostack, preserves_flags)) }
}

/// Arrives on barrier `ID`, of `THREADS` threads, without waiting.
///
/// PTX: `bar.arrive ID, THREADS` (PTX 2.0, sm_20). Accesses of these threads before the arrival come before accesses
/// after a [`sync`] of the same round.
///
/// # Safety
/// As for [`sync`].
#[inline(always)]
pub unsafe fn arrive<const ID: u32, const THREADS: u32>() {
    const { check(ID, THREADS) };
    // SAFETY: as required of the caller. The absent `nomem` keeps the compiler from moving accesses across it.
    unsafe { asm!("bar.arrive {0}, {1};", const ID, const THREADS, options(nostack, preserves_flags)) }
}

/// Arrives on barrier `id`, which is found out at run time, of `THREADS` threads, without waiting.
///
/// PTX: `bar.arrive id, THREADS` (PTX 2.0, sm_20), as [`arrive`].
///
/// # Safety
/// As for [`sync_numbered`].
#[inline(always)]
pub unsafe fn arrive_numbered<const THREADS: u32>(id: u32) {
    const { check(0, THREADS) };
    // SAFETY: as required of the caller. The absent `nomem` keeps the compiler from moving accesses across it.
    unsafe { asm!("bar.arrive {0}, {1};", in(reg32) id, const THREADS, options(nostack, preserves_flags)) }
}

const fn check(id: u32, threads: u32) {
    assert!(id < 16, "a block has barriers 0 to 15");
    assert!(threads > 0 && threads.is_multiple_of(32), "whole warps arrive at a barrier");
}
