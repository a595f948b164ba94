//! Device-side standard library: what a kernel needs beyond `core`, over rustc's in-tree `nvptx64-nvidia-cuda` target.
//!
//! Names, modules and calls are those of Rust-CUDA's `cuda_std` wherever both crates have the thing. So a kernel crate
//! moves between the two by changing a dependency line. Two things are new here: shared memory has an address type of
//! its own ([`shared::SharedAddr`]), and [`ptx`] wraps the tensor-core and asynchronous-copy instructions.
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
//!
//! An architecture shows as `cfg(target_feature = "sm_89")` and the like. A function that needs a later architecture
//! than the crate is compiled for does not exist. The crate brings the panic handler (a trap). A crate that uses
//! [`shared_array!`] enables the unstable feature `asm_experimental_arch`, and one that declares kernels
//! `abi_gpu_kernel`.
//!
//! # Convergence
//!
//! rustc emits `asm!` without LLVM's `convergent` attribute, so LLVM may move or duplicate a `.sync` instruction across
//! a divergent branch. `cuda_builder` marks every such call before the first optimisation; code that is compiled
//! without it has no such guarantee, except for [`thread::sync_threads`], which is an intrinsic.
#![cfg(target_arch = "nvptx64")]
#![no_std]
#![feature(asm_experimental_arch, core_intrinsics, gpu_intrinsics, gpu_launch_sized_workgroup_mem, stdarch_nvptx)]
#![allow(internal_features, reason = "fused multiply-add, dynamic shared memory and the block barrier are intrinsics")]

pub mod convert;
pub mod global;
pub mod hint;
pub mod pipeline;
pub mod ptx;
pub mod shared;
pub mod thread;
pub mod warp;
mod word;

pub use cuda_std_macros::kernel;

/// Stops the kernel: the launch then fails with an illegal-instruction error.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: a trap is always possible.
    unsafe { core::arch::nvptx::trap() }
}
