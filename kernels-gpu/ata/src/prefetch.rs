//! The first two tiles of each warp at once, where registers hold the cells of both. The first tile is always
//! transposed and the second always direct, so the code need not find out which:
//!
//! ```text
//! load the cells of the transposed tile
//! wait for the kernel before
//! load X for both tiles, then the cells of the direct tile
//! Y += products of the transposed tile, while the cells of the direct tile arrive
//! Y += products of the direct tile
//! ```
//!
//! A warp waits for loads by scoreboard, and `ptxas` gives one scoreboard to all loads that are in flight across a
//! branch. So nothing branches before the products of the first tile are there: pairs that are missing are loaded from
//! a pair of zeros. X is loaded before the second cells, because it would otherwise wait behind them in the load queue
//! of the multiprocessor.

use cuda_std::ptx::griddepcontrol;
use variants::ata::{AtaArgs, CELL, KIND_PREFIX};

use crate::cells::{PairRowRef, TileRef};
use crate::config::Configuration;
use crate::unit::Unit;
use crate::vector::FrameRow;
use crate::work::{BlockCoord, warp};

/// Whether the kernel of configuration `C` takes its first two tiles at once for these tensors.
#[inline(always)]
pub(crate) fn takes_two<C: Configuration>(args: &AtaArgs) -> bool {
    (const { C::CONFIG.prefetches_two() }) && args.x_aligned != 0 && args.n.is_multiple_of(CELL as u32)
}

/// The transposed tile that the warp takes at first, and the direct one, or none.
///
/// # Safety
/// `args` describes the matrix, and the block is at `place` and of a configuration that takes two tiles at once.
#[inline(always)]
pub(crate) unsafe fn first_refs(args: &AtaArgs, place: &BlockCoord) -> [TileRef; 2] {
    // SAFETY: a strip has as many tile references of either kind as a block has warps.
    [0, 1].map(|kind| unsafe {
        TileRef::load(args.kind_prefixes, place.first_of_prefix() + kind * KIND_PREFIX as u32 + warp())
    })
}

/// Adds the products of the first two tiles of the warp, after the warp has waited for the kernel before. Says whether
/// there are more tiles for the warp.
///
/// # Safety
/// As for [`first_refs`]; all lanes of the warp execute this call together.
#[inline(always)]
pub(crate) unsafe fn add_two<
    U: Unit<C>,
    C: Configuration,
    const WORDS: usize,
    const ROWS: usize,
    const VECTORS: usize,
>(
    args: &AtaArgs,
    place: &BlockCoord,
    sums: &mut [[U::Sums; VECTORS]; ROWS],
) -> bool {
    // SAFETY: as required of the caller; A is loaded before the wait and X after it.
    unsafe {
        let [transposed, direct] = first_refs(args, place);
        let has_others = transposed.last_word() + warp() < direct.last_word();
        let frame = FrameRow::new(args, place, place.first_frame + U::frame(0));
        let of_row = |used: &TileRef, row: usize| used.of_row(place.first_pair_row + row as u32);
        let mut transposed_cells = [[[0; WORDS]; 2]; ROWS];
        for row in 0..ROWS {
            transposed_cells[row] = of_row(&transposed, row).load_known::<C, WORDS, true>(args, true);
        }
        // Every thread waits before it reads X or writes Y.
        griddepcontrol::wait();
        let x = [transposed, direct].map(|used| frame.load_where(used.is_some(), used.column()));
        // Where X has to be converted, the other tile crosses a branch, before which nothing of it is waited for.
        let is_there = !U::CONVERTS || direct.is_some();
        let mut straight_cells = [[[0; WORDS]; 2]; ROWS];
        for row in 0..ROWS {
            straight_cells[row] = of_row(&direct, row).load_known::<C, WORDS, false>(args, is_there);
        }
        let x_where = |has_pairs: bool, x: U::Operand| [U::only_where(has_pairs, x); VECTORS];
        let operand = U::operand(args, x[0]);
        for row in 0..ROWS {
            let x = x_where(of_row(&transposed, row).has_pairs(), operand);
            U::multiply::<true, WORDS, VECTORS>(&mut sums[row], &transposed_cells[row], &x);
        }
        if is_there {
            let operand = U::operand(args, x[1]);
            for row in 0..ROWS {
                let x = x_where(of_row(&direct, row).has_pairs(), operand);
                U::multiply::<false, WORDS, VECTORS>(&mut sums[row], &straight_cells[row], &x);
            }
        }
        has_others
    }
}

/// Adds the products of what one pair row takes of a tile, if it takes something.
///
/// # Safety
/// The cells are those of `used`, and all lanes of the warp execute this call together.
#[inline(always)]
pub(crate) unsafe fn add_pairs<U: Unit<C>, C: Configuration, const WORDS: usize, const VECTORS: usize>(
    sums: &mut [U::Sums; VECTORS],
    used: &PairRowRef,
    cells: &[[u32; WORDS]; 2],
    x: &[U::Operand; VECTORS],
) {
    if used.has_pairs() {
        // SAFETY: as required of the caller.
        unsafe {
            if used.is_transposed() {
                U::multiply::<true, WORDS, VECTORS>(sums, cells, x);
            } else {
                U::multiply::<false, WORDS, VECTORS>(sums, cells, x);
            }
        }
    }
}
