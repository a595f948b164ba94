//! Explicit loads and stores of global memory.
//!
//! A plain dereference of a pointer compiles to one access of its type, generic or global as LLVM can tell. These
//! functions fix what matters for speed: the address space, the width (16 bytes with `[u32; 4]`) and the read-only
//! path.

use crate::asm;

pub use crate::word::Word;

/// Loads one word from global memory.
///
/// PTX: `ld.global{.v2,.v4}.b16/.b32` (PTX 1.0, sm_10).
/// Not a memory fence.
///
/// # Safety
/// - `ptr` points to readable global memory, aligned to the size of the word.
/// - No other thread writes it without a barrier or fence in between: the load may be merged with an earlier equal one.
#[inline(always)]
pub unsafe fn load<T: Word>(ptr: *const T) -> T {
    // SAFETY: as required of the caller.
    unsafe { T::load_global(ptr) }
}

/// Loads one word from global memory that nothing writes while the kernel runs, through the read-only cache.
///
/// PTX: `ld.global.nc{.v2,.v4}.b16/.b32` (PTX 3.1, sm_32).
/// Not a memory fence.
///
/// # Safety
/// - `ptr` points to readable global memory, aligned to the size of the word.
/// - No thread of any kernel that runs at the same time writes it.
#[inline(always)]
pub unsafe fn load_nc<T: Word>(ptr: *const T) -> T {
    // SAFETY: as required of the caller.
    unsafe { T::load_global_nc(ptr) }
}

/// Loads a number from global memory that others may write meanwhile. The result is a number that was there at some
/// time. It is read once, however often the result is used, and may come from L1.
///
/// PTX: `ld.relaxed.cta.global.b32` (PTX 6.0, sm_70).
/// Not a memory fence.
///
/// # Safety
/// - `ptr` points to readable global memory, aligned to 4 bytes.
#[inline(always)]
pub unsafe fn load_relaxed(ptr: *const u32) -> u32 {
    let number: u32;
    // SAFETY: as required of the caller.
    unsafe {
        asm!("ld.relaxed.cta.global.b32 {0}, [{1}];", out(reg32) number, in(reg64) ptr,
            options(readonly, nostack, preserves_flags));
    }
    number
}

/// Loads one word from global memory where `condition` holds, else gives `otherwise`: without a branch, which loads in
/// flight would have to cross.
///
/// PTX: `@p ld.global{.v2,.v4}.b16/.b32` (PTX 1.0, sm_10).
/// Not a memory fence.
///
/// # Safety
/// As for [`load`], where the condition holds.
#[inline(always)]
pub unsafe fn load_where<T: Word>(condition: bool, ptr: *const T, otherwise: T) -> T {
    // SAFETY: as required of the caller.
    unsafe { otherwise.load_global_where(ptr, condition) }
}

/// Stores one word to global memory.
///
/// PTX: `st.global{.v2,.v4}.b16/.b32` (PTX 1.0, sm_10).
/// Not a memory fence.
///
/// # Safety
/// - `ptr` points to writable global memory, aligned to the size of the word.
/// - No other thread reads or writes it without a barrier or fence in between.
#[inline(always)]
pub unsafe fn store<T: Word>(ptr: *mut T, value: T) {
    // SAFETY: as required of the caller.
    unsafe { value.store_global(ptr) }
}

/// Adds 1 to a number in global memory, or makes it 0 where it is `most` or above, and gives what it was.
///
/// PTX: `atom.global.inc.u32` (PTX 1.1, sm_12), relaxed at the scope of the device.
/// Not a memory fence.
///
/// # Safety
/// - `ptr` points to writable global memory, aligned to 4 bytes, which other threads only access atomically meanwhile.
#[inline(always)]
pub unsafe fn atomic_inc(ptr: *mut u32, most: u32) -> u32 {
    let before: u32;
    // SAFETY: as required of the caller.
    unsafe {
        asm!("atom.global.inc.u32 {0}, [{1}], {2};", out(reg32) before, in(reg64) ptr, in(reg32) most,
            options(nostack, preserves_flags));
    }
    before
}

/// Raises a number in global memory to `value` where it is less, and gives what it was. Relaxed at the scope of the
/// device.
///
/// PTX: `atom.global.max.u32` (PTX 1.1, sm_12).
/// Not a memory fence.
///
/// # Safety
/// - `ptr` points to writable global memory, aligned to 4 bytes, which other threads only access atomically meanwhile.
#[inline(always)]
pub unsafe fn atomic_max(ptr: *mut u32, value: u32) -> u32 {
    let before: u32;
    // SAFETY: as required of the caller.
    unsafe {
        asm!("atom.global.max.u32 {0}, [{1}], {2};", out(reg32) before, in(reg64) ptr, in(reg32) value,
            options(nostack, preserves_flags));
    }
    before
}
