//! Six steps from one `wgmma` to a matrix product: one entry for each configuration of [`variants::ladder::LADDER`],
//! explained in `docs/wgmma.md`. For sm_90a; empty for others. The last step of the ladder is the library's product,
//! `kernels-gpu/gemm`.
//!
//! | file | steps |
//! | --- | --- |
//! | `threads` | 1 and 2: tiles that the threads copy, one wgmma and a loop along K |
//! | `tma` | 3: tiles that TMA copies, on mbarriers |
//! | `specialised` | 4 and 5: a producer warpgroup beside two consumers |
//! | `persistent` | 6: clusters, multicast, tiles in an order for L2, TMA stores |
//! | `entries` | the entry points |
//! | `tile` | what they share: operands, accumulators to memory |
#![cfg(target_arch = "nvptx64")]
#![no_std]
#![cfg_attr(target_feature = "sm_90a", feature(abi_gpu_kernel, asm_experimental_arch))]
#![allow(improper_gpu_kernel_arg, reason = "the argument struct is repr(C) and plain data")]

// Other architectures have the panic handler of `cuda_std` alone.
use cuda_std as _;
use variants as _;

#[cfg(target_feature = "sm_90a")]
pub mod entries;
#[cfg(target_feature = "sm_90a")]
mod persistent;
#[cfg(target_feature = "sm_90a")]
mod specialised;
#[cfg(target_feature = "sm_90a")]
mod threads;
#[cfg(target_feature = "sm_90a")]
mod tile;
#[cfg(target_feature = "sm_90a")]
mod tma;
