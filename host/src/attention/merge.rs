//! Partial results of attention, put together by their LSE.

use std::fmt;

use layout::Dtype;
use variants::attention::{CombineArgs, CombineKernel, HEAD_DIM_STEP, MAX_HEAD_DIM, PartialResult};

use super::arguments::kernel_strides;
use super::decode::launch_combine;
use super::layout::Layout;
use crate::checks::{
    argument, has_element_type, has_shape, has_type, is_contiguous, rows_aligned, same_device, same_devices,
};
use crate::element::{ElementType, Float};
use crate::error::Result;
use crate::runtime::gpu::Gpu;
use crate::runtime::module::{Kernel, KernelName};
use crate::runtime::raw_tensor::RawTensor;
use crate::runtime::stream::StreamRef;
use crate::runtime::tensor::{TensorMut, TensorRef};

const OP: &str = "merge";

/// Attention of some queries on some of their keys: O and its LSE.
#[derive(Debug, Clone, Copy)]
pub struct PartialAttention<'a, P> {
    /// O `[batch, heads, rows, head_dim]`, its dimensions in the order of the call's layout, by any strides.
    pub out: TensorRef<'a, P, 4>,
    /// The LSE `[batch, heads, rows]`, contiguous.
    pub lse: TensorRef<'a, f32, 3>,
}

/// The tensors of one merge: two partial results, and what they make together.
#[derive(Debug)]
pub struct MergeTensors<'a, P, O> {
    /// The partial results, on disjoint sets of keys.
    pub partials: [PartialAttention<'a, P>; 2],
    /// O, shaped as the O of the partial results.
    pub out: TensorMut<'a, O, 4>,
    /// Where the LSE goes, shaped as the LSE of the partial results, contiguous.
    pub lse: Option<TensorMut<'a, f32, 3>>,
}

impl<'a, P: Float, O: Float> MergeTensors<'a, P, O> {
    /// Partial results and O, without an LSE.
    #[must_use]
    pub const fn new(partials: [PartialAttention<'a, P>; 2], out: TensorMut<'a, O, 4>) -> Self {
        Self { partials, out, lse: None }
    }

    /// The same tensors without types and borrows.
    fn erased(&self) -> RawMergeTensors {
        RawMergeTensors {
            partials: self.partials.each_ref().map(|part| [part.out.erased(), part.lse.erased()]),
            out: self.out.erased(),
            lse: self.lse.as_ref().map(TensorMut::erased),
        }
    }
}

/// The erased tensors of one merge, for [`MergePlan::run_raw`]: those of [`MergeTensors`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawMergeTensors {
    /// O and LSE of each partial result.
    pub partials: [[RawTensor; 2]; 2],
    /// O, which is written.
    pub out: RawTensor,
    /// The LSE, which is written.
    pub lse: Option<RawTensor>,
}

/// The loaded kernel that puts partial results of one element type together, for repeated calls and for captures, in
/// which kernels are not loaded. Displays as the kernel's name.
///
/// ```
/// use ferrotile::{Arch, Dtype, Gpu, MergePlan};
///
/// let gpu = Gpu::emulated(Arch::Sm80);
/// let plan = MergePlan::new(&gpu, Dtype::F32, Dtype::F16)?; // of f32 partial results, to f16
/// assert_eq!(plan.to_string(), plan.kernel_name().as_str());
/// # Ok::<(), ferrotile::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "a plan computes nothing until it is run"]
pub struct MergePlan {
    combine: &'static CombineKernel,
    types: [Dtype; 2],
    kernel: Kernel,
}

impl MergePlan {
    /// Loads the kernel for partial results and O of these types.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) for types that are not put together, see [`merge`], and those of
    /// loading a module.
    pub fn new(gpu: &Gpu, partials: Dtype, out: Dtype) -> Result<Self> {
        let combine = CombineKernel::of(partials, out).ok_or_else(|| {
            let expected = format!("f32, or {partials}, the type of the partial results, where that is 16-bit");
            argument(OP, "element type of O", out, expected)
        })?;
        Ok(Self { combine, types: [partials, out], kernel: gpu.kernel("attention", combine.name)? })
    }

    /// The name of the kernel.
    #[must_use]
    pub const fn kernel_name(&self) -> KernelName {
        KernelName::new(self.combine.name)
    }

    /// Puts two partial results together on `stream` and returns before it is done; see [`merge`].
    ///
    /// # Errors
    /// Those of [`merge`], and [`Error::Argument`](crate::Error::Argument) for other element types than the plan's.
    pub fn run<'s, P: Float, O: Float>(
        &self,
        stream: impl Into<StreamRef<'s>>,
        tensors: MergeTensors<'_, P, O>,
        layout: Layout,
    ) -> Result<()> {
        // SAFETY: the views borrow tensors whose owners keep the memory until the stream has done the work, and no two
        // indices of a view that is written to are the same element.
        unsafe { self.run_raw(stream, &tensors.erased(), layout) }
    }

    /// As [`MergePlan::run`], for tensors whose types the compiler does not know: for bindings.
    ///
    /// # Safety
    /// As [`AttentionPlan::run_raw`](crate::AttentionPlan::run_raw).
    ///
    /// # Errors
    /// Those of [`MergePlan::run`].
    pub unsafe fn run_raw<'s>(
        &self,
        stream: impl Into<StreamRef<'s>>,
        tensors: &RawMergeTensors,
        layout: Layout,
    ) -> Result<()> {
        let stream = stream.into();
        same_device("plan", self.kernel.ordinal(), stream.ordinal())?;
        let Some(args) = self.arguments(stream, tensors, layout)? else { return Ok(()) };
        // SAFETY: the tensors are of these sizes, and valid as the caller promises.
        unsafe { launch_combine(stream, self.combine, &self.kernel, &args, false) }
    }

    /// The argument of the kernel, after a check that the tensors fit together and are on the device of the stream;
    /// `None` without rows.
    fn arguments(
        &self,
        stream: StreamRef<'_>,
        tensors: &RawMergeTensors,
        layout: Layout,
    ) -> Result<Option<CombineArgs>> {
        let RawMergeTensors { partials: [[o1, lse1], [o2, lse2]], out, lse } = tensors;
        for (name, got, planned) in [
            ("element type of the partial results", o1, self.types[0]),
            ("element type of the partial results", o2, self.types[0]),
            ("element type of O", out, self.types[1]),
        ] {
            has_type(OP, name, got.element_type(), planned)?;
        }
        let shape = out.shape();
        let &[first, second, third, last] = shape else {
            return Err(argument(OP, "dimensions of O", shape.len(), "4"));
        };
        let [batch, heads, row_len, head_dim] = layout.reorder([first, second, third, last]);
        has_shape(OP, "the first O", o1.shape(), shape)?;
        has_shape(OP, "the second O", o2.shape(), shape)?;
        let lse_shape = [batch, heads, row_len];
        check_lse(["the first LSE", "strides of the first LSE"], Some(lse1), &lse_shape)?;
        check_lse(["the second LSE", "strides of the second LSE"], Some(lse2), &lse_shape)?;
        check_lse(["the LSE", "strides of the LSE"], lse.as_ref(), &lse_shape)?;
        if head_dim == 0 || head_dim > MAX_HEAD_DIM || !head_dim.is_multiple_of(HEAD_DIM_STEP) {
            let expected = format!("a multiple of {HEAD_DIM_STEP} up to {MAX_HEAD_DIM}");
            return Err(argument(OP, "head_dim", head_dim, expected));
        }
        let rows = lse_shape.iter().try_fold(1_usize, |rows, &dim| rows.checked_mul(dim)).unwrap_or(usize::MAX);
        let Ok(row_count) = u32::try_from(rows) else {
            return Err(argument(OP, "batch * heads * rows", rows, "below 2^32: split the batch"));
        };
        let all = [
            ("the first O", Some(o1)),
            ("the first LSE", Some(lse1)),
            ("the second O", Some(o2)),
            ("the second LSE", Some(lse2)),
            ("O", Some(out)),
            ("LSE", lse.as_ref()),
        ];
        same_devices(all, stream.ordinal())?;
        if rows == 0 {
            return Ok(None);
        }
        let part = |o: &RawTensor, lse: &RawTensor| PartialResult {
            o: o.as_raw(),
            max: lse.as_raw(),
            sum: 0,
            strides: kernel_strides(layout, o),
        };
        Ok(Some(CombineArgs {
            first: part(o1, lse1),
            second: part(o2, lse2),
            o_step: 0,
            row_step: 0,
            sink: 0,
            o: out.as_raw(),
            lse: lse.as_ref().map_or(0, RawTensor::as_raw),
            o_strides: kernel_strides(layout, out),
            parts: 2,
            rows: row_count,
            heads: heads as u32,
            row_len: row_len as u32,
            head_dim: head_dim as u32,
            inputs_aligned: u32::from(rows_aligned(o1) && rows_aligned(o2)),
            output_aligned: u32::from(rows_aligned(out)),
            scale_log2: std::f32::consts::LOG2_E,
        }))
    }
}

/// Whether an LSE that is there has this shape and no gaps.
fn check_lse([tensor, strides]: [&'static str; 2], lse: Option<&RawTensor>, shape: &[usize]) -> Result<()> {
    let Some(lse) = lse else { return Ok(()) };
    has_element_type(OP, tensor, lse, ElementType::F32)?;
    has_shape(OP, tensor, lse.shape(), shape)?;
    is_contiguous(OP, strides, lse)
}

impl fmt::Display for MergePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.combine.name)
    }
}

/// Puts two partial results of attention together, on `stream`, and returns before it is done.
///
/// The partial results are attention of the same queries on two disjoint sets of keys, with the dimensions of their O
/// in the order of `layout`. The result is attention on all of the keys:
///
/// `LSE = ln(exp(lse1) + exp(lse2))`, `O = exp(lse1 - LSE) o1 + exp(lse2 - LSE) o2`.
///
/// A row whose LSE is minus infinity saw no key: its O is not used, whatever it holds, and the other partial result
/// comes out as it is. Where both rows saw no key, O is 0 and the LSE minus infinity. An LSE of NaN or plus infinity
/// makes O and LSE NaN. Sums are f32. The partial results are f16, bf16 or f32; O is of the same type, f32, or, of f32
/// ones, f16 or bf16.
///
/// The first call for a pair of types loads a kernel; [`MergePlan`] does so ahead of time.
///
/// On sm_90 the kernel starts while the one before it still runs, and waits for its end before it reads or writes
/// anything.
///
/// ```
/// use ferrotile::{
///     Arch, Buffer, Gpu, Layout, MergeTensors, PartialAttention, TensorMut, TensorRef, merge,
/// };
///
/// let gpu = Gpu::emulated(Arch::Sm80);
/// let stream = gpu.new_stream()?;
/// let (o, lse) = ([1, 1, 1, 8], [1, 1, 1]);
/// let ones = Buffer::upload_blocking(&stream, &[1.0_f32; 8])?;
/// let threes = Buffer::upload_blocking(&stream, &[3.0_f32; 8])?;
/// let weight = Buffer::upload_blocking(&stream, &[0.0_f32])?; // as much weight in both parts
/// let mut out = Buffer::<f32>::zeroed(&gpu, 8)?;
/// let part = |out| -> ferrotile::Result<_> {
///     Ok(PartialAttention { out: TensorRef::contiguous(out, o)?, lse: TensorRef::contiguous(&weight, lse)? })
/// };
/// let tensors = MergeTensors::new([part(&ones)?, part(&threes)?], TensorMut::contiguous(&mut out, o)?);
/// merge(&stream, tensors, Layout::Bhsd)?;
/// assert_eq!(out.download_blocking(&stream)?, [2.0; 8]);
/// # Ok::<(), ferrotile::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`], [`Error::Argument`] or [`Error::WrongDevice`] for tensors that do not fit,
/// [`Error::ForeignCapture`], before anything is enqueued; those of loading a module; [`Error::Driver`] where the
/// driver refuses the launch.
///
/// [`Error::Shape`]: crate::Error::Shape
/// [`Error::Argument`]: crate::Error::Argument
/// [`Error::WrongDevice`]: crate::Error::WrongDevice
/// [`Error::ForeignCapture`]: crate::Error::ForeignCapture
/// [`Error::Driver`]: crate::Error::Driver
pub fn merge<'s, P: Float, O: Float>(
    stream: impl Into<StreamRef<'s>>,
    tensors: MergeTensors<'_, P, O>,
    layout: Layout,
) -> Result<()> {
    let stream = stream.into();
    MergePlan::new(stream.gpu(), P::DTYPE, O::DTYPE)?.run(stream, tensors, layout)
}
