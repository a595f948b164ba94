//! The kernels on `wgmma`, for sm_90a.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `kernel` | the roles of a block, and why its steps stand in their order |
//! | `producer` | the thread that copies tiles by TMA |
//! | `transpose` | the warps that transpose V of 8-bit elements |
//! | `e4m3` | the entries for inputs of E4M3 |
//! | `descale` | the factors of inputs of E4M3 |
//! | `consumer` | what a consumer warpgroup does: load Q, last step, step, finish |
//! | `warpgroup` | a consumer warpgroup: its place in the block, and its side of the pipelines |
//! | `tile` | a tile as a consumer warpgroup sees it: rows, keys, steps, masks |
//! | `scheduler` | which tiles of query rows a persistent block computes |
//! | `pingpong` | the order in which warpgroups use the tensor cores |
//! | `kv_split` | warpgroups that share rows, in a block or a cluster: their steps, and the sum of what they find |
//! | `pipeline` | the position in a ring of buffers: stage and phase |
//! | `query` | Q as operand of `wgmma`, in shared memory or in registers |
//! | `rows` | what rows have between two steps |
//! | `product` | products of a warpgroup with any number of steps |
//! | `two_level` | P V of some steps as a sum of its own |
//! | `score_mod` | softcap and bias in the layout of accumulators |
//! | `epilogue` | O to global memory |
//! | `config` | one configuration as constants |

mod config;
mod consumer;
mod descale;
pub mod e4m3;
mod epilogue;
mod kernel;
mod kv_split;
mod pingpong;
mod pipeline;
mod producer;
mod product;
mod query;
mod rows;
mod scheduler;
mod score_mod;
mod tile;
mod transpose;
mod two_level;
mod warpgroup;

use cuda_std::convert::{Bf16, F16};
use cuda_std::ptx::tma::TensorMap;
use variants::attention::{ATTENTION, AttentionArgs, TileSchedulerArgs, config_index};

use self::producer::Maps;
use self::query::{QueryRegisters, QueryTile};

entry!(d64_wgmma_full_192x128_s4: wgmma QueryTile);
entry!(d64_wgmma_full_256x96_s4: wgmma QueryTile);
entry!(d64_wgmma_full_256x64_s4: wgmma QueryTile);
entry!(d64_wgmma_full_64x128k2_s4: wgmma QueryTile);
entry!(d64_wgmma_full_64x128k2c2_s4: wgmma QueryTile);
entry!(d64_wgmma_full_128x64k2_s8: wgmma QueryTile);
entry!(d64_wgmma_full_128x96k2_s4: wgmma QueryTile);
entry!(d64_wgmma_full_128x128_s4: wgmma QueryTile);
entry!(d64_wgmma_full_64x128_s4: wgmma QueryTile);
entry!(d64_wgmma_masked_256x64_s4: wgmma QueryTile);
entry!(d64_wgmma_masked_192x128_s4: wgmma QueryTile);
entry!(d64_wgmma_masked_128x64_s4: wgmma QueryTile);
entry!(d64_wgmma_masked_64x128k2_s4: wgmma QueryTile);
entry!(d64_wgmma_masked_64x128k2c2_s4: wgmma QueryTile);
entry!(d64_wgmma_masked_64x128_s4: wgmma QueryTile);
entry!(d96_wgmma_full_128x128_s3_q: wgmma QueryRegisters);
entry!(d96_wgmma_full_128x128_s3_q_m2: wgmma QueryRegisters);
entry!(d96_wgmma_masked_128x128_s3_q: wgmma QueryRegisters);
entry!(d128_wgmma_full_128x128_s3_q: wgmma QueryRegisters);
entry!(d128_wgmma_full_128x128_s3_q_m2: wgmma QueryRegisters);
entry!(d128_wgmma_full_64x128_s2: wgmma QueryTile);
entry!(d128_wgmma_masked_128x128_s3_q: wgmma QueryRegisters);
entry!(d128_wgmma_masked_64x128_s2: wgmma QueryTile);
entry!(d192v128_wgmma_full_128x128_s2_q: wgmma QueryRegisters);
entry!(d192v128_wgmma_full_128x128_s2_q_m2: wgmma QueryRegisters);
entry!(d192v128_wgmma_masked_128x128_s2_q: wgmma QueryRegisters);
entry!(d192_wgmma_full_128x96_s2: wgmma QueryTile);
entry!(d192_wgmma_masked_128x96_s2: wgmma QueryTile);
entry!(d192_wgmma_full_128x64_s3_q: wgmma QueryRegisters);
entry!(d192_wgmma_masked_128x64_s3_q: wgmma QueryRegisters);
entry!(d256_wgmma_full_128x80_s2: wgmma QueryTile);
entry!(d256_wgmma_masked_128x80_s2: wgmma QueryTile);
entry!(d256_wgmma_full_128x64_s2: wgmma QueryTile);
entry!(d256_wgmma_masked_128x64_s2: wgmma QueryTile);
entry!(d64_wgmma_masked_192x96_s4_varlen: wgmma QueryTile);
entry!(d128_wgmma_masked_128x128_s3_q_varlen: wgmma QueryRegisters);
entry!(d192v128_wgmma_masked_128x128_s2_varlen: wgmma QueryTile);
entry!(d256_wgmma_masked_128x80_s2_varlen: wgmma QueryTile);
entry!(d64_wgmma_masked_256x64_s4_softcap: wgmma QueryTile);
entry!(d128_wgmma_masked_128x128_s3_q_softcap: wgmma QueryRegisters);
entry!(d256_wgmma_masked_128x80_s2_softcap: wgmma QueryTile);
entry!(d64_wgmma_masked_192x96_s4_general: wgmma QueryTile);
entry!(d128_wgmma_masked_128x128_s2_general: wgmma QueryTile);
entry!(d256_wgmma_masked_128x64_s2_general: wgmma QueryTile);
