//! Attention: masks, the argument struct and the table of compiled variants.
//!
//! `O = softmax(scale * Q K^T + mask) V` and `LSE_i = ln sum_j exp(s_ij)`, with Q `[B, Hq, Sq, D]` and K, V `[B, Hkv, Sk, D]`.

use core::fmt;
use core::ops::Range;
use core::str::FromStr;

use crate::smem::{BASE_ALIGN_BYTES, SmemLayout};
use crate::text::same_text;
use crate::{Arch, Dtype, Swizzle};

/// Which keys a query row sees.
///
/// Rows and keys are aligned at their ends (bottom-right): row `i` of `q_len` stands at key `i + k_len - q_len`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mask {
    /// Every key.
    #[default]
    Full,
    /// The keys up to the row's own position.
    Causal,
    /// The keys from `left` before to `right` after the row's own position.
    Window {
        /// Keys seen before the row's own position.
        left: usize,
        /// Keys seen after the row's own position.
        right: usize,
    },
}

impl Mask {
    /// The keys that query row `row` of `q_len` sees among `k_len`; empty where it sees none.
    pub fn key_range(self, row: usize, q_len: usize, k_len: usize) -> Range<usize> {
        let (first, last) = self.key_offsets(q_len, k_len);
        let start = (row as i64 + i64::from(first)).clamp(0, k_len as i64) as usize;
        let end = (row as i64 + i64::from(last) + 1).clamp(start as i64, k_len as i64) as usize;
        start..end
    }

    /// The canonical form that kernels take: row `i` sees the keys `j` with `i + first <= j <= i + last` and `0 <= j < k_len`.
    ///
    /// Both are clamped to `-q_len - 1 ..= k_len`, beyond which nothing changes, so that `i + first` and `i + last` fit an `i32`
    /// for lengths up to [`MAX_LEN`].
    pub fn key_offsets(self, q_len: usize, k_len: usize) -> (i32, i32) {
        let diagonal = k_len as i64 - q_len as i64;
        let clamp = |offset: i64| offset.clamp(-(q_len as i64) - 1, k_len as i64) as i32;
        let saturated = |width: usize| i64::try_from(width).unwrap_or(i64::MAX);
        match self {
            Mask::Full => (clamp(i64::MIN), clamp(i64::MAX)),
            Mask::Causal => (clamp(i64::MIN), clamp(diagonal)),
            Mask::Window { left, right } => {
                (clamp(diagonal.saturating_sub(saturated(left))), clamp(diagonal.saturating_add(saturated(right))))
            }
        }
    }

    /// The number of (row, key) pairs that are visible: the work that the mask leaves.
    pub fn visible_pairs(self, q_len: usize, k_len: usize) -> u64 {
        (0..q_len).map(|row| self.key_range(row, q_len, k_len).len() as u64).sum()
    }
}

impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mask::Full => f.write_str("full"),
            Mask::Causal => f.write_str("causal"),
            Mask::Window { left, right } => write!(f, "window:{left},{right}"),
        }
    }
}

/// The text is not a mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseMaskError;

impl fmt::Display for ParseMaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected full, causal or window:LEFT,RIGHT")
    }
}

impl core::error::Error for ParseMaskError {}

impl FromStr for Mask {
    type Err = ParseMaskError;

    fn from_str(text: &str) -> Result<Self, ParseMaskError> {
        match text {
            "full" => Ok(Mask::Full),
            "causal" => Ok(Mask::Causal),
            _ => {
                let (left, right) =
                    text.strip_prefix("window:").and_then(|sides| sides.split_once(',')).ok_or(ParseMaskError)?;
                let side = |text: &str| text.parse().map_err(|_| ParseMaskError);
                Ok(Mask::Window { left: side(left)?, right: side(right)? })
            }
        }
    }
}

/// The longest sequence that the kernels index (32-bit row and key numbers with room for sums of two).
pub const MAX_LEN: usize = 1 << 30;

/// The widest head dimension that a kernel serves.
pub const MAX_HEAD_DIM: usize = 256;

/// Head dimensions are multiples of this: eight 16-bit elements are one 16-byte chunk.
pub const HEAD_DIM_STEP: usize = 8;

/// Element strides of one tensor; the last dimension is contiguous.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AttentionStrides {
    /// From one batch entry to the next, in elements.
    pub batch: i64,
    /// From one head to the next, in elements.
    pub head: i64,
    /// From one row (query or key) to the next, in elements.
    pub row: i64,
}

/// The one parameter of every attention kernel.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct AttentionArgs {
    /// Device address of Q `[batch, q_heads, q_len, head_dim]`.
    pub q: u64,
    /// Device address of K `[batch, kv_heads, k_len, head_dim]`.
    pub k: u64,
    /// Device address of V `[batch, kv_heads, k_len, head_dim]`.
    pub v: u64,
    /// Device address of O `[batch, q_heads, q_len, head_dim]`.
    pub o: u64,
    /// Device address of the f32 LSE `[batch, q_heads, q_len]`, contiguous; 0 where it is not wanted.
    pub lse: u64,
    /// Strides of Q.
    pub q_strides: AttentionStrides,
    /// Strides of K.
    pub k_strides: AttentionStrides,
    /// Strides of V.
    pub v_strides: AttentionStrides,
    /// Strides of O.
    pub o_strides: AttentionStrides,
    /// Query heads.
    pub q_heads: u32,
    /// Query heads that share one key-value head.
    pub heads_per_kv: u32,
    /// Query rows.
    pub q_len: u32,
    /// Keys.
    pub k_len: u32,
    /// Head dimension, a multiple of [`HEAD_DIM_STEP`].
    pub head_dim: u32,
    /// First visible key of row 0 ([`Mask::key_offsets`]).
    pub first_key: i32,
    /// Last visible key of row 0.
    pub last_key: i32,
    /// `|scale| * log2(e)`: above 0 and finite.
    pub scale_log2: f32,
    /// XORed into each pair of 16-bit elements of Q: `0x8000_8000` where the scale is negative, else 0.
    pub q_sign: u32,
    /// Whether every row of Q, K and V starts on a 16-byte boundary (1) or not (0).
    pub inputs_aligned: u32,
    /// Whether every row of O starts on a 16-byte boundary (1) or not (0).
    pub output_aligned: u32,
}

/// How a WMMA variant brings tiles from global to shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TileCopy {
    /// `cp.async` of 16 bytes, which runs beside the arithmetic.
    Async,
    /// 16-byte loads into registers, then stores.
    ThroughRegisters,
}

/// Which units compute P V.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PvUnit {
    /// `wmma` on the tensor cores, P rounded to the input type.
    TensorCore,
    /// f32 multiply-adds, P in f32.
    Scalar,
}

/// The tile of a WMMA variant. One warp owns 16 query rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WmmaTile {
    /// Query rows of a block.
    pub m: usize,
    /// Keys of one step.
    pub n: usize,
    /// Key-value buffers in shared memory.
    pub stages: usize,
    /// How tiles are copied.
    pub copy: TileCopy,
    /// Which units compute P V.
    pub pv: PvUnit,
}

/// Query rows of one warp: the M of `wmma` m16n16k16.
pub const WARP_ROWS: usize = 16;

/// How the tiles of WMMA variants lie in shared memory: panels of 64 16-bit columns.
pub const TILE_SWIZZLE: Swizzle = Swizzle::B128;

/// Which algorithm a variant runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttentionKernel {
    /// One warp a query row, f32 multiply-adds: serves every head dimension and is the oracle on the card.
    Scalar,
    /// FlashAttention tiling on `wmma`.
    Wmma(WmmaTile),
}

/// One compiled kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttentionVariant {
    /// Name of the PTX entry.
    pub name: &'static str,
    /// Element type of Q, K, V and O.
    pub dtype: Dtype,
    /// The widest head dimension that it serves; narrower ones are padded with zeros in shared memory.
    pub head_dim: usize,
    /// What it runs.
    pub kernel: AttentionKernel,
}

/// Registers that a thread of any attention kernel of this table may use.
pub const MAX_REGISTERS: u32 = 128;

impl AttentionVariant {
    const fn scalar(name: &'static str, dtype: Dtype) -> Self {
        Self { name, dtype, head_dim: MAX_HEAD_DIM, kernel: AttentionKernel::Scalar }
    }

    const fn wmma(name: &'static str, dtype: Dtype, head_dim: usize, tile: WmmaTile) -> Self {
        Self { name, dtype, head_dim, kernel: AttentionKernel::Wmma(tile) }
    }

    /// Query rows of one block.
    pub const fn rows(&self) -> usize {
        match self.kernel {
            AttentionKernel::Scalar => SCALAR_ROWS,
            AttentionKernel::Wmma(tile) => tile.m,
        }
    }

    /// Threads of one block.
    pub const fn threads(&self) -> u32 {
        match self.kernel {
            AttentionKernel::Scalar => 32 * SCALAR_ROWS as u32,
            AttentionKernel::Wmma(tile) => 32 * (tile.m / WARP_ROWS) as u32,
        }
    }

    /// Resident blocks that the register budget must allow on a multiprocessor: as many as fill it at [`MAX_REGISTERS`].
    pub const fn min_blocks(&self) -> u32 {
        Arch::Sm80.limits().registers / (MAX_REGISTERS * self.threads())
    }

    /// The map of dynamic shared memory; empty for the scalar kernel.
    ///
    /// - `q`: the Q tile; the O tile afterwards.
    /// - `k`, `v`: the stages of the K and V tiles. Tiles lie as [`TILE_SWIZZLE`] says.
    /// - `p`: for scalar P V, a stage a warp: P transposed, `[n][16]` f32, then a factor for each of the 16 rows.
    pub const fn smem(&self) -> SmemLayout {
        match self.kernel {
            AttentionKernel::Scalar => SmemLayout::new(),
            AttentionKernel::Wmma(tile) => {
                let row_bytes = (self.head_dim * self.dtype.size_bytes()) as u32;
                let (stages, stage_bytes) = (tile.stages as u32, tile.n as u32 * row_bytes);
                let p_stages = match tile.pv {
                    PvUnit::TensorCore => 0,
                    PvUnit::Scalar => (tile.m / WARP_ROWS) as u32,
                };
                SmemLayout::new()
                    .region("q", tile.m as u32 * row_bytes, BASE_ALIGN_BYTES)
                    .stages("k", stages, stage_bytes, BASE_ALIGN_BYTES)
                    .stages("v", stages, stage_bytes, BASE_ALIGN_BYTES)
                    .stages("p", p_stages, ((tile.n + 1) * WARP_ROWS * size_of::<f32>()) as u32, 16)
            }
        }
    }

    /// Blocks of the grid for `heads` = batch x q_heads; `None` where it exceeds the 2^31 - 1 blocks of a grid.
    pub fn blocks(&self, heads: usize, q_len: usize) -> Option<u32> {
        let blocks = heads.checked_mul(q_len.div_ceil(self.rows()))?;
        i32::try_from(blocks).ok().map(|blocks| blocks as u32)
    }

    /// Whether a problem of this element type and head dimension can run on it.
    pub const fn serves(&self, dtype: Dtype, head_dim: usize) -> bool {
        self.dtype as u8 == dtype as u8 && head_dim <= self.head_dim
    }
}

impl fmt::Display for AttentionVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

/// Query rows of a block of the scalar kernel: one a warp.
pub const SCALAR_ROWS: usize = 4;

/// Position of the row called `name` in [`ATTENTION`]; does not compile (in a constant) where there is none.
pub const fn row_index(name: &str) -> usize {
    let mut index = 0;
    while index < ATTENTION.len() {
        if same_text(ATTENTION[index].name, name) {
            return index;
        }
        index += 1;
    }
    panic!("no row of ATTENTION has this name")
}

const fn tile(m: usize, n: usize, stages: usize) -> WmmaTile {
    WmmaTile { m, n, stages, copy: TileCopy::Async, pv: PvUnit::TensorCore }
}

const fn through_registers(tile: WmmaTile) -> WmmaTile {
    WmmaTile { copy: TileCopy::ThroughRegisters, ..tile }
}

const fn scalar_pv(tile: WmmaTile) -> WmmaTile {
    WmmaTile { pv: PvUnit::Scalar, ..tile }
}

/// Every compiled attention kernel, those of one element type in the order of preference: the first row that serves a problem is
/// the one to run (BENCHMARKS.md has the measurements).
///
/// Name: `attention_<type>_scalar`, or `attention_<type>_d<head dim>_wmma_<m>x<n>_s<stages>`, then `_ldg` where tiles go through
/// registers and `_fma` where P V is scalar.
pub const ATTENTION: &[AttentionVariant] = {
    use AttentionVariant as Row;
    use Dtype::{Bf16, F16};
    &[
        // 64 rows by 64 keys, two stages: the best, or within 4 % of it, at every length.
        Row::wmma("attention_f16_d64_wmma_64x64_s2", F16, 64, tile(64, 64, 2)),
        // Twice the blocks: 4 % ahead where 64 rows a block leave multiprocessors idle.
        Row::wmma("attention_f16_d64_wmma_32x64_s2", F16, 64, tile(32, 64, 2)),
        // Half the traffic of K and V: even at 4x32x4096, far behind where blocks are few.
        Row::wmma("attention_f16_d64_wmma_128x64_s2", F16, 64, tile(128, 64, 2)),
        // What the second stage gains: 3 to 13 %.
        Row::wmma("attention_f16_d64_wmma_64x64_s1", F16, 64, tile(64, 64, 1)),
        Row::wmma("attention_f16_d64_wmma_32x64_s1", F16, 64, tile(32, 64, 1)),
        Row::wmma("attention_f16_d64_wmma_128x64_s1", F16, 64, tile(128, 64, 1)),
        // What 64 keys a step gain over 32: 20 to 28 %.
        Row::wmma("attention_f16_d64_wmma_64x32_s2", F16, 64, tile(64, 32, 2)),
        Row::wmma("attention_f16_d64_wmma_32x32_s2", F16, 64, tile(32, 32, 2)),
        Row::wmma("attention_f16_d64_wmma_128x32_s2", F16, 64, tile(128, 32, 2)),
        // What cp.async and P V on the tensor cores gain.
        Row::wmma("attention_f16_d64_wmma_64x64_s2_ldg", F16, 64, through_registers(tile(64, 64, 2))),
        Row::wmma("attention_f16_d64_wmma_64x64_s2_fma", F16, 64, scalar_pv(tile(64, 64, 2))),
        Row::wmma("attention_f16_d64_wmma_64x64_s2_ldg_fma", F16, 64, scalar_pv(through_registers(tile(64, 64, 2)))),
        // At this head dimension 64 keys a step do not fit the register budget.
        Row::wmma("attention_f16_d128_wmma_64x32_s2", F16, 128, tile(64, 32, 2)),
        Row::wmma("attention_f16_d128_wmma_32x32_s2", F16, 128, tile(32, 32, 2)),
        Row::wmma("attention_f16_d128_wmma_128x32_s1", F16, 128, tile(128, 32, 1)),
        Row::wmma("attention_f16_d128_wmma_64x32_s2_fma", F16, 128, scalar_pv(tile(64, 32, 2))),
        // Every other head dimension, and the oracle on the card.
        Row::scalar("attention_f16_scalar", F16),
        // bf16 runs as f16 does; only the rows worth running are compiled.
        Row::wmma("attention_bf16_d64_wmma_64x64_s2", Bf16, 64, tile(64, 64, 2)),
        Row::wmma("attention_bf16_d64_wmma_32x64_s2", Bf16, 64, tile(32, 64, 2)),
        Row::wmma("attention_bf16_d64_wmma_128x64_s2", Bf16, 64, tile(128, 64, 2)),
        Row::wmma("attention_bf16_d128_wmma_64x32_s2", Bf16, 128, tile(64, 32, 2)),
        Row::wmma("attention_bf16_d128_wmma_32x32_s2", Bf16, 128, tile(32, 32, 2)),
        Row::scalar("attention_bf16_scalar", Bf16),
    ]
};

/// A row whose shared memory or threads cannot fit the smallest architecture does not compile.
const _: () = {
    let mut index = 0;
    while index < ATTENTION.len() {
        let row = &ATTENTION[index];
        let smem = row.smem().assert_fits(Arch::Sm89);
        assert!(
            (row.head_dim * row.dtype.size_bytes()).is_multiple_of(TILE_SWIZZLE.row_bytes() as usize)
                && row.head_dim <= MAX_HEAD_DIM
        );
        if let AttentionKernel::Wmma(tile) = row.kernel {
            assert!(tile.m.is_multiple_of(WARP_ROWS) && tile.n.is_multiple_of(16), "tiles are made of 16x16 products");
            assert!(tile.stages == 1 || tile.stages == 2);
            assert!(row.threads() <= 1024 && row.min_blocks() >= 1);
            let row_chunks = row.head_dim * row.dtype.size_bytes() / 16;
            assert!(
                (tile.n * row_chunks).is_multiple_of(row.threads() as usize),
                "each thread copies as many chunks as any other"
            );
            // Two blocks on a multiprocessor of sm_80 at head dimension 64; each takes 1 KiB for the system.
            let two_blocks = 2 * (smem.total_bytes() + 1024);
            assert!(row.head_dim > 64 || two_blocks <= Arch::Sm80.limits().shared_bytes);
        }
        index += 1;
    }
};

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::collections::HashSet;
    use std::format;
    use std::string::{String, ToString};

    fn composed_name(row: &AttentionVariant) -> String {
        match row.kernel {
            AttentionKernel::Scalar => format!("attention_{}_scalar", row.dtype),
            AttentionKernel::Wmma(tile) => format!(
                "attention_{}_d{}_wmma_{}x{}_s{}{}{}",
                row.dtype,
                row.head_dim,
                tile.m,
                tile.n,
                tile.stages,
                if tile.copy == TileCopy::ThroughRegisters { "_ldg" } else { "" },
                if tile.pv == PvUnit::Scalar { "_fma" } else { "" },
            ),
        }
    }

    #[test]
    fn names_follow_the_grammar_and_are_unique() {
        let mut names = HashSet::new();
        for (index, row) in ATTENTION.iter().enumerate() {
            assert_eq!(row.name, composed_name(row));
            assert_eq!(row_index(row.name), index);
            assert!(names.insert(row.name));
        }
    }

    #[test]
    fn key_range_is_the_definition() {
        for q_len in 0..6usize {
            for k_len in 0..7usize {
                for row in 0..q_len {
                    let position = (row + k_len) as i64 - q_len as i64;
                    for left in [0usize, 1, 2, 9, usize::MAX] {
                        for right in [0usize, 1, 3, usize::MAX] {
                            let sees = |key: usize| {
                                let distance = i128::from(key as i64 - position);
                                -(left as i128) <= distance && distance <= right as i128
                            };
                            let range = Mask::Window { left, right }.key_range(row, q_len, k_len);
                            for key in 0..k_len {
                                assert_eq!(
                                    range.contains(&key),
                                    sees(key),
                                    "{q_len} {k_len} {row} {left} {right} {key}"
                                );
                            }
                        }
                    }
                    assert_eq!(Mask::Full.key_range(row, q_len, k_len), 0..k_len);
                    let causal = Mask::Window { left: usize::MAX, right: 0 };
                    assert_eq!(
                        Mask::Causal.key_range(row, q_len, k_len).len(),
                        causal.key_range(row, q_len, k_len).len()
                    );
                }
            }
        }
    }

    #[test]
    fn key_offsets_do_not_overflow_at_the_longest_lengths() {
        for mask in [Mask::Full, Mask::Causal, Mask::Window { left: usize::MAX, right: usize::MAX }] {
            let (first, last) = mask.key_offsets(MAX_LEN, MAX_LEN);
            assert!((MAX_LEN as i32 - 1).checked_add(last).is_some());
            assert!(first.checked_sub(1).is_some());
        }
    }

    #[test]
    fn masks_parse_back() {
        for mask in [Mask::Full, Mask::Causal, Mask::Window { left: 3, right: 0 }] {
            assert_eq!(mask.to_string().parse(), Ok(mask));
        }
        for text in ["", "window", "window:1", "window:-1,2", "window:1,2,3", "Full"] {
            assert_eq!(text.parse::<Mask>(), Err(ParseMaskError), "{text}");
        }
    }
}
