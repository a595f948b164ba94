//! FlashAttention forward on `mma` m16n8k16 with `cp.async` tiles, for sm_80 and later.
//!
//! ```text
//! Q tile -> shared memory
//! for each tile of keys that some row of the block sees:
//!     S = Q K^T               each warp: 16 rows by n keys, f32
//!     softcap, bias           where the configuration has them, see score_mod.rs
//!     mask S, online softmax  in registers, see softmax.rs
//!     O = factor O + P V      see pv.rs
//! O / l -> shared memory -> global memory, 16 bytes a lane
//! ```
//!
//! 1. Products are those of `mma.sync`, two side by side for 16 columns (`product.rs`). PTX fixes the maps of its
//!    fragments ([`layout::fragment`]), which has two uses. Fragments come from swizzled tiles by `ldmatrix`, which
//!    `wmma.load`, with one row stride, cannot read. And the accumulator of Q K^T is operand A of P V without passing
//!    through shared memory.
//! 2. With two stages both tiles of the next step are in flight during the whole of this step, at one barrier a step.
//!    With one stage V is in flight during Q K^T, and the next K during P V, at two barriers a step and half the shared
//!    memory.
//! 3. E4M3 has the same fragments, with 32 columns in the place of 16; e4m3.rs has its P V. Factors multiply scores as
//!    they leave the tensor cores, with the scale where softcap and bias need that first, and O at its end: all in
//!    between is as for elements of 16 bits.
//! 4. 8-bit integers become f16 on their way to shared memory, as copy.rs has it, and from there on are elements of 16
//!    bits. Their copies pass through registers: K of the next step is on its way during Q K^T, and V during the
//!    softmax and P V. Their factors are part of the scale, so that no instruction multiplies scores by them.
//! 5. Fragments of Q are read again at each step, which leaves registers for two tiles of scores. At 128 registers a
//!    thread, two to four blocks share a multiprocessor and hide each other's latency.
//!
//! Budget: 128 registers a thread; shared memory is the configuration's [`variants::attention::AttentionConfig::smem`]
//! map.

use cuda_std::convert::{Element16, rcp};
use cuda_std::hint::opaque;
use cuda_std::ptx::cp_async;
use cuda_std::shared;
use cuda_std::thread;
use cuda_std::warp::{FULL_MASK, sync_warp};
use layout::SmemRegion;
use variants::attention::{
    ATTENTION, AttentionArgs, AttentionConfig, AttentionKernel, DescaleArgs, MmaTile, ScoreMod, Seqlens, WARP_ROWS,
};

use crate::descale::factors;
use crate::epilogue::{e4m3_out, store_lse};
use crate::lane::{div_rem, lane, warp};
use crate::score_mod::HeadScoreMod;
use crate::seqlen::SeqlenInfo;
use crate::sm80::copy::{Rows, TileElement, TileShape};
use crate::sm80::epilogue::store_rows;
use crate::sm80::product::MmaInput;
use crate::sm80::pv::{PvAccumulator, TensorCore};
use crate::softmax::{RowState, ScoreScale, Subtraction};
use crate::tile::{Fragments, chunk_offset};
use crate::work::{Work, sink_of_block};

/// What the kernel of a configuration is made of, for elements of type `E`. `KEY_TILES` and `DIM_TILES` are the
/// [`key_tiles`] and [`dim_tiles`] of the configuration.
pub trait KernelTraits<E, const KEY_TILES: usize, const DIM_TILES: usize> {
    /// The configuration.
    const CONFIG: AttentionConfig;

    /// What computes P V.
    type Pv: PvAccumulator<E, KEY_TILES, DIM_TILES>;
}

/// The kernel of configuration `ID` of [`ATTENTION`], with tensor cores for both products.
pub(crate) enum Configuration<const ID: usize> {}

impl<E: Element16, const ID: usize, const KEY_TILES: usize, const DIM_TILES: usize>
    KernelTraits<E, KEY_TILES, DIM_TILES> for Configuration<ID>
{
    const CONFIG: AttentionConfig = ATTENTION[ID];

    type Pv = TensorCore<E, DIM_TILES>;
}

const fn mma_tile(config: &AttentionConfig) -> MmaTile {
    match config.kernel {
        AttentionKernel::Mma(tile) => tile,
        _ => panic!("the configuration is not one on `mma.sync`"),
    }
}

/// 16-key tiles of one step of a configuration.
pub const fn key_tiles(config: &AttentionConfig) -> usize {
    mma_tile(config).n / 16
}

/// 16-column tiles of the head dimension of a configuration.
pub const fn dim_tiles(config: &AttentionConfig) -> usize {
    config.head_dim / 16
}

/// The kernel. It does not compile for traits that differ from their configuration.
///
/// # Safety
/// The launch is that of the configuration of `T`, and `args` and `descales` describe its tensors and the factors of
/// inputs of E4M3 and of 8-bit integers.
#[inline(always)]
pub unsafe fn forward<E, T, const KEY_TILES: usize, const DIM_TILES: usize>(
    args: &AttentionArgs,
    descales: Option<&DescaleArgs>,
) where
    E: MmaInput,
    T: KernelTraits<E, KEY_TILES, DIM_TILES>,
{
    let tile = const { mma_tile(&T::CONFIG) };
    const {
        assert!(E::DTYPE as u8 == T::CONFIG.dtype as u8);
        assert!(KEY_TILES == key_tiles(&T::CONFIG) && DIM_TILES == dim_tiles(&T::CONFIG));
        assert!(T::Pv::UNIT as u8 == mma_tile(&T::CONFIG).pv as u8);
        assert!(E::Bits::TILE_BYTES == T::CONFIG.tile_elem_bytes());
        assert!(!E::Bits::IS_HELD || mma_tile(&T::CONFIG).stages == 2, "a step fills the other stage");
    }
    let (q_region, k_region, v_region) =
        const { (T::CONFIG.smem().get("q"), T::CONFIG.smem().get("k"), T::CONFIG.smem().get("v")) };
    let (threads, columns) = const { (T::CONFIG.threads(), T::CONFIG.head_dim) };
    let (step_keys, seqlens) = (tile.n as u32, const { T::CONFIG.seqlens });

    let place = || shared::dynamic().offset(q_region.offset_bytes);
    // SAFETY: the block is together, the launch is the configuration's, and nothing is in the tile of Q yet.
    let seqlen = |batch| unsafe { SeqlenInfo::of_block(args, batch, seqlens, place) };
    let work = Work::of_block::<E::Bits>(args, tile.m as u32, seqlens, seqlen);
    if seqlens > Seqlens::Fixed && work.first_row >= work.q_len {
        return;
    }
    let mut score_mod = HeadScoreMod::new(args, &work);
    let warp_row = || warp() * WARP_ROWS as u32;
    let base = shared::dynamic();
    let q_tile = base.offset(q_region.offset_bytes);

    let aligned = args.inputs_aligned != 0;
    let rows = |base: *const u8, stride, len, columns| {
        let base = base.cast::<E::Bits>();
        Rows { base, stride, len, columns, aligned }
    };
    let q = rows(work.q, args.q_strides.row, work.q_len, args.head_dim);
    let k = rows(work.k, args.k_strides.row, work.keys.len(), args.head_dim);
    let v = rows(work.v, args.v_strides.row, work.keys.len(), args.value_dim);
    let stage_tile = |region: SmemRegion, step: u32| base.offset(region.stage_offset(step % region.stages));
    // Zeros beside the columns of Q count for K too, and columns of O beside those of V are not stored. Scores of keys
    // that there are not are masked.
    let q_shape = TileShape { rows: tile.m, columns, threads, copy: tile.copy, pads: true };
    let shape = TileShape { rows: tile.n, pads: false, ..q_shape };
    let fetch = |rows: Rows<E::Bits>, region: SmemRegion, step: u32| {
        // SAFETY: every thread of the block is here, after the barrier that frees the tile; some row sees a key of the
        // step.
        unsafe { E::Bits::fetch(rows, stage_tile(region, step), step * step_keys, &shape) }
    };
    let place = |rows: Rows<E::Bits>, held: <E::Bits as TileElement>::Held, region: SmemRegion, step: u32| {
        // SAFETY: as for `fetch`.
        unsafe { E::Bits::place(rows, held, stage_tile(region, step), step * step_keys, &shape) };
    };
    let fetch_k = |step: u32| fetch(k, k_region, step);
    let fetch_v = |step: u32| fetch(v, v_region, step);

    // The steps whose keys some row of the block sees.
    let keys = work.keys;
    let last_row = |first_row: i32| (first_row + tile.m as i32).min(work.q_len as i32) - 1;
    let first_row = work.first_row as i32;
    let (first_step, end_step) = keys.steps(first_row, last_row(first_row), step_keys);

    let [score_factor, value_factor] = descales.map_or([1.0; 2], |descales| {
        let (kv_head, _) = div_rem(work.head, args.heads_per_kv);
        // SAFETY: the caller's contract.
        unsafe { factors(descales, work.batch, [work.head, kv_head], E::TILE_UNIT) }
    });
    if descales.is_some() {
        score_mod.scale *= score_factor;
    }

    // Kernels of 8-bit integers have no registers to spare: factors are part of the scale. What the scale is above 0,
    // the sign of Q has.
    let is_scale = E::Bits::IS_HELD && descales.is_some();
    let (mut scale, mut q_sign) = (ScoreScale::new(args), args.q_sign);
    if is_scale && matches!(const { T::CONFIG.score_mod }, ScoreMod::None) {
        let log2 = (score_factor.abs() * args.scale_log2).maximum(f32::MIN_POSITIVE).minimum(f32::MAX);
        scale = ScoreScale::of_tile(log2, rcp(log2));
        q_sign ^= if score_factor < 0.0 { 0x8000_8000 } else { 0 };
    }
    let scale_of_rows = || if is_scale { scale } else { ScoreScale::new(args) };

    let mut out = T::Pv::zero();
    let mut state = RowState::empty_times_power(Subtraction::LargeLate, E::P_EXPONENT);
    // SAFETY: the whole block takes the same steps, so that its threads meet at every barrier and copy; the barriers
    // order the uses of the tiles as the comments say.
    unsafe {
        if first_step < end_step {
            let q_held = E::Bits::fetch(q, q_tile, work.first_row, &q_shape);
            let k_held = fetch_k(first_step);
            let v_held = if tile.stages == 2 { fetch_v(first_step) } else { E::Bits::NOTHING };
            if E::Bits::IS_HELD {
                E::Bits::place(q, q_held, q_tile, work.first_row, &q_shape);
                place(k, k_held, k_region, first_step);
                place(v, v_held, v_region, first_step);
            } else {
                cp_async::commit_group();
            }
        }
        let mut step = first_step;
        while step < end_step {
            // K of this step (with two stages: V too) is there, and every warp has finished the step before.
            if !E::Bits::IS_HELD {
                cp_async::wait_group::<0>();
            }
            thread::sync_threads();
            let is_followed = step + 1 < end_step;
            let mut held = E::Bits::NOTHING;
            if E::Bits::IS_HELD {
                if is_followed {
                    held = fetch_k(step + 1);
                }
            } else if tile.stages == 1 {
                fetch_v(step);
                cp_async::commit_group();
            } else if is_followed {
                fetch_k(step + 1);
                fetch_v(step + 1);
                cp_async::commit_group();
            }

            let q_fragments = Fragments::rows_first(q_tile.offset(chunk_offset(tile.m, warp_row(), 0)), tile.m);
            let k_fragments = Fragments::columns_first(stage_tile(k_region, step), tile.n);
            let mut scores = qk::<E, KEY_TILES, DIM_TILES>(q_fragments, k_fragments, q_sign);
            if E::Bits::IS_HELD && is_followed {
                place(k, held, k_region, step + 1);
                held = fetch_v(step + 1);
            }
            if let (Some(_), ScoreMod::None, false) = (descales, const { T::CONFIG.score_mod }, is_scale) {
                scores.as_flattened_mut().iter_mut().for_each(|score| *score *= score_factor);
            }
            if let ScoreMod::General = const { T::CONFIG.score_mod } {
                let row = work.first_row + warp_row() + lane() / 4;
                score_mod.apply::<E::Output>(scores.as_flattened_mut(), row, lane() % 4, step * step_keys);
            }
            // Few steps are masked: opaque, the bounds of rows take no registers in the others.
            let (key, first_row) = ((step * step_keys) as i32, opaque(work.first_row) as i32);
            if !keys.covers(first_row, last_row(first_row), key, tile.n as i32) {
                let lane = lane();
                keys.apply(
                    scores.as_flattened_mut(),
                    first_row + (warp_row() + lane / 4) as i32,
                    (lane % 4) as i32,
                    key,
                );
            }
            let factors = state.step::<1>(scores.as_flattened_mut(), scale_of_rows());

            if tile.stages == 1 {
                // V of this step is there, and every warp has finished with K.
                cp_async::wait_group::<0>();
                thread::sync_threads();
                if step + 1 < end_step {
                    fetch_k(step + 1);
                    cp_async::commit_group();
                }
            }
            out.step(factors, &scores, stage_tile(v_region, step));
            if E::Bits::IS_HELD && is_followed {
                place(v, held, v_region, step + 1);
            }
            step += 1;
        }

        // A warp overwrites only rows of the Q tile that no other warp reads.
        let results = state.finalize(scale_of_rows(), sink_of_block(args, tile.m as u32));
        let normalisers = results.map(|row| row.normaliser * value_factor);
        // Found again, so that the addresses of O and the LSE take no registers in the loop.
        let seqlen = || if let Seqlens::Fixed = seqlens { SeqlenInfo::equal(args) } else { work.seqlen };
        let found_again = || Work::of_block::<E::Bits>(args, tile.m as u32, seqlens, |_| seqlen());
        if let Some(DescaleArgs { out_scale, .. }) = descales
            && const { T::CONFIG.may_narrow_out() }
            && *out_scale != 0.0
        {
            let work = found_again();
            let rows = [work.first_row + warp_row(), work.q_len];
            out.store_e4m3(normalisers.map(|normaliser| normaliser * out_scale), args, e4m3_out(args, &work), rows);
            store_lse(&work, &results, warp_row());
            return;
        }
        sync_warp(FULL_MASK);
        out.store(normalisers, q_tile, tile.m, warp_row());
        sync_warp(FULL_MASK);
        let work = found_again();
        store_rows(args, &work, q_tile, tile.m, columns, warp_row());
        store_lse(&work, &results, warp_row());
    }
}

/// S = Q K^T for the 16 rows of a warp and the keys of a step.
///
/// # Safety
/// All lanes of the warp call it together; both tiles are written and visible.
#[inline(always)]
unsafe fn qk<E: MmaInput, const KEY_TILES: usize, const DIM_TILES: usize>(
    q: Fragments,
    k: Fragments,
    q_sign: u32,
) -> [[f32; 8]; KEY_TILES] {
    let element_bytes = E::Bits::TILE_BYTES;
    // Of each of two elements, or of four.
    let signs = if element_bytes == 1 { q_sign | q_sign >> 8 } else { q_sign };
    let mut scores = [[0f32; 8]; KEY_TILES];
    for dim_tile in 0..DIM_TILES * element_bytes / 2 {
        // SAFETY: the caller's contract.
        let a = unsafe { q.load(0, dim_tile) }.map(|word| word ^ signs);
        for key_tile in 0..KEY_TILES {
            // SAFETY: the caller's contract.
            unsafe {
                let b = k.load(key_tile, dim_tile);
                scores[key_tile] = E::multiply(a, b, scores[key_tile]);
            }
        }
    }
    scores
}
