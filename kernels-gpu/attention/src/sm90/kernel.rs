//! FlashAttention forward on `wgmma` with tiles by TMA, for sm_90a.
//!
//! ```text
//! producer (one thread)                      consumers (warpgroups of 64 query rows)
//! for each tile of this block:               for each tile of this block:
//!     K of the last step, Q                      S = Q K^T of the last step; mask, softmax, P
//!     for each step, from the last:              for each step before it:
//!         K of the step before, V                    start S = Q K^T
//!                                                    O = factor O where a maximum grew
//!                                                    start O = O + P V of the step after it
//!                                                    S is there: mask, softmax
//!                                                    O is there: P
//!                                                O = factor O + P V of the first step; O / l -> global memory
//! ```
//!
//! 1. **Persistent blocks.** While consumers finish a tile, the producer fills the buffers for the next tile: K and V,
//!    and Q too where Q has two buffers or goes on to registers. The producer takes tiles from a semaphore of the
//!    launch (`scheduler.rs`).
//! 2. **From the last key to the first.** The step with keys beyond the end, and the diagonal of a causal mask, come
//!    first. The steps after them are free of masks.
//! 3. **Two products in flight.** Q K^T of a step and P V of the step after it start together. The softmax of the step
//!    needs S alone, so P V runs beside this softmax, and beside the softmax of other warpgroups.
//! 4. **Skipped steps, split-KV.** A warpgroup skips the steps that only rows of other warpgroups see. Where tiles are
//!    few, warpgroups of a block or a cluster share rows and divide the steps (`kv_split.rs`); a cluster then computes
//!    one tile.
//! 5. **Multicast.** Blocks of a cluster that copy K and V for each other (`multicast_ctas`) compute tiles of the same
//!    keys, step by step. A buffer is filled when the consumers of all these blocks have left it. Half of the reads of
//!    L2 are spared, and power with them.
//! 6. **Where the waits stand.** `ptxas` moves a `wgmma.wait_group` up over arithmetic, in front of the exponentials
//!    that the product is meant to overlap, but not out of its basic block. So the wait for O stands behind the wait
//!    for V, which is a loop; the operand of that loop depends on the last exponential before it
//!    ([`crate::softmax::RowState::zero`]). The release of K stands in front of the wait for the next K for the same
//!    reason.
//! 7. **Scaling O.** Warps with a row whose maximum grew scale O while the tensor cores compute S. Two kinds of
//!    configurations leave half of the exponentials for behind the wait for O ([`crate::sm90::config::PvOverlap`]):
//!    - Where warpgroups share rows, or a block has four of them. O is scaled in every step and P rounded there too,
//!      beside these exponentials, whose unit is slow.
//!    - Where Q is in registers. The row sums stand there too: between exponentials, where `ptxas` places them, each
//!      sum would wait for the exponential before the last, and the next exponential for the sum.
//! 8. **Ping-pong.** Four warpgroups have no registers for P of a step of 96 keys beside S of the next step. There P V
//!    ends before Q K^T starts. Meanwhile the tensor cores have the work of the other warpgroups, which come one after
//!    the other (`pingpong.rs`).
//! 9. **E4M3.** `transpose.rs` says how the other warps of the producer transpose V. P is multiplied by 2^8, which the
//!    end of a row undoes. P V of a few steps can be a sum of its own ([`Config::TWO_LEVEL`]), because the tensor cores
//!    add E4M3 with 13 bits: O is then scaled, and the sum added to it, behind the wait for its last step, beside
//!    exponentials (`two_level.rs`).
//!
//! `docs/measurements` has what else was tried for each of these.
//!
//! Budget: the registers of [`variants::attention::CONSUMER_REGISTERS`], for S, P and O of a step. Shared memory is the
//! configuration's [`variants::attention::AttentionConfig::smem`] map.

use cuda_std::convert::Element16;
use cuda_std::ptx::tma;
use cuda_std::ptx::wgmma::Accumulator;
use cuda_std::ptx::{cluster, fence, griddepcontrol, mbarrier, setmaxnreg};
use cuda_std::shared::{self, SharedAddr};
use cuda_std::thread;
use cuda_std::warp::{FULL_MASK, elect, warp_shuffle_idx};
use layout::SmemRegion;
use variants::attention::{
    ATTENTION, AttentionArgs, CONSUMER_REGISTERS, DescaleArgs, PRODUCER_REGISTERS, Seqlens, TRANSPOSING_WARPS,
    TileSchedulerArgs, WARPGROUP_THREADS, WIDE_PRODUCER_CONSUMER_REGISTERS, WIDE_PRODUCER_REGISTERS,
};

use crate::input::Input;
use crate::lane::{LANES, warp};
use crate::sm90::config::Config;
use crate::sm90::consumer::consume;
use crate::sm90::kv_split;
use crate::sm90::producer::{Maps, produce};
use crate::sm90::query::Query;
use crate::sm90::scheduler::{TileScheduler, WorkTile};
use crate::sm90::transpose::transpose;

/// # Safety
/// The launch is that of configuration `ID`, persistent with any number of blocks; the const parameters are what
/// `config` says of it; `args`, `tiles` and `maps` describe the tensors.
#[inline(always)]
pub(crate) unsafe fn forward<
    E,
    Q,
    const ID: usize,
    const STAGES: u32,
    const SCORES: usize,
    const OUTPUTS: usize,
    const KEY_STEPS: usize,
    const PARTS: usize,
>(
    args: &AttentionArgs,
    tiles: &TileSchedulerArgs,
    maps: Maps,
    descales: Option<&DescaleArgs>,
) where
    E: Input,
    Q: Query,
    [f32; SCORES]: Accumulator,
    [f32; OUTPUTS]: Accumulator,
    [f32; PARTS]: Accumulator,
{
    const {
        let types = E::DTYPE as u8 == ATTENTION[ID].dtype as u8
            && <E::Output as Element16>::DTYPE as u8 == ATTENTION[ID].out as u8;
        assert!(types, "the configuration has other element types");
        assert!(Q::SOURCE as u8 == Config::<ID>::TILE.query as u8, "the configuration has Q elsewhere");
        let all_steps =
            !Config::<ID>::MASKED && Config::<ID>::SPLIT_KV_CTAS == 1 && Config::<ID>::SPLIT_KV_WARPGROUPS <= 2;
        assert!(
            all_steps || !Config::<ID>::PV_OVERLAP.pingpong(),
            "the steps of warpgroups in ping-pong differ by one at most"
        );
        assert!(matches!(Config::<ID>::SEQLENS, Seqlens::Fixed) || Config::<ID>::SPLIT_KV_CTAS == 1);
    }
    let base = shared::dynamic();
    // SAFETY: the whole block is here; roles are by warpgroup, and their registers add up to those of the launch.
    unsafe {
        let warpgroup = warp_shuffle_idx(FULL_MASK, thread::thread_idx_x() / WARPGROUP_THREADS, 0, LANES).0;
        // A cluster computes one tile, which takes little time: the producer, in the second warp, finds it while the
        // first warp initialises the barriers.
        let early = const { Config::<ID>::SPLIT_KV_CTAS > 1 };
        let mut first = WorkTile::none(args);
        if early && is_warp(1) && elect() {
            let mut scheduler = TileScheduler::START;
            first = scheduler.next_work::<ID>(args, tiles);
        }
        if thread::thread_idx_x() == 0 {
            tma::prefetch_tensormap(maps.q);
            tma::prefetch_tensormap(maps.k);
            tma::prefetch_tensormap(maps.v);
            initialise_barriers::<ID, OUTPUTS>(base);
        }
        // The barriers are initialised, in all blocks that copy to each other.
        if const { Config::<ID>::MULTICAST_CTAS > 1 } {
            cluster::arrive_relaxed();
            cluster::wait();
        } else {
            thread::sync_threads();
        }
        if const { Config::<ID>::SPLIT_KV_CTAS > 1 } {
            // The barriers are initialised in all blocks that share a tile, too: these blocks wait for that when they
            // have partial results for each other.
            cluster::arrive_relaxed();
        }
        // The next kernel of the stream waits for the end of this one before it touches a tensor.
        griddepcontrol::launch_dependents();
        if warpgroup == 0 {
            match const { (Config::<ID>::TILE.consumers(), Config::<ID>::WIDE_PRODUCER) } {
                (2, false) => setmaxnreg::decrease::<{ PRODUCER_REGISTERS[2] }>(),
                (3, false) => setmaxnreg::decrease::<{ PRODUCER_REGISTERS[3] }>(),
                (4, false) => setmaxnreg::decrease::<{ PRODUCER_REGISTERS[4] }>(),
                (2, true) => setmaxnreg::decrease::<{ WIDE_PRODUCER_REGISTERS[2] }>(),
                (3, true) => setmaxnreg::decrease::<{ WIDE_PRODUCER_REGISTERS[3] }>(),
                (4, true) => setmaxnreg::decrease::<{ WIDE_PRODUCER_REGISTERS[4] }>(),
                _ => {}
            }
            if is_warp(early as u32) && elect() {
                produce::<ID, STAGES>(args, tiles, maps, descales, base, first);
            }
            if const { Config::<ID>::TRANSPOSES_VALUES } {
                let warp = warp_shuffle_idx(FULL_MASK, warp(), 0, LANES).0;
                if warp > 0 {
                    transpose::<ID, STAGES>(args, base, warp - 1);
                }
            }
        } else {
            match const { (Config::<ID>::TILE.consumers(), Config::<ID>::WIDE_PRODUCER) } {
                (2, false) => setmaxnreg::increase::<{ CONSUMER_REGISTERS[2] }>(),
                (3, false) => setmaxnreg::increase::<{ CONSUMER_REGISTERS[3] }>(),
                (4, false) => setmaxnreg::increase::<{ CONSUMER_REGISTERS[4] }>(),
                (2, true) => setmaxnreg::increase::<{ WIDE_PRODUCER_CONSUMER_REGISTERS[2] }>(),
                (3, true) => setmaxnreg::increase::<{ WIDE_PRODUCER_CONSUMER_REGISTERS[3] }>(),
                (4, true) => setmaxnreg::increase::<{ WIDE_PRODUCER_CONSUMER_REGISTERS[4] }>(),
                _ => {}
            }
            consume::<E, Q, ID, STAGES, SCORES, OUTPUTS, KEY_STEPS, PARTS>(args, descales, base, warpgroup - 1);
        }
    }
}

/// Whether this is the warp of this number in its block, the same to the eyes of `ptxas` in all lanes.
///
/// # Safety
/// All lanes of the warp call it together.
#[inline(always)]
unsafe fn is_warp(number: u32) -> bool {
    // SAFETY: the caller's contract.
    unsafe { warp_shuffle_idx(FULL_MASK, warp(), 0, LANES).0 == number }
}

/// A buffer is full after one arrival and its bytes, and empty after one arrival of each consumer warp that reads it.
///
/// # Safety
/// One thread calls it, before anything uses the barriers.
#[inline(always)]
unsafe fn initialise_barriers<const ID: usize, const OUTPUTS: usize>(base: SharedAddr) {
    let consumer_warps = const { Config::<ID>::TILE.consumers() as u32 * (WARPGROUP_THREADS / LANES) };
    let step_warps =
        const { Config::<ID>::TILE.m_warpgroups as u32 * (WARPGROUP_THREADS / LANES) * Config::<ID>::MULTICAST_CTAS };
    let initialise = |region: SmemRegion, arrivals: u32| {
        for stage in 0..region.stages {
            // SAFETY: the caller's contract.
            unsafe { mbarrier::init(base.offset(region.stage_offset(stage)), arrivals) };
        }
    };
    initialise(Config::<ID>::K_FULL, 1);
    // Warps of the producer stand between the copies of V and its consumers where they transpose it.
    let transposing_warps = const { if Config::<ID>::TRANSPOSES_VALUES { TRANSPOSING_WARPS } else { 0 } };
    initialise(Config::<ID>::V_FULL, transposing_warps.max(1));
    initialise(Config::<ID>::V_ROWS_FULL, 1);
    initialise(Config::<ID>::V_ROWS_EMPTY, transposing_warps);
    initialise(Config::<ID>::Q_FULL, 1);
    initialise(Config::<ID>::K_EMPTY, step_warps);
    initialise(Config::<ID>::V_EMPTY, step_warps);
    initialise(Config::<ID>::Q_EMPTY, consumer_warps + transposing_warps);
    initialise(Config::<ID>::TILE_FULL, 1);
    // And one more for the bytes that come.
    initialise(Config::<ID>::PARTIAL_FULL, 1 + const { kv_split::partial_warps::<ID>() });
    fence::mbarrier_init();
    for stage in 0..Config::<ID>::PARTIAL_FULL.stages {
        let full = base.offset(Config::<ID>::PARTIAL_FULL.stage_offset(stage));
        // SAFETY: the barrier is initialised. All splits have something for each warpgroup.
        unsafe { mbarrier::arrive_expect_tx(full, const { kv_split::partial_bytes::<ID, OUTPUTS>() }) };
    }
}
