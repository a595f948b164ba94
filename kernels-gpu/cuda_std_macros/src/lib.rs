//! The `#[kernel]` attribute of `cuda_std`.
//!
//! A crate that uses it needs `#![feature(abi_gpu_kernel)]`.

mod kernel;

use proc_macro::TokenStream;

/// Makes a function an entry point of the crate's PTX module, under its own name.
///
/// ```ignore
/// /// Writes `factor` times each element of `x` back to `x`.
/// ///
/// /// # Safety
/// /// `x` points to one `f32` for each thread of the grid.
/// #[kernel(max_threads = 256, min_blocks = 2)]
/// pub unsafe fn scale(x: *mut f32, factor: f32) {
///     // ..
/// }
/// ```
///
/// Every argument is optional and is any constant integer expression, evaluated by rustc:
///
/// - `max_threads`: the most threads a block is launched with, 1 to 1024 (PTX `.maxntid`). Register allocation depends on it.
/// - `min_blocks`: how many blocks must fit on one multiprocessor, which caps the registers of a thread (PTX
///   `.minnctapersm`); needs `max_threads`.
/// - `cluster`: the blocks of a cluster along x, 1 to 16 (PTX `.reqnctapercluster`, Hopper only).
///
/// The function must be `unsafe`, since its caller is a launch that the compiler does not see, and may be neither `async`,
/// `const` nor generic; it returns nothing. Parameters are scalars, raw pointers and `#[repr(C)]` structs by value. A parameter
/// whose type is called `TensorMap` is a tensor map by value and is placed on a 64-byte boundary, as the TMA unit demands.
///
/// The function becomes `#[unsafe(no_mangle)] pub unsafe extern "gpu-kernel" fn`. Beside it stands a static
/// `__kernel_record_<name>` of four `u32`s (max_threads, min_blocks, cluster, bit mask of the tensor map parameters; 0 for what is
/// not given), which `cuda_builder` reads from the LLVM module, turns into attributes of the kernel, and deletes.
#[proc_macro_attribute]
pub fn kernel(arguments: TokenStream, item: TokenStream) -> TokenStream {
    kernel::expand(arguments.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}
