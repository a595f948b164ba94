//! The values that one load or store instruction moves.

use core::mem::transmute;

use crate::asm;

mod sealed {
    pub trait Sealed {}
}

/// A value that one instruction loads or stores: 1, 2, 4, 8 or 16 bytes, aligned to its size.
///
/// The functions are the instructions themselves, on addresses of shared memory as the instructions take them;
/// [`SharedAddr`](crate::shared::SharedAddr) and [`crate::global`] are their callers, and say what each requires.
pub trait Word: sealed::Sealed + Copy {
    #[doc(hidden)]
    unsafe fn load_shared(addr: u32) -> Self;
    #[doc(hidden)]
    unsafe fn store_shared(self, addr: u32);
    #[cfg(any(target_feature = "sm_90", not(target_arch = "nvptx64")))]
    #[doc(hidden)]
    unsafe fn load_cluster(addr: u32) -> Self;
    #[doc(hidden)]
    unsafe fn load_global(ptr: *const Self) -> Self;
    #[doc(hidden)]
    unsafe fn load_global_nc(ptr: *const Self) -> Self;
    #[doc(hidden)]
    unsafe fn load_global_where(self, ptr: *const Self, condition: bool) -> Self;
    #[doc(hidden)]
    unsafe fn store_global(self, ptr: *mut Self);
}

/// Implements [`Word`] for a type that travels as `$n` registers: `word!(f32 = [u32; 1], reg32, ".b32", "{0}", 0)`.
macro_rules! word {
    ($value:ty = [$register:ty; $n:literal], $class:ident, $form:literal, $list:literal, $($i:literal)+) => {
        impl sealed::Sealed for $value {}

        // SAFETY (of every block): the caller answers for the address; the registers have the size of the value, and
        // every pattern of bits is a value. Loads are `pure` and `readonly`: no barrier or asynchronous copy is, so
        // none is passed.
        #[expect(clippy::undocumented_unsafe_blocks, reason = "stated once, above")]
        #[allow(clippy::useless_transmute, reason = "some values are already arrays of registers")]
        impl Word for $value {
            #[inline(always)]
            unsafe fn load_shared(addr: u32) -> Self {
                let mut r = [0 as $register; $n];
                unsafe {
                    asm!(concat!("ld.shared", $form, " ", $list, ", [{addr}];"), $(out($class) r[$i],)+
                        addr = in(reg32) addr, options(pure, readonly, nostack, preserves_flags));
                    transmute::<[$register; $n], $value>(r)
                }
            }

            #[inline(always)]
            unsafe fn store_shared(self, addr: u32) {
                unsafe {
                    let r = transmute::<$value, [$register; $n]>(self);
                    asm!(concat!("st.shared", $form, " [{addr}], ", $list, ";"), $(in($class) r[$i],)+
                        addr = in(reg32) addr, options(nostack, preserves_flags));
                }
            }

            #[cfg(any(target_feature = "sm_90", not(target_arch = "nvptx64")))]
            #[inline(always)]
            unsafe fn load_cluster(addr: u32) -> Self {
                let mut r = [0 as $register; $n];
                unsafe {
                    asm!(concat!("ld.shared::cluster", $form, " ", $list, ", [{addr}];"), $(out($class) r[$i],)+
                        addr = in(reg32) addr, options(pure, readonly, nostack, preserves_flags));
                    transmute::<[$register; $n], $value>(r)
                }
            }

            #[inline(always)]
            unsafe fn load_global(ptr: *const Self) -> Self {
                let mut r = [0 as $register; $n];
                unsafe {
                    asm!(concat!("ld.global", $form, " ", $list, ", [{ptr}];"), $(out($class) r[$i],)+
                        ptr = in(reg64) ptr, options(pure, readonly, nostack, preserves_flags));
                    transmute::<[$register; $n], $value>(r)
                }
            }

            #[inline(always)]
            unsafe fn load_global_nc(ptr: *const Self) -> Self {
                let mut r = [0 as $register; $n];
                unsafe {
                    asm!(concat!("ld.global.nc", $form, " ", $list, ", [{ptr}];"), $(out($class) r[$i],)+
                        ptr = in(reg64) ptr, options(pure, readonly, nostack, preserves_flags));
                    transmute::<[$register; $n], $value>(r)
                }
            }

            #[inline(always)]
            unsafe fn load_global_where(self, ptr: *const Self, condition: bool) -> Self {
                unsafe {
                    let mut r = transmute::<$value, [$register; $n]>(self);
                    asm!(concat!("{{ .reg .pred p; setp.ne.u32 p, {condition}, 0; @p ld.global", $form, " ", $list,
                        ", [{ptr}]; }}"), $(inout($class) r[$i],)+ ptr = in(reg64) ptr,
                        condition = in(reg32) u32::from(condition), options(readonly, nostack, preserves_flags));
                    transmute::<[$register; $n], $value>(r)
                }
            }

            #[inline(always)]
            unsafe fn store_global(self, ptr: *mut Self) {
                unsafe {
                    let r = transmute::<$value, [$register; $n]>(self);
                    asm!(concat!("st.global", $form, " [{ptr}], ", $list, ";"), $(in($class) r[$i],)+
                        ptr = in(reg64) ptr, options(nostack, preserves_flags));
                }
            }
        }
    };
}

word!(u16 = [u16; 1], reg16, ".b16", "{0}", 0);
word!(u32 = [u32; 1], reg32, ".b32", "{0}", 0);
word!(f32 = [u32; 1], reg32, ".b32", "{0}", 0);
word!([u32; 1] = [u32; 1], reg32, ".b32", "{0}", 0);
word!([u32; 2] = [u32; 2], reg32, ".v2.b32", "{{{0}, {1}}}", 0 1);
word!([u32; 4] = [u32; 4], reg32, ".v4.b32", "{{{0}, {1}, {2}, {3}}}", 0 1 2 3);

impl sealed::Sealed for u8 {}

/// A byte travels in a 16-bit register, of which it is the lower half.
#[expect(clippy::undocumented_unsafe_blocks, reason = "as in `word!`: the caller answers for the address")]
impl Word for u8 {
    #[inline(always)]
    unsafe fn load_shared(addr: u32) -> Self {
        let r: u16;
        unsafe {
            asm!("ld.shared.b8 {0}, [{1}];", out(reg16) r, in(reg32) addr,
                options(pure, readonly, nostack, preserves_flags));
        }
        r as u8
    }

    #[inline(always)]
    unsafe fn store_shared(self, addr: u32) {
        unsafe {
            asm!("st.shared.b8 [{0}], {1};", in(reg32) addr, in(reg16) u16::from(self),
                options(nostack, preserves_flags));
        }
    }

    #[cfg(any(target_feature = "sm_90", not(target_arch = "nvptx64")))]
    #[inline(always)]
    unsafe fn load_cluster(addr: u32) -> Self {
        let r: u16;
        unsafe {
            asm!("ld.shared::cluster.b8 {0}, [{1}];", out(reg16) r, in(reg32) addr,
                options(pure, readonly, nostack, preserves_flags));
        }
        r as u8
    }

    #[inline(always)]
    unsafe fn load_global(ptr: *const Self) -> Self {
        let r: u16;
        unsafe {
            asm!("ld.global.b8 {0}, [{1}];", out(reg16) r, in(reg64) ptr,
                options(pure, readonly, nostack, preserves_flags));
        }
        r as u8
    }

    #[inline(always)]
    unsafe fn load_global_nc(ptr: *const Self) -> Self {
        let r: u16;
        unsafe {
            asm!("ld.global.nc.b8 {0}, [{1}];", out(reg16) r, in(reg64) ptr,
                options(pure, readonly, nostack, preserves_flags));
        }
        r as u8
    }

    #[inline(always)]
    unsafe fn load_global_where(self, ptr: *const Self, condition: bool) -> Self {
        let mut r = u16::from(self);
        unsafe {
            asm!("{{ .reg .pred p; setp.ne.u32 p, {2}, 0; @p ld.global.b8 {0}, [{1}]; }}", inout(reg16) r, in(reg64) ptr,
                in(reg32) u32::from(condition), options(readonly, nostack, preserves_flags));
        }
        r as u8
    }

    #[inline(always)]
    unsafe fn store_global(self, ptr: *mut Self) {
        unsafe {
            asm!("st.global.b8 [{0}], {1};", in(reg64) ptr, in(reg16) u16::from(self),
                options(nostack, preserves_flags));
        }
    }
}
