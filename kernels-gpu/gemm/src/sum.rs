//! The second stage of split-K: adds up the partial sums and finishes the elements.

use cuda_std::thread;
use variants::gemm::{GROUP, GemmArgs, REDUCE_SPLIT_K};

use crate::output::{Output, Partial};
use crate::work::wait_for_dependencies;

/// # Safety
/// The launch is that of [`REDUCE_SPLIT_K`], after the main kernel of the same `args`.
#[inline(always)]
pub(crate) unsafe fn sum(args: &GemmArgs) {
    let groups_per_row = args.n.div_ceil(GROUP as u32);
    let group = thread::block_idx_x() * REDUCE_SPLIT_K.threads + thread::thread_idx_x();
    // A thread without a group of its own ends here.
    if group >= args.batch * args.m * groups_per_row {
        return;
    }
    let (matrix_row, group) = div_rem(group, groups_per_row);
    let (batch, row) = div_rem(matrix_row, args.m);
    let column = group * GROUP as u32;
    wait_for_dependencies();
    // SAFETY: row and column are inside D, and this thread's alone; the main kernel has stored every split.
    unsafe { Output::new(args, batch).store(row, column, Partial::new(args).total(batch, row, column)) }
}

/// Quotient and remainder for a divisor that is not 0; without the panic call that a plain `/` links.
#[inline(always)]
pub(crate) fn div_rem(dividend: u32, divisor: u32) -> (u32, u32) {
    // SAFETY: the divisors are sizes of a launched grid: not 0.
    let quotient = unsafe { dividend.checked_div(divisor).unwrap_unchecked() };
    (quotient, dividend - quotient * divisor)
}
