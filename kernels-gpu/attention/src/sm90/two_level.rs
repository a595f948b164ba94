//! P V of some steps as a sum of its own, the part, which is then added to O in f32.
//!
//! The tensor cores of Hopper add products of E4M3 with 13 bits below the largest, and the sum so far is one of what
//! they add. Over thousands of keys small terms would be lost. A sum over [`TWO_LEVEL_KEYS`] keys loses little.
//!
//! Where there are registers for a second set of accumulators, the part takes the place of O in the main loop: it is
//! rescaled where a maximum grows. O is not: it is multiplied by all these factors when the part is added. Where O has
//! too many columns for that, P V of each step is computed for some columns after the others, and added at once.

use cuda_std::convert::fma;
use cuda_std::ptx::wgmma::{self, Accumulator, Product};
use variants::attention::TWO_LEVEL_KEYS;

use crate::input::Input;
use crate::sm90::config::{Config, PvProduct};
use crate::sm90::product::{product_registers, start_or_accumulate};
use crate::sm90::rows::Rows;
use crate::sm90::warpgroup::Warpgroup;
use crate::softmax::rescale_rows;

impl<const ID: usize, const STAGES: u32> Warpgroup<'_, ID, STAGES> {
    /// Steps of a part that has all columns.
    const PART_STEPS: u32 = TWO_LEVEL_KEYS / Config::<ID>::N;

    /// Starts P V of the current step, for the columns of the part.
    ///
    /// # Safety
    /// As [`Warpgroup::compute`]; V is there, and nothing else of P V in flight.
    #[inline(always)]
    pub(crate) unsafe fn start_part<E: Input, const OUTPUTS: usize, const KEY_STEPS: usize, const PARTS: usize>(
        &self,
        rows: &mut Rows<OUTPUTS, KEY_STEPS, PARTS>,
    ) where
        [f32; OUTPUTS]: Accumulator,
        [f32; PARTS]: Accumulator,
    {
        let v = self.v_tile::<E>(self.state.stage());
        let part = &mut rows.part;
        // SAFETY: the caller's contract. Scaling does not start before S is in flight.
        unsafe {
            if PARTS < OUTPUTS {
                wgmma::settle(&mut rows.out);
                rescale_rows(&mut rows.out, rows.factors);
                part.sum = product_registers::<PvProduct<E, ID>, _, KEY_STEPS>(&rows.p, v);
            } else {
                part.factors = [0, 1].map(|half| part.factors[half] * rows.factors[half]);
                wgmma::settle(&mut part.sum);
                rescale_rows(&mut part.sum, rows.factors);
                start_or_accumulate::<PvProduct<E, ID>, _, KEY_STEPS>(&mut part.sum, &rows.p, v, part.steps > 0);
            }
            part.steps += 1;
        }
    }

    /// Waits for P V of the current step. Adds the part to O where it has as many steps as it may have, or `is_last`.
    ///
    /// # Safety
    /// As [`Warpgroup::compute`]; P V is in flight.
    #[inline(always)]
    pub(crate) unsafe fn end_part<E: Input, const OUTPUTS: usize, const KEY_STEPS: usize, const PARTS: usize>(
        &self,
        rows: &mut Rows<OUTPUTS, KEY_STEPS, PARTS>,
        is_last: bool,
    ) where
        [f32; OUTPUTS]: Accumulator,
        [f32; PARTS]: Accumulator,
    {
        // SAFETY: the caller's contract.
        unsafe { wgmma::wait_group::<0, _>(&mut rows.part.sum) };
        if PARTS == OUTPUTS && !is_last && rows.part.steps < Self::PART_STEPS {
            return;
        }
        for columns in 0..OUTPUTS / PARTS {
            for index in 0..PARTS {
                let out = &mut rows.out[columns * PARTS + index];
                let factor = if PARTS < OUTPUTS { 1.0 } else { rows.part.factors[index / 2 % 2] };
                *out = fma(*out, factor, rows.part.sum[index]);
            }
            if columns + 1 < OUTPUTS / PARTS {
                // In the same registers, and not before these are added: all parts would be live at once otherwise.
                wgmma::settle(&mut rows.out);
                // A thread has two accumulators of each column.
                let part_bytes = const {
                    // Other configurations, which never come here, have columns that no part ends with.
                    if Config::<ID>::TWO_LEVEL { PvProduct::<E, ID>::B.mn_offset_bytes(2 * PARTS as u32) } else { 0 }
                };
                let v = self.v_tile::<E>(self.state.stage()).offset((columns as u32 + 1) * part_bytes);
                // SAFETY: as above.
                unsafe {
                    start_or_accumulate::<PvProduct<E, ID>, _, KEY_STEPS>(&mut rows.part.sum, &rows.p, v, false);
                    wgmma::wait_group::<0, _>(&mut rows.part.sum);
                }
            }
        }
        (rows.part.factors, rows.part.steps) = ([1.0; 2], 0);
    }
}
