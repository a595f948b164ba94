//! The kernels on `mma.sync`, for sm_80 and later, and the entries of the scalar kernel.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `mainloop` | FlashAttention tiling, tiles by `cp.async` |
//! | `decode` | few query rows on many keys, which blocks and warps split between them |
//! | `decode_work` | what a block of it computes |
//! | `split_kv` | the sum of the splits, by the last block of a tile |
//! | `pages` | where those keys lie, one after the other or in pages |
//! | `key_values` | how it multiplies K and V, of the type of Q |
//! | `e4m3_kv` | the same of E4M3, from sm_89 on |
//! | `e4m3` | the main loop on inputs of E4M3, from sm_89 on |
//! | `quantized` | the main loop and the scalar kernel on inputs of 8-bit integers |
//! | `copy` | rows of a tensor to a tile in shared memory |
//! | `product` | the product of two fragments |
//! | `pv` | P V on tensor cores |
//! | `epilogue` | O to global memory |

pub mod copy;
mod decode;
mod decode_work;
#[cfg(target_feature = "sm_89")]
pub mod e4m3;
#[cfg(target_feature = "sm_89")]
pub mod e4m3_kv;
mod epilogue;
mod key_values;
pub mod mainloop;
mod pages;
pub mod product;
pub mod pv;
pub mod quantized;
mod split_kv;

use cuda_std::convert::{Bf16, F16};
use variants::attention::{ATTENTION, AttentionArgs, DecodeArgs, config_index};

use self::key_values::OfQuery;

entry!(d64_decode_4w_s6: decode OfQuery);
entry!(d128_decode_4w_s3: decode OfQuery);
entry!(d256_decode_2w_s3: decode OfQuery);
entry!(d64_decode_4w_s6_r32: decode OfQuery);
entry!(d128_decode_4w_s3_r32: decode OfQuery);
entry!(d64_decode_4w_s6_general: decode OfQuery);
entry!(d128_decode_4w_s3_general: decode OfQuery);
entry!(d256_decode_2w_s3_general: decode OfQuery);
entry!(d64_mma_64x64_s2: mma);
entry!(d128_mma_64x32_s2: mma);
entry!(d64_mma_64x64_s2_general: mma);
entry!(d128_mma_64x32_s2_general: mma);
entry!(scalar: scalar);
entry!(scalar_general: scalar);
