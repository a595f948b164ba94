//! The vocabulary that host and device share: architectures, element types, swizzles, fragment maps, descriptors of
//! `wgmma` and maps of shared memory.
//!
//! The kernels that are made of it are in the crate `variants`. A crate with kernels of its own needs this one alone.
#![no_std]
#![forbid(unsafe_code)]

pub mod arch;
pub mod descriptor;
pub mod dtype;
pub mod fragment;
pub mod smem;
pub mod swizzle;
pub mod text;

pub use arch::{Arch, SmLimits};
pub use dtype::Dtype;
pub use smem::{SmemLayout, SmemRegion};
pub use swizzle::Swizzle;
