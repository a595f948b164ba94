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
//! | `descale` | factors of FP8 tensors |
//! | `input` | the element types of Q, K and V, and what follows from them |
//! | `combine` | the sum of partial results |
//! | `scalar` | the kernel that serves everything: one warp a query row |
//! | `lane` | this thread in its warp and its block |
//!
//! `sm80` has the kernels on `mma.sync`, for sm_80 and later; `sm90` those on `wgmma`, for sm_90a.
//!
//! Without the feature `entries` the crate has no entries. A device crate that depends on it so, as `study` does, makes
//! kernels of its own from [`sm80::mainloop::forward`].
#![cfg(target_arch = "nvptx64")]
#![no_std]
#![feature(float_minimum_maximum)]
#![cfg_attr(feature = "entries", feature(abi_gpu_kernel))]
#![cfg_attr(all(feature = "entries", target_feature = "sm_90a"), feature(asm_experimental_arch))]
#![allow(
    clippy::needless_range_loop,
    reason = "an index into a register array selects fragments, rows or columns too, and LLVM unrolls loops over numbers best"
)]
#![cfg_attr(
    not(feature = "entries"),
    allow(dead_code, unused_imports, reason = "another device crate uses the main loop of sm_80 alone")
)]
#![allow(improper_gpu_kernel_arg, reason = "the argument struct is repr(C) and plain data")]

mod combine;
mod descale;
mod epilogue;
pub mod input;
pub mod lane;
mod mask;
mod scalar;
mod score_mod;
mod seqlen;
mod softmax;
pub mod tile;
mod work;

use cuda_std::convert::{Bf16, F16};
use variants::attention::{COMBINE, CombineArgs, combine_index};

use crate::combine::F32;

/// Declares the f16 and the bf16 kernel of a configuration. `entry!(d64_mma_64x64_s2: mma);` becomes
///
/// ```ignore
/// pub mod d64_mma_64x64_s2 {
///     pub mod f16 {
///         const ID: usize = config_index("attention_f16_d64_mma_64x64_s2");
///         #[kernel(name = "attention_f16_d64_mma_64x64_s2", max_threads = ATTENTION[ID].threads(), ..)]
///         pub unsafe fn kernel(args: AttentionArgs) { mainloop::forward::<F16, Configuration<ID>, ..>(&args) }
///     }
///     pub mod bf16 { .. }
/// }
/// ```
///
/// With `e4m3` in front they are the kernels for inputs of E4M3, with an O of f16 and of bf16; with `e4m3kv` those for
/// K and V of E4M3, beside a Q and an O of f16 and of bf16. With `u8` they are those for inputs of 8-bit integers. A
/// name that no configuration has does not compile, nor does an element type other than the configuration's.
macro_rules! entry {
    (e4m3 $name:ident: $($kernel:tt)+) => {
        /// The kernels of the configurations of this name.
        #[cfg(feature = "entries")]
        pub mod $name {
            entry!(@ e4m3_f16 E4m3ToF16 $name $($kernel)+ descales);
            entry!(@ e4m3_bf16 E4m3ToBf16 $name $($kernel)+ descales);
        }
    };
    (e4m3kv $name:ident: $($kernel:tt)+) => {
        /// The kernels of the configurations of this name.
        #[cfg(feature = "entries")]
        pub mod $name {
            entry!(@ f16_e4m3kv F16 $name $($kernel)+ descales);
            entry!(@ bf16_e4m3kv Bf16 $name $($kernel)+ descales);
        }
    };
    (u8 $name:ident: $($kernel:tt)+) => {
        /// The kernels of the configurations of this name.
        #[cfg(feature = "entries")]
        pub mod $name {
            entry!(@ u8_f16 U8ToF16 $name $($kernel)+ descales);
            entry!(@ u8_bf16 U8ToBf16 $name $($kernel)+ descales);
        }
    };
    ($name:ident: $($kernel:tt)+) => {
        /// The kernels of the configurations of this name.
        #[cfg(feature = "entries")]
        pub mod $name {
            entry!(@ f16 F16 $name $($kernel)+);
            entry!(@ bf16 Bf16 $name $($kernel)+);
        }
    };
    (@ $type:ident $element:ident $name:ident scalar $($descales:ident)?) => {
        entry!(@@ $type $name
            (args: AttentionArgs $(, $descales: DescaleArgs)?)
            ()
            crate::scalar::forward::<$element, ID>(&args, entry!(@descales $($descales)?)));
    };
    (@ $type:ident $element:ident $name:ident mma $($descales:ident)?) => {
        entry!(@@ $type $name (args: AttentionArgs $(, $descales: DescaleArgs)?) () mainloop::forward::<
            $element,
            mainloop::Configuration<ID>,
            { mainloop::key_tiles(&ATTENTION[ID]) },
            { mainloop::dim_tiles(&ATTENTION[ID]) },
        >(&args, entry!(@descales $($descales)?)));
    };
    (@ $type:ident $element:ident $name:ident decode $kv:ident $($descales:ident)?) => {
        entry!(@@ $type $name
            (args: AttentionArgs, decode: DecodeArgs $(, $descales: DescaleArgs)?)
            ()
            decode::forward::<
                $element,
                $kv,
                ID,
                { decode::m_tiles(ID) },
                { decode::dim_tiles(ID) },
                { decode::pending(ID) },
            >(&args, &decode, entry!(@descales $($descales)?)));
    };
    (@ $type:ident $element:ident $name:ident wgmma $query:ident $($descales:ident)?) => {
        entry!(@@ $type $name
            (args: AttentionArgs, tiles: TileSchedulerArgs, q: TensorMap, k: TensorMap, v: TensorMap
                $(, $descales: DescaleArgs)?)
            (, cluster = ATTENTION[ID].cluster())
            kernel::forward::<
                $element,
                $query<$element, ID, { config::dim_steps(ID) }>,
                ID,
                { config::stages(ID) },
                { config::score_registers(ID) },
                { config::output_registers(ID) },
                { config::key_steps(ID) },
                { config::part_registers(ID) },
            >(&args, &tiles, Maps { q, k, v }, entry!(@descales $($descales)?)));
    };
    (@descales) => { None };
    (@descales $descales:ident) => { Some(&$descales) };
    (@@ $type:ident $name:ident ($($parameter:ident: $parameter_type:ident),*) ($($bound:tt)*) $body:expr) => {
        /// The kernel of this element type.
        pub mod $type {
            use super::super::*;

            const ID: usize = config_index(concat!("attention_", stringify!($type), "_", stringify!($name)));

            /// Attention kernel of this configuration.
            ///
            /// # Safety
            /// The grid, block and dynamic shared memory are the configuration's; the addresses and strides of `args`
            /// describe tensors of its lengths.
            #[cuda_std::kernel(
                name = concat!("attention_", stringify!($type), "_", stringify!($name)),
                max_threads = ATTENTION[ID].threads(),
                min_blocks = ATTENTION[ID].min_blocks()
                $($bound)*
            )]
            pub unsafe fn kernel($($parameter: $parameter_type),*) {
                // SAFETY: the caller's contract is the body's.
                unsafe { $body }
            }
        }
    };
}

/// Declares the entry of one kernel of [`COMBINE`].
macro_rules! combine {
    ($name:ident: $part:ty, $out:ty) => {
        /// Adds up partial results; the kernel of this name.
        ///
        /// # Safety
        /// The grid and block are the kernel's; the addresses and strides of `args` describe the parts and the result.
        #[cfg(feature = "entries")]
        #[cuda_std::kernel(max_threads = COMBINE[combine_index(stringify!($name))].threads())]
        pub unsafe fn $name(args: CombineArgs) {
            // SAFETY: the caller's contract is the body's.
            unsafe { combine::combine::<$part, $out, { combine_index(stringify!($name)) }>(&args) }
        }
    };
}

// Behind the macro, whose entries they have too.
pub mod sm80;
#[cfg(all(feature = "entries", target_feature = "sm_90a"))]
pub mod sm90;

combine!(attention_combine_f32_f16: F32, F16);
combine!(attention_combine_f32_bf16: F32, Bf16);
combine!(attention_combine_f32_f32: F32, F32);
combine!(attention_combine_f16_f16: F16, F16);
combine!(attention_combine_bf16_bf16: Bf16, Bf16);
combine!(attention_combine_f16_f32: F16, F32);
combine!(attention_combine_bf16_f32: Bf16, F32);
