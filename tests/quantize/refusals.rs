//! Calls that must fail, and write nothing.

use ferrotile::{
    Buffer, Dtype, Error, F8E5M2, Gpu, Layout, QuantizePlan, QuantizeTensors, TensorMut, TensorRef, quantize,
};
use half::f16;
use libtest_mimic::Failed;
use tests::guard::Guarded;
use tests::{Trials, expect_error};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    trials.add("tensors_that_do_not_fit_are_refused", shapes);
    trials.add("types_that_are_not_quantised_are_refused", types);
}

fn shapes(gpu: &Gpu) -> Result<(), Failed> {
    let stream = gpu.new_stream()?;
    let x = Buffer::<f16>::zeroed(gpu, 2 * 3 * 4 * 8)?;
    for (out_shape, groups, is_right) in [
        ([2, 3, 4, 7], [1, 3], (|tensor| tensor == "the quantised tensor") as fn(&str) -> bool),
        ([2, 4, 3, 8], [1, 3], |tensor| tensor == "the quantised tensor"),
        ([2, 3, 4, 8], [1, 4], |tensor| tensor == "the descale factors"),
        ([2, 3, 4, 8], [3, 1], |tensor| tensor == "the descale factors"),
    ] {
        let mut out = Guarded::<u8>::new(gpu, &stream, 2 * 3 * 4 * 8)?;
        let mut factors = Guarded::<f32>::new(gpu, &stream, 4)?;
        let (out_at, factors_at) = (out.offset(), factors.offset());
        let [_, heads, rows, columns] = out_shape.map(|size| size as i64);
        let strides = [heads * rows * columns, rows * columns, columns, 1];
        let tensors = QuantizeTensors {
            x: TensorRef::contiguous(&x, [2, 3, 4, 8])?,
            out: TensorMut::strided(out.buffer(), out_at, out_shape, strides)?,
            descales: TensorMut::strided(factors.buffer(), factors_at, groups, [groups[1] as i64, 1])?,
        };
        let result = quantize(&stream, tensors, Layout::Bhsd);
        expect_error(result, |error| matches!(error, Error::Shape { tensor, .. } if is_right(tensor)))?;
        out.check_untouched(&stream)?;
        factors.check_untouched(&stream)?;
    }
    let mut out = Buffer::<u8>::zeroed(gpu, 192)?;
    let mut factors = Buffer::<f32>::zeroed(gpu, 12)?;
    let tensors = QuantizeTensors {
        x: TensorRef::contiguous(&x, [2, 3, 4, 8])?,
        out: TensorMut::contiguous(&mut out, [2, 3, 4, 8])?,
        descales: TensorMut::strided(&mut factors, 0, [2, 3], [4, 1])?,
    };
    let strides = "strides of the descale factors";
    expect_error(
        quantize(&stream, tensors, Layout::Bhsd),
        |error| matches!(error, Error::Argument { argument, .. } if *argument == strides),
    )
}

fn types(gpu: &Gpu) -> Result<(), Failed> {
    for (from, to) in [
        (Dtype::F16, Dtype::E5M2),
        (Dtype::F16, Dtype::F16),
        (Dtype::E4M3, Dtype::U8),
        (Dtype::U8, Dtype::U8),
        (Dtype::E5M2, Dtype::E4M3),
    ] {
        expect_error(QuantizePlan::new(gpu, from, to), |error| matches!(error, Error::Argument { .. }))?;
    }
    // A plan for another type than the tensors'.
    let stream = gpu.new_stream()?;
    let plan = QuantizePlan::new(gpu, Dtype::Bf16, Dtype::E4M3)?;
    let x = Buffer::<f16>::zeroed(gpu, 8)?;
    let (mut out, mut factors) = (Buffer::<F8E5M2>::zeroed(gpu, 8)?, Buffer::<f32>::zeroed(gpu, 1)?);
    let tensors = QuantizeTensors {
        x: TensorRef::contiguous(&x, [1, 1, 1, 8])?,
        out: TensorMut::contiguous(&mut out, [1, 1, 1, 8])?,
        descales: TensorMut::contiguous(&mut factors, [1, 1])?,
    };
    expect_error(plan.run(&stream, tensors, Layout::Bhsd), |error| matches!(error, Error::Argument { .. }))
}
