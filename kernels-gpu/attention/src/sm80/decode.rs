//! Decoding: few query rows on many keys, for sm_80 and later.
//!
//! ```text
//! 16 or 32 packed rows of Q -> registers
//! each warp, for its share of the 16-key steps of the block's split:
//!     prefetch K, V -> the warp's ring               cp.async, see pages.rs
//!     S = Q K^T, mask, online softmax, O += P V      in registers; softcap and bias in general configurations
//! O, maxima and sums of the warps -> shared memory -> their sum
//! one split: O / l and the LSE to global memory
//! several: O / l, maximum and l to the workspace; the last block of the tile adds them up, see split_kv.rs, or the
//!     next kernel, see combine.rs
//! ```
//!
//! 1. Every byte of K and V is used once and by one warp, so what counts is how many bytes are in flight. Each warp
//!    waits for its own copies alone. No barrier of the block stands in the loop, and warps that compute leave the
//!    memory to warps that wait.
//! 2. All query heads of one key-value head share a tile, position by position, so that K and V are read once for all
//!    of them. A warp with two tiles of 16 rows loads each fragment of K and V once for both.
//! 3. A step lies in one page of a block table, whose entry is loaded a step before it is used.
//! 4. Sums are in one order, that of warps and splits: the same bits in every run.
//! 5. K and V may be of another type than Q: key_values.rs. Their factors multiply scores, and O at its end.
//!
//! 6. On sm_90 the kernel may start while the one before it still runs. It waits before it reads anything but its
//!    arguments: K and V may have been written just now.
//!
//! Budget: O, Q and one step of scores in the configuration's registers; shared memory is the configuration's
//! [`variants::attention::AttentionConfig::smem`] map.

use core::array::from_fn;

use cuda_std::convert::{Element16, fma, max};
use cuda_std::hint::opaque;
use cuda_std::ptx::cp_async;
use cuda_std::ptx::griddepcontrol;
use cuda_std::shared::SharedAddr;
use cuda_std::warp::{FULL_MASK, quad_sum, sync_warp};
use cuda_std::{global, shared, thread};
use variants::attention::{ATTENTION, AttentionArgs, DECODE_KEYS, DecodeArgs, DescaleArgs, ScoreMod, WARP_ROWS};

use crate::lane::{lane, warp, warp_uniform};
use crate::mask::KeyRange;
use crate::score_mod::{BiasWords, HeadScoreMod};
use crate::sm80::decode_work::{DecodeWork, Factors, SUM_COLUMNS, decode_tile, store_output};
use crate::sm80::key_values::KeyValues;
use crate::sm80::pages::{KeyRows, PageSlot, Pages};
use crate::sm80::pv::TensorCore;
use crate::sm80::split_kv;
use crate::softmax::{RowState, ScoreScale, Subtraction, row_result, split_weight};
use crate::work::sink_of_head;

/// Tiles of 16 packed rows of configuration `id`.
pub(crate) const fn m_tiles(id: usize) -> usize {
    decode_tile(id).m / WARP_ROWS
}

/// 16-column tiles of the head dimension of configuration `id`.
pub(crate) const fn dim_tiles(id: usize) -> usize {
    ATTENTION[id].head_dim / 16
}

/// Steps of a warp that are in flight while one is computed, but for one: what `wait_group` leaves pending.
pub(crate) const fn pending(id: usize) -> u32 {
    decode_tile(id).stages as u32 - 2
}

/// The widest head dimension at which the bias of a step is loaded before its products.
const EARLY_BIAS_COLUMNS: usize = 128;

/// # Safety
/// The launch is that of configuration `ID`, `M_TILES`, `DIM_TILES` and `PENDING` are its [`m_tiles`], [`dim_tiles`]
/// and [`pending`], and `args`, `decode` and `descales` describe its tensors, the block table, the numbers of keys, the
/// workspace and the factors of K and V.
#[inline(always)]
pub(crate) unsafe fn forward<E, KV, const ID: usize, const M_TILES: usize, const DIM_TILES: usize, const PENDING: u32>(
    args: &AttentionArgs,
    decode: &DecodeArgs,
    descales: Option<&DescaleArgs>,
) where
    E: Element16,
    KV: KeyValues<E>,
{
    const {
        let kv_dtype = if let Some(dtype) = KV::DTYPE { dtype } else { E::DTYPE };
        let config = &ATTENTION[ID];
        assert!(E::DTYPE as u8 == config.dtype as u8 && kv_dtype as u8 == config.kv_dtype as u8);
    }
    let (tile, ring) = const { (decode_tile(ID), ATTENTION[ID].smem().get("ring")) };
    let (columns, swizzle) = const { (ATTENTION[ID].head_dim, ATTENTION[ID].swizzle()) };
    let general = const { matches!(ATTENTION[ID].score_mod, ScoreMod::General) };
    let (warps, stages) = (tile.warps as u32, tile.stages as u32);
    let stage_base = shared::dynamic().offset(ring.stage_offset(warp() * stages));
    let k_tile = |stage: u32| stage_base.offset(stage * ring.stage_stride_bytes());
    let v_tile = |stage: u32| k_tile(stage).offset((DECODE_KEYS * columns * size_of::<KV::Bits>()) as u32);

    // The next kernel of the stream can start now, if it waits for this one to end.
    griddepcontrol::launch_dependents();
    let work = DecodeWork::of_block::<ID>(decode);
    let is_e4m3_kv = const { ATTENTION[ID].has_e4m3_kv() };
    if !is_e4m3_kv {
        // The kernel before may still run. Kernels with K and V of E4M3 start when it has ended.
        griddepcontrol::wait();
    }
    // A number of keys that the tensors cannot have makes NaN of the rows. Another stream may write the number
    // meanwhile. The lanes of a warp agree on it. Warps may read different numbers, because they meet only behind their
    // loops.
    let most_keys = args.k_len;
    let (k_len, mut sound) = if decode.k_lens == 0 {
        (most_keys, true)
    } else {
        let lens = (decode.k_lens as *const u32).wrapping_add(work.batch as usize);
        // SAFETY: there is a number for each batch entry, and the warp is together.
        let len = unsafe { warp_uniform(global::load_relaxed(lens)) };
        if len <= most_keys { (len, true) } else { (0, false) }
    };
    let keys = KeyRange::of_seqlens(args, args.q_len, k_len);
    let (top, bottom) = (work.position(args, 0) as i32, work.position(args, (M_TILES * WARP_ROWS) as u32 - 1) as i32);
    let (first_step, end_step) = work.steps(decode, keys.steps(top, bottom, DECODE_KEYS as u32));

    let pages = Pages::new(decode, work.batch);
    let k = KeyRows::<KV::Bits>::new(args, (args.k, &args.k_strides), work.kv_head, args.head_dim, swizzle);
    let v = KeyRows::<KV::Bits>::new(args, (args.v, &args.v_strides), work.kv_head, args.value_dim, swizzle);

    let mut out = [const { TensorCore::<E, DIM_TILES>::zero_rows() }; M_TILES];
    let mut states = [const { RowState::empty(Subtraction::LargeLate) }; M_TILES];
    // SAFETY: a warp's lanes stay together, and its barriers order the uses of its stages as the comments say; steps
    // below `end_step` have keys.
    unsafe {
        let mut prefetch_step = first_step + warp();
        let mut place = if prefetch_step < end_step { pages.place(prefetch_step) } else { PageSlot::NONE };
        // Starts the copies of step `prefetch_step`, and finds where the one after lies.
        let mut prefetch = |stage: u32| {
            if prefetch_step < end_step {
                let here = pages.warp_uniform(place);
                let there = pages.has(here);
                sound &= there;
                let len = if there { k_len - prefetch_step * DECODE_KEYS as u32 } else { 0 };
                k.copy_to_tile(k_tile(stage), here, len, columns);
                v.copy_to_tile(v_tile(stage), here, len, columns);
                prefetch_step += warps;
                if prefetch_step < end_step {
                    place = pages.place(prefetch_step);
                }
            }
            cp_async::commit_group();
        };
        // Opaque: a loop that stays one keeps the code of a copy in two places instead of as many as there are stages.
        for stage in 0..opaque(stages - 1) {
            prefetch(stage);
        }

        let factors = work.factors(descales);
        let (pair, first) = (2 * (lane() % 4), lane() / 4);
        let row = |m_tile: usize, half: u32| (m_tile * WARP_ROWS) as u32 + first + 8 * half;
        let rows: [_; M_TILES] = from_fn(|m_tile| [0, 1].map(|half| work.row(args, row(m_tile, half))));
        let positions_of = |m_tile: usize, first: u32| {
            [0, 1].map(|half| work.position(args, (m_tile * WARP_ROWS) as u32 + first + 8 * half) as i32)
        };
        let positions = if is_e4m3_kv { Some(from_fn(|m_tile| positions_of(m_tile, first))) } else { None };
        let mut q = [[[0u32; 4]; DIM_TILES]; M_TILES];
        for m_tile in 0..M_TILES {
            for dim_tile in 0..DIM_TILES {
                for register in 0..4 {
                    let column = 16 * dim_tile as u32 + KV::query_column(register as u32, pair);
                    q[m_tile][dim_tile][register] = work.query(args, rows[m_tile][register % 2], column);
                }
            }
        }

        let score_mod = |head: u32| HeadScoreMod::of_head(args, [work.batch, head], args.q_len, k_len);
        let bias_rows = rows.map(|rows| {
            rows.map(|row| match row {
                Some((position, head)) if general => score_mod(head).bias_row(position),
                _ => core::ptr::null(),
            })
        });
        let (mut step, mut stage) = (first_step + warp(), 0);
        while step < end_step {
            let key = step * DECODE_KEYS as u32;
            // On its way while the copies come and Q K^T is computed, where registers have room for it beside Q and O.
            let load_bias = || bias_rows.map(|rows| BiasWords::load(rows, key + pair, k_len));
            let bias = if general && columns <= EARLY_BIAS_COLUMNS { Some(load_bias()) } else { None };
            // The copies of this step are there, and every lane has finished with the stage before, which is filled
            // next.
            cp_async::wait_group::<PENDING>();
            sync_warp(FULL_MASK);
            prefetch(if stage == 0 { stages - 1 } else { stage - 1 });

            let mut scores = KV::scores(&q, k_tile(stage), swizzle);
            if let Some([factor, _]) = factors {
                scores = scores.map(|scores| scores.map(|score| score * factor));
            }
            if general {
                let bias = bias.unwrap_or_else(load_bias);
                for m_tile in 0..M_TILES {
                    // All heads are scaled and bounded alike.
                    score_mod(0).cap(&mut scores[m_tile]);
                    bias[m_tile].add_to::<E>(&mut scores[m_tile], args.bias_scale);
                }
            }
            let key = key as i32;
            if !keys.covers(top, bottom, key, DECODE_KEYS as i32) {
                // Found out here, in the few steps that hide keys, positions take no registers through the loop.
                let positions: [_; M_TILES] =
                    positions.unwrap_or_else(|| from_fn(|m_tile| positions_of(m_tile, lane() / 4)));
                for m_tile in 0..M_TILES {
                    keys.hide(&mut scores[m_tile], positions[m_tile], (lane() % 4) as i32, key);
                }
            }
            let mut rescale = [[1.0; 2]; M_TILES];
            for m_tile in 0..M_TILES {
                rescale[m_tile] = states[m_tile].step::<1>(&mut scores[m_tile], ScoreScale::new(args));
            }
            KV::add_values(&mut out, rescale, &scores, v_tile(stage), swizzle);
            step += warps;
            stage = if stage + 1 == stages { 0 } else { stage + 1 };
        }
        if !sound {
            for m_tile in 0..M_TILES {
                states[m_tile].sum = [f32::NAN; 2];
            }
        }
        reduce::<E, KV, ID, M_TILES, DIM_TILES>(args, decode, &work, factors, &states, &out);
    }
}

/// Leaves what this warp has in shared memory, and writes the sum of all warps, or of all splits.
///
/// # Safety
/// All threads of the block call it.
#[inline(always)]
unsafe fn reduce<E: Element16, KV: KeyValues<E>, const ID: usize, const M_TILES: usize, const DIM_TILES: usize>(
    args: &AttentionArgs,
    decode: &DecodeArgs,
    work: &DecodeWork,
    factors: Factors,
    states: &[RowState; M_TILES],
    out: &[TensorCore<E, DIM_TILES>; M_TILES],
) {
    // SAFETY: the caller's contract.
    unsafe {
        // Every warp has finished with its stages.
        thread::sync_threads();
        let results = Results::<ID>::of_warp(warp());
        for m_tile in 0..M_TILES {
            results.store(m_tile, &states[m_tile], out[m_tile].rows(), KV::IN_FOURS);
        }
        // The results of all warps are in place.
        thread::sync_threads();
        finish::<E, ID>(args, decode, work, factors);
        let adds_up = const { ATTENTION[ID].adds_up_splits() } && decode.semaphores != 0;
        if adds_up && split_kv::is_last::<ID>(decode, work) {
            split_kv::combine::<E, ID>(args, decode, work);
        }
    }
}

/// O, maxima and sums of one warp in shared memory, in the place of its stages.
struct Results<const ID: usize> {
    base: SharedAddr,
}

impl<const ID: usize> Results<ID> {
    const ROWS: u32 = decode_tile(ID).m as u32;
    /// Elements from one row of O to the next: eight more than it has, so that the rows of a store fall on different
    /// banks.
    const STRIDE: u32 = ATTENTION[ID].head_dim as u32 + 8;
    const MAXIMA: u32 = Self::ROWS * Self::STRIDE * size_of::<f32>() as u32;
    const SUMS: u32 = Self::MAXIMA + Self::ROWS * size_of::<f32>() as u32;

    #[inline(always)]
    fn of_warp(warp: u32) -> Self {
        let ring = const { ATTENTION[ID].smem().get("ring") };
        let stages = const { decode_tile(ID).stages as u32 };
        Self { base: shared::dynamic().offset(ring.stage_offset(warp * stages)) }
    }

    /// Address of an element of O.
    #[inline(always)]
    fn element(&self, row: u32, column: u32) -> SharedAddr {
        self.base.offset((row * Self::STRIDE + column) * size_of::<f32>() as u32)
    }

    /// Writes what this warp has of 16 rows, in whose accumulators columns lie [`in_fours`](KeyValues::IN_FOURS) or
    /// not.
    ///
    /// # Safety
    /// All lanes of the warp call it together, and its stages are no longer used.
    #[inline(always)]
    unsafe fn store<const DIM_TILES: usize>(
        &self,
        m_tile: usize,
        state: &RowState,
        out: &[[f32; 8]; DIM_TILES],
        in_fours: bool,
    ) {
        let lane = lane();
        let first = (m_tile * WARP_ROWS) as u32 + lane / 4;
        // SAFETY: the place is the warp's.
        unsafe {
            for half in 0..2 {
                let (row, sum) = (first + 8 * half, quad_sum(state.sum[half as usize]));
                if lane.is_multiple_of(4) {
                    self.base.offset(Self::MAXIMA + 4 * row).store(state.max[half as usize]);
                    self.base.offset(Self::SUMS + 4 * row).store(sum);
                }
            }
            for dim_tile in 0..DIM_TILES {
                if in_fours {
                    for half in 0..2 {
                        let values = [0, 4, 1, 5].map(|index| out[dim_tile][2 * half + index].to_bits());
                        let column = 16 * dim_tile as u32 + 4 * (lane % 4);
                        self.element(first + 8 * half as u32, column).store(values);
                    }
                    continue;
                }
                for pair in 0..4 {
                    let row = first + 8 * (pair as u32 % 2);
                    let column = 16 * dim_tile as u32 + 8 * (pair as u32 / 2) + 2 * (lane % 4);
                    let values = [out[dim_tile][2 * pair].to_bits(), out[dim_tile][2 * pair + 1].to_bits()];
                    self.element(row, column).store(values);
                }
            }
        }
    }
}

/// Adds up what the warps have and writes it: to O, or as the partial result of a split.
///
/// # Safety
/// All threads of the block call it, after a barrier behind the stores of all warps.
#[inline(always)]
unsafe fn finish<E: Element16, const ID: usize>(
    args: &AttentionArgs,
    decode: &DecodeArgs,
    work: &DecodeWork,
    factors: Factors,
) {
    let warps = const { decode_tile(ID).warps };
    let row_columns = const { ATTENTION[ID].head_dim as u32 / SUM_COLUMNS };
    let mut index = thread::thread_idx_x();
    while index < Results::<ID>::ROWS * row_columns {
        let (tile_row, column) = (index / row_columns, index % row_columns * SUM_COLUMNS);
        index += const { ATTENTION[ID].threads() };
        let Some((position, head)) = work.row(args, tile_row) else { continue };
        if column >= args.value_dim {
            continue;
        }
        let word = |results: &Results<ID>, offset: u32| {
            // SAFETY: written before the barrier.
            unsafe { results.base.offset(offset + 4 * tile_row).load::<f32>() }
        };
        let mut largest = f32::NEG_INFINITY;
        for warp in 0..warps as u32 {
            largest = max(largest, word(&Results::of_warp(warp), Results::<ID>::MAXIMA));
        }
        let (mut sum, mut values) = (0f32, [0f32; SUM_COLUMNS as usize]);
        for warp in 0..warps as u32 {
            let results = Results::<ID>::of_warp(warp);
            let weight = split_weight(word(&results, Results::<ID>::MAXIMA), largest, args.scale_log2);
            sum = fma(weight, word(&results, Results::<ID>::SUMS), sum);
            // SAFETY: written before the barrier.
            let part: [u32; 4] = unsafe { results.element(tile_row, column).load() };
            for offset in 0..values.len() {
                values[offset] = fma(weight, f32::from_bits(part[offset]), values[offset]);
            }
        }
        let batch_head = work.batch * args.q_heads + head;
        let split = decode.splits > 1;
        // The sum of the splits has the sink.
        // SAFETY: there is such a head.
        let sink = if split { f32::NEG_INFINITY } else { unsafe { sink_of_head(args, batch_head) } };
        let result = row_result(largest, sum, args.scale_log2, sink);
        let values = values.map(|value| value * result.normaliser);
        let values = if let Some([_, factor]) = factors { values.map(|value| value * factor) } else { values };
        let store = |address: u64, row: u64, value: f32| {
            // SAFETY: there is a number for each row.
            unsafe { global::store((address + row * size_of::<f32>() as u64) as *mut f32, value) };
        };
        // SAFETY: the row and the column are inside O, its LSE and the workspace.
        unsafe {
            if split {
                let row = u64::from(work.split) * decode.rows
                    + if const { ATTENTION[ID].adds_up_splits() } && decode.semaphores != 0 {
                        work.first_partial_row(args, decode) + u64::from(tile_row)
                    } else {
                        u64::from(batch_head) * u64::from(args.q_len) + u64::from(position)
                    };
                let partial = decode.partial_o + (row * u64::from(args.value_dim) + u64::from(column)) * 4;
                global::store(partial as *mut [u32; 4], values.map(f32::to_bits));
                if column == 0 {
                    store(decode.partial_max, row, largest);
                    store(decode.partial_sum, row, sum);
                }
            } else {
                store_output::<E>(args, work.batch, head, position, column, values);
                if column == 0 && args.lse != 0 {
                    store(args.lse, u64::from(batch_head) * u64::from(args.q_len) + u64::from(position), result.lse);
                }
            }
        }
    }
}
