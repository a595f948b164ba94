//! ATA: `Y = A X` with a symmetric matrix of 16x16 blocks for each channel, many frames at once, and its solution by
//! conjugate gradient.

mod arrays;
mod cg;
mod device;
mod matrix;
mod options;
mod pack;
mod plan;
mod precondition;

pub use cg::{CgOptions, CgOutcome, CgPlan, CgReport, CgSystem, Preconditioner};
pub use device::DeviceBlockMatrix;
pub use matrix::SymmetricBlockMatrix;
pub use options::AtaOptions;
pub use pack::PairClasses;
pub use plan::{AtaPlan, ata_kernels};
