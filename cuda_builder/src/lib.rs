#![doc = include_str!("../README.md")]
//!
//! # How it works
//!
//! The steps, each one a file:
//!
//! 1. [`builder`]: cargo and rustc compile the crate, `core` and everything between into one unoptimised LLVM module.
//! 2. [`marks`]: the module's text gets what rustc cannot say: convergence, launch bounds, alignment of tensor maps.
//!    Its lines become those of the kernels, where `core` or `cuda_std` do something for them.
//! 3. `lower`: `opt` and `llc` of the same toolchain make PTX of it, by groups of kernels (`split`, `join`).
//! 4. [`ptx`]: a reader of PTX, for the builder's own checks and for tests.
//! 5. [`ptxas`]: where NVIDIA's assembler is installed, its report on registers, spills and shared memory.
//!
//! The PTX of the same sources, settings and toolchain is kept in the user's [`kernel_cache`], for all profiles and
//! clones: [`builder`] looks there first.
//!
//! [`embed()`] does it all for a build script.

pub mod builder;
mod compact;
pub mod embed;
pub mod error;
mod inputs;
mod join;
mod lines;
mod llvm_text;
mod lower;
pub mod marks;
mod pack;
pub mod ptx;
pub mod ptxas;
mod split;
pub mod toolchain;

pub use builder::{Build, CudaBuilder};
pub use embed::embed;
pub use error::Error;
pub use kernel_cache::Cache;
pub use layout::Arch;
