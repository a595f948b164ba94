//! Partial results of attention, put together by their LSE.

use layout::attention::{CombineArgs, CombineKernel, HEAD_DIM_STEP, MAX_HEAD_DIM, PartialResult};

use super::Layout;
use super::decode::launch_combine;
use super::plan::kernel_strides;
use crate::element::Float;
use crate::error::{Error, Result};
use crate::stream::StreamRef;
use crate::tensor::{TensorMut, TensorRef};

const OP: &str = "merge";

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
/// f32. The parts are f16, bf16 or f32; O is of
/// the same type, f32, or, of f32 parts, f16 or bf16.
///
/// On sm_90 the kernel starts while the one before it still runs, and waits for its end before it reads or writes
/// anything.
///
/// # Errors
/// [`Error::Shape`], [`Error::Argument`] or [`Error::WrongDevice`] for tensors that do not fit, before anything is
/// enqueued; [`Error::Driver`] where the driver refuses the launch.
pub fn merge<P: Float, O: Float>(
    stream: StreamRef<'_>,
    (o1, lse1): (TensorRef<'_, P, 4>, TensorRef<'_, f32, 3>),
    (o2, lse2): (TensorRef<'_, P, 4>, TensorRef<'_, f32, 3>),
    out: TensorMut<'_, O, 4>,
    lse: Option<TensorMut<'_, f32, 3>>,
    layout: Layout,
) -> Result<()> {
    let shape = *out.shape();
    let [batch, heads, row_len, head_dim] = layout.reorder(shape);
    let check = |tensor, got: &[usize], expected: &[usize]| {
        let (got, expected) = (got.to_vec(), expected.to_vec());
        if got == expected { Ok(()) } else { Err(Error::Shape { op: OP, tensor, got, expected }) }
    };
    let argument = |argument, got: String, expected: String| Error::Argument { op: OP, argument, got, expected };
    check("the first O", o1.shape(), &shape)?;
    check("the second O", o2.shape(), &shape)?;
    let contiguous = |argument_name, lse: &TensorRef<'_, f32, 3>| {
        if lse.is_contiguous() {
            return Ok(());
        }
        Err(argument(argument_name, format!("{:?}", lse.strides()), "those of a contiguous tensor".to_owned()))
    };
    check("the first LSE", lse1.shape(), &[batch, heads, row_len])?;
    contiguous("strides of the first LSE", &lse1)?;
    check("the second LSE", lse2.shape(), &[batch, heads, row_len])?;
    contiguous("strides of the second LSE", &lse2)?;
    if let Some(lse) = &lse {
        check("the LSE", lse.shape(), &[batch, heads, row_len])?;
        contiguous("strides of the LSE", &lse.as_ref())?;
    }
    if head_dim == 0 || head_dim > MAX_HEAD_DIM || !head_dim.is_multiple_of(HEAD_DIM_STEP) {
        let expected = format!("a multiple of {HEAD_DIM_STEP} up to {MAX_HEAD_DIM}");
        return Err(argument("head_dim", head_dim.to_string(), expected));
    }
    let rows = batch.checked_mul(heads).and_then(|rows| rows.checked_mul(row_len)).unwrap_or(usize::MAX);
    let Ok(row_count) = u32::try_from(rows) else {
        return Err(argument("batch * heads * rows", rows.to_string(), "below 2^32: split the batch".to_owned()));
    };
    let Some(combine) = CombineKernel::of(P::DTYPE, O::DTYPE) else {
        let expected = format!("f32, or {}, the type of the parts, where that is 16-bit", P::DTYPE);
        return Err(argument("element type of O", O::DTYPE.to_string(), expected));
    };
    let ordinals = [
        ("the first O", o1.ordinal()),
        ("the first LSE", lse1.ordinal()),
        ("the second O", o2.ordinal()),
        ("the second LSE", lse2.ordinal()),
        ("O", out.ordinal()),
    ];
    for (what, got) in ordinals.into_iter().chain(lse.as_ref().map(|lse| ("LSE", lse.ordinal()))) {
        if got != stream.ordinal() {
            return Err(Error::WrongDevice { what, got, expected: stream.ordinal() });
        }
    }
    if rows == 0 {
        return Ok(());
    }
    let part = |o: &TensorRef<'_, P, 4>, lse: &TensorRef<'_, f32, 3>| PartialResult {
        o: o.as_raw(),
        lse: lse.as_raw(),
        strides: kernel_strides(layout, o.shape(), o.strides()),
    };
    let aligned = |o: &TensorRef<'_, P, 4>| rows_aligned::<P>(o.as_raw(), o.shape(), o.strides());
    let args = CombineArgs {
        first: part(&o1, &lse1),
        second: part(&o2, &lse2),
        o_step: 0,
        lse_step: 0,
        o: out.as_raw(),
        lse: lse.as_ref().map_or(0, TensorMut::as_raw),
        o_strides: kernel_strides(layout, &shape, out.strides()),
        parts: 2,
        rows: row_count,
        heads: heads as u32,
        row_len: row_len as u32,
        head_dim: head_dim as u32,
        inputs_aligned: u32::from(aligned(&o1) && aligned(&o2)),
        output_aligned: u32::from(rows_aligned::<O>(out.as_raw(), &shape, out.strides())),
        reserved: 0,
    };
    let kernel = stream.gpu().kernel("attention", combine.name)?;
    // SAFETY: the views are tensors of these sizes, whose memory their owners keep until the stream has done the work.
    unsafe { launch_combine(stream, combine, &kernel, &args, false) }
}

/// Whether every row of a tensor starts on a 16-byte boundary.
fn rows_aligned<T: Float>(address: u64, shape: &[usize; 4], strides: &[i64; 4]) -> bool {
    let bytes = size_of::<T>() as i64;
    let steps_aligned = shape.iter().zip(strides).take(3).all(|(&len, stride)| len <= 1 || stride * bytes % 16 == 0);
    address.is_multiple_of(16) && steps_aligned
}
