//! Products of 16-bit numbers by `mma.sync` m16n8k16. Stored numbers are operands as they are; a transposed tile takes
//! one byte permutation for two of them.
//!
//! X is f32 of any size. For bf16 an element of X becomes the sum of two bf16 numbers, 16 bits or more, and takes two
//! products. With one frame the two numbers are the even and the odd columns of one product.
//!
//! For f16 each 32 elements of a frame are multiplied by a power of two that brings the largest of them to at least
//! 2^14 and below 2^15. Their sums, which start at 0, are multiplied by the inverse, and by the power of two of
//! [`variants::ata::sums_fields`], which keeps the total in range.

use cuda_std::convert::{Bf16, F16, fma, max, pack_bf16x2, pack_f16x2, permute_bytes};
use cuda_std::ptx::mma::m16n8k16;
use cuda_std::warp::{FULL_MASK, quad_max, warp_shuffle_idx};
use variants::ata::{AtaArgs, Precision};

use crate::cells::two_elements;
use crate::config::Configuration;
use crate::mma::{Accumulators, Numbers};
use crate::unit::Four;
use crate::work::{LANES, lane};

/// f16 or bf16, as the precision of the row says.
pub(crate) enum Half {}

/// B operands of a vector, by half.
#[derive(Clone, Copy)]
pub(crate) struct Operand {
    /// The numbers that X becomes.
    words: [[u32; 2]; 2],
    /// For bf16 what they leave.
    rest: [[u32; 2]; 2],
    /// For f16 what sums of the lane's two frames of Y are multiplied by.
    factors: [f32; 2],
}

/// Bits below the exponent of an f32.
const MANTISSA_BITS: u32 = f32::MANTISSA_DIGITS - 1;

/// The exponent field of 1.
const BIAS: u32 = (f32::MAX_EXP - 1) as u32;

impl<C: Configuration> Numbers<C> for Half {
    type Operand = Operand;

    const HALVED: bool = matches!(C::CONFIG.precision, Precision::Bf16);

    #[inline(always)]
    unsafe fn operand(args: &AtaArgs, x: [Four; 2]) -> Operand {
        match const { C::CONFIG.precision } {
            // SAFETY: as required of the caller.
            Precision::F16 => unsafe { scaled::<C>(args, x) },
            _ => split::<C>(x),
        }
    }

    #[inline(always)]
    fn only_where(condition: bool, x: Operand) -> Operand {
        let only = |x: [[u32; 2]; 2]| x.map(|x| x.map(|x| if condition { x } else { 0 }));
        Operand { words: only(x.words), rest: only(x.rest), ..x }
    }

    #[inline(always)]
    unsafe fn multiply<const TRANSPOSED: bool, const WORDS: usize, const VECTORS: usize>(
        sums: &mut [Accumulators; VECTORS],
        cells: &[[u32; WORDS]; 2],
        x: &[Operand; VECTORS],
    ) {
        for part in 0..2 {
            let a = cells.map(|cell| {
                let register = |register: usize| {
                    two_elements::<TRANSPOSED, WORDS>(&cell, 2 * part + register % 2, register / 2 * 2)
                };
                [register(0), register(1), register(2), register(3)]
            });
            for vector in 0..VECTORS {
                let (sum, x) = (&mut sums[vector][part], &x[vector]);
                // SAFETY: as required of the caller.
                unsafe {
                    if const { C::CONFIG.precision as u8 == Precision::F16 as u8 } {
                        let products = m16n8k16::<F16>(a[0], x.words[0], [0.0; 4]);
                        let products = m16n8k16::<F16>(a[1], x.words[1], products);
                        for i in 0..4 {
                            sum[i] = fma(products[i], x.factors[i % 2], sum[i]);
                        }
                    } else {
                        for half in 0..2 {
                            if const { C::CONFIG.frames > 1 } {
                                *sum = m16n8k16::<Bf16>(a[half], x.rest[half], *sum);
                            }
                            *sum = m16n8k16::<Bf16>(a[half], x.words[half], *sum);
                        }
                    }
                }
            }
        }
    }
}

/// X as f16 times a power of two.
///
/// # Safety
/// All lanes of the warp execute this call together.
#[inline(always)]
unsafe fn scaled<C: Configuration>(args: &AtaArgs, x: [Four; 2]) -> Operand {
    let [first, second] = x.map(|x| {
        let x = x.map(f32::abs);
        max(max(x[0], x[1]), max(x[2], x[3]))
    });
    // SAFETY: as required of the caller. The four lanes of a quad have the 32 elements of a frame.
    let exponent = unsafe { quad_max(max(first, second)) }.to_bits() >> MANTISSA_BITS;
    // Factor and inverse are normal numbers, whatever the exponent: the inverse has a field of at least 1.
    let factor = (2 * BIAS + 14 - exponent).min(args.factor_limit);
    let inverse = f32::from_bits((args.inverse_base - factor) << MANTISSA_BITS);
    let factor = f32::from_bits(factor << MANTISSA_BITS);
    let words = x.map(|x| [pack_f16x2(x[0] * factor, x[1] * factor), pack_f16x2(x[2] * factor, x[3] * factor)]);
    if const { C::CONFIG.frames } == 1 {
        // All quads have the one frame.
        return Operand { words, rest: [[0; 2]; 2], factors: [inverse; 2] };
    }
    // A lane has the sums of frames `2 * (lane % 4)` and the next; the quad of a frame has its number.
    let of_frame = lane() % 4 * 8;
    // SAFETY: as required of the caller.
    let factors = [of_frame, of_frame + 4].map(|from| unsafe { warp_shuffle_idx(FULL_MASK, inverse, from, LANES).0 });
    Operand { words, rest: [[0; 2]; 2], factors }
}

/// X as the sum of two bf16 numbers: the nearest one towards 0, which is finite, and the rest.
#[inline(always)]
fn split<C: Configuration>(x: [Four; 2]) -> Operand {
    let upper = |first: f32, second: f32| permute_bytes(first.to_bits(), second.to_bits(), 0x7632);
    let left = |x: f32| x - f32::from_bits(x.to_bits() & 0xFFFF_0000);
    let words = x.map(|x| [upper(x[0], x[1]), upper(x[2], x[3])]);
    let rest = x.map(|x| [pack_bf16x2(left(x[0]), left(x[1])), pack_bf16x2(left(x[2]), left(x[3]))]);
    // With one frame a lane has elements of the column of its group: odd columns are those of the rest.
    let is_rest = const { C::CONFIG.frames == 1 } && lane() / 4 % 2 == 1;
    let mut words = words;
    for half in 0..2 {
        for i in 0..2 {
            words[half][i] = if is_rest { rest[half][i] } else { words[half][i] };
        }
    }
    Operand { words, rest, factors: [1.0; 2] }
}
