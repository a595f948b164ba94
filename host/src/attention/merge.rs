//! Partial results of attention, put together by their LSE.

use std::fmt;

use layout::Dtype;
use variants::attention::{CombineArgs, CombineKernel, HEAD_DIM_STEP, MAX_HEAD_DIM, PartialResult};

use super::Layout;
use super::decode::launch_combine;
use super::plan::kernel_strides;
use crate::checks::same_device;
use crate::element::Float;
use crate::error::{Error, Result};
use crate::runtime::gpu::Gpu;
use crate::runtime::module::Kernel;
use crate::runtime::stream::StreamRef;
use crate::runtime::tensor::{TensorMut, TensorRef};

const OP: &str = "merge";

/// The loaded kernel that puts partial results of one element type together, for repeated calls and for captures, in
/// which kernels are not loaded. Displays as the kernel's name.
#[derive(Debug, Clone)]
#[must_use = "a plan computes nothing until it is run"]
pub struct MergePlan {
    combine: &'static CombineKernel,
    types: [Dtype; 2],
    kernel: Kernel,
}

impl MergePlan {
    /// Loads the kernel for parts and results of these types.
    ///
    /// # Errors
    /// [`Error::Argument`] for types that are not put together, see [`merge`], and those of loading a module.
    pub fn new(gpu: &Gpu, parts: Dtype, out: Dtype) -> Result<Self> {
        let combine = CombineKernel::of(parts, out).ok_or_else(|| {
            let expected = format!("f32, or {parts}, the type of the parts, where that is 16-bit");
            argument("element type of O", out.to_string(), expected)
        })?;
        Ok(Self { combine, types: [parts, out], kernel: gpu.kernel("attention", combine.name)? })
    }

    /// Puts two partial results together on `stream` and returns before it is done; see [`merge`].
    ///
    /// # Errors
    /// Those of [`merge`], and [`Error::Argument`] for other element types than the plan's.
    pub fn run<P: Float, O: Float>(
        &self,
        stream: StreamRef<'_>,
        (o1, lse1): (TensorRef<'_, P, 4>, TensorRef<'_, f32, 3>),
        (o2, lse2): (TensorRef<'_, P, 4>, TensorRef<'_, f32, 3>),
        out: TensorMut<'_, O, 4>,
        lse: Option<TensorMut<'_, f32, 3>>,
        layout: Layout,
    ) -> Result<()> {
        same_device("plan", self.kernel.ordinal(), stream.ordinal())?;
        for (name, got, expected) in
            [("element type of the parts", P::DTYPE, self.types[0]), ("element type of O", O::DTYPE, self.types[1])]
        {
            if got != expected {
                return Err(argument(name, got.to_string(), format!("{expected}, the plan's")));
            }
        }
        let parts = Parts { o1, lse1, o2, lse2, out, lse, layout };
        let Some(args) = parts.check(stream)? else { return Ok(()) };
        // SAFETY: the views are tensors of these sizes, whose memory their owners keep until the stream has done the
        // work.
        unsafe { launch_combine(stream, self.combine, &self.kernel, &args, false) }
    }
}

impl fmt::Display for MergePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.combine.name)
    }
}

/// Puts two partial results of attention together, on `stream`, and returns before it is done.
///
/// The parts are attention of the same queries on two disjoint sets of keys: `o1` and `o2` their O
/// `[batch, heads, rows, head_dim]`, its dimensions in the order of `layout` and with any strides, `lse1` and `lse2`
/// their LSE `[batch, heads, rows]`, contiguous. The result is attention on all of the keys:
///
/// `LSE = ln(exp(lse1) + exp(lse2))`, `O = exp(lse1 - LSE) o1 + exp(lse2 - LSE) o2`.
///
/// A row whose LSE is minus infinity saw no key: its O is not used, whatever it holds, and the other part comes out as
/// it is. Where both are so, O is 0 and the LSE minus infinity. An LSE of NaN or plus infinity makes both NaN. Sums are
/// f32. The parts are f16, bf16 or f32; O is of the same type, f32, or, of f32 parts, f16 or bf16.
///
/// The first call for a pair of types loads a kernel; [`MergePlan`] does so ahead of time.
///
/// On sm_90 the kernel starts while the one before it still runs, and waits for its end before it reads or writes
/// anything.
///
/// # Errors
/// [`Error::Shape`], [`Error::Argument`] or [`Error::WrongDevice`] for tensors that do not fit,
/// [`Error::ForeignCapture`], before anything is enqueued; those of loading a module; [`Error::Driver`] where the
/// driver refuses the launch.
pub fn merge<P: Float, O: Float>(
    stream: StreamRef<'_>,
    (o1, lse1): (TensorRef<'_, P, 4>, TensorRef<'_, f32, 3>),
    (o2, lse2): (TensorRef<'_, P, 4>, TensorRef<'_, f32, 3>),
    out: TensorMut<'_, O, 4>,
    lse: Option<TensorMut<'_, f32, 3>>,
    layout: Layout,
) -> Result<()> {
    MergePlan::new(stream.gpu(), P::DTYPE, O::DTYPE)?.run(stream, (o1, lse1), (o2, lse2), out, lse, layout)
}

fn argument(argument: &'static str, got: String, expected: String) -> Error {
    Error::Argument { op: OP, argument, got, expected }
}

fn check_shape(tensor: &'static str, got: &[usize], expected: &[usize]) -> Result<()> {
    if got == expected {
        return Ok(());
    }
    Err(Error::Shape { op: OP, tensor, got: got.to_vec(), expected: expected.to_vec() })
}

/// Whether an LSE has this shape and no gaps.
fn check_lse([tensor, strides]: [&'static str; 2], lse: &TensorRef<'_, f32, 3>, shape: [usize; 3]) -> Result<()> {
    check_shape(tensor, lse.shape(), &shape)?;
    if lse.is_contiguous() {
        return Ok(());
    }
    Err(argument(strides, format!("{:?}", lse.strides()), "those of a contiguous tensor".to_owned()))
}

/// The tensors of a call.
struct Parts<'a, P, O> {
    o1: TensorRef<'a, P, 4>,
    lse1: TensorRef<'a, f32, 3>,
    o2: TensorRef<'a, P, 4>,
    lse2: TensorRef<'a, f32, 3>,
    out: TensorMut<'a, O, 4>,
    lse: Option<TensorMut<'a, f32, 3>>,
    layout: Layout,
}

impl<P: Float, O: Float> Parts<'_, P, O> {
    /// The argument of the kernel, after a check that the tensors fit together and are on the device of the stream;
    /// `None` without rows.
    fn check(&self, stream: StreamRef<'_>) -> Result<Option<CombineArgs>> {
        let Self { o1, lse1, o2, lse2, out, lse, layout } = self;
        let layout = *layout;
        let shape = *out.shape();
        let [batch, heads, row_len, head_dim] = layout.reorder(shape);
        check_shape("the first O", o1.shape(), &shape)?;
        check_shape("the second O", o2.shape(), &shape)?;
        let lse_shape = [batch, heads, row_len];
        check_lse(["the first LSE", "strides of the first LSE"], lse1, lse_shape)?;
        check_lse(["the second LSE", "strides of the second LSE"], lse2, lse_shape)?;
        if let Some(lse) = lse {
            check_lse(["the LSE", "strides of the LSE"], &lse.as_ref(), lse_shape)?;
        }
        if head_dim == 0 || head_dim > MAX_HEAD_DIM || !head_dim.is_multiple_of(HEAD_DIM_STEP) {
            let expected = format!("a multiple of {HEAD_DIM_STEP} up to {MAX_HEAD_DIM}");
            return Err(argument("head_dim", head_dim.to_string(), expected));
        }
        let rows = lse_shape.iter().try_fold(1_usize, |rows, &dim| rows.checked_mul(dim)).unwrap_or(usize::MAX);
        let Ok(row_count) = u32::try_from(rows) else {
            let expected = "below 2^32: split the batch".to_owned();
            return Err(argument("batch * heads * rows", rows.to_string(), expected));
        };
        let ordinals = [
            ("the first O", o1.ordinal()),
            ("the first LSE", lse1.ordinal()),
            ("the second O", o2.ordinal()),
            ("the second LSE", lse2.ordinal()),
            ("O", out.ordinal()),
        ];
        for (what, got) in ordinals.into_iter().chain(lse.as_ref().map(|lse| ("LSE", lse.ordinal()))) {
            same_device(what, got, stream.ordinal())?;
        }
        if rows == 0 {
            return Ok(None);
        }
        let part = |o: &TensorRef<'_, P, 4>, lse: &TensorRef<'_, f32, 3>| PartialResult {
            o: o.as_raw(),
            max: lse.as_raw(),
            sum: 0,
            strides: kernel_strides(layout, o.shape(), o.strides()),
        };
        let aligned = |o: &TensorRef<'_, P, 4>| rows_aligned::<P>(o.as_raw(), o.shape(), o.strides());
        Ok(Some(CombineArgs {
            first: part(o1, lse1),
            second: part(o2, lse2),
            o_step: 0,
            row_step: 0,
            sink: 0,
            o: out.as_raw(),
            lse: lse.as_ref().map_or(0, TensorMut::as_raw),
            o_strides: kernel_strides(layout, &shape, out.strides()),
            parts: 2,
            rows: row_count,
            heads: heads as u32,
            row_len: row_len as u32,
            head_dim: head_dim as u32,
            inputs_aligned: u32::from(aligned(o1) && aligned(o2)),
            output_aligned: u32::from(rows_aligned::<O>(out.as_raw(), &shape, out.strides())),
            scale_log2: std::f32::consts::LOG2_E,
        }))
    }
}

/// Whether every row of a tensor starts on a 16-byte boundary.
fn rows_aligned<T: Float>(address: u64, shape: &[usize; 4], strides: &[i64; 4]) -> bool {
    let bytes = size_of::<T>() as i64;
    let steps_aligned = shape.iter().zip(strides).take(3).all(|(&len, stride)| len <= 1 || stride * bytes % 16 == 0);
    address.is_multiple_of(16) && steps_aligned
}
