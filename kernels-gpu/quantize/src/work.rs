//! Which chunks of which head a block has.

use cuda_std::thread;
use variants::quantize::{CHUNK, QuantizeArgs, QuantizeKernel, THREAD_CHUNKS};

/// A block's part of a head.
#[derive(Clone, Copy)]
pub(crate) struct Work {
    batch: u32,
    head: u32,
    /// Among the blocks of the head.
    pub(crate) part: u32,
}

/// Up to [`CHUNK`] neighbours in a row of the block's head.
#[derive(Clone, Copy)]
pub(crate) struct Chunk {
    row: u32,
    column: u32,
    /// 0 for a chunk behind the last one of the head.
    pub(crate) elements: u32,
}

impl Work {
    /// That of this block.
    #[inline(always)]
    pub(crate) fn of_block(args: &QuantizeArgs) -> Self {
        let (group, part) = div_rem(thread::block_idx_x(), args.parts);
        let (batch, head) = div_rem(group, args.heads);
        Self { batch, head, part }
    }

    /// Chunk `index` of this thread.
    #[inline(always)]
    pub(crate) fn chunk(self, args: &QuantizeArgs, index: usize) -> Chunk {
        let of_block = self.part * THREAD_CHUNKS as u32 + index as u32;
        let chunk = of_block * QuantizeKernel::THREADS + thread::thread_idx_x();
        let (row, of_row) = div_rem(chunk, args.columns.div_ceil(CHUNK as u32));
        let column = of_row * CHUNK as u32;
        let left = args.columns - column;
        let elements = if row >= args.rows {
            0
        } else if left < CHUNK as u32 {
            left
        } else {
            CHUNK as u32
        };
        Chunk { row, column, elements }
    }

    /// The address of the first element of a chunk of a tensor with elements of so many bytes.
    #[inline(always)]
    pub(crate) fn address(self, chunk: Chunk, base: u64, [batch, head, row]: [i64; 3], bytes: usize) -> u64 {
        let distance = i64::from(self.batch) * batch
            + i64::from(self.head) * head
            + i64::from(chunk.row) * row
            + i64::from(chunk.column);
        base.wrapping_add_signed(distance * bytes as i64)
    }

    /// Where the factor of the block's group is.
    #[inline(always)]
    pub(crate) fn factor(self, args: &QuantizeArgs) -> *mut u32 {
        let [batch, head] = args.factor_strides;
        let distance = i64::from(self.batch) * batch + i64::from(self.head) * head;
        args.factors.wrapping_add_signed(4 * distance) as *mut u32
    }
}

/// Quotient and remainder for a divisor that is not 0; without the panic call that a plain `/` links.
#[inline(always)]
fn div_rem(dividend: u32, divisor: u32) -> (u32, u32) {
    // SAFETY: the divisors are sizes of a launched grid: not 0.
    let quotient = unsafe { dividend.checked_div(divisor).unwrap_unchecked() };
    (quotient, dividend - quotient * divisor)
}
