//! `O = factor * O + P V` for the 16 query rows of a warp.

use core::marker::PhantomData;

use cuda_std::convert::Element16;
use cuda_std::shared::SharedAddr;
use variants::attention::{AttentionArgs, PvUnit};

use crate::lane::lane;
use crate::sm80::product::multiply;
use crate::softmax::rescale_rows;
use crate::tile::{CHUNK_ELEMS, Fragments, chunk_offset};

/// The accumulator O of one warp: 16 rows by `16 * DIM_TILES` columns.
pub trait PvAccumulator<E, const KEY_TILES: usize, const DIM_TILES: usize> {
    /// What configurations call the unit.
    const UNIT: PvUnit;

    /// O = 0.
    fn zero() -> Self;

    /// `O = factors * O + P V`, the factors those of this lane's two rows: P `16 x 16 KEY_TILES` in accumulator layout,
    /// V a tile of `16 * KEY_TILES` rows.
    ///
    /// # Safety
    /// All lanes of the warp call it together, and V is written and visible.
    unsafe fn step(&mut self, factors: [f32; 2], p: &[[f32; 8]; KEY_TILES], v: SharedAddr);

    /// Writes `normalisers * O` as rows `row ..` of a tile of `rows` rows; `normalisers` are those of this lane's two
    /// rows.
    ///
    /// # Safety
    /// All lanes of the warp call it together, and the rows are this warp's to write.
    unsafe fn store(&self, normalisers: [f32; 2], tile: SharedAddr, rows: usize, row: u32);

    /// Writes `normalisers * O` as the 16 rows from `row` on, those below `rows`, of an O of E4M3 whose row 0 is at
    /// `out`, in configurations that may have one ([`variants::attention::AttentionConfig::may_narrow_out`]).
    ///
    /// # Safety
    /// As [`Self::store`]; `args` describe an O of so many rows.
    unsafe fn store_e4m3(&self, _normalisers: [f32; 2], _args: &AttentionArgs, _out: *mut u8, _rows: [u32; 2]) {}
}

/// P V on the tensor cores: P is rounded to the element type, whose accumulator layout is the layout of operand A.
pub struct TensorCore<E, const DIM_TILES: usize> {
    out: [[f32; 8]; DIM_TILES],
    element: PhantomData<E>,
}

impl<E, const DIM_TILES: usize> TensorCore<E, DIM_TILES> {
    /// O = 0.
    #[inline(always)]
    pub(crate) const fn zero_rows() -> Self {
        Self { out: [[0.0; 8]; DIM_TILES], element: PhantomData }
    }

    /// [`PvAccumulator::store`] of elements of another type.
    ///
    /// # Safety
    /// As [`PvAccumulator::store`].
    #[inline(always)]
    pub(crate) unsafe fn store_as<O: Element16>(&self, normalisers: [f32; 2], tile: SharedAddr, rows: usize, row: u32) {
        let lane = lane();
        for dim_tile in 0..DIM_TILES {
            for pair in 0..4 {
                let normaliser = normalisers[pair % 2];
                let values = [self.out[dim_tile][2 * pair] * normaliser, self.out[dim_tile][2 * pair + 1] * normaliser];
                let row = row + lane / 4 + 8 * (pair as u32 % 2);
                let column = 16 * dim_tile as u32 + 8 * (pair as u32 / 2) + 2 * (lane % 4);
                // SAFETY: the row is one of the warp's 16.
                unsafe { store_pair::<O>(tile, rows, row, column, values) };
            }
        }
    }

    /// O in accumulator layout.
    #[inline(always)]
    pub(crate) fn rows(&self) -> &[[f32; 8]; DIM_TILES] {
        &self.out
    }

    /// The same to add to.
    #[inline(always)]
    pub(crate) fn rows_mut(&mut self) -> &mut [[f32; 8]; DIM_TILES] {
        &mut self.out
    }
}

impl<E: Element16, const KEY_TILES: usize, const DIM_TILES: usize> PvAccumulator<E, KEY_TILES, DIM_TILES>
    for TensorCore<E, DIM_TILES>
{
    const UNIT: PvUnit = PvUnit::TensorCore;

    #[inline(always)]
    fn zero() -> Self {
        Self::zero_rows()
    }

    #[inline(always)]
    unsafe fn step(&mut self, factors: [f32; 2], p: &[[f32; 8]; KEY_TILES], v: SharedAddr) {
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
    unsafe fn store(&self, normalisers: [f32; 2], tile: SharedAddr, rows: usize, row: u32) {
        // SAFETY: the caller's contract.
        unsafe { self.store_as::<E>(normalisers, tile, rows, row) };
    }
}

/// Writes two elements of a tile of `rows` rows, those of `row` in column `column` (even) and the next, packed.
///
/// # Safety
/// The place is this thread's to write.
#[inline(always)]
pub unsafe fn store_pair<E: Element16>(tile: SharedAddr, rows: usize, row: u32, column: u32, pair: [f32; 2]) {
    let offset = chunk_offset(rows, row, column / CHUNK_ELEMS as u32) + column % CHUNK_ELEMS as u32 * 2;
    // SAFETY: the caller's contract; an even column is 4-byte aligned.
    unsafe { tile.offset(offset).store(E::pack(pair[0], pair[1])) }
}
