//! The unit of `wmma` m32n8k16: the 32x16 pair of bf16 blocks times 16 elements of X for eight frames. The instruction
//! reads its operands from shared memory, so each warp stages the tile and the part of X there.
//!
//! X becomes the sum of two bf16 numbers, 16 bits or more, and takes two products: one alone would lose 3 bits against
//! TF32. Of f16 two numbers would not reach beyond 65504.

use ata::cells::two_elements;
use ata::config::Configuration;
use ata::sums::WarpSums;
use ata::unit::{Four, Unit};
use ata::work::{lane, warp};
use cuda_std::convert::{Bf16, bf16_from_f32, bf16_to_f32};
use cuda_std::ptx::wmma::{self, Col, Factors, M32N8K16, Row};
use cuda_std::shared::{self, SharedAddr};
use cuda_std::warp::{FULL_MASK, sync_warp};
use variants::ata::{AtaArgs, BLOCK, CELL, PAIR_ROWS, TILE_STRIDE, VECTOR_STRIDE, direct_cell};

/// `wmma` m32n8k16 on bf16.
pub(crate) enum Wmma {}

/// Elements of X in bf16, by half and term: the nearest number to each, and what that leaves.
type Operand = [[[u32; 2]; 2]; 2];

/// Bytes of a stored number.
const BYTES: usize = size_of::<u16>();

impl<C: Configuration> Unit<C> for Wmma {
    /// The accumulator fragment of 32 rows by eight frames.
    type Sums = [f32; 8];
    type Operand = Operand;

    const CONVERTS: bool = true;

    const ZERO: Self::Sums = [0.0; 8];

    #[inline(always)]
    fn frame(_vector: usize) -> u32 {
        lane() / 4
    }

    #[inline(always)]
    unsafe fn operand(_: &AtaArgs, x: [Four; 2]) -> Operand {
        let pack = |x: [u16; CELL]| [x[0] as u32 | (x[1] as u32) << 16, x[2] as u32 | (x[3] as u32) << 16];
        x.map(|x| {
            let nearest = x.map(bf16_from_f32);
            let mut rest = [0; CELL];
            for i in 0..CELL {
                rest[i] = bf16_from_f32(x[i] - bf16_to_f32(nearest[i]));
            }
            [pack(nearest), pack(rest)]
        })
    }

    #[inline(always)]
    fn only_where(condition: bool, x: Operand) -> Operand {
        if condition { x } else { [[[0; 2]; 2]; 2] }
    }

    #[inline(always)]
    unsafe fn multiply<const TRANSPOSED: bool, const WORDS: usize, const VECTORS: usize>(
        sums: &mut [Self::Sums; VECTORS],
        cells: &[[u32; WORDS]; 2],
        x: &[Operand; VECTORS],
    ) {
        let regions = const { [C::CONFIG.smem().get("tiles"), C::CONFIG.smem().get("vectors")] };
        let [tile, vectors] = regions.map(|region| shared::dynamic().offset(region.stage_offset(warp())));
        let at = |row: u32, column: u32| tile.offset((row * TILE_STRIDE as u32 + column) * BYTES as u32);
        let (group, thread) = (lane() / 4, lane() % 4);
        // SAFETY: the stages are the warp's own and hold a tile and two terms of 32 elements for eight frames; every
        // lane stores its own cells. The syncs order loads of the tile before, stores and loads.
        unsafe {
            sync_warp(FULL_MASK);
            for half in 0..2 {
                let (row, column) = if TRANSPOSED {
                    ((BLOCK * half) as u32 + CELL as u32 * thread, CELL as u32 * group)
                } else {
                    let cell = direct_cell(lane());
                    (cell / 4 * CELL as u32, (BLOCK * half) as u32 + cell % 4 * CELL as u32)
                };
                for i in 0..CELL {
                    let words = [0, 2].map(|of_k| two_elements::<false, WORDS>(&cells[half], i, of_k));
                    at(row + i as u32, column).store(words);
                }
                for term in 0..2 {
                    let element = group * VECTOR_STRIDE as u32 + (term * PAIR_ROWS + BLOCK * half) as u32;
                    vectors.offset((element + CELL as u32 * thread) * BYTES as u32).store(x[0][half][term]);
                }
            }
            sync_warp(FULL_MASK);
            for half in 0..2 {
                for term in 0..2 {
                    let element = (term * PAIR_ROWS + BLOCK * half) as u32;
                    let b = wmma::load_b::<M32N8K16, Bf16, Col>(
                        vectors.offset(element * BYTES as u32),
                        VECTOR_STRIDE as u32,
                    );
                    sums[0] = if TRANSPOSED {
                        product::<Col>(at((BLOCK * half) as u32, 0), b, sums[0])
                    } else {
                        product::<Row>(at(0, (BLOCK * half) as u32), b, sums[0])
                    };
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store(to: &WarpSums<C>, pair_row: usize, _vector: usize, sums: Self::Sums) {
        let stride = const { C::CONFIG.sums_stride() as u32 };
        // SAFETY: as required of the caller; the sums of the pair row start on a 32-byte boundary.
        unsafe { wmma::store_d_shared::<M32N8K16, Col>(to.of_pair_row(pair_row), sums, stride) }
    }
}

/// Adds the product of 32x16 elements of the tile, in the order `L`, and a fragment of X.
///
/// # Safety
/// All lanes of the warp execute this call together; the elements were stored, and a barrier has followed; `b` was
/// loaded, and `sum` is zeros or what this function gave.
#[inline(always)]
unsafe fn product<L: wmma::Order>(a: SharedAddr, b: <M32N8K16 as Factors<Bf16>>::B, sum: [f32; 8]) -> [f32; 8] {
    // SAFETY: as required of the caller; the stride is a multiple of 8, the first element on a 32-byte boundary.
    unsafe {
        let a = wmma::load_a::<M32N8K16, Bf16, L>(a, TILE_STRIDE as u32);
        wmma::mma::<M32N8K16, Bf16, L, Col>(a, b, sum)
    }
}
