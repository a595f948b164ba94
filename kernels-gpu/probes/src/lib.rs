//! One tiny kernel for each wrapper of `cuda_std`, for tests only: `tests/probes` launches them and compares with the
//! meaning computed on the CPU.
//!
//! Each writes what its wrapper gave, lane by lane, and computes nothing itself. Numbers that both sides must know are
//! in [`variants::probe`].
#![cfg(target_arch = "nvptx64")]
#![no_std]
#![feature(abi_gpu_kernel, asm_experimental_arch)]

pub mod cluster;
pub mod convert;
pub mod copy;
pub mod matrix;
pub mod mbarrier;
pub mod memory;
pub mod thread;
#[cfg(target_feature = "sm_90")]
pub mod tma;
pub mod warp;
#[cfg(target_feature = "sm_90a")]
pub mod wgmma;
