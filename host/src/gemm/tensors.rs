//! The tensors of a product, and what kernels are told of them.

use layout::descriptor::Major;
use variants::gemm::{GemmLayout, GemmMatrix, GemmOperand};

use super::problem::{GemmProblem, OP};
use crate::checks::{has_element_type, has_shape, has_type, rows_aligned, same_devices};
use crate::element::{ElementType, Float};
use crate::error::Result;
use crate::runtime::raw_tensor::RawTensor;
use crate::runtime::tensor::{TensorMut, TensorRef};

/// A factor for a whole tensor. The product of alpha and the scales of A and B is rounded to f32, where one below
/// 2^-149 is 0.
///
/// ```
/// use ferrotile::Scale;
///
/// assert!(matches!(Scale::default(), Scale::Value(1.0)));
/// ```
#[derive(Debug, Clone, Copy)]
pub enum Scale<'a> {
    /// A number.
    Value(f32),
    /// One number on the device, read when the kernel runs. The kernel multiplies it by alpha and the other scale
    /// first: a product beyond f32 makes D infinite or NaN, where [`Scale::Value`] is refused.
    Device(TensorRef<'a, f32, 1>),
}

impl Default for Scale<'_> {
    fn default() -> Self {
        Scale::Value(1.0)
    }
}

impl Scale<'_> {
    fn erased(&self) -> RawScale {
        match self {
            Scale::Value(value) => RawScale::Value(*value),
            Scale::Device(tensor) => RawScale::Device(tensor.erased()),
        }
    }
}

/// The tensors of a product: `D = activation(alpha * A B + beta * C + bias)`.
///
/// ```
/// # use ferrotile::{Arch, Gpu};
/// # let gpu = Gpu::emulated(Arch::Sm80);
/// # let stream = gpu.new_stream()?;
///
/// use ferrotile::{Buffer, GemmTensors, Scale, TensorMut, TensorRef};
/// use half::f16;
///
/// let operand = Buffer::<f16>::zeroed(&gpu, 64)?;
/// let mut d = Buffer::<f32>::zeroed(&gpu, 64)?;
/// let (a, d) = (TensorRef::contiguous(&operand, [1, 8, 8])?, TensorMut::contiguous(&mut d, [1, 8, 8])?);
/// // A product whose D is halved before it is rounded.
/// let tensors = GemmTensors { d_scale: Scale::Value(0.5), ..GemmTensors::new(a, a, d) };
/// # let _ = tensors;
/// # Ok::<(), ferrotile::Error>(())
/// ```
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

    /// The same tensors without types and borrows.
    pub(super) fn erased(&self) -> RawGemmTensors {
        RawGemmTensors {
            a: self.a.erased(),
            b: self.b.erased(),
            c: self.c.as_ref().map(TensorRef::erased),
            d: self.d.erased(),
            bias: self.bias.as_ref().map(TensorRef::erased),
            a_scale: self.a_scale.erased(),
            b_scale: self.b_scale.erased(),
            d_scale: self.d_scale.erased(),
        }
    }
}

impl GemmProblem {
    /// The problem that the tensors are, with A and B stored in `layout`.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) where they do not fit together.
    pub fn of<A: Float, B: Float, D: Float>(tensors: &GemmTensors<'_, A, B, D>, layout: GemmLayout) -> Result<Self> {
        let [batch, m, n] = *tensors.d.shape();
        let k = tensors.a.shape()[if layout.a() == Major::K { 2 } else { 1 }];
        let erased = tensors.erased();
        let (a_aligned, b_aligned) = (rows_copyable(&erased.a), rows_copyable(&erased.b));
        let problem = Self { batch, m, n, k, a: A::DTYPE, b: B::DTYPE, d: D::DTYPE, a_aligned, b_aligned };
        erased.check_shapes(&problem, layout)?;
        Ok(problem)
    }
}

/// A factor for a whole erased tensor, as [`Scale`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RawScale {
    /// A number.
    Value(f32),
    /// One f32 on the device, `[1]`, read when the kernel runs.
    Device(RawTensor),
}

impl RawScale {
    /// The number, or 1 where it is on the device.
    pub(super) const fn value(&self) -> f32 {
        match self {
            RawScale::Value(value) => *value,
            RawScale::Device(_) => 1.0,
        }
    }

    /// The device address, or 0 where it is a number.
    pub(super) const fn address(&self) -> u64 {
        match self {
            RawScale::Value(_) => 0,
            RawScale::Device(tensor) => tensor.as_raw(),
        }
    }

    const fn tensor(&self) -> Option<&RawTensor> {
        match self {
            RawScale::Value(_) => None,
            RawScale::Device(tensor) => Some(tensor),
        }
    }
}

/// The erased tensors of one product, for [`GemmPlan::run_raw`](crate::GemmPlan::run_raw): those of [`GemmTensors`].
///
/// ```
/// # use ferrotile::{Arch, Gpu};
/// # let gpu = Gpu::emulated(Arch::Sm80);
/// # let stream = gpu.new_stream()?;
///
/// use ferrotile::{
///     Buffer, Dtype, GemmLayout, GemmOptions, GemmPlan, GemmProblem, RawGemmTensors, RawScale, TensorMut, TensorRef,
/// };
/// use half::f16;
///
/// let problem = GemmProblem::new([16, 16, 16], Dtype::F16, Dtype::F16, Dtype::F32);
/// let plan = GemmPlan::new(&gpu, &problem, &GemmOptions::new(GemmLayout::Nn))?;
/// let ones = Buffer::upload_blocking(&stream, &[f16::ONE; 256])?;
/// let mut d = Buffer::<f32>::zeroed(&gpu, 256)?;
/// let a = TensorRef::contiguous(&ones, [1, 16, 16])?.erased();
/// let one = RawScale::Value(1.0);
/// let tensors = RawGemmTensors {
///     a, b: a, c: None, d: TensorMut::contiguous(&mut d, [1, 16, 16])?.erased(), bias: None,
///     a_scale: one, b_scale: one, d_scale: one,
/// };
/// // SAFETY: the buffers outlive the work, which the download waits for, and nothing else uses D.
/// unsafe { plan.run_raw(&stream, &tensors, None) }?;
/// assert_eq!(d.download_blocking(&stream)?, [16.0; 256]);
/// # Ok::<(), ferrotile::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RawGemmTensors {
    /// A.
    pub a: RawTensor,
    /// B.
    pub b: RawTensor,
    /// C, of the type of D; it may be D itself.
    pub c: Option<RawTensor>,
    /// D, which is written.
    pub d: RawTensor,
    /// The bias, of f32.
    pub bias: Option<RawTensor>,
    /// What A is multiplied by.
    pub a_scale: RawScale,
    /// What B is multiplied by.
    pub b_scale: RawScale,
    /// What D is multiplied by.
    pub d_scale: RawScale,
}

impl RawGemmTensors {
    /// The factors and their names.
    pub(super) const fn scales(&self) -> [(&'static str, &RawScale); 3] {
        [("a_scale", &self.a_scale), ("b_scale", &self.b_scale), ("d_scale", &self.d_scale)]
    }

    /// Checks that they are of the types of a plan.
    pub(super) fn check_types(&self, problem: &GemmProblem) -> Result<()> {
        for (name, tensor, planned) in [
            ("element type of A", &self.a, problem.a),
            ("element type of B", &self.b, problem.b),
            ("element type of D", &self.d, problem.d),
        ] {
            has_type(OP, name, tensor.element_type(), planned)?;
        }
        if let Some(c) = &self.c {
            has_element_type(OP, "C", c, self.d.element_type())?;
        }
        let scales = self.scales().map(|(name, scale)| (name, scale.tensor()));
        for (name, tensor) in [("bias", self.bias.as_ref())].into_iter().chain(scales) {
            tensor.map_or(Ok(()), |tensor| has_element_type(OP, name, tensor, ElementType::F32))?;
        }
        Ok(())
    }

    /// Checks that they have the shapes of the problem.
    pub(super) fn check_shapes(&self, problem: &GemmProblem, layout: GemmLayout) -> Result<()> {
        has_shape(OP, "D", self.d.shape(), &problem.d_shape())?;
        has_shape(OP, "A", self.a.shape(), &problem.a_shape(layout))?;
        has_shape(OP, "B", self.b.shape(), &problem.b_shape(layout))?;
        if let Some(c) = &self.c {
            has_shape(OP, "C", c.shape(), &problem.d_shape())?;
        }
        if let Some(bias) = &self.bias {
            has_shape(OP, "bias", bias.shape(), &[problem.n])?;
        }
        for (tensor, scale) in self.scales() {
            if let Some(scale) = scale.tensor() {
                has_shape(OP, tensor, scale.shape(), &[1])?;
            }
        }
        Ok(())
    }

    /// Checks that all of them are on the device of this number.
    pub(super) fn check_devices(&self, expected: u32) -> Result<()> {
        let tensors = [
            ("A", Some(&self.a)),
            ("B", Some(&self.b)),
            ("D", Some(&self.d)),
            ("C", self.c.as_ref()),
            ("bias", self.bias.as_ref()),
        ];
        same_devices(tensors.into_iter().chain(self.scales().map(|(name, scale)| (name, scale.tensor()))), expected)
    }
}

/// Whether every row of a tensor of rank 3 starts on a boundary of the chunks that kernels copy, and TMA can step from
/// one to the next.
pub(super) fn rows_copyable(tensor: &RawTensor) -> bool {
    // Tensor maps know no steps backwards, and none from a row to itself.
    let forwards = tensor.dim(1) <= 1 || tensor.dim(2) == 0 || tensor.step(1) > 0;
    rows_aligned(tensor) && forwards && tensor.step(0) >= 0 && tensor.step(1) >= 0
}

/// A or B as kernels see it, stored with `major` contiguous.
pub(super) fn operand(tensor: &RawTensor, major: Major) -> GemmOperand {
    let (batch_stride, row_stride) = (tensor.step(0), tensor.step(1));
    let (mn_stride, k_stride) = match major {
        Major::K => (row_stride, 1),
        Major::Mn => (1, row_stride),
    };
    GemmOperand { address: tensor.as_raw(), batch_stride, mn_stride, k_stride }
}

/// C or D as kernels see it.
pub(super) const fn matrix(tensor: &RawTensor) -> GemmMatrix {
    GemmMatrix { address: tensor.as_raw(), batch_stride: tensor.step(0), row_stride: tensor.step(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(element: ElementType, address: u64, shape: [usize; 3], strides: [i64; 3]) -> RawTensor {
        RawTensor::new(0, address, element, &shape, &strides).unwrap()
    }

    #[test]
    fn rows_are_copyable_where_address_and_the_strides_in_use_are_aligned() {
        let half = |address, shape, strides| rows_copyable(&tensor(ElementType::F16, address, shape, strides));
        assert!(half(256, [2, 3, 17], [72, 24, 1]));
        assert!(!half(264, [2, 3, 17], [72, 24, 1]));
        assert!(!half(256, [2, 3, 17], [51, 17, 1]));
        assert!(half(256, [1, 1, 17], [51, 17, 1]), "a dimension of one is never stepped along");
        assert!(half(256, [1, 8, 0], [0, 0, 1]), "rows without elements lie anywhere");
        assert!(!half(256, [1, 8, 16], [0, -24, 1]), "tensor maps know no steps backwards");
        assert!(!rows_copyable(&tensor(ElementType::F32, 256, [1, 2, 17], [51, 17, 1])));
    }

    #[test]
    fn operands_have_their_strides_in_the_order_of_the_formula() {
        let k_major = operand(&tensor(ElementType::F16, 16, [2, 3, 5], [100, 7, 1]), Major::K);
        assert_eq!((k_major.batch_stride, k_major.mn_stride, k_major.k_stride), (100, 7, 1));
        let mn_major = operand(&tensor(ElementType::F16, 16, [1, 1, 5], [100, 7, 1]), Major::Mn);
        assert_eq!((mn_major.batch_stride, mn_major.mn_stride, mn_major.k_stride), (0, 1, 0));
    }
}
