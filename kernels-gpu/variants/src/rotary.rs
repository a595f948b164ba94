//! Rotary embedding of Q and K, and append of K and V to a KV cache, in one launch.
//!
//! A thread has one *unit*: two chunks of a row. Of the rotated part these are the two halves of [`CHUNK`] pairs, in
//! either pairing, so that one thread reads and writes both elements of a pair, in place too. Of the rest of a row
//! they follow each other.

use core::fmt;

use layout::{Arch, Dtype};

/// Elements of a chunk: 16 bytes of a 16-bit type. A unit rotates as many pairs.
pub const CHUNK: usize = 8;

/// One compiled kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RotaryKernel {
    /// Name of the PTX entry.
    pub name: &'static str,
    /// The type of Q, K and V.
    pub dtype: Dtype,
    /// The type of the cache.
    pub cache_dtype: Dtype,
}

const fn kernel(name: &'static str, dtype: Dtype, cache_dtype: Dtype) -> RotaryKernel {
    RotaryKernel { name, dtype, cache_dtype }
}

/// All of them. Those whose cache has the type of the inputs serve calls without a cache too.
pub const ROTARY: [RotaryKernel; 4] = [
    kernel("rotary_f16", Dtype::F16, Dtype::F16),
    kernel("rotary_bf16", Dtype::Bf16, Dtype::Bf16),
    kernel("rotary_f16_e4m3", Dtype::F16, Dtype::E4M3),
    kernel("rotary_bf16_e4m3", Dtype::Bf16, Dtype::E4M3),
];

impl RotaryKernel {
    /// Threads of a block: few, so that the few units of one token are spread over multiprocessors.
    pub const THREADS: u32 = 128;

    /// Resident blocks that the registers must allow on a multiprocessor: what they wait for is memory.
    pub const MIN_BLOCKS: u32 = 8;

    /// Registers that a thread may use.
    pub const fn max_registers(&self) -> u32 {
        Arch::Sm80.limits().registers / (Self::THREADS * Self::MIN_BLOCKS) / 8 * 8
    }
}

impl fmt::Display for RotaryKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

/// Units of a row of so many columns, of which the first `rotary_dim` are rotated.
///
/// ```
/// assert_eq!(variants::rotary::units(128, 128), 8);
/// assert_eq!(variants::rotary::units(80, 20), 2 + 4);
/// ```
#[must_use]
pub const fn units(columns: usize, rotary_dim: usize) -> usize {
    (rotary_dim / 2).div_ceil(CHUNK) + (columns - rotary_dim).div_ceil(2 * CHUNK)
}

/// The type of the table, as kernels take it; `None` for types that tables do not have.
#[must_use]
pub const fn table_type(dtype: Dtype) -> Option<u32> {
    match dtype {
        Dtype::F32 => Some(TABLE_F32),
        Dtype::F16 => Some(TABLE_F16),
        Dtype::Bf16 => Some(TABLE_BF16),
        Dtype::E4M3 | Dtype::E5M2 | Dtype::U8 => None,
    }
}

/// See [`table_type`].
pub const TABLE_F32: u32 = 0;
/// See [`table_type`].
pub const TABLE_F16: u32 = 1;
/// See [`table_type`].
pub const TABLE_BF16: u32 = 2;

/// Q, K or V, with where its rows go.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RotaryRows {
    /// Device address of the rows; any for no heads.
    pub x: u64,
    /// Device address of the rotated rows, `x` in place; 0 where they go to the cache alone.
    pub out: u64,
    /// Device address of the cache; 0 for none.
    pub cache: u64,
    /// Device address of the f32 factors of a cache of E4M3; 0 where its factors are 1.
    pub descale: u64,
    /// Elements from one batch entry, head and row of `x` to the next.
    pub x_strides: [i64; 3],
    /// The same of `out`.
    pub out_strides: [i64; 3],
    /// The same of the cache, whose batch entries are pages where there is a block table.
    pub cache_strides: [i64; 3],
    /// Factors from one member and head to the next; 0 where they share one.
    pub descale_strides: [i64; 2],
    /// Heads; 0 where the tensor is left out.
    pub heads: u32,
    /// Elements of a row.
    pub columns: u32,
    /// Whether whole chunks of `x`, of `out` and of the cache are aligned where their column is a multiple of
    /// [`CHUNK`].
    pub aligned: [u32; 3],
    /// For a size without gaps.
    pub reserved: u32,
}

/// The parameter of every kernel.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RotaryArgs {
    /// Q, which goes to no cache.
    pub q: RotaryRows,
    /// K.
    pub k: RotaryRows,
    /// V, which is not rotated.
    pub v: RotaryRows,
    /// Device addresses of the tables of cosines and sines.
    pub tables: [u64; 2],
    /// Elements from one position to the next in either.
    pub table_strides: [i64; 2],
    /// Device address of the positions; 0 where the position is the number of cached rows plus the row.
    pub positions: u64,
    /// Numbers from one batch entry to the next.
    pub position_stride: i64,
    /// Device address of the i32 numbers of cached rows, one a member; 0 where they are 0.
    pub cache_seqlens: u64,
    /// Device address of the i32 starts of the members; 0 where a batch entry is a member.
    pub cu_seqlens: u64,
    /// Device address of the i32 block table; 0 where the rows of a member follow each other, as one page.
    pub block_table: u64,
    /// Numbers from one member to the next.
    pub block_table_stride: i64,
    /// Tokens: rows of all batch entries.
    pub tokens: u32,
    /// Rows of a batch entry.
    pub rows: u32,
    /// Members that `cu_seqlens` describes.
    pub members: u32,
    /// Units of a row, of the widest tensor.
    pub units: u32,
    /// Units of a token: those of all heads.
    pub token_units: u32,
    /// Columns that are rotated, even.
    pub rotary_dim: u32,
    /// Whether a pair is two neighbours; else an element of the first half and one of the second.
    pub interleaved: u32,
    /// Positions that the tables have.
    pub table_len: u32,
    /// [`table_type`].
    pub table_type: u32,
    /// Whether whole chunks of a table are aligned.
    pub table_aligned: u32,
    /// Rows of a page; those of a member where there is no block table.
    pub page_len: u32,
    /// Pages of a member.
    pub member_pages: u32,
    /// Pages that there are, or members.
    pub pages: u32,
    /// Words of a position: 1 of i32, 2 of i64.
    pub position_words: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_cover_pairs_and_the_rest() {
        for (columns, rotary_dim, expected) in [(0, 0, 0), (1, 0, 1), (16, 0, 1), (17, 0, 2), (18, 18, 2), (64, 16, 4)]
        {
            assert_eq!(units(columns, rotary_dim), expected, "{rotary_dim} of {columns}");
        }
    }

    #[test]
    fn the_argument_struct_has_no_padding() {
        assert_eq!(size_of::<RotaryRows>(), 4 * 8 + 11 * 8 + 6 * 4);
        assert_eq!(size_of::<RotaryArgs>(), 3 * size_of::<RotaryRows>() + 10 * 8 + 14 * 4);
    }
}
