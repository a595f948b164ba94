//! What a consumer warpgroup does: the rows of O that are its own, one tile after the other.
//!
//! ```text
//! for each tile of this block:
//!     load Q
//!     last_step:  S = Q K^T, mask, softmax, P of the last step that the rows see
//!     step:       of each step before: S = Q K^T; O = O + P V of the step after it; mask, softmax, P
//!     finish:     O = O + P V of the first step; then O / l, or what split-KV warpgroups have for each other
//! ```
//!
//! [`crate::sm90::kernel`] says why the steps stand in this order.

use cuda_std::hint::opaque;
use cuda_std::ptx::wgmma::{self, Accumulator};
use cuda_std::shared::SharedAddr;
use variants::attention::{AttentionArgs, DescaleArgs, QuerySource};

use crate::epilogue::store_lse;
use crate::input::Input;
use crate::sm90::config::{Config, PvProduct};
use crate::sm90::descale::Descale;
use crate::sm90::epilogue;
use crate::sm90::kv_split;
use crate::sm90::pingpong::WarpScheduler;
use crate::sm90::pipeline::PipelineState;
use crate::sm90::product::{accumulate, pack, wait_before};
use crate::sm90::query::Query;
use crate::sm90::rows::{Part, Rows};
use crate::sm90::scheduler::TileScheduler;
use crate::sm90::score_mod::bound;
use crate::sm90::tile::{ConsumerTile, Steps};
use crate::sm90::warpgroup::{Warpgroup, negate_rows, sync_consumers, warp_row};
use crate::softmax::{RowState, rescale_rows};

/// Chains of maxima and sums of a row: few warps share a scheduler.
const CHAINS: usize = 2;

/// Computes the rows of one warpgroup in each tile.
///
/// # Safety
/// As [`crate::sm90::kernel::forward`]; all threads of consumer warpgroup `number` call it together.
#[inline(always)]
pub(crate) unsafe fn consume<
    E,
    Q,
    const ID: usize,
    const STAGES: u32,
    const SCORES: usize,
    const OUTPUTS: usize,
    const KEY_STEPS: usize,
    const PARTS: usize,
>(
    args: &AttentionArgs,
    descales: Option<&DescaleArgs>,
    base: SharedAddr,
    number: u32,
) where
    E: Input,
    Q: Query,
    [f32; SCORES]: Accumulator,
    [f32; OUTPUTS]: Accumulator,
    [f32; PARTS]: Accumulator,
{
    let mut warpgroup = Warpgroup::<ID, STAGES>::new(args, descales, base, number);
    let mut scheduler = TileScheduler::START;
    // SAFETY: the warpgroup is together.
    unsafe { WarpScheduler::<ID>::start(number) };
    // SAFETY: as above; the warp is in the tile that it has received.
    unsafe {
        while let Some([batch_head, first_row]) = scheduler.receive::<ID>(base) {
            let tile = ConsumerTile::<ID>::new(args, base, scheduler, [batch_head, first_row]);
            if tile.first_step < tile.end_step {
                warpgroup.compute::<E, Q, SCORES, OUTPUTS, KEY_STEPS, PARTS>(&tile);
            } else {
                warpgroup.leave_unseen::<OUTPUTS>(&tile);
            }
        }
    }
}

/// Whether the tensor cores are used in ping-pong.
const fn pingpong<const ID: usize>() -> bool {
    Config::<ID>::PV_OVERLAP.pingpong()
}

impl<const ID: usize, const STAGES: u32> Warpgroup<'_, ID, STAGES> {
    /// Steps from one of this warpgroup to its next: split-KV warpgroups take them round-robin.
    const STRIDE: u32 = Config::<ID>::KV_SPLITS;

    /// Writes what a tile gives whose rows see no key.
    ///
    /// # Safety
    /// All threads of the warpgroup call it together.
    #[inline(always)]
    unsafe fn leave_unseen<const OUTPUTS: usize>(&self, tile: &ConsumerTile<'_, ID>) {
        // SAFETY: the warp is together. Q comes for every tile, which keeps the phases of its barriers in step.
        unsafe {
            self.wait(Config::<ID>::Q_FULL, tile.q_stage, tile.q_parity);
            self.release(Config::<ID>::Q_EMPTY, tile.q_stage);
            if self.kv_split() == 0 {
                let (sink, is_narrow) = (tile.sink(), self.out_scale().is_some());
                epilogue::store_unseen::<OUTPUTS>(self.args, &tile.work(), self.warp_row(), sink, is_narrow);
            }
        }
    }

    /// Computes the rows of the warpgroup in a tile.
    ///
    /// # Safety
    /// All threads of the warpgroup call it together: the branches depend on the tile and on the warpgroup's number
    /// alone. A buffer is read between the wait for its being full and the arrival that lets it be filled again.
    #[inline(always)]
    unsafe fn compute<E, Q, const SCORES: usize, const OUTPUTS: usize, const KEY_STEPS: usize, const PARTS: usize>(
        &mut self,
        tile: &ConsumerTile<'_, ID>,
    ) where
        E: Input,
        Q: Query,
        [f32; SCORES]: Accumulator,
        [f32; OUTPUTS]: Accumulator,
        [f32; PARTS]: Accumulator,
    {
        let steps = Steps::new(tile, self.m_warpgroup);
        if let (true, Some(descale)) = (Config::<ID>::PLAIN_SCORES, tile.descale) {
            self.scale = descale.scale();
        }
        let softmax = RowState::empty_times_power(Config::<ID>::SUBTRACTION, E::P_EXPONENT);
        let out = [0f32; OUTPUTS];
        // SAFETY: the caller's contract.
        unsafe {
            let mut step = tile.end_step;
            if Config::<ID>::MASKED && Self::STRIDE == 1 {
                while step > steps.end {
                    self.skip_step();
                    step -= 1;
                }
            }
            let q = self.load_q::<Q>(tile);
            if Self::STRIDE > 1 {
                let (last_step, count) = kv_split::block_steps::<ID>((tile.first_step, tile.end_step));
                if self.kv_warpgroup >= count {
                    // Fewer steps than splits: nothing for this one.
                    self.state = self.state.after(count);
                    self.release(Config::<ID>::Q_EMPTY, tile.q_stage);
                    kv_split::wait_cluster::<ID>();
                    self.reduce::<E, OUTPUTS>(tile, &out, &softmax);
                    return;
                }
                self.state = self.state.after(self.kv_warpgroup);
                step = last_step + 1 - self.kv_warpgroup * const { Config::<ID>::SPLIT_KV_CTAS };
            }
            let rows = Rows { out, part: Part::EMPTY, softmax, p: [[0; 4]; KEY_STEPS], factors: [1.0; 2] };
            self.main_loop::<E, Q, SCORES, OUTPUTS, KEY_STEPS, PARTS>(tile, &steps, &q, rows, step - 1);
        }
    }

    /// The steps of a tile, from step `step` on: the last that the rows see. Then the result.
    ///
    /// # Safety
    /// As [`Self::compute`].
    #[inline(always)]
    unsafe fn main_loop<E, Q, const SCORES: usize, const OUTPUTS: usize, const KEY_STEPS: usize, const PARTS: usize>(
        &mut self,
        tile: &ConsumerTile<'_, ID>,
        steps: &Steps<ID>,
        q: &Q,
        mut rows: Rows<OUTPUTS, KEY_STEPS, PARTS>,
        mut step: u32,
    ) where
        E: Input,
        Q: Query,
        [f32; SCORES]: Accumulator,
        [f32; OUTPUTS]: Accumulator,
        [f32; PARTS]: Accumulator,
    {
        // SAFETY: the caller's contract.
        unsafe {
            let m_warpgroup = self.m_warpgroup;
            let mask = steps.mask::<SCORES>(move || warp_row(m_warpgroup));
            let mut scores = self.last_scores::<E, Q, SCORES>(tile, steps, q, step);
            self.modify::<E, SCORES>(tile, steps, &mut scores, step);
            mask(&mut scores, step);
            rows.softmax.step::<CHAINS>(&mut scores, self.scale);
            rows.p = pack::<E, SCORES, KEY_STEPS>(&scores);
            if !const { pingpong::<ID>() } {
                if step >= steps.first + Self::STRIDE {
                    self.wait_for_k(self.state.after(const { Config::<ID>::SPLIT_KV_WARPGROUPS }));
                }
                self.wait(Config::<ID>::V_FULL, self.state.stage(), self.state.parity());
            }
            while step >= steps.first + Self::STRIDE {
                let next = self.state.after(const { Config::<ID>::SPLIT_KV_WARPGROUPS });
                let mut scores = self.start_products::<E, Q, SCORES, OUTPUTS, KEY_STEPS, PARTS>(q, &mut rows, next);
                wgmma::settle(&mut scores);
                self.release_kv(Config::<ID>::K_EMPTY, next.stage());
                step -= Self::STRIDE;
                if !const { pingpong::<ID>() } && step >= steps.first + Self::STRIDE {
                    self.wait_for_k(next.after(const { Config::<ID>::SPLIT_KV_WARPGROUPS }));
                }
                self.modify::<E, SCORES>(tile, steps, &mut scores, step);
                if Config::<ID>::MASKED {
                    mask(&mut scores, step);
                }
                self.softmax::<E, SCORES, OUTPUTS, KEY_STEPS, PARTS>(&mut rows, &mut scores, next);
            }
            self.finish::<E, Q, OUTPUTS, KEY_STEPS, PARTS>(tile, &mut rows, step);
        }
    }

    /// Waits for Q, and loads what of it stays in registers.
    ///
    /// # Safety
    /// All consumers of the block call it together, once a tile.
    #[inline(always)]
    unsafe fn load_q<Q: Query>(&self, tile: &ConsumerTile<'_, ID>) -> Q {
        // SAFETY: the caller's contract.
        unsafe {
            self.wait(Config::<ID>::Q_FULL, tile.q_stage, tile.q_parity);
            let q_tile = self.at(Config::<ID>::Q, tile.q_stage);
            if tile.descale.map_or(self.args.q_sign != 0, Descale::negates_scores) {
                negate_rows::<ID>(q_tile, self.m_warpgroup, self.kv_warpgroup == 0);
            }
            Q::load(q_tile, self.m_warpgroup)
        }
    }

    /// S of the last step that the rows see, with nothing beside it.
    ///
    /// # Safety
    /// As [`Self::compute`].
    #[inline(always)]
    unsafe fn last_scores<E: Input, Q: Query, const SCORES: usize>(
        &self,
        tile: &ConsumerTile<'_, ID>,
        steps: &Steps<ID>,
        q: &Q,
        step: u32,
    ) -> [f32; SCORES]
    where
        [f32; SCORES]: Accumulator,
    {
        let state = self.state;
        // SAFETY: the caller's contract.
        unsafe {
            if Config::<ID>::GENERAL {
                let first_row = opaque(tile.first_row) + self.warp_row();
                steps.score_mod.copy_bias::<SCORES>(self.bias_tile(), first_row, step * Config::<ID>::N);
            }
            self.wait(Config::<ID>::K_FULL, state.stage(), state.parity());
            let mut scores: [f32; SCORES] = q.scores(self.k_tile::<E>(state.stage()));
            wgmma::wait_group::<0, _>(&mut scores);
            // What a mask changes is in registers of its own, to which the compiler moves it after this, not before the
            // wait.
            wgmma::settle(&mut scores);
            self.release_kv(Config::<ID>::K_EMPTY, state.stage());
            if let QuerySource::Registers = Q::SOURCE {
                // A load of Q may still be in flight when an arrival behind it has come; the product above has used
                // what it gives.
                self.release(Config::<ID>::Q_EMPTY, tile.q_stage);
            }
            scores
        }
    }

    /// Starts S = Q K^T of the step at `next`, and P V of the one before it in the pipeline; returns S, which is there.
    /// P V may be in flight still, but not in ping-pong.
    ///
    /// # Safety
    /// As [`Self::compute`].
    #[inline(always)]
    unsafe fn start_products<
        E,
        Q,
        const SCORES: usize,
        const OUTPUTS: usize,
        const KEY_STEPS: usize,
        const PARTS: usize,
    >(
        &self,
        q: &Q,
        rows: &mut Rows<OUTPUTS, KEY_STEPS, PARTS>,
        next: PipelineState<STAGES>,
    ) -> [f32; SCORES]
    where
        E: Input,
        Q: Query,
        [f32; SCORES]: Accumulator,
        [f32; OUTPUTS]: Accumulator,
        [f32; PARTS]: Accumulator,
    {
        let state = self.state;
        let mut scores: [f32; SCORES];
        // SAFETY: the caller's contract.
        unsafe {
            if const { pingpong::<ID>() } {
                // Waits find addresses, which products then have without time of the tensor cores.
                self.wait(Config::<ID>::V_FULL, state.stage(), state.parity());
                WarpScheduler::<ID>::wait(self.number);
                accumulate::<PvProduct<E, ID>, _, KEY_STEPS>(&mut rows.out, &rows.p, self.v_tile::<E>(state.stage()));
                wgmma::wait_group::<0, _>(&mut rows.out);
                wgmma::settle(&mut rows.out);
                self.release_v(state.stage());
                self.wait(Config::<ID>::K_FULL, next.stage(), next.parity());
                scores = q.scores(self.k_tile::<E>(next.stage()));
                WarpScheduler::<ID>::arrive(self.number);
                wgmma::wait_group::<0, _>(&mut scores);
            } else {
                // V of this step and K of the one before are there.
                scores = q.scores(self.k_tile::<E>(next.stage()));
                if const { Config::<ID>::TWO_LEVEL } {
                    self.start_part::<E, OUTPUTS, KEY_STEPS, PARTS>(rows);
                } else {
                    if !const { Config::<ID>::PV_OVERLAP.rescales_last() } {
                        // Not before S is in flight.
                        wgmma::settle(&mut rows.out);
                        rescale_rows(&mut rows.out, rows.factors);
                    }
                    let v = self.v_tile::<E>(state.stage());
                    accumulate::<PvProduct<E, ID>, _, KEY_STEPS>(&mut rows.out, &rows.p, v);
                }
                wait_before::<_, KEY_STEPS>(&mut scores);
            }
        }
        scores
    }

    /// Softcap and bias of the scores of a step; the bias of the step before it is on its way then.
    ///
    /// # Safety
    /// As [`Self::compute`].
    #[inline(always)]
    unsafe fn modify<E: Input, const SCORES: usize>(
        &self,
        tile: &ConsumerTile<'_, ID>,
        steps: &Steps<ID>,
        scores: &mut [f32; SCORES],
        step: u32,
    ) {
        bound::<ID>(scores, tile.descale.map_or(self.args.scale, |descale| -descale.magnitude()));
        if Config::<ID>::GENERAL {
            // SAFETY: the caller's contract.
            unsafe {
                steps.score_mod.apply_tile::<E::Output, SCORES>(scores, self.bias_tile());
                if step >= steps.first + Self::STRIDE {
                    // Opaque: a product that the mask and this copy share is kept over the softmax, and costs 3 %.
                    let key = (opaque(step) - Self::STRIDE) * Config::<ID>::N;
                    let first_row = opaque(tile.first_row) + self.warp_row();
                    steps.score_mod.copy_bias::<SCORES>(self.bias_tile(), first_row, key);
                }
            }
        }
    }

    /// The softmax of the step at `next`, and the end of P V of the one before it in the pipeline
    /// ([`PvOverlap`](crate::sm90::config::PvOverlap)); goes on to `next`.
    ///
    /// # Safety
    /// As [`Self::compute`].
    #[inline(always)]
    unsafe fn softmax<E: Input, const SCORES: usize, const OUTPUTS: usize, const KEY_STEPS: usize, const PARTS: usize>(
        &mut self,
        rows: &mut Rows<OUTPUTS, KEY_STEPS, PARTS>,
        scores: &mut [f32; SCORES],
        next: PipelineState<STAGES>,
    ) where
        [f32; SCORES]: Accumulator,
        [f32; OUTPUTS]: Accumulator,
        [f32; PARTS]: Accumulator,
    {
        let (overlap, early) = const { (Config::<ID>::PV_OVERLAP, Config::<ID>::early_exps(SCORES)) };
        let (scale, softmax) = (self.scale, &mut rows.softmax);
        // SAFETY: the caller's contract.
        unsafe {
            let [first, second] = softmax.update_max::<CHAINS>(scores, scale);
            (rows.factors[0], rows.factors[1]) = (first, second);
            if !overlap.pingpong() {
                if overlap.row_sum_last() {
                    softmax.exp(&mut scores[..early], scale);
                    // Not behind the wait.
                    wgmma::settle(scores);
                    self.wait(Config::<ID>::V_FULL, next.stage(), next.parity());
                } else {
                    softmax.exp_row_sum::<CHAINS>(&mut scores[..early], scale);
                    self.wait(Config::<ID>::V_FULL, next.stage(), next.parity() + softmax.zero());
                }
                if const { Config::<ID>::TWO_LEVEL } {
                    self.end_part::<E, OUTPUTS, KEY_STEPS, PARTS>(rows, false);
                } else {
                    wgmma::wait_group::<0, _>(&mut rows.out);
                }
                wgmma::settle(scores);
                self.release_v(self.state.stage());
            }
            self.state = next;
            let softmax = &mut rows.softmax;
            if overlap.row_sum_last() {
                softmax.exp(&mut scores[early..], scale);
                softmax.row_sum::<CHAINS>(scores);
            }
            if overlap.rescales_last() {
                softmax.exp_row_sum::<CHAINS>(&mut scores[early..], scale);
                for index in 0..OUTPUTS {
                    rows.out[index] *= rows.factors[index / 2 % 2];
                }
            }
            rows.p = pack::<E, SCORES, KEY_STEPS>(scores);
        }
    }

    /// P V of the first step, which is step `step`, and the result of the tile.
    ///
    /// # Safety
    /// As [`Self::compute`].
    #[inline(always)]
    unsafe fn finish<E, Q, const OUTPUTS: usize, const KEY_STEPS: usize, const PARTS: usize>(
        &mut self,
        tile: &ConsumerTile<'_, ID>,
        rows: &mut Rows<OUTPUTS, KEY_STEPS, PARTS>,
        step: u32,
    ) where
        E: Input,
        Q: Query,
        [f32; OUTPUTS]: Accumulator,
        [f32; PARTS]: Accumulator,
    {
        let state = self.state;
        // SAFETY: the caller's contract.
        unsafe {
            if const { pingpong::<ID>() } {
                WarpScheduler::<ID>::skip(self.number, tile.end_step - tile.first_step);
                self.wait(Config::<ID>::V_FULL, state.stage(), state.parity());
            }
            if const { Config::<ID>::TWO_LEVEL } {
                self.start_part::<E, OUTPUTS, KEY_STEPS, PARTS>(rows);
            } else {
                if !const { Config::<ID>::PV_OVERLAP.rescales_last() } {
                    rescale_rows(&mut rows.out, rows.factors);
                }
                accumulate::<PvProduct<E, ID>, _, KEY_STEPS>(&mut rows.out, &rows.p, self.v_tile::<E>(state.stage()));
            }
            if Self::STRIDE > 1 {
                kv_split::wait_cluster::<ID>();
                wgmma::wait_group::<0, _>(&mut rows.out);
                self.release_v(state.stage());
                self.release(Config::<ID>::Q_EMPTY, tile.q_stage);
                self.state = state.after((step - tile.first_step) / const { Config::<ID>::SPLIT_KV_CTAS } + 1);
                self.reduce::<E, OUTPUTS>(tile, &rows.out, &rows.softmax);
            } else {
                self.store::<E, Q, OUTPUTS, KEY_STEPS, PARTS>(tile, rows, step);
            }
        }
    }

    /// Leaves what this split has for the others, reduces a share of O over all of them, and writes that.
    ///
    /// # Safety
    /// All consumers of the blocks of the tile call it, once each.
    #[inline(always)]
    unsafe fn reduce<E: Input, const OUTPUTS: usize>(
        &self,
        tile: &ConsumerTile<'_, ID>,
        out: &[f32; OUTPUTS],
        softmax: &RowState,
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            kv_split::write_partial::<ID, OUTPUTS>(self.base, self.m_warpgroup, self.kv_split(), out, softmax);
            let (work, sink) = (tile.work(), tile.sink());
            kv_split::wait::<ID>(self.base, self.number, || sync_consumers::<ID>());
            let slice = kv_split::reduce::<ID, OUTPUTS>(self.base, self.number, self.kv_split(), self.scale.log2, sink);
            kv_split::store::<E::Output, ID, OUTPUTS>(self.args, &work, &slice, self.warp_row());
            if const { Config::<ID>::SPLIT_KV_CTAS == 1 } {
                // The parts have been read: they may be written for the next tile.
                sync_consumers::<ID>();
            }
        }
    }

    /// Writes O and LSE, behind the last P V; goes past the steps before step `step`, which the rows do not see.
    ///
    /// # Safety
    /// As [`Self::compute`].
    #[inline(always)]
    unsafe fn store<E, Q, const OUTPUTS: usize, const KEY_STEPS: usize, const PARTS: usize>(
        &mut self,
        tile: &ConsumerTile<'_, ID>,
        rows: &mut Rows<OUTPUTS, KEY_STEPS, PARTS>,
        mut step: u32,
    ) where
        E: Input,
        Q: Query,
        [f32; OUTPUTS]: Accumulator,
        [f32; PARTS]: Accumulator,
    {
        // SAFETY: the caller's contract.
        unsafe {
            // Divisions and what ends the sums, beside the last product.
            let (work, sink) = (tile.work(), tile.sink());
            let results = if Config::<ID>::SOFTCAP {
                rows.softmax.finalize_above(self.scale, sink, self.args.softcap)
            } else {
                rows.softmax.finalize(self.scale, sink)
            };
            if const { Config::<ID>::TWO_LEVEL } {
                self.end_part::<E, OUTPUTS, KEY_STEPS, PARTS>(rows, true);
            } else {
                wgmma::wait_group::<0, _>(&mut rows.out);
            }
            self.release_v(self.state.stage());
            self.state = self.state.next();
            if let QuerySource::Shared = Q::SOURCE {
                self.release(Config::<ID>::Q_EMPTY, tile.q_stage);
            }
            if Config::<ID>::MASKED {
                let first_row = opaque(tile.first_row);
                let (first_step, _) = tile.keys.steps(first_row as i32, first_row as i32, Config::<ID>::N);
                while step > first_step {
                    self.skip_step();
                    step -= 1;
                }
            }
            store_lse(&work, &results, self.warp_row());
            let value = tile.descale.map_or(1.0, |descale| descale.value);
            let normalisers = results.map(|row| row.normaliser * value);
            let (args, out, warp_row) = (self.args, &rows.out, self.warp_row());
            if let Some(scale) = self.out_scale() {
                let normalisers = normalisers.map(|normaliser| normaliser * scale);
                epilogue::store_e4m3::<OUTPUTS>(args, &work, out, normalisers, warp_row);
            } else {
                epilogue::store_accumulators::<E::Output, OUTPUTS>(args, &work, out, normalisers, warp_row);
            }
        }
    }
}
