//! Decoding: few query rows on many keys, for sm_80 and later.
//!
//! ```text
//! 16 packed rows of Q -> registers
//! each warp, for its share of the 16-key steps of the block's split:
//!     prefetch K, V -> the warp's ring               cp.async, see pages.rs
//!     S = Q K^T, mask, online softmax, O += P V      in registers; softcap and bias in general configurations
//! O, maxima and sums of the warps -> shared memory -> their sum
//! one split: O / l and the LSE to global memory; several: O / l, maximum and l to the workspace, for combine.rs
//! ```
//!
//! 1. Every byte of K and V is used once and by one warp, so what counts is how many bytes are in flight. Each warp
//!    waits for its own copies alone. No barrier of the block stands in the loop, and warps that compute leave the
//!    memory to warps that wait.
//! 2. All query heads of one key-value head share a tile, position by position, so that K and V are read once for all
//!    of them.
//! 3. A step lies in one page of a block table, whose entry is loaded a step before it is used.
//! 4. Sums are in one order, that of warps and splits: the same bits in every run.
//! 5. K and V may be of another type than Q: key_values.rs. Their factors multiply scores, and O at its end.
//!
//! Budget: O, Q and one step of scores in the configuration's registers; shared memory is the configuration's
//! [`variants::attention::AttentionConfig::smem`] map.

use cuda_std::convert::{Element16, fma, max};
use cuda_std::hint::opaque;
use cuda_std::ptx::cp_async;
use cuda_std::ptx::griddepcontrol;
use cuda_std::shared::SharedAddr;
use cuda_std::warp::{FULL_MASK, quad_sum, sync_warp};
use cuda_std::{global, shared, thread};
use variants::attention::{
    ATTENTION, AttentionArgs, AttentionKernel, DECODE_KEYS, DecodeArgs, DecodeTile, DescaleArgs, ScoreMod, WARP_ROWS,
};

use crate::descale::factor;
use crate::lane::{div_rem, lane, warp, warp_uniform};
use crate::mask::KeyRange;
use crate::score_mod::{BiasWords, HeadScoreMod};
use crate::sm80::key_values::KeyValues;
use crate::sm80::pages::{KeyRows, PageSlot, Pages};
use crate::sm80::pv::TensorCore;
use crate::softmax::{RowState, ScoreScale, Subtraction, row_result, split_weight};
use crate::work::sink_of_head;

const fn decode_tile(id: usize) -> DecodeTile {
    match ATTENTION[id].kernel {
        AttentionKernel::Decode(tile) => tile,
        _ => panic!("the configuration is not a decode configuration"),
    }
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

/// What a block computes: some packed rows, on one split of the keys.
struct DecodeWork {
    batch: u32,
    kv_head: u32,
    split: u32,
    /// The first of its packed rows.
    first_row: u32,
}

impl DecodeWork {
    /// Tiles that read the same keys follow each other, so that they find the keys in L2.
    #[inline(always)]
    fn of_block(decode: &DecodeArgs) -> Self {
        let (rest, row_tile) = div_rem(thread::block_idx_x(), decode.m_tiles);
        let (group, split) = div_rem(rest, decode.splits);
        let (batch, kv_head) = div_rem(group, decode.kv_heads);
        Self { batch, kv_head, split, first_row: row_tile * WARP_ROWS as u32 }
    }

    /// Position and head of the block's packed row `row`; `None` beyond the last.
    #[inline(always)]
    fn row(&self, args: &AttentionArgs, row: u32) -> Option<(u32, u32)> {
        let (position, head) = div_rem(self.first_row + row, args.heads_per_kv);
        (position < args.q_len).then_some((position, self.kv_head * args.heads_per_kv + head))
    }

    /// Position of the block's packed row `row`, or the last one.
    #[inline(always)]
    fn position(&self, args: &AttentionArgs, row: u32) -> u32 {
        div_rem(self.first_row + row, args.heads_per_kv).0.min(args.q_len - 1)
    }

    /// Its split of the steps `first .. end` that its rows see: from the first number up to the second.
    #[inline(always)]
    fn steps(&self, decode: &DecodeArgs, (first, end): (u32, u32)) -> (u32, u32) {
        let count = end.saturating_sub(first);
        let each = div_rem(count + decode.splits - 1, decode.splits).0;
        let start = first + (each * self.split).min(count);
        (start, start + each.min(first + count - start))
    }

    /// Two elements of Q at an even column of packed row `row`; zeros outside.
    ///
    /// # Safety
    /// `args` describes the tensors.
    #[inline(always)]
    unsafe fn query(&self, args: &AttentionArgs, row: Option<(u32, u32)>, column: u32) -> u32 {
        let Some((position, head)) = row.filter(|_| column < args.head_dim) else { return 0 };
        let strides = &args.q_strides;
        let offset = i64::from(self.batch) * strides.batch
            + i64::from(head) * strides.head
            + i64::from(position) * strides.row
            + i64::from(column);
        let q = (args.q as *const u16).wrapping_offset(offset as isize);
        // SAFETY: the row and the column, which is even as the head dimension is, are inside Q.
        let pair = unsafe {
            if args.inputs_aligned != 0 {
                global::load(q.cast::<u32>())
            } else {
                u32::from(global::load(q)) | u32::from(global::load(q.wrapping_add(1))) << 16
            }
        };
        pair ^ args.q_sign
    }
}

/// What K and V are multiplied by; `None` where they have no factors.
type Factors = Option<[f32; 2]>;

impl DecodeWork {
    /// The factors of the block's keys and values.
    ///
    /// # Safety
    /// There are factors of the head.
    #[inline(always)]
    unsafe fn factors(&self, descales: Option<&DescaleArgs>) -> Factors {
        // SAFETY: the caller's contract.
        let factor = |tensor| unsafe { factor(tensor, self.batch, self.kv_head) };
        descales.map(|descales| [factor(&descales.k), factor(&descales.v)])
    }
}

/// # Safety
/// The launch is that of configuration `ID`, `DIM_TILES` and `PENDING` are its [`dim_tiles`] and [`pending`], and
/// `args`, `decode` and `descales` describe its tensors, the block table, the numbers of keys, the workspace and the
/// factors of K and V.
#[inline(always)]
pub(crate) unsafe fn forward<E, KV, const ID: usize, const DIM_TILES: usize, const PENDING: u32>(
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

    // The kernel that combines the splits can start now: it waits for this one to end.
    griddepcontrol::launch_dependents();
    let work = DecodeWork::of_block(decode);
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
    let (top, bottom) = (work.position(args, 0) as i32, work.position(args, WARP_ROWS as u32 - 1) as i32);
    let (first_step, end_step) = work.steps(decode, keys.steps(top, bottom, DECODE_KEYS as u32));

    let pages = Pages::new(decode, work.batch);
    let k = KeyRows::<KV::Bits>::new(args, (args.k, &args.k_strides), work.kv_head, args.head_dim, swizzle);
    let v = KeyRows::<KV::Bits>::new(args, (args.v, &args.v_strides), work.kv_head, args.value_dim, swizzle);

    let mut out = TensorCore::<E, DIM_TILES>::zero_rows();
    let mut state = RowState::empty(Subtraction::LargeLate);
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
        let rows = [work.row(args, first), work.row(args, first + 8)];
        let positions = [work.position(args, first) as i32, work.position(args, first + 8) as i32];
        let mut q = [[0u32; 4]; DIM_TILES];
        for dim_tile in 0..DIM_TILES {
            for register in 0..4 {
                let column = 16 * dim_tile as u32 + KV::query_column(register as u32, pair);
                q[dim_tile][register] = work.query(args, rows[register % 2], column);
            }
        }

        let score_mod = |head: u32| HeadScoreMod::of_head(args, [work.batch, head], args.q_len, k_len);
        let bias_rows = rows.map(|row| match row {
            Some((position, head)) if general => score_mod(head).bias_row(position),
            _ => core::ptr::null(),
        });
        let (mut step, mut stage) = (first_step + warp(), 0);
        while step < end_step {
            let key = step * DECODE_KEYS as u32;
            // On its way while the copies come and Q K^T is computed, where registers have room for it beside Q and O.
            let load_bias = || BiasWords::load(bias_rows, key + pair, k_len);
            let bias = if general && columns <= EARLY_BIAS_COLUMNS { Some(load_bias()) } else { None };
            // The copies of this step are there, and every lane has finished with the stage before, which is filled
            // next.
            cp_async::wait_group::<PENDING>();
            sync_warp(FULL_MASK);
            prefetch(if stage == 0 { stages - 1 } else { stage - 1 });

            let mut scores = KV::scores(&q, k_tile(stage), swizzle);
            if let Some([factor, _]) = factors {
                scores[0] = scores[0].map(|score| score * factor);
            }
            if general {
                // All heads are scaled and bounded alike.
                score_mod(0).cap(&mut scores[0]);
                bias.unwrap_or_else(load_bias).add_to::<E>(&mut scores[0], args.bias_scale);
            }
            let key = key as i32;
            if !keys.covers(top, bottom, key, DECODE_KEYS as i32) {
                keys.hide(&mut scores[0], positions, (lane() % 4) as i32, key);
            }
            let rescale = state.step::<1>(&mut scores[0], ScoreScale::new(args));
            KV::add_values(&mut out, rescale, &scores, v_tile(stage), swizzle);
            step += warps;
            stage = if stage + 1 == stages { 0 } else { stage + 1 };
        }
        if !sound {
            state.sum = [f32::NAN; 2];
        }
        reduce::<E, KV, ID, DIM_TILES>(args, decode, &work, factors, &state, out.rows());
    }
}

/// Leaves what this warp has in shared memory, and writes the sum of all warps.
///
/// # Safety
/// All threads of the block call it.
#[inline(always)]
unsafe fn reduce<E: Element16, KV: KeyValues<E>, const ID: usize, const DIM_TILES: usize>(
    args: &AttentionArgs,
    decode: &DecodeArgs,
    work: &DecodeWork,
    factors: Factors,
    state: &RowState,
    out: &[[f32; 8]; DIM_TILES],
) {
    // SAFETY: the caller's contract.
    unsafe {
        // Every warp has finished with its stages.
        thread::sync_threads();
        Results::<ID>::of_warp(warp()).store(state, out, KV::IN_FOURS);
        thread::sync_threads();
        finish::<E, ID>(args, decode, work, factors);
    }
}

/// O, maxima and sums of one warp in shared memory, in the place of its stages.
struct Results<const ID: usize> {
    base: SharedAddr,
}

impl<const ID: usize> Results<ID> {
    /// Elements from one row of O to the next: eight more than it has, so that the rows of a store fall on different
    /// banks.
    const STRIDE: u32 = ATTENTION[ID].head_dim as u32 + 8;
    const MAXIMA: u32 = WARP_ROWS as u32 * Self::STRIDE * size_of::<f32>() as u32;
    const SUMS: u32 = Self::MAXIMA + (WARP_ROWS * size_of::<f32>()) as u32;

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

    /// Writes what this warp has, in whose accumulators columns lie [`in_fours`](KeyValues::IN_FOURS) or not.
    ///
    /// # Safety
    /// All lanes of the warp call it together, and its stages are no longer used.
    #[inline(always)]
    unsafe fn store<const DIM_TILES: usize>(&self, state: &RowState, out: &[[f32; 8]; DIM_TILES], in_fours: bool) {
        let lane = lane();
        // SAFETY: the place is the warp's.
        unsafe {
            for half in 0..2 {
                let (row, sum) = (lane / 4 + 8 * half, quad_sum(state.sum[half as usize]));
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
                        self.element(lane / 4 + 8 * half as u32, column).store(values);
                    }
                    continue;
                }
                for pair in 0..4 {
                    let row = lane / 4 + 8 * (pair as u32 % 2);
                    let column = 16 * dim_tile as u32 + 8 * (pair as u32 / 2) + 2 * (lane % 4);
                    let values = [out[dim_tile][2 * pair].to_bits(), out[dim_tile][2 * pair + 1].to_bits()];
                    self.element(row, column).store(values);
                }
            }
        }
    }
}

/// Columns that a thread sums at a time.
const SUM_COLUMNS: u32 = 4;

/// Adds up what the warps have and writes it.
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
    while index < WARP_ROWS as u32 * row_columns {
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
        let row = u64::from(batch_head) * u64::from(args.q_len) + u64::from(position);
        let store = |address: u64, row: u64, value: f32| {
            // SAFETY: there is a number for each row.
            unsafe { global::store((address + row * size_of::<f32>() as u64) as *mut f32, value) };
        };
        // SAFETY: the row and the column are inside O, its LSE and the workspace.
        unsafe {
            if split {
                let row = u64::from(work.split) * decode.rows + row;
                let partial = decode.partial_o + (row * u64::from(args.value_dim) + u64::from(column)) * 4;
                global::store(partial as *mut [u32; 4], values.map(f32::to_bits));
                if column == 0 {
                    store(decode.partial_max, row, largest);
                    store(decode.partial_sum, row, sum);
                }
            } else {
                store_output::<E>(args, work.batch, head, position, column, values);
                if column == 0 && args.lse != 0 {
                    store(args.lse, row, result.lse);
                }
            }
        }
    }
}

/// # Safety
/// The row and the columns are inside O.
#[inline(always)]
unsafe fn store_output<E: Element16>(
    args: &AttentionArgs,
    batch: u32,
    head: u32,
    position: u32,
    column: u32,
    values: [f32; SUM_COLUMNS as usize],
) {
    let strides = &args.o_strides;
    let offset = i64::from(batch) * strides.batch
        + i64::from(head) * strides.head
        + i64::from(position) * strides.row
        + i64::from(column);
    let out = (args.o as *mut u16).wrapping_offset(offset as isize);
    // SAFETY: the caller's contract.
    unsafe {
        if args.output_aligned != 0 {
            global::store(out.cast::<[u32; 2]>(), [E::pack(values[0], values[1]), E::pack(values[2], values[3])]);
        } else {
            for index in 0..values.len() {
                global::store(out.wrapping_add(index), E::from_f32(values[index]));
            }
        }
    }
}
