//! Which query rows of which head a block computes, and which part of them is a thread's.

use cuda_std::hint::opaque;
use cuda_std::thread;
use layout::attention::{AttentionArgs, AttentionStrides};

/// Lanes of a warp.
pub(crate) const LANES: u32 = 32;

/// The tensors of one (batch, head), as addresses of their first row, and the block's rows.
///
/// Blocks of one head follow each other, so that its keys and values stay in L2, and the last rows come first: under a causal
/// mask they have the most keys, and the short blocks fill the end of the grid.
pub(crate) struct Work {
    pub(crate) q: *const u16,
    pub(crate) k: *const u16,
    pub(crate) v: *const u16,
    pub(crate) o: *mut u16,
    /// Null where the LSE is not wanted.
    pub(crate) lse: *mut f32,
    /// First query row of the block.
    pub(crate) first_row: u32,
}

impl Work {
    /// The work of this block when each block takes `rows` query rows.
    ///
    /// # Safety
    /// The grid has one block for each (batch, head, `rows` rows) of `args`, whose tensors are as long as it says.
    #[inline(always)]
    pub(crate) unsafe fn of_block(args: &AttentionArgs, rows: u32) -> Self {
        // Opaque: what a second call needs is found anew and takes no registers in between.
        let row_blocks = opaque(args.q_len).div_ceil(rows);
        let (batch_head, from_end) = div_rem(opaque(thread::block_idx_x()), row_blocks);
        let (batch, head) = div_rem(batch_head, args.q_heads);
        let (kv_head, _) = div_rem(head, args.heads_per_kv);
        let start = |strides: &AttentionStrides, head: u32| {
            (i64::from(batch) * strides.batch + i64::from(head) * strides.head) * size_of::<u16>() as i64
        };
        let lse_offset =
            if args.lse == 0 { 0 } else { u64::from(batch_head) * u64::from(args.q_len) * size_of::<f32>() as u64 };
        Self {
            q: args.q.wrapping_add_signed(start(&args.q_strides, head)) as *const u16,
            k: args.k.wrapping_add_signed(start(&args.k_strides, kv_head)) as *const u16,
            v: args.v.wrapping_add_signed(start(&args.v_strides, kv_head)) as *const u16,
            o: args.o.wrapping_add_signed(start(&args.o_strides, head)) as *mut u16,
            lse: (args.lse + lse_offset) as *mut f32,
            first_row: (row_blocks - 1 - from_end) * rows,
        }
    }

    /// The work on the rows from `first_row` on of head `batch_head` of all batch entries.
    ///
    /// # Safety
    /// There is such a head.
    #[cfg(target_feature = "sm_90a")]
    #[inline(always)]
    pub(crate) unsafe fn of_rows(args: &AttentionArgs, batch_head: u32, first_row: u32) -> Self {
        let (batch, head) = div_rem(batch_head, args.q_heads);
        let (kv_head, _) = div_rem(head, args.heads_per_kv);
        let start = |strides: &AttentionStrides, head: u32| {
            (i64::from(batch) * strides.batch + i64::from(head) * strides.head) * size_of::<u16>() as i64
        };
        let lse_offset =
            if args.lse == 0 { 0 } else { u64::from(batch_head) * u64::from(args.q_len) * size_of::<f32>() as u64 };
        Self {
            q: args.q.wrapping_add_signed(start(&args.q_strides, head)) as *const u16,
            k: args.k.wrapping_add_signed(start(&args.k_strides, kv_head)) as *const u16,
            v: args.v.wrapping_add_signed(start(&args.v_strides, kv_head)) as *const u16,
            o: args.o.wrapping_add_signed(start(&args.o_strides, head)) as *mut u16,
            lse: (args.lse + lse_offset) as *mut f32,
            first_row,
        }
    }
}

/// This thread's lane in its warp.
///
/// It is opaque at each call, as [`warp`] is: what is derived from it is computed where it is used, and takes no registers
/// through the loop over the keys.
#[inline(always)]
pub(crate) fn lane() -> u32 {
    opaque(thread::thread_idx_x()) % LANES
}

/// This thread's warp in its block.
#[inline(always)]
pub(crate) fn warp() -> u32 {
    opaque(thread::thread_idx_x()) / LANES
}

/// Quotient and remainder for a divisor that is not 0; without the panic call that a plain `/` links.
#[inline(always)]
pub(crate) fn div_rem(dividend: u32, divisor: u32) -> (u32, u32) {
    // SAFETY: the divisors are row blocks, query heads and heads per key-value head of a launched grid: not 0.
    let quotient = unsafe { dividend.checked_div(divisor).unwrap_unchecked() };
    (quotient, dividend - quotient * divisor)
}
