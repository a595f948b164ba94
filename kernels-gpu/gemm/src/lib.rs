//! GEMM kernels: one entry for each configuration of [`variants::gemm::GEMM`], and those that prepare operands and
//! finish sums.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `mainloop_sm80` | the product of a tile on `mma.sync`, operands by `cp.async` or by single elements |
//! | `multiply` | the pairs of element types that are multiplied, and the sums of a warp |
//! | `copy` | operands from global to shared memory |
//! | `fragments` | operands from shared memory to registers |
//! | `epilogue` | sums of fragments to rows of D |
//! | `mainloop_sm90` | the product of tiles on `wgmma`, operands by TMA |
//! | `epilogue_sm90` | its accumulators to D, by TMA |
//! | `work_sm90`, `smem_sm90` | which tiles a block of `wgmma` computes; its shared memory |
//! | `entries_sm90` | its entries |
//! | `output` | scale, C, bias, activation, rounding |
//! | `pack` | copies of operands that no main kernel takes as they are |
//! | `sum` | the second stage of split-K |
//! | `work` | which tile a block computes |
#![cfg(target_arch = "nvptx64")]
#![no_std]
#![feature(abi_gpu_kernel)]
#![cfg_attr(target_feature = "sm_90a", feature(asm_experimental_arch))]
#![allow(
    clippy::needless_range_loop,
    reason = "an index into a register array selects fragments, rows or columns too, and LLVM unrolls loops over numbers best"
)]
#![allow(improper_gpu_kernel_arg, reason = "the argument struct is repr(C) and plain data")]

mod copy;
#[cfg(target_feature = "sm_90a")]
pub mod entries_sm90;
mod epilogue;
#[cfg(target_feature = "sm_90a")]
mod epilogue_sm90;
mod fragments;
mod mainloop_sm80;
#[cfg(target_feature = "sm_90a")]
mod mainloop_sm90;
mod multiply;
mod output;
mod pack;
#[cfg(target_feature = "sm_90a")]
mod smem_sm90;
mod sum;
mod work;
#[cfg(target_feature = "sm_90a")]
mod work_sm90;

use cuda_std::convert::{Bf16, F16};
#[cfg(target_feature = "sm_89")]
use cuda_std::convert::{E4m3, E5m2};
use cuda_std::kernel;
#[cfg(target_feature = "sm_89")]
use multiply::ByE4m3;
use variants::gemm::{
    AUXILIARY_MIN_BLOCKS, GEMM, GemmArgs, PACK_8BIT, PACK_16BIT, PackArgs, REDUCE_SPLIT_K, config_index,
};

/// Declares the f16 and the bf16 kernel of a configuration; with types behind it, the kernel of a name and these types.
/// `entry!(mma_nn_128x256x32_s4: mma);` becomes
///
/// ```ignore
/// pub mod mma_nn_128x256x32_s4 {
///     pub mod f16 {
///         const ID: usize = config_index("gemm_f16_mma_nn_128x256x32_s4");
///         #[kernel(name = "gemm_f16_mma_nn_128x256x32_s4", max_threads = GEMM[ID].threads(), ..)]
///         pub unsafe fn kernel(args: GemmArgs) { mainloop_sm80::product::<F16, ID, ..>(&args) }
///     }
///     pub mod bf16 { .. }
/// }
/// ```
///
/// A name that no configuration has does not compile, nor do element types other than the configuration's.
macro_rules! entry {
    ($name:ident: mma) => {
        entry!(@ $name product chunks);
    };
    ($name:ident: any) => {
        entry!(@ $name any elements);
    };
    ($name:ident: mma $types:ty) => {
        /// The kernel of the configuration of this name.
        pub mod $name {
            use super::*;
            entry!(@@ [stringify!($name)] product chunks $types);
        }
    };
    (@ $name:ident $body:ident $copies:ident) => {
        /// The kernels of the configurations of this name.
        pub mod $name {
            /// The kernel of this element type.
            pub mod f16 {
                use super::super::*;
                entry!(@@ [concat!("gemm_f16_", stringify!($name))] $body $copies F16);
            }
            /// The kernel of this element type.
            pub mod bf16 {
                use super::super::*;
                entry!(@@ [concat!("gemm_bf16_", stringify!($name))] $body $copies Bf16);
            }
        }
    };
    (@@ [$($name:tt)+] $body:ident $copies:ident $types:ty) => {
        const ID: usize = config_index($($name)+);

        /// GEMM kernel of this configuration.
        ///
        /// # Safety
        /// The grid, block and dynamic shared memory are the configuration's; `args` describes tensors that the
        /// configuration takes.
        #[cuda_std::kernel(name = $($name)+, max_threads = GEMM[ID].threads(), min_blocks = GEMM[ID].min_blocks)]
        pub unsafe fn kernel(args: GemmArgs) {
            // SAFETY: the caller's contract is the body's.
            unsafe {
                mainloop_sm80::$body::<
                    $types,
                    ID,
                    { GEMM[ID].a_fragments() },
                    { GEMM[ID].b_fragments() },
                    { mainloop_sm80::$copies(ID)[0] },
                    { mainloop_sm80::$copies(ID)[1] },
                >(&args)
            }
        }
    };
}

#[cfg(any(not(target_feature = "sm_89"), target_feature = "sm_90"))]
entry!(mma_nn_128x256x64_s3: mma);
#[cfg(any(not(target_feature = "sm_89"), target_feature = "sm_90"))]
entry!(mma_nt_128x256x64_s3: mma);
#[cfg(any(not(target_feature = "sm_89"), target_feature = "sm_90"))]
entry!(mma_tt_128x256x64_s3: mma);
entry!(mma_nn_128x256x32_s4: mma);
entry!(mma_nt_128x256x32_s4: mma);
entry!(mma_tn_128x256x32_s4: mma);
entry!(mma_tt_128x256x32_s4: mma);
entry!(mma_nn_128x128x32_s4: mma);
entry!(mma_nt_128x128x32_s4: mma);
entry!(mma_tn_128x128x32_s4: mma);
entry!(mma_tt_128x128x32_s4: mma);
entry!(mma_nn_64x64x64_s3: mma);
entry!(mma_nt_64x64x64_s3: mma);
entry!(mma_tn_64x64x64_s3: mma);
entry!(mma_tt_64x64x64_s3: mma);
entry!(mma_nn_16x128x64_s4: mma);
entry!(mma_nt_16x128x64_s4: mma);
entry!(mma_tn_16x128x64_s4: mma);
entry!(mma_tt_16x128x64_s4: mma);
entry!(mma_any_64x64x32_s2: any);
#[cfg(target_feature = "sm_89")]
entry!(gemm_e4m3_mma_nt_128x128x128_s3_two_level: mma ByE4m3<E4m3>);
#[cfg(target_feature = "sm_89")]
entry!(gemm_e4m3_mma_nt_64x64x128_s3_two_level: mma ByE4m3<E4m3>);
#[cfg(target_feature = "sm_89")]
entry!(gemm_e4m3_e5m2_mma_nt_128x128x128_s3_two_level: mma ByE4m3<E5m2>);
#[cfg(target_feature = "sm_89")]
entry!(gemm_e4m3_e5m2_mma_nt_64x64x128_s3_two_level: mma ByE4m3<E5m2>);

/// Adds up the splits of k and finishes the elements.
///
/// # Safety
/// The grid and block are those of [`REDUCE_SPLIT_K`]; `args` is that of the main kernel, which has run.
#[kernel(max_threads = REDUCE_SPLIT_K.threads, min_blocks = AUXILIARY_MIN_BLOCKS)]
pub unsafe fn gemm_sum(args: GemmArgs) {
    // SAFETY: the caller's contract is the body's.
    unsafe { sum::sum(&args) }
}

/// Copies an operand of 8-bit elements.
///
/// # Safety
/// The grid, block and dynamic shared memory are those of [`PACK_8BIT`]; `args` describes an operand and room for its
/// copy.
#[kernel(max_threads = PACK_8BIT.threads, min_blocks = AUXILIARY_MIN_BLOCKS)]
pub unsafe fn gemm_pack_8bit(args: PackArgs) {
    // SAFETY: the caller's contract is the body's.
    unsafe { pack::pack::<_, { PACK_8BIT.elements() }>(&args, 0u8, PACK_8BIT) }
}

/// Copies an operand of 16-bit elements.
///
/// # Safety
/// The grid, block and dynamic shared memory are those of [`PACK_16BIT`]; `args` describes an operand and room for its
/// copy.
#[kernel(max_threads = PACK_16BIT.threads, min_blocks = AUXILIARY_MIN_BLOCKS)]
pub unsafe fn gemm_pack_16bit(args: PackArgs) {
    // SAFETY: the caller's contract is the body's.
    unsafe { pack::pack::<_, { PACK_16BIT.elements() }>(&args, 0u16, PACK_16BIT) }
}
