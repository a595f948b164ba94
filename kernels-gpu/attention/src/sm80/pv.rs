//! `O = factor * O + P V` for the 16 query rows of a warp, on the tensor cores or by multiply-adds.

use core::marker::PhantomData;

use cuda_std::convert::{Element16, fma};
use cuda_std::shared::SharedAddr;
use cuda_std::warp;
use variants::attention::WARP_ROWS;

use crate::lane::lane;
use crate::sm80::product::multiply;
use crate::softmax::rescale_rows;
use crate::tile::{CHUNK_ELEMS, Fragments, chunk_offset};

/// The accumulator O of one warp: 16 rows by `16 * DIM_TILES` columns.
pub(crate) trait PvAccumulator<E, const KEY_TILES: usize, const DIM_TILES: usize> {
    /// O = 0.
    fn zero() -> Self;

    /// `O = factors * O + P V`, the factors those of this lane's two rows: P `16 x 16 KEY_TILES` in accumulator layout,
    /// V a tile of `16 * KEY_TILES` rows; `scratch` is this warp's part of the region "p".
    ///
    /// # Safety
    /// All lanes of the warp call it together, and V is written and visible.
    unsafe fn step(&mut self, factors: [f32; 2], p: &[[f32; 8]; KEY_TILES], v: SharedAddr, scratch: SharedAddr);

    /// Writes `normalisers * O` as rows `row ..` of a tile of `rows` rows; `normalisers` are those of this lane's two
    /// rows.
    ///
    /// # Safety
    /// All lanes of the warp call it together, and the rows are this warp's to write.
    unsafe fn store(&self, normalisers: [f32; 2], tile: SharedAddr, rows: usize, row: u32, scratch: SharedAddr);
}

/// P V on the tensor cores: P is rounded to the element type, whose accumulator layout is the layout of operand A.
pub(crate) struct TensorCore<E, const DIM_TILES: usize> {
    out: [[f32; 8]; DIM_TILES],
    element: PhantomData<E>,
}

impl<E, const DIM_TILES: usize> TensorCore<E, DIM_TILES> {
    /// O = 0.
    #[inline(always)]
    pub(crate) fn zero_rows() -> Self {
        Self { out: [[0.0; 8]; DIM_TILES], element: PhantomData }
    }

    /// O in accumulator layout.
    #[inline(always)]
    pub(crate) fn rows(&self) -> &[[f32; 8]; DIM_TILES] {
        &self.out
    }
}

impl<E: Element16, const KEY_TILES: usize, const DIM_TILES: usize> PvAccumulator<E, KEY_TILES, DIM_TILES>
    for TensorCore<E, DIM_TILES>
{
    #[inline(always)]
    fn zero() -> Self {
        Self::zero_rows()
    }

    #[inline(always)]
    unsafe fn step(&mut self, factors: [f32; 2], p: &[[f32; 8]; KEY_TILES], v: SharedAddr, _scratch: SharedAddr) {
        // SAFETY: the caller's contract.
        unsafe { rescale_rows(self.out.as_flattened_mut(), factors) };
        let v_fragments = Fragments::rows_first(v, 16 * KEY_TILES);
        for key_tile in 0..KEY_TILES {
            let s = &p[key_tile];
            let a = [E::pack(s[0], s[1]), E::pack(s[2], s[3]), E::pack(s[4], s[5]), E::pack(s[6], s[7])];
            for dim_tile in 0..DIM_TILES {
                // SAFETY: the caller's contract.
                unsafe {
                    let b = v_fragments.load_transposed(key_tile, dim_tile);
                    self.out[dim_tile] = multiply::<E>(a, b, self.out[dim_tile]);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store(&self, normalisers: [f32; 2], tile: SharedAddr, rows: usize, row: u32, _scratch: SharedAddr) {
        let lane = lane();
        for dim_tile in 0..DIM_TILES {
            for pair in 0..4 {
                let normaliser = normalisers[pair % 2];
                let values = [self.out[dim_tile][2 * pair] * normaliser, self.out[dim_tile][2 * pair + 1] * normaliser];
                let row = row + lane / 4 + 8 * (pair as u32 % 2);
                let column = 16 * dim_tile as u32 + 8 * (pair as u32 / 2) + 2 * (lane % 4);
                // SAFETY: the row is one of the warp's 16.
                unsafe { store_pair::<E>(tile, rows, row, column, values) };
            }
        }
    }
}

/// P V by f32 multiply-adds. A lane holds columns `2 lane` and `2 lane + 1` of all 16 rows, and the same 64 further on.
/// P reaches the lane through shared memory, transposed, so that the 16 rows of one key are four vector loads that
/// every lane shares.
pub(crate) struct MultiplyAdd<E> {
    /// `[64 columns][row][column of the pair]`.
    out: [[[f32; 2]; WARP_ROWS]; MAX_PANELS],
    element: PhantomData<E>,
}

/// Panels of the widest head dimension that a row of `mainloop_sm80` has.
const MAX_PANELS: usize = 2;

/// Gives every lane the values of all 16 rows, from the two that the first lane of each quad has.
///
/// # Safety
/// All lanes of the warp call it together, and the region is this warp's.
#[inline(always)]
unsafe fn broadcast_rows(region: SharedAddr, values: [f32; 2]) -> [f32; WARP_ROWS] {
    let lane = lane();
    // SAFETY: the region is this warp's; the barriers order its lanes' stores and loads.
    unsafe {
        if lane.is_multiple_of(4) {
            region.offset(lane).store(values[0]);
            region.offset(lane + 32).store(values[1]);
        }
        warp::sync_warp(warp::FULL_MASK);
        let rows = load_rows(region);
        warp::sync_warp(warp::FULL_MASK);
        rows
    }
}

/// Sixteen f32 from shared memory.
///
/// # Safety
/// They are written and visible, on a 16-byte boundary.
#[inline(always)]
unsafe fn load_rows(address: SharedAddr) -> [f32; WARP_ROWS] {
    let mut rows = [0.0; WARP_ROWS];
    for group in 0..WARP_ROWS / 4 {
        // SAFETY: the caller's contract.
        let words: [u32; 4] = unsafe { address.offset(16 * group as u32).load() };
        for index in 0..4 {
            rows[4 * group + index] = f32::from_bits(words[index]);
        }
    }
    rows
}

impl<E: Element16, const KEY_TILES: usize, const DIM_TILES: usize> PvAccumulator<E, KEY_TILES, DIM_TILES>
    for MultiplyAdd<E>
{
    #[inline(always)]
    fn zero() -> Self {
        const { assert!(DIM_TILES.is_multiple_of(4) && DIM_TILES / 4 <= MAX_PANELS) };
        Self { out: [[[0.0; 2]; WARP_ROWS]; MAX_PANELS], element: PhantomData }
    }

    #[inline(always)]
    unsafe fn step(&mut self, factors: [f32; 2], p: &[[f32; 8]; KEY_TILES], v: SharedAddr, scratch: SharedAddr) {
        let (keys, lane) = (16 * KEY_TILES, lane());
        // SAFETY: the scratch is this warp's, and the barriers order its lanes' stores and loads.
        unsafe {
            for key_tile in 0..KEY_TILES {
                for register in 0..8 {
                    let key = 16 * key_tile as u32 + 8 * (register / 4) + 2 * (lane % 4) + register % 2;
                    let row = lane / 4 + 8 * (register / 2 % 2);
                    scratch.offset((key * WARP_ROWS as u32 + row) * 4).store(p[key_tile][register as usize]);
                }
            }
            if warp::warp_vote_any(warp::FULL_MASK, factors != [1.0; 2]) {
                let factors = broadcast_rows(scratch.offset((keys * WARP_ROWS * 4) as u32), factors);
                for panel in 0..DIM_TILES / 4 {
                    for row in 0..WARP_ROWS {
                        self.out[panel][row] = self.out[panel][row].map(|value| value * factors[row]);
                    }
                }
            }
            warp::sync_warp(warp::FULL_MASK);
            for key in 0..keys as u32 {
                let p = load_rows(scratch.offset(key * WARP_ROWS as u32 * 4));
                for panel in 0..DIM_TILES / 4 {
                    let offset = chunk_offset(keys, key, 8 * panel as u32 + lane / 4) + lane % 4 * 4;
                    let (low, high) = E::unpack(v.offset(offset).load());
                    for row in 0..WARP_ROWS {
                        let out = &mut self.out[panel][row];
                        *out = [fma(p[row], low, out[0]), fma(p[row], high, out[1])];
                    }
                }
            }
            // The next step overwrites P.
            warp::sync_warp(warp::FULL_MASK);
        }
    }

    #[inline(always)]
    unsafe fn store(&self, normalisers: [f32; 2], tile: SharedAddr, rows: usize, row: u32, scratch: SharedAddr) {
        // SAFETY: the scratch and the 16 rows are this warp's.
        unsafe {
            let normalisers = broadcast_rows(scratch, normalisers);
            for panel in 0..DIM_TILES / 4 {
                for offset in 0..WARP_ROWS {
                    let values = self.out[panel][offset].map(|value| value * normalisers[offset]);
                    store_pair::<E>(tile, rows, row + offset as u32, 64 * panel as u32 + 2 * lane(), values);
                }
            }
        }
    }
}

/// Writes two elements of configuration `id`, columns `column` (even) and the next, packed.
///
/// # Safety
/// The place is this thread's to write.
#[inline(always)]
unsafe fn store_pair<E: Element16>(tile: SharedAddr, rows: usize, row: u32, column: u32, pair: [f32; 2]) {
    let offset = chunk_offset(rows, row, column / CHUNK_ELEMS as u32) + column % CHUNK_ELEMS as u32 * 2;
    // SAFETY: the caller's contract; an even column is 4-byte aligned.
    unsafe { tile.offset(offset).store(E::pack(pair[0], pair[1])) }
}
