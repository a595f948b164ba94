//! What a kernel takes as a parameter.

use std::ffi::c_void;

use half::{bf16, f16};

/// What a kernel takes as a parameter: a number, an address, a struct of these, or memory of the card.
///
/// | on the host | in the kernel |
/// | --- | --- |
/// | `u8` to `u64`, `i8` to `i64`, `usize`, `isize`, `f32`, `f64` | the same type |
/// | [`half::f16`], [`half::bf16`] | `u16`, the bits |
/// | [`Buffer<T>`](crate::Buffer), [`BufferSlice<T>`](crate::BufferSlice), [`BufferSliceMut<T>`](crate::BufferSliceMut) | `*const T` or `*mut T`, to the first element |
/// | `*const T`, `*mut T`: an address of the card, as [`Buffer::as_raw`](crate::Buffer::as_raw) gives | the same type |
/// | a struct with `#[derive(KernelParam)]` | the same struct |
///
/// # Structs
///
/// Where a kernel takes a struct, host and kernel declare the same one, or share the crate that declares it. The macro
/// demands `#[repr(C)]`, `Copy`, fields that are [`KernelValue`]s, at most 4096 bytes, and no padding between fields or
/// behind the last. Memory is its address there.
///
/// ```
/// use ferrotile::{Arch, Buffer, Gpu, KernelParam, LaunchConfig};
///
/// #[repr(C)]
/// #[derive(Clone, Copy, KernelParam)]
/// struct Fill {
///     to: *mut u32,
///     value: u32,
///     len: u32,
/// }
///
/// // The PTX of `unsafe fn fill(args: Fill)` for a grid of one block.
/// const PTX: &str = ".version 7.0 .target sm_80 .address_size 64
/// .visible .entry fill(.param .align 8 .b8 args[16]) {
///     .reg .pred %p;
///     .reg .b32 %i, %value, %len;
///     .reg .b64 %to, %at;
///     ld.param.u64 %to, [args];
///     ld.param.u32 %value, [args+8];
///     ld.param.u32 %len, [args+12];
///     mov.u32 %i, %tid.x;
///     setp.ge.u32 %p, %i, %len;
///     @%p ret;
///     cvta.to.global.u64 %to, %to;
///     mad.wide.u32 %at, %i, 4, %to;
///     st.global.u32 [%at], %value;
///     ret;
/// }";
///
/// let gpu = Gpu::emulated(Arch::Sm80);
/// let stream = gpu.new_stream()?;
/// let buffer = Buffer::<u32>::zeroed(&gpu, 3)?;
/// let fill = gpu.load_ptx(PTX)?.kernel("fill")?;
/// let args = Fill { to: buffer.as_raw() as *mut u32, value: 7, len: 2 };
/// // SAFETY: the kernel takes this struct and writes two elements of the buffer.
/// unsafe { fill.launch(&stream, &LaunchConfig { block: [32, 1, 1], ..LaunchConfig::default() }, &[&args]) }?;
/// assert_eq!(buffer.download_blocking(&stream)?, [7, 7, 0]);
/// # Ok::<(), ferrotile::Error>(())
/// ```
///
/// What a kernel would read otherwise than the host wrote it does not compile:
///
/// ```compile_fail
/// #[derive(Clone, Copy, ferrotile::KernelParam)] // without `#[repr(C)]`
/// struct Scale {
///     factor: f32,
/// }
/// ```
///
/// ```compile_fail,E0277
/// #[repr(C)]
/// #[derive(Clone, Copy, ferrotile::KernelParam)]
/// struct Scale {
///     factor: &'static f32, // a reference to memory of the host
/// }
/// ```
///
/// ```compile_fail,E0080
/// #[repr(C)]
/// #[derive(Clone, Copy, ferrotile::KernelParam)]
/// struct Scale {
///     data: *mut f32,
///     factor: f32, // 4 bytes of padding follow
/// }
/// ```
///
/// # Safety
/// What [`as_param`](Self::as_param) gives has the layout of the kernel's parameter and is initialised. By default it
/// is the memory of the value itself, which then has `repr(C)` without padding, or is of a primitive type.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no parameter of a kernel",
    note = "numbers, buffers and slices of them are, by reference, and structs with `#[derive(KernelParam)]`"
)]
pub unsafe trait KernelParam {
    /// The address that the parameter is copied from, and its size in bytes.
    fn as_param(&self) -> (*const c_void, usize) {
        (std::ptr::from_ref(self).cast(), size_of_val(self))
    }
}

/// A value whose own bytes a kernel gets: a number, an address, an array or a struct of these. The fields of a struct
/// with `#[derive(KernelParam)]` are such values, and so is the struct.
///
/// # Safety
/// The type has one layout on both sides, no padding and no reference to memory of the host.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be in a struct that a kernel takes",
    note = "numbers, raw pointers, arrays of these and structs with `#[derive(KernelParam)]` can",
    note = "a buffer is its address there: `buffer.as_raw() as *mut T`"
)]
pub unsafe trait KernelValue: Copy {}

// SAFETY: the bytes of such a value are the parameter.
unsafe impl<T: KernelValue> KernelParam for T {}

// SAFETY: a primitive type has one layout on both sides.
unsafe impl KernelValue for u8 {}
// SAFETY: as above.
unsafe impl KernelValue for i8 {}
// SAFETY: as above.
unsafe impl KernelValue for u16 {}
// SAFETY: as above.
unsafe impl KernelValue for i16 {}
// SAFETY: as above.
unsafe impl KernelValue for u32 {}
// SAFETY: as above.
unsafe impl KernelValue for i32 {}
// SAFETY: as above.
unsafe impl KernelValue for u64 {}
// SAFETY: as above.
unsafe impl KernelValue for i64 {}
// SAFETY: as above.
unsafe impl KernelValue for f32 {}
// SAFETY: as above.
unsafe impl KernelValue for f64 {}
// SAFETY: as above; the host has 64-bit addresses as the card has.
#[cfg(target_pointer_width = "64")]
unsafe impl KernelValue for usize {}
// SAFETY: as above.
#[cfg(target_pointer_width = "64")]
unsafe impl KernelValue for isize {}
// SAFETY: as above.
#[cfg(target_pointer_width = "64")]
unsafe impl<T> KernelValue for *const T {}
// SAFETY: as above.
#[cfg(target_pointer_width = "64")]
unsafe impl<T> KernelValue for *mut T {}
// SAFETY: the bits of the number in a u16.
unsafe impl KernelValue for f16 {}
// SAFETY: as above.
unsafe impl KernelValue for bf16 {}
// SAFETY: elements follow each other without a gap.
unsafe impl<T: KernelValue, const N: usize> KernelValue for [T; N] {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_passed_by_the_address_of_their_bytes() {
        let value = 7_u32;
        let param: &dyn KernelParam = &value;
        assert_eq!(param.as_param(), (std::ptr::from_ref(&value).cast(), 4));
    }
}
