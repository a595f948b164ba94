//! The catalogue of the kernels, one module a family: the configurations that are compiled, with the reason for each,
//! the argument structs and the grids.
//!
//! The device crate of a family compiles one entry for each configuration, and the host launches it with the grid,
//! block and shared memory of the same configuration. What configurations are made of (architectures, element types,
//! swizzles, descriptors, maps of shared memory) is in [`layout`].
#![no_std]
#![forbid(unsafe_code)]

pub mod ata;
pub mod attention;
pub mod broken;
pub mod cg;
pub mod gemm;
pub mod ladder;
mod lines;
pub mod probe;
pub mod quantize;
pub mod rotary;
pub mod study;

/// The kernel families that the library embeds. A family is the device crate `kernels-gpu/<name>`.
pub const FAMILIES: [&str; 5] = ["ata", "attention", "gemm", "quantize", "rotary"];

/// Families that the library embeds with the feature of their name alone: those that teach and measure.
pub const OPTIONAL_FAMILIES: [&str; 2] = ["ladder", study::STUDY];
