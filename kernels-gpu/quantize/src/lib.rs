//! Kernels that quantise tensors and bring them back: see [`variants::quantize`].
//!
//! | file | what it holds |
//! | --- | --- |
//! | `body` | the kernels, for any pair of element types |
//! | `work` | which chunks of which head a block has |
//! | `wide` | the types that are quantised: f16, bf16, f32 |
//! | `narrow` | the types that they become: E4M3, 8-bit integers |
#![cfg(target_arch = "nvptx64")]
#![no_std]
#![feature(abi_gpu_kernel)]
#![allow(
    clippy::needless_range_loop,
    reason = "an index into a register array selects chunks and their elements too, and LLVM unrolls loops over numbers best"
)]
#![allow(improper_gpu_kernel_arg, reason = "the argument struct is repr(C) and plain data")]

mod body;
mod narrow;
mod wide;
mod work;

use cuda_std::convert::{Bf16, F16};
use cuda_std::kernel;
use narrow::{Byte, Quarter};
use variants::quantize::{NARROW_E4M3, QuantizeArgs, QuantizeKernel, WIDE_BF16, WIDE_F16};
use wide::Single;

/// Raises the factor of each group to the largest magnitude of its elements over 448.
///
/// # Safety
/// The grid, block and dynamic shared memory are those of the kernel; `args` describes tensors; factors are 0 before.
#[kernel(max_threads = QuantizeKernel::THREADS, min_blocks = QuantizeKernel::MIN_BLOCKS)]
pub unsafe fn quantize_factors(args: QuantizeArgs) {
    // SAFETY: the caller's contract is the body's.
    unsafe {
        match args.wide_type {
            WIDE_F16 => body::factors::<F16>(&args),
            WIDE_BF16 => body::factors::<Bf16>(&args),
            _ => body::factors::<Single>(&args),
        }
    }
}

/// Divides elements by the factor of their group and rounds them.
///
/// # Safety
/// The grid, block and dynamic shared memory are those of the kernel; `args` describes tensors; `quantize_factors` has
/// run on the same.
#[kernel(max_threads = QuantizeKernel::THREADS, min_blocks = QuantizeKernel::MIN_BLOCKS)]
pub unsafe fn quantize(args: QuantizeArgs) {
    // SAFETY: the caller's contract is the body's.
    unsafe {
        match (args.wide_type, args.narrow_type) {
            (WIDE_F16, NARROW_E4M3) => body::quantize::<F16, Quarter>(&args),
            (WIDE_F16, _) => body::quantize::<F16, Byte>(&args),
            (WIDE_BF16, NARROW_E4M3) => body::quantize::<Bf16, Quarter>(&args),
            (WIDE_BF16, _) => body::quantize::<Bf16, Byte>(&args),
            (_, NARROW_E4M3) => body::quantize::<Single, Quarter>(&args),
            _ => body::quantize::<Single, Byte>(&args),
        }
    }
}

/// Multiplies elements by the factor of their group.
///
/// # Safety
/// The grid, block and dynamic shared memory are those of the kernel; `args` describes tensors.
#[kernel(max_threads = QuantizeKernel::THREADS, min_blocks = QuantizeKernel::MIN_BLOCKS)]
pub unsafe fn dequantize(args: QuantizeArgs) {
    // SAFETY: the caller's contract is the body's.
    unsafe {
        match (args.wide_type, args.narrow_type) {
            (WIDE_F16, NARROW_E4M3) => body::dequantize::<F16, Quarter>(&args),
            (WIDE_F16, _) => body::dequantize::<F16, Byte>(&args),
            (WIDE_BF16, NARROW_E4M3) => body::dequantize::<Bf16, Quarter>(&args),
            (WIDE_BF16, _) => body::dequantize::<Bf16, Byte>(&args),
            (_, NARROW_E4M3) => body::dequantize::<Single, Quarter>(&args),
            _ => body::dequantize::<Single, Byte>(&args),
        }
    }
}
