//! The first two uses of each warp at once, where registers hold the cells of both:
//!
//! ```text
//! load the cells of the first use
//! wait for the kernel before
//! load X for both uses, then the cells of the second
//! Y += products of the first use, while the second one's cells arrive
//! Y += products of the second
//! ```
//!
//! A warp waits for loads by scoreboard, and ptxas gives one scoreboard to all loads that are in flight across a
//! branch. So nothing branches before the products of the first use are there: what is missing is not loaded by a
//! predicate, and cells are transposed by selection. X is loaded before the second cells, behind which it would wait in
//! the queue of the multiprocessor.

use cuda_std::ptx::griddepcontrol;
use layout::ata::{ATA, AtaArgs, CELL};

use crate::cells::{RowUse, Use};
use crate::unit::{Found, Known, Unit};
use crate::vector::FrameRow;
use crate::work::Place;

/// Whether the kernel of row `ROW` takes its first two uses at once for these tensors.
#[inline(always)]
pub(crate) fn takes_two<const ROW: usize>(args: &AtaArgs) -> bool {
    (const { ATA[ROW].two_ahead() }) && args.x_aligned != 0 && args.n.is_multiple_of(CELL as u32)
}

/// Adds the products of two uses, after it has waited for the kernel before, and gives the use at `third` if that is
/// before `end`.
///
/// # Safety
/// The uses are those of `args` for the block at `place`, or none, and `frame` is that of the block; the kernel
/// [`takes_two`]; all lanes of the warp execute this call together.
#[inline(always)]
pub(crate) unsafe fn add_two<
    U: Unit<ROW>,
    const ROW: usize,
    const WORDS: usize,
    const ROWS: usize,
    const VECTORS: usize,
>(
    args: &AtaArgs,
    place: &Place,
    frame: FrameRow,
    [first, second]: [Use; 2],
    (third, end): (u32, u32),
    sums: &mut [[U::Sums; VECTORS]; ROWS],
) -> Use {
    let of_row = |used: &Use, row: usize| used.of_row(place.first_pair_row + row as u32);
    // SAFETY: as required of the caller; A is loaded before the wait and X after it.
    unsafe {
        let load = |used: &Use, row: usize| of_row(used, row).load_cells_where::<ROW, WORDS>(args);
        let mut first_cells = [[[0; WORDS]; 2]; ROWS];
        for row in 0..ROWS {
            first_cells[row] = load(&first, row);
        }
        let third = Use::load_where(args.uses, third, third < end);
        // Every thread waits before it reads X or writes Y.
        griddepcontrol::wait();
        let x = [first, second].map(|used| frame.load_where(used.is_some(), used.column()));
        let mut second_cells = [[[0; WORDS]; 2]; ROWS];
        for row in 0..ROWS {
            second_cells[row] = load(&second, row);
        }
        let operand = U::operand(x[0]);
        for row in 0..ROWS {
            let used = of_row(&first, row);
            let operand = U::only_where(used.has_pairs(), operand);
            U::multiply(&mut sums[row], &first_cells[row], Found(used.is_transposed()), &[operand; VECTORS]);
        }
        // The second use crosses a branch, so that nothing of it is waited for before.
        if second.is_some() {
            let operand = [U::operand(x[1]); VECTORS];
            for row in 0..ROWS {
                add_pairs::<U, ROW, WORDS, VECTORS>(
                    &mut sums[row],
                    &of_row(&second, row),
                    &second_cells[row],
                    &operand,
                );
            }
        }
        third
    }
}

/// Adds the products of what one pair row takes of a use, if it takes something.
///
/// # Safety
/// The cells are those of `used`, and all lanes of the warp execute this call together.
#[inline(always)]
pub(crate) unsafe fn add_pairs<U: Unit<ROW>, const ROW: usize, const WORDS: usize, const VECTORS: usize>(
    sums: &mut [U::Sums; VECTORS],
    used: &RowUse,
    cells: &[[u32; WORDS]; 2],
    x: &[U::Operand; VECTORS],
) {
    if used.has_pairs() {
        // SAFETY: as required of the caller.
        unsafe {
            if used.is_transposed() {
                U::multiply(sums, cells, Known::<true>, x);
            } else {
                U::multiply(sums, cells, Known::<false>, x);
            }
        }
    }
}
