//! Tensor-core GPU kernels in pure Rust.
