//! Kernels that differ from the library's in one choice, for `docs/wmma.md`: what the choice is worth. One entry for
//! each configuration of [`variants::study::ATTENTION_STUDY`] and [`variants::study::ATA_STUDY`].
//!
//! The kernels are those of `kernels-gpu/attention` and `kernels-gpu/ata`, made of other parts:
//!
//! | file | what it holds |
//! | --- | --- |
//! | `attention` | entries of attention on `mma.sync` |
//! | `multiply_add` | P V without tensor cores |
//! | `ata` | entries of ATA |
//! | `wmma` | `wmma` in place of `mma.sync` |
#![cfg(target_arch = "nvptx64")]
#![no_std]
#![feature(abi_gpu_kernel)]
#![allow(
    clippy::needless_range_loop,
    reason = "an index into a register array selects rows or columns too, and LLVM unrolls loops over numbers best"
)]
#![allow(improper_gpu_kernel_arg, reason = "the argument struct is repr(C) and plain data")]

pub mod ata;
pub mod attention;
mod multiply_add;
mod wmma;
