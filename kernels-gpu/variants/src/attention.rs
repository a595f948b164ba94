//! Attention: masks, the argument structs and the catalogue of configurations.
//!
//! `O = softmax(scale * Q K^T + mask) V` and `LSE_i = ln sum_j exp(s_ij)`, with Q `[B, Hq, Sq, D]` and K, V
//! `[B, Hkv, Sk, D]`.

mod catalogue;
mod config;
mod decode;
mod fp8;
mod mask;
mod quantized;
mod served;

pub(crate) use catalogue::assert_all_fit;
pub use catalogue::{ATTENTION, config_index};
pub use config::{
    AttentionConfig, AttentionKernel, CONSUMER_REGISTERS, MaskKind, MmaTile, PRODUCER_REGISTERS, PvUnit, QuerySource,
    SCALAR_ROWS, SCHEDULER_STAGES, ScoreMod, Seqlens, TILE_SWIZZLE, TileCopy, WARP_ROWS, WARPGROUP_ROWS,
    WARPGROUP_THREADS, WIDE_PRODUCER_CONSUMER_REGISTERS, WIDE_PRODUCER_REGISTERS, WgmmaTile,
};
pub use decode::{
    COMBINE, COMBINE_ROWS, CombineArgs, CombineKernel, DECODE_KEYS, DECODE_ROWS, DecodeArgs, DecodeTile, MAX_PAGE_LEN,
    MAX_SPLITS, PartialResult, combine_index,
};
pub use fp8::{
    DescaleArgs, DescaleTensor, E4M3_P_EXPONENT, TRANSPOSED_COLUMNS, TRANSPOSED_KEYS, TRANSPOSING_WARPS,
    TWO_LEVEL_KEYS, VALUE_ROWS_STAGES, has_transposed_values, key_of_slot, score_of_byte,
};
pub use mask::{Mask, ParseMaskError};
pub use quantized::{U8_TILE_FACTOR, U8_TILE_OFFSET, U8_TILE_UNIT};

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

/// The first parameter of every attention kernel.
///
/// With [`Seqlens::Varlen`] the sequences of all batch entries follow each other in one tensor. Batch strides are 0,
/// and `q_len` and `k_len` are those of the longest sequence.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct AttentionArgs {
    /// Device address of Q `[batch, q_heads, q_len, head_dim]`.
    pub q: u64,
    /// Device address of K `[batch, kv_heads, k_len, head_dim]`.
    pub k: u64,
    /// Device address of V `[batch, kv_heads, k_len, value_dim]`.
    pub v: u64,
    /// Device address of O `[batch, q_heads, q_len, value_dim]`.
    pub o: u64,
    /// Device address of the f32 LSE `[batch, q_heads, q_len]`, contiguous; 0 where it is not wanted.
    pub lse: u64,
    /// Device address of the f32 sinks `[q_heads]`; 0 where there are none.
    pub sink: u64,
    /// Device address of the bias `[batch, q_heads, q_len, k_len]`, of the element type of O; 0 where there is none.
    pub bias: u64,
    /// Device address of the i32 numbers `[batch + 1]` (`cu_seqlens`): the first query row of each batch entry, and the
    /// row after the last entry; 0 where all batch entries are as long.
    pub cu_seqlens_q: u64,
    /// The same of the keys.
    pub cu_seqlens_k: u64,
    /// Strides of Q.
    pub q_strides: AttentionStrides,
    /// Strides of K.
    pub k_strides: AttentionStrides,
    /// Strides of V.
    pub v_strides: AttentionStrides,
    /// Strides of O.
    pub o_strides: AttentionStrides,
    /// Strides of the bias: 0 along what it is the same for.
    pub bias_strides: AttentionStrides,
    /// Query heads.
    pub q_heads: u32,
    /// Query heads that share one key-value head.
    pub heads_per_kv: u32,
    /// Query rows.
    pub q_len: u32,
    /// Keys.
    pub k_len: u32,
    /// Query rows of all batch entries that follow each other.
    pub q_total: u32,
    /// Keys of all batch entries that follow each other.
    pub k_total: u32,
    /// Head dimension of Q and K, a multiple of [`HEAD_DIM_STEP`].
    pub head_dim: u32,
    /// Head dimension of V and O, a multiple too.
    pub value_dim: u32,
    /// First visible key of row 0 ([`Mask::key_offsets`]).
    pub first_key: i32,
    /// Last visible key of row 0.
    pub last_key: i32,
    /// Visible keys before a row's own position ([`Mask::reach`]).
    pub left: i32,
    /// Visible keys after it.
    pub right: i32,
    /// What the softmax multiplies by to have powers of two: `|scale| * log2(e)` of raw scores, `log2(e) / bias_scale`
    /// for [`ScoreMod::General`], `2 * softcap * log2(e)` for [`ScoreMod::Softcap`]; above 0 and finite.
    pub scale_log2: f32,
    /// The maximum above which it is subtracted from the scores before they are scaled: [`exact_from`].
    pub exact_from: f32,
    /// `|scale| * bias_scale`, for [`ScoreMod::General`]; for [`ScoreMod::Softcap`], `-2 * log2(e) * |scale| /
    /// softcap`, below 0 and finite.
    pub scale: f32,
    /// What bounds scaled scores on both sides, times `bias_scale`; infinite where nothing does.
    pub softcap: f32,
    /// The power of two that a bias is multiplied by, for [`ScoreMod::General`], so that no sum of a finite score and a
    /// finite bias is beyond f32.
    pub bias_scale: f32,
    /// XORed into each pair of 16-bit elements of Q: `0x8000_8000` where the scale is negative, else 0.
    pub q_sign: u32,
    /// Whether every row of Q, K and V starts on a 16-byte boundary and is whole chunks of 16 bytes (1) or not (0); of
    /// 8-bit integers, whether it starts on a boundary of 8 bytes.
    pub inputs_aligned: u32,
    /// Whether every row of O starts on a 16-byte boundary (1) or not (0).
    pub output_aligned: u32,
    /// Batch entries that follow each other, where they do.
    pub varlen_batch: u32,
    /// 0: what would be padding otherwise.
    pub reserved: u32,
}

/// The threshold of a row's maximum: a larger maximum is subtracted from the scores before they are scaled by
/// `scale_log2`. Scaled, the threshold is 2^8.
///
/// Below, `score * scale_log2 - maximum * scale_log2` is one instruction, in which the rounding of the second product,
/// at most 2^-17, is left. Models have maxima of tens.
pub const fn exact_from(scale_log2: f32) -> f32 {
    256.0 / scale_log2
}

/// What the tile scheduler of a persistent launch is given: in which order its blocks compute the tiles of query rows.
/// It is the second parameter of the WGMMA kernels.
///
/// A tile is a range of query rows of one head. Heads form groups, whose keys and values fit the L2 cache together.
/// Within a group, the tiles of the same rows of each head follow each other, from the last rows to the first: under a
/// causal mask the work of successive tiles then shrinks little by little. The first tile of a block is that of its own
/// number. After that the block takes the next tile that no other has taken, by counting in a semaphore. Without a
/// semaphore blocks take tiles round-robin, every other round in reverse.
///
/// Where batch entries follow each other ([`Seqlens::Varlen`]) their tiles lie in slots: [`first_slot`].
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TileSchedulerArgs {
    /// Device address of a 32-bit semaphore that is 0 when the launch starts, and again when it ends; 0 where there is
    /// none. Two launches that may run at the same time have two semaphores.
    pub semaphore: u64,
    /// Tiles of the launch: `heads * m_tiles`.
    pub tiles: u32,
    /// Tiles, or slots, of one head.
    pub m_tiles: u32,
    /// Heads of Q in all batch entries; those of one where they share slots.
    pub heads: u32,
    /// Heads of a group; the last group may have fewer.
    pub group_heads: u32,
}

/// The slot of the first tile of batch entry `batch`, whose query rows start at row `start`, in tiles of `rows` rows.
///
/// An entry has as many slots as tiles, or one more. Its first slot follows from where its rows start, so that no
/// search over the lengths before it is needed.
pub const fn first_slot(start: u32, batch: u32, rows: u32) -> u32 {
    start / rows + batch
}

/// Where a sequence of a varlen batch ends, in the row coordinate of the tensor map. Row `r` of `len` rows is at
/// `SEQUENCE_END - len + r`, so every row beyond the sequence is outside the map. The next dimension of the map has the
/// row after the sequence.
///
/// Both dimensions have the stride of a row, and the two coordinates are `SEQUENCE_END` too far together. The last
/// dimension, of stride [`SEQUENCE_PERIOD`] less a row and coordinate `SEQUENCE_END`, brings that back:
/// `SEQUENCE_END * SEQUENCE_PERIOD` bytes are 2^64.
pub const SEQUENCE_END: u32 = 1 << 30;

/// Bytes that `SEQUENCE_END` times are once around all addresses.
pub const SEQUENCE_PERIOD: u64 = 1 << 34;

const _: () = assert!((SEQUENCE_END as u64).wrapping_mul(SEQUENCE_PERIOD) == 0 && SEQUENCE_END as usize >= MAX_LEN);

/// Bytes of keys and values that a group of heads may have: half of the L2 cache of an H100.
pub const GROUP_BYTES: usize = 24 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// Each batch entry has slots for all its tiles, and at most one more.
    #[test]
    fn batch_entries_have_slots_for_their_tiles_alone() {
        for rows in [1, 64, 128] {
            let lens = [0, 1, rows - 1, rows, rows + 1, 3 * rows + 2];
            for count in 0..lens.len().pow(4) {
                let seqlens = [1, 6, 36, 216].map(|step| lens[count / step % lens.len()]);
                let (mut start, mut end) = (count as u32 % 3, 0);
                for (batch, len) in seqlens.into_iter().enumerate() {
                    let first = first_slot(start, batch as u32, rows);
                    assert!(first >= end, "the slots of two batch entries do not overlap");
                    start += len;
                    end = first + len.div_ceil(rows);
                    let next = first_slot(start, batch as u32 + 1, rows);
                    assert!((end..=end + 1).contains(&next), "{seqlens:?} of {rows}");
                }
                assert!(end <= first_slot(start, seqlens.len() as u32, rows), "as many as are launched");
            }
        }
    }
}
