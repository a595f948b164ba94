//! What a program works with whatever it computes: cards, streams, memory, tensors, modules and launches.
//!
//! From the ground up: `ptx` (what the library carries), `module` (what is loaded), `semaphores`, `gpu`, `stream`,
//! `param`, `launch`, `buffer_slice`, `buffer`, `raw_tensor`, `tensor`, `tensor_map`, `typed`. A file uses those before
//! it and never those after it.

pub(crate) mod buffer;
pub(crate) mod buffer_slice;
pub(crate) mod gpu;
pub(crate) mod launch;
pub(crate) mod module;
pub(crate) mod param;
pub(crate) mod ptx;
pub(crate) mod raw_tensor;
pub(crate) mod semaphores;
pub(crate) mod stream;
pub(crate) mod tensor;
pub(crate) mod tensor_map;
pub(crate) mod typed;
