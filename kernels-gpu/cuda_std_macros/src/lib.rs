//! The procedural macros of `cuda_std`: the `#[kernel]` attribute, and the operand lists of `wgmma`.
//!
//! A crate that declares kernels needs `#![feature(abi_gpu_kernel)]`, and `asm_experimental_arch` if one of them takes
//! a tensor map.

mod kernel;
mod wgmma;

use proc_macro::TokenStream;

/// Makes a function an entry point of the crate's PTX module, under its own name or the one that it is given.
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
/// - `max_threads`: the most threads a block is launched with, 1 to 1024 (PTX `.maxntid`). Register allocation depends
///   on it.
/// - `min_blocks`: how many blocks must fit on one multiprocessor, which caps the registers of a thread (PTX
///   `.minnctapersm`); needs `max_threads`.
/// - `cluster`: the blocks of a cluster along x, 1 to 16 (PTX `.reqnctapercluster`, Hopper only).
///
/// `name` is the name in the PTX, a string literal or `concat!(..)`, where it is not that of the function: a
/// `macro_rules!` macro can put strings together, and identifiers not.
///
/// The function must be `unsafe`, because its caller is a launch that the compiler does not see. It may be neither
/// `async`, `const` nor generic, and returns nothing. Parameters are scalars, raw pointers and `#[repr(C)]` structs by
/// value.
///
/// A parameter whose type is called `TensorMap` is a tensor map by value. It lies on a 64-byte boundary, as the TMA
/// unit demands. In the body its name is the address of the parameter, a `*const TensorMap`. (`&` of a by-value
/// parameter would be the address of a copy in local memory, which the TMA unit does not read.)
///
/// On a GPU the function becomes `#[unsafe(no_mangle)] pub unsafe extern "gpu-kernel" fn`. Beside it stands a static
/// `__kernel_record_<name>` of four `u32`s: max_threads, min_blocks, cluster, and the bit mask of the tensor map
/// parameters; 0 for what is not given. `cuda_builder` reads this record from the LLVM module, turns it into attributes
/// of the kernel, and deletes it.
///
/// On the CPU the function becomes a constant of its name, a `cuda_std::Entry`: the name in the PTX, and the parameters
/// as a function type. The host library launches a kernel by it with arguments whose types are checked.
#[proc_macro_attribute]
pub fn kernel(arguments: TokenStream, item: TokenStream) -> TokenStream {
    kernel::expand(arguments.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Implements `cuda_std::ptx::wgmma::Accumulator` for the accumulators of every shape, with groups of these numbers of
/// k-steps.
///
/// ```ignore
/// cuda_std_macros::wgmma_accumulators!(steps: 1, 2);
/// ```
///
/// An `asm!` needs one operand for each register, and a group must be one `asm!`. So the macro makes one `asm!` for
/// each shape, pair of types, number of steps and place of A. One of the arms for `[f32; 4]`, which is m64n8, with the
/// template in lines:
///
/// ```ignore
/// impl Accumulator for [f32; 4] {
///     unsafe fn group<P: Product, const STEPS: usize>(d: &mut MaybeUninit<Self>, a: u64, b: u64, scale_d: u32) {
///         let d = &mut *d.as_mut_ptr().cast::<[MaybeUninit<f32>; 4]>();
///         match const { case::<P>(STEPS) } {
///             // f16 times f16 is pair 0, in two steps.
///             2 => asm!(
///                 "{{ .reg .pred p, q; .reg .b64 at, bt; setp.ne.u32 p, {scale_d}, 0; setp.eq.u32 q, 0, 0;",
///                 "wgmma.fence.sync.aligned;",
///                 "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{{0}, {1}, {2}, {3}}}, {a}, {b}, p,",
///                 "{sign_a}, {sign_b}, {order_a}, {order_b};",
///                 "add.s64 bt, {b}, {b1}; add.s64 at, {a}, {a1};",
///                 "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{{0}, {1}, {2}, {3}}}, at, bt, q,",
///                 "{sign_a}, {sign_b}, {order_a}, {order_b};",
///                 "wgmma.commit_group.sync.aligned; }}",
///                 inout(reg32) d[0], inout(reg32) d[1], inout(reg32) d[2], inout(reg32) d[3],
///                 a = in(reg64) a, a1 = const k_step(P::A, 1), b = in(reg64) b, b1 = const k_step(P::B, 1),
///                 scale_d = in(reg32) scale_d,
///                 sign_a = const sign(P::NEGATE_A), sign_b = const sign(P::NEGATE_B),
///                 order_a = const order(P::A), order_b = const order(P::B), options(nostack)
///             ),
///             // ..
///         }
///     }
///     // ..
/// }
/// ```
#[proc_macro]
pub fn wgmma_accumulators(arguments: TokenStream) -> TokenStream {
    wgmma::expand(arguments.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}
