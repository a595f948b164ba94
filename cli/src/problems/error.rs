//! Why tensors are not an attention problem.

use crate::files::input::{Origin, SizesError};
use crate::problems::cu_seqlens::CuSeqlensError;

/// Why tensors are not an attention problem.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum AttentionError {
    /// A tensor of another shape, or of another number of dimensions.
    #[error("{tensor} has shape {shape:?}, expected {expected}")]
    Shape {
        /// The tensor.
        tensor: Origin,
        /// Its shape.
        shape: Vec<usize>,
        /// The shape that it has to have, in words.
        expected: String,
    },
    /// Tensors of different types.
    #[error("q, k and v have elements of different types: {0}: give --dtype f16, bf16, e4m3 or u8 to convert them")]
    MixedTypes(String),
    /// Shapes or sizes that attention does not take.
    #[error(transparent)]
    Sizes(#[from] SizesError),
    /// Cumulative lengths of sequences that are not those of the tensors.
    #[error(transparent)]
    CuSeqlens(#[from] CuSeqlensError),
    /// Elements that the kernels do not read.
    #[error("kernels read f16, bf16, e4m3 and u8, but {0}: give --dtype f16, bf16, e4m3 or u8 to convert them")]
    NeedsDtype(String),
    /// Factors of elements of 16 bits.
    #[error(
        "elements of {0} have no factors: give --dtype e4m3 or u8, or leave --descale-q, -k, -v and --quantize out"
    )]
    FactorsOfHalves(&'static str),
    /// Factors to compute for elements that have been divided by theirs.
    #[error(
        "{tensor} has {dtype} elements already: give their factors by --descale-q, -k and -v instead of --quantize"
    )]
    AlreadyQuantized {
        /// The tensor.
        tensor: Origin,
        /// The type of its elements.
        dtype: &'static str,
    },
    /// 8-bit integers without factors.
    #[error("elements of u8 have factors: give --descale-q, -k and -v, or --quantize tensor or head")]
    NeedsFactors,
    /// An O of another type than that of Q, K and V.
    #[error("O has the type of q, k and v, {0}: --out-dtype is for --dtype e4m3 or u8, --direct for e4m3")]
    OutDtype(&'static str),
    /// Integers, which may be meant as a mask or as a bias.
    #[error("{tensor} has {dtype} elements: save a mask as bool, true where a key is visible, a bias as floats")]
    IntegerBias {
        /// The bias.
        tensor: Origin,
        /// The type of its elements.
        dtype: &'static str,
    },
}
