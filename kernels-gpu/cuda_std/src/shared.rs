//! Shared memory: the memory of a block.
//!
//! An address is a [`SharedAddr`], the 32-bit offset that `.shared` instructions take, and accesses are explicit. So no
//! access is generic, and a table of addresses costs half the registers of pointers.
//!
//! ```no_run
//! # use cuda_std::shared::{self, SharedArray};
//! # use cuda_std::shared_array;
//! # use layout::{SmemLayout, SmemRegion};
//! const MAP: SmemLayout = SmemLayout::new().stages("k", 2, 8192, 128).region("sums", 512, 16);
//! # fn example() {
//! const K: SmemRegion = MAP.get("k");                        // a region of a layout::SmemLayout
//! let stage = shared::dynamic().offset(K.stage_offset(1));   // an address in the dynamic shared memory
//! let sums: SharedArray<f32> = SharedArray::of_region(MAP.get("sums"));
//! let flags = shared_array![u32; 32];                        // static shared memory
//! # }
//! ```

use core::marker::PhantomData;

use layout::SmemRegion;

use crate::asm;

pub use crate::shared_array;
pub use crate::word::Word;

/// An address in the shared address space of the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct SharedAddr(u32);

impl SharedAddr {
    /// The address with this number.
    #[inline(always)]
    pub const fn from_raw(raw: u32) -> Self {
        SharedAddr(raw)
    }

    /// The number that a `.shared` instruction takes.
    #[inline(always)]
    pub const fn as_raw(self) -> u32 {
        self.0
    }

    /// The address `bytes` further on.
    #[inline(always)]
    pub const fn offset(self, bytes: u32) -> Self {
        SharedAddr(self.0.wrapping_add(bytes))
    }

    /// The same address, hidden from the compiler as [`crate::hint::opaque`] hides a number. Addresses that a loop
    /// derives from it then become constant offsets in the instructions. Otherwise each takes a register, computed
    /// ahead of the loop.
    #[inline(always)]
    pub fn hidden(self) -> Self {
        SharedAddr(crate::hint::opaque(self.0))
    }

    /// Loads one word.
    ///
    /// PTX: `ld.shared{.v2,.v4}.b16/.b32` (PTX 1.0, sm_10).
    /// Not a memory fence.
    ///
    /// # Safety
    /// - The address is aligned to the size of the word and inside the shared memory of the block, where something was
    ///   stored.
    /// - No other thread writes it without a barrier in between: the load may be merged with an earlier equal one.
    #[inline(always)]
    pub unsafe fn load<T: Word>(self) -> T {
        // SAFETY: as required of the caller.
        unsafe { T::load_shared(self.as_raw()) }
    }

    /// Stores one word.
    ///
    /// PTX: `st.shared{.v2,.v4}.b16/.b32` (PTX 1.0, sm_10).
    /// Not a memory fence.
    ///
    /// # Safety
    /// - The address is aligned to the size of the word and inside the shared memory of the block.
    /// - No other thread reads or writes it without a barrier in between.
    #[inline(always)]
    pub unsafe fn store<T: Word>(self, value: T) {
        // SAFETY: as required of the caller.
        unsafe { value.store_shared(self.as_raw()) }
    }
}

/// What the base of the dynamic shared memory is aligned to.
#[repr(C, align(1024))]
struct AlignedBase([u8; layout::smem::BASE_ALIGN_BYTES as usize]);

const _: () = assert!(align_of::<AlignedBase>() == layout::smem::BASE_ALIGN_BYTES as usize);

/// The dynamic shared memory of the block, as a generic pointer; aligned to 1024 bytes.
///
/// Its size is what the kernel was launched with. Every call gives the same pointer.
#[inline(always)]
pub fn dynamic_shared_mem<T>() -> *mut T {
    crate::gpu_launch_sized_workgroup_mem::<AlignedBase>().cast()
}

/// The base of the dynamic shared memory of the block; aligned to 1024 bytes.
///
/// Its size is what the kernel was launched with. Every call gives the same address.
#[inline(always)]
pub fn dynamic() -> SharedAddr {
    let raw: u32;
    // SAFETY: converts an address, which the intrinsic says is in shared memory.
    unsafe {
        asm!(
            "{{ .reg .b64 t; cvta.to.shared.u64 t, {1}; cvt.u32.u64 {0}, t; }}",
            out(reg32) raw, in(reg64) dynamic_shared_mem::<u8>().addr(), options(pure, nomem, nostack, preserves_flags)
        );
    }
    SharedAddr(raw)
}

/// An array in shared memory.
#[derive(Debug)]
pub struct SharedArray<T> {
    base: SharedAddr,
    len: u32,
    element: PhantomData<*mut T>,
}

impl<T> Clone for SharedArray<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SharedArray<T> {}

impl<T: Word> SharedArray<T> {
    /// The array of `len` elements at `base`.
    #[inline(always)]
    pub const fn from_raw(base: SharedAddr, len: u32) -> Self {
        SharedArray { base, len, element: PhantomData }
    }

    /// All stages of a region of the dynamic shared memory, as one array.
    #[inline(always)]
    pub fn of_region(region: SmemRegion) -> Self {
        let len = (region.end_bytes() - region.offset_bytes) / size_of::<T>() as u32;
        SharedArray::from_raw(dynamic().offset(region.offset_bytes), len)
    }

    /// The number of elements.
    #[inline(always)]
    pub const fn len(self) -> u32 {
        self.len
    }

    /// Whether there is no element.
    #[inline(always)]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The address of element `index`.
    #[inline(always)]
    pub const fn addr(self, index: u32) -> SharedAddr {
        self.base.offset(index * size_of::<T>() as u32)
    }

    /// Loads element `index`.
    ///
    /// # Safety
    /// As for [`SharedAddr::load`]; `index` is less than the length.
    #[inline(always)]
    pub unsafe fn load(self, index: u32) -> T {
        // SAFETY: as required of the caller.
        unsafe { self.addr(index).load() }
    }

    /// Stores element `index`.
    ///
    /// # Safety
    /// As for [`SharedAddr::store`]; `index` is less than the length.
    #[inline(always)]
    pub unsafe fn store(self, index: u32, value: T) {
        // SAFETY: as required of the caller.
        unsafe { self.addr(index).store(value) }
    }
}

/// Numbers a [`shared_array!`]: FNV-1a over the file, line and column where it stands.
#[doc(hidden)]
pub const fn array_id(file: &str, line: u32, column: u32) -> u64 {
    let mut hash = (0xcbf2_9ce4_8422_2325 ^ line as u64 ^ (column as u64) << 32).wrapping_mul(0x100_0000_01b3);
    let bytes = file.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u64).wrapping_mul(0x100_0000_01b3);
        i += 1;
    }
    hash
}

/// Declares an array in the static shared memory of the block and gives it as a [`SharedArray`]: `shared_array![f32;
/// 256]`.
///
/// Each place in the source is one array, however often the place is executed or inlined. The array starts
/// uninitialised. Type and length can only use names of the surrounding module, and neither generic parameters nor
/// constants of the function. rustc has no shared statics, so the declaration is PTX:
///
/// ```text
/// .shared .align 16 .b8 shared_array_<number of the place>[1024];
/// ```
#[macro_export]
macro_rules! shared_array {
    ($element:ty; $len:expr) => {{
        // A module, because `global_asm!` stands only where items do.
        mod declaration {
            #[allow(unused_imports, reason = "type and length may need no name")]
            use super::*;

            const ID: u64 = $crate::shared::array_id(file!(), line!(), column!());
            pub(super) const LEN: usize = $len;
            pub(super) type Element = $element;

            $crate::global_asm!(
                ".shared .align 16 .b8 shared_array_{id}[{bytes}];",
                id = const ID,
                bytes = const LEN * ::core::mem::size_of::<Element>(),
            );

            #[inline(always)]
            pub(super) fn address() -> u32 {
                let raw: u32;
                // SAFETY: takes the address of the array declared above.
                unsafe {
                    $crate::asm!(
                        "mov.u32 {raw}, shared_array_{id};",
                        raw = out(reg32) raw,
                        id = const ID,
                        options(pure, nomem, nostack, preserves_flags)
                    );
                }
                raw
            }
        }
        let base = $crate::shared::SharedAddr::from_raw(declaration::address());
        $crate::shared::SharedArray::<declaration::Element>::from_raw(base, declaration::LEN as u32)
    }};
}
