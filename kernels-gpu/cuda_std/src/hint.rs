//! Hints to the compiler.

use crate::asm;

/// The same number, as if it were found out here and not before.
///
/// LLVM computes a value that does not change once and holds it in a register, without counting registers. A value that
/// depends on a hidden number is computed where it stands instead. Additions of constants then become offsets in
/// instructions, and a value that is needed at the start and at the end of a kernel takes no register in between.
#[inline(always)]
pub fn opaque(mut number: u32) -> u32 {
    // SAFETY: no instruction; the comment names the operand, as `asm!` demands.
    unsafe { asm!("// {0}", inout(reg32) number, options(nomem, nostack, preserves_flags)) };
    number
}
