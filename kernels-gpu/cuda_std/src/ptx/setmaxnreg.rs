//! Moving registers from one warpgroup of a block to another; Hopper only.
//!
//! A kernel starts with the same number of registers in every thread. Producers that need few give up the rest, and
//! consumers take them. What a block holds when it starts is all there is: an increase waits until that many are free.
//! The kernel needs launch bounds (`max_threads`), or ptxas ignores the instruction.
#![cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]

use crate::asm;

const fn check(registers: u32) {
    assert!(
        registers >= 24 && registers <= 256 && registers.is_multiple_of(8),
        "setmaxnreg takes a multiple of 8 from 24 to 256"
    );
}

/// Gives up registers, down to `REGISTERS` a thread.
///
/// PTX: `setmaxnreg.dec.sync.aligned.u32` (PTX 8.0, sm_90a).
///
/// # Safety
/// - All warps of the warpgroup execute this call; none has exited.
/// - Each thread has at least `REGISTERS`; a barrier of the warpgroup stands between two changes.
#[inline(always)]
pub unsafe fn decrease<const REGISTERS: u32>() {
    const { check(REGISTERS) };
    // SAFETY: as required of the caller.
    unsafe { asm!("setmaxnreg.dec.sync.aligned.u32 {0};", const REGISTERS, options(nostack, preserves_flags)) }
}

/// Waits for registers until each thread has `REGISTERS`.
///
/// PTX: `setmaxnreg.inc.sync.aligned.u32` (PTX 8.0, sm_90a).
///
/// # Safety
/// - As for [`decrease`], with at most `REGISTERS` in each thread.
/// - Other warpgroups of the block give up as many as are missing: otherwise this never returns.
#[inline(always)]
pub unsafe fn increase<const REGISTERS: u32>() {
    const { check(REGISTERS) };
    // SAFETY: as required of the caller.
    unsafe { asm!("setmaxnreg.inc.sync.aligned.u32 {0};", const REGISTERS, options(nostack, preserves_flags)) }
}
