//! P V of each step as a sum of its own, which is added to O in f32.
//!
//! The tensor cores of Hopper add products of E4M3 with 13 bits below the largest, and the sum so far is one of what
//! they add. Over thousands of keys small terms would be lost. A sum over one step loses little.
//!
//! Where O has too many columns for a second set of accumulators, P V is computed for some columns after the others.

use cuda_std::convert::fma;
use cuda_std::ptx::wgmma::{self, Accumulator, Product};

use crate::sm90::config::{Config, PvProduct};
use crate::sm90::consumer::Rows;
use crate::sm90::input::Input;
use crate::sm90::product::{product_in_place, product_registers};
use crate::sm90::warpgroup::Warpgroup;

impl<const ID: usize, const STAGES: u32> Warpgroup<'_, ID, STAGES> {
    /// Starts P V of the current step for its first columns.
    ///
    /// # Safety
    /// As [`Warpgroup::compute`]; V is there, and nothing else of P V in flight.
    #[inline(always)]
    pub(crate) unsafe fn start_part<E: Input, const OUTPUTS: usize, const KEY_STEPS: usize, const PARTS: usize>(
        &self,
        rows: &mut Rows<OUTPUTS, KEY_STEPS, PARTS>,
    ) where
        [f32; PARTS]: Accumulator,
    {
        let v = self.v_tile::<E>(self.state.stage());
        // SAFETY: the caller's contract.
        rows.part = unsafe { product_registers::<PvProduct<E, ID>, _, KEY_STEPS>(&rows.p, v) };
    }

    /// Waits for P V of the current step, part by part, and adds it to O, which is multiplied by `factors` first.
    ///
    /// # Safety
    /// As [`Warpgroup::compute`]; the first part is in flight.
    #[inline(always)]
    pub(crate) unsafe fn add_parts<E: Input, const OUTPUTS: usize, const KEY_STEPS: usize, const PARTS: usize>(
        &self,
        rows: &mut Rows<OUTPUTS, KEY_STEPS, PARTS>,
        factors: [f32; 2],
    ) where
        [f32; OUTPUTS]: Accumulator,
        [f32; PARTS]: Accumulator,
    {
        for part in 0..OUTPUTS / PARTS {
            // SAFETY: the caller's contract.
            unsafe { wgmma::wait_group::<0, _>(&mut rows.part) };
            for index in 0..PARTS {
                let out = &mut rows.out[part * PARTS + index];
                *out = fma(*out, factors[index / 2 % 2], rows.part[index]);
            }
            if part + 1 < OUTPUTS / PARTS {
                // In the same registers, and not before these are added: all parts would be live at once otherwise.
                wgmma::settle(&mut rows.out);
                // A thread has two accumulators of each column.
                let part_bytes = const {
                    // Other configurations, which never come here, have columns that no part ends with.
                    if Config::<ID>::TWO_LEVEL { PvProduct::<E, ID>::B.mn_offset_bytes(2 * PARTS as u32) } else { 0 }
                };
                let v = self.v_tile::<E>(self.state.stage()).offset((part as u32 + 1) * part_bytes);
                // SAFETY: as above.
                unsafe { product_in_place::<PvProduct<E, ID>, _, KEY_STEPS>(&mut rows.part, &rows.p, v) };
            }
        }
    }
}
