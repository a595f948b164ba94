//! Which query rows of which head a block computes, and which of these rows are a thread's.

use cuda_std::hint::opaque;
use cuda_std::shared::SharedAddr;
use cuda_std::warp::{FULL_MASK, warp_shuffle_idx};
use cuda_std::{global, thread};
use variants::attention::{AttentionArgs, AttentionStrides, Seqlens};

use crate::mask::KeyRange;

/// Lanes of a warp.
pub(crate) const LANES: u32 = 32;

/// The tensors of one (batch, head), as addresses of their first row, and the block's rows.
///
/// Blocks of one head follow each other, so that its keys and values stay in L2. The last rows come first: under a
/// causal mask they have the most keys, and the short blocks then fill the end of the grid.
pub(crate) struct Work {
    pub(crate) q: *const u16,
    pub(crate) k: *const u16,
    pub(crate) v: *const u16,
    pub(crate) o: *mut u16,
    /// Null where the LSE is not wanted.
    pub(crate) lse: *mut f32,
    /// Batch entry.
    pub(crate) batch: u32,
    /// Head of Q.
    pub(crate) head: u32,
    /// First query row of the block.
    pub(crate) first_row: u32,
    /// Query rows there are.
    pub(crate) q_len: u32,
    /// Keys there are, and which of them rows see.
    pub(crate) keys: KeyRange,
    /// The sequences of the batch entry.
    pub(crate) member: SeqlenInfo,
}

/// Where the sequences of a batch entry start in their tensors, in rows, and how long they are.
///
/// Another stream may write these numbers on the card at any time. So threads that meet at a barrier, or take the same
/// steps, get the numbers from one thread, which reads them once.
#[derive(Clone, Copy)]
pub(crate) struct SeqlenInfo {
    pub(crate) q_start: u32,
    pub(crate) q_len: u32,
    pub(crate) k_start: u32,
    pub(crate) keys: KeyRange,
}

impl SeqlenInfo {
    /// Sequences as long as all others, which batch strides lead to.
    #[inline(always)]
    pub(crate) fn equal(args: &AttentionArgs) -> Self {
        Self { q_start: 0, q_len: args.q_len, k_start: 0, keys: KeyRange::new(args) }
    }

    /// The sequences of batch entry `batch`, as one lane of the warp has read them.
    ///
    /// # Safety
    /// There is such a batch entry; all lanes of the warp call it together.
    #[inline(always)]
    pub(crate) unsafe fn of_warp(args: &AttentionArgs, batch: u32, seqlens: Seqlens) -> Self {
        if seqlens == Seqlens::Fixed || args.cu_seqlens_q == 0 {
            return Self::equal(args);
        }
        // SAFETY: the caller's contract.
        let words = unsafe { Self::of_batch(args, batch).words().map(|word| warp_uniform(word)) };
        Self::of_words(args, words)
    }

    /// The sequences of batch entry `batch`, as one thread of the block has read them.
    ///
    /// # Safety
    /// There is such a batch entry; all threads of the block call it together, and `place` is theirs to write.
    #[inline(always)]
    pub(crate) unsafe fn of_block(
        args: &AttentionArgs,
        batch: u32,
        seqlens: Seqlens,
        place: impl FnOnce() -> SharedAddr,
    ) -> Self {
        if seqlens == Seqlens::Fixed || args.cu_seqlens_q == 0 {
            return Self::equal(args);
        }
        // SAFETY: the caller's contract. The words are there behind the first barrier and read behind the second.
        unsafe {
            let place = place();
            if thread::thread_idx_x() == 0 {
                place.store(Self::of_batch(args, batch).words());
            }
            thread::sync_threads();
            let words = place.load();
            thread::sync_threads();
            Self::of_words(args, words)
        }
    }

    /// What one thread passes on to others: the first row, rows, the first key, keys.
    #[inline(always)]
    pub(crate) fn words(&self) -> [u32; 4] {
        [self.q_start, self.q_len, self.k_start, self.keys.len()]
    }

    /// The sequences that another thread has as [`Self::words`].
    #[inline(always)]
    pub(crate) fn of_words(args: &AttentionArgs, [q_start, q_len, k_start, k_len]: [u32; 4]) -> Self {
        Self { q_start, q_len, k_start, keys: KeyRange::of_member(args, q_len, k_len) }
    }

    /// The first query row of batch entry `batch`, where they follow each other.
    ///
    /// # Safety
    /// Its number is readable.
    #[cfg(target_feature = "sm_90a")]
    #[inline(always)]
    pub(crate) unsafe fn q_start_of(args: &AttentionArgs, batch: u32) -> u32 {
        // SAFETY: the caller's contract.
        let start = unsafe { global::load_relaxed((args.cu_seqlens_q as *const u32).wrapping_add(batch as usize)) };
        start.min(args.q_total)
    }

    /// Sequences as the numbers on the card say. Whatever these are, rows and keys are inside their tensors. Read again
    /// they may be others.
    ///
    /// # Safety
    /// The numbers of batch entry `batch` and the next are readable.
    #[inline(always)]
    pub(crate) unsafe fn of_batch(args: &AttentionArgs, batch: u32) -> Self {
        if args.cu_seqlens_q == 0 {
            return Self::equal(args);
        }
        let span = |starts: u64, total: u32, longest: u32| {
            let starts = (starts as *const u32).wrapping_add(batch as usize);
            // SAFETY: the caller's contract.
            let (start, end) = unsafe { (global::load_relaxed(starts), global::load_relaxed(starts.wrapping_add(1))) };
            let start = start.min(total);
            (start, (end.min(total).max(start) - start).min(longest))
        };
        let (q_start, q_len) = span(args.cu_seqlens_q, args.q_total, args.q_len);
        let (k_start, k_len) = span(args.cu_seqlens_k, args.k_total, args.k_len);
        Self { q_start, q_len, k_start, keys: KeyRange::of_member(args, q_len, k_len) }
    }
}

impl Work {
    /// The work of this block when each block takes `rows` query rows; `member` gives the sequences of a batch entry.
    /// Sequences shorter than the longest have fewer rows than blocks were launched for: some start beyond
    /// [`Work::q_len`].
    ///
    /// The grid has one block for each (batch, head, `rows` rows) of `args`.
    #[inline(always)]
    pub(crate) fn of_block(
        args: &AttentionArgs,
        rows: u32,
        seqlens: Seqlens,
        member: impl FnOnce(u32) -> SeqlenInfo,
    ) -> Self {
        let (batch_head, from_end, row_blocks) = block_place(args, rows);
        Self::of_rows(args, batch_head, (row_blocks - 1 - from_end) * rows, seqlens, member)
    }

    /// The work on the rows from `first_row` on of head `batch_head` of all batch entries.
    #[inline(always)]
    pub(crate) fn of_rows(
        args: &AttentionArgs,
        batch_head: u32,
        first_row: u32,
        seqlens: Seqlens,
        member: impl FnOnce(u32) -> SeqlenInfo,
    ) -> Self {
        let (batch, head) = div_rem(batch_head, args.q_heads);
        let (kv_head, _) = div_rem(head, args.heads_per_kv);
        let member = member(batch);
        let start = |strides: &AttentionStrides, head: u32, row: u32| {
            let heads = i64::from(batch) * strides.batch + i64::from(head) * strides.head;
            (heads + i64::from(row) * strides.row) * size_of::<u16>() as i64
        };
        let lse_row = match seqlens {
            Seqlens::Varlen if args.cu_seqlens_q != 0 => {
                u64::from(head) * u64::from(args.q_total) + u64::from(member.q_start)
            }
            _ => u64::from(batch_head) * u64::from(args.q_len),
        };
        let lse_offset = if args.lse == 0 { 0 } else { lse_row * size_of::<f32>() as u64 };
        Self {
            q: args.q.wrapping_add_signed(start(&args.q_strides, head, member.q_start)) as *const u16,
            k: args.k.wrapping_add_signed(start(&args.k_strides, kv_head, member.k_start)) as *const u16,
            v: args.v.wrapping_add_signed(start(&args.v_strides, kv_head, member.k_start)) as *const u16,
            o: args.o.wrapping_add_signed(start(&args.o_strides, head, member.q_start)) as *mut u16,
            lse: (args.lse + lse_offset) as *mut f32,
            batch,
            head,
            first_row,
            q_len: member.q_len,
            keys: member.keys,
            member,
        }
    }
}

/// The batch entry and head, counted together, of this block, its row blocks from the last one on, and how many there
/// are.
#[inline(always)]
fn block_place(args: &AttentionArgs, rows: u32) -> (u32, u32, u32) {
    // Opaque: what a second call needs is found anew and takes no registers in between.
    let row_blocks = opaque(args.q_len).div_ceil(rows);
    let (batch_head, from_end) = div_rem(opaque(thread::block_idx_x()), row_blocks);
    (batch_head, from_end, row_blocks)
}

/// The sink of this block's head; see [`sink_of_head`].
///
/// # Safety
/// As [`Work::of_block`], with a sink for each head of Q.
#[inline(always)]
pub(crate) unsafe fn sink_of_block(args: &AttentionArgs, rows: u32) -> f32 {
    // SAFETY: the block has such a head.
    if args.sink == 0 { f32::NEG_INFINITY } else { unsafe { sink_of_head(args, block_place(args, rows).0) } }
}

/// The sink of head `batch_head` of all batch entries; minus infinity, which changes nothing, where there are none.
///
/// # Safety
/// There is such a head, and a sink for each head of Q.
#[inline(always)]
pub(crate) unsafe fn sink_of_head(args: &AttentionArgs, batch_head: u32) -> f32 {
    if args.sink == 0 {
        return f32::NEG_INFINITY;
    }
    let (_, head) = div_rem(batch_head, args.q_heads);
    // SAFETY: there is a sink for each head.
    unsafe { global::load((args.sink as *const f32).wrapping_add(head as usize)) }
}

/// The number that the first lane of the warp has: what lanes do together depends on it, and each may have read
/// another.
///
/// # Safety
/// All lanes of the warp call it together.
#[inline(always)]
pub(crate) unsafe fn warp_uniform(number: u32) -> u32 {
    // SAFETY: the caller's contract.
    unsafe { warp_shuffle_idx(FULL_MASK, number, 0, LANES).0 }
}

/// This thread's lane in its warp.
///
/// It is opaque at each call, as [`warp`] is: what is derived from it is computed where it is used, and takes no
/// registers through the loop over the keys.
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
///
/// A division takes 100 cycles, and on sm_90a the first tile waits for it. So it is skipped there for one batch entry,
/// or as many heads of keys as of queries. Elsewhere the branches would cost registers that the configurations lack.
#[inline(always)]
pub(crate) fn div_rem(dividend: u32, divisor: u32) -> (u32, u32) {
    if cfg!(target_feature = "sm_90a") {
        if dividend < divisor {
            return (0, dividend);
        }
        if divisor == 1 {
            return (dividend, 0);
        }
    }
    // SAFETY: the divisors are row blocks, query heads and heads per key-value head of a launched grid: not 0.
    let quotient = unsafe { dividend.checked_div(divisor).unwrap_unchecked() };
    (quotient, dividend - quotient * divisor)
}
