//! The entries of the rows on `wgmma`.

use cuda_std::kernel;
use cuda_std::ptx::tma::TensorMap;
use layout::gemm::{GEMM, GemmArgs, GemmVariant, row_index};

use crate::mainloop_sm90;

/// Declares the entry of one row. `entry!(NAME);` becomes
///
/// ```ignore
/// #[kernel(max_threads = ROW.threads(), min_blocks = ROW.min_blocks, cluster = ROW.cluster)]
/// pub unsafe fn NAME(a: TensorMap, b: TensorMap, d: TensorMap, args: GemmArgs) {
///     mainloop_sm90::product::<{ row_index("NAME") }, ..>(a, b, d, &args)
/// }
/// ```
///
/// A name that no row has does not compile.
#[rustfmt::skip]
macro_rules! entry {
    ($name:ident) => {
        /// GEMM kernel of the row of this name.
        ///
        /// # Safety
        /// Block, cluster and dynamic shared memory are the row's, the grid is whole clusters; `args` describes tensors
        /// that the row takes, and `a` and `b` are maps of its operands with the row's boxes. So is `d` of D where its
        /// elements are 16-bit numbers in aligned rows; else it is any map.
        #[kernel(
            max_threads = GEMM[row_index(stringify!($name))].threads(),
            min_blocks = GEMM[row_index(stringify!($name))].min_blocks,
            cluster = GEMM[row_index(stringify!($name))].cluster
        )]
        pub unsafe fn $name(a: TensorMap, b: TensorMap, d: TensorMap, args: GemmArgs) {
            const ROW: usize = row_index(stringify!($name));
            const VARIANT: GemmVariant = GEMM[ROW];
            // SAFETY: the caller's contract is the body's.
            unsafe {
                mainloop_sm90::product::<
                    ROW,
                    { VARIANT.accumulators() },
                    { VARIANT.k_steps() },
                    { VARIANT.consumer_registers() },
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
