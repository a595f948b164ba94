//! Where the sequences of a batch entry start, and how long they are.

use cuda_std::shared::SharedAddr;
use cuda_std::{global, thread};
use variants::attention::{AttentionArgs, Seqlens};

use crate::lane::warp_uniform;
use crate::mask::KeyRange;

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
        Self { q_start, q_len, k_start, keys: KeyRange::of_seqlens(args, q_len, k_len) }
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
        Self { q_start, q_len, k_start, keys: KeyRange::of_seqlens(args, q_len, k_len) }
    }
}
