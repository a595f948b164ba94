//! The unit of `mma.sync`: eight frames a vector, the columns of the instruction; for one frame, columns that are all
//! the same.

use core::marker::PhantomData;

use variants::ata::{AtaArgs, CELL, MMA_FRAMES};

use crate::config::Configuration;
use crate::sums::WarpSums;
use crate::unit::{Four, Unit};
use crate::work::lane;

/// The unit, of numbers `N`.
pub(crate) struct Mma<N>(PhantomData<N>);

/// The accumulators of one `mma` for each half of a cell's rows.
pub(crate) type Accumulators = [[f32; 4]; 2];

/// What tensor cores multiply for the configuration `C`.
pub(crate) trait Numbers<C: Configuration> {
    /// A lane's part of a vector as B operands.
    type Operand: Copy;

    /// Whether the even and the odd columns of one frame have products that are to be added.
    const HALVED: bool;

    /// As [`Unit::operand`].
    ///
    /// # Safety
    /// All lanes of the warp execute this call together.
    unsafe fn operand(args: &AtaArgs, x: [Four; 2]) -> Self::Operand;

    /// As [`Unit::only_where`].
    fn only_where(condition: bool, x: Self::Operand) -> Self::Operand;

    /// As [`Unit::multiply`].
    ///
    /// # Safety
    /// All lanes of the warp execute this call together.
    unsafe fn multiply<const TRANSPOSED: bool, const WORDS: usize, const VECTORS: usize>(
        sums: &mut [Accumulators; VECTORS],
        cells: &[[u32; WORDS]; 2],
        x: &[Self::Operand; VECTORS],
    );
}

impl<N: Numbers<C>, C: Configuration> Unit<C> for Mma<N> {
    type Sums = Accumulators;
    type Operand = N::Operand;

    const CONVERTS: bool = true;

    const ZERO: Self::Sums = [[0.0; 4]; 2];

    #[inline(always)]
    fn frame(vector: usize) -> u32 {
        if const { C::CONFIG.frames == 1 } { 0 } else { (vector * MMA_FRAMES) as u32 + lane() / 4 }
    }

    #[inline(always)]
    unsafe fn operand(args: &AtaArgs, x: [Four; 2]) -> Self::Operand {
        // SAFETY: as required of the caller.
        unsafe { N::operand(args, x) }
    }

    #[inline(always)]
    fn only_where(condition: bool, x: Self::Operand) -> Self::Operand {
        N::only_where(condition, x)
    }

    #[inline(always)]
    unsafe fn multiply<const TRANSPOSED: bool, const WORDS: usize, const VECTORS: usize>(
        sums: &mut [Self::Sums; VECTORS],
        cells: &[[u32; WORDS]; 2],
        x: &[Self::Operand; VECTORS],
    ) {
        // SAFETY: as required of the caller.
        unsafe { N::multiply::<TRANSPOSED, WORDS, VECTORS>(sums, cells, x) };
    }

    /// A lane has the rows of its group, and columns `2 * (lane % 4)` and the next.
    #[inline(always)]
    unsafe fn store(to: &WarpSums<C>, pair_row: usize, vector: usize, [first, second]: Self::Sums) {
        let rows = |odd: usize| [first[odd], first[2 + odd], second[odd], second[2 + odd]];
        if const { C::CONFIG.frames == 1 } {
            // The lanes of a group have the same, and store a row each.
            let (even, odd) = (rows(0), rows(1));
            let mut sum = 0.0;
            for row in 0..CELL {
                if lane() % CELL as u32 == row as u32 {
                    sum = if N::HALVED { even[row] + odd[row] } else { even[row] };
                }
            }
            // SAFETY: as required of the caller.
            unsafe { to.store_row(0, pair_row, sum) };
            return;
        }
        for odd in 0..2 {
            let frame = (vector * MMA_FRAMES + odd) as u32 + lane() % 4 * 2;
            // SAFETY: as required of the caller; each lane has two frames of its group's rows.
            unsafe { to.store_rows(frame, pair_row, rows(odd)) };
        }
    }
}
