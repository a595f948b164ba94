//! Quantisation: tensors of f16, bf16 or f32 to 8-bit elements with f32 factors, and back.
//!
//! An element stands for its value times the factor of its group. A group is a head, a batch entry, both, or the whole
//! tensor. The factor of a group is its largest magnitude over 448, the largest number of either 8-bit type.
//!
//! Three launches quantise: factors are set to 0, `quantize_factors` raises them, and `quantize` reads them.
//! `dequantize` is one launch. A block has some rows of one head, by [`QuantizeArgs::parts`], whatever the groups.

use core::fmt;

use layout::{Arch, Dtype};

/// The largest number of the 8-bit types: what the largest magnitude of a group becomes.
pub const LARGEST: f32 = 448.0;

/// What `2 q - 255` is multiplied by to be the value of the 8-bit integer q.
pub const U8_HALF_STEP: f32 = 448.0 / 255.0;

/// What the value of an 8-bit integer, plus 448, is multiplied by to be the integer.
pub const U8_STEPS: f32 = 127.5 / 448.0;

/// The integer that stands for 0, of the two that are as near: what NaN becomes too.
pub const U8_ZERO: u8 = 128;

/// Groups of integers whose largest magnitude is at most this one have the factor 1.
pub const U8_LEAST_MAGNITUDE: f32 = 1e-6;

/// Elements of a row that a thread converts at a time: 16 bytes of a 16-bit type.
pub const CHUNK: usize = 8;

/// Chunks of a thread.
pub const THREAD_CHUNKS: usize = 2;

/// One compiled kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct QuantizeKernel {
    /// Name of the PTX entry.
    pub name: &'static str,
}

/// Raises factors of groups to those of the elements.
pub const FACTORS: QuantizeKernel = QuantizeKernel { name: "quantize_factors" };

/// Divides elements by the factor of their group and rounds them.
pub const QUANTIZE: QuantizeKernel = QuantizeKernel { name: "quantize" };

/// Multiplies elements by the factor of their group.
pub const DEQUANTIZE: QuantizeKernel = QuantizeKernel { name: "dequantize" };

/// All of them. Each serves every pair of types.
pub const KERNELS: [QuantizeKernel; 3] = [FACTORS, QUANTIZE, DEQUANTIZE];

impl QuantizeKernel {
    /// Threads of a block.
    pub const THREADS: u32 = 256;

    /// Resident blocks that the registers must allow on a multiprocessor: what they wait for is memory.
    pub const MIN_BLOCKS: u32 = 5;

    /// Bytes of dynamic shared memory: a word for each warp.
    pub const SHARED_BYTES: u32 = Self::THREADS / 32 * 4;

    /// Registers that a thread may use.
    pub const fn max_registers(&self) -> u32 {
        Arch::Sm80.limits().registers / (Self::THREADS * Self::MIN_BLOCKS) / 8 * 8
    }
}

impl fmt::Display for QuantizeKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

/// Blocks that share the rows of a head; `None` where a head has too many elements for the numbers of a kernel.
///
/// ```
/// assert_eq!(variants::quantize::parts(512, 64), Some(8));
/// ```
#[must_use]
pub fn parts(rows: usize, columns: usize) -> Option<u32> {
    let chunks = i32::try_from(rows.checked_mul(columns.div_ceil(CHUNK))?).ok()?;
    Some((chunks as u32).div_ceil(QuantizeKernel::THREADS * THREAD_CHUNKS as u32))
}

/// The type of the wide elements, as kernels take it; `None` for types that are not quantised.
#[must_use]
pub const fn wide_type(dtype: Dtype) -> Option<u32> {
    match dtype {
        Dtype::F16 => Some(WIDE_F16),
        Dtype::Bf16 => Some(WIDE_BF16),
        Dtype::F32 => Some(WIDE_F32),
        Dtype::E4M3 | Dtype::E5M2 | Dtype::U8 => None,
    }
}

/// See [`wide_type`].
pub const WIDE_F16: u32 = 0;
/// See [`wide_type`].
pub const WIDE_BF16: u32 = 1;
/// See [`wide_type`].
pub const WIDE_F32: u32 = 2;

/// The type of the quantised elements, as kernels take it; `None` for types that nothing is quantised to.
#[must_use]
pub const fn narrow_type(dtype: Dtype) -> Option<u32> {
    match dtype {
        Dtype::E4M3 => Some(NARROW_E4M3),
        Dtype::U8 => Some(NARROW_U8),
        Dtype::F16 | Dtype::Bf16 | Dtype::F32 | Dtype::E5M2 => None,
    }
}

/// See [`narrow_type`].
pub const NARROW_E4M3: u32 = 0;
/// See [`narrow_type`].
pub const NARROW_U8: u32 = 1;

/// The factor below which the factor of a group of this type is 1. The reciprocal of a subnormal factor is not finite,
/// and what is beside a magnitude that small is 0 all the same.
#[must_use]
pub const fn least_factor(narrow: Dtype) -> f32 {
    match narrow {
        // The next number above: groups of exactly the magnitude have the factor 1.
        Dtype::U8 => f32::from_bits((U8_LEAST_MAGNITUDE / LARGEST).to_bits() + 1),
        _ => f32::MIN_POSITIVE,
    }
}

/// The parameter of every kernel: wide elements, quantised ones and factors, whichever of them are written.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QuantizeArgs {
    /// Device address of the wide elements.
    pub wide: u64,
    /// Device address of the quantised elements.
    pub narrow: u64,
    /// Device address of the factors, f32.
    pub factors: u64,
    /// Elements from one batch entry, head and row of the wide elements to the next.
    pub wide_strides: [i64; 3],
    /// The same of the quantised elements.
    pub narrow_strides: [i64; 3],
    /// Factors from one batch entry and head to the next; 0 where they share one.
    pub factor_strides: [i64; 2],
    /// Heads of a batch entry.
    pub heads: u32,
    /// Rows of a head.
    pub rows: u32,
    /// Elements of a row.
    pub columns: u32,
    /// Blocks of a head: [`parts`].
    pub parts: u32,
    /// [`wide_type`].
    pub wide_type: u32,
    /// [`narrow_type`].
    pub narrow_type: u32,
    /// Whether rows are whole chunks and start where chunks of either type are aligned.
    pub aligned: u32,
    /// The bits of [`least_factor`].
    pub least_factor: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_all_chunks_and_are_refused_beyond_the_numbers_of_a_kernel() {
        let of_block = QuantizeKernel::THREADS as usize * THREAD_CHUNKS;
        for (rows, columns, expected) in
            [(0, 64, 0), (1, 1, 1), (of_block, 8, 1), (of_block, 9, 2), (of_block + 1, 8, 2)]
        {
            assert_eq!(parts(rows, columns), Some(expected), "{rows} rows of {columns}");
        }
        assert!(parts(1 << 31, 8).is_none() && parts(usize::MAX, 64).is_none());
    }

    /// So that a factor, which is rounded, tells magnitudes of at most 1e-6 from others.
    #[test]
    fn the_least_factor_of_integers_divides_magnitudes_exactly() {
        let least = least_factor(Dtype::U8);
        assert!(U8_LEAST_MAGNITUDE / LARGEST < least);
        let next = f32::from_bits(U8_LEAST_MAGNITUDE.to_bits() + 1);
        assert!(next / LARGEST >= least);
    }

    #[test]
    fn the_argument_struct_has_no_padding() {
        assert_eq!(size_of::<QuantizeArgs>(), 3 * 8 + 8 * 8 + 8 * 4);
    }
}
