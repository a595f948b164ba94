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
    #[error("q, k and v have elements of different types: {0}: give --dtype f16 or --dtype bf16 to convert them")]
    MixedTypes(String),
    /// Shapes or sizes that attention does not take.
    #[error(transparent)]
    Sizes(#[from] SizesError),
    /// Cumulative lengths of sequences that are not those of the tensors.
    #[error(transparent)]
    CuSeqlens(#[from] CuSeqlensError),
    /// Elements that the kernels do not read.
    #[error("kernels read f16 and bf16, but {0}: give --dtype f16 or --dtype bf16 to convert them")]
    NeedsDtype(String),
    /// Integers, which may be meant as a mask or as a bias.
    #[error("{tensor} has {dtype} elements: save a mask as bool, true where a key is visible, a bias as floats")]
    IntegerBias {
        /// The bias.
        tensor: Origin,
        /// The type of its elements.
        dtype: &'static str,
    },
}
