//! The tensors of a product, and what kernels are told of them.

use layout::descriptor::Major;
use variants::gemm::{CHUNK_BYTES, GemmLayout, GemmMatrix, GemmOperand};

use super::{GemmProblem, OP};
use crate::element::Float;
use crate::error::{Error, Result};
use crate::runtime::tensor::{TensorMut, TensorRef};

/// A factor for a whole tensor.
#[derive(Debug, Clone, Copy)]
pub enum Scale<'a> {
    /// A number.
    Value(f32),
    /// One number on the device, read when the kernel runs.
    Device(TensorRef<'a, f32, 1>),
}

impl Default for Scale<'_> {
    fn default() -> Self {
        Scale::Value(1.0)
    }
}

impl Scale<'_> {
    /// The number, or 1 where it is on the device.
    pub(super) fn value(&self) -> f32 {
        match self {
            Scale::Value(value) => *value,
            Scale::Device(_) => 1.0,
        }
    }

    /// The device address, or 0 where it is a number.
    pub(super) fn address(&self) -> u64 {
        match self {
            Scale::Value(_) => 0,
            Scale::Device(tensor) => tensor.as_raw(),
        }
    }
}

/// The tensors of a product: `D = activation(alpha * A B + beta * C + bias)`.
#[derive(Debug)]
pub struct GemmTensors<'a, A, B, D> {
    /// A: `[batch, m, k]`, or `[batch, k, m]` where the layout says t.
    pub a: TensorRef<'a, A, 3>,
    /// B: `[batch, k, n]`, or `[batch, n, k]` where the layout says t.
    pub b: TensorRef<'a, B, 3>,
    /// C: `[batch, m, n]`, which is there where beta is not 0, and not read where it is.
    /// [`GemmTensors::accumulating`] takes what D holds.
    pub c: Option<TensorRef<'a, D, 3>>,
    /// D: `[batch, m, n]`.
    pub d: TensorMut<'a, D, 3>,
    /// n numbers, one for each column, that are added to every row.
    pub bias: Option<TensorRef<'a, f32, 1>>,
    /// What A is multiplied by.
    pub a_scale: Scale<'a>,
    /// What B is multiplied by.
    pub b_scale: Scale<'a>,
    /// What D is multiplied by after the activation, before it is rounded.
    pub d_scale: Scale<'a>,
}

impl<'a, A: Float, B: Float, D: Float> GemmTensors<'a, A, B, D> {
    /// Those of `D = A B`.
    #[must_use]
    pub fn new(a: TensorRef<'a, A, 3>, b: TensorRef<'a, B, 3>, d: TensorMut<'a, D, 3>) -> Self {
        let [a_scale, b_scale, d_scale] = [Scale::default(); 3];
        Self { a, b, c: None, d, bias: None, a_scale, b_scale, d_scale }
    }

    /// The same, with what D holds before the product as C: `D = activation(alpha * A B + beta * D + bias)`.
    #[must_use]
    pub fn accumulating(self) -> Self {
        let d = &self.d;
        // SAFETY: the elements are those of D, which `self` holds; each is read by the thread that then writes it, and
        // by no other.
        let held = unsafe { TensorRef::from_raw(d.ordinal(), d.as_raw(), *d.shape(), *d.strides()) };
        Self { c: Some(held.expect("the last dimension of D is contiguous")), ..self }
    }

    /// The factors and their names.
    pub(super) const fn scales(&self) -> [(&'static str, &Scale<'a>); 3] {
        [("a_scale", &self.a_scale), ("b_scale", &self.b_scale), ("d_scale", &self.d_scale)]
    }

    /// Checks that they are those of the problem.
    pub(super) fn check_shapes(&self, problem: &GemmProblem, layout: GemmLayout) -> Result<()> {
        let check = |tensor, got: &[usize], expected: &[usize]| {
            if got == expected {
                return Ok(());
            }
            Err(Error::Shape { op: OP, tensor, got: got.to_vec(), expected: expected.to_vec() })
        };
        check("D", self.d.shape(), &problem.d_shape())?;
        check("A", self.a.shape(), &problem.a_shape(layout))?;
        check("B", self.b.shape(), &problem.b_shape(layout))?;
        if let Some(c) = &self.c {
            check("C", c.shape(), &problem.d_shape())?;
        }
        if let Some(bias) = &self.bias {
            check("bias", bias.shape(), &[problem.n])?;
        }
        for (tensor, scale) in self.scales() {
            if let Scale::Device(scale) = scale {
                check(tensor, scale.shape(), &[1])?;
            }
        }
        Ok(())
    }

    /// Checks that all of them are on the device of this number.
    pub(super) fn check_devices(&self, expected: u32) -> Result<()> {
        let of_scales = self.scales().into_iter().filter_map(|(what, scale)| match scale {
            Scale::Value(_) => None,
            Scale::Device(tensor) => Some((what, tensor.ordinal())),
        });
        let all = [("A", self.a.ordinal()), ("B", self.b.ordinal()), ("D", self.d.ordinal())];
        let optional = [
            self.c.as_ref().map(|tensor| ("C", tensor.ordinal())),
            self.bias.as_ref().map(|tensor| ("bias", tensor.ordinal())),
        ];
        match all.into_iter().chain(optional.into_iter().flatten()).chain(of_scales).find(|&(_, got)| got != expected) {
            Some((what, got)) => Err(Error::WrongDevice { what, got, expected }),
            None => Ok(()),
        }
    }
}

/// Whether every row of a tensor starts on a boundary of the chunks that kernels copy.
pub(super) fn rows_aligned<T: Float>(address: u64, shape: &[usize; 3], strides: &[i64; 3]) -> bool {
    let step = (CHUNK_BYTES / T::DTYPE.size_bytes()) as i64;
    let steps = || shape.iter().zip(strides).take(2).filter(|&(&len, _)| len > 1).map(|(_, &stride)| stride);
    // Tensor maps know no steps backwards, and none from a row to itself.
    let forwards = shape[1] <= 1 || shape[2] == 0 || strides[1] > 0;
    address.is_multiple_of(CHUNK_BYTES as u64) && forwards && steps().all(|stride| stride >= 0 && stride % step == 0)
}

/// The stride along a dimension, or 0 for a dimension of one element. Copies form the addresses of rows beyond the
/// last. They do not read them, but the addresses must be aligned like all others.
fn taken(len: usize, stride: i64) -> i64 {
    if len > 1 { stride } else { 0 }
}

/// A or B as kernels see it, stored with `major` contiguous.
pub(super) fn operand(address: u64, shape: &[usize; 3], strides: &[i64; 3], major: Major) -> GemmOperand {
    let (batch_stride, row_stride) = (taken(shape[0], strides[0]), taken(shape[1], strides[1]));
    let (mn_stride, k_stride) = match major {
        Major::K => (row_stride, 1),
        Major::Mn => (1, row_stride),
    };
    GemmOperand { address, batch_stride, mn_stride, k_stride }
}

/// C or D as kernels see it.
pub(super) fn matrix(address: u64, shape: &[usize; 3], strides: &[i64; 3]) -> GemmMatrix {
    GemmMatrix { address, batch_stride: taken(shape[0], strides[0]), row_stride: taken(shape[1], strides[1]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn rows_are_aligned_where_address_and_the_strides_in_use_are() {
        assert!(rows_aligned::<f16>(256, &[2, 3, 17], &[72, 24, 1]));
        assert!(!rows_aligned::<f16>(264, &[2, 3, 17], &[72, 24, 1]));
        assert!(!rows_aligned::<f16>(256, &[2, 3, 17], &[51, 17, 1]));
        assert!(rows_aligned::<f16>(256, &[1, 1, 17], &[51, 17, 1]), "a dimension of one is never stepped along");
        assert!(rows_aligned::<f16>(256, &[1, 8, 0], &[0, 0, 1]), "rows without elements lie anywhere");
        assert!(!rows_aligned::<f32>(256, &[1, 2, 17], &[51, 17, 1]));
    }

    #[test]
    fn operands_have_their_strides_in_the_order_of_the_formula() {
        let k_major = operand(16, &[2, 3, 5], &[100, 7, 1], Major::K);
        assert_eq!((k_major.batch_stride, k_major.mn_stride, k_major.k_stride), (100, 7, 1));
        let mn_major = operand(16, &[1, 1, 5], &[100, 7, 1], Major::Mn);
        assert_eq!((mn_major.batch_stride, mn_major.mn_stride, mn_major.k_stride), (0, 1, 0));
    }
}
