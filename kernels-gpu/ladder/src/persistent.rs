//! Step 6: clusters of two blocks compute one pair of tiles after the other.
//!
//! ```text
//! producer, one thread of each block         consumers, two warpgroups of each block
//! for each pair of tiles of the cluster      for each pair of tiles of the cluster
//!     for each stage of K                        for each stage of K
//!         wait until the stage is empty              wait until the stage is full
//!           in both blocks                           start d += A B^T, wait for the product before it,
//!         copy the rows of A,                          tell both blocks that its stage is empty
//!         copy half of B to both blocks          for each 32 columns of d
//!                                                    wait until the buffer's last store has read it
//!                                                    write them to the buffer, start a TMA store
//! ```
//!
//! - The two tiles lie under each other and need the same columns of B: each block loads half of them for both, so that
//!   a tile costs a third less traffic from L2.
//! - A stage is full when the copies of both blocks have arrived, and may be overwritten when the consumers of both
//!   have read it.
//! - The producer goes on to the next tiles while the consumers write: the stages are full when they come back.
//! - A block takes every so many-eth pair. Those that run at a time lie in a square and find their operands in L2.
//! - TMA writes whole rows of 128 bytes, and what waits for memory is the unit instead of the threads.

use cuda_std::hint::opaque;
use cuda_std::pipeline::PipelineState;
use cuda_std::ptx::tma::{self, TensorMap};
use cuda_std::ptx::wgmma::{self, Accumulator};
use cuda_std::ptx::{barrier, cluster, fence, mbarrier, setmaxnreg};
use cuda_std::shared::SharedAddr;
use cuda_std::{thread, warp};
use layout::Swizzle;
use layout::fragment::wgmma_d;
use variants::ladder::{
    CONSUMER_REGISTERS, LADDER, LadderSizes, LadderStep, PRODUCER_REGISTERS, STORE_BUFFERS, STORE_COLUMNS, WARPGROUP,
    WGMMA_ROWS, rasterize,
};

use crate::tile::{Smem, Tiles};

/// Computes the tiles of a cluster.
///
/// # Safety
/// As for the entry.
#[inline(always)]
pub(crate) unsafe fn product<const ID: usize, const R: usize, const K_STEPS: usize>(
    a: *const TensorMap,
    b: *const TensorMap,
    c: *const TensorMap,
    sizes: LadderSizes,
) where
    [f32; R]: Accumulator,
{
    let step: LadderStep = const { LADDER[ID] };
    let smem = Smem::<ID>::of_block();
    let rank = thread::cluster_rank();
    let (cluster_rows, columns) = (sizes.m / (step.m * step.cluster), sizes.n / step.n);
    let (first, clusters) = (thread::block_idx_x() / step.cluster, thread::grid_dim_x() / step.cluster);
    let tile_of = |index: u32| {
        let (row, column) = rasterize(index, cluster_rows, columns);
        ((row * step.cluster + rank) * step.m, column * step.n)
    };
    let rounds = sizes.k / step.k;
    let mut state = PipelineState::FIRST;
    // SAFETY: whole warpgroups take each branch; the mbarriers order copies and products as the header says, and no
    // block leaves the cluster before the last one has finished.
    unsafe {
        if thread::thread_idx_x() == 0 {
            for stage in 0..step.stages {
                mbarrier::init(smem.full(stage), 1);
                mbarrier::init(smem.empty(stage), step.cluster * step.consumers * WARPGROUP / 32);
            }
            fence::mbarrier_init();
        }
        // The barriers of both blocks are initialised.
        cluster::sync();
        if thread::thread_idx_x() < WARPGROUP {
            setmaxnreg::decrease::<PRODUCER_REGISTERS>();
            if thread::thread_idx_x() == 0 {
                let half = rank * step.b_rows_loaded();
                let half_bytes = step.b().mn_offset_bytes(step.b_rows_loaded());
                let everyone = (1 << step.cluster) - 1;
                let mut index = first;
                while index < cluster_rows * columns {
                    let (row, column) = tile_of(index);
                    for round in 0..rounds {
                        let (stage, k) = (state.stage, (round * step.k) as i32);
                        let (full, b_half) = (smem.full(stage), smem.b(stage).offset(rank * half_bytes));
                        mbarrier::wait_parity(smem.empty(stage), state.parity ^ 1);
                        mbarrier::arrive_expect_tx(full, step.stage_bytes());
                        tma::load(smem.a(stage), a, [k, row as i32], full);
                        tma::load_multicast(b_half, b, [k, (column + half) as i32], full, everyone);
                        state.advance(step.stages);
                    }
                    index += clusters;
                }
            }
        } else {
            setmaxnreg::increase::<CONSUMER_REGISTERS>();
            let consumer = thread::thread_idx_x() / WARPGROUP - 1;
            // Lane i of a warp arrives at block i.
            let lane = warp::lane_id();
            let release = |stage, arrives| {
                mbarrier::arrive_cluster_if(smem.empty(stage), lane % step.cluster, lane < step.cluster && arrives);
            };
            // Outside of the loop: the first product of a tile overwrites it. Registers that anything else writes
            // between two products make ptxas wait for each of them.
            let mut d = [0.0; R];
            let mut index = first;
            while index < cluster_rows * columns {
                let (row, column) = tile_of(index);
                let mut before = state;
                for round in 0..rounds {
                    mbarrier::wait_parity(smem.full(state.stage), state.parity);
                    let (a_tile, b_tile) = smem.operands(state.stage, consumer);
                    wgmma::mma_async::<Tiles<ID>, _, K_STEPS>(&mut d, a_tile, b_tile, round > 0);
                    wgmma::wait_group::<1, _>(&mut d);
                    release(before.stage, round > 0);
                    before = state;
                    state.advance(step.stages);
                }
                wgmma::wait_group::<0, _>(&mut d);
                release(before.stage, true);
                store(&d, smem, c, consumer, row + consumer * step.consumer_rows(), column);
                index += clusters;
            }
            // Shared memory outlives the stores that read it.
            tma::wait_group::<0>();
        }
        cluster::sync();
    }
}

/// Writes the accumulators of a consumer, whose first element of C is at (`row`, `column`), by TMA.
///
/// # Safety
/// The consumer's warpgroup calls it; its first thread alone starts stores.
#[inline(always)]
unsafe fn store<const ID: usize, const R: usize>(
    d: &[f32; R],
    smem: Smem<ID>,
    c: *const TensorMap,
    consumer: u32,
    row: u32,
    column: u32,
) {
    // Opaque: the places of a thread are computed here, and not held in registers through the loop over K.
    let thread = opaque(thread::thread_idx_x()) % WARPGROUP;
    let per_box = STORE_COLUMNS / 8;
    // Barrier 0 is that of the block.
    let barrier = 1 + consumer;
    for part in 0..R as u32 / (4 * per_box) {
        let buffer = smem.c(consumer * STORE_BUFFERS + part % STORE_BUFFERS);
        // SAFETY: the barriers of the warpgroup stand between the uses of a buffer, and the fence before what TMA
        // reads.
        unsafe {
            if thread == 0 {
                tma::wait_group_read::<{ STORE_BUFFERS - 1 }>();
            }
            // The buffer may be written again.
            barrier::sync_numbered::<WARPGROUP>(barrier);
            for register in 0..4 * per_box {
                if register % 2 == 0 {
                    let (in_row, in_column) = wgmma_d(thread, register);
                    let at = Swizzle::B128.tile_offset(in_row, in_column * size_of::<f32>() as u32, WGMMA_ROWS);
                    let first = (part * 4 * per_box + register) as usize;
                    SharedAddr::store(buffer.offset(at), [d[first].to_bits(), d[first + 1].to_bits()]);
                }
            }
            fence::proxy_async_shared();
            // The buffer is complete.
            barrier::sync_numbered::<WARPGROUP>(barrier);
            if thread == 0 {
                tma::store(c, [(column + part * STORE_COLUMNS) as i32, row as i32], buffer);
                tma::commit_group();
            }
        }
    }
}
