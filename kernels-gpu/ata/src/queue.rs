//! Which uses a warp takes, one after the other: the first two, whose records are loaded at once, and a queue of those
//! behind them. The warps of a block take the uses of a strip in turns.

use layout::ata::{ATA, AtaArgs};

use crate::ahead::first_uses;
use crate::cells::Use;
use crate::work::{Place, warp};

/// The uses of a warp whose records are not loaded yet.
pub(crate) struct Queue<const ROW: usize> {
    /// The number of the next one.
    next: u32,
    /// The end of the uses of the strip.
    end: u32,
}

impl<const ROW: usize> Queue<ROW> {
    const WARPS: u32 = ATA[ROW].warps as u32;

    /// No use.
    pub(crate) const EMPTY: Self = Self { next: 0, end: 0 };

    /// The first two uses from the head of the strip, and those behind them.
    ///
    /// # Safety
    /// `args` describes the matrix.
    #[inline(always)]
    pub(crate) unsafe fn of_head(args: &AtaArgs, place: &Place) -> ([Use; 2], Self) {
        // SAFETY: the head has records of two uses, or none, for each warp.
        unsafe {
            let first = place.first_head() + warp();
            let uses = [first, first + Self::WARPS].map(|index| Use::load(args.heads, index));
            let [start, end] = place.uses(args);
            (uses, Self { next: start + warp() + 2 * Self::WARPS, end })
        }
    }

    /// The uses that [`crate::ahead::add_two`] takes and those behind them, in the same order, so that the sums are the
    /// same, but without gaps.
    ///
    /// # Safety
    /// As for [`first_uses`].
    #[inline(always)]
    pub(crate) unsafe fn of_turns(args: &AtaArgs, place: &Place) -> ([Use; 2], Self) {
        // SAFETY: as required of the caller.
        unsafe {
            let turns = first_uses(args, place);
            let mut queue = Self::behind_turns(&turns);
            let [transposed, straight] = turns;
            let first = if transposed.is_some() {
                transposed
            } else if straight.is_some() {
                straight
            } else {
                queue.load(args)
            };
            let both = transposed.is_some() & straight.is_some();
            ([first, if both { straight } else { queue.load(args) }], queue)
        }
    }

    /// The first two uses behind those that [`crate::ahead::add_two`] takes, and those behind them.
    ///
    /// # Safety
    /// As for [`first_uses`].
    #[inline(always)]
    pub(crate) unsafe fn behind_two(args: &AtaArgs, place: &Place) -> ([Use; 2], Self) {
        // SAFETY: as required of the caller.
        unsafe {
            let mut queue = Self::behind_turns(&first_uses(args, place));
            ([queue.load(args), queue.load(args)], queue)
        }
    }

    /// What no warp takes at first: the first uses of both turns have where it starts and ends.
    #[inline(always)]
    fn behind_turns([transposed, straight]: &[Use; 2]) -> Self {
        Self { next: transposed.last_word() + warp(), end: straight.last_word() }
    }

    /// Starts to load the record of the next use; none behind the last.
    ///
    /// # Safety
    /// The uses are those of a strip of `args`.
    #[inline(always)]
    pub(crate) unsafe fn load(&mut self, args: &AtaArgs) -> Use {
        // SAFETY: as required of the caller.
        let used = if self.next < self.end { unsafe { Use::load(args.uses, self.next) } } else { Use::NONE };
        self.next += Self::WARPS;
        used
    }
}
