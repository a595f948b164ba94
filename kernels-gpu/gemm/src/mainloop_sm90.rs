//! The product on `wgmma`: a producer warpgroup copies tiles by TMA, one or two consumer warpgroups multiply them, and
//! a block computes one tile of D after the other.
//!
//! ```text
//! producer, one thread                          consumers, 64 rows of D each
//! for each tile of the block                    for each tile of the block
//!     for each stage of k                           for each stage of k
//!         wait until the stage is empty                 wait until the stage is full
//!         announce its bytes                            start d = A B or d += A B
//!         copy A, and the block's part of B             after the first: start the stores of the tile before
//!           to all blocks of the cluster                wait for the product before it,
//!                                                         tell the cluster that its stage is empty
//!                                                   put d, finished, into the buffers of D
//! ```
//!
//! - Tiles of a cluster lie under each other and need the same columns of B: each block copies a part of them to all.
//! - A product is waited for only when the next one has started, so that the tensor cores always have work. For the
//!   same reason the fence and the barrier before a tile's stores come after the first product of the next tile has
//!   started. And during the last product of a tile the consumer finds the next tile and waits for its buffers.
//! - While the consumers finish a tile, the producer fills the stages of the next one.
//! - Two-level accumulation: the tensor cores sum FP8 products over one stage, 128 elements of k, with fewer bits than
//!   f32. The threads add the sums of stages, while the other consumer multiplies.
//! - Every other tile of a block sums k from its end, where operands are large: what was read last is still in L2.
//! - What is outside A or B arrives as zeros, what is outside D is not stored: the loop knows no edges.
//!
//! Budget, 128x256: 3 stages of 48 KiB and 64 KiB of buffers for D; 128 accumulators of 240 registers.

use cuda_std::pipeline::PipelineState;
use cuda_std::ptx::tma::{self, TensorMap};
use cuda_std::ptx::wgmma::{self, Accumulator, Product};
use cuda_std::ptx::{cluster, fence, mbarrier, setmaxnreg};
use cuda_std::{thread, warp};
use layout::descriptor::{Major, Operand};
use variants::gemm::wgmma::{PRODUCER_REGISTERS, Side, WARPGROUP};
use variants::gemm::{Accumulation, GEMM, GemmArgs, GemmConfig};

use crate::epilogue_sm90::Store;
use crate::smem_sm90::{Smem, Tiles};
use crate::work::{LANES, wait_for_dependencies};
use crate::work_sm90::{BlockTiles, Tile};

/// The coordinates of a box of an operand, innermost first.
#[inline(always)]
fn coordinates(operand: Operand, mn: u32, k: u32, batch: u32) -> [i32; 3] {
    match operand.major() {
        Major::K => [k as i32, mn as i32, batch as i32],
        Major::Mn => [mn as i32, k as i32, batch as i32],
    }
}

/// Computes the tiles of a block.
///
/// # Safety
/// As for the entry.
#[inline(always)]
pub(crate) unsafe fn product<const ID: usize, const R: usize, const K_STEPS: usize, const REGISTERS: u32>(
    a: *const TensorMap,
    b: *const TensorMap,
    d: *const TensorMap,
    args: &GemmArgs,
) where
    [f32; R]: Accumulator,
{
    let config: GemmConfig = const { GEMM[ID] };
    let smem = Smem::<ID>::of_block();
    let rank = if config.cluster > 1 { thread::cluster_rank() } else { 0 };
    // SAFETY: whole warpgroups take each branch; the mbarriers order copies and products as the header says, and a
    // block does not end before the others have arrived at its barriers.
    unsafe {
        if thread::thread_idx_x() == 0 {
            tma::prefetch_tensormap(a);
            tma::prefetch_tensormap(b);
            if !config.warps_store() {
                tma::prefetch_tensormap(d);
            }
        }
        // Not the thread that copies, which finds its first tile meanwhile, and two warps. The instruction takes its
        // address from a uniform register: lanes that had a stage each would take turns.
        if thread::thread_idx_x() == LANES {
            for stage in 0..config.tile.stages as u32 {
                mbarrier::init(smem.full(stage), 1);
            }
            fence::mbarrier_init();
        } else if thread::thread_idx_x() == 2 * LANES {
            for stage in 0..config.tile.stages as u32 {
                mbarrier::init(smem.empty(stage), config.releases());
            }
            fence::mbarrier_init();
        }
        let mut tiles = BlockTiles::<ID>::of_block(args, rank);
        let first = tiles.next();
        // The barriers of all blocks are initialised.
        sync_cluster::<ID>();
        wait_for_dependencies();
        if thread::thread_idx_x() < WARPGROUP {
            if config.moves_registers() {
                setmaxnreg::decrease::<PRODUCER_REGISTERS>();
            }
            if thread::thread_idx_x() == 0 {
                produce(smem, first, tiles, a, b);
            }
        } else {
            if config.moves_registers() {
                setmaxnreg::increase::<REGISTERS>();
            }
            consume::<ID, R, K_STEPS>(smem, first, tiles, d);
            // Shared memory outlives the stores that read it.
            tma::wait_group_read::<0>();
        }
    }
}

/// # Safety
/// All threads of the cluster call it.
#[inline(always)]
unsafe fn sync_cluster<const ID: usize>() {
    // SAFETY: as required of the caller.
    unsafe {
        if const { GEMM[ID].cluster > 1 } {
            cluster::arrive_relaxed();
            cluster::wait();
        } else {
            thread::sync_threads();
        }
    }
}

/// Copies the stages of all tiles.
///
/// # Safety
/// One thread of the block calls it, after the barriers of the cluster are initialised.
#[inline(always)]
unsafe fn produce<const ID: usize>(
    smem: Smem<ID>,
    mut next: Option<Tile>,
    mut tiles: BlockTiles<'_, ID>,
    a: *const TensorMap,
    b: *const TensorMap,
) {
    let config = const { GEMM[ID] };
    let everyone = (1 << config.cluster) - 1;
    let mut state = PipelineState::FIRST;
    while let Some(tile) = next {
        // An operand that all entries share has one.
        let a_batch = if tiles.args.a.batch_stride == 0 { 0 } else { tile.batch };
        let b_batch = if tiles.args.b.batch_stride == 0 { 0 } else { tile.batch };
        for round in 0..tile.rounds {
            let k = tile.first_k + if tile.backwards { tile.rounds - 1 - round } else { round } * config.tile.k as u32;
            let (stage, full) = (state.stage, smem.full(state.stage));
            // SAFETY: the stage is empty in all blocks that the copies go to.
            unsafe {
                mbarrier::wait_parity(smem.empty(stage), state.parity ^ 1);
                mbarrier::arrive_expect_tx(full, config.stage_bytes());
                for i in 0..config.boxes(Side::A) {
                    let to = smem.region("a", stage).offset(i * config.box_bytes(Side::A));
                    let mn = tile.first_row + i * config.box_mn(Side::A);
                    tma::load(to, a, coordinates(Tiles::<ID>::A, mn, k, a_batch), full);
                }
                for i in 0..config.boxes(Side::B) {
                    let i = tiles.rank * config.boxes(Side::B) + i;
                    let to = smem.region("b", stage).offset(i * config.box_bytes(Side::B));
                    let mn = tile.first_column + i * config.box_mn(Side::B);
                    let at = coordinates(Tiles::<ID>::B, mn, k, b_batch);
                    if config.cluster > 1 {
                        tma::load_multicast(to, b, at, full, everyone);
                    } else {
                        tma::load(to, b, at, full);
                    }
                }
            }
            state.advance(config.tile.stages as u32);
        }
        next = tiles.next();
    }
    // The barriers outlive the arrivals of the other blocks.
    if config.cluster > 1 {
        for _ in 0..config.tile.stages {
            // SAFETY: the barrier is initialised; consumers empty what was filled.
            unsafe { mbarrier::wait_parity(smem.empty(state.stage), state.parity ^ 1) };
            state.advance(config.tile.stages as u32);
        }
    }
}

/// Multiplies and stores the rows of one consumer of all tiles.
///
/// # Safety
/// A consumer warpgroup calls it.
#[inline(always)]
unsafe fn consume<const ID: usize, const R: usize, const K_STEPS: usize>(
    smem: Smem<ID>,
    mut next: Option<Tile>,
    mut tiles: BlockTiles<'_, ID>,
    d_map: *const TensorMap,
) where
    [f32; R]: Accumulator,
{
    let config = const { GEMM[ID] };
    // The same in all lanes, as the compiler sees by the shuffle: what depends on it is computed once for the warp.
    // SAFETY: whole warps call it.
    let (warpgroup, _) = unsafe { warp::warp_shuffle_idx(warp::FULL_MASK, thread::thread_idx_x() / WARPGROUP, 0, 32) };
    let consumer = warpgroup - 1;
    let lane = warp::lane_id();
    // Lane i of each warp arrives at block i.
    // SAFETY: the stage has been filled, and this warp's arrival is the one that is missing.
    let release = |stage| unsafe {
        if config.cluster > 1 {
            mbarrier::arrive_cluster_if(smem.empty(stage), lane % config.cluster, lane < config.cluster);
        } else {
            mbarrier::arrive_if(smem.empty(stage), lane == 0);
        }
    };
    // SAFETY: as for the entry.
    let store = unsafe { Store::new(tiles.args, smem, d_map, consumer) };
    let mut state = PipelineState::FIRST;
    // Outside of the loop: the first product of a tile overwrites it. Registers that anything else writes between two
    // products make ptxas wait for each of them.
    let mut d = [0.0; R];
    // The tile that is in the buffers.
    let mut put: Option<Tile> = None;
    while let Some(tile) = next {
        // SAFETY: the stages are full when they are multiplied and not released before; the buffers are free when they
        // are written, and whole when they are stored.
        unsafe {
            if let Accumulation::TwoLevel = config.accumulation {
                let mut part = [0.0; R];
                d = [0.0; R];
                for round in 0..tile.rounds {
                    mbarrier::wait_parity(smem.full(state.stage), state.parity);
                    let (a, b) = smem.operands(state.stage, consumer);
                    wgmma::mma_async::<Tiles<ID>, _, K_STEPS>(&mut part, a, b, false);
                    if round == 0
                        && let Some(tile) = put
                    {
                        store.end(tile);
                    }
                    wgmma::wait_group::<0, _>(&mut part);
                    release(state.stage);
                    state.advance(config.tile.stages as u32);
                    for i in 0..R {
                        d[i] += part[i];
                    }
                }
                next = tiles.next();
                store.begin();
            } else {
                let multiply = |d: &mut [f32; R], state: PipelineState, adds: bool| {
                    mbarrier::wait_parity(smem.full(state.stage), state.parity);
                    // As above: descriptors are computed once for the warp, and power is what limits long sums.
                    let (stage, _) = warp::warp_shuffle_idx(warp::FULL_MASK, state.stage, 0, 32);
                    let (a, b) = smem.operands(stage, consumer);
                    wgmma::mma_async::<Tiles<ID>, _, K_STEPS>(d, a, b, adds);
                };
                multiply(&mut d, state, false);
                if let Some(tile) = put {
                    store.end(tile);
                }
                let mut before = state;
                for _ in 1..tile.rounds {
                    state.advance(config.tile.stages as u32);
                    multiply(&mut d, state, true);
                    wgmma::wait_group::<1, _>(&mut d);
                    release(before.stage);
                    before = state;
                }
                state.advance(config.tile.stages as u32);
                next = tiles.next();
                store.begin();
                wgmma::wait_group::<0, _>(&mut d);
                release(before.stage);
            }
            store.put(&d, tile);
        }
        put = Some(tile);
    }
    if let Some(tile) = put {
        // SAFETY: the tile is in the buffers.
        unsafe { store.end(tile) };
    }
}
