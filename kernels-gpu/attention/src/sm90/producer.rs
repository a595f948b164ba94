//! The thread that brings the tiles of Q, K and V by TMA, as fast as the consumers leave buffers.

use cuda_std::ptx::tma::{self, TensorMap};
use cuda_std::ptx::{griddepcontrol, mbarrier};
use cuda_std::shared::SharedAddr;
use cuda_std::thread;
use layout::Swizzle;
use variants::attention::{AttentionArgs, DescaleArgs, Seqlens, TileSchedulerArgs, VALUE_ROWS_STAGES};

use crate::sm90::config::Config;
use crate::sm90::descale::Descale;
use crate::sm90::kv_split::block_steps;
use crate::sm90::pipeline::PipelineState;
use crate::sm90::scheduler::{TileScheduler, WorkTile, steps_of_rows};

/// The maps of Q, K and V `[batch, head, row, column]`, whose boxes are a panel of a tile. In configurations of
/// [`Seqlens::Varlen`] one more dimension is in front, for batch entries that follow each other
/// ([`crate::sm90::scheduler::WorkTile::q_coordinates`]).
#[derive(Clone, Copy)]
pub(crate) struct Maps {
    pub(crate) q: *const TensorMap,
    pub(crate) k: *const TensorMap,
    pub(crate) v: *const TensorMap,
}

/// Starts the copy of a tile of `rows` rows and `panels` panels of `swizzle`, a panel at a time. The bytes count on
/// `full`, which expects them. Where the tile is `SHARED` by blocks that copy it together, each copies its part of the
/// rows to all.
///
/// # Safety
/// One thread calls it, of each block; `full` has an arrival left in its phase, and nothing uses the tile of any block
/// before that has passed.
#[inline(always)]
unsafe fn load_tile<const ID: usize, const SHARED: bool>(
    tile: SharedAddr,
    map: *const TensorMap,
    (swizzle, [rows, panels]): (Swizzle, [u32; 2]),
    [row, head, batch, end]: [u32; 4],
    full: SharedAddr,
) {
    let panel_bytes = rows * swizzle.row_bytes();
    let panel_columns = swizzle.row_bytes() / const { Config::<ID>::ELEMENT_BYTES };
    let blocks = if SHARED { const { Config::<ID>::MULTICAST_CTAS } } else { 1 };
    let part_rows = rows / blocks;
    let first = if blocks > 1 { thread::cluster_rank() * part_rows } else { 0 };
    let (tile, row) = (tile.offset(first * swizzle.row_bytes()), row + first);
    // SAFETY: the caller's contract; the columns of a panel start on a multiple of 16 bytes.
    unsafe {
        mbarrier::arrive_expect_tx(full, panels * panel_bytes);
        for panel in 0..panels {
            let (place, column) = (tile.offset(panel * panel_bytes), (panel * panel_columns) as i32);
            let [row, head, batch, end] = [row, head, batch, end].map(|coordinate| coordinate as i32);
            match Config::<ID>::SEQLENS {
                Seqlens::Fixed if blocks > 1 => {
                    tma::load_multicast(place, map, [column, row, head, batch], full, (1 << blocks) - 1);
                }
                Seqlens::Fixed => tma::load(place, map, [column, row, head, batch], full),
                Seqlens::Varlen => tma::load(place, map, [column, row, head, batch, end], full),
            }
        }
    }
}

/// Brings K of the last visible step of the block, and Q. Then, for each step from the last to the first, K of the step
/// before and V of this step.
///
/// # Safety
/// One thread of the block calls it, and the barriers are initialised; `first` is the tile of a cluster, or none where
/// blocks find theirs.
#[inline(always)]
pub(crate) unsafe fn produce<const ID: usize, const STAGES: u32>(
    args: &AttentionArgs,
    tiles: &TileSchedulerArgs,
    maps: Maps,
    descales: Option<&DescaleArgs>,
    base: SharedAddr,
    mut first: WorkTile,
) {
    let (rows, step_keys) = (Config::<ID>::M, Config::<ID>::N);
    let (mut k, mut v) = (PipelineState::<STAGES>::PRODUCER, PipelineState::<STAGES>::PRODUCER);
    let mut v_rows = PipelineState::<VALUE_ROWS_STAGES>::PRODUCER;
    let at = |region: layout::SmemRegion, stage: u32| base.offset(region.stage_offset(stage));
    let mut scheduler = TileScheduler::START;
    if descales.is_some() || matches!(Config::<ID>::SEQLENS, Seqlens::Varlen) {
        // After this wait the lengths, by which tiles are found, the factors and the tensors are as the kernel before
        // has left them, and that kernel needs O and the semaphore no more. Blocks without a tile wait too: the next
        // kernel takes the end of this launch for the end of all launches before it.
        griddepcontrol::wait();
    }
    loop {
        let tile = if const { Config::<ID>::SPLIT_KV_CTAS > 1 } {
            core::mem::replace(&mut first, WorkTile::none(args))
        } else {
            // SAFETY: the caller's contract; the launch has a semaphore of its own.
            unsafe { scheduler.next_work::<ID>(args, tiles) }
        };
        // SAFETY: the caller's contract; there are factors of every head.
        unsafe {
            let descale = descales.map(|descales| match tile.is_none() {
                true => Descale::NONE,
                false => Descale::of_head::<ID>(args, descales, tile.batch, [tile.head, tile.kv_head]),
            });
            scheduler.broadcast::<ID>(base, &tile, descale);
        }
        if tile.is_none() {
            break;
        }
        let seqlen = tile.seqlen_info::<ID>(args);
        let last_row = (tile.first_row + rows).min(seqlen.q_len) - 1;
        let steps = steps_of_rows::<ID>(seqlen.keys, tile.first_row, last_row);
        let (mut step, mut left) = block_steps::<ID>(steps);
        let [first_key, kv_head, batch, end] = tile.kv_coordinates::<ID>(args);
        let row_of = |step: u32| [first_key + step * step_keys, kv_head, batch, end];
        // SAFETY: each buffer is filled after its consumers have left it, those of all blocks that it is filled in; a
        // fresh barrier counts as just left.
        unsafe {
            let mut load_k = |step: u32| {
                mbarrier::wait_parity(at(Config::<ID>::K_EMPTY, k.stage()), k.parity());
                let full = at(Config::<ID>::K_FULL, k.stage());
                let size = (Config::<ID>::SWIZZLE, [step_keys, Config::<ID>::PANELS]);
                load_tile::<ID, true>(at(Config::<ID>::K, k.stage()), maps.k, size, row_of(step), full);
                k = k.next();
            };
            if let Seqlens::Fixed = Config::<ID>::SEQLENS {
                // The tensors are as the kernel before has left them, and it has done with O and the semaphore. Only
                // the first tile waits.
                griddepcontrol::wait();
            }
            if left > 0 {
                load_k(step);
            }
            let (q_stage, q_parity) = scheduler.q_stage::<ID>();
            mbarrier::wait_parity(at(Config::<ID>::Q_EMPTY, q_stage), q_parity ^ 1);
            let q_row = tile.q_coordinates::<ID>(args);
            let q_full = at(Config::<ID>::Q_FULL, q_stage);
            let q_size = (Config::<ID>::SWIZZLE, [rows, Config::<ID>::PANELS]);
            load_tile::<ID, false>(at(Config::<ID>::Q, q_stage), maps.q, q_size, q_row, q_full);
            while left > 0 {
                left -= 1;
                if left > 0 {
                    load_k(step - const { Config::<ID>::SPLIT_KV_CTAS });
                }
                let size = (Config::<ID>::VALUE_SWIZZLE, [step_keys, Config::<ID>::VALUE_PANELS]);
                if const { Config::<ID>::TRANSPOSES_VALUES } {
                    mbarrier::wait_parity(at(Config::<ID>::V_ROWS_EMPTY, v_rows.stage()), v_rows.parity());
                    let full = at(Config::<ID>::V_ROWS_FULL, v_rows.stage());
                    load_tile::<ID, true>(at(Config::<ID>::V_ROWS, v_rows.stage()), maps.v, size, row_of(step), full);
                    v_rows = v_rows.next();
                } else {
                    mbarrier::wait_parity(at(Config::<ID>::V_EMPTY, v.stage()), v.parity());
                    let full = at(Config::<ID>::V_FULL, v.stage());
                    load_tile::<ID, true>(at(Config::<ID>::V, v.stage()), maps.v, size, row_of(step), full);
                    v = v.next();
                }
                step = step.wrapping_sub(const { Config::<ID>::SPLIT_KV_CTAS });
            }
        }
    }
    // This block outlives the arrivals of the other blocks at its barriers. Its buffers outlive what the other blocks
    // copy into them, because consumers use the copies before they leave the buffers.
    if const { Config::<ID>::MULTICAST_CTAS > 1 } {
        for _ in 0..STAGES {
            // SAFETY: the barriers are initialised; consumers empty what was filled.
            unsafe {
                mbarrier::wait_parity(at(Config::<ID>::K_EMPTY, k.stage()), k.parity());
                mbarrier::wait_parity(at(Config::<ID>::V_EMPTY, v.stage()), v.parity());
            }
            (k, v) = (k.next(), v.next());
        }
    }
}
