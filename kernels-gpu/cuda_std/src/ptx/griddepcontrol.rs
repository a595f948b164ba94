//! Kernels that overlap with the one before them in a stream: sm_90 and later, nothing on older architectures.
//!
//! A kernel that is launched to overlap starts when all blocks of the one before have called [`launch_dependents`] or
//! ended. Until [`wait`] returns it may touch only memory that no earlier kernel writes.

#[cfg(any(target_feature = "sm_90", not(target_arch = "nvptx64")))]
use crate::asm;

/// Lets the next kernel of the stream start, as far as it is launched to overlap, when all blocks have called this or
/// have ended. Results need not be written yet: the next kernel waits for them.
///
/// PTX: `griddepcontrol.launch_dependents` (PTX 7.8, sm_90).
/// Not a memory fence.
#[inline(always)]
pub fn launch_dependents() {
    // SAFETY: has no precondition.
    #[cfg(any(target_feature = "sm_90", not(target_arch = "nvptx64")))]
    unsafe {
        asm!("griddepcontrol.launch_dependents;", options(nostack, preserves_flags))
    }
}

/// Waits until the kernel before has ended and what it wrote is visible. Does nothing where this kernel is not
/// launched to overlap.
///
/// PTX: `griddepcontrol.wait` (PTX 7.8, sm_90).
#[inline(always)]
pub fn wait() {
    // SAFETY: has no precondition.
    #[cfg(any(target_feature = "sm_90", not(target_arch = "nvptx64")))]
    unsafe {
        asm!("griddepcontrol.wait;", options(nostack, preserves_flags))
    }
}
