//! Steps 4 and 5: a warpgroup of its own starts the copies.
//!
//! ```text
//! producer, one thread                       consumers, two warpgroups
//! for each stage of K                        for each stage of K
//!     wait until the stage is empty              wait until the stage is full
//!     announce the bytes, start the copies       start d += A B^T
//!                                                wait for the product before it, say that its stage is empty
//!                                            c = d
//! ```
//!
//! - The producer runs ahead as far as there are stages, and no barrier of the block is left in the loop.
//! - A consumer has a product in flight at all times: the one before is waited for only when the next has started.
//! - The producer needs few registers. `setmaxnreg` gives what it has to the consumers, which 128x256 tiles need: 128
//!   accumulators a thread.
//! - Every consumer warp arrives for itself, since each knows only that its own part of a product is complete.

use cuda_std::pipeline::PipelineState;
use cuda_std::ptx::tma::{self, TensorMap};
use cuda_std::ptx::wgmma::{self, Accumulator};
use cuda_std::ptx::{fence, mbarrier, setmaxnreg};
use cuda_std::{thread, warp};
use variants::ladder::{CONSUMER_REGISTERS, LADDER, LadderSizes, LadderStep, PRODUCER_REGISTERS, WARPGROUP};

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
    let rounds = sizes.k / step.k;
    let mut state = PipelineState::FIRST;
    // SAFETY: whole warpgroups take each branch; the mbarriers order copies and products as the header says.
    unsafe {
        if thread::thread_idx_x() == 0 {
            for stage in 0..step.stages {
                mbarrier::init(smem.full(stage), 1);
                mbarrier::init(smem.empty(stage), step.consumers * WARPGROUP / 32);
            }
            fence::mbarrier_init();
        }
        // The barriers are initialised.
        thread::sync_threads();
        if thread::thread_idx_x() < WARPGROUP {
            setmaxnreg::decrease::<PRODUCER_REGISTERS>();
            if thread::thread_idx_x() == 0 {
                for round in 0..rounds {
                    let (stage, k) = (state.stage, (round * step.k) as i32);
                    mbarrier::wait_parity(smem.empty(stage), state.parity ^ 1);
                    mbarrier::arrive_expect_tx(smem.full(stage), step.stage_bytes());
                    tma::load(smem.a(stage), a, [k, row as i32], smem.full(stage));
                    tma::load(smem.b(stage), b, [k, column as i32], smem.full(stage));
                    state.advance(step.stages);
                }
            }
        } else {
            setmaxnreg::increase::<CONSUMER_REGISTERS>();
            let consumer = thread::thread_idx_x() / WARPGROUP - 1;
            let first_lane = warp::lane_id() == 0;
            let mut before = state;
            let mut d = [0.0; R];
            for round in 0..rounds {
                mbarrier::wait_parity(smem.full(state.stage), state.parity);
                let (a_tile, b_tile) = smem.operands(state.stage, consumer);
                wgmma::mma_async::<Tiles<ID>, _, K_STEPS>(&mut d, a_tile, b_tile, true);
                wgmma::wait_group::<1, _>(&mut d);
                mbarrier::arrive_if(smem.empty(before.stage), first_lane && round > 0);
                before = state;
                state.advance(step.stages);
            }
            wgmma::wait_group::<0, _>(&mut d);
            write(&d, c, sizes, row + consumer * step.consumer_rows(), column);
        }
    }
}
