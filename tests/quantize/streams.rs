//! Graphs and plans.

use ferrotile::{
    Buffer, DequantizePlan, DequantizeTensors, Gpu, Layout, QuantizePlan, QuantizeTensors, TensorMut, TensorRef,
};
use half::f16;
use layout::Dtype;
use libtest_mimic::Failed;
use tests::Trials;

use crate::case::expected;

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    trials.add("a_captured_graph_quantises_what_is_there_then", captured);
}

const SHAPE: [usize; 4] = [1, 2, 9, 16];

/// A graph computes factors anew: those of the replay before neither stay nor count.
fn captured(gpu: &Gpu) -> Result<(), Failed> {
    let stream = gpu.new_stream()?;
    let len = SHAPE.iter().product();
    let mut x = Buffer::<f16>::zeroed(gpu, len)?;
    let (mut out, mut factors) = (Buffer::<u8>::zeroed(gpu, len)?, Buffer::<f32>::zeroed(gpu, 2)?);
    let mut back = Buffer::<f32>::zeroed(gpu, len)?;
    let plan = QuantizePlan::new(gpu, Dtype::F16, Dtype::U8)?;
    let return_plan = DequantizePlan::new(gpu, Dtype::U8, Dtype::F32)?;
    stream.synchronize()?;
    let graph = stream.capture(|stream| {
        let tensors = QuantizeTensors {
            x: TensorRef::contiguous(&x, SHAPE)?,
            out: TensorMut::contiguous(&mut out, SHAPE)?,
            descales: TensorMut::contiguous(&mut factors, [1, 2])?,
        };
        plan.run(stream, tensors, Layout::Bhsd)?;
        let tensors = DequantizeTensors {
            x: TensorRef::contiguous(&out, SHAPE)?,
            descales: TensorRef::contiguous(&factors, [1, 2])?,
            out: TensorMut::contiguous(&mut back, SHAPE)?,
        };
        return_plan.run(stream, tensors, Layout::Bhsd)
    })?;
    for size in [8.0, 0.5, 0.0] {
        let values: Vec<f16> = (0..len).map(|at| f16::from_f32(size * (at as f32 * 0.37).sin())).collect();
        x.overwrite_blocking(&stream, &values)?;
        // SAFETY: the tensors of the capture live, and nothing else uses them.
        unsafe { graph.launch(&stream) }?;
        let expected = expected::<f16, u8>(SHAPE, &values, [1, 2]);
        let (got, factors) = (out.download_blocking(&stream)?, factors.download_blocking(&stream)?);
        if (&got, &factors) != (&expected.elements, &expected.factors) {
            return Err(format!("size {size}: factors {factors:?}, expected {:?}", expected.factors).into());
        }
        let step = factors.iter().fold(0.0, |largest: f32, &factor| largest.max(factor)) * 448.0 / 255.0;
        let returned = back.download_blocking(&stream)?;
        let far = returned.iter().zip(&values).find(|(back, x)| (**back - x.to_f32()).abs() > 1.001 * step);
        if let Some((back, x)) = far {
            return Err(format!("size {size}: {x} comes back as {back}").into());
        }
    }
    Ok(())
}
