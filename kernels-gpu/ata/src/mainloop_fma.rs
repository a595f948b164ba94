//! The product by f32 multiply-adds, laid out as in [`crate::mainloop_mma`]: the same uses, chunks and sums, with the lane's
//! elements of a pair multiplied where they are, so that the four lanes of a group hold parts of the same sums.
//!
//! With one frame each loaded element is used once and the kernel runs at the speed of the memory. With eight frames it is the
//! oracle on the card: no number is rounded but by the f32 arithmetic itself.

use cuda_std::convert::fma;
use cuda_std::warp::quad_sum;
use layout::ata::{ATA, AtaArgs, AtaUnit};

use crate::pairs::{Use, load_pair, load_uses, lower_operand, upper_operand};
use crate::sums::{WarpSums, store_result};
use crate::vector::FrameRow;
use crate::work::{Work, lane, warp};

/// # Safety
/// The launch is that of row `ROW`, and `args` describes its tensors and a matrix of its precision.
#[inline(always)]
pub(crate) unsafe fn product<const ROW: usize, const CHUNKS: usize, const FRAMES: usize, const DEPTH: usize>(
    args: &AtaArgs,
) {
    const { assert!(matches!(ATA[ROW].unit, AtaUnit::Fma) && ATA[ROW].warps > 0) };
    let precision = const { ATA[ROW].precision };
    let warps = const { ATA[ROW].warps as u32 };
    // SAFETY: the launch is the row's.
    let work = unsafe { Work::of_block(args, FRAMES as u32) };
    let mut rows = [FrameRow::EMPTY; FRAMES];
    for frame in 0..FRAMES {
        rows[frame] = FrameRow::new(args, &work, work.first_frame + frame as u32);
    }

    // Rows 4 * group to 4 * group + 3 of the pair row, and rows 2 * group and one further of each of its blocks.
    let mut upper = [[0f32; 4]; FRAMES];
    let mut lower = [[[0f32; 2]; 2]; FRAMES];
    let mut at = work.begin + warp();
    while at < work.end {
        // SAFETY: the uses are those of the pair row.
        let uses: [Use; DEPTH] = unsafe { load_uses(args, at, warps, work.end) };
        let mut pairs = [[[0u32; 4]; CHUNKS]; DEPTH];
        for i in 0..DEPTH {
            if uses[i].is_some() {
                // SAFETY: as above.
                pairs[i] = unsafe { load_pair(args, precision, uses[i]) };
            }
        }
        for i in 0..DEPTH {
            for frame in 0..FRAMES {
                if uses[i].is_lower() {
                    // SAFETY: a stored pair starts before n; what is beyond reads as zero.
                    let x = unsafe { [rows[frame].load(uses[i].block()), rows[frame].load(uses[i].block() + 1)] };
                    if uses[i].is_second() {
                        lower[frame][1] = multiply_lower::<ROW, CHUNKS>(lower[frame][1], x, &pairs[i]);
                    } else {
                        lower[frame][0] = multiply_lower::<ROW, CHUNKS>(lower[frame][0], x, &pairs[i]);
                    }
                } else if uses[i].is_some() {
                    // SAFETY: as above.
                    let x = unsafe { rows[frame].load(uses[i].block()) };
                    upper[frame] = multiply_upper::<ROW, CHUNKS>(upper[frame], x, &pairs[i]);
                }
            }
        }
        at += DEPTH as u32 * warps;
    }

    let sums = WarpSums::of_warp::<ROW>();
    // SAFETY: the warp is together again; the first lane of each group stores; the syncs separate stores from loads.
    unsafe {
        for frame in 0..FRAMES {
            upper[frame] = upper[frame].map(|part| quad_sum(part));
            lower[frame] = lower[frame].map(|block| block.map(|part| quad_sum(part)));
            if lane().is_multiple_of(4) {
                sums.store_upper(frame as u32, upper[frame]);
            }
        }
        sums.sync();
        if lane().is_multiple_of(4) {
            for frame in 0..FRAMES {
                for block in 0..2 {
                    sums.add_lower(frame as u32, block as u32, lower[frame][block]);
                }
            }
        }
        store_result::<ROW>(args, &work);
    }
}

#[inline(always)]
fn multiply_upper<const ROW: usize, const CHUNKS: usize>(
    mut sum: [f32; 4],
    x: [f32; 4],
    pair: &[[u32; 4]; CHUNKS],
) -> [f32; 4] {
    for part in 0..2 {
        for step in 0..2 {
            let a = upper_operand(pair, const { ATA[ROW].precision }, 0, part, step).map(f32::from_bits);
            for register in 0..4 {
                let row = 2 * part + register % 2;
                sum[row] = fma(a[register], x[2 * step + register / 2], sum[row]);
            }
        }
    }
    sum
}

#[inline(always)]
fn multiply_lower<const ROW: usize, const CHUNKS: usize>(
    mut sum: [f32; 2],
    x: [[f32; 4]; 2],
    pair: &[[u32; 4]; CHUNKS],
) -> [f32; 2] {
    for part in 0..2 {
        for step in 0..2 {
            let a = lower_operand(pair, const { ATA[ROW].precision }, 0, part, step).map(f32::from_bits);
            for register in 0..4 {
                sum[register % 2] = fma(a[register], x[part][2 * step + register / 2], sum[register % 2]);
            }
        }
    }
    sum
}
