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
//! 1. The block is persistent: while consumers finish a tile, the producer fills the buffers for the next, that of Q
//!    too where it has two or Q goes on to registers. It takes its tiles from a counter of the launch (`schedule.rs`).
//! 2. Steps go from the last key to the first, so that the step with keys beyond the end, and the diagonal of a causal
//!    mask, come first, and the steps after them are free of masks.
//! 3. S of one step is on the tensor cores while the softmax of the step before runs in other warpgroups, and P V of
//!    that step behind it: the tensor cores have work while this warpgroup does the softmax.
//! 4. A warpgroup skips the steps that only rows of the others see. Where tiles are few, warpgroups of a block or a
//!    cluster share rows and take the steps in turns (`kv_split.rs`); a cluster computes one tile.
//! 5. Blocks of a cluster that copy K and V for each other (`WgmmaTile::multicast`) compute tiles of the same keys in
//!    step: a buffer is filled when the consumers of all of them have left it, half of the reads of L2 are spared, and
//!    power with them.
//! 6. `ptxas` moves a `wgmma.wait_group` up over arithmetic, in front of the exponentials that it is meant to overlap,
//!    but not out of its basic block. The wait for O therefore stands behind that for V, a loop, whose operand depends
//!    on the last exponential before it ([`RowState::zero`]); and the release of K in front of the wait for the next.
//! 7. O is scaled while the tensor cores have S, by the warps that have a row whose maximum grew. Where warpgroups
//!    share the rows of a tile, or a block has four, half of the exponentials are left for behind the wait for O: their
//!    unit is slow, and O is scaled, in every step, and P rounded on others meanwhile ([`crate::row::PvOverlap`]).
//!    Where Q is in registers half of them are left for there too, and the sums of all: between exponentials, where
//!    `ptxas` places them, each sum waits for the exponential before the last, and the next one stands behind it
//!    (`SumsLast` there).
//! 8. Four warpgroups have no registers for P of a step of 96 keys beside S of the next. There P V ends before Q K^T
//!    starts, and the tensor cores have the work of the other warpgroups meanwhile, which come to them in turns
//!    (`turns.rs`).
//!
//! Budget: the registers of [`variants::attention::CONSUMER_REGISTERS`], for S, P and O of a step; shared memory is the
//! row's [`variants::attention::AttentionConfig::smem`] map.

use cuda_std::convert::Element16;
use cuda_std::hint::opaque;
use cuda_std::ptx::tma;
use cuda_std::ptx::wgmma::{self, Accumulator, Product};
use cuda_std::ptx::{barrier, cluster, fence, griddepcontrol, mbarrier, setmaxnreg};
use cuda_std::shared::{self, SharedAddr};
use cuda_std::thread;
use cuda_std::warp::{FULL_MASK, elect, warp_shuffle_idx};
use layout::SmemRegion;
use variants::attention::{
    ATTENTION, AttentionArgs, CONSUMER_REGISTERS, PRODUCER_REGISTERS, QuerySource, Seqlens, TILE_SWIZZLE,
    TileSchedulerArgs, VARLEN_CONSUMER_REGISTERS, VARLEN_PRODUCER_REGISTERS, WARP_ROWS, WARPGROUP_ROWS,
    WARPGROUP_THREADS,
};

use crate::epilogue::store_lse;
use crate::epilogue_sm90;
use crate::kv_split;
use crate::pingpong::WarpScheduler;
use crate::producer::{Maps, produce};
use crate::query::Query;
use crate::ring::PipelineState;
use crate::row::{Config, PvProduct, QkFromRegisters};
use crate::schedule::{Tile, TileScheduler, steps_of_rows};
use crate::score::{Scoring, bound};
use crate::softmax::{RowState, ScoreScale, rescale_rows};
use crate::warpgroup_product::{accumulate, pack, stage_descriptor, wait_before};
use crate::work::{LANES, SeqlenInfo, Work, div_rem, lane, sink_of_head, warp};

/// Chains of maxima and sums of a row: few warps share a scheduler.
const CHAINS: usize = 2;

/// # Safety
/// The launch is that of configuration `ID`, persistent with any number of blocks; the const parameters are what `row`
/// says of it; `args`, `tiles` and `maps` describe the tensors.
#[inline(always)]
pub(crate) unsafe fn forward<
    E,
    Q,
    const ID: usize,
    const STAGES: u32,
    const SCORES: usize,
    const OUTPUTS: usize,
    const KEY_STEPS: usize,
>(
    args: &AttentionArgs,
    tiles: &TileSchedulerArgs,
    maps: Maps,
) where
    E: Element16,
    Q: Query,
    [f32; SCORES]: Accumulator,
    [f32; OUTPUTS]: Accumulator,
{
    const {
        assert!(E::DTYPE as u8 == ATTENTION[ID].dtype as u8, "the configuration has another element type");
        assert!(Q::SOURCE as u8 == Config::<ID>::TILE.query as u8, "the configuration has Q elsewhere");
        let all_steps =
            !Config::<ID>::MASKED && Config::<ID>::SPLIT_KV_CTAS == 1 && Config::<ID>::SPLIT_KV_WARPGROUPS <= 2;
        assert!(
            all_steps || !Config::<ID>::PV_OVERLAP.pingpong(),
            "steps of warpgroups in turns differ by one at most"
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
        let mut first = Tile::none(args);
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
            // In all blocks that share a tile too: they wait for it when they have parts for each other.
            cluster::arrive_relaxed();
        }
        // The next kernel of the stream waits for the end of this one before it touches a tensor.
        griddepcontrol::launch_dependents();
        if warpgroup == 0 {
            match const { (Config::<ID>::TILE.consumers(), Config::<ID>::SEQLENS) } {
                (2, Seqlens::Fixed) => setmaxnreg::decrease::<{ PRODUCER_REGISTERS[2] }>(),
                (3, Seqlens::Fixed) => setmaxnreg::decrease::<{ PRODUCER_REGISTERS[3] }>(),
                (4, Seqlens::Fixed) => setmaxnreg::decrease::<{ PRODUCER_REGISTERS[4] }>(),
                (2, Seqlens::Varlen) => setmaxnreg::decrease::<{ VARLEN_PRODUCER_REGISTERS[2] }>(),
                (3, Seqlens::Varlen) => setmaxnreg::decrease::<{ VARLEN_PRODUCER_REGISTERS[3] }>(),
                (4, Seqlens::Varlen) => setmaxnreg::decrease::<{ VARLEN_PRODUCER_REGISTERS[4] }>(),
                _ => {}
            }
            if is_warp(early as u32) && elect() {
                produce::<ID, STAGES>(args, tiles, maps, base, first);
            }
        } else {
            match const { (Config::<ID>::TILE.consumers(), Config::<ID>::SEQLENS) } {
                (2, Seqlens::Fixed) => setmaxnreg::increase::<{ CONSUMER_REGISTERS[2] }>(),
                (3, Seqlens::Fixed) => setmaxnreg::increase::<{ CONSUMER_REGISTERS[3] }>(),
                (4, Seqlens::Fixed) => setmaxnreg::increase::<{ CONSUMER_REGISTERS[4] }>(),
                (2, Seqlens::Varlen) => setmaxnreg::increase::<{ VARLEN_CONSUMER_REGISTERS[2] }>(),
                (3, Seqlens::Varlen) => setmaxnreg::increase::<{ VARLEN_CONSUMER_REGISTERS[3] }>(),
                (4, Seqlens::Varlen) => setmaxnreg::increase::<{ VARLEN_CONSUMER_REGISTERS[4] }>(),
                _ => {}
            }
            consume::<E, Q, ID, STAGES, SCORES, OUTPUTS, KEY_STEPS>(args, base, warpgroup - 1);
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
    initialise(Config::<ID>::V_FULL, 1);
    initialise(Config::<ID>::Q_FULL, 1);
    initialise(Config::<ID>::K_EMPTY, step_warps);
    initialise(Config::<ID>::V_EMPTY, step_warps);
    initialise(Config::<ID>::Q_EMPTY, consumer_warps);
    initialise(Config::<ID>::TILE_FULL, 1);
    // And one more for the bytes that come.
    initialise(Config::<ID>::PARTIAL_FULL, 1 + const { kv_split::share_warps::<ID>() });
    fence::mbarrier_init();
    for stage in 0..Config::<ID>::PARTIAL_FULL.stages {
        let full = base.offset(Config::<ID>::PARTIAL_FULL.stage_offset(stage));
        // SAFETY: the barrier is initialised. All parts of the rows have something for each warpgroup.
        unsafe { mbarrier::arrive_expect_tx(full, const { kv_split::share_bytes::<ID, OUTPUTS>() }) };
    }
}

/// Computes the rows of one warpgroup in each tile.
///
/// # Safety
/// As [`forward`]; all threads of consumer warpgroup `group` call it together.
#[inline(always)]
unsafe fn consume<
    E,
    Q,
    const ID: usize,
    const STAGES: u32,
    const SCORES: usize,
    const OUTPUTS: usize,
    const KEY_STEPS: usize,
>(
    args: &AttentionArgs,
    base: SharedAddr,
    group: u32,
) where
    E: Element16,
    Q: Query,
    [f32; SCORES]: Accumulator,
    [f32; OUTPUTS]: Accumulator,
{
    let (rows, step_keys, scale) = (Config::<ID>::M, Config::<ID>::N, ScoreScale::new(args));
    let at = |region: SmemRegion, stage: u32| base.offset(region.stage_offset(stage));
    let k_tile = |stage: u32| {
        let first = const { QkFromRegisters::<E, ID>::B.descriptor(Config::<ID>::K.offset_bytes) };
        stage_descriptor(first, Config::<ID>::K, base, stage)
    };
    let v_tile = |stage: u32| {
        let first = const { PvProduct::<E, ID>::B.descriptor(Config::<ID>::V.offset_bytes) };
        stage_descriptor(first, Config::<ID>::V, base, stage)
    };
    // Warpgroups have rows of their own, or share them with others of their block or cluster and take the steps in
    // turns.
    let (stride, split_kv_warpgroups) = const { (Config::<ID>::KV_SPLITS, Config::<ID>::SPLIT_KV_WARPGROUPS) };
    let (m_warpgroup, kv_warpgroup) = (group / split_kv_warpgroups, group % split_kv_warpgroups);
    let part = || kv_split::rank::<ID>() * split_kv_warpgroups + kv_warpgroup;
    // The warp's first row in a tile.
    let warp_row = || m_warpgroup * WARPGROUP_ROWS as u32 + warp() % 4 * WARP_ROWS as u32;

    // Where K and V of a step are: in the same stage of their rings.
    let mut ring = PipelineState::<STAGES>::CONSUMER;
    let mut scheduler = TileScheduler::START;
    // SAFETY: the warpgroup is together.
    unsafe { WarpScheduler::<ID>::start(group) };
    // SAFETY: as above.
    while let Some([batch_head, first_row]) = unsafe { scheduler.receive::<ID>(base) } {
        // SAFETY: the warp is in a tile.
        let member = || unsafe { scheduler.member::<ID>(base, args) };
        let SeqlenInfo { q_len, keys, .. } = member();
        let last_row = |first: u32, rows: u32| ((first + rows).min(q_len) - 1) as i32;
        let (first_step, end_step) = steps_of_rows::<ID>(keys, first_row, last_row(first_row, rows) as u32);
        let (q_stage, q_parity) = scheduler.q_place::<ID>();
        let work = || Work::of_rows(args, batch_head, first_row, Config::<ID>::SEQLENS, |_| member());
        if first_step >= end_step {
            // SAFETY: the warp is together. Q comes for every tile, which keeps the phases of its barriers in step.
            unsafe {
                mbarrier::wait_parity(at(Config::<ID>::Q_FULL, q_stage), q_parity);
                mbarrier::arrive_if(at(Config::<ID>::Q_EMPTY, q_stage), lane() == 0);
                if part() == 0 {
                    let sink = sink_of_head(args, batch_head);
                    epilogue_sm90::store_unseen::<OUTPUTS>(args, &work(), warp_row(), sink);
                }
            }
            continue;
        }
        // The steps that this warpgroup computes, alone or with others, and those of them that are free of masks.
        let own_rows = |first_row: u32| {
            let first = first_row + m_warpgroup * WARPGROUP_ROWS as u32;
            (first as i32, last_row(first, WARPGROUP_ROWS as u32))
        };
        let own = if Config::<ID>::MASKED && stride == 1 {
            let (own_row, own_last_row) = own_rows(first_row);
            let (first, end) = keys.steps(own_row, own_last_row, step_keys);
            // One step at least, all of it masked if the rows see nothing: O is then on one path.
            (first.min(end_step - 1), end.max(first_step + 1).min(end_step))
        } else {
            (first_step, end_step)
        };
        let unmasked_of = |first_row: u32| {
            if Config::<ID>::MASKED {
                let (own_row, own_last_row) = own_rows(first_row);
                keys.full_steps(own_row, own_last_row, step_keys)
            } else {
                (0, keys.len() / step_keys)
            }
        };
        let unmasked = unmasked_of(first_row);
        // Once a tile: the division by which it is found would stand in front of each copy.
        let scoring = {
            let (batch, head) = div_rem(batch_head, args.q_heads);
            Scoring::of_head(args, [batch, head], q_len, keys.len())
        };
        let lane_row = || opaque(first_row) + warp_row() + lane() / 4;
        let mask = |scores: &mut [f32; SCORES], step: u32| {
            // Opaque, what the mask needs takes no registers where there is none. Rows that are shared have none to
            // spare.
            let unmasked = if stride == 1 { unmasked } else { unmasked_of(opaque(first_row)) };
            let key = (step * step_keys) as i32;
            if step >= unmasked.1 {
                let row = lane_row() as i32;
                keys.hide_after(scores, row, (lane() % 4) as i32, key);
            }
            if Config::<ID>::MASKED && step < unmasked.0 {
                let row = lane_row() as i32;
                keys.hide_before(scores, row, (lane() % 4) as i32, key);
            }
        };

        // Adds up what the parts of the tile have left.
        // SAFETY: all consumers of its blocks call it, once each.
        let add_up = || unsafe {
            let (work, sink) = (work(), sink_of_head(args, batch_head));
            kv_split::wait::<ID>(base, group, || sync_consumers::<ID>());
            let share = kv_split::gather::<ID, OUTPUTS>(base, group, part(), scale.log2, sink);
            kv_split::store::<E, ID, OUTPUTS>(args, &work, &share, warp_row());
            if const { Config::<ID>::SPLIT_KV_CTAS == 1 } {
                // The parts have been read: they may be written for the next tile.
                sync_consumers::<ID>();
            }
        };
        let mut out = [0f32; OUTPUTS];
        let mut state = RowState::empty(Config::<ID>::SUBTRACTION);
        // SAFETY: the warpgroup is together wherever the branches depend on the tile and its own number alone. A buffer
        // is read between the wait for its being full and the arrival that lets it be filled again.
        unsafe {
            let release = |region: SmemRegion, stage: u32| mbarrier::arrive_if(at(region, stage), lane() == 0);
            let release_keys = |region: SmemRegion, stage: u32| {
                let blocks = const { Config::<ID>::MULTICAST_CTAS };
                if blocks > 1 {
                    mbarrier::arrive_cluster_if(at(region, stage), lane() % blocks, lane() < blocks);
                } else {
                    release(region, stage);
                }
            };
            let wait = |region: SmemRegion, stage: u32, parity: u32| mbarrier::wait_parity(at(region, stage), parity);
            let skip = |ring: PipelineState<STAGES>| {
                wait(Config::<ID>::K_FULL, ring.stage(), ring.parity());
                release_keys(Config::<ID>::K_EMPTY, ring.stage());
                wait(Config::<ID>::V_FULL, ring.stage(), ring.parity());
                release_keys(Config::<ID>::V_EMPTY, ring.stage());
                ring.next()
            };
            let mut step = end_step;
            if Config::<ID>::MASKED && stride == 1 {
                while step > own.1 {
                    ring = skip(ring);
                    step -= 1;
                }
            }
            wait(Config::<ID>::Q_FULL, q_stage, q_parity);
            let q_tile = at(Config::<ID>::Q, q_stage);
            if args.q_sign != 0 {
                negate_rows::<ID>(q_tile, m_warpgroup, kv_warpgroup == 0);
            }
            let q = Q::load(q_tile, m_warpgroup);
            if stride > 1 {
                let (last_step, steps) = kv_split::block_steps::<ID>((first_step, end_step));
                if kv_warpgroup >= steps {
                    // Fewer steps than parts: nothing for this one.
                    ring = ring.after(steps);
                    release(Config::<ID>::Q_EMPTY, q_stage);
                    kv_split::meet::<ID>();
                    let none = RowState::empty(Config::<ID>::SUBTRACTION);
                    kv_split::share::<ID, OUTPUTS>(base, m_warpgroup, part(), &[0.0; OUTPUTS], &none);
                    add_up();
                    continue;
                }
                ring = ring.after(kv_warpgroup);
                step = last_step + 1 - kv_warpgroup * const { Config::<ID>::SPLIT_KV_CTAS };
            }

            let bias_tile = || at(Config::<ID>::BIAS, group * const { WARPGROUP_ROWS / WARP_ROWS } as u32 + warp() % 4);
            step -= 1;
            if Config::<ID>::GENERAL {
                scoring.copy_bias::<SCORES>(bias_tile(), opaque(first_row) + warp_row(), step * step_keys);
            }
            wait(Config::<ID>::K_FULL, ring.stage(), ring.parity());
            let mut scores: [f32; SCORES] = q.scores(k_tile(ring.stage()));
            wgmma::wait_group::<0, _>(&mut scores);
            // What a mask changes is in registers of its own, to which the compiler moves it after this, not before the
            // wait.
            wgmma::settle(&mut scores);
            release_keys(Config::<ID>::K_EMPTY, ring.stage());
            if let QuerySource::Registers = Q::SOURCE {
                // A load of Q may still be under way when an arrival behind it has come; the product above has used
                // what it gives.
                release(Config::<ID>::Q_EMPTY, q_stage);
            }
            bound::<ID>(&mut scores, args.scale);
            if Config::<ID>::GENERAL {
                scoring.apply_tile::<E, SCORES>(&mut scores, bias_tile());
                if step >= own.0 + stride {
                    let key = (step - stride) * step_keys;
                    scoring.copy_bias::<SCORES>(bias_tile(), opaque(first_row) + warp_row(), key);
                }
            }
            mask(&mut scores, step);
            state.step::<CHAINS>(&mut scores, scale);
            let mut p = pack::<E, SCORES, KEY_STEPS>(&scores);
            if !const { Config::<ID>::PV_OVERLAP.pingpong() } {
                if step >= own.0 + stride {
                    let next = ring.after(split_kv_warpgroups);
                    wait(Config::<ID>::K_FULL, next.stage(), next.parity());
                }
                wait(Config::<ID>::V_FULL, ring.stage(), ring.parity());
            }
            let mut factors = [1.0; 2];
            while step >= own.0 + stride {
                let next = ring.after(split_kv_warpgroups);
                let mut scores: [f32; SCORES];
                if const { Config::<ID>::PV_OVERLAP.pingpong() } {
                    // Waits find addresses, which products then have without a turn's time.
                    wait(Config::<ID>::V_FULL, ring.stage(), ring.parity());
                    WarpScheduler::<ID>::wait(group);
                    accumulate::<PvProduct<E, ID>, _, KEY_STEPS>(&mut out, &p, v_tile(ring.stage()));
                    wgmma::wait_group::<0, _>(&mut out);
                    wgmma::settle(&mut out);
                    release_keys(Config::<ID>::V_EMPTY, ring.stage());
                    wait(Config::<ID>::K_FULL, next.stage(), next.parity());
                    scores = q.scores(k_tile(next.stage()));
                    WarpScheduler::<ID>::arrive(group);
                    wgmma::wait_group::<0, _>(&mut scores);
                } else {
                    // V of this step and K of the one before are there.
                    scores = q.scores(k_tile(next.stage()));
                    if !const { Config::<ID>::PV_OVERLAP.rescales_last() } {
                        // Not before S is under way.
                        wgmma::settle(&mut out);
                        rescale_rows(&mut out, factors);
                    }
                    accumulate::<PvProduct<E, ID>, _, KEY_STEPS>(&mut out, &p, v_tile(ring.stage()));
                    wait_before::<_, KEY_STEPS>(&mut scores);
                }
                wgmma::settle(&mut scores);
                release_keys(Config::<ID>::K_EMPTY, next.stage());
                step -= stride;
                if !const { Config::<ID>::PV_OVERLAP.pingpong() } && step >= own.0 + stride {
                    let second = next.after(split_kv_warpgroups);
                    wait(Config::<ID>::K_FULL, second.stage(), second.parity());
                }
                bound::<ID>(&mut scores, args.scale);
                if Config::<ID>::GENERAL {
                    scoring.apply_tile::<E, SCORES>(&mut scores, bias_tile());
                    if step >= own.0 + stride {
                        let key = (step - stride) * step_keys;
                        scoring.copy_bias::<SCORES>(bias_tile(), opaque(first_row) + warp_row(), key);
                    }
                }
                if Config::<ID>::MASKED {
                    mask(&mut scores, step);
                }
                factors = state.update_max::<CHAINS>(&mut scores, scale);
                let early = const { Config::<ID>::early_exps(SCORES) };
                if !const { Config::<ID>::PV_OVERLAP.pingpong() } {
                    if const { Config::<ID>::PV_OVERLAP.row_sum_last() } {
                        state.exp(&mut scores[..early], scale);
                        // Not behind the wait.
                        wgmma::settle(&mut scores);
                        wait(Config::<ID>::V_FULL, next.stage(), next.parity());
                    } else {
                        state.exp_row_sum::<CHAINS>(&mut scores[..early], scale);
                        wait(Config::<ID>::V_FULL, next.stage(), next.parity() + state.zero());
                    }
                    wgmma::wait_group::<0, _>(&mut out);
                    wgmma::settle(&mut scores);
                    release_keys(Config::<ID>::V_EMPTY, ring.stage());
                }
                ring = next;
                if const { Config::<ID>::PV_OVERLAP.row_sum_last() } {
                    state.exp(&mut scores[early..], scale);
                    state.row_sum::<CHAINS>(&scores);
                }
                if const { Config::<ID>::PV_OVERLAP.rescales_last() } {
                    state.exp_row_sum::<CHAINS>(&mut scores[early..], scale);
                    for index in 0..OUTPUTS {
                        out[index] *= factors[index / 2 % 2];
                    }
                }
                p = pack::<E, SCORES, KEY_STEPS>(&scores);
            }
            if const { Config::<ID>::PV_OVERLAP.pingpong() } {
                WarpScheduler::<ID>::skip(group, end_step - first_step);
                wait(Config::<ID>::V_FULL, ring.stage(), ring.parity());
            }
            if !const { Config::<ID>::PV_OVERLAP.rescales_last() } {
                rescale_rows(&mut out, factors);
            }
            accumulate::<PvProduct<E, ID>, _, KEY_STEPS>(&mut out, &p, v_tile(ring.stage()));
            if stride > 1 {
                kv_split::meet::<ID>();
                wgmma::wait_group::<0, _>(&mut out);
                release_keys(Config::<ID>::V_EMPTY, ring.stage());
                release(Config::<ID>::Q_EMPTY, q_stage);
                ring = ring.after((step - first_step) / const { Config::<ID>::SPLIT_KV_CTAS } + 1);
                kv_split::share::<ID, OUTPUTS>(base, m_warpgroup, part(), &out, &state);
                add_up();
                continue;
            }
            // Divisions and what ends the sums, beside the last product.
            let work = work();
            let sink = sink_of_head(args, batch_head);
            let results = if Config::<ID>::SOFTCAP {
                state.finalize_above(scale, sink, args.softcap)
            } else {
                state.finalize(scale, sink)
            };
            wgmma::wait_group::<0, _>(&mut out);
            release_keys(Config::<ID>::V_EMPTY, ring.stage());
            ring = ring.next();
            if let QuerySource::Shared = Q::SOURCE {
                release(Config::<ID>::Q_EMPTY, q_stage);
            }
            if Config::<ID>::MASKED {
                let first_row = opaque(first_row);
                let (first_step, _) = keys.steps(first_row as i32, first_row as i32, step_keys);
                while step > first_step {
                    ring = skip(ring);
                    step -= 1;
                }
            }
            store_lse(&work, &results, warp_row());
            epilogue_sm90::store_accumulators::<E, OUTPUTS>(
                args,
                &work,
                &out,
                results.map(|row| row.normaliser),
                warp_row(),
            );
        }
    }
}

/// Changes the sign of the rows of a row group of the tile of Q, for a negative scale; one warpgroup of those that
/// share the rows writes.
///
/// # Safety
/// All consumers call it together, once a tile, before they use Q.
#[inline(always)]
unsafe fn negate_rows<const ID: usize>(tile: SharedAddr, m_warpgroup: u32, writes: bool) {
    const SIGNS: u32 = 0x8000_8000;
    let group_bytes = const { WARPGROUP_ROWS as u32 * TILE_SWIZZLE.row_bytes() };
    let thread = thread::thread_idx_x() % WARPGROUP_THREADS;
    // SAFETY: the rows of a warpgroup are adjacent in each panel, and no other warpgroup uses them; the fence and the
    // barrier order the stores before the products.
    unsafe {
        for panel in 0..if writes { Config::<ID>::PANELS } else { 0 } {
            let rows = panel * (Config::<ID>::M * TILE_SWIZZLE.row_bytes()) + m_warpgroup * group_bytes;
            let mut offset = 16 * thread;
            while offset < group_bytes {
                let place = tile.offset(rows + offset);
                let words: [u32; 4] = place.load();
                place.store(words.map(|pair| pair ^ SIGNS));
                offset += 16 * WARPGROUP_THREADS;
            }
        }
        fence::proxy_async_shared();
        sync_consumers::<ID>();
    }
}

/// Waits for all consumer warpgroups.
///
/// # Safety
/// All consumers call it together.
#[inline(always)]
unsafe fn sync_consumers<const ID: usize>() {
    // SAFETY: the caller's contract.
    unsafe {
        match const { Config::<ID>::TILE.consumers() } {
            1 => barrier::sync::<1, WARPGROUP_THREADS>(),
            2 => barrier::sync::<1, { 2 * WARPGROUP_THREADS }>(),
            3 => barrier::sync::<1, { 3 * WARPGROUP_THREADS }>(),
            _ => barrier::sync::<1, { 4 * WARPGROUP_THREADS }>(),
        }
    }
}
