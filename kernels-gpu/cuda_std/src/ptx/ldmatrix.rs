//! Loads of 8x8 matrices of 16-bit elements from shared memory, in the form that `mma` takes them.
//!
//! Each lane gives the address of one row of 16 bytes: lanes 0 to 7 those of matrix 0, lanes 8 to 15 those of matrix 1,
//! and so on ([`layout::fragment::ldmatrix_source`]). Register `i` of every lane then holds two elements of matrix `i`
//! ([`layout::fragment::ldmatrix`]); the `trans` forms deliver the transposed matrices. The rows can lie anywhere, so
//! swizzled tiles cost nothing ([`layout::swizzle`]).
//!
//! ```no_run
//! # use cuda_std::{ptx::ldmatrix, shared::SharedAddr};
//! # use layout::{Swizzle, fragment};
//! # unsafe fn example(tile: SharedAddr, lane: u32, k_bytes: u32) {
//! let (matrix, row) = fragment::ldmatrix_source(lane);
//! let a = ldmatrix::x4(tile.offset(Swizzle::B128.apply((row + matrix % 2 * 8) * 128 + k_bytes + matrix / 2 * 16)));
//! # }
//! ```

use crate::asm;
use crate::shared::SharedAddr;

/// Loads one matrix; lanes 0 to 7 give the rows.
///
/// PTX: `ldmatrix.sync.aligned.m8n8.x1.shared.b16` (PTX 6.5, sm_75).
/// Fragments: [`layout::fragment::ldmatrix`].
/// Not a memory fence.
///
/// # Safety
/// - All 32 lanes of the warp execute this call together; none has exited.
/// - The row addresses are 16-byte aligned in the shared memory of the block, where something was stored.
/// - No thread writes the rows without a barrier in between.
#[inline(always)]
pub unsafe fn x1(row: SharedAddr) -> u32 {
    let r: u32;
    // SAFETY: as required of the caller.
    unsafe {
        asm!("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{{0}}}, [{1}];", out(reg32) r, in(reg32) row.as_raw(),
            options(readonly, nostack, preserves_flags));
    }
    r
}

/// Loads one matrix, transposed; lanes 0 to 7 give the rows.
///
/// PTX: `ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16` (PTX 6.5, sm_75).
/// Fragments: [`layout::fragment::ldmatrix`], row and column exchanged.
/// Not a memory fence.
///
/// # Safety
/// As for [`x1`].
#[inline(always)]
pub unsafe fn x1_trans(row: SharedAddr) -> u32 {
    let r: u32;
    // SAFETY: as required of the caller.
    unsafe {
        asm!("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {{{0}}}, [{1}];", out(reg32) r, in(reg32) row.as_raw(),
            options(readonly, nostack, preserves_flags));
    }
    r
}

/// Loads two matrices; lanes 0 to 15 give the rows.
///
/// PTX: `ldmatrix.sync.aligned.m8n8.x2.shared.b16` (PTX 6.5, sm_75).
/// Fragments: [`layout::fragment::ldmatrix`].
/// Not a memory fence.
///
/// # Safety
/// As for [`x1`].
#[inline(always)]
pub unsafe fn x2(row: SharedAddr) -> [u32; 2] {
    let mut r = [0; 2];
    // SAFETY: as required of the caller.
    unsafe {
        asm!("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{{0}, {1}}}, [{2}];", out(reg32) r[0], out(reg32) r[1],
            in(reg32) row.as_raw(), options(readonly, nostack, preserves_flags));
    }
    r
}

/// Loads two matrices, transposed; lanes 0 to 15 give the rows.
///
/// PTX: `ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16` (PTX 6.5, sm_75).
/// Fragments: [`layout::fragment::ldmatrix`], row and column exchanged.
/// Not a memory fence.
///
/// # Safety
/// As for [`x1`].
#[inline(always)]
pub unsafe fn x2_trans(row: SharedAddr) -> [u32; 2] {
    let mut r = [0; 2];
    // SAFETY: as required of the caller.
    unsafe {
        asm!("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {{{0}, {1}}}, [{2}];", out(reg32) r[0], out(reg32) r[1],
            in(reg32) row.as_raw(), options(readonly, nostack, preserves_flags));
    }
    r
}

/// Loads four matrices; all lanes give the rows.
///
/// PTX: `ldmatrix.sync.aligned.m8n8.x4.shared.b16` (PTX 6.5, sm_75).
/// Fragments: [`layout::fragment::ldmatrix`].
/// Not a memory fence.
///
/// # Safety
/// As for [`x1`].
#[inline(always)]
pub unsafe fn x4(row: SharedAddr) -> [u32; 4] {
    let mut r = [0; 4];
    // SAFETY: as required of the caller.
    unsafe {
        asm!("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{0}, {1}, {2}, {3}}}, [{4}];", out(reg32) r[0],
            out(reg32) r[1], out(reg32) r[2], out(reg32) r[3], in(reg32) row.as_raw(),
            options(readonly, nostack, preserves_flags));
    }
    r
}

/// Loads four matrices, transposed; all lanes give the rows.
///
/// PTX: `ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16` (PTX 6.5, sm_75).
/// Fragments: [`layout::fragment::ldmatrix`], row and column exchanged.
/// Not a memory fence.
///
/// # Safety
/// As for [`x1`].
#[inline(always)]
pub unsafe fn x4_trans(row: SharedAddr) -> [u32; 4] {
    let mut r = [0; 4];
    // SAFETY: as required of the caller.
    unsafe {
        asm!("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{{0}, {1}, {2}, {3}}}, [{4}];", out(reg32) r[0],
            out(reg32) r[1], out(reg32) r[2], out(reg32) r[3], in(reg32) row.as_raw(),
            options(readonly, nostack, preserves_flags));
    }
    r
}
