//! GEMM: `D = activation(alpha * A B + beta * C + bias)`, for each entry of a batch.
//!
//! ```no_run
//! use ferrotile::{Buffer, GemmLayout, GemmOptions, GemmTensors, Gpu, TensorMut, TensorRef, gemm};
//! use half::f16;
//!
//! # fn main() -> ferrotile::Result<()> {
//! let gpu = Gpu::new(0)?;
//! let stream = gpu.new_stream()?;
//! let (m, n, k) = (128, 512, 256);
//! let a = Buffer::upload_blocking(&stream, &vec![f16::ONE; m * k])?;
//! let b = Buffer::upload_blocking(&stream, &vec![f16::ONE; n * k])?; // stored n x k, as the weights of a linear layer
//! let mut d = Buffer::<f16>::zeroed(&gpu, m * n)?;
//! let tensors = GemmTensors::new(
//!     TensorRef::contiguous(&a, [1, m, k])?,
//!     TensorRef::contiguous(&b, [1, n, k])?,
//!     TensorMut::contiguous(&mut d, [1, m, n])?,
//! );
//! gemm(stream.as_ref(), tensors, &GemmOptions::new(GemmLayout::Nt))?;
//! assert!(d.download_blocking(&stream)?.iter().all(|&sum| sum == f16::from_f32(256.0)));
//! # Ok(())
//! # }
//! ```

mod choice;
mod plan;
mod tensors;

use layout::Dtype;
use layout::descriptor::Major;
use variants::gemm::{Accumulation, Activation, GEMM, GemmConfig, GemmLayout, MAX_DIM};

use crate::element::Float;
use crate::error::{Error, Result};
use crate::runtime::stream::StreamRef;

pub use plan::GemmPlan;
pub use tensors::{GemmTensors, Scale};

const OP: &str = "gemm";

/// How to compute a product.
#[derive(Debug, Clone, PartialEq)]
pub struct GemmOptions {
    /// How A and B are stored.
    pub layout: GemmLayout,
    /// What the product is multiplied by. With 0, neither A and B nor their scales are read, as in BLAS: NaN and
    /// infinity in them do not reach D.
    pub alpha: f32,
    /// What C is multiplied by. With 0, C is not read; otherwise it must be there.
    pub beta: f32,
    /// What is applied to each element before it is rounded.
    pub activation: Activation,
    /// How exactly FP8 products are summed at least, by accumulators of 13 bits on some cards ([`Accumulation`]): a
    /// variant that sums them more exactly may run.
    pub accumulation: Accumulation,
    /// The compiled variant to run, by name; `None` picks one by the sizes.
    pub variant: Option<String>,
    /// The parts that k is cut into, each summed by blocks of its own; `None` picks by the sizes.
    pub splits: Option<usize>,
    /// Whether each kernel starts only when what is before it on the stream has ended. Otherwise, on sm_90, a kernel
    /// starts while the one before still runs, and waits for its results before it reads or writes anything.
    pub isolated: bool,
    /// The most workspace that a plan may ask for. With 0 sums are not cut into parts, and operands that would have to
    /// be copied first are refused where there is no other way.
    pub max_workspace_bytes: usize,
}

impl GemmOptions {
    /// `D = A B` without workspace.
    #[must_use]
    pub const fn new(layout: GemmLayout) -> Self {
        Self {
            layout,
            alpha: 1.0,
            beta: 0.0,
            activation: Activation::None,
            accumulation: Accumulation::TwoLevel,
            variant: None,
            splits: None,
            isolated: false,
            max_workspace_bytes: 0,
        }
    }

    /// Whether products take these numbers; [`GemmPlan::new`] checks it too. Needs no card. The variant is not looked
    /// at.
    ///
    /// # Errors
    /// [`Error::Argument`] that names the option and what is allowed.
    pub fn check(&self) -> Result<()> {
        let refused = |argument, got: String, expected: &str| {
            Err(Error::Argument { op: OP, argument, got, expected: expected.to_owned() })
        };
        for (argument, factor) in [("alpha", self.alpha), ("beta", self.beta)] {
            if !factor.is_finite() {
                return refused(argument, factor.to_string(), "a finite number");
            }
        }
        if self.splits == Some(0) {
            return refused("splits", "0".to_owned(), "at least 1, or none");
        }
        Ok(())
    }
}

/// The sizes and types of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GemmProblem {
    /// Products.
    pub batch: usize,
    /// Rows of A and D.
    pub m: usize,
    /// Columns of B and D.
    pub n: usize,
    /// Columns of A and rows of B.
    pub k: usize,
    /// Element type of A.
    pub a: Dtype,
    /// Element type of B.
    pub b: Dtype,
    /// Element type of C and D.
    pub d: Dtype,
    /// Whether every contiguous row or column of A starts on a 16-byte boundary, batch entries included.
    pub a_aligned: bool,
    /// Whether those of B do.
    pub b_aligned: bool,
}

impl GemmProblem {
    /// The problem of one product of aligned operands.
    #[must_use]
    pub const fn new([m, n, k]: [usize; 3], a: Dtype, b: Dtype, d: Dtype) -> Self {
        Self { batch: 1, m, n, k, a, b, d, a_aligned: true, b_aligned: true }
    }

    /// The problem that the tensors are, with A and B stored in `layout`.
    ///
    /// # Errors
    /// [`Error::Shape`] where they do not fit together.
    pub fn of<A: Float, B: Float, D: Float>(tensors: &GemmTensors<'_, A, B, D>, layout: GemmLayout) -> Result<Self> {
        let [batch, m, n] = *tensors.d.shape();
        let k = tensors.a.shape()[if layout.a() == Major::K { 2 } else { 1 }];
        let [a_aligned, b_aligned] = [
            tensors::rows_aligned::<A>(tensors.a.as_raw(), tensors.a.shape(), tensors.a.strides()),
            tensors::rows_aligned::<B>(tensors.b.as_raw(), tensors.b.shape(), tensors.b.strides()),
        ];
        let problem = Self { batch, m, n, k, a: A::DTYPE, b: B::DTYPE, d: D::DTYPE, a_aligned, b_aligned };
        tensors.check_shapes(&problem, layout)?;
        Ok(problem)
    }

    /// The shape of A as it is stored: `[batch, m, k]` or `[batch, k, m]`.
    #[must_use]
    pub fn a_shape(&self, layout: GemmLayout) -> [usize; 3] {
        match layout.a() {
            Major::K => [self.batch, self.m, self.k],
            Major::Mn => [self.batch, self.k, self.m],
        }
    }

    /// The shape of B as it is stored: `[batch, k, n]` or `[batch, n, k]`.
    #[must_use]
    pub fn b_shape(&self, layout: GemmLayout) -> [usize; 3] {
        match layout.b() {
            Major::K => [self.batch, self.n, self.k],
            Major::Mn => [self.batch, self.k, self.n],
        }
    }

    /// The shape of C and D.
    #[must_use]
    pub const fn d_shape(&self) -> [usize; 3] {
        [self.batch, self.m, self.n]
    }

    /// Floating-point operations: a multiplication and an addition for each term of a sum.
    #[must_use]
    pub fn flops(&self) -> f64 {
        2.0 * self.batch as f64 * self.m as f64 * self.n as f64 * self.k as f64
    }

    /// Whether GEMM takes these sizes and types; [`GemmPlan::new`] checks it too. Needs no card.
    ///
    /// # Errors
    /// [`Error::Argument`] that names the size or type and what is allowed, [`Error::NoVariant`] for types of A and B
    /// that are never multiplied.
    pub fn check(&self) -> Result<()> {
        for (argument, size) in [("m", self.m), ("n", self.n), ("k", self.k), ("batch", self.batch)] {
            if size > MAX_DIM {
                let (got, expected) = (size.to_string(), format!("at most {MAX_DIM}"));
                return Err(Error::Argument { op: OP, argument, got, expected });
            }
        }
        if !GEMM.iter().any(|row| row.a == self.a && row.b == self.b) {
            return Err(no_variant(self));
        }
        let fp8 = self.a.size_bytes() == 1;
        let stored = match self.d {
            Dtype::F16 | Dtype::Bf16 | Dtype::F32 => true,
            Dtype::E4M3 => fp8,
            Dtype::E5M2 => false,
        };
        if !stored {
            let expected = "f16, bf16 or f32, or e4m3 where A and B are FP8".to_owned();
            return Err(Error::Argument { op: OP, argument: "type of D", got: self.d.to_string(), expected });
        }
        Ok(())
    }
}

fn no_variant(problem: &GemmProblem) -> Error {
    let mut compiled: Vec<Dtype> = GEMM.iter().filter(|row| row.b == problem.b).map(|row| row.a).collect();
    if compiled.is_empty() {
        compiled = GEMM.iter().map(|row| row.a).collect();
    }
    compiled.dedup();
    Error::NoVariant { op: OP, dtype: problem.a, compiled }
}

/// The compiled variants that multiply these types and sum them at least as exactly, whatever layout they take.
pub fn gemm_variants(a: Dtype, b: Dtype, accumulation: Accumulation) -> impl Iterator<Item = &'static GemmConfig> {
    GEMM.iter().filter(move |variant| variant.multiplies(a, b, accumulation))
}

/// Computes `D = activation(alpha * A B + beta * C + bias)` on `stream` and returns before it is done.
///
/// For each entry of the batch A is m x k, B is k x n, C and D are m x n; [`GemmOptions::layout`] says how A and B are
/// stored, and the last dimension of every tensor is contiguous. Every size may be 0: without terms a sum is 0. C may
/// be what D holds: [`GemmTensors::accumulating`]. Sums are f32; FP8 products are summed as
/// [`GemmOptions::accumulation`] says. The result is the same, bit by bit, in every run of one plan.
///
/// This call uses no workspace; [`GemmPlan`] does where it is faster, and is what repeated products use.
///
/// # Errors
/// Before anything is enqueued: [`Error::Shape`], [`Error::Argument`], [`Error::NoVariant`], [`Error::Unsupported`],
/// [`Error::UnknownVariant`] or [`Error::WrongDevice`] for tensors or options that do not fit, such as a beta other
/// than 0 without C; and [`Error::ForeignCapture`]. Then [`Error::Driver`] where the driver refuses the launch.
pub fn gemm<A: Float, B: Float, D: Float>(
    stream: StreamRef<'_>,
    tensors: GemmTensors<'_, A, B, D>,
    options: &GemmOptions,
) -> Result<()> {
    let problem = GemmProblem::of(&tensors, options.layout)?;
    let options = GemmOptions { max_workspace_bytes: 0, ..options.clone() };
    GemmPlan::new(stream.gpu(), &problem, &options)?.run(stream, tensors, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROBLEM: GemmProblem = GemmProblem::new([64, 96, 32], Dtype::F16, Dtype::F16, Dtype::F32);

    #[test]
    fn shapes_are_as_stored() {
        assert_eq!((PROBLEM.a_shape(GemmLayout::Nn), PROBLEM.b_shape(GemmLayout::Nn)), ([1, 64, 32], [1, 32, 96]));
        assert_eq!((PROBLEM.a_shape(GemmLayout::Tt), PROBLEM.b_shape(GemmLayout::Tt)), ([1, 32, 64], [1, 96, 32]));
    }

    #[test]
    fn sizes_and_types_that_no_variant_takes_are_named() {
        assert_eq!(PROBLEM.check(), Ok(()));
        let argument = |problem: GemmProblem| match problem.check() {
            Err(Error::Argument { argument, .. }) => argument,
            other => panic!("{other:?}"),
        };
        assert_eq!(argument(GemmProblem { k: MAX_DIM + 1, ..PROBLEM }), "k");
        assert_eq!(argument(GemmProblem { d: Dtype::E4M3, ..PROBLEM }), "type of D");
        let mixed = GemmProblem { b: Dtype::Bf16, ..PROBLEM };
        assert_eq!(mixed.check(), Err(Error::NoVariant { op: OP, dtype: Dtype::F16, compiled: vec![Dtype::Bf16] }));
        assert!(matches!(GemmProblem { a: Dtype::F32, ..PROBLEM }.check(), Err(Error::NoVariant { .. })));
    }
}
