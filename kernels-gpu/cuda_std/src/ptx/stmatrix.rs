//! Stores of 8x8 matrices of 16-bit elements to shared memory, from the form in which `mma` and `wgmma` give them; the
//! reverse of [`ldmatrix`](super::ldmatrix); sm_90.
//!
//! Each lane gives the address of one row of 16 bytes: lanes 0 to 7 those of matrix 0, lanes 8 to 15 those of matrix 1,
//! and so on ([`layout::fragment::ldmatrix_source`]). Register `i` of every lane holds two elements of matrix `i`
//! ([`layout::fragment::ldmatrix`]); the `trans` forms store the transposed matrices.
#![cfg(any(target_feature = "sm_90", not(target_arch = "nvptx64")))]

use crate::asm;
use crate::shared::SharedAddr;

/// Declares one form of `stmatrix`, whose documentation is the same but for the numbers.
macro_rules! stmatrix {
    ($(#[$doc:meta])* $name:ident, $registers:literal, $form:literal, $list:literal, $($i:literal)+) => {
        $(#[$doc])*
        #[inline(always)]
        pub unsafe fn $name(row: SharedAddr, r: [u32; $registers]) {
            // SAFETY: as required of the caller.
            unsafe {
                asm!(concat!("stmatrix.sync.aligned.m8n8.", $form, ".shared.b16 [{row}], ", $list, ";"),
                    $(in(reg32) r[$i],)+ row = in(reg32) row.as_raw(), options(nostack, preserves_flags));
            }
        }
    };
}

stmatrix!(
    /// Stores one matrix; lanes 0 to 7 give the rows.
    ///
    /// PTX: `stmatrix.sync.aligned.m8n8.x1.shared.b16` (PTX 7.8, sm_90).
    /// Fragments: [`layout::fragment::ldmatrix`].
    /// Not a memory fence.
    ///
    /// # Safety
    /// - All 32 lanes of the warp execute this call together; none has exited.
    /// - The row addresses are 16-byte aligned in the shared memory of the block.
    /// - No thread reads or writes the rows without a barrier in between.
    x1,
    1,
    "x1",
    "{{{0}}}",
    0
);
stmatrix!(
    /// Stores one matrix, transposed; lanes 0 to 7 give the rows.
    ///
    /// PTX: `stmatrix.sync.aligned.m8n8.x1.trans.shared.b16` (PTX 7.8, sm_90).
    /// Fragments: [`layout::fragment::ldmatrix`], row and column exchanged.
    /// Not a memory fence.
    ///
    /// # Safety
    /// As for [`x1`].
    x1_trans,
    1,
    "x1.trans",
    "{{{0}}}",
    0
);
stmatrix!(
    /// Stores two matrices; lanes 0 to 15 give the rows.
    ///
    /// PTX: `stmatrix.sync.aligned.m8n8.x2.shared.b16` (PTX 7.8, sm_90).
    /// Fragments: [`layout::fragment::ldmatrix`].
    /// Not a memory fence.
    ///
    /// # Safety
    /// As for [`x1`].
    x2, 2, "x2", "{{{0}, {1}}}", 0 1
);
stmatrix!(
    /// Stores two matrices, transposed; lanes 0 to 15 give the rows.
    ///
    /// PTX: `stmatrix.sync.aligned.m8n8.x2.trans.shared.b16` (PTX 7.8, sm_90).
    /// Fragments: [`layout::fragment::ldmatrix`], row and column exchanged.
    /// Not a memory fence.
    ///
    /// # Safety
    /// As for [`x1`].
    x2_trans, 2, "x2.trans", "{{{0}, {1}}}", 0 1
);
stmatrix!(
    /// Stores four matrices; all lanes give the rows.
    ///
    /// PTX: `stmatrix.sync.aligned.m8n8.x4.shared.b16` (PTX 7.8, sm_90).
    /// Fragments: [`layout::fragment::ldmatrix`].
    /// Not a memory fence.
    ///
    /// # Safety
    /// As for [`x1`].
    x4, 4, "x4", "{{{0}, {1}, {2}, {3}}}", 0 1 2 3
);
stmatrix!(
    /// Stores four matrices, transposed; all lanes give the rows.
    ///
    /// PTX: `stmatrix.sync.aligned.m8n8.x4.trans.shared.b16` (PTX 7.8, sm_90).
    /// Fragments: [`layout::fragment::ldmatrix`], row and column exchanged.
    /// Not a memory fence.
    ///
    /// # Safety
    /// As for [`x1`].
    x4_trans, 4, "x4.trans", "{{{0}, {1}, {2}, {3}}}", 0 1 2 3
);
