//! The kernels for inputs of E4M3, with an O of f16 and of bf16.

use cuda_std::convert::{Bf16, F16};
use cuda_std::ptx::tma::TensorMap;
use variants::attention::{ATTENTION, AttentionArgs, DescaleArgs, TileSchedulerArgs, config_index};

use crate::input::E4m3To;
use crate::sm90::producer::Maps;
use crate::sm90::query::{QueryRegisters, QueryTile};
use crate::sm90::{config, kernel};

type E4m3ToF16 = E4m3To<F16>;
type E4m3ToBf16 = E4m3To<Bf16>;

entry!(e4m3 d64_wgmma_full_128x224_s3: wgmma QueryTile);
entry!(e4m3 d64_wgmma_masked_128x192_s3: wgmma QueryTile);
entry!(e4m3 d96_wgmma_full_128x128_s3: wgmma QueryTile);
entry!(e4m3 d96_wgmma_masked_128x128_s3_q: wgmma QueryRegisters);
entry!(e4m3 d128_wgmma_full_128x128_s3: wgmma QueryTile);
entry!(e4m3 d128_wgmma_masked_128x128_s3_q: wgmma QueryRegisters);
entry!(e4m3 d192v128_wgmma_masked_128x128_s3: wgmma QueryTile);
entry!(e4m3 d192_wgmma_masked_128x128_s2: wgmma QueryTile);
entry!(e4m3 d256_wgmma_masked_128x96_s2: wgmma QueryTile);
entry!(e4m3 d64_wgmma_full_192x128_s4_direct: wgmma QueryTile);
entry!(e4m3 d64_wgmma_masked_128x256_s3_direct: wgmma QueryTile);
entry!(e4m3 d128_wgmma_full_128x128_s3_direct: wgmma QueryTile);
entry!(e4m3 d128_wgmma_masked_128x192_s2_direct: wgmma QueryTile);
entry!(e4m3 d256_wgmma_masked_128x96_s2_direct: wgmma QueryTile);
entry!(e4m3 d64_wgmma_masked_128x192_s3_varlen: wgmma QueryTile);
entry!(e4m3 d128_wgmma_masked_128x128_s3_q_varlen: wgmma QueryRegisters);
entry!(e4m3 d256_wgmma_masked_128x96_s2_varlen: wgmma QueryTile);
entry!(e4m3 d64_wgmma_masked_128x192_s3_softcap: wgmma QueryTile);
entry!(e4m3 d128_wgmma_masked_128x128_s3_q_softcap: wgmma QueryRegisters);
entry!(e4m3 d256_wgmma_masked_128x64_s3_softcap: wgmma QueryTile);
entry!(e4m3 d64_wgmma_masked_128x128_s3_general: wgmma QueryTile);
entry!(e4m3 d128_wgmma_masked_128x128_s2_general: wgmma QueryTile);
entry!(e4m3 d256_wgmma_masked_128x64_s3_general: wgmma QueryTile);
