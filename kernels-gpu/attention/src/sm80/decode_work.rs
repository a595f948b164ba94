//! What a block of a decode kernel computes, and where the rows of its tile lie in Q and O.

use cuda_std::convert::Element16;
use cuda_std::{global, thread};
use variants::attention::{ATTENTION, AttentionArgs, AttentionKernel, DecodeArgs, DecodeTile, DescaleArgs};

use crate::descale::factor;
use crate::lane::div_rem;

/// The tile of configuration `id`.
pub(crate) const fn decode_tile(id: usize) -> DecodeTile {
    match ATTENTION[id].kernel {
        AttentionKernel::Decode(tile) => tile,
        _ => panic!("the configuration is not a decode configuration"),
    }
}

/// What a block computes: some packed rows, on one split of the keys.
pub(crate) struct DecodeWork {
    pub(crate) batch: u32,
    pub(crate) kv_head: u32,
    pub(crate) split: u32,
    /// The first of its packed rows.
    first_row: u32,
}

impl DecodeWork {
    /// Tiles that read the same keys follow each other, so that they find the keys in L2.
    #[inline(always)]
    pub(crate) fn of_block<const ID: usize>(decode: &DecodeArgs) -> Self {
        let (rest, m_tile) = div_rem(thread::block_idx_x(), decode.m_tiles);
        let (group, split) = div_rem(rest, decode.splits);
        let (batch, kv_head) = div_rem(group, decode.kv_heads);
        Self { batch, kv_head, split, first_row: m_tile * const { decode_tile(ID).m as u32 } }
    }

    /// The number of its tile among all: that of the semaphore.
    #[inline(always)]
    pub(crate) fn tile<const ID: usize>(&self, decode: &DecodeArgs) -> u64 {
        let m_tile = self.first_row / const { decode_tile(ID).m as u32 };
        u64::from(self.batch * decode.kv_heads + self.kv_head) * u64::from(decode.m_tiles) + u64::from(m_tile)
    }

    /// Packed rows of the tile, of which there may be `most`.
    #[inline(always)]
    pub(crate) fn rows(&self, args: &AttentionArgs, most: u32) -> u32 {
        (args.heads_per_kv * args.q_len - self.first_row).min(most)
    }

    /// The number of the tile's first packed row among those of all tiles: where the partial results of a split are.
    #[inline(always)]
    pub(crate) fn first_partial_row(&self, args: &AttentionArgs, decode: &DecodeArgs) -> u64 {
        let packed_rows = u64::from(args.heads_per_kv) * u64::from(args.q_len);
        u64::from(self.batch * decode.kv_heads + self.kv_head) * packed_rows + u64::from(self.first_row)
    }

    /// Position and head of the block's packed row `row`; `None` beyond the last.
    #[inline(always)]
    pub(crate) fn row(&self, args: &AttentionArgs, row: u32) -> Option<(u32, u32)> {
        let (position, head) = div_rem(self.first_row + row, args.heads_per_kv);
        (position < args.q_len).then_some((position, self.kv_head * args.heads_per_kv + head))
    }

    /// Position of the block's packed row `row`, or the last one.
    #[inline(always)]
    pub(crate) fn position(&self, args: &AttentionArgs, row: u32) -> u32 {
        div_rem(self.first_row + row, args.heads_per_kv).0.min(args.q_len - 1)
    }

    /// Its split of the steps `first .. end` that its rows see: from the first number up to the second.
    #[inline(always)]
    pub(crate) fn steps(&self, decode: &DecodeArgs, (first, end): (u32, u32)) -> (u32, u32) {
        let count = end.saturating_sub(first);
        let each = div_rem(count + decode.splits - 1, decode.splits).0;
        let start = first + (each * self.split).min(count);
        (start, start + each.min(first + count - start))
    }

    /// Two elements of Q at an even column of packed row `row`; zeros outside.
    ///
    /// # Safety
    /// `args` describes the tensors.
    #[inline(always)]
    pub(crate) unsafe fn query(&self, args: &AttentionArgs, row: Option<(u32, u32)>, column: u32) -> u32 {
        let Some((position, head)) = row.filter(|_| column < args.head_dim) else { return 0 };
        let strides = &args.q_strides;
        let offset = i64::from(self.batch) * strides.batch
            + i64::from(head) * strides.head
            + i64::from(position) * strides.row
            + i64::from(column);
        let q = (args.q as *const u16).wrapping_offset(offset as isize);
        // SAFETY: the row and the column, which is even as the head dimension is, are inside Q.
        let pair = unsafe {
            if args.inputs_aligned != 0 {
                global::load(q.cast::<u32>())
            } else {
                u32::from(global::load(q)) | u32::from(global::load(q.wrapping_add(1))) << 16
            }
        };
        pair ^ args.q_sign
    }
}

/// What K and V are multiplied by; `None` where they have no factors.
pub(crate) type Factors = Option<[f32; 2]>;

impl DecodeWork {
    /// The factors of the block's keys and values.
    ///
    /// # Safety
    /// There are factors of the head.
    #[inline(always)]
    pub(crate) unsafe fn factors(&self, descales: Option<&DescaleArgs>) -> Factors {
        // SAFETY: the caller's contract.
        let factor = |tensor| unsafe { factor(tensor, self.batch, self.kv_head) };
        descales.map(|descales| [factor(&descales.k), factor(&descales.v)])
    }
}

/// Columns of O that a thread writes at a time.
pub(crate) const SUM_COLUMNS: u32 = 4;

/// Writes neighbouring elements of a row of O.
///
/// # Safety
/// The row and the columns are inside O.
#[inline(always)]
pub(crate) unsafe fn store_output<E: Element16>(
    args: &AttentionArgs,
    batch: u32,
    head: u32,
    position: u32,
    column: u32,
    values: [f32; SUM_COLUMNS as usize],
) {
    let strides = &args.o_strides;
    let offset = i64::from(batch) * strides.batch
        + i64::from(head) * strides.head
        + i64::from(position) * strides.row
        + i64::from(column);
    let out = (args.o as *mut u16).wrapping_offset(offset as isize);
    // SAFETY: the caller's contract.
    unsafe {
        if args.output_aligned != 0 {
            global::store(out.cast::<[u32; 2]>(), [E::pack(values[0], values[1]), E::pack(values[2], values[3])]);
        } else {
            for index in 0..values.len() {
                global::store(out.wrapping_add(index), E::from_f32(values[index]));
            }
        }
    }
}
