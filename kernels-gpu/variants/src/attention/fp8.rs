//! Attention on FP8: what its kernels have beside those of 16-bit elements.

use layout::Dtype;

/// The second argument struct of the kernels for E4M3: the f32 factors that elements of Q, K and V are multiplied by.
///
/// Each tensor has one factor for each batch entry and head, at `batch * stride + head * stride` elements from its
/// address. Strides are 0 along what it is the same for.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct DescaleArgs {
    /// The factors of Q, by head of K and V or by head of Q: see `q_heads_per_factor`.
    pub q: DescaleTensor,
    /// The factors of K, by head of K and V.
    pub k: DescaleTensor,
    /// The factors of V, by head of K and V.
    pub v: DescaleTensor,
    /// Heads of Q that share a factor and follow each other.
    pub q_heads_per_factor: u32,
    /// What O is multiplied by before it is rounded to E4M3, with a largest number of 448; 0 where O has the element
    /// type of the configuration. Kernels whose O is of f16 take both ([`AttentionConfig::may_narrow_out`]).
    ///
    /// [`AttentionConfig::may_narrow_out`]: super::AttentionConfig::may_narrow_out
    pub out_scale: f32,
}

/// Where the factors of one tensor are.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DescaleTensor {
    /// Device address; 0 where every factor is 1.
    pub address: u64,
    /// From one batch entry to the next, in elements.
    pub batch: i64,
    /// From one factor to that of the next head, in elements.
    pub head: i64,
}

/// The power of two that probabilities are multiplied by before they are rounded to E4M3: the largest one that E4M3
/// has, whose largest number is 448. So the largest probability of a row, 1, becomes 256, and the least that is kept
/// with all its bits is `2^-14`.
pub const E4M3_P_EXPONENT: i32 = 8;

/// Keys over which tensor cores sum P V on E4M3 before threads add the sum to O, with [`Accumulation::TwoLevel`]: those
/// of the whole steps that fit, or of one step.
///
/// [`Accumulation::TwoLevel`]: crate::gemm::Accumulation::TwoLevel
pub const TWO_LEVEL_KEYS: u32 = 256;

/// Warps of the producer that transpose V: all but the one that copies.
pub const TRANSPOSING_WARPS: u32 = 3;

/// Stages of V as it lies in global memory: one is copied while the other is transposed.
pub const VALUE_ROWS_STAGES: u32 = 2;

/// Keys and columns of V that a warp transposes at a time, by one `ldmatrix` and one `stmatrix`.
pub const TRANSPOSED_KEYS: u32 = 32;
/// See [`TRANSPOSED_KEYS`].
pub const TRANSPOSED_COLUMNS: u32 = 16;

/// Whether WGMMA kernels transpose V: `wgmma` takes 8-bit operands along K alone.
pub const fn has_transposed_values(dtype: Dtype) -> bool {
    dtype.size_bytes() == 1
}

/// Which of 32 keys the tensor cores meet as step `slot` along K of P V on 8-bit elements.
///
/// A thread has the scores of keys `8 j + 2 t` and `8 j + 2 t + 1`, where t is its place in its quad. Operand A wants
/// slots `4 t` to `4 t + 3` in one register, and those 16 above in another. With this order they are keys of the
/// thread itself: P needs no exchange between threads. V is transposed into the same order.
///
/// ```
/// use variants::attention::key_of_slot;
///
/// assert_eq!([0, 1, 2, 3, 4, 16].map(key_of_slot), [0, 1, 8, 9, 2, 16]);
/// ```
#[must_use]
pub const fn key_of_slot(slot: u32) -> u32 {
    let (half, thread, of_thread) = (slot / 16, slot % 16 / 4, slot % 4);
    16 * half + 8 * (of_thread / 2) + 2 * thread + of_thread % 2
}

/// The score, of a thread's 16 of 32 keys, that byte `byte` of register `register` of operand A is made of.
#[inline(always)]
#[must_use]
pub const fn score_of_byte(register: u32, byte: u32) -> u32 {
    8 * (register / 2) + 2 * (register % 2) + 4 * (byte / 2) + byte % 2
}

#[cfg(test)]
mod tests {
    use layout::fragment::{wgmma_a, wgmma_d};

    use super::*;

    #[test]
    fn every_key_has_one_slot() {
        let mut seen = [false; 32];
        for slot in 0..32 {
            assert!(!core::mem::replace(&mut seen[key_of_slot(slot) as usize], true));
        }
    }

    #[test]
    fn threads_have_the_scores_of_their_slots() {
        for thread in 0..128 {
            for (register, byte) in (0..4).flat_map(|register| (0..4).map(move |byte| (register, byte))) {
                let (row, slot) = wgmma_a(thread, register, byte, 1);
                assert_eq!(wgmma_d(thread, score_of_byte(register, byte)), (row, key_of_slot(slot)));
            }
        }
    }
}
