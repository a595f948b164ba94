//! Attention kernels: one entry for each row of [`layout::attention::ATTENTION`].
//!
//! | file | what it holds |
//! | --- | --- |
//! | `scalar` | the kernel that serves everything: one warp a query row |
//! | `mainloop_sm80` | FlashAttention tiling on `wmma`, tiles by `cp.async` |
//! | `tile` | shared-memory tiles: copies from global memory, fragment addresses |
//! | `softmax` | running maximum and sum of the rows of a warp |
//! | `mask` | which keys a row and a block see |
//! | `value_product` | P V on tensor cores or by multiply-adds |
//! | `epilogue` | O and LSE to global memory |
//! | `work` | which rows of which head a block computes |
#![cfg(target_arch = "nvptx64")]
#![no_std]
#![feature(abi_gpu_kernel)]
#![allow(
    clippy::needless_range_loop,
    reason = "an index into a register array selects fragments, rows or columns too, and LLVM unrolls loops over numbers best"
)]
#![allow(improper_gpu_kernel_arg, reason = "the argument struct is repr(C) and plain data")]

mod epilogue;
mod mainloop_sm80;
mod mask;
mod scalar;
mod softmax;
mod tile;
mod value_product;
mod work;

use cuda_std::convert::{Bf16, F16};
use cuda_std::kernel;
use layout::attention::{ATTENTION, AttentionArgs, row_index};

/// Declares the entry of one row. `entry!(NAME: wmma F16);` becomes
///
/// ```ignore
/// #[kernel(max_threads = ROW.threads(), min_blocks = ROW.min_blocks())]
/// pub unsafe fn NAME(args: AttentionArgs) { mainloop_sm80::forward::<F16, { row_index("NAME") }, ..>(&args) }
/// ```
///
/// A name that no row has does not compile, nor does an element type other than the row's.
macro_rules! entry {
    (@ $name:ident, $body:expr) => {
        /// Attention kernel of the row of this name.
        ///
        /// # Safety
        /// The grid, block and dynamic shared memory are the row's; the addresses and strides of `args` describe tensors
        /// of its lengths.
        #[kernel(
            max_threads = ATTENTION[row_index(stringify!($name))].threads(),
            min_blocks = ATTENTION[row_index(stringify!($name))].min_blocks()
        )]
        pub unsafe fn $name(args: AttentionArgs) {
            // SAFETY: the caller's contract is the body's.
            unsafe { $body(&args) }
        }
    };
    ($name:ident: scalar $element:ty) => {
        entry!(@ $name, scalar::forward::<$element, { row_index(stringify!($name)) }>);
    };
    ($name:ident: wmma $element:ty) => {
        entry!(@ $name, mainloop_sm80::forward::<
            $element,
            { row_index(stringify!($name)) },
            { mainloop_sm80::key_tiles(row_index(stringify!($name))) },
            { mainloop_sm80::dim_tiles(row_index(stringify!($name))) },
        >);
    };
}

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
entry!(attention_bf16_d64_wmma_64x64_s2: wmma Bf16);
entry!(attention_bf16_d64_wmma_32x64_s2: wmma Bf16);
entry!(attention_bf16_d64_wmma_128x64_s2: wmma Bf16);
entry!(attention_bf16_d128_wmma_64x32_s2: wmma Bf16);
entry!(attention_bf16_d128_wmma_32x32_s2: wmma Bf16);
entry!(attention_bf16_scalar: scalar Bf16);
