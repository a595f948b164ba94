//! The entries of the configurations on `wgmma`.

use cuda_std::ptx::tma::TensorMap;
use variants::gemm::{GEMM, GemmArgs, GemmConfig, config_index};

use crate::mainloop_sm90;

/// Declares the f16 and the bf16 kernel of a configuration; with `one` in front, the kernel of a name.
/// `entry!(one gemm_e4m3_wgmma_nt_128x256x128_s3);` becomes
///
/// ```ignore
/// pub mod gemm_e4m3_wgmma_nt_128x256x128_s3 {
///     const ID: usize = config_index("gemm_e4m3_wgmma_nt_128x256x128_s3");
///     #[kernel(name = "gemm_e4m3_wgmma_nt_128x256x128_s3", max_threads = CONFIG.threads(), ..)]
///     pub unsafe fn kernel(a: TensorMap, b: TensorMap, d: TensorMap, args: GemmArgs) {
///         mainloop_sm90::product::<ID, ..>(a, b, d, &args)
///     }
/// }
/// ```
///
/// A name that no configuration has does not compile.
macro_rules! entry {
    (one $name:ident) => {
        /// The kernel of the configuration of this name.
        pub mod $name {
            use super::*;
            entry!(@ [stringify!($name)]);
        }
    };
    ($name:ident) => {
        /// The kernels of the configurations of this name.
        pub mod $name {
            /// The kernel of this element type.
            pub mod f16 {
                use super::super::*;
                entry!(@ [concat!("gemm_f16_", stringify!($name))]);
            }
            /// The kernel of this element type.
            pub mod bf16 {
                use super::super::*;
                entry!(@ [concat!("gemm_bf16_", stringify!($name))]);
            }
        }
    };
    (@ [$($name:tt)+]) => {
        const ID: usize = config_index($($name)+);
        const CONFIG: GemmConfig = GEMM[ID];

        /// GEMM kernel of this configuration.
        ///
        /// # Safety
        /// Block, cluster and dynamic shared memory are the configuration's, the grid is whole clusters; `args`
        /// describes tensors that the configuration takes, and `a` and `b` are maps of its operands with the
        /// configuration's boxes. So is `d` of D where its elements are 16-bit numbers in aligned rows; else it is any
        /// map.
        #[cuda_std::kernel(
            name = $($name)+,
            max_threads = CONFIG.threads(),
            min_blocks = CONFIG.min_blocks,
            cluster = CONFIG.cluster
        )]
        pub unsafe fn kernel(a: TensorMap, b: TensorMap, d: TensorMap, args: GemmArgs) {
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

entry!(wgmma_nn_128x256x64_s3);
entry!(wgmma_nn_128x128x64_s6);
entry!(wgmma_nn_64x128x64_s8);
entry!(wgmma_nn_64x64x64_s12);
entry!(wgmma_nt_128x256x64_s3);
entry!(wgmma_nt_128x128x64_s6);
entry!(wgmma_nt_64x128x64_s8);
entry!(wgmma_nt_64x64x64_s12);
entry!(wgmma_tn_128x256x64_s3);
entry!(wgmma_tn_128x128x64_s6);
entry!(wgmma_tn_64x128x64_s8);
entry!(wgmma_tn_64x64x64_s12);
entry!(wgmma_tt_128x256x64_s3);
entry!(wgmma_tt_128x128x64_s6);
entry!(wgmma_tt_64x128x64_s8);
entry!(wgmma_tt_64x64x64_s12);
entry!(wgmma_nt_128x192x64_s4);
entry!(one gemm_e4m3_wgmma_nt_128x256x128_s3);
entry!(one gemm_e4m3_wgmma_nt_128x128x128_s6_two_level);
entry!(one gemm_e4m3_wgmma_nt_64x128x128_s8_two_level);
entry!(one gemm_e4m3_wgmma_nt_64x64x128_s12_two_level);
entry!(one gemm_e4m3_e5m2_wgmma_nt_128x256x128_s3);
entry!(one gemm_e4m3_e5m2_wgmma_nt_128x128x128_s6_two_level);
entry!(one gemm_e4m3_e5m2_wgmma_nt_64x128x128_s8_two_level);
entry!(one gemm_e4m3_e5m2_wgmma_nt_64x64x128_s12_two_level);
