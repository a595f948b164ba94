//! Kernels of `Y = A X` with a symmetric block matrix: one entry for each row of [`layout::ata::ATA`]; and of the solver on top of
//! it: one for each row of [`layout::cg::CG`].
//!
//! | file | what it holds |
//! | --- | --- |
//! | `mainloop_mma` | the product on tensor cores, TF32 `mma.sync` |
//! | `mainloop_fma` | the product by f32 multiply-adds: oracle, and one frame at the speed of the memory |
//! | `pairs` | stored pairs from global memory, and the operands that they hold |
//! | `vector` | what a lane needs of X |
//! | `sums` | the sums of the warps through shared memory to Y |
//! | `cg` | conjugate gradient, between two products |
//! | `work` | which rows, channel and frames a block computes |
#![cfg(target_arch = "nvptx64")]
#![no_std]
#![feature(abi_gpu_kernel)]
#![allow(
    clippy::needless_range_loop,
    reason = "an index into a register array selects fragments, rows or frames too, and LLVM unrolls loops over numbers best"
)]
#![allow(improper_gpu_kernel_arg, reason = "the argument struct is repr(C) and plain data")]

mod cg;
mod mainloop_fma;
mod mainloop_mma;
mod pairs;
mod sums;
mod vector;
mod work;

use cuda_std::kernel;
use layout::ata::{ATA, AtaArgs, row_index};

/// Declares the entry of one row. `entry!(NAME: mma);` becomes
///
/// ```ignore
/// #[kernel(max_threads = ROW.threads(), min_blocks = ROW.min_blocks)]
/// pub unsafe fn NAME(args: AtaArgs) { mainloop_mma::product::<{ row_index("NAME") }, CHUNKS, TILES, DEPTH>(&args) }
/// ```
///
/// A name that no row has does not compile.
macro_rules! entry {
    (@ $name:ident, $body:expr) => {
        /// ATA kernel of the row of this name.
        ///
        /// # Safety
        /// The grid, block and dynamic shared memory are the row's; the addresses, strides and uses of `args` describe
        /// tensors and stored pairs of its sizes and of the row's precision.
        #[kernel(
            max_threads = ATA[row_index(stringify!($name))].threads(),
            min_blocks = ATA[row_index(stringify!($name))].min_blocks
        )]
        pub unsafe fn $name(args: AtaArgs) {
            // SAFETY: the caller's contract is the body's.
            unsafe { $body(&args) }
        }
    };
    ($name:ident: mma) => {
        entry!(@ $name, mainloop_mma::product::<
            { row_index(stringify!($name)) },
            { ATA[row_index(stringify!($name))].precision.chunks() },
            { ATA[row_index(stringify!($name))].frame_tiles() },
            { ATA[row_index(stringify!($name))].depth },
        >);
    };
    ($name:ident: fma) => {
        entry!(@ $name, mainloop_fma::product::<
            { row_index(stringify!($name)) },
            { ATA[row_index(stringify!($name))].precision.chunks() },
            { ATA[row_index(stringify!($name))].frames },
            { ATA[row_index(stringify!($name))].depth },
        >);
    };
}

entry!(ata_f32_fma_1x8x2: fma);
entry!(ata_f32_fma_8x8x1: fma);
entry!(ata_tf32_mma_8x8x2: mma);
entry!(ata_tf32_mma_16x8x2: mma);
entry!(ata_tf32_mma_8x8x3: mma);
entry!(ata_tf32_mma_8x16x1: mma);
entry!(ata_tf32x3_mma_8x8x1: mma);
entry!(ata_tf32x3_mma_16x8x1: mma);
entry!(ata_f16_mma_8x8x4: mma);
entry!(ata_f16_mma_16x8x2: mma);
entry!(ata_f16_mma_8x8x2: mma);
entry!(ata_f16_mma_8x16x1: mma);
entry!(ata_bf16_mma_8x8x4: mma);
entry!(ata_bf16_mma_16x8x2: mma);
