//! The kernels on `mma.sync`, for sm_80 and later.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `mainloop` | FlashAttention tiling, tiles by `cp.async` |
//! | `decode` | few query rows on many keys, which blocks and warps split between them |
//! | `pages` | where those keys lie, one after the other or in pages |
//! | `copy` | rows of a tensor to a tile in shared memory |
//! | `product` | the product of two fragments |
//! | `pv` | P V on tensor cores or by multiply-adds |
//! | `epilogue` | O to global memory |

mod copy;
mod decode;
mod epilogue;
mod mainloop;
mod pages;
mod product;
mod pv;

use cuda_std::convert::{Bf16, F16};
use variants::attention::{ATTENTION, AttentionArgs, DecodeArgs, config_index};

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
entry!(attention_f16_d64_wmma_64x64_s2_general: wmma F16);
entry!(attention_f16_d128_wmma_64x32_s2_general: wmma F16);
entry!(attention_bf16_d64_wmma_64x64_s2: wmma Bf16);
entry!(attention_bf16_d64_wmma_32x64_s2: wmma Bf16);
entry!(attention_bf16_d64_wmma_128x64_s2: wmma Bf16);
entry!(attention_bf16_d128_wmma_64x32_s2: wmma Bf16);
entry!(attention_bf16_d128_wmma_32x32_s2: wmma Bf16);
entry!(attention_bf16_d64_wmma_64x64_s2_general: wmma Bf16);
entry!(attention_bf16_d128_wmma_64x32_s2_general: wmma Bf16);
