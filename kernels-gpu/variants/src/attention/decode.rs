//! Decoding: few query rows on many keys, which may lie in pages, and the sum of partial results.
//!
//! The query heads of one key-value head and their query rows are packed into tiles of [`DecodeTile::m`] rows, position
//! by position: packed row `p` is row `p / heads_per_kv` of head `p % heads_per_kv` of the group. The visible keys of a
//! tile are split between blocks, and the keys of a block between its warps. Where there are several splits, each gives
//! a partial result: normalised rows, with their maxima and sums. The last block of a tile to finish adds up those of
//! the tile. [`COMBINE`] has the kernels that add up partial results of a caller.

use core::fmt;

use layout::Dtype;
use layout::text::same_text;

use super::{AttentionConfig, AttentionKernel, AttentionStrides};

/// The tile of a decode configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DecodeTile {
    /// Packed query rows of a block, a multiple of [`WARP_ROWS`](super::WARP_ROWS). Each warp has all of them.
    pub m: usize,
    /// Warps of a block. They take the steps of the block's keys round-robin, and each has buffers of its own.
    pub warps: usize,
    /// Steps of a warp that have a buffer: one is computed, the others are in flight.
    pub stages: usize,
    /// Registers that a thread may use.
    pub registers: u32,
}

impl AttentionConfig {
    /// Whether the last block of a tile adds up the splits where the host gives the kernel semaphores.
    ///
    /// Kernels with K and V of E4M3 have no code for it: with that code they were 3 % slower even with one split
    /// (16x32:8x1x8192x128 on an H200). Those of head dimension 256 have no registers for it on sm_80, and it pays with
    /// one packed row alone there.
    #[must_use]
    pub const fn adds_up_splits(&self) -> bool {
        matches!(self.kernel, AttentionKernel::Decode(_)) && !self.has_e4m3_kv() && self.head_dim <= 128
    }
}

/// Keys of one step of a warp: the K of one product P V. Pages hold whole steps.
pub const DECODE_KEYS: usize = 16;

/// The most query rows that a decode configuration takes.
pub const DECODE_ROWS: usize = 16;

/// The most parts that the keys are split into.
pub const MAX_SPLITS: usize = 256;

/// The largest page, in keys.
pub const MAX_PAGE_LEN: usize = 256;

/// Where the keys of a decode launch lie and how they are split: its second parameter.
///
/// With a block table the batch strides of K and V are those from one page to the next.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DecodeArgs {
    /// Device address of the i32 block table `[batch, table_len]`; 0 where the keys of a batch entry follow each other.
    pub table: u64,
    /// Device address of the i32 numbers of keys `[batch]`; 0 where all have `k_len`.
    pub k_lens: u64,
    /// Device address of the partial results `[splits, batch, kv_heads, packed row, value_dim]`, f32; 0 with one split.
    pub partial_o: u64,
    /// Device address of the largest scores of their rows `[splits, batch, kv_heads, packed row]`, f32.
    pub partial_max: u64,
    /// Device address of the sums of their rows, relative to the largest score.
    pub partial_sum: u64,
    /// Device address of the semaphores `[batch, kv_heads, m_tiles]`, u32, which count the splits of a tile that are
    /// done: 0 before the launch and after it; 0 with one split.
    pub semaphores: u64,
    /// Elements from one row of the block table to the next.
    pub table_stride: i64,
    /// Partial results from one split to the next, in rows: `batch * q_heads * q_len`.
    pub rows: u64,
    /// Keys of a page, a multiple of [`DECODE_KEYS`].
    pub page_len: u32,
    /// Pages that there are; a used entry of the block table is below it.
    pub pages: u32,
    /// Parts that the keys of a tile are split into.
    pub splits: u32,
    /// Tiles of packed rows of one key-value head.
    pub m_tiles: u32,
    /// Key-value heads.
    pub kv_heads: u32,
    /// 0: what would be padding otherwise.
    pub reserved: u32,
}

/// Rows of O and what they weigh, for [`CombineArgs`].
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PartialResult {
    /// Device address of O `[batch, heads, rows, head_dim]`.
    pub o: u64,
    /// Device address of the largest f32 scores of the rows, or of their LSE, `[batch, heads, rows]`, contiguous.
    pub max: u64,
    /// Device address of the f32 sums of the rows relative to them; 0 where each is 1, as for LSE.
    pub sum: u64,
    /// Strides of O.
    pub strides: AttentionStrides,
}

/// The one parameter of the combine kernels.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CombineArgs {
    /// The first part.
    pub first: PartialResult,
    /// The second part; more follow at constant distances.
    pub second: PartialResult,
    /// Elements from O of the second part to that of the third, and so on.
    pub o_step: i64,
    /// Elements from the numbers of the rows of the second part to those of the third, and so on.
    pub row_step: i64,
    /// Device address of the f32 sinks `[heads]`; 0 where there are none.
    pub sink: u64,
    /// Device address of O `[batch, heads, rows, head_dim]`.
    pub o: u64,
    /// Device address of the f32 LSE `[batch, heads, rows]`, contiguous; 0 where it is not wanted.
    pub lse: u64,
    /// Strides of O.
    pub o_strides: AttentionStrides,
    /// Parts.
    pub parts: u32,
    /// Rows of all heads and batch entries.
    pub rows: u32,
    /// Heads of a batch entry.
    pub heads: u32,
    /// Rows of a head.
    pub row_len: u32,
    /// Head dimension, a multiple of [`HEAD_DIM_STEP`](super::HEAD_DIM_STEP).
    pub head_dim: u32,
    /// Whether every row of the parts starts on a 16-byte boundary (1) or not (0).
    pub inputs_aligned: u32,
    /// Whether every row of O does.
    pub output_aligned: u32,
    /// What scores are multiplied by to have powers of two, as [`AttentionArgs::scale_log2`](super::AttentionArgs);
    /// `log2(e)` for LSE.
    pub scale_log2: f32,
}

/// A kernel that adds up partial results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CombineKernel {
    /// Name of the PTX entry.
    pub name: &'static str,
    /// Element type of the parts.
    pub part: Dtype,
    /// Element type of O.
    pub out: Dtype,
}

/// Rows of one block of a combine kernel: one a warp.
pub const COMBINE_ROWS: usize = 4;

impl CombineKernel {
    /// The kernel for these element types; `None` where there is none.
    pub fn of(part: Dtype, out: Dtype) -> Option<&'static CombineKernel> {
        COMBINE.iter().find(|kernel| kernel.part == part && kernel.out == out)
    }

    /// Threads of a block.
    pub const fn threads(&self) -> u32 {
        32 * COMBINE_ROWS as u32
    }

    /// Registers that a thread may use.
    pub const fn max_registers(&self) -> u32 {
        128
    }

    /// Blocks for so many rows; `None` where a grid has not as many, or their numbers do not fit an argument.
    pub fn blocks(&self, rows: usize) -> Option<u32> {
        let rows = u32::try_from(rows).ok()?;
        Some(rows.div_ceil(COMBINE_ROWS as u32))
    }
}

impl fmt::Display for CombineKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

/// The combine kernels: parts of decoding are f32, parts that a caller merges are of any type.
pub const COMBINE: &[CombineKernel] = {
    use Dtype::{Bf16, F16, F32};
    &[
        CombineKernel { name: "attention_combine_f32_f16", part: F32, out: F16 },
        CombineKernel { name: "attention_combine_f32_bf16", part: F32, out: Bf16 },
        CombineKernel { name: "attention_combine_f32_f32", part: F32, out: F32 },
        CombineKernel { name: "attention_combine_f16_f16", part: F16, out: F16 },
        CombineKernel { name: "attention_combine_bf16_bf16", part: Bf16, out: Bf16 },
        CombineKernel { name: "attention_combine_f16_f32", part: F16, out: F32 },
        CombineKernel { name: "attention_combine_bf16_f32", part: Bf16, out: F32 },
    ]
};

/// Position of the configuration called `name` in [`COMBINE`]; does not compile (in a constant) where there is none.
pub const fn combine_index(name: &str) -> usize {
    let mut index = 0;
    while index < COMBINE.len() {
        if same_text(COMBINE[index].name, name) {
            return index;
        }
        index += 1;
    }
    panic!("no configuration of COMBINE has this name")
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::super::AttentionArgs;
    use super::*;
    use std::format;

    #[test]
    fn combine_kernels_are_found_by_name_and_types() {
        for (index, kernel) in COMBINE.iter().enumerate() {
            assert_eq!(kernel.name, format!("attention_combine_{}_{}", kernel.part, kernel.out));
            assert_eq!(combine_index(kernel.name), index);
            assert_eq!(CombineKernel::of(kernel.part, kernel.out), Some(kernel));
        }
        assert_eq!(CombineKernel::of(Dtype::F16, Dtype::Bf16), None);
    }

    #[test]
    fn argument_structs_have_no_padding() {
        assert_eq!(size_of::<DecodeArgs>(), 8 * 8 + 6 * 4);
        assert_eq!(size_of::<AttentionArgs>(), 9 * 8 + 5 * 24 + 22 * 4);
        assert_eq!(size_of::<CombineArgs>(), 2 * 48 + 5 * 8 + 24 + 8 * 4);
    }
}
