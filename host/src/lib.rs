//! Tensor-core GPU kernels in pure Rust: attention, matrix products (GEMM), and products and solutions with symmetric
//! block matrices (ATA).
//!
//! The kernels are Rust that was compiled to PTX. The library carries the PTX, and the driver compiles what is used. An
//! NVIDIA driver is all that a card needs. Without a card the same PTX runs on the CPU, in the emulator:
//!
//! ```
//! use ferrotile::{Arch, Gpu};
//!
//! // The first card, or an emulated one where there is none.
//! let gpu = Gpu::new(0).unwrap_or_else(|_| Gpu::emulated(Arch::Sm80));
//! println!("{gpu}");
//! ```
//!
//! # Attention
//!
//! [`attention()`] for batches, [`attention_varlen`] for sequences of several lengths, [`paged_attention`] for a few
//! rows on keys in pages, [`merge`] for partial results. [`AttentionPlan`] serves the first three again and again.
//!
//! ```
//! use ferrotile::{
//!     Arch, AttentionOptions, AttentionParams, AttentionTensors, Buffer, Gpu, Layout, Mask, TensorMut, TensorRef,
//!     attention,
//! };
//! use half::f16;
//!
//! let gpu = Gpu::emulated(Arch::Sm80);
//! let stream = gpu.new_stream()?;
//! let shape = [1, 2, 16, 64]; // batch, heads, sequence, head dimension
//! let data = Buffer::upload_blocking(&stream, &[f16::ONE; 2 * 16 * 64])?;
//! let mut out = Buffer::<f16>::zeroed(&gpu, data.len())?;
//! let input = TensorRef::contiguous(&data, shape)?;
//! attention(
//!     &stream,
//!     AttentionTensors::new(input, input, input, TensorMut::contiguous(&mut out, shape)?),
//!     &AttentionParams { mask: Mask::Causal, ..AttentionParams::new(Layout::Bhsd) },
//!     &AttentionOptions::default(),
//! )?;
//! assert!(out.download_blocking(&stream)?.iter().all(|&x| x == f16::ONE));
//! # Ok::<(), ferrotile::Error>(())
//! ```
//!
//! # Matrix products
//!
//! [`gemm()`] computes `D = activation(alpha * A B + beta * C + bias)`, [`GemmPlan`] does so again and again.
//!
//! ```
//! use ferrotile::{Arch, Buffer, GemmLayout, GemmOptions, GemmTensors, Gpu, TensorMut, TensorRef, gemm};
//! use half::bf16;
//!
//! let gpu = Gpu::emulated(Arch::Sm80);
//! let stream = gpu.new_stream()?;
//! let (m, n, k) = (16, 32, 64);
//! let a = Buffer::upload_blocking(&stream, &vec![bf16::ONE; m * k])?;
//! let b = Buffer::upload_blocking(&stream, &vec![bf16::ONE; n * k])?; // n x k, as the weights of a linear layer
//! let mut d = Buffer::<f32>::zeroed(&gpu, m * n)?;
//! let (a, b) = (TensorRef::contiguous(&a, [1, m, k])?, TensorRef::contiguous(&b, [1, n, k])?);
//! let tensors = GemmTensors::new(a, b, TensorMut::contiguous(&mut d, [1, m, n])?);
//! gemm(&stream, tensors, &GemmOptions::new(GemmLayout::Nt))?;
//! assert!(d.download_blocking(&stream)?.iter().all(|&sum| sum == 64.0));
//! # Ok::<(), ferrotile::Error>(())
//! ```
//!
//! # Symmetric block matrices
//!
//! A [`SymmetricBlockMatrix`] is uploaded once. [`DeviceBlockMatrix::multiply`] is `Y = A X` for many frames at once,
//! [`CgPlan`] solves `A x = b` by conjugate gradient.
//!
//! ```
//! use ferrotile::{Arch, AtaOptions, Gpu, Precision, SymmetricBlockMatrix};
//! use ndarray::{Array3, arr3};
//!
//! let gpu = Gpu::emulated(Arch::Sm80);
//! let stream = gpu.new_stream()?;
//! // 2 on the diagonal and -1 beside it: the second difference.
//! let diagonals = arr3(&[[[2.0_f32; 100], [-1.0; 100]]]); // channels, upper diagonals, n
//! let matrix = SymmetricBlockMatrix::from_diagonals(100, &[0, 1], diagonals.view())?;
//! let matrix = matrix.upload_blocking(&stream, Precision::Tf32)?;
//! let x = Array3::ones((8, 1, 100)); // frames, channels, n
//! let y = matrix.multiply_array_blocking(&stream, x.view(), &AtaOptions::default())?;
//! assert_eq!((y[[0, 0, 0]], y[[0, 0, 50]]), (1.0, 0.0));
//! # Ok::<(), ferrotile::Error>(())
//! ```
//!
//! # Where it runs
//!
//! | device | what runs |
//! | --- | --- |
//! | sm_80 and later | every family; attention and GEMM on `mma.sync` |
//! | sm_90 (Hopper) | attention and GEMM on `wgmma`, with tiles copied by TMA |
//! | [`Gpu::emulated`] | the same PTX on any CPU, hundreds of times slower, with checks that a card does not make |
//!
//! | feature | default | what it brings |
//! | --- | --- | --- |
//! | `sm80`, `sm89`, `sm90` | on | the PTX of that architecture |
//! | `emulator` | on | [`Gpu::emulated`] and [`Gpu::counted`] |
//! | `ladder` | off | the teaching kernels of `docs/wgmma.md` |
//!
//! # Streams and waiting
//!
//! Every call that enqueues work takes a stream and returns before the work is done. Only functions whose name says so
//! (`.._blocking`, `synchronize`) wait. Dropping a [`Buffer`], a [`PinnedBuffer`] or the last clone of a [`Module`]
//! waits too, for the work that may use it.
//!
//! # Bindings
//!
//! Memory and streams of other libraries come in through [`TensorRef::from_raw`] and [`StreamRef::from_raw`]. Where the
//! element type is known at run time only, plans take [`RawTensor`]s: [`AttentionPlan::run_raw`],
//! [`MergePlan::run_raw`],
//! [`GemmPlan::run_raw`].
//!
//! # Building without a CUDA toolkit
//!
//! Neither building nor starting a program needs CUDA. The driver (`libcuda.so.1`, Linux) is loaded on first use, and
//! [`Gpu::new`] says so where there is none.
//!
//! But the crate `cust`, which this one uses, looks for a toolkit while it builds, unless the environment variable
//! `CUDA_LIBRARY_PATH` names a folder in its place. This workspace sets the variable in `.cargo/config.toml`. Where no
//! toolkit is installed, a crate that depends on this one does the same:
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
    Preconditioner, SymmetricBlockMatrix, ata_kernels,
};
pub use attention::{
    AttentionOperands, AttentionOptions, AttentionParams, AttentionPlan, AttentionProblem, AttentionTensors,
    BatchedSizes, Keys, Layout, MergePlan, MergeTensors, PagedSizes, PagedTensors, PartialAttention,
    RawAttentionTensors, RawKeys, RawMergeTensors, VarlenSizes, VarlenTensors, attention, attention_kernels,
    attention_varlen, merge, paged_attention,
};
pub use backend::LaunchConfig;
pub use element::{Element, ElementType, F8E4M3, F8E5M2, Float};
pub use error::{Breakdown, BreakdownCause, DriverError, Error, Result};
pub use gemm::{GemmOptions, GemmPlan, GemmProblem, GemmTensors, RawGemmTensors, RawScale, Scale, gemm, gemm_kernels};
#[cfg(feature = "ladder")]
pub use ladder::LadderPlan;
pub use layout::arch::ParseArchError;
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
pub use variants::ata::{ParsePrecisionError, Precision};
pub use variants::attention::{Mask, ParseMaskError};
pub use variants::gemm::{Accumulation, Activation, GemmLayout, ParseGemmLayoutError};
#[cfg(feature = "ladder")]
pub use variants::ladder::LadderStep;

/// What an emulated device counts: see [`Gpu::counted`].
#[cfg(feature = "emulator")]
pub mod counters {
    pub use ptx_emulator::counters::{Counters, Counts, GlobalTraffic, InstructionCounts, SharedTraffic};
    pub use ptx_emulator::{Class, LaunchShape, PtxLine, RustLine};
}
