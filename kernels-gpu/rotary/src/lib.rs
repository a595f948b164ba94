//! The kernel that rotates queries and keys and appends keys and values to a cache: see [`variants::rotary`].
//!
//! | file | what it holds |
//! | --- | --- |
//! | `body` | the kernel, for either type of the inputs and of the cache |
//! | `token` | the member, the position and the place in the cache of a token |
//! | `chunk` | eight neighbours of a row, in registers and in memory |
#![cfg(target_arch = "nvptx64")]
#![no_std]
#![feature(abi_gpu_kernel)]
#![allow(
    clippy::needless_range_loop,
    reason = "an index into a register array selects elements of several arrays, and LLVM unrolls loops over numbers best"
)]
#![allow(improper_gpu_kernel_arg, reason = "the argument struct is repr(C) and plain data")]

mod body;
mod chunk;
mod token;

use cuda_std::convert::{Bf16, F16};
use cuda_std::kernel;
use variants::rotary::{RotaryArgs, RotaryKernel};

/// Q, K and V of f16, and a cache of f16.
///
/// # Safety
/// The grid and block are those of the kernel; `args` describes tensors.
#[kernel(max_threads = RotaryKernel::THREADS, min_blocks = RotaryKernel::MIN_BLOCKS)]
pub unsafe fn rotary_f16(args: RotaryArgs) {
    // SAFETY: the caller's contract is the body's.
    unsafe { body::rotary::<F16, false>(&args) }
}

/// Q, K and V of bf16, and a cache of bf16.
///
/// # Safety
/// As [`rotary_f16`].
#[kernel(max_threads = RotaryKernel::THREADS, min_blocks = RotaryKernel::MIN_BLOCKS)]
pub unsafe fn rotary_bf16(args: RotaryArgs) {
    // SAFETY: the caller's contract is the body's.
    unsafe { body::rotary::<Bf16, false>(&args) }
}

/// Q, K and V of f16, and a cache of E4M3.
///
/// # Safety
/// As [`rotary_f16`].
#[kernel(max_threads = RotaryKernel::THREADS, min_blocks = RotaryKernel::MIN_BLOCKS)]
pub unsafe fn rotary_f16_e4m3(args: RotaryArgs) {
    // SAFETY: the caller's contract is the body's.
    unsafe { body::rotary::<F16, true>(&args) }
}

/// Q, K and V of bf16, and a cache of E4M3.
///
/// # Safety
/// As [`rotary_f16`].
#[kernel(max_threads = RotaryKernel::THREADS, min_blocks = RotaryKernel::MIN_BLOCKS)]
pub unsafe fn rotary_bf16_e4m3(args: RotaryArgs) {
    // SAFETY: the caller's contract is the body's.
    unsafe { body::rotary::<Bf16, true>(&args) }
}
