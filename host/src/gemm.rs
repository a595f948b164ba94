//! GEMM: `D = activation(alpha * A B + beta * C + bias)`, for each entry of a batch.

mod choice;
mod options;
mod plan;
mod problem;
mod tensors;

pub use choice::gemm_kernels;
pub use options::GemmOptions;
pub use plan::GemmPlan;
pub use problem::GemmProblem;
pub use tensors::{GemmTensors, RawGemmTensors, RawScale, Scale};

use crate::element::Float;
use crate::error::Result;
use crate::runtime::stream::StreamRef;

/// Computes `D = activation(alpha * A B + beta * C + bias)` on `stream` and returns before it is done.
///
/// For each entry of the batch A is m x k, B is k x n, C and D are m x n; [`GemmOptions::layout`] says how A and B are
/// stored, and the last dimension of every tensor is contiguous. Every size may be 0: without terms a sum is 0. C may
/// be what D holds: [`GemmTensors::accumulating`]. Sums are f32; FP8 products are summed as
/// [`GemmOptions::accumulation`] says. The result is the same, bit by bit, in every run of one plan.
///
/// This call uses no workspace; [`GemmPlan`] does where it is faster, and is what repeated products use.
///
/// ```
/// use ferrotile::{Arch, Buffer, GemmLayout, GemmOptions, GemmTensors, Gpu, TensorMut, TensorRef, gemm};
/// use half::f16;
///
/// let gpu = Gpu::emulated(Arch::Sm80); // or Gpu::new(0)?
/// let stream = gpu.new_stream()?;
/// let (m, n, k) = (16, 32, 64);
/// let a = Buffer::upload_blocking(&stream, &vec![f16::ONE; m * k])?;
/// let b = Buffer::upload_blocking(&stream, &vec![f16::ONE; n * k])?; // n x k, as the weights of a linear layer
/// let mut d = Buffer::<f16>::zeroed(&gpu, m * n)?;
/// let tensors = GemmTensors::new(
///     TensorRef::contiguous(&a, [1, m, k])?,
///     TensorRef::contiguous(&b, [1, n, k])?,
///     TensorMut::contiguous(&mut d, [1, m, n])?,
/// );
/// gemm(&stream, tensors, &GemmOptions::new(GemmLayout::Nt))?;
/// assert!(d.download_blocking(&stream)?.iter().all(|&sum| sum == f16::from_f32(64.0)));
/// # Ok::<(), ferrotile::Error>(())
/// ```
///
/// # Errors
/// Before anything is enqueued: [`Error::Shape`], [`Error::Argument`], [`Error::UnsupportedType`],
/// [`Error::Unsupported`], [`Error::UnknownKernel`] or [`Error::WrongDevice`] for tensors or options that do not fit,
/// such as a beta other than 0 without C; and [`Error::ForeignCapture`]. Then [`Error::Driver`] where the driver
/// refuses the launch.
///
/// [`Error::Shape`]: crate::Error::Shape
/// [`Error::Argument`]: crate::Error::Argument
/// [`Error::UnsupportedType`]: crate::Error::UnsupportedType
/// [`Error::Unsupported`]: crate::Error::Unsupported
/// [`Error::UnknownKernel`]: crate::Error::UnknownKernel
/// [`Error::WrongDevice`]: crate::Error::WrongDevice
/// [`Error::ForeignCapture`]: crate::Error::ForeignCapture
/// [`Error::Driver`]: crate::Error::Driver
pub fn gemm<'s, A: Float, B: Float, D: Float>(
    stream: impl Into<StreamRef<'s>>,
    tensors: GemmTensors<'_, A, B, D>,
    options: &GemmOptions,
) -> Result<()> {
    let stream = stream.into();
    let problem = GemmProblem::of(&tensors, options.layout)?;
    let options = GemmOptions { max_workspace_bytes: 0, ..options.clone() };
    GemmPlan::new(stream.gpu(), &problem, &options)?.run(stream, tensors, None)
}
