//! Device-side standard library: what a kernel needs beyond `core`, over rustc's in-tree `nvptx64-nvidia-cuda` target.
//!
//! Names, modules and calls are those of Rust-CUDA's `cuda_std` wherever both crates have the thing. So a kernel crate
//! moves between the two by changing a dependency line. Two things are new here: shared memory has an address type of
//! its own ([`shared::SharedAddr`]), and [`ptx`] wraps the tensor-core and asynchronous-copy instructions.
//!
//! ```
//! use cuda_std::{kernel, thread};
//!
//! /// Multiplies each element of `x` by `factor`.
//! ///
//! /// # Safety
//! /// `x` points to `len` elements that nothing else uses; blocks have one dimension.
//! #[kernel(max_threads = 256)]
//! pub unsafe fn scale(x: *mut f32, len: usize, factor: f32) {
//!     let i = thread::index_1d() as usize;
//!     if i < len {
//!         // SAFETY: each element has one thread.
//!         unsafe { *x.add(i) *= factor }
//!     }
//! }
//! ```
//!
//! | module | what it is for |
//! | --- | --- |
//! | [`thread`] | indices, block barrier, fences |
//! | [`warp`] | shuffles, votes, reductions over 32 lanes or a quad |
//! | [`shared`] | dynamic and static shared memory |
//! | [`global`] | explicit loads and stores of global memory, up to 16 bytes |
//! | [`hint`] | what the compiler should not work out ahead |
//! | [`convert`] | f32 to and from f16, bf16, e4m3, e5m2; fast math |
//! | [`pipeline`] | the place in a pipeline of stages between producers and consumers |
//! | [`ptx`] | one thin function for each instruction |
//! | [`layout`] | what host and kernel agree on: fragment maps, swizzles, maps of shared memory |
//!
//! An architecture shows as `cfg(target_feature = "sm_89")` and the like. A function that needs a later architecture
//! than the crate is compiled for does not exist. The crate brings the panic handler (a trap). A crate that uses
//! [`shared_array!`] enables the unstable feature `asm_experimental_arch`, and one that declares kernels
//! `abi_gpu_kernel`.
//!
//! # On the CPU
//!
//! Compiled for the CPU the crate has every item of every architecture, for its documentation, for editors, and for
//! host programs that share a crate with their kernels. A kernel is an [`Entry`] there, which the host library loads
//! and launches. Functions that compute with numbers alone work. What stands for an instruction panics.
//!
//! A crate with instructions of its own takes [`asm!`] from here, which is that of `core::arch` on a GPU.
//!
//! # Convergence
//!
//! rustc emits `asm!` without LLVM's `convergent` attribute, so LLVM may move or duplicate a `.sync` instruction across
//! a divergent branch. `cuda_builder` marks every such call before the first optimisation; code that is compiled
//! without it has no such guarantee, except for [`thread::sync_threads`], which is an intrinsic.
#![no_std]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(asm_experimental_arch, core_intrinsics, gpu_intrinsics, gpu_launch_sized_workgroup_mem, stdarch_nvptx)
)]
#![cfg_attr(
    target_arch = "nvptx64",
    allow(
        internal_features,
        reason = "fused multiply-add, dynamic shared memory and the block barrier are intrinsics"
    )
)]
#![cfg_attr(not(target_arch = "nvptx64"), allow(unused, reason = "`asm!` has the only use of its operands"))]

pub mod convert;
#[cfg(not(target_arch = "nvptx64"))]
#[doc(hidden)]
pub mod cpu;
pub mod global;
pub mod hint;
pub mod pipeline;
pub mod ptx;
pub mod shared;
pub mod thread;
pub mod warp;
mod word;

// What only the compiler for a GPU has; `cpu` has stand-ins of the same names.
#[cfg(target_arch = "nvptx64")]
use core::arch::nvptx;
#[cfg(target_arch = "nvptx64")]
pub use core::arch::{asm, global_asm};
#[cfg(target_arch = "nvptx64")]
use core::intrinsics::{fmaf32, gpu::gpu_launch_sized_workgroup_mem};

#[cfg(not(target_arch = "nvptx64"))]
use cpu::{fmaf32, gpu_launch_sized_workgroup_mem, nvptx};

pub use cuda_std_macros::kernel;
pub use layout::{self, Entry};

/// Stops the kernel: the launch then fails with an illegal-instruction error.
#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: a trap is always possible.
    unsafe { core::arch::nvptx::trap() }
}
