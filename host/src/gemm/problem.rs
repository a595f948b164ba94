//! The sizes and types of products.

use layout::Dtype;
use layout::descriptor::Major;
use variants::gemm::{GEMM, GemmLayout, MAX_DIM};

use crate::checks::argument;
use crate::error::{Error, Result};

/// What errors call the operation.
pub(super) const OP: &str = "gemm";

/// The sizes and types of a product.
///
/// ```
/// use ferrotile::{Dtype, GemmLayout, GemmProblem};
///
/// let problem = GemmProblem::new([128, 512, 256], Dtype::Bf16, Dtype::Bf16, Dtype::F32);
/// problem.check()?;
/// assert_eq!(problem.b_shape(GemmLayout::Nt), [1, 512, 256]);
/// assert_eq!(problem.flops(), 2.0 * 128.0 * 512.0 * 256.0);
/// # Ok::<(), ferrotile::Error>(())
/// ```
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

    /// Whether GEMM takes these sizes and types; [`GemmPlan::new`](crate::GemmPlan::new) checks it too. Needs no card.
    ///
    /// # Errors
    /// [`Error::Argument`] that names the size or type and what is allowed, [`Error::UnsupportedType`] for types of A
    /// and B that are never multiplied.
    pub fn check(&self) -> Result<()> {
        for (name, size) in [("m", self.m), ("n", self.n), ("k", self.k), ("batch", self.batch)] {
            if size > MAX_DIM {
                return Err(argument(OP, name, size, format!("at most {MAX_DIM}")));
            }
        }
        if !GEMM.iter().any(|config| config.a == self.a && config.b == self.b) {
            return Err(unsupported_type(self));
        }
        let fp8 = self.a.size_bytes() == 1;
        let stored = match self.d {
            Dtype::F16 | Dtype::Bf16 | Dtype::F32 => true,
            Dtype::E4M3 => fp8,
            Dtype::E5M2 | Dtype::U8 => false,
        };
        if !stored {
            return Err(argument(OP, "type of D", self.d, "f16, bf16 or f32, or e4m3 where A and B are FP8"));
        }
        Ok(())
    }
}

fn unsupported_type(problem: &GemmProblem) -> Error {
    let mut compiled: Vec<Dtype> = GEMM.iter().filter(|config| config.b == problem.b).map(|config| config.a).collect();
    if compiled.is_empty() {
        compiled = GEMM.iter().map(|config| config.a).collect();
    }
    compiled.dedup();
    Error::UnsupportedType { op: OP, dtype: problem.a, compiled }
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
    fn sizes_and_types_that_no_kernel_takes_are_named() {
        assert_eq!(PROBLEM.check(), Ok(()));
        let named = |problem: GemmProblem| match problem.check() {
            Err(Error::Argument { argument, .. }) => argument,
            other => panic!("{other:?}"),
        };
        assert_eq!(named(GemmProblem { k: MAX_DIM + 1, ..PROBLEM }), "k");
        assert_eq!(named(GemmProblem { d: Dtype::E4M3, ..PROBLEM }), "type of D");
        let mixed = GemmProblem { b: Dtype::Bf16, ..PROBLEM };
        assert_eq!(
            mixed.check(),
            Err(Error::UnsupportedType { op: OP, dtype: Dtype::F16, compiled: vec![Dtype::Bf16] })
        );
        assert!(matches!(GemmProblem { a: Dtype::F32, ..PROBLEM }.check(), Err(Error::UnsupportedType { .. })));
    }
}
