//! Where a thread is in its block and grid, the barrier of the block and the memory fences.

use crate::{asm, nvptx};

/// The index of the thread in its block, x.
#[inline(always)]
pub fn thread_idx_x() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_thread_idx_x() }
}

/// The index of the thread in its block, y.
#[inline(always)]
pub fn thread_idx_y() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_thread_idx_y() }
}

/// The index of the thread in its block, z.
#[inline(always)]
pub fn thread_idx_z() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_thread_idx_z() }
}

/// The index of the block in the grid, x.
#[inline(always)]
pub fn block_idx_x() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_block_idx_x() }
}

/// The index of the block in the grid, y.
#[inline(always)]
pub fn block_idx_y() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_block_idx_y() }
}

/// The index of the block in the grid, z.
#[inline(always)]
pub fn block_idx_z() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_block_idx_z() }
}

/// The threads of a block, x.
#[inline(always)]
pub fn block_dim_x() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_block_dim_x() }
}

/// The threads of a block, y.
#[inline(always)]
pub fn block_dim_y() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_block_dim_y() }
}

/// The threads of a block, z.
#[inline(always)]
pub fn block_dim_z() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_block_dim_z() }
}

/// The blocks of the grid, x.
#[inline(always)]
pub fn grid_dim_x() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_grid_dim_x() }
}

/// The blocks of the grid, y.
#[inline(always)]
pub fn grid_dim_y() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_grid_dim_y() }
}

/// The blocks of the grid, z.
#[inline(always)]
pub fn grid_dim_z() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_grid_dim_z() }
}

/// The index of the thread in a grid of one dimension.
#[inline(always)]
pub fn index_1d() -> u32 {
    thread_idx_x() + block_idx_x() * block_dim_x()
}

/// The rank of the block in its cluster: x counts fastest; 0 in a launch without clusters.
///
/// PTX: `mov.u32 d, %cluster_ctarank` (PTX 7.8, sm_90).
#[cfg(any(target_feature = "sm_90", not(target_arch = "nvptx64")))]
#[inline(always)]
pub fn cluster_rank() -> u32 {
    let rank: u32;
    // SAFETY: reads a special register, which does not change.
    unsafe { asm!("mov.u32 {0}, %cluster_ctarank;", out(reg32) rank, options(pure, nomem, nostack, preserves_flags)) }
    rank
}

/// Waits until every thread of the block has arrived; memory that any of them wrote before is then visible to all of
/// them.
///
/// PTX: `bar.sync 0` (PTX 1.0, sm_10), by the LLVM intrinsic, which the compiler knows to be convergent.
///
/// # Safety
/// - Every thread of the block that has not exited executes this call; within a warp, all lanes together.
#[inline(always)]
pub unsafe fn sync_threads() {
    // SAFETY: as required of the caller.
    unsafe { nvptx::_syncthreads() }
}

/// Orders the memory accesses of this thread before the fence ahead of those after it, as seen by the threads of its
/// block.
///
/// PTX: `fence.acq_rel.cta` (PTX 6.0, sm_70).
#[inline(always)]
pub fn block_fence() {
    // SAFETY: a fence has no precondition. The absent `nomem` keeps the compiler from moving accesses across it.
    unsafe { asm!("fence.acq_rel.cta;", options(nostack, preserves_flags)) }
}

/// Orders the memory accesses of this thread before the fence ahead of those after it, as seen by the threads of the
/// device.
///
/// PTX: `fence.acq_rel.gpu` (PTX 6.0, sm_70).
#[inline(always)]
pub fn device_fence() {
    // SAFETY: a fence has no precondition. The absent `nomem` keeps the compiler from moving accesses across it.
    unsafe { asm!("fence.acq_rel.gpu;", options(nostack, preserves_flags)) }
}
