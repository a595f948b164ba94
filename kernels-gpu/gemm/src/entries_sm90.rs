//! The entries of the configurations on `wgmma`.

use cuda_std::kernel;
use cuda_std::ptx::tma::TensorMap;
use variants::gemm::{GEMM, GemmArgs, GemmConfig, config_index};

use crate::mainloop_sm90;

/// Declares the entry of one configuration. `entry!(NAME);` becomes
///
/// ```ignore
/// #[kernel(max_threads = ID.threads(), min_blocks = ID.min_blocks, cluster = CONFIG.cluster)]
/// pub unsafe fn NAME(a: TensorMap, b: TensorMap, d: TensorMap, args: GemmArgs) {
///     mainloop_sm90::product::<{ config_index("NAME") }, ..>(a, b, d, &args)
/// }
/// ```
///
/// A name that no configuration has does not compile.
#[rustfmt::skip]
macro_rules! entry {
    ($name:ident) => {
        /// GEMM kernel of the configuration of this name.
        ///
        /// # Safety
        /// Block, cluster and dynamic shared memory are the configuration's, the grid is whole clusters; `args`
        /// describes tensors that the configuration takes, and `a` and `b` are maps of its operands with the
        /// configuration's boxes. So is `d` of D where its elements are 16-bit numbers in aligned rows; else it is any
        /// map.
        #[kernel(
            max_threads = GEMM[config_index(stringify!($name))].threads(),
            min_blocks = GEMM[config_index(stringify!($name))].min_blocks,
            cluster = GEMM[config_index(stringify!($name))].cluster
        )]
        pub unsafe fn $name(a: TensorMap, b: TensorMap, d: TensorMap, args: GemmArgs) {
            const ID: usize = config_index(stringify!($name));
            const CONFIG: GemmConfig = GEMM[ID];
            // SAFETY: the caller's contract is the body's.
            unsafe {
                mainloop_sm90::product::<
                    ID,
                    { CONFIG.accumulators() },
                    { CONFIG.k_steps() },
                    { CONFIG.consumer_registers() },
                >(a, b, d, &args)
            }
        }
    };
}

entry!(gemm_f16_wgmma_nn_128x256x64_s3);
entry!(gemm_f16_wgmma_nn_128x128x64_s6);
entry!(gemm_f16_wgmma_nn_64x128x64_s8);
entry!(gemm_f16_wgmma_nn_64x64x64_s12);
entry!(gemm_f16_wgmma_nt_128x256x64_s3);
entry!(gemm_f16_wgmma_nt_128x128x64_s6);
entry!(gemm_f16_wgmma_nt_64x128x64_s8);
entry!(gemm_f16_wgmma_nt_64x64x64_s12);
entry!(gemm_f16_wgmma_tn_128x256x64_s3);
entry!(gemm_f16_wgmma_tn_128x128x64_s6);
entry!(gemm_f16_wgmma_tn_64x128x64_s8);
entry!(gemm_f16_wgmma_tn_64x64x64_s12);
entry!(gemm_f16_wgmma_tt_128x256x64_s3);
entry!(gemm_f16_wgmma_tt_128x128x64_s6);
entry!(gemm_f16_wgmma_tt_64x128x64_s8);
entry!(gemm_f16_wgmma_tt_64x64x64_s12);
entry!(gemm_f16_wgmma_nt_128x192x64_s4);
entry!(gemm_bf16_wgmma_nn_128x256x64_s3);
entry!(gemm_bf16_wgmma_nn_128x128x64_s6);
entry!(gemm_bf16_wgmma_nn_64x128x64_s8);
entry!(gemm_bf16_wgmma_nn_64x64x64_s12);
entry!(gemm_bf16_wgmma_nt_128x256x64_s3);
entry!(gemm_bf16_wgmma_nt_128x128x64_s6);
entry!(gemm_bf16_wgmma_nt_64x128x64_s8);
entry!(gemm_bf16_wgmma_nt_64x64x64_s12);
entry!(gemm_bf16_wgmma_tn_128x256x64_s3);
entry!(gemm_bf16_wgmma_tn_128x128x64_s6);
entry!(gemm_bf16_wgmma_tn_64x128x64_s8);
entry!(gemm_bf16_wgmma_tn_64x64x64_s12);
entry!(gemm_bf16_wgmma_tt_128x256x64_s3);
entry!(gemm_bf16_wgmma_tt_128x128x64_s6);
entry!(gemm_bf16_wgmma_tt_64x128x64_s8);
entry!(gemm_bf16_wgmma_tt_64x64x64_s12);
entry!(gemm_bf16_wgmma_nt_128x192x64_s4);
entry!(gemm_e4m3_wgmma_nt_128x256x128_s3);
entry!(gemm_e4m3_wgmma_nt_128x128x128_s6_two_level);
entry!(gemm_e4m3_wgmma_nt_64x128x128_s8_two_level);
entry!(gemm_e4m3_wgmma_nt_64x64x128_s12_two_level);
entry!(gemm_e4m3_e5m2_wgmma_nt_128x256x128_s3);
entry!(gemm_e4m3_e5m2_wgmma_nt_128x128x128_s6_two_level);
entry!(gemm_e4m3_e5m2_wgmma_nt_64x128x128_s8_two_level);
entry!(gemm_e4m3_e5m2_wgmma_nt_64x64x128_s12_two_level);
