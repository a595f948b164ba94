//! Which tiles a warp takes, one after the other: the first two, whose references are loaded at once, and the work list
//! behind them. The warps of a block divide the tile references of a strip round-robin.

use core::marker::PhantomData;

use variants::ata::AtaArgs;

use crate::cells::TileRef;
use crate::config::Configuration;
use crate::prefetch::first_refs;
use crate::work::{BlockCoord, warp};

/// The tiles of a warp whose references are not loaded yet.
pub(crate) struct WorkList<C> {
    /// The number of the next one.
    next: u32,
    /// The end of the tiles of the strip.
    end: u32,
    config: PhantomData<C>,
}

impl<C: Configuration> WorkList<C> {
    const WARPS: u32 = C::CONFIG.warps as u32;

    /// No tile.
    pub(crate) const EMPTY: Self = Self::new(0, 0);

    #[inline(always)]
    const fn new(next: u32, end: u32) -> Self {
        Self { next, end, config: PhantomData }
    }

    /// The first two tiles, from the list prefix of the strip, and those behind them.
    ///
    /// # Safety
    /// `args` describes the matrix.
    #[inline(always)]
    pub(crate) unsafe fn of_prefix(args: &AtaArgs, place: &BlockCoord) -> ([TileRef; 2], Self) {
        // SAFETY: the prefix has two tile references, or empty ones, for each warp.
        unsafe {
            let first = place.first_of_prefix() + warp();
            let uses = [first, first + Self::WARPS].map(|index| TileRef::load(args.prefixes, index));
            let [start, end] = place.list_range(args);
            (uses, Self::new(start + warp() + 2 * Self::WARPS, end))
        }
    }

    /// The tiles that [`crate::prefetch::add_two`] takes and those behind them, in the same order, so that the sums are
    /// the same, but without gaps.
    ///
    /// # Safety
    /// As for [`first_refs`].
    #[inline(always)]
    pub(crate) unsafe fn of_kind_prefixes(args: &AtaArgs, place: &BlockCoord) -> ([TileRef; 2], Self) {
        // SAFETY: as required of the caller.
        unsafe {
            let firsts = first_refs(args, place);
            let mut work_list = Self::after_kind_prefixes(&firsts);
            let [transposed, direct] = firsts;
            let first = if transposed.is_some() {
                transposed
            } else if direct.is_some() {
                direct
            } else {
                work_list.load(args)
            };
            let both = transposed.is_some() & direct.is_some();
            ([first, if both { direct } else { work_list.load(args) }], work_list)
        }
    }

    /// The first two tiles behind those that [`crate::prefetch::add_two`] takes, and those behind them.
    ///
    /// # Safety
    /// As for [`first_refs`].
    #[inline(always)]
    pub(crate) unsafe fn after_two(args: &AtaArgs, place: &BlockCoord) -> ([TileRef; 2], Self) {
        // SAFETY: as required of the caller.
        unsafe {
            let mut work_list = Self::after_kind_prefixes(&first_refs(args, place));
            ([work_list.load(args), work_list.load(args)], work_list)
        }
    }

    /// What no warp takes at first: the first transposed and the first direct tile reference say where it starts and
    /// ends.
    #[inline(always)]
    fn after_kind_prefixes([transposed, direct]: &[TileRef; 2]) -> Self {
        Self::new(transposed.last_word() + warp(), direct.last_word())
    }

    /// Starts to load the next tile reference; none behind the last.
    ///
    /// # Safety
    /// The tiles are those of a strip of `args`.
    #[inline(always)]
    pub(crate) unsafe fn load(&mut self, args: &AtaArgs) -> TileRef {
        let tile_ref = if self.next < self.end {
            // SAFETY: as required of the caller.
            unsafe { TileRef::load(args.tile_refs, self.next) }
        } else {
            TileRef::NONE
        };
        self.next += Self::WARPS;
        tile_ref
    }
}
