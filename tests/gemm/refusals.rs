//! Calls that are refused, with nothing written.

use ferrotile::{
    Buffer, Error, GemmLayout, GemmOptions, GemmPlan, GemmTensors, Gpu, Scale, TensorMut, TensorRef, gemm,
};
use half::{bf16, f16};
use tests::expect_error;
use tests::guard::Guarded;

use crate::Trials;
use crate::case::{Case, Inputs, OnDevice, Outcome, Placement, Stored, dense, tensor_mut};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    trials.both("tensors_that_do_not_fit_are_refused", &(), shapes::<f16>, shapes::<bf16>);
    trials.both("options_that_do_not_fit_are_refused", &(), options::<f16>, options::<bf16>);
    trials.both("plans_refuse_what_they_were_not_made_for", &(), plans::<f16>, plans::<bf16>);
}

const CASE: Case = Case::new([16, 24, 32], GemmLayout::Nt);

/// Calls `body` with tensors of [`CASE`], then checks that D is untouched.
fn untouched<T: Stored>(
    gpu: &Gpu,
    body: impl FnOnce(&ferrotile::Stream, GemmTensors<'_, T, T, T>) -> Outcome,
) -> Outcome {
    let stream = gpu.new_stream()?;
    let placement = Placement::contiguous::<T, T, T>(&CASE);
    let on_device = OnDevice::upload(&stream, &Inputs::<T, T, T>::integers(&CASE, 1), &placement)?;
    let mut out = Guarded::<T>::new(gpu, &stream, placement.d.count())?;
    let view = placement.d.moved(out.offset());
    body(&stream, on_device.tensors(&CASE, &placement, tensor_mut(out.buffer(), &view)?)?)?;
    out.check_untouched(&stream)
}

fn shapes<T: Stored>(gpu: &Gpu, (): &()) -> Outcome {
    let wrong = Buffer::<T>::zeroed(gpu, 17 * 32)?;
    let matrix = TensorRef::contiguous(&wrong, [1, 17, 32])?;
    let options = GemmOptions::new(GemmLayout::Nt);
    let of =
        |wanted: &'static str| move |error: &Error| matches!(error, Error::Shape { tensor, .. } if *tensor == wanted);
    untouched::<T>(gpu, |stream, tensors| {
        expect_error(gemm(stream.as_ref(), GemmTensors { a: matrix, ..tensors }, &options), of("A"))
    })?;
    untouched::<T>(gpu, |stream, tensors| {
        expect_error(gemm(stream.as_ref(), GemmTensors { b: matrix, ..tensors }, &options), of("B"))
    })?;
    untouched::<T>(gpu, |stream, tensors| {
        expect_error(gemm(stream.as_ref(), GemmTensors { c: Some(matrix), ..tensors }, &options), of("C"))
    })?;
    let bias = Buffer::<f32>::zeroed(gpu, 23)?;
    let bias = TensorRef::contiguous(&bias, [23])?;
    untouched::<T>(gpu, |stream, tensors| {
        expect_error(gemm(stream.as_ref(), GemmTensors { bias: Some(bias), ..tensors }, &options), of("bias"))
    })
}

fn options<T: Stored>(gpu: &Gpu, (): &()) -> Outcome {
    let good = GemmOptions::new(GemmLayout::Nt);
    let argument = |wanted: &'static str| move |error: &Error| matches!(error, Error::Argument { argument, .. } if *argument == wanted);
    untouched::<T>(gpu, |stream, tensors| {
        expect_error(
            gemm(stream.as_ref(), tensors, &GemmOptions { alpha: f32::NAN, ..good.clone() }),
            argument("alpha"),
        )
    })?;
    untouched::<T>(gpu, |stream, tensors| {
        let options = GemmOptions { beta: f32::INFINITY, ..good.clone() };
        expect_error(gemm(stream.as_ref(), tensors, &options), argument("beta"))
    })?;
    untouched::<T>(gpu, |stream, tensors| {
        let options = GemmOptions { kernel: Some("fast".to_owned()), ..good.clone() };
        expect_error(gemm(stream.as_ref(), tensors, &options), |error| matches!(error, Error::UnknownKernel { .. }))
    })?;
    untouched::<T>(gpu, |stream, tensors| {
        let options = GemmOptions { splits: Some(7), ..good.clone() };
        expect_error(gemm(stream.as_ref(), tensors, &options), argument("splits"))
    })?;
    untouched::<T>(gpu, |stream, tensors| {
        let options = GemmOptions { splits: Some(0), ..good.clone() };
        expect_error(gemm(stream.as_ref(), tensors, &options), argument("splits"))
    })?;
    // Without a C there is nothing that beta multiplies; D's old content is it only where that is said.
    untouched::<T>(gpu, |stream, tensors| {
        let options = GemmOptions { beta: 0.5, ..good.clone() };
        expect_error(gemm(stream.as_ref(), GemmTensors { c: None, ..tensors }, &options), argument("C"))
    })?;
    // An alpha of 0 refuses what others do.
    for options in [
        GemmOptions { kernel: Some("fast".to_owned()), alpha: 0.0, ..good.clone() },
        GemmOptions { splits: Some(7), alpha: 0.0, ..good.clone() },
    ] {
        untouched::<T>(gpu, |stream, tensors| {
            let is_right = |error: &Error| matches!(error, Error::UnknownKernel { .. } | Error::Argument { .. });
            expect_error(gemm(stream.as_ref(), tensors, &options), is_right)
        })?;
    }
    // Each is finite, and their product is not.
    untouched::<T>(gpu, |stream, tensors| {
        let options = GemmOptions { alpha: 1e30, ..good.clone() };
        let tensors = GemmTensors { b_scale: Scale::Value(1e30), ..tensors };
        expect_error(gemm(stream.as_ref(), tensors, &options), argument("alpha * a_scale * b_scale"))
    })
}

fn plans<T: Stored>(gpu: &Gpu, (): &()) -> Outcome {
    let problem = CASE.problem::<T, T, T>();
    let plan = GemmPlan::new(gpu, &problem, &GemmOptions::new(GemmLayout::Nt))?;
    let odd = Buffer::<T>::zeroed(gpu, 16 * 32 + 1)?;
    let odd = TensorRef::strided(&odd, 1, [1, 16, 32], [512, 32, 1])?;
    untouched::<T>(gpu, |stream, tensors| {
        let refused = plan.run(stream.as_ref(), GemmTensors { a: odd, ..tensors }, None);
        expect_error(refused, |error| matches!(error, Error::Alignment { tensor: "A", .. }))
    })?;
    let mut other = Buffer::<f32>::zeroed(gpu, 16 * 24)?;
    untouched::<T>(gpu, |stream, GemmTensors { a, b, .. }| {
        let d = TensorMut::contiguous(&mut other, [1, 16, 24])?;
        let refused = plan.run(stream.as_ref(), GemmTensors::new(a, b, d), None);
        expect_error(refused, |error| matches!(error, Error::Argument { argument: "element type of D", .. }))
    })?;
    // A plan with workspace is not run without.
    let long = Case::new([16, 24, 4096], GemmLayout::Nt);
    let options = GemmOptions { splits: Some(4), max_workspace_bytes: 1 << 20, ..GemmOptions::new(GemmLayout::Nt) };
    let plan = GemmPlan::new(gpu, &long.problem::<T, T, T>(), &options)?;
    let stream = gpu.new_stream()?;
    let (a, b) = (Buffer::<T>::zeroed(gpu, 16 * 4096)?, Buffer::<T>::zeroed(gpu, 24 * 4096)?);
    let mut out = Guarded::<T>::new(gpu, &stream, 16 * 24)?;
    let view = dense([1, 16, 24]).moved(out.offset());
    let tensors = GemmTensors::new(
        TensorRef::contiguous(&a, [1, 16, 4096])?,
        TensorRef::contiguous(&b, [1, 24, 4096])?,
        tensor_mut(out.buffer(), &view)?,
    );
    expect_error(plan.run(stream.as_ref(), tensors, None), |error| {
        matches!(error, Error::Argument { argument: "workspace", .. })
    })?;
    out.check_untouched(&stream)
}
