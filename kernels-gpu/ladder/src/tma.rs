//! Step 3: TMA copies the tiles, and mbarriers say when they are there.
//!
//! ```text
//! thread 0: start the copies to both stages
//! for each stage of K
//!     wait for the phase of the stage's mbarrier
//!     d += A B^T, wait
//!     barrier of the block
//!     thread 0: start the copies of two stages further to the same place
//! c = d
//! ```
//!
//! - One instruction copies a whole tile, swizzled, without registers or address arithmetic of the threads, while
//!   `wgmma` works on the other stage.
//! - A barrier of the block still stands in each round: thread 0 may not overwrite what the products of other warps
//!   read.

use cuda_std::pipeline::PipelineState;
use cuda_std::ptx::tma::{self, TensorMap};
use cuda_std::ptx::wgmma::{self, Accumulator};
use cuda_std::ptx::{fence, mbarrier};
use cuda_std::thread;
use variants::ladder::{LADDER, LadderSizes, LadderStep, WARPGROUP};

use crate::tile::{Smem, Tiles, write};

/// Computes one tile of C.
///
/// # Safety
/// As for the entry.
#[inline(always)]
pub(crate) unsafe fn product<const ID: usize, const R: usize, const K_STEPS: usize>(
    a: *const TensorMap,
    b: *const TensorMap,
    c: *mut f32,
    sizes: LadderSizes,
) where
    [f32; R]: Accumulator,
{
    let step: LadderStep = const { LADDER[ID] };
    let smem = Smem::<ID>::of_block();
    let (row, column) = step.tile_of(thread::block_idx_x(), sizes);
    let leader = thread::thread_idx_x() == 0;
    let consumer = thread::thread_idx_x() / WARPGROUP;
    let rounds = sizes.k / step.k;
    let mut d = [0.0; R];
    // SAFETY: the block's tile is in C. The leader alone starts copies, to stages that nobody reads any more.
    unsafe {
        let load = |stage: u32, round: u32| {
            let (full, k) = (smem.full(stage), (round * step.k) as i32);
            mbarrier::arrive_expect_tx(full, step.stage_bytes());
            tma::load(smem.a(stage), a, [k, row as i32], full);
            tma::load(smem.b(stage), b, [k, column as i32], full);
        };
        if leader {
            for stage in 0..step.stages {
                mbarrier::init(smem.full(stage), 1);
            }
            fence::mbarrier_init();
            for round in 0..step.stages {
                if round < rounds {
                    load(round, round);
                }
            }
        }
        // The barriers are initialised.
        thread::sync_threads();
        let mut state = PipelineState::FIRST;
        for round in 0..rounds {
            mbarrier::wait_parity(smem.full(state.stage), state.parity);
            let (a_tile, b_tile) = smem.operands(state.stage, consumer);
            wgmma::mma_async::<Tiles<ID>, _, K_STEPS>(&mut d, a_tile, b_tile, true);
            wgmma::wait_group::<0, _>(&mut d);
            // All warps have read the stage.
            thread::sync_threads();
            if leader && round + step.stages < rounds {
                load(state.stage, round + step.stages);
            }
            state.advance(step.stages);
        }
        write(&d, c, sizes, row + consumer * step.consumer_rows(), column);
    }
}
