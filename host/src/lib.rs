//! Tensor-core GPU kernels in pure Rust.
//!
//! ```no_run
//! use ferrotile::{Buffer, Gpu};
//!
//! # fn main() -> ferrotile::Result<()> {
//! let gpu = Gpu::new(0)?;
//! let stream = gpu.new_stream()?;
//! let buffer = Buffer::upload_blocking(&stream, &[1.0_f32, 2.0])?;
//! assert_eq!(buffer.download_blocking(&stream)?, [1.0, 2.0]);
//! # Ok(())
//! # }
//! ```
//!
//! Every call that enqueues work takes a stream and returns before the work is done; only functions whose name says so
//! (`.._blocking`, `synchronize`) wait. Dropping a [`Buffer`], a [`PinnedBuffer`] or the last clone of a [`Module`]
//! waits too, for the work that may use it.
//!
//! # Building without a CUDA toolkit
//!
//! Neither building nor starting a program needs CUDA: the driver (`libcuda.so.1`, Linux) is loaded on first use, and
//! [`Gpu::new`] says so where there is none. The crate `cust`, which this one uses, looks for a toolkit while it
//! builds, though, unless the environment variable `CUDA_LIBRARY_PATH` names a folder in its place. This workspace sets
//! it in `.cargo/config.toml`. A crate elsewhere that depends on this one does the same in its own, where no toolkit is
//! installed:
//!
//! ```toml
//! [env]
//! CUDA_LIBRARY_PATH = "/path/to/ferrotile/host/stub"
//! ```

mod ata;
mod attention;
mod backend;
mod checks;
mod element;
mod error;
mod gemm;
#[cfg(feature = "ladder")]
mod ladder;
pub mod reference;
mod runtime;
pub mod tolerance;

pub use ata::{
    AtaOptions, AtaPlan, CgOptions, CgOutcome, CgPlan, CgReport, CgSystem, DeviceBlockMatrix, PairClasses,
    Preconditioner, SymmetricBlockMatrix, ata_variants,
};
pub use attention::{
    AttentionOperands, AttentionOptions, AttentionParams, AttentionPlan, AttentionProblem, AttentionTensors,
    BatchedSizes, Keys, Layout, MergePlan, MergeTensors, PagedSizes, PagedTensors, PartialAttention,
    RawAttentionTensors, RawKeys, RawMergeTensors, VarlenSizes, VarlenTensors, attention, attention_variants,
    attention_varlen, merge, paged_attention,
};
pub use backend::LaunchConfig;
pub use element::{Element, ElementType, F8E4M3, F8E5M2, Float};
pub use error::{Breakdown, BreakdownCause, DriverError, Error, Result};
pub use gemm::{GemmOptions, GemmPlan, GemmProblem, GemmTensors, RawGemmTensors, RawScale, Scale, gemm, gemm_variants};
#[cfg(feature = "ladder")]
pub use ladder::LadderPlan;
pub use layout::swizzle::Swizzle;
pub use layout::{Arch, Dtype};
#[cfg(feature = "emulator")]
pub use ptx_emulator::Fp8Sums;
pub use runtime::buffer::{Buffer, PinnedBuffer};
pub use runtime::buffer_slice::{BufferSlice, BufferSliceMut};
pub use runtime::gpu::Gpu;
pub use runtime::launch::KernelParam;
pub use runtime::module::{Kernel, KernelAttributes, KernelFacts, KernelName, Module};
pub use runtime::ptx::{embedded_kernels, embedded_ptx, kernel_ptx};
pub use runtime::raw_tensor::RawTensor;
pub use runtime::stream::{Event, Graph, Stream, StreamRef};
pub use runtime::tensor::{TensorMut, TensorRef};
pub use runtime::tensor_map::TensorMap;
pub use variants::ata::Precision;
pub use variants::attention::Mask;
pub use variants::gemm::{Accumulation, Activation, GemmLayout};

/// What an emulated device counts: see [`Gpu::counted`].
#[cfg(feature = "emulator")]
pub mod counters {
    pub use ptx_emulator::counters::{Counters, Counts, GlobalTraffic, InstructionCounts, SharedTraffic};
    pub use ptx_emulator::{Class, LaunchShape, Place, RustPlace};
}
