//! GEMM: layouts, argument structs and the tables of compiled kernels.
//!
//! `D = activation(alpha * A B + beta * C + bias)`, for each entry of a batch: A is m x k, B is k x n, C and D are m x
//! n with contiguous rows, the bias has n elements. Sums over k are f32.

mod auxiliary;
mod catalogue;
mod config;
mod scheduler;
pub mod wgmma;

use core::fmt;
use core::str::FromStr;

pub use auxiliary::{AUXILIARY_MIN_BLOCKS, PACK_8BIT, PACK_16BIT, PACK_TILE, PackKernel, REDUCE_SPLIT_K, ReduceKernel};
pub use catalogue::{GEMM, config_index};
pub use config::{GemmConfig, GemmTile, GemmUnit, Operands};
pub use scheduler::{TileScheduler, WorkTile, alternates};

use layout::descriptor::Major;

/// How A and B are stored: n as the formula has it, t transposed; first A, then B.
///
/// The letter says what the rows of the stored matrix are: `n` for A is m x k and for B k x n, `t` is k x m and n x k.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GemmLayout {
    /// A is stored m x k, B is stored k x n.
    Nn,
    /// A is stored m x k, B is stored n x k: both with contiguous k, as the weights of a linear layer.
    Nt,
    /// A is stored k x m, B is stored k x n.
    Tn,
    /// A is stored k x m, B is stored n x k.
    Tt,
}

impl GemmLayout {
    /// Every layout.
    pub const ALL: [GemmLayout; 4] = [GemmLayout::Nn, GemmLayout::Nt, GemmLayout::Tn, GemmLayout::Tt];

    /// The layout of operands that are stored so.
    pub const fn of(a: Major, b: Major) -> Self {
        match (a, b) {
            (Major::K, Major::Mn) => GemmLayout::Nn,
            (Major::K, Major::K) => GemmLayout::Nt,
            (Major::Mn, Major::Mn) => GemmLayout::Tn,
            (Major::Mn, Major::K) => GemmLayout::Tt,
        }
    }

    /// Which dimension of A is contiguous.
    pub const fn a(self) -> Major {
        match self {
            GemmLayout::Nn | GemmLayout::Nt => Major::K,
            GemmLayout::Tn | GemmLayout::Tt => Major::Mn,
        }
    }

    /// Which dimension of B is contiguous.
    pub const fn b(self) -> Major {
        match self {
            GemmLayout::Nt | GemmLayout::Tt => Major::K,
            GemmLayout::Nn | GemmLayout::Tn => Major::Mn,
        }
    }

    /// The two letters.
    pub const fn name(self) -> &'static str {
        match self {
            GemmLayout::Nn => "nn",
            GemmLayout::Nt => "nt",
            GemmLayout::Tn => "tn",
            GemmLayout::Tt => "tt",
        }
    }
}

impl fmt::Display for GemmLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The text is not a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseGemmLayoutError;

impl fmt::Display for ParseGemmLayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected nn, nt, tn or tt")
    }
}

impl core::error::Error for ParseGemmLayoutError {}

impl FromStr for GemmLayout {
    type Err = ParseGemmLayoutError;

    fn from_str(text: &str) -> Result<Self, ParseGemmLayoutError> {
        GemmLayout::ALL.into_iter().find(|layout| layout.name() == text).ok_or(ParseGemmLayoutError)
    }
}

/// What is applied to each element before it is rounded and stored.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// `max(x, 0)`.
    Relu,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`, the form with tanh.
    Gelu,
    /// `x / (1 + exp(-x))`.
    Silu,
}

impl Activation {
    /// Every activation.
    pub const ALL: [Activation; 4] = [Activation::None, Activation::Relu, Activation::Gelu, Activation::Silu];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Activation::None => "none",
            Activation::Relu => "relu",
            Activation::Gelu => "gelu",
            Activation::Silu => "silu",
        }
    }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How FP8 products are summed over k. Sums of 16-bit products are always [`Accumulation::Direct`].
///
/// Tensor cores align the products of a step, and the sum so far, to the largest of them. They keep so many bits and
/// cut off the rest, so a large product hides small ones beside it. How many bits depends on instruction and card:
///
/// | kernels | on | bits below the largest exponent |
/// | --- | --- | --- |
/// | sm_90a (`wgmma`) | Hopper | 13, and 13 of the sum in f32: a register of 22 bits. Measured, bit by bit |
/// | sm_89 (`mma.sync` m16n8k32) | Hopper | 25: its compiler makes products of f16 of it. Measured, bit by bit |
/// | sm_89 (`mma.sync` m16n8k32) | Ada | 13, as reported (SageAttention2, arXiv 2411.10958); not measured here |
///
/// The emulator computes what Hopper does. `tolerance::gemm_limit` holds for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Accumulation {
    /// In the tensor cores alone. With 13 bits up to half of a sum of k = 8192 terms may be lost, where one term is
    /// large and the others are 2^-13 of it.
    Direct,
    /// In the tensor cores over [`TWO_LEVEL_K`] elements of k, and these sums in f32: at most 2 % are lost, whatever k.
    #[default]
    TwoLevel,
}

/// Elements of k that two-level accumulation adds in the tensor cores.
pub const TWO_LEVEL_K: usize = 128;

/// The largest m, n and k (32-bit numbers with room for sums of two).
pub const MAX_DIM: usize = 1 << 30;

/// Columns that one thread stores at a time; rows of partial sums are padded to multiples of it.
pub const GROUP: usize = 8;

/// Bytes that fast copies move at a time, and that the rows of their operands start on a multiple of.
pub const CHUNK_BYTES: usize = 16;

/// A or B as kernels see it: for B, rows are the n of the formula.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GemmOperand {
    /// Device address of the first element.
    pub address: u64,
    /// Elements from one batch entry to the next.
    pub batch_stride: i64,
    /// Elements from one m (of A) or n (of B) to the next.
    pub mn_stride: i64,
    /// Elements from one k to the next.
    pub k_stride: i64,
}

/// C or D as kernels see it; the columns of a row are contiguous.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GemmMatrix {
    /// Device address of the first element; 0 for a C that is not read.
    pub address: u64,
    /// Elements from one batch entry to the next.
    pub batch_stride: i64,
    /// Elements from one row to the next.
    pub row_stride: i64,
}

/// The parameter of the main kernels and of the sum of their splits. Kernels on `wgmma` are given the tensor maps of A,
/// B and D before it.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct GemmArgs {
    /// A.
    pub a: GemmOperand,
    /// B.
    pub b: GemmOperand,
    /// C, of the type of D.
    pub c: GemmMatrix,
    /// D.
    pub d: GemmMatrix,
    /// Device address of n f32 that are added to each row; 0 for none.
    pub bias: u64,
    /// Device address of one f32 that A is multiplied by; 0 for none.
    pub a_scale: u64,
    /// Device address of one f32 that B is multiplied by; 0 for none.
    pub b_scale: u64,
    /// Device address of one f32 that D is multiplied by, besides `d_factor`; 0 for none.
    pub d_scale: u64,
    /// Device address of the partial sums `[splits][batch][m][n]` in f32, n padded to a multiple of [`GROUP`], where
    /// `splits` is more than 1.
    pub partial: u64,
    /// Rows of D.
    pub m: u32,
    /// Columns of D.
    pub n: u32,
    /// Length of the sums.
    pub k: u32,
    /// Batch entries.
    pub batch: u32,
    /// Parts that k is cut into, each summed by blocks of its own.
    pub splits: u32,
    /// Elements of k of each split but the last, a multiple of the tile's.
    pub split_k: u32,
    /// What the product is multiplied by.
    pub alpha: f32,
    /// What C is multiplied by.
    pub beta: f32,
    /// What D is multiplied by before it is rounded.
    pub d_factor: f32,
    /// An [`Activation`].
    pub activation: u32,
    /// The [`layout::Dtype`] of C and D.
    pub d_dtype: u32,
    /// Whether every row of D, and of C where it is read, starts on a 16-byte boundary (1) or not (0).
    pub aligned: u32,
}

/// The parameter of the kernels that copy an operand so that its k are contiguous and its rows aligned.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PackArgs {
    /// What is copied.
    pub source: GemmOperand,
    /// Device address of the copy `[batch][mn][packed_k]`.
    pub packed: u64,
    /// Rows of each batch entry.
    pub mn: u32,
    /// Elements of each row.
    pub k: u32,
    /// Elements from one row of the copy to the next.
    pub packed_k: u32,
    /// Batch entries.
    pub batch: u32,
}

/// Elements from one row of partial sums to the next.
pub const fn partial_row(n: u32) -> u32 {
    n.next_multiple_of(GROUP as u32)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn layouts_parse_back_and_are_made_of_their_majors() {
        for layout in GemmLayout::ALL {
            assert_eq!(layout.to_string().parse(), Ok(layout));
            assert_eq!(GemmLayout::of(layout.a(), layout.b()), layout);
        }
        assert_eq!("NT".parse::<GemmLayout>(), Err(ParseGemmLayoutError));
    }
}
