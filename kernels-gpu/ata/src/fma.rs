//! The unit of f32 multiply-adds, one frame a vector. The four lanes of a group hold parts of the same sums.
//!
//! With one frame each loaded element is used once and the kernel runs at the speed of the memory. With eight frames it
//! is the oracle on the card: no number is rounded but by the f32 arithmetic itself.

use cuda_std::convert::fma;
use cuda_std::warp::quad_sum;
use layout::ata::{ATA, CELL};

use crate::cells::element;
use crate::sums::WarpSums;
use crate::unit::{Four, Turn, Unit};
use crate::work::lane;

/// f32 multiply-adds.
pub(crate) enum Fma {}

impl<const ROW: usize> Unit<ROW> for Fma {
    type Sums = [f32; CELL];
    type Operand = [Four; 2];

    const ZERO: Self::Sums = [0.0; CELL];

    #[inline(always)]
    fn frame(vector: usize) -> u32 {
        vector as u32
    }

    #[inline(always)]
    unsafe fn operand(x: [Four; 2]) -> [Four; 2] {
        x
    }

    #[inline(always)]
    fn only_where(condition: bool, x: [Four; 2]) -> [Four; 2] {
        x.map(|x| x.map(|x| if condition { x } else { 0.0 }))
    }

    #[inline(always)]
    unsafe fn multiply<T: Turn, const WORDS: usize, const VECTORS: usize>(
        sums: &mut [Self::Sums; VECTORS],
        cells: &[[u32; WORDS]; 2],
        turn: T,
        x: &[[Four; 2]; VECTORS],
    ) {
        for half in 0..2 {
            for of_row in 0..CELL {
                for of_k in 0..CELL {
                    let at = |row, column| element(&cells[half], const { ATA[ROW].precision }, 0, row, column);
                    let (straight, turned) = (at(of_row, of_k), at(of_k, of_row));
                    let a = f32::from_bits(if turn.is_transposed() { turned } else { straight });
                    for vector in 0..VECTORS {
                        sums[vector][of_row] = fma(a, x[vector][half][of_k], sums[vector][of_row]);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store(to: &WarpSums<ROW>, pair_row: usize, vector: usize, sums: Self::Sums) {
        // SAFETY: as required of the caller; one lane of each group stores its rows.
        unsafe {
            let sums = sums.map(|part| quad_sum(part));
            if lane().is_multiple_of(4) {
                to.store_rows(vector as u32, pair_row, sums);
            }
        }
    }
}
