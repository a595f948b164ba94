//! The product on tensor cores. A thread block computes 32 rows (a pair row) of one channel for 8 or 16 frames:
//!
//! ```text
//! for each use of a pair that is this warp's, DEPTH at a time:
//!     load the pair's chunks (16 bytes a lane each) and the lane's elements of X
//!     upper: Y[32 rows]    += pair    [32 x 16] * X[16 x frames]   4 mma.m16n8k8 for 8 frames
//!     lower: Y[16 rows]    += pair^T  [16 x 32] * X[32 x frames]   4 mma.m16n8k8 for 8 frames
//! add the sums of the warps in shared memory, store Y
//! ```
//!
//! 1. It is bound by memory. For n = 2624, 3 channels and 27 block diagonals, pairs are read twice, which is 25.0 MB in f32 and
//!    12.5 MB in 16 bits (stored once, 13.0 and 6.5 MB: all of it stays in L2); at 5.5 TB/s from L2 that takes 4.5 and 2.3 us. The
//!    products of 8 frames are 0.1 GFLOP, nothing beside it. X is 0.25 MB, read by each block as far as the band reaches: 7 MB in
//!    all, of which L1 serves what the warps of a block share.
//! 2. So pairs lie in memory as the lanes want them, for both uses, and every load is 16 bytes a lane and whole lines for a warp.
//!    Nothing of A passes through shared memory. Each warp has `DEPTH` pairs in flight, two blocks of eight warps on each
//!    multiprocessor: 64 KiB, twice what 5.5 TB/s and a latency of 0.8 us ask for on 132 of them.
//! 3. The warps of a block take every eighth use, so that a block ends within one use of all its warps; their sums meet in shared
//!    memory in a fixed order. No atomics, and the same bits in every run.
//! 4. 16-bit numbers become TF32 in registers, exactly, and X is rounded to TF32 for them too: f16 products would need X within
//!    65504, and the tensor cores are idle anyway.
//! 5. The numbers of the uses come from memory one round ahead of the loads that depend on them.
//!
//! Registers: 16 accumulators for 8 frames, 4 for each chunk, 8 for the X of each use and 8 frames. Shared memory: 1152 bytes a warp
//! and 8 frames.

use cuda_std::convert::tf32_from_f32;
use cuda_std::ptx::mma::m16n8k8_tf32;
use layout::ata::{ATA, AtaArgs, AtaUnit, MMA_FRAMES, Precision};

use crate::pairs::{Use, load_pair, load_uses, lower_operand, upper_operand};
use crate::sums::{WarpSums, store_result};
use crate::vector::FrameRow;
use crate::work::{Work, lane, warp};

/// # Safety
/// The launch is that of row `ROW`, and `args` describes its tensors and a matrix of its precision.
#[inline(always)]
pub(crate) unsafe fn product<const ROW: usize, const CHUNKS: usize, const TILES: usize, const DEPTH: usize>(
    args: &AtaArgs,
) {
    const { assert!(matches!(ATA[ROW].unit, AtaUnit::Mma) && ATA[ROW].warps > 0) };
    let precision = const { ATA[ROW].precision };
    let warps = const { ATA[ROW].warps as u32 };
    // SAFETY: the launch is the row's.
    let work = unsafe { Work::of_block(args, ATA[ROW].frames as u32) };
    let mut rows = [FrameRow::EMPTY; TILES];
    for tile in 0..TILES {
        let frame = work.first_frame + (tile * MMA_FRAMES) as u32 + lane() / 4;
        rows[tile] = FrameRow::new(args, &work, frame);
    }

    // By tile of frames, then by rows 4 * group + 2 * part (upper), or by block (lower).
    let mut upper = [[[0f32; 4]; 2]; TILES];
    let mut lower = [[[0f32; 4]; 2]; TILES];
    let mut at = work.begin + warp();
    // SAFETY: the uses are those of the pair row, and all lanes of the warp take the same ones together; so too in the loop.
    let mut uses: [Use; DEPTH] = unsafe { load_uses(args, at, warps, work.end) };
    while at < work.end {
        let mut pairs = [[[0u32; 4]; CHUNKS]; DEPTH];
        let mut x = [[[[0f32; 4]; 2]; TILES]; DEPTH];
        for i in 0..DEPTH {
            if uses[i].is_some() {
                // SAFETY: see above.
                pairs[i] = unsafe { load_pair(args, precision, uses[i]) };
                for tile in 0..TILES {
                    // SAFETY: see above; a stored pair starts before n.
                    x[i][tile][0] = unsafe { rows[tile].load(uses[i].block()) };
                }
                if uses[i].is_lower() {
                    for tile in 0..TILES {
                        // SAFETY: see above; what is beyond n reads as zero.
                        x[i][tile][1] = unsafe { rows[tile].load(uses[i].block() + 1) };
                    }
                }
            }
        }
        at += DEPTH as u32 * warps;
        // SAFETY: see above.
        let next = unsafe { load_uses(args, at, warps, work.end) };
        for i in 0..DEPTH {
            // Tests of bits: LLVM makes a table in memory of a `match`.
            for tile in 0..TILES {
                // SAFETY: see above.
                unsafe {
                    if uses[i].is_lower() {
                        if uses[i].is_second() {
                            lower[tile][1] = multiply_lower::<ROW, CHUNKS>(lower[tile][1], x[i][tile], &pairs[i]);
                        } else {
                            lower[tile][0] = multiply_lower::<ROW, CHUNKS>(lower[tile][0], x[i][tile], &pairs[i]);
                        }
                    } else if uses[i].is_some() {
                        let b = operand::<ROW>(x[i][tile][0]);
                        for part in 0..2 {
                            let a = |term, step| upper_operand(&pairs[i], precision, term, part, step);
                            upper[tile][part] = multiply(upper[tile][part], b, a, precision);
                        }
                    }
                }
            }
        }
        uses = next;
    }

    let sums = WarpSums::of_warp::<ROW>();
    let first_frame = |tile: usize| (tile * MMA_FRAMES) as u32 + lane() % 4 * 2;
    // SAFETY: the warp is together again, each lane has frames 2 * thread and one further, and the sync separates the two loops.
    unsafe {
        for tile in 0..TILES {
            for odd in 0..2 {
                let [first, second] = upper[tile];
                let rows = [first[odd], first[2 + odd], second[odd], second[2 + odd]];
                sums.store_upper(first_frame(tile) + odd as u32, rows);
            }
        }
        sums.sync();
        for tile in 0..TILES {
            for odd in 0..2 {
                for block in 0..2 {
                    let gain = lower[tile][block];
                    sums.add_lower(first_frame(tile) + odd as u32, block as u32, [gain[odd], gain[2 + odd]]);
                }
            }
        }
        store_result::<ROW>(args, &work);
    }
}

/// Four elements of X as the B operands of two steps: the TF32 nearest to each, and what that leaves, rounded too.
#[derive(Clone, Copy)]
struct Operand {
    nearest: [u32; 4],
    rest: [u32; 4],
}

#[inline(always)]
fn operand<const ROW: usize>(x: [f32; 4]) -> Operand {
    let nearest = x.map(tf32_from_f32);
    let mut rest = [0; 4];
    if const { ATA[ROW].precision.terms() > 1 } {
        for i in 0..4 {
            rest[i] = tf32_from_f32(x[i] - f32::from_bits(nearest[i]));
        }
    }
    Operand { nearest, rest }
}

/// Adds the product of 16 elements of k, in two steps.
///
/// With two terms the products are summed from zero, the small ones first, and added to the sum by f32 additions: tensor cores cut
/// off what f32 arithmetic rounds, which adds up along a chain and would be the largest error of this precision.
///
/// # Safety
/// All lanes of the warp execute this call together.
#[inline(always)]
unsafe fn multiply(sum: [f32; 4], b: Operand, a: impl Fn(usize, usize) -> [u32; 4], precision: Precision) -> [f32; 4] {
    let mut products = if precision.terms() > 1 { [0.0; 4] } else { sum };
    for step in 0..2 {
        let pair = |words: [u32; 4]| [words[2 * step], words[2 * step + 1]];
        // SAFETY: as required of the caller.
        unsafe {
            if precision.terms() > 1 {
                products = m16n8k8_tf32(a(1, step), pair(b.nearest), products);
                products = m16n8k8_tf32(a(0, step), pair(b.rest), products);
            }
            products = m16n8k8_tf32(a(0, step), pair(b.nearest), products);
        }
    }
    if precision.terms() > 1 {
        for i in 0..4 {
            products[i] += sum[i];
        }
    }
    products
}

/// Adds the product of a transposed pair and two blocks of X.
///
/// # Safety
/// All lanes of the warp execute this call together.
#[inline(always)]
unsafe fn multiply_lower<const ROW: usize, const CHUNKS: usize>(
    mut sum: [f32; 4],
    x: [[f32; 4]; 2],
    pair: &[[u32; 4]; CHUNKS],
) -> [f32; 4] {
    let precision = const { ATA[ROW].precision };
    for part in 0..2 {
        let b = operand::<ROW>(x[part]);
        // SAFETY: as required of the caller.
        sum = unsafe { multiply(sum, b, |term, step| lower_operand(pair, precision, term, part, step), precision) };
    }
    sum
}
