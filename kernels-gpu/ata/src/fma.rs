//! The unit of f32 multiply-adds, one frame a vector. The four lanes of a group hold parts of the same sums.
//!
//! With one frame each loaded element is used once, and the kernel runs at the speed of the memory. TF32 numbers serve
//! too, and are fewer bytes. X is taken as it is, and a lane has half as many sums as on tensor cores. With eight
//! frames this unit is the oracle on the card: nothing but the f32 arithmetic itself rounds a number.

use cuda_std::convert::fma;
use cuda_std::warp::{FULL_MASK, warp_shuffle_xor};
use variants::ata::{AtaArgs, CELL};

use crate::cells::f32_element;
use crate::config::Configuration;
use crate::sums::WarpSums;
use crate::unit::{Four, Unit};
use crate::work::{LANES, lane};

/// f32 multiply-adds.
pub(crate) enum Fma {}

impl<C: Configuration> Unit<C> for Fma {
    type Sums = [f32; CELL];
    type Operand = [Four; 2];

    const CONVERTS: bool = false;

    const ZERO: Self::Sums = [0.0; CELL];

    #[inline(always)]
    fn frame(vector: usize) -> u32 {
        vector as u32
    }

    #[inline(always)]
    unsafe fn operand(_: &AtaArgs, x: [Four; 2]) -> [Four; 2] {
        x
    }

    #[inline(always)]
    fn only_where(condition: bool, x: [Four; 2]) -> [Four; 2] {
        x.map(|x| x.map(|x| if condition { x } else { 0.0 }))
    }

    #[inline(always)]
    unsafe fn multiply<const TRANSPOSED: bool, const WORDS: usize, const VECTORS: usize>(
        sums: &mut [Self::Sums; VECTORS],
        cells: &[[u32; WORDS]; 2],
        x: &[[Four; 2]; VECTORS],
    ) {
        for half in 0..2 {
            for of_row in 0..CELL {
                for of_k in 0..CELL {
                    let (row, column) = if TRANSPOSED { (of_k, of_row) } else { (of_row, of_k) };
                    let a = f32::from_bits(f32_element(&cells[half], const { C::CONFIG.precision }, row, column));
                    for vector in 0..VECTORS {
                        sums[vector][of_row] = fma(a, x[vector][half][of_k], sums[vector][of_row]);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store(to: &WarpSums<C>, pair_row: usize, vector: usize, sums: Self::Sums) {
        // SAFETY: as required of the caller.
        unsafe { to.store_row(vector as u32, pair_row, sum_of_lane(sums)) }
    }
}

/// The sum over the lanes of a quad of that of the row whose number in the quad is the lane's: each lane gives away
/// half of what it has, then half of that.
///
/// # Safety
/// All lanes of the warp execute this call together.
#[inline(always)]
unsafe fn sum_of_lane(sums: [f32; CELL]) -> f32 {
    let add = |[low, high]: [f32; 2], mask: u32| {
        let (kept, given) = if lane() & mask == 0 { (low, high) } else { (high, low) };
        // SAFETY: as required of the caller.
        kept + unsafe { warp_shuffle_xor(FULL_MASK, given, mask, LANES) }.0
    };
    add([add([sums[0], sums[2]], 2), add([sums[1], sums[3]], 2)], 1)
}
