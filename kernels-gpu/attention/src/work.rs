//! Which query rows of which head a block computes, and where their tensors lie.

use cuda_std::hint::opaque;
use cuda_std::{global, thread};
use variants::attention::{AttentionArgs, AttentionStrides, Seqlens};

use crate::lane::div_rem;
use crate::mask::KeyRange;
use crate::seqlen::SeqlenInfo;

/// The tensors of one (batch, head), as addresses of their first row, and the block's rows.
///
/// Blocks of one head follow each other, so that its keys and values stay in L2. The last rows come first: under a
/// causal mask they have the most keys, and the short blocks then fill the end of the grid.
pub(crate) struct Work {
    pub(crate) q: *const u8,
    pub(crate) k: *const u8,
    pub(crate) v: *const u8,
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
    pub(crate) seqlen: SeqlenInfo,
}

impl Work {
    /// The work of this block when each block takes `rows` query rows; `seqlen` gives the sequences of a batch entry.
    /// Sequences shorter than the longest have fewer rows than blocks were launched for: some start beyond
    /// [`Work::q_len`]. Elements of Q, K and V are as large as `Q`, those of O have 16 bits.
    ///
    /// The grid has one block for each (batch, head, `rows` rows) of `args`.
    #[inline(always)]
    pub(crate) fn of_block<Q>(
        args: &AttentionArgs,
        rows: u32,
        seqlens: Seqlens,
        seqlen: impl FnOnce(u32) -> SeqlenInfo,
    ) -> Self {
        let (batch_head, from_end, row_blocks) = block_place(args, rows);
        Self::of_rows::<Q>(args, batch_head, (row_blocks - 1 - from_end) * rows, seqlens, seqlen)
    }

    /// The work on the rows from `first_row` on of head `batch_head` of all batch entries.
    #[inline(always)]
    pub(crate) fn of_rows<Q>(
        args: &AttentionArgs,
        batch_head: u32,
        first_row: u32,
        seqlens: Seqlens,
        seqlen: impl FnOnce(u32) -> SeqlenInfo,
    ) -> Self {
        let (batch, head) = div_rem(batch_head, args.q_heads);
        let (kv_head, _) = div_rem(head, args.heads_per_kv);
        let seqlen = seqlen(batch);
        let start = |strides: &AttentionStrides, head: u32, row: u32, element_bytes: usize| {
            let heads = i64::from(batch) * strides.batch + i64::from(head) * strides.head;
            (heads + i64::from(row) * strides.row) * element_bytes as i64
        };
        let lse_row = match seqlens {
            Seqlens::Varlen if args.cu_seqlens_q != 0 => {
                u64::from(head) * u64::from(args.q_total) + u64::from(seqlen.q_start)
            }
            _ => u64::from(batch_head) * u64::from(args.q_len),
        };
        let lse_offset = if args.lse == 0 { 0 } else { lse_row * size_of::<f32>() as u64 };
        Self {
            q: args.q.wrapping_add_signed(start(&args.q_strides, head, seqlen.q_start, size_of::<Q>())) as *const u8,
            k: args.k.wrapping_add_signed(start(&args.k_strides, kv_head, seqlen.k_start, size_of::<Q>())) as *const u8,
            v: args.v.wrapping_add_signed(start(&args.v_strides, kv_head, seqlen.k_start, size_of::<Q>())) as *const u8,
            o: args.o.wrapping_add_signed(start(&args.o_strides, head, seqlen.q_start, size_of::<u16>())) as *mut u16,
            lse: (args.lse + lse_offset) as *mut f32,
            batch,
            head,
            first_row,
            q_len: seqlen.q_len,
            keys: seqlen.keys,
            seqlen,
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
