//! Tensors and matrices in files: formats, reading, conversion to the types of kernels, and writing.

pub(crate) mod archive;
pub(crate) mod convert;
pub(crate) mod input;
pub(crate) mod matrix;
pub(crate) mod npy;
pub(crate) mod output;
pub(crate) mod tensor;
