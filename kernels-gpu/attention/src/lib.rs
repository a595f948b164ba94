//! Attention kernels: one entry for each configuration of [`variants::attention::ATTENTION`].
//!
//! What the generations share:
//!
//! | file | what it holds |
//! | --- | --- |
//! | `mask` | which keys a row and a block see |
//! | `score_mod` | scale, softcap and bias of scores |
//! | `seqlen` | where the sequences of a batch entry start, and how long they are |
//! | `softmax` | running maximum and sum of the rows of a warp |
//! | `work` | which rows of which head a block computes |
//! | `tile` | tiles in shared memory, and their fragments |
//! | `epilogue` | LSE to global memory |
//! | `combine` | the sum of partial results |
//! | `scalar` | the kernel that serves everything: one warp a query row |
//! | `lane` | this thread in its warp and its block |
//!
//! `sm80` has the kernels on `mma.sync`, for sm_80 and later; `sm90` those on `wgmma`, for sm_90a.
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
mod epilogue;
mod lane;
mod mask;
mod scalar;
mod score_mod;
mod seqlen;
mod softmax;
mod tile;
mod work;

use cuda_std::convert::{Bf16, F16};
use variants::attention::{ATTENTION, AttentionArgs, COMBINE, CombineArgs, combine_index, config_index};

use crate::combine::F32;

/// Declares the entry of one configuration. `entry!(NAME: wmma F16);` becomes
///
/// ```ignore
/// #[kernel(max_threads = ID.threads(), min_blocks = CONFIG.min_blocks())]
/// pub unsafe fn NAME(args: AttentionArgs) { mainloop::forward::<F16, { config_index("NAME") }, ..>(&args) }
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
        #[cuda_std::kernel(
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
        entry!(@ $name (args: AttentionArgs) () mainloop::forward::<
            $element,
            { config_index(stringify!($name)) },
            { mainloop::key_tiles(config_index(stringify!($name))) },
            { mainloop::dim_tiles(config_index(stringify!($name))) },
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
        #[cuda_std::kernel(max_threads = COMBINE[combine_index(stringify!($name))].threads())]
        pub unsafe fn $name(args: CombineArgs) {
            // SAFETY: the caller's contract is the body's.
            unsafe { combine::combine::<$part, $out, { combine_index(stringify!($name)) }>(&args) }
        }
    };
    ($name:ident: wgmma $element:ident $query:ident) => {
        entry!(@ $name (args: AttentionArgs, tiles: TileSchedulerArgs, q: TensorMap, k: TensorMap, v: TensorMap)
            (, cluster = ATTENTION[config_index(stringify!($name))].cluster())
            kernel::forward::<
                $element,
                $query<$element, { config_index(stringify!($name)) }, { config::dim_steps(config_index(stringify!($name))) }>,
                { config_index(stringify!($name)) },
                { config::stages(config_index(stringify!($name))) },
                { config::score_registers(config_index(stringify!($name))) },
                { config::output_registers(config_index(stringify!($name))) },
                { config::key_steps(config_index(stringify!($name))) },
            >(&args, &tiles, Maps { q, k, v }));
    };
}

// Behind the macro, whose entries they have too.
pub mod sm80;
#[cfg(target_feature = "sm_90a")]
pub mod sm90;

entry!(attention_combine_f32_f16: combine F32, F16);
entry!(attention_combine_f32_bf16: combine F32, Bf16);
entry!(attention_combine_f32_f32: combine F32, F32);
entry!(attention_combine_f16_f16: combine F16, F16);
entry!(attention_combine_bf16_bf16: combine Bf16, Bf16);
entry!(attention_combine_f16_f32: combine F16, F32);
entry!(attention_combine_bf16_f32: combine Bf16, F32);
entry!(attention_f16_scalar: scalar F16);
entry!(attention_f16_scalar_general: scalar F16);
entry!(attention_bf16_scalar: scalar Bf16);
entry!(attention_bf16_scalar_general: scalar Bf16);
