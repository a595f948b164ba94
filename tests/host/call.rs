//! One attention call, for what happens around it; `tests/attention` is about its numbers.

use ferrotile::{
    AttentionPlan, AttentionTensors, BatchedSizes, Buffer, Dtype, Gpu, Layout, Mask, StreamRef, TensorMut, TensorRef,
    reference, tolerance,
};
use half::f16;
use libtest_mimic::Failed;
use ndarray::Array4;
use tests::request::Request;
use tests::{compare, inputs};

use crate::Outcome;

/// The shape of Q, K, V and O: batch, heads, rows, head dimension.
pub(crate) const SHAPE: [usize; 4] = [2, 3, 131, 64];

/// The number of elements of each.
pub(crate) const LEN: usize = 2 * 3 * 131 * 64;

/// Causal attention on the best kernel.
pub(crate) fn options() -> Request {
    Request { mask: Mask::Causal, ..Request::new(Layout::Bhsd) }
}

/// The plan of the call.
pub(crate) fn plan(gpu: &Gpu) -> ferrotile::Result<AttentionPlan> {
    let problem = BatchedSizes::of_shapes(SHAPE, SHAPE, SHAPE, Layout::Bhsd)?;
    options().plan(gpu, Dtype::F16, problem)
}

/// Q, K and V on the host.
pub(crate) fn host_inputs() -> [Vec<f16>; 3] {
    let mut random = inputs::random(21);
    [(); 3].map(|()| inputs::normal(&mut random, LEN, 1.0))
}

/// Q, K, V and O on a card.
pub(crate) struct Call {
    inputs: [Buffer<f16>; 3],
    pub(crate) out: Buffer<f16>,
}

impl Call {
    /// Uploads the inputs; the output is NaN.
    pub(crate) fn new(stream: StreamRef<'_>) -> Result<Call, Failed> {
        let [q, k, v] = host_inputs().map(|values| Buffer::upload_blocking(stream, &values));
        let out = Buffer::upload_blocking(stream, &[f16::NAN; LEN])?;
        Ok(Call { inputs: [q?, k?, v?], out })
    }

    /// Q, K and V.
    pub(crate) fn tensors(&self) -> ferrotile::Result<[TensorRef<'_, f16, 4>; 3]> {
        let [q, k, v] = &self.inputs;
        Ok([TensorRef::contiguous(q, SHAPE)?, TensorRef::contiguous(k, SHAPE)?, TensorRef::contiguous(v, SHAPE)?])
    }

    /// Enqueues the call.
    pub(crate) fn enqueue(&mut self, plan: &AttentionPlan, stream: StreamRef<'_>) -> ferrotile::Result<()> {
        let [q, k, v] = &self.inputs;
        let [q, k, v] = [q, k, v].map(|input| TensorRef::contiguous(input, SHAPE));
        plan.run(stream, AttentionTensors::new(q?, k?, v?, TensorMut::contiguous(&mut self.out, SHAPE)?))
    }
}

/// The bits of an output.
pub(crate) fn bits(values: &[f16]) -> Vec<u16> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The bits of the call on a stream of its own.
pub(crate) fn expected_bits(gpu: &Gpu) -> Result<Vec<u16>, Failed> {
    let stream = gpu.new_stream()?;
    let mut call = Call::new(stream.as_ref())?;
    call.enqueue(&plan(gpu)?, stream.as_ref())?;
    Ok(bits(&call.out.download_blocking(&stream)?))
}

/// Compares an output with the reference.
pub(crate) fn check(out: &[f16]) -> Outcome {
    let wide = |values: &Vec<f16>| {
        let values = values.iter().map(|value| value.to_f64()).collect();
        Array4::from_shape_vec(SHAPE, values).expect("elements fill the shape")
    };
    let [q, k, v] = host_inputs().each_ref().map(wide);
    let scale = (SHAPE[3] as f64).sqrt().recip();
    let (expected, _) = reference::attention(q.view(), k.view(), v.view(), Mask::Causal, scale);
    let (rounded, _) = reference::attention_rounded(q.view(), k.view(), v.view(), Mask::Causal, scale, Dtype::F16);
    let (expected, rounded) = (expected.into_raw_vec_and_offset().0, rounded.into_raw_vec_and_offset().0);
    let limit = tolerance::limit(Dtype::F16, tolerance::max_error(&rounded, &expected));
    compare::check(out, &expected, &SHAPE, limit)?;
    Ok(())
}
