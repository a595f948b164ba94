//! Kernels with one fault each, and the same without it: `tests/broken` runs both on the emulator, which must find the
//! first and say nothing of the second.
//!
//! The comment `// fault: name` marks the line that the emulator must name. Numbers that the tests must know too are in
//! [`variants::broken`]. None of them is meant for a card.
#![cfg(target_arch = "nvptx64")]
#![no_std]
#![feature(abi_gpu_kernel, asm_experimental_arch)]

use cuda_std::shared::{self, SharedAddr, SharedArray};
use variants::broken::MAP;

/// Two entries of one body, with its fault and without: `pair!(late_broken, late_correct: late)` makes
/// `late::<true>` the kernel `late_broken` and `late::<false>` the kernel `late_correct`.
macro_rules! pair {
    ($($broken:ident, $correct:ident: $body:ident;)+) => {
        $(
            /// With the fault.
            ///
            /// # Safety
            /// Blocks of `THREADS` threads with the shared memory of `MAP`; `out` and `input` have a word for each
            /// thread of a tile.
            #[cuda_std::kernel(max_threads = variants::broken::THREADS)]
            pub unsafe fn $broken(out: *mut u32, input: *const u32) {
                // SAFETY: nothing makes it right: the emulator stops it.
                unsafe { $body::<true>(out, input) }
            }

            /// Without the fault.
            ///
            /// # Safety
            /// As for the other one.
            #[cuda_std::kernel(max_threads = variants::broken::THREADS)]
            pub unsafe fn $correct(out: *mut u32, input: *const u32) {
                // SAFETY: as required of the caller.
                unsafe { $body::<false>(out, input) }
            }
        )+
    };
}

/// The same for bodies that take a tensor map too, and run on sm_90.
#[cfg(target_feature = "sm_90a")]
macro_rules! hopper_pair {
    ($($broken:ident, $correct:ident: $body:ident;)+) => {
        $(
            /// With the fault.
            ///
            /// # Safety
            /// A block has `WARPGROUP` threads and the shared memory of `HOPPER`; `out` has a word for each thread. The
            /// map is of `TENSOR_ROWS` rows of f16 numbers, as long as the rows of a factor, in boxes of one factor.
            #[cuda_std::kernel(max_threads = variants::broken::WARPGROUP)]
            pub unsafe fn $broken(out: *mut u32, map: TensorMap) {
                // SAFETY: nothing makes it right: the emulator stops it.
                unsafe { $body::<true>(out, map) }
            }

            /// Without the fault.
            ///
            /// # Safety
            /// As for the other one.
            #[cuda_std::kernel(max_threads = variants::broken::WARPGROUP)]
            pub unsafe fn $correct(out: *mut u32, map: TensorMap) {
                // SAFETY: as required of the caller.
                unsafe { $body::<false>(out, map) }
            }
        )+
    };
}

pub mod barriers;
pub mod copies;
#[cfg(target_feature = "sm_90a")]
pub mod hopper;
pub mod mbarriers;
pub mod memory;
pub mod warps;

/// A word for each thread, in every stage.
#[inline(always)]
fn words() -> SharedArray<u32> {
    SharedArray::of_region(MAP.get("words"))
}

/// The place of a region.
#[inline(always)]
fn region(name: &str) -> SharedAddr {
    shared::dynamic().offset(MAP.get(name).offset_bytes)
}
