//! The vocabulary that host and device share: architectures, element types, swizzles, fragment maps, descriptors of
//! `wgmma`, maps of shared memory, and entries of kernels.
//!
//! The kernels that are made of it are in the crate `variants`. A crate with kernels of its own needs this one alone.
#![no_std]
#![forbid(unsafe_code)]

pub mod arch;
pub mod descriptor;
pub mod dtype;
pub mod entry;
pub mod fragment;
pub mod smem;
pub mod swizzle;
pub mod text;

pub use arch::{Arch, SmLimits};
pub use dtype::Dtype;
pub use entry::{Entry, TensorMap};
pub use smem::{SmemLayout, SmemRegion};
pub use swizzle::Swizzle;
