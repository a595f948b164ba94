//! `O = factor * O + P V` for the 16 query rows of a warp, on the tensor cores or by multiply-adds.

use core::marker::PhantomData;

use cuda_std::convert::{Element16, fma};
use cuda_std::ptx::wmma::{Col, M16N16K16, Row, mma};
use cuda_std::shared::SharedAddr;
use cuda_std::warp;
use layout::attention::{ATTENTION, WARP_ROWS};

use crate::tile::{FragmentReader, chunk_offset, store_pair};

/// The accumulator O of one warp: 16 rows by `16 * DIM_TILES` columns.
pub(crate) trait ValueProduct<E, const KEY_TILES: usize, const DIM_TILES: usize> {
    /// O = 0, for lane `lane` of warp `warp` in a block of row `ROW` whose shared memory starts at `base`.
    fn zero<const ROW: usize>(base: SharedAddr, warp: u32, lane: u32) -> Self;

    /// `O = factors * O + P V`: P `16 x 16 KEY_TILES` in accumulator layout, V a tile of `16 * KEY_TILES` rows.
    ///
    /// # Safety
    /// All lanes of the warp call it together, and V is written and visible.
    unsafe fn step(&mut self, factors: [f32; 2], p: &[[f32; 8]; KEY_TILES], v: SharedAddr);

    /// Writes `normalisers * O` as rows `row ..` of a tile of `rows` rows; `normalisers` are those of this lane's two rows.
    ///
    /// # Safety
    /// All lanes of the warp call it together, and the rows are this warp's to write.
    unsafe fn store(&self, normalisers: [f32; 2], tile: SharedAddr, rows: usize, row: u32);
}

/// P V on the tensor cores: P is rounded to the element type, whose accumulator layout is the layout of operand A.
pub(crate) struct TensorCore<E, const DIM_TILES: usize> {
    out: [[f32; 8]; DIM_TILES],
    reader: FragmentReader,
    lane: u32,
    element: PhantomData<E>,
}

impl<E: Element16, const KEY_TILES: usize, const DIM_TILES: usize> ValueProduct<E, KEY_TILES, DIM_TILES>
    for TensorCore<E, DIM_TILES>
{
    #[inline(always)]
    fn zero<const ROW: usize>(_base: SharedAddr, _warp: u32, lane: u32) -> Self {
        Self { out: [[0.0; 8]; DIM_TILES], reader: FragmentReader::rows_first(lane), lane, element: PhantomData }
    }

    #[inline(always)]
    unsafe fn step(&mut self, factors: [f32; 2], p: &[[f32; 8]; KEY_TILES], v: SharedAddr) {
        for dim_tile in 0..DIM_TILES {
            for register in 0..8 {
                self.out[dim_tile][register] *= factors[register / 2 % 2];
            }
        }
        let v_fragments = self.reader.of(v, 16 * KEY_TILES);
        for key_tile in 0..KEY_TILES {
            let s = &p[key_tile];
            let a = [E::pack(s[0], s[1]), E::pack(s[2], s[3]), E::pack(s[4], s[5]), E::pack(s[6], s[7])];
            for dim_tile in 0..DIM_TILES {
                // SAFETY: the caller's contract.
                unsafe {
                    let b = v_fragments.load_transposed(key_tile, dim_tile);
                    self.out[dim_tile] = mma::<M16N16K16, E, Row, Col>(a, b, self.out[dim_tile]);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store(&self, normalisers: [f32; 2], tile: SharedAddr, rows: usize, row: u32) {
        for dim_tile in 0..DIM_TILES {
            for pair in 0..4 {
                let normaliser = normalisers[pair % 2];
                let values = [self.out[dim_tile][2 * pair] * normaliser, self.out[dim_tile][2 * pair + 1] * normaliser];
                let row = row + self.lane / 4 + 8 * (pair as u32 % 2);
                let column = 16 * dim_tile as u32 + 8 * (pair as u32 / 2) + 2 * (self.lane % 4);
                // SAFETY: the row is one of the warp's 16.
                unsafe { store_pair::<E>(tile, rows, row, column, values) };
            }
        }
    }
}

/// P V by f32 multiply-adds. A lane holds columns `2 lane` and the next (and the same 64 further on) of all 16 rows; P reaches it
/// through shared memory, transposed, so that the 16 rows of one key are four vector loads that every lane shares.
pub(crate) struct MultiplyAdd<E> {
    /// `[64 columns][row][column of the pair]`.
    out: [[[f32; 2]; WARP_ROWS]; MAX_PANELS],
    scratch: SharedAddr,
    lane: u32,
    element: PhantomData<E>,
}

/// Panels of the widest head dimension that a WMMA row has.
const MAX_PANELS: usize = 2;

impl<E: Element16> MultiplyAdd<E> {
    /// Gives every lane the values of all 16 rows, from the two of each lane of column 0 of the quads.
    #[inline(always)]
    unsafe fn broadcast_rows(&self, region: SharedAddr, values: [f32; 2]) -> [f32; WARP_ROWS] {
        // SAFETY: the region is this warp's; the barriers order its lanes' stores and loads.
        unsafe {
            if self.lane % 4 == 0 {
                region.offset(self.lane).store(values[0]);
                region.offset(self.lane + 32).store(values[1]);
            }
            warp::sync_warp(warp::FULL_MASK);
            let rows = load_rows(region);
            warp::sync_warp(warp::FULL_MASK);
            rows
        }
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

impl<E: Element16, const KEY_TILES: usize, const DIM_TILES: usize> ValueProduct<E, KEY_TILES, DIM_TILES>
    for MultiplyAdd<E>
{
    #[inline(always)]
    fn zero<const ROW: usize>(base: SharedAddr, warp: u32, lane: u32) -> Self {
        const { assert!(DIM_TILES % 4 == 0 && DIM_TILES / 4 <= MAX_PANELS) };
        let scratch = base.offset(const { ATTENTION[ROW].smem().get("p") }.stage_offset(warp));
        Self { out: [[[0.0; 2]; WARP_ROWS]; MAX_PANELS], scratch, lane, element: PhantomData }
    }

    #[inline(always)]
    unsafe fn step(&mut self, factors: [f32; 2], p: &[[f32; 8]; KEY_TILES], v: SharedAddr) {
        let keys = 16 * KEY_TILES;
        // SAFETY: the scratch is this warp's, and the barriers order its lanes' stores and loads.
        unsafe {
            for key_tile in 0..KEY_TILES {
                for register in 0..8 {
                    let key = 16 * key_tile as u32 + 8 * (register / 4) + 2 * (self.lane % 4) + register % 2;
                    let row = self.lane / 4 + 8 * (register / 2 % 2);
                    self.scratch.offset((key * WARP_ROWS as u32 + row) * 4).store(p[key_tile][register as usize]);
                }
            }
            let factors = self.broadcast_rows(self.scratch.offset((keys * WARP_ROWS * 4) as u32), factors);
            for panel in 0..DIM_TILES / 4 {
                for row in 0..WARP_ROWS {
                    self.out[panel][row][0] *= factors[row];
                    self.out[panel][row][1] *= factors[row];
                }
            }
            for key in 0..keys as u32 {
                let p = load_rows(self.scratch.offset(key * WARP_ROWS as u32 * 4));
                for panel in 0..DIM_TILES / 4 {
                    let offset = chunk_offset(keys, key, 8 * panel as u32 + self.lane / 4) + self.lane % 4 * 4;
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
    unsafe fn store(&self, normalisers: [f32; 2], tile: SharedAddr, rows: usize, row: u32) {
        // SAFETY: the scratch and the 16 rows are this warp's.
        unsafe {
            let normalisers = self.broadcast_rows(self.scratch, normalisers);
            for panel in 0..DIM_TILES / 4 {
                for offset in 0..WARP_ROWS {
                    let values = self.out[panel][offset].map(|value| value * normalisers[offset]);
                    store_pair::<E>(tile, rows, row + offset as u32, 64 * panel as u32 + 2 * self.lane, values);
                }
            }
        }
    }
}
