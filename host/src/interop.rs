//! Objects of other crates for the CUDA driver: how they come in, and how this library's go out.
//!
//! All of them use the primary context of a card, as this library does, so that addresses and streams of one are valid
//! in the others. A crate that is not here comes in through [`StreamRef::from_raw`](crate::StreamRef::from_raw) and
//! [`TensorRef::from_raw`](crate::TensorRef::from_raw).

#[cfg(feature = "cudarc")]
pub(crate) mod cudarc;
#[cfg(feature = "cust")]
mod cust;
