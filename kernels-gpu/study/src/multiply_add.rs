//! P V by f32 multiply-adds, for the 16 query rows of a warp. P stays in f32.

use core::marker::PhantomData;

use attention::lane::{lane, warp};
use attention::sm80::pv::{PvAccumulator, store_pair};
use attention::tile::chunk_offset;
use cuda_std::convert::{Element16, fma};
use cuda_std::shared::{self, SharedAddr};
use cuda_std::warp::{FULL_MASK, sync_warp, warp_vote_any};
use variants::attention::{PvUnit, WARP_ROWS};
use variants::study::ATTENTION_STUDY;

/// P V by f32 multiply-adds. A lane holds columns `2 lane` and `2 lane + 1` of all 16 rows, and the same 64 further on.
/// P reaches the lane through shared memory, transposed, so that the 16 rows of one key are four vector loads that
/// every lane shares. `ID` is the configuration, whose map of shared memory has the region "p" for that.
pub(crate) struct MultiplyAdd<E, const ID: usize> {
    /// `[64 columns][row][column of the pair]`.
    out: [[[f32; 2]; WARP_ROWS]; MAX_PANELS],
    element: PhantomData<E>,
}

/// Panels of the widest head dimension of a configuration: 128 columns.
const MAX_PANELS: usize = 2;

impl<E, const ID: usize> MultiplyAdd<E, ID> {
    /// This warp's part of the region "p".
    #[inline(always)]
    fn scratch() -> SharedAddr {
        shared::dynamic().offset(const { ATTENTION_STUDY[ID].smem().get("p") }.stage_offset(warp()))
    }
}

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
        sync_warp(FULL_MASK);
        let rows = load_rows(region);
        sync_warp(FULL_MASK);
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

impl<E: Element16, const ID: usize, const KEY_TILES: usize, const DIM_TILES: usize>
    PvAccumulator<E, KEY_TILES, DIM_TILES> for MultiplyAdd<E, ID>
{
    const UNIT: PvUnit = PvUnit::Scalar;

    #[inline(always)]
    fn zero() -> Self {
        const { assert!(DIM_TILES.is_multiple_of(4) && DIM_TILES / 4 <= MAX_PANELS) };
        Self { out: [[[0.0; 2]; WARP_ROWS]; MAX_PANELS], element: PhantomData }
    }

    #[inline(always)]
    unsafe fn step(&mut self, factors: [f32; 2], p: &[[f32; 8]; KEY_TILES], v: SharedAddr) {
        let (keys, lane, scratch) = (16 * KEY_TILES, lane(), Self::scratch());
        // SAFETY: the scratch is this warp's, and the barriers order its lanes' stores and loads.
        unsafe {
            for key_tile in 0..KEY_TILES {
                for register in 0..8 {
                    let key = 16 * key_tile as u32 + 8 * (register / 4) + 2 * (lane % 4) + register % 2;
                    let row = lane / 4 + 8 * (register / 2 % 2);
                    scratch.offset((key * WARP_ROWS as u32 + row) * 4).store(p[key_tile][register as usize]);
                }
            }
            if warp_vote_any(FULL_MASK, factors != [1.0; 2]) {
                let factors = broadcast_rows(scratch.offset((keys * WARP_ROWS * 4) as u32), factors);
                for panel in 0..DIM_TILES / 4 {
                    for row in 0..WARP_ROWS {
                        self.out[panel][row] = self.out[panel][row].map(|value| value * factors[row]);
                    }
                }
            }
            sync_warp(FULL_MASK);
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
            sync_warp(FULL_MASK);
        }
    }

    #[inline(always)]
    unsafe fn store(&self, normalisers: [f32; 2], tile: SharedAddr, rows: usize, row: u32) {
        // SAFETY: the scratch and the 16 rows are this warp's.
        unsafe {
            let normalisers = broadcast_rows(Self::scratch(), normalisers);
            for panel in 0..DIM_TILES / 4 {
                for offset in 0..WARP_ROWS {
                    let values = self.out[panel][offset].map(|value| value * normalisers[offset]);
                    store_pair::<E>(tile, rows, row + offset as u32, 64 * panel as u32 + 2 * lane(), values);
                }
            }
        }
    }
}
