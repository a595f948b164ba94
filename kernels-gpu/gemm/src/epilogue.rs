//! The end of a block: sums of fragments to rows of D, through shared memory.
//!
//! A warp stores 16 rows of its sums at a time to its own part of shared memory. It reads them back in groups of
//! [`variants::gemm::GROUP`] columns, so that each lane moves 16 bytes of D. The loop over these rows stays a loop, in
//! which sums move up by a fragment each time. Unrolled, it would have the code of a group four times.

use cuda_std::hint::opaque;
use cuda_std::shared;
use cuda_std::warp::{FULL_MASK, sync_warp};
use variants::gemm::{GEMM, GROUP, GemmArgs};

use crate::multiply::Sums;
use crate::output::{Output, Partial};
use crate::work::{LANES, Work, lane, warp};

/// Rows of a fragment.
const FRAGMENT_ROWS: u32 = 16;

/// Stores the sums of all warps of a block: finished elements to D, or the block's split of k to the partial sums.
///
/// # Safety
/// The launch is that of configuration `ID`; all threads of the block call it; shared memory is free.
#[inline(always)]
pub(crate) unsafe fn store<const ID: usize, const A: usize, const B: usize>(args: &GemmArgs, mut sums: Sums<A, B>) {
    let (warp_m, warp_n) = const { (GEMM[ID].warp_m() as u32, GEMM[ID].warp_n() as u32) };
    let (warps_n, stride) = const { (GEMM[ID].tile.warps[1] as u32, GEMM[ID].sums_stride()) };
    let work = Work::of_block(args, const { &GEMM[ID] });
    let (lane, warp) = (lane(), warp());
    let first_column = work.first_column + warp % warps_n * warp_n;
    let mut first_row = work.first_row + warp / warps_n * warp_m;
    let base = shared::dynamic().offset(GEMM[ID].sums_offset(warp));
    let at = |row: u32, column: u32| base.offset((row * stride + column) * size_of::<f32>() as u32);
    // SAFETY: all lanes take the same steps; each place is in the warp's part, and its stores and loads are ordered by
    // the barriers of the warp.
    unsafe {
        let output = Output::new(args, work.batch);
        let mut fragment = opaque(0);
        while fragment < A as u32 {
            for (column, pair) in sums[0].iter().enumerate() {
                for (half, [c0, c1, c2, c3]) in pair.iter().map(|sums| sums.map(f32::to_bits)).enumerate() {
                    let column = (column * 2 + half) as u32 * 8 + lane % 4 * 2;
                    at(lane / 4, column).store([c0, c1]);
                    at(lane / 4 + 8, column).store([c2, c3]);
                }
            }
            // The 16 rows are stored.
            sync_warp(FULL_MASK);
            let mut group = opaque(lane);
            while group < FRAGMENT_ROWS * (warp_n / GROUP as u32) {
                let (row, column) = (group / (warp_n / GROUP as u32), group % (warp_n / GROUP as u32) * GROUP as u32);
                let [low, high]: [[u32; 4]; 2] = [at(row, column).load(), at(row, column + 4).load()];
                let values: [f32; GROUP] =
                    core::array::from_fn(|i| f32::from_bits(if i < 4 { low[i] } else { high[i - 4] }));
                let (row, column) = (first_row + row, first_column + column);
                if row < args.m && column < args.n {
                    if args.splits > 1 {
                        Partial::new(args).store(work.split, work.batch, row, column, values);
                    } else {
                        output.store(row, column, values);
                    }
                }
                group += LANES;
            }
            // The 16 rows are read.
            sync_warp(FULL_MASK);
            for next in 1..A {
                sums[next - 1] = sums[next];
            }
            first_row += FRAGMENT_ROWS;
            fragment += 1;
        }
    }
}
