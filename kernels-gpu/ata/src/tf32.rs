//! Products of TF32 numbers by `mma.sync` m16n8k8.

use cuda_std::convert::tf32_from_f32;
use cuda_std::ptx::mma::m16n8k8_tf32;
use variants::ata::{AtaArgs, CELL};

use crate::cells::tf32_element;
use crate::config::Configuration;
use crate::mma::{Accumulators, Numbers};
use crate::unit::Four;

/// TF32 numbers, or sums of two.
pub(crate) enum Tf32 {}

/// Elements of X as the B operands of two steps, by half: the TF32 nearest to each, and what that leaves, rounded too.
#[derive(Clone, Copy)]
pub(crate) struct Operand {
    nearest: [[u32; 4]; 2],
    rest: [[u32; 4]; 2],
}

impl<C: Configuration> Numbers<C> for Tf32 {
    type Operand = Operand;

    const HALVED: bool = false;

    #[inline(always)]
    unsafe fn operand(_: &AtaArgs, x: [Four; 2]) -> Operand {
        let nearest = x.map(|x| x.map(tf32_from_f32));
        let mut rest = [[0; 4]; 2];
        if const { C::CONFIG.precision.terms() > 1 } {
            for half in 0..2 {
                for i in 0..4 {
                    rest[half][i] = tf32_from_f32(x[half][i] - f32::from_bits(nearest[half][i]));
                }
            }
        }
        Operand { nearest, rest }
    }

    #[inline(always)]
    fn only_where(condition: bool, x: Operand) -> Operand {
        let only = |x: [[u32; 4]; 2]| x.map(|x| x.map(|x| if condition { x } else { 0 }));
        Operand { nearest: only(x.nearest), rest: only(x.rest) }
    }

    #[inline(always)]
    unsafe fn multiply<const TRANSPOSED: bool, const WORDS: usize, const VECTORS: usize>(
        sums: &mut [Accumulators; VECTORS],
        cells: &[[u32; WORDS]; 2],
        x: &[Operand; VECTORS],
    ) {
        let precision = const { C::CONFIG.precision };
        for half in 0..2 {
            let mut elements = [[[0; CELL]; CELL]; 2];
            for term in 0..precision.terms() {
                for row in 0..CELL {
                    for column in 0..CELL {
                        elements[term][row][column] = tf32_element(&cells[half], term, row, column);
                    }
                }
            }
            for part in 0..2 {
                let a = |term: usize, step: usize| {
                    let register = |register: usize| {
                        let (of_row, of_k) = (2 * part + register % 2, 2 * step + register / 2);
                        let (direct, turned) = (elements[term][of_row][of_k], elements[term][of_k][of_row]);
                        if TRANSPOSED { turned } else { direct }
                    };
                    [register(0), register(1), register(2), register(3)]
                };
                for vector in 0..VECTORS {
                    // SAFETY: as required of the caller.
                    sums[vector][part] = unsafe { multiply_half::<C>(sums[vector][part], &x[vector], half, a) };
                }
            }
        }
    }
}

/// Adds a 16x16 by 16x8 product in two steps. With two terms a number, the small products are added up with the large
/// one before the sum grows.
///
/// # Safety
/// All lanes of the warp execute this call together.
#[inline(always)]
unsafe fn multiply_half<C: Configuration>(
    sum: [f32; 4],
    x: &Operand,
    half: usize,
    a: impl Fn(usize, usize) -> [u32; 4],
) -> [f32; 4] {
    let terms = const { C::CONFIG.precision.terms() };
    let mut products = if terms > 1 { [0.0; 4] } else { sum };
    for step in 0..2 {
        let pair = |words: [u32; 4]| [words[2 * step], words[2 * step + 1]];
        // SAFETY: as required of the caller.
        unsafe {
            if terms > 1 {
                products = m16n8k8_tf32(a(1, step), pair(x.nearest[half]), products);
                products = m16n8k8_tf32(a(0, step), pair(x.rest[half]), products);
            }
            products = m16n8k8_tf32(a(0, step), pair(x.nearest[half]), products);
        }
    }
    if terms > 1 {
        for i in 0..4 {
            products[i] += sum[i];
        }
    }
    products
}
