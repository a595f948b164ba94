//! A tile as a consumer warpgroup sees it: its rows, its keys, and the steps that these keys are in.

use cuda_std::hint::opaque;
use cuda_std::shared::SharedAddr;
use variants::attention::{AttentionArgs, WARPGROUP_ROWS};

use crate::lane::{div_rem, lane};
use crate::mask::KeyRange;
use crate::score_mod::HeadScoreMod;
use crate::seqlen::SeqlenInfo;
use crate::sm90::config::Config;
use crate::sm90::descale::Descale;
use crate::sm90::scheduler::{TileScheduler, steps_of_rows};
use crate::work::{Work, sink_of_head};

/// A tile that the producer has broadcast.
pub(crate) struct ConsumerTile<'a, const ID: usize> {
    args: &'a AttentionArgs,
    base: SharedAddr,
    scheduler: TileScheduler,
    /// Head of Q among those of all batch entries.
    batch_head: u32,
    /// First row.
    pub(crate) first_row: u32,
    /// Rows of the sequence.
    q_len: u32,
    /// Keys of the sequence.
    pub(crate) keys: KeyRange,
    /// The first step that some row of the tile sees.
    pub(crate) first_step: u32,
    /// The end of these steps.
    pub(crate) end_step: u32,
    /// The buffer of Q.
    pub(crate) q_stage: u32,
    /// The parity of the phase in which Q arrives.
    pub(crate) q_parity: u32,
    /// What the factors of the inputs come to, where they have any.
    pub(crate) descale: Option<Descale>,
}

impl<'a, const ID: usize> ConsumerTile<'a, ID> {
    /// The tile that `scheduler` has received last.
    ///
    /// # Safety
    /// All lanes of a consumer warp call it together, and are in this tile as long as they use it.
    #[inline(always)]
    pub(crate) unsafe fn new(
        args: &'a AttentionArgs,
        base: SharedAddr,
        scheduler: TileScheduler,
        [batch_head, first_row]: [u32; 2],
    ) -> Self {
        // SAFETY: the caller's contract.
        let SeqlenInfo { q_len, keys, .. } = unsafe { scheduler.seqlen_info::<ID>(base, args) };
        let last_row = (first_row + Config::<ID>::M).min(q_len) - 1;
        let (first_step, end_step) = steps_of_rows::<ID>(keys, first_row, last_row);
        let (q_stage, q_parity) = scheduler.q_stage::<ID>();
        // SAFETY: the caller's contract.
        let descale = unsafe { scheduler.descale::<ID>(base) };
        Self {
            args,
            base,
            scheduler,
            batch_head,
            first_row,
            q_len,
            keys,
            first_step,
            end_step,
            q_stage,
            q_parity,
            descale,
        }
    }

    /// Where the tensors of its head are, found anew.
    #[inline(always)]
    pub(crate) fn work(&self) -> Work {
        // SAFETY: the warp is in this tile.
        let seqlen = || unsafe { self.scheduler.seqlen_info::<ID>(self.base, self.args) };
        Work::of_rows::<u16>(self.args, self.batch_head, self.first_row, Config::<ID>::SEQLENS, |_| seqlen())
    }

    /// The sink of its head.
    #[inline(always)]
    pub(crate) fn sink(&self) -> f32 {
        // SAFETY: there is such a head, and a sink for each.
        unsafe { sink_of_head(self.args, self.batch_head) }
    }
}

/// The steps of one warpgroup in a tile, and what is done to their scores.
pub(crate) struct Steps<const ID: usize> {
    /// The first row of the tile, and of the warpgroup in it.
    first_row: u32,
    group_row: u32,
    q_len: u32,
    keys: KeyRange,
    /// Keys of a step.
    step_keys: u32,
    /// The first step that the warpgroup computes, alone or with others.
    pub(crate) first: u32,
    /// The end of these steps.
    pub(crate) end: u32,
    /// Those of them that are free of masks.
    unmasked: (u32, u32),
    /// Found once a tile: the division by which it is found would stand in front of each copy.
    pub(crate) score_mod: HeadScoreMod,
}

impl<const ID: usize> Steps<ID> {
    /// The steps of the rows of warpgroup `m_warpgroup` in a tile that has steps.
    #[inline(always)]
    pub(crate) fn new(tile: &ConsumerTile<'_, ID>, m_warpgroup: u32) -> Self {
        let (q_len, keys, first_row) = (tile.q_len, tile.keys, tile.first_row);
        let group_row = m_warpgroup * WARPGROUP_ROWS as u32;
        let (first, end) = if Config::<ID>::MASKED && Config::<ID>::KV_SPLITS == 1 {
            let (row, last_row) = rows_of(first_row + group_row, q_len);
            let (first, end) = keys.steps(row, last_row, Config::<ID>::N);
            // One step at least, all of it masked if the rows see nothing: O is then on one path.
            (first.min(tile.end_step - 1), end.max(tile.first_step + 1).min(tile.end_step))
        } else {
            (tile.first_step, tile.end_step)
        };
        let unmasked = unmasked_steps::<ID>(first_row + group_row, q_len, keys);
        let (batch, head) = div_rem(tile.batch_head, tile.args.q_heads);
        let score_mod = HeadScoreMod::of_head(tile.args, [batch, head], q_len, keys.len());
        let score_mod = match tile.descale {
            None => score_mod,
            Some(descale) => HeadScoreMod { scale: descale.magnitude(), ..score_mod },
        };
        Self { first_row, group_row, q_len, keys, step_keys: Config::<ID>::N, first, end, unmasked, score_mod }
    }

    /// What masks the scores of a step, of the 16 rows from `warp_row` on in the tile.
    #[inline(always)]
    pub(crate) fn mask<const SCORES: usize>(&self, warp_row: impl Fn() -> u32) -> impl Fn(&mut [f32; SCORES], u32) {
        let Self { first_row, group_row, q_len, keys, step_keys, unmasked, .. } = *self;
        move |scores, step| {
            // Opaque, what the mask needs takes no registers where there is none. Rows that are shared have none to
            // spare.
            let unmasked = if Config::<ID>::KV_SPLITS == 1 {
                unmasked
            } else {
                unmasked_steps::<ID>(opaque(first_row) + group_row, q_len, keys)
            };
            let lane_row = || (opaque(first_row) + warp_row() + lane() / 4) as i32;
            let key = (step * step_keys) as i32;
            if step >= unmasked.1 {
                let row = lane_row();
                keys.hide_after(scores, row, (lane() % 4) as i32, key);
            }
            if Config::<ID>::MASKED && step < unmasked.0 {
                let row = lane_row();
                keys.hide_before(scores, row, (lane() % 4) as i32, key);
            }
        }
    }
}

/// The first and the last row of a warpgroup, which starts at row `first` of `q_len`.
#[inline(always)]
fn rows_of(first: u32, q_len: u32) -> (i32, i32) {
    (first as i32, ((first + WARPGROUP_ROWS as u32).min(q_len) - 1) as i32)
}

/// The steps whose keys all rows of the warpgroup that starts at row `first` see.
#[inline(always)]
fn unmasked_steps<const ID: usize>(first: u32, q_len: u32, keys: KeyRange) -> (u32, u32) {
    if Config::<ID>::MASKED {
        let (row, last_row) = rows_of(first, q_len);
        keys.full_steps(row, last_row, Config::<ID>::N)
    } else {
        (0, keys.len() / Config::<ID>::N)
    }
}
