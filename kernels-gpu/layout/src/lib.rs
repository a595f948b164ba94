//! Every number that host and device must agree on: tiles, shared-memory maps, swizzles, fragment maps, argument
//! structs and the tables of compiled configurations.
#![no_std]
#![forbid(unsafe_code)]

pub mod arch;
pub mod ata;
pub mod attention;
pub mod broken;
pub mod cg;
pub mod descriptor;
pub mod dtype;
pub mod fragment;
pub mod gemm;
pub mod ladder;
pub mod probe;
pub mod smem;
pub mod swizzle;
mod text;

/// The kernel families that the library embeds. A family is the device crate `kernels-gpu/<name>`.
pub const FAMILIES: [&str; 3] = ["ata", "attention", "gemm"];

pub use arch::{Arch, SmLimits};
pub use dtype::Dtype;
pub use smem::{SmemLayout, SmemRegion};
pub use swizzle::Swizzle;
