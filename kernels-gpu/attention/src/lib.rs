//! Attention kernels: one entry for each configuration of [`variants::attention::ATTENTION`].
//!
//! | file | what it holds |
//! | --- | --- |
//! | `scalar` | the kernel that serves everything: one warp a query row |
//! | `mainloop_sm80` | FlashAttention tiling on `mma`, tiles by `cp.async` |
//! | `decode` | few query rows on many keys, which blocks and warps split between them |
//! | `pages` | where those keys lie, one after the other or in pages |
//! | `combine` | the sum of partial results |
//! | `mainloop_sm90` | FlashAttention tiling on `wgmma`: the roles of a block, and what its consumers do |
//! | `producer` | the thread of that block which copies tiles by TMA |
//! | `kv_split` | which steps warpgroups that share rows take, in a block or a cluster, and the sum of what they find |
//! | `turns` | the order in which warpgroups have the tensor cores |
//! | `schedule` | which tiles of query rows a persistent block computes |
//! | `row` | one row of the table as constants of that main loop |
//! | `ring` | buffers that are filled and emptied in turns |
//! | `query` | Q as operand of `wgmma`, in shared memory or in registers |
//! | `warpgroup_product` | products of a warpgroup with any number of steps |
//! | `tile` | shared-memory tiles: copies from global memory, fragment addresses |
//! | `score` | scale, softcap and bias of scores |
//! | `softmax` | running maximum and sum of the rows of a warp |
//! | `mask` | which keys a row and a block see |
//! | `pv` | P V on tensor cores or by multiply-adds |
//! | `epilogue`, `epilogue_sm90` | O and LSE to global memory |
//! | `work` | which rows of which head a block computes |
#![cfg(target_arch = "nvptx64")]
#![no_std]
#![feature(abi_gpu_kernel, float_minimum_maximum)]
#![cfg_attr(target_feature = "sm_90a", feature(asm_experimental_arch))]
#![allow(
    clippy::needless_range_loop,
    reason = "an index into a register array selects fragments, rows or columns too, and LLVM unrolls loops over numbers best"
)]
#![allow(improper_gpu_kernel_arg, reason = "the argument struct is repr(C) and plain data")]

mod combine;
mod decode;
mod epilogue;
#[cfg(target_feature = "sm_90a")]
mod epilogue_sm90;
#[cfg(target_feature = "sm_90a")]
mod kv_split;
mod mainloop_sm80;
#[cfg(target_feature = "sm_90a")]
mod mainloop_sm90;
mod mask;
mod pages;
#[cfg(target_feature = "sm_90a")]
mod pingpong;
#[cfg(target_feature = "sm_90a")]
mod producer;
mod pv;
#[cfg(target_feature = "sm_90a")]
mod query;
#[cfg(target_feature = "sm_90a")]
mod ring;
#[cfg(target_feature = "sm_90a")]
mod row;
mod scalar;
#[cfg(target_feature = "sm_90a")]
mod schedule;
mod score;
mod softmax;
mod tile;
#[cfg(target_feature = "sm_90a")]
mod warpgroup_product;
mod work;

use cuda_std::convert::{Bf16, F16};
use cuda_std::kernel;
use variants::attention::{ATTENTION, AttentionArgs, COMBINE, CombineArgs, DecodeArgs, combine_index, config_index};

use crate::combine::F32;

/// Declares the entry of one configuration. `entry!(NAME: wmma F16);` becomes
///
/// ```ignore
/// #[kernel(max_threads = ID.threads(), min_blocks = CONFIG.min_blocks())]
/// pub unsafe fn NAME(args: AttentionArgs) { mainloop_sm80::forward::<F16, { config_index("NAME") }, ..>(&args) }
/// ```
///
/// A name that no configuration has does not compile, nor does an element type other than the configuration's.
macro_rules! entry {
    (@ $name:ident ($($parameter:ident: $type:ident),*) ($($bound:tt)*) $body:expr) => {
        /// Attention kernel of the configuration of this name.
        ///
        /// # Safety
        /// The grid, block and dynamic shared memory are the configuration's; the addresses and strides of `args`
        /// describe tensors of its lengths.
        #[kernel(
            max_threads = ATTENTION[config_index(stringify!($name))].threads(),
            min_blocks = ATTENTION[config_index(stringify!($name))].min_blocks()
            $($bound)*
        )]
        pub unsafe fn $name($($parameter: $type),*) {
            // SAFETY: the caller's contract is the body's.
            unsafe { $body }
        }
    };
    ($name:ident: scalar $element:ty) => {
        entry!(@ $name (args: AttentionArgs) () scalar::forward::<$element, { config_index(stringify!($name)) }>(&args));
    };
    ($name:ident: wmma $element:ty) => {
        entry!(@ $name (args: AttentionArgs) () mainloop_sm80::forward::<
            $element,
            { config_index(stringify!($name)) },
            { mainloop_sm80::key_tiles(config_index(stringify!($name))) },
            { mainloop_sm80::dim_tiles(config_index(stringify!($name))) },
        >(&args));
    };
    ($name:ident: decode $element:ty) => {
        entry!(@ $name (args: AttentionArgs, decode: DecodeArgs) () decode::forward::<
            $element,
            { config_index(stringify!($name)) },
            { decode::dim_tiles(config_index(stringify!($name))) },
            { decode::pending(config_index(stringify!($name))) },
        >(&args, &decode));
    };
    ($name:ident: combine $part:ty, $out:ty) => {
        /// Adds up partial results; the configuration of this name.
        ///
        /// # Safety
        /// The grid and block are the configuration's; the addresses and strides of `args` describe the parts and the
        /// result.
        #[kernel(max_threads = COMBINE[combine_index(stringify!($name))].threads())]
        pub unsafe fn $name(args: CombineArgs) {
            // SAFETY: the caller's contract is the body's.
            unsafe { combine::combine::<$part, $out, { combine_index(stringify!($name)) }>(&args) }
        }
    };
    ($name:ident: wgmma $element:ident $query:ident) => {
        entry!(@ $name (args: AttentionArgs, tiles: TileSchedulerArgs, q: TensorMap, k: TensorMap, v: TensorMap)
            (, cluster = ATTENTION[config_index(stringify!($name))].cluster())
            mainloop_sm90::forward::<
                $element,
                $query<$element, { config_index(stringify!($name)) }, { row::dim_steps(config_index(stringify!($name))) }>,
                { config_index(stringify!($name)) },
                { row::stages(config_index(stringify!($name))) },
                { row::score_registers(config_index(stringify!($name))) },
                { row::output_registers(config_index(stringify!($name))) },
                { row::key_steps(config_index(stringify!($name))) },
            >(&args, &tiles, Maps { q, k, v }));
    };
}

entry!(attention_f16_d64_decode_4w_s6: decode F16);
entry!(attention_f16_d128_decode_4w_s3: decode F16);
entry!(attention_f16_d256_decode_2w_s3: decode F16);
entry!(attention_bf16_d64_decode_4w_s6: decode Bf16);
entry!(attention_bf16_d128_decode_4w_s3: decode Bf16);
entry!(attention_bf16_d256_decode_2w_s3: decode Bf16);
entry!(attention_f16_d64_decode_4w_s6_general: decode F16);
entry!(attention_f16_d128_decode_4w_s3_general: decode F16);
entry!(attention_f16_d256_decode_2w_s3_general: decode F16);
entry!(attention_bf16_d64_decode_4w_s6_general: decode Bf16);
entry!(attention_bf16_d128_decode_4w_s3_general: decode Bf16);
entry!(attention_bf16_d256_decode_2w_s3_general: decode Bf16);
entry!(attention_combine_f32_f16: combine F32, F16);
entry!(attention_combine_f32_bf16: combine F32, Bf16);
entry!(attention_combine_f32_f32: combine F32, F32);
entry!(attention_combine_f16_f16: combine F16, F16);
entry!(attention_combine_bf16_bf16: combine Bf16, Bf16);
entry!(attention_combine_f16_f32: combine F16, F32);
entry!(attention_combine_bf16_f32: combine Bf16, F32);
entry!(attention_f16_d64_wmma_64x64_s2: wmma F16);
entry!(attention_f16_d64_wmma_32x64_s2: wmma F16);
entry!(attention_f16_d64_wmma_128x64_s2: wmma F16);
entry!(attention_f16_d64_wmma_64x64_s1: wmma F16);
entry!(attention_f16_d64_wmma_32x64_s1: wmma F16);
entry!(attention_f16_d64_wmma_128x64_s1: wmma F16);
entry!(attention_f16_d64_wmma_64x32_s2: wmma F16);
entry!(attention_f16_d64_wmma_32x32_s2: wmma F16);
entry!(attention_f16_d64_wmma_128x32_s2: wmma F16);
entry!(attention_f16_d64_wmma_64x64_s2_ldg: wmma F16);
entry!(attention_f16_d64_wmma_64x64_s2_fma: wmma F16);
entry!(attention_f16_d64_wmma_64x64_s2_ldg_fma: wmma F16);
entry!(attention_f16_d128_wmma_64x32_s2: wmma F16);
entry!(attention_f16_d128_wmma_32x32_s2: wmma F16);
entry!(attention_f16_d128_wmma_128x32_s1: wmma F16);
entry!(attention_f16_d128_wmma_64x32_s2_fma: wmma F16);
entry!(attention_f16_scalar: scalar F16);
entry!(attention_f16_d64_wmma_64x64_s2_general: wmma F16);
entry!(attention_f16_d128_wmma_64x32_s2_general: wmma F16);
entry!(attention_f16_scalar_general: scalar F16);
entry!(attention_bf16_d64_wmma_64x64_s2: wmma Bf16);
entry!(attention_bf16_d64_wmma_32x64_s2: wmma Bf16);
entry!(attention_bf16_d64_wmma_128x64_s2: wmma Bf16);
entry!(attention_bf16_d128_wmma_64x32_s2: wmma Bf16);
entry!(attention_bf16_d128_wmma_32x32_s2: wmma Bf16);
entry!(attention_bf16_scalar: scalar Bf16);
entry!(attention_bf16_d64_wmma_64x64_s2_general: wmma Bf16);
entry!(attention_bf16_d128_wmma_64x32_s2_general: wmma Bf16);
entry!(attention_bf16_scalar_general: scalar Bf16);

/// The kernels that need sm_90a.
#[cfg(target_feature = "sm_90a")]
pub mod sm90 {
    use cuda_std::ptx::tma::TensorMap;
    use variants::attention::TileSchedulerArgs;

    use super::*;
    use crate::producer::Maps;
    use crate::query::{QueryRegisters, QueryTile};

    entry!(attention_f16_d64_wgmma_full_192x128_s4: wgmma F16 QueryTile);
    entry!(attention_f16_d64_wgmma_full_256x96_s4: wgmma F16 QueryTile);
    entry!(attention_f16_d64_wgmma_full_256x64_s4: wgmma F16 QueryTile);
    entry!(attention_f16_d64_wgmma_full_64x128k2_s4: wgmma F16 QueryTile);
    entry!(attention_f16_d64_wgmma_full_64x128k2c2_s4: wgmma F16 QueryTile);
    entry!(attention_f16_d64_wgmma_full_128x64k2_s8: wgmma F16 QueryTile);
    entry!(attention_f16_d64_wgmma_full_128x96k2_s4: wgmma F16 QueryTile);
    entry!(attention_f16_d64_wgmma_full_128x128_s4: wgmma F16 QueryTile);
    entry!(attention_f16_d64_wgmma_full_64x128_s4: wgmma F16 QueryTile);
    entry!(attention_f16_d64_wgmma_band_256x64_s4: wgmma F16 QueryTile);
    entry!(attention_f16_d64_wgmma_band_192x128_s4: wgmma F16 QueryTile);
    entry!(attention_f16_d64_wgmma_band_128x64_s4: wgmma F16 QueryTile);
    entry!(attention_f16_d64_wgmma_band_64x128k2_s4: wgmma F16 QueryTile);
    entry!(attention_f16_d64_wgmma_band_64x128k2c2_s4: wgmma F16 QueryTile);
    entry!(attention_f16_d64_wgmma_band_64x128_s4: wgmma F16 QueryTile);
    entry!(attention_f16_d96_wgmma_full_128x128_s3_q: wgmma F16 QueryRegisters);
    entry!(attention_f16_d96_wgmma_full_128x128_s3_q_m2: wgmma F16 QueryRegisters);
    entry!(attention_f16_d96_wgmma_band_128x128_s3_q: wgmma F16 QueryRegisters);
    entry!(attention_f16_d128_wgmma_full_128x128_s3_q: wgmma F16 QueryRegisters);
    entry!(attention_f16_d128_wgmma_full_128x128_s3_q_m2: wgmma F16 QueryRegisters);
    entry!(attention_f16_d128_wgmma_full_64x128_s2: wgmma F16 QueryTile);
    entry!(attention_f16_d128_wgmma_band_128x128_s3_q: wgmma F16 QueryRegisters);
    entry!(attention_f16_d128_wgmma_band_64x128_s2: wgmma F16 QueryTile);
    entry!(attention_f16_d192v128_wgmma_full_128x128_s2_q: wgmma F16 QueryRegisters);
    entry!(attention_f16_d192v128_wgmma_full_128x128_s2_q_m2: wgmma F16 QueryRegisters);
    entry!(attention_f16_d192v128_wgmma_band_128x128_s2_q: wgmma F16 QueryRegisters);
    entry!(attention_f16_d192_wgmma_full_128x96_s2: wgmma F16 QueryTile);
    entry!(attention_f16_d192_wgmma_band_128x96_s2: wgmma F16 QueryTile);
    entry!(attention_f16_d192_wgmma_full_128x64_s3_q: wgmma F16 QueryRegisters);
    entry!(attention_f16_d192_wgmma_band_128x64_s3_q: wgmma F16 QueryRegisters);
    entry!(attention_f16_d256_wgmma_full_128x80_s2: wgmma F16 QueryTile);
    entry!(attention_f16_d256_wgmma_band_128x80_s2: wgmma F16 QueryTile);
    entry!(attention_f16_d256_wgmma_full_128x64_s2: wgmma F16 QueryTile);
    entry!(attention_f16_d256_wgmma_band_128x64_s2: wgmma F16 QueryTile);
    entry!(attention_bf16_d64_wgmma_full_192x128_s4: wgmma Bf16 QueryTile);
    entry!(attention_bf16_d64_wgmma_full_256x96_s4: wgmma Bf16 QueryTile);
    entry!(attention_bf16_d64_wgmma_full_256x64_s4: wgmma Bf16 QueryTile);
    entry!(attention_bf16_d64_wgmma_full_64x128k2_s4: wgmma Bf16 QueryTile);
    entry!(attention_bf16_d64_wgmma_full_64x128k2c2_s4: wgmma Bf16 QueryTile);
    entry!(attention_bf16_d64_wgmma_full_128x64k2_s8: wgmma Bf16 QueryTile);
    entry!(attention_bf16_d64_wgmma_full_128x96k2_s4: wgmma Bf16 QueryTile);
    entry!(attention_bf16_d64_wgmma_full_128x128_s4: wgmma Bf16 QueryTile);
    entry!(attention_bf16_d64_wgmma_full_64x128_s4: wgmma Bf16 QueryTile);
    entry!(attention_bf16_d64_wgmma_band_256x64_s4: wgmma Bf16 QueryTile);
    entry!(attention_bf16_d64_wgmma_band_192x128_s4: wgmma Bf16 QueryTile);
    entry!(attention_bf16_d64_wgmma_band_128x64_s4: wgmma Bf16 QueryTile);
    entry!(attention_bf16_d64_wgmma_band_64x128k2_s4: wgmma Bf16 QueryTile);
    entry!(attention_bf16_d64_wgmma_band_64x128k2c2_s4: wgmma Bf16 QueryTile);
    entry!(attention_bf16_d64_wgmma_band_64x128_s4: wgmma Bf16 QueryTile);
    entry!(attention_bf16_d96_wgmma_full_128x128_s3_q: wgmma Bf16 QueryRegisters);
    entry!(attention_bf16_d96_wgmma_full_128x128_s3_q_m2: wgmma Bf16 QueryRegisters);
    entry!(attention_bf16_d96_wgmma_band_128x128_s3_q: wgmma Bf16 QueryRegisters);
    entry!(attention_bf16_d128_wgmma_full_128x128_s3_q: wgmma Bf16 QueryRegisters);
    entry!(attention_bf16_d128_wgmma_full_128x128_s3_q_m2: wgmma Bf16 QueryRegisters);
    entry!(attention_bf16_d128_wgmma_full_64x128_s2: wgmma Bf16 QueryTile);
    entry!(attention_bf16_d128_wgmma_band_128x128_s3_q: wgmma Bf16 QueryRegisters);
    entry!(attention_bf16_d128_wgmma_band_64x128_s2: wgmma Bf16 QueryTile);
    entry!(attention_bf16_d192v128_wgmma_full_128x128_s2_q: wgmma Bf16 QueryRegisters);
    entry!(attention_bf16_d192v128_wgmma_full_128x128_s2_q_m2: wgmma Bf16 QueryRegisters);
    entry!(attention_bf16_d192v128_wgmma_band_128x128_s2_q: wgmma Bf16 QueryRegisters);
    entry!(attention_bf16_d192_wgmma_full_128x96_s2: wgmma Bf16 QueryTile);
    entry!(attention_bf16_d192_wgmma_band_128x96_s2: wgmma Bf16 QueryTile);
    entry!(attention_bf16_d192_wgmma_full_128x64_s3_q: wgmma Bf16 QueryRegisters);
    entry!(attention_bf16_d192_wgmma_band_128x64_s3_q: wgmma Bf16 QueryRegisters);
    entry!(attention_bf16_d256_wgmma_full_128x80_s2: wgmma Bf16 QueryTile);
    entry!(attention_bf16_d256_wgmma_band_128x80_s2: wgmma Bf16 QueryTile);
    entry!(attention_bf16_d256_wgmma_full_128x64_s2: wgmma Bf16 QueryTile);
    entry!(attention_bf16_d256_wgmma_band_128x64_s2: wgmma Bf16 QueryTile);
    entry!(attention_f16_d64_wgmma_band_192x96_s4_varlen: wgmma F16 QueryTile);
    entry!(attention_f16_d128_wgmma_band_128x128_s3_q_varlen: wgmma F16 QueryRegisters);
    entry!(attention_f16_d192v128_wgmma_band_128x128_s2_varlen: wgmma F16 QueryTile);
    entry!(attention_f16_d256_wgmma_band_128x80_s2_varlen: wgmma F16 QueryTile);
    entry!(attention_f16_d64_wgmma_band_256x64_s4_softcap: wgmma F16 QueryTile);
    entry!(attention_f16_d128_wgmma_band_128x128_s3_q_softcap: wgmma F16 QueryRegisters);
    entry!(attention_f16_d256_wgmma_band_128x80_s2_softcap: wgmma F16 QueryTile);
    entry!(attention_f16_d64_wgmma_band_192x96_s4_general: wgmma F16 QueryTile);
    entry!(attention_f16_d128_wgmma_band_128x128_s2_general: wgmma F16 QueryTile);
    entry!(attention_f16_d256_wgmma_band_128x64_s2_general: wgmma F16 QueryTile);
    entry!(attention_bf16_d64_wgmma_band_192x96_s4_varlen: wgmma Bf16 QueryTile);
    entry!(attention_bf16_d128_wgmma_band_128x128_s3_q_varlen: wgmma Bf16 QueryRegisters);
    entry!(attention_bf16_d192v128_wgmma_band_128x128_s2_varlen: wgmma Bf16 QueryTile);
    entry!(attention_bf16_d256_wgmma_band_128x80_s2_varlen: wgmma Bf16 QueryTile);
    entry!(attention_bf16_d64_wgmma_band_256x64_s4_softcap: wgmma Bf16 QueryTile);
    entry!(attention_bf16_d128_wgmma_band_128x128_s3_q_softcap: wgmma Bf16 QueryRegisters);
    entry!(attention_bf16_d256_wgmma_band_128x80_s2_softcap: wgmma Bf16 QueryTile);
    entry!(attention_bf16_d64_wgmma_band_192x96_s4_general: wgmma Bf16 QueryTile);
    entry!(attention_bf16_d128_wgmma_band_128x128_s2_general: wgmma Bf16 QueryTile);
    entry!(attention_bf16_d256_wgmma_band_128x64_s2_general: wgmma Bf16 QueryTile);
}
