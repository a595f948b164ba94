//! Kernels of `Y = A X` with a symmetric block matrix, one entry for each configuration of [`variants::ata::ATA`], and
//! of the solver on top, one entry for each configuration of [`variants::cg::CG`].
//!
//! | file | what it holds |
//! | --- | --- |
//! | `mainloop` | the product: which loads are when in flight |
//! | `work_list` | which tiles a warp takes, one after the other |
//! | `prefetch` | the first two tiles of a warp at once |
//! | `unit` | what multiplies a 32x32 tile and 32 elements of X |
//! | `config` | a configuration as a type |
//! | `mma`, `fma` | the units: `mma.sync`, f32 multiply-adds |
//! | `tf32`, `half` | the numbers of `mma.sync` |
//! | `cells` | tile references and stored pairs from global memory, and the elements that they hold |
//! | `vector` | what a lane needs of X |
//! | `sums` | the sums of the warps through shared memory to Y |
//! | `cg` | conjugate gradient, between two products |
//! | `work` | which rows, channel and frames a block computes |
//!
//! Without the feature `entries` the crate has no entries. A device crate that depends on it so, as `study` does, makes
//! kernels of its own from [`mainloop::product`].
#![cfg(target_arch = "nvptx64")]
#![no_std]
#![cfg_attr(feature = "entries", feature(abi_gpu_kernel))]
#![allow(
    clippy::needless_range_loop,
    reason = "an index into a register array selects fragments, rows or frames too, and LLVM unrolls loops over numbers best"
)]
#![cfg_attr(
    not(feature = "entries"),
    allow(dead_code, unused_imports, reason = "another device crate uses the main loop alone")
)]
#![allow(improper_gpu_kernel_arg, reason = "the argument struct is repr(C) and plain data")]

pub mod cells;
#[cfg(feature = "entries")]
mod cg;
pub mod config;
mod fma;
mod half;
pub mod mainloop;
mod mma;
mod prefetch;
pub mod sums;
mod tf32;
pub mod unit;
mod vector;
pub mod work;
mod work_list;

use cuda_std::kernel;
use variants::ata::{ATA, AtaArgs, config_index};

use config::OfTable;
use fma::Fma;
use half::Half;
use mma::Mma;
use tf32::Tf32;

/// Declares the entry of one configuration. `entry!(NAME: Mma<Half>);` becomes
///
/// ```ignore
/// #[kernel(max_threads = ID.threads(), min_blocks = CONFIG.min_blocks)]
/// pub unsafe fn NAME(args: AtaArgs) {
///     mainloop::product::<Mma<Half>, OfTable<{ config_index("NAME") }>, WORDS, ROWS, VECTORS>(&args)
/// }
/// ```
///
/// A name that no configuration has does not compile.
macro_rules! entry {
    ($name:ident: $unit:ty) => {
        /// ATA kernel of the configuration of this name.
        ///
        /// # Safety
        /// The grid, block and dynamic shared memory are the configuration's; the addresses, strides and tiles of
        /// `args` describe tensors and stored pairs of its sizes and of the configuration's precision.
        #[cfg(feature = "entries")]
        #[kernel(
                                                            max_threads = ATA[config_index(stringify!($name))].threads(),
                                                            min_blocks = ATA[config_index(stringify!($name))].min_blocks
                                                        )]
        pub unsafe fn $name(args: AtaArgs) {
            // SAFETY: the caller's contract is the body's.
            unsafe {
                mainloop::product::<
                    $unit,
                    OfTable<{ config_index(stringify!($name)) }>,
                    { ATA[config_index(stringify!($name))].precision.cell_words() },
                    { ATA[config_index(stringify!($name))].pair_rows },
                    { ATA[config_index(stringify!($name))].vectors() },
                >(&args);
            }
        }
    };
}

entry!(ata_f32_fma_1x64x16: Fma);
entry!(ata_f32_fma_1x64x5: Fma);
entry!(ata_f32_fma_1x32x12: Fma);
entry!(ata_f32_fma_8x32x8: Fma);
entry!(ata_tf32_fma_1x64x16: Fma);
entry!(ata_tf32_fma_1x64x6: Fma);
entry!(ata_tf32_mma_8x32x12: Mma<Tf32>);
entry!(ata_tf32_mma_8x64x6: Mma<Tf32>);
entry!(ata_tf32_mma_16x32x10: Mma<Tf32>);
entry!(ata_tf32x3_mma_8x32x8: Mma<Tf32>);
entry!(ata_tf32x3_mma_16x32x8: Mma<Tf32>);
entry!(ata_f16_mma_1x64x16: Mma<Half>);
entry!(ata_f16_mma_1x64x7: Mma<Half>);
entry!(ata_f16_mma_8x32x16: Mma<Half>);
entry!(ata_f16_mma_8x64x6: Mma<Half>);
entry!(ata_f16_mma_16x64x16: Mma<Half>);
entry!(ata_bf16_mma_1x64x16: Mma<Half>);
entry!(ata_bf16_mma_1x64x6: Mma<Half>);
entry!(ata_bf16_mma_8x64x16: Mma<Half>);
entry!(ata_bf16_mma_8x64x6: Mma<Half>);
entry!(ata_bf16_mma_16x64x16: Mma<Half>);
