//! ATA, the product `Y = A X` with a symmetric matrix of 16x16 blocks: how blocks are stored, the argument struct and
//! the table of compiled configurations.
//!
//! Two blocks under each other are a *pair*, 32 rows by 16 columns: pair row R and block column c hold the blocks (2R,
//! c) and (2R + 1, c). Stored are the pairs of the upper triangle, c >= 2R, that have an element other than 0. The
//! pairs of c = 2R and c = 2R + 1 hold the whole 32x32 tile on the diagonal. A missing block of a stored pair is zeros.
//!
//! Two pairs beside each other, c = 2C and 2C + 1, are a 32x32 *tile*. A tile serves twice: directly for the rows of R,
//! and transposed for the rows of C, unless R = C. A pair is stored as 32 *cells* of 4x4 elements, so that a lane loads
//! whole cells either way. The two ways differ only in which cells the lane loads, and in whether it takes rows for
//! columns:
//!
//! | way | cell `half` of a lane: rows, columns | row `group`, `group + 8` of operand `part` | k = `thread`, `thread + 4` of `step` |
//! | --- | --- | --- | --- |
//! | direct | `4 * group`, `16 * half + 4 * thread` | rows `2 * part`, and one further | columns `2 * step`, and one further |
//! | transposed | `16 * half + 4 * thread`, `4 * group` | columns `2 * part`, and one further | rows `2 * step`, and one further |
//!
//! Either way the lane needs four elements in a row of X, and has rows `4 * group` to `4 * group + 3` of Y.
//!
//! TF32 numbers have 19 bits and are stored in 20: the upper 16 as 16-bit numbers are, and four more (a *nibble*)
//! apart. That is 1280 bytes a pair instead of 2048. A byte permutation puts a number together. The lower 13 bits of
//! its register are then bits of other numbers, which tensor cores do not read. For multiply-adds the two nibbles of a
//! byte are separated first.

use core::fmt;

mod cell;
mod config;

pub use cell::{
    CELL, CELLS, CHUNK_BYTES, ElementOffset, NIBBLE_WORDS, Source, Storage, cell_source, chunk_offset, direct_cell,
    element_offset, nibbles_offset, transposed_cell, transposed_pair,
};
pub use config::{ATA, AtaConfig, AtaUnit, TILE_STRIDE, VECTOR_STRIDE, config_index, preferred};
pub(crate) use config::{assert_all_fit, config};

/// Rows and columns of a block.
pub const BLOCK: usize = 16;

/// Rows of a pair of blocks: the rows of Y that a thread block computes.
pub const PAIR_ROWS: usize = 2 * BLOCK;

/// Elements of a pair.
pub const PAIR_ELEMS: usize = PAIR_ROWS * BLOCK;

/// The largest n: row and column numbers fit 32 bits with room for sums.
pub const MAX_N: usize = 1 << 30;

/// Frames that one `mma` serves: its columns.
pub const MMA_FRAMES: usize = 8;

/// Pair rows of a strip: the rows of Y that have one list of tile references.
pub const STRIP_PAIR_ROWS: usize = 2;

/// Rows of a strip.
pub const STRIP_ROWS: usize = STRIP_PAIR_ROWS * PAIR_ROWS;

/// Tile references in the prefix of a strip's list: as many as the warps of a block take first. Kernels find a prefix
/// without knowing where the list starts.
pub const LIST_PREFIX: usize = 32;

/// Tile references in the prefix of a strip's transposed list, and of its direct list: the warps of a block take one of
/// each at first.
pub const KIND_PREFIX: usize = LIST_PREFIX / 2;

/// Words of an encoded tile reference ([`TileRef::encode`]): one load.
pub const TILE_REF_WORDS: usize = 4;

/// What a product is computed in. Sums are f32 in every one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// f32 elements and multiply-adds.
    F32,
    /// A rounded to TF32, 11 significant bits; X too, but for one frame. An X within 2^-12 of the end of the range of
    /// f32 becomes infinite there, and NaN with three terms.
    #[default]
    Tf32,
    /// A and X as sums of two TF32 numbers, three products: about the precision of f32, at twice the memory of TF32.
    Tf32x3,
    /// A as f16 times a power of two of its channel, and X as f16 times a power of two of each 32 elements of a frame.
    /// Half the memory of A. Elements of A below 2^-38 of the channel's largest become 0, those of X below 2^-38 of the
    /// largest of the 32. Results have the range of f32. Where channels differ, small sums may lose bits: those below
    /// the normal numbers times the ratio of two largest elements, that of the channel and that of the channel with the
    /// least.
    F16,
    /// A as bf16, 8 significant bits, and X as the sum of two bf16 numbers. Half the memory of A.
    Bf16,
}

impl Precision {
    /// Every precision.
    pub const ALL: [Precision; 5] =
        [Precision::F32, Precision::Tf32, Precision::Tf32x3, Precision::F16, Precision::Bf16];

    /// The name tile_ref in entry names and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Tf32 => "tf32",
            Precision::Tf32x3 => "tf32x3",
            Precision::F16 => "f16",
            Precision::Bf16 => "bf16",
        }
    }

    /// How a number is stored.
    pub const fn storage(self) -> Storage {
        match self {
            Precision::F32 => Storage::Word,
            Precision::Tf32 | Precision::Tf32x3 => Storage::Split,
            Precision::F16 | Precision::Bf16 => Storage::Half,
        }
    }

    /// Numbers that are stored for an element and whose sum it is.
    pub const fn terms(self) -> usize {
        match self {
            Precision::Tf32x3 => 2,
            _ => 1,
        }
    }

    /// Whether stored numbers are elements times a power of two of their channel.
    pub const fn has_scales(self) -> bool {
        matches!(self, Precision::F16)
    }

    /// The size of a stored pair.
    pub const fn pair_bytes(self) -> usize {
        self.terms() * self.storage().term_bytes()
    }

    /// The registers of a cell.
    pub const fn cell_words(self) -> usize {
        self.terms() * self.storage().cell_words()
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The text is not a precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParsePrecisionError;

impl fmt::Display for ParsePrecisionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected f32, tf32, tf32x3, f16 or bf16")
    }
}

impl core::error::Error for ParsePrecisionError {}

impl core::str::FromStr for Precision {
    type Err = ParsePrecisionError;

    fn from_str(text: &str) -> Result<Self, ParsePrecisionError> {
        Precision::ALL.into_iter().find(|precision| precision.name() == text).ok_or(ParsePrecisionError)
    }
}

/// A reference of a strip to what it multiplies with 32 elements of X: for each of its pair rows, the two pairs of a
/// 32x32 tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TileRef {
    /// The pair row of X.
    pub column: u32,
    /// The numbers of the stored pairs.
    pub pairs: [[Option<u32>; 2]; STRIP_PAIR_ROWS],
    /// Whether the pairs are transposed: those of tiles below the diagonal, and of the first pair row's on it.
    pub transposed: bool,
}

/// Bits of a code ([`TileRef::code`]) for each pair row.
const ROW_BITS: u32 = 3;

impl TileRef {
    /// What the kernel reads: the code, then for each pair row the number of its first pair. The second pair follows
    /// the first. Where there is only the second, the number is one less than that of the second.
    pub fn encode(&self) -> [u32; TILE_REF_WORDS] {
        let mut words = [0; TILE_REF_WORDS];
        words[0] = self.code();
        for (word, pairs) in words[1..].iter_mut().zip(self.pairs) {
            debug_assert!(pairs[0].zip(pairs[1]).is_none_or(|(first, second)| second == first + 1));
            *word = pairs[0].or(pairs[1].map(|second| second.wrapping_sub(1))).unwrap_or_default();
        }
        words
    }

    /// The code: for each pair row whether the tile is transposed (bit 0) and which pairs there are (bits 1 and 2),
    /// then the pair row of X.
    pub fn code(&self) -> u32 {
        let mut code = self.column << (ROW_BITS * STRIP_PAIR_ROWS as u32);
        for (row, pairs) in self.pairs.iter().enumerate() {
            let bits = self.transposed as u32 | (pairs[0].is_some() as u32) << 1 | (pairs[1].is_some() as u32) << 2;
            code |= bits << (ROW_BITS * row as u32);
        }
        code
    }
}

/// The bits of a code from pair row `row` of the strip on.
#[inline(always)]
pub const fn code_from_row(code: u32, row: u32) -> u32 {
    code >> (ROW_BITS * row)
}

/// Whether the code has a pair for pair row `row`.
#[inline(always)]
pub const fn code_has_pairs(code: u32, row: usize) -> bool {
    code_from_row(code, row as u32) & 6 != 0
}

/// Whether the code has pair `which` for pair row `row`.
#[inline(always)]
pub const fn code_has_pair(code: u32, row: usize, which: u32) -> bool {
    code_from_row(code, row as u32) >> (1 + which) & 1 != 0
}

/// Whether the pairs of pair row `row` are transposed.
#[inline(always)]
pub const fn code_is_transposed(code: u32, row: usize) -> bool {
    code_from_row(code, row as u32) & 1 != 0
}

/// The pair row of X.
#[inline(always)]
pub const fn code_column(code: u32) -> u32 {
    code >> (ROW_BITS * STRIP_PAIR_ROWS as u32)
}

/// A divisor and what divides by it without a division: some forty instructions less at the start of a block.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Divisor {
    divisor: u32,
    /// 2^32 / divisor, rounded down; one less for 1.
    inverse: u32,
}

impl Divisor {
    /// A divisor of at least 1.
    pub const fn new(divisor: u32) -> Self {
        let inverse = if divisor <= 1 { u32::MAX as u64 } else { (1 << 32) / divisor as u64 };
        Self { divisor, inverse: inverse as u32 }
    }

    /// Quotient and remainder. The product with the inverse is at most one below the quotient.
    #[inline(always)]
    pub const fn div_rem(self, dividend: u32) -> (u32, u32) {
        let quotient = ((dividend as u64 * self.inverse as u64) >> 32) as u32;
        let remainder = dividend.wrapping_sub(quotient.wrapping_mul(self.divisor));
        if remainder >= self.divisor { (quotient + 1, remainder - self.divisor) } else { (quotient, remainder) }
    }
}

/// Element strides of X or Y; the last dimension is contiguous.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AtaStrides {
    /// From one frame to the next, in elements.
    pub frame: i64,
    /// From one channel to the next, in elements.
    pub channel: i64,
}

/// The one parameter of every ATA kernel.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct AtaArgs {
    /// Device address of X, f32 `[frames, channels, n]`.
    pub x: u64,
    /// Device address of Y, f32 `[frames, channels, n]`.
    pub y: u64,
    /// Device address of the stored pairs.
    pub pairs: u64,
    /// Device address of the lists of tile references, each as [`TileRef::encode`] gives it. The references of one
    /// strip of one channel follow each other.
    pub tile_refs: u64,
    /// Device address of the first [`LIST_PREFIX`] tile references of each strip, and zeros where it has fewer.
    pub prefixes: u64,
    /// Device address of the prefixes by kind: for each strip its first [`KIND_PREFIX`] transposed tile references,
    /// then as many direct ones, and zeros where the strip has fewer. The last word of a transposed reference is where
    /// the strip's other references start; the last word of a direct one is where they end.
    pub kind_prefixes: u64,
    /// Device address of where the list of each strip starts, `channels * strips + 1` words.
    pub list_starts: u64,
    /// Device address of an f32 for each channel, by which sums are multiplied at the end.
    pub scales: u64,
    /// Strides of X.
    pub x_strides: AtaStrides,
    /// Strides of Y.
    pub y_strides: AtaStrides,
    /// Frames.
    pub frames: u32,
    /// Rows of A.
    pub n: u32,
    /// Strips of a channel.
    pub strips: Divisor,
    /// Blocks that share the rows of a strip, each with frames of its own.
    pub frame_tiles: Divisor,
    /// Whether every row of X starts on a 16-byte boundary (1) or not (0).
    pub x_aligned: u32,
    /// The number of a stored pair of zeros.
    pub zero_pair: u32,
    /// For f16, the largest exponent field of what elements of X are multiplied by ([`sums_fields`]).
    pub factor_limit: u32,
    /// For f16, the sum of the exponent fields of what elements of X and what their sums are multiplied by.
    pub inverse_base: u32,
}

/// [`AtaArgs::factor_limit`] and [`AtaArgs::inverse_base`] for sums of f16 products times `2^exponent`, which is
/// 0 or less. With the first the field of what sums are multiplied by is at least 1.
///
/// Where elements of A are stored times `2^-e`, sums are those of `A X` times `2^(exponent - e)`. With an exponent of
/// at most e these sums are no larger than those of `A X`, so that a sum overflows only if it does in f32.
pub const fn sums_fields(exponent: i32) -> [u32; 2] {
    const BIAS: i32 = f32::MAX_EXP - 1;
    assert!(exponent <= 0 && exponent > -BIAS);
    [(2 * BIAS - 1 + exponent) as u32, (2 * BIAS + exponent) as u32]
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn codes_say_what_a_tile_reference_has() {
        let tile_ref = TileRef { column: 77, pairs: [[Some(5), None], [None, Some(9)]], transposed: false };
        for tile_ref in [tile_ref, TileRef { transposed: true, ..tile_ref }] {
            let code = tile_ref.code();
            assert_eq!(tile_ref.encode(), [code, 5, 8, 0]);
            assert_eq!(code_column(code), 77);
            for row in 0..2 {
                assert!(code_has_pairs(code, row));
                assert_eq!(code_is_transposed(code, row), tile_ref.transposed);
                assert_eq!(code_is_transposed(code_from_row(code, row as u32), 0), tile_ref.transposed);
                for (which, pair) in tile_ref.pairs[row].iter().enumerate() {
                    assert_eq!(code_has_pair(code, row, which as u32), pair.is_some());
                }
            }
        }
        assert_eq!(TileRef::default().encode(), [0; TILE_REF_WORDS]);
    }

    #[test]
    fn divisors_divide() {
        for divisor in [1, 2, 3, 5, 41, 1 << 16, 65537, (1 << 31) - 1, u32::MAX] {
            for dividend in [0, 1, 2, 40, 41, 42, divisor - 1, divisor, u32::MAX - 1, u32::MAX] {
                let expected = (dividend / divisor, dividend % divisor);
                assert_eq!(Divisor::new(divisor).div_rem(dividend), expected, "{dividend} / {divisor}");
            }
        }
    }

    #[test]
    fn precisions_are_read_as_they_are_written() {
        for precision in Precision::ALL {
            assert_eq!(precision.name().parse(), Ok(precision));
        }
        assert_eq!("f64".parse::<Precision>(), Err(ParsePrecisionError));
    }
}
