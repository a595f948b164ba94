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
//! | `sm80`, `sm89`, `sm90` | on | the PTX of that architecture. A card needs that of its own or an older one |
//! | `emulator` | on | [`Gpu::emulated`] and [`Gpu::counted`] |
//! | `cust` | off | contexts, streams and memory of the crate cust |
//! | `cudarc` | off | contexts, streams and memory of the crate cudarc |
//! | `ladder` | off | the teaching kernels of `docs/wgmma.md` |
//! | `study` | off | the kernels of `docs/wmma.md`, which differ from the library's in one choice; callers may name them |
//!
//! Neither building nor starting a program needs CUDA. The driver (`libcuda.so.1`, on Windows `nvcuda.dll`) is loaded
//! on first use, and [`Gpu::new`] says so where there is none. Without the feature `cust` a program or plug-in neither
//! exports nor wants a symbol of the driver.
//!
//! # Streams and waiting
//!
//! Every call that enqueues work takes a stream and returns before the work is done. Only functions whose name says so
//! (`.._blocking`, `synchronize`) wait. Dropping a [`Buffer`], a [`PinnedBuffer`] or the last clone of a [`Module`]
//! waits too, for the work that may use it.
//!
//! # cust, cudarc and other libraries
//!
//! All of them use the primary context of a card, so streams and memory of one are valid in the others.
//!
//! | | comes in | goes out |
//! | --- | --- | --- |
//! | cust | `Gpu::from_cust`, `StreamRef::try_from`, `BufferSlice::from_cust`, `Buffer::from_cust` | `Gpu::cust_context`, `as_cust` of `Stream`, `Event` and `Module`, `Buffer::into_cust_blocking` |
//! | cudarc | `Gpu::from_cudarc`, `StreamRef::try_from`, `CudarcSlice`, `CudarcSliceMut` | |
//! | any other | [`StreamRef::from_raw`], [`TensorRef::from_raw`], [`TensorMut::from_raw`] | `as_raw` of streams and memory |
//!
//! With the feature `cust` the library makes its own objects with cust. cust's build script looks for a CUDA toolkit.
//! Where there is none, the variable `CUDA_LIBRARY_PATH` names a folder in its place: `host/stub` of this repository.
//! A tensor and a stream of cust:
//!
#![cfg_attr(feature = "cust", doc = "```no_run")]
#![cfg_attr(not(feature = "cust"), doc = "```ignore")]
//! use cust::memory::DeviceBuffer;
//! use cust::stream::{Stream, StreamFlags};
//! use ferrotile::{BufferSlice, Gpu, StreamRef, TensorRef};
//! use half::f16;
//!
//! let context = cust::quick_init()?;
//! let stream = Stream::new(StreamFlags::DEFAULT, None)?;
//! let memory = DeviceBuffer::from_slice(&[f16::ONE.to_bits(); 64])?; // cust knows no f16 of half 2
//!
//! let gpu = Gpu::from_cust(&context)?;
//! // SAFETY: the memory outlives the work that is given the slice.
//! let slice = unsafe { BufferSlice::from_cust(&gpu, &memory) }.cast::<f16>();
//! let q = TensorRef::of_slice(slice, [1, 1, 1, 64])?;
//! let stream = StreamRef::try_from(&stream)?;
//! # let _ = (q, stream);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The same of cudarc, which knows by the `CudarcSlice` until when the memory is used:
//!
#![cfg_attr(feature = "cudarc", doc = "```no_run")]
#![cfg_attr(not(feature = "cudarc"), doc = "```ignore")]
//! use cudarc::driver::CudaContext;
//! use ferrotile::{CudarcSlice, StreamRef, TensorRef};
//! use half::f16;
//!
//! let context = CudaContext::new(0)?;
//! let stream = context.new_stream()?;
//! let memory = stream.clone_htod(&[f16::ONE; 64])?;
//!
//! // SAFETY: the work that is given the slice is enqueued on `stream` before the slice is dropped.
//! let slice = unsafe { CudarcSlice::new(&memory, &stream) }?;
//! let q = TensorRef::of_slice(slice.as_slice(), [1, 1, 1, 64])?;
//! let stream = StreamRef::try_from(&*stream)?;
//! # let _ = (q, stream);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `host/examples` has a whole call of each: `cust_attention.rs` and `cudarc_attention.rs`.
//!
//! Where the element type is known at run time only, plans take [`RawTensor`]s: [`AttentionPlan::run_raw`],
//! [`MergePlan::run_raw`], [`GemmPlan::run_raw`], [`AtaPlan::run_raw`].
//!
//! # Building
//!
//! The package of the registry has its PTX in it, and stable Rust builds it. A clone of the repository compiles the
//! kernels with the nightly that it names, unless the variable `FERROTILE_PTX` names a folder of their PTX. In a clone
//! `cargo xtask build --arch all --out FOLDER` writes such a folder, and `cargo xtask package` archives of one.

mod ata;
mod attention;
mod backend;
mod checks;
mod element;
mod error;
mod gemm;
mod interop;
#[cfg(feature = "ladder")]
mod ladder;
mod quantize;
pub mod reference;
mod rotary;
mod runtime;
pub mod tolerance;

pub use ata::{
    AtaOptions, AtaPlan, CgOptions, CgOutcome, CgPlan, CgReport, CgSystem, DeviceBlockMatrix, PairClasses,
    Preconditioner, SymmetricBlockMatrix, ata_kernels,
};
pub use attention::{
    AttentionOperands, AttentionOptions, AttentionParams, AttentionPlan, AttentionProblem, AttentionTensors,
    BatchedSizes, Descales, Keys, Layout, MergePlan, MergeTensors, PagedSizes, PagedTensors, PartialAttention,
    RawAttentionTensors, RawKeys, RawMergeTensors, VarlenSizes, VarlenTensors, attention, attention_kernels,
    attention_varlen, merge, paged_attention,
};
pub use backend::LaunchConfig;
pub use element::{Element, ElementType, F8E4M3, F8E5M2, Float};
pub use error::{Breakdown, BreakdownCause, DriverError, Error, Result};
/// Makes a struct a parameter of kernels: see the trait [`KernelParam`](trait@KernelParam).
pub use ferrotile_derive::KernelParam;
pub use gemm::{GemmOptions, GemmPlan, GemmProblem, GemmTensors, RawGemmTensors, RawScale, Scale, gemm, gemm_kernels};
#[cfg(feature = "cudarc")]
pub use interop::cudarc::{CudarcSlice, CudarcSliceMut};
#[cfg(feature = "ladder")]
pub use ladder::LadderPlan;
pub use layout::arch::ParseArchError;
pub use layout::swizzle::Swizzle;
pub use layout::{Arch, Dtype, Entry};
#[cfg(feature = "emulator")]
pub use ptx_emulator::Fp8Sums;
pub use quantize::{DequantizePlan, DequantizeTensors, QuantizePlan, QuantizeTensors, dequantize, quantize};
pub use rotary::frequencies::{RotaryFrequencies, RotaryScaling};
pub use rotary::tensors::{RawRotaryCache, RawRotaryTensors, RotaryTensors};
pub use rotary::{RotaryPlan, rotary};
pub use runtime::buffer::{Buffer, PinnedBuffer};
pub use runtime::buffer_slice::{BufferSlice, BufferSliceMut};
pub use runtime::gpu::Gpu;
pub use runtime::module::{Kernel, KernelAttributes, KernelFacts, KernelName, Module};
pub use runtime::param::{KernelParam, KernelValue};
pub use runtime::ptx::{embedded_kernels, embedded_ptx, kernel_ptx};
pub use runtime::raw_tensor::RawTensor;
pub use runtime::stream::{Event, Graph, Stream, StreamRef};
pub use runtime::tensor::{TensorMut, TensorRef};
pub use runtime::tensor_map::TensorMap;
pub use runtime::typed::{Argument, Arguments, TypedKernel};
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
