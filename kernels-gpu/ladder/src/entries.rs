//! The entry points.

use cuda_std::kernel;
use cuda_std::ptx::tma::TensorMap;
use variants::ladder::{LADDER, LadderSizes, LadderStep, step_index};

use crate::{persistent, specialised, threads, tma};

/// Declares the entry of one step. `entry!(NAME: tma::product(a: TensorMap, b: TensorMap, c: *mut f32));` becomes
///
/// ```ignore
/// #[kernel(max_threads = STEP.threads(), min_blocks = 1, cluster = STEP.cluster)]
/// pub unsafe fn NAME(a: TensorMap, b: TensorMap, c: *mut f32, sizes: LadderSizes) {
///     tma::product::<{ step_index("NAME") }, ACCUMULATORS, K_STEPS>(a, b, c, sizes)
/// }
/// ```
macro_rules! entry {
    ($name:ident: $($body:ident)::+($($argument:ident: $type:ty),+)) => {
        /// The step of this name.
        ///
        /// # Safety
        /// Grid, block, cluster and dynamic shared memory are the step's, and the step takes `sizes`. The other
        /// parameters are matrices of these sizes, or tensor maps of such matrices with boxes of the step's tiles.
        #[kernel(
            max_threads = LADDER[step_index(stringify!($name))].threads(),
            min_blocks = 1,
            cluster = LADDER[step_index(stringify!($name))].cluster
        )]
        pub unsafe fn $name($($argument: $type,)+ sizes: LadderSizes) {
            const STEP: LadderStep = LADDER[step_index(stringify!($name))];
            // SAFETY: the caller's contract is the body's.
            unsafe {
                $($body)::+::<
                    { step_index(stringify!($name)) },
                    { STEP.accumulators() },
                    { STEP.k_steps() as usize },
                >($($argument,)+ sizes)
            }
        }
    };
}

entry!(ladder1_wgmma_64x64x16_s1: threads::single(a: *const u16, b: *const u16, c: *mut f32));
entry!(ladder2_loop_64x64x64_s1: threads::product(a: *const u16, b: *const u16, c: *mut f32));
entry!(ladder3_tma_64x128x64_s2: tma::product(a: TensorMap, b: TensorMap, c: *mut f32));
entry!(ladder4_producer_128x128x64_s4: specialised::product(a: TensorMap, b: TensorMap, c: *mut f32));
entry!(ladder5_wide_128x256x64_s4: specialised::product(a: TensorMap, b: TensorMap, c: *mut f32));
entry!(ladder6_cluster_128x256x64_s4: persistent::product(a: TensorMap, b: TensorMap, c: TensorMap));
