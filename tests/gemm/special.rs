//! Sizes of 0, a C that must not be read, infinities and NaN, scales.

use ferrotile::{Buffer, GemmLayout, GemmOptions, GemmPlan, GemmProblem, GemmTensors, Gpu, Scale, TensorRef, gemm};
use half::{bf16, f16};
use tests::guard::Guarded;
use tests::is_small;

use crate::Trials;
use crate::case::{
    Case, Expected, Inputs, OnDevice, Outcome, Placement, Stored, check, check_every_way, for_each_way, is_aligned,
    run, tensor_mut,
};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    trials.both("without_terms_a_sum_is_zero", &(), no_terms::<f16>, no_terms::<bf16>);
    trials.both("empty_products_write_nothing", &(), empty::<f16>, empty::<bf16>);
    trials.both("beta_zero_does_not_read_c", &(), unread_c::<f16>, unread_c::<bf16>);
    trials.both("c_is_what_d_held", &(), in_place::<f16>, in_place::<bf16>);
    trials.both("alpha_zero_does_not_read_a_and_b", &(), unread_operands::<f16>, unread_operands::<bf16>);
    trials.both("nan_and_infinity_stay_in_their_rows", &(), not_finite::<f16>, not_finite::<bf16>);
    trials.both("scales_from_the_host_and_the_device", &(), scales::<f16>, scales::<bf16>);
    trials.both("factors_that_balance_each_other", &(), balanced::<f16>, balanced::<bf16>);
}

fn shape(gpu: &Gpu) -> [usize; 3] {
    if is_small(gpu) { [20, 40, 24] } else { [150, 300, 136] }
}

fn no_terms<T: Stored>(gpu: &Gpu, (): &()) -> Outcome {
    let [m, n, _] = shape(gpu);
    for layout in GemmLayout::ALL {
        let case = Case::new([m, n, 0], layout);
        check_every_way(gpu, &case, &Inputs::<T, T, T>::integers(&case, 1))?;
        let case = Case { beta: 2.0, bias: true, ..case };
        check_every_way(gpu, &case, &Inputs::<T, T, f32>::integers(&case, 1))?;
    }
    Ok(())
}

fn empty<T: Stored>(gpu: &Gpu, (): &()) -> Outcome {
    for (batch, shape) in [(1, [0, 8, 8]), (1, [8, 0, 8]), (0, [8, 8, 8]), (1, [0, 0, 0])] {
        let case = Case::new(shape, GemmLayout::Nn).batched(batch);
        check_every_way(gpu, &case, &Inputs::<T, T, T>::integers(&case, 1))?;
    }
    Ok(())
}

fn unread_c<T: Stored>(gpu: &Gpu, (): &()) -> Outcome {
    for layout in GemmLayout::ALL {
        let case = Case::new(shape(gpu), layout);
        let mut inputs = Inputs::<T, T, T>::integers(&case, 1);
        inputs.c.fill(T::poison());
        check_every_way(gpu, &case, &inputs)?;
    }
    Ok(())
}

/// NaN in A, in B and in their scales on the device: with an alpha of 0, of either sign, D has nothing of them.
fn unread_operands<T: Stored>(gpu: &Gpu, (): &()) -> Outcome {
    for (layout, alpha, beta) in
        GemmLayout::ALL.into_iter().flat_map(|layout| [(layout, 0.0, 2.0), (layout, -0.0, 0.0)])
    {
        let case = Case { alpha, beta, bias: true, ..Case::new(shape(gpu), layout).batched(2) };
        check_unread::<T, T>(gpu, &case)?;
    }
    // Sums of several splits, if they were summed.
    check_unread::<T, T>(gpu, &Case { alpha: 0.0, beta: -1.0, ..Case::new([20, 40, 520], GemmLayout::Nt) })
}

/// Checks every way to compute a case whose alpha is 0.
pub(crate) fn check_unread<A: Stored, B: Stored>(gpu: &Gpu, case: &Case) -> Outcome {
    let mut inputs = Inputs::<A, B, f32>::integers(case, 7);
    let expected = Expected { limit: 0.0, ..inputs.expected(case) };
    inputs.a.fill(A::poison());
    inputs.b.fill(B::poison());
    let placement = Placement::contiguous::<A, B, f32>(case);
    for_each_way::<A, B>(gpu, case, is_aligned::<A, B>(case), |way| {
        let stream = gpu.new_stream()?;
        let on_device = OnDevice::upload(&stream, &inputs, &placement)?;
        let scale = Buffer::upload_blocking(&stream, &[f32::NAN])?;
        let scale = Scale::Device(TensorRef::contiguous(&scale, [1])?);
        let mut out = Guarded::<f32>::new(gpu, &stream, placement.d.count())?;
        let view = placement.d.moved(out.offset());
        let tensors = on_device.tensors(case, &placement, tensor_mut(out.buffer(), &view)?)?;
        let tensors = GemmTensors { a_scale: scale, b_scale: scale, ..tensors };
        let problem = GemmProblem::of(&tensors, case.layout)?;
        // Nothing is copied either.
        let options = GemmOptions { max_workspace_bytes: 0, ..case.options(way) };
        GemmPlan::new(gpu, &problem, &options)?.run(stream.as_ref(), tensors, None)?;
        let d = out.read(&stream)?;
        check(case, &d, &expected)
    })
}

/// Beta multiplies what D holds, where that is C.
fn in_place<T: Stored>(gpu: &Gpu, (): &()) -> Outcome {
    let case = Case { alpha: 2.0, beta: -1.0, ..Case::new(shape(gpu), GemmLayout::Nt) };
    let inputs = Inputs::<T, T, f32>::integers(&case, 3);
    let expected = inputs.expected(&case);
    let placement = Placement::contiguous::<T, T, f32>(&case);
    for_each_way::<T, T>(gpu, &case, is_aligned::<T, T>(&case), |way| {
        let stream = gpu.new_stream()?;
        let on_device = OnDevice::upload(&stream, &inputs, &placement)?;
        let mut d = Buffer::upload_blocking(&stream, &inputs.c)?;
        let tensors = on_device.tensors(&case, &placement, tensor_mut(&mut d, &placement.d)?)?;
        let options = GemmOptions { splits: None, ..case.options(way) };
        gemm(stream.as_ref(), GemmTensors { c: None, ..tensors }.accumulating(), &options)?;
        check(&case, &d.download_blocking(&stream)?, &expected)
    })
}

/// One NaN in A and one infinity in B: all of their row and column, and nothing else.
fn not_finite<T: Stored>(gpu: &Gpu, (): &()) -> Outcome {
    let case = Case::new(shape(gpu), GemmLayout::Nt);
    let mut inputs = Inputs::<T, T, f32>::integers(&case, 4);
    inputs.a.iter_mut().for_each(|x| *x = T::from_f64(x.to_f64().abs() + 1.0));
    inputs.a[5 * case.k + case.k - 1] = T::from_f64(f64::NAN);
    inputs.b[7 * case.k] = T::from_f64(f64::INFINITY);
    let expected = inputs.expected(&case);
    let of_nan = expected.d.iter().filter(|x| x.is_nan()).count();
    let infinite = expected.d.iter().filter(|x| x.is_infinite()).count();
    assert_eq!((of_nan, infinite), (case.n, case.m - 1));
    // The limit of what is finite: these sums are exact.
    let expected = Expected { limit: 0.0, ..expected };
    let placement = Placement::contiguous::<T, T, f32>(&case);
    for_each_way::<T, T>(gpu, &case, is_aligned::<T, T>(&case), |way| {
        check(&case, &run(gpu, &case, &inputs, &placement, way)?, &expected)
    })
}

/// Powers of two, given as numbers or read on the device, are exact factors.
fn scales<T: Stored>(gpu: &Gpu, (): &()) -> Outcome {
    let case = Case::new(shape(gpu), GemmLayout::Nn);
    let inputs = Inputs::<T, T, f32>::integers(&case, 5);
    let plain = inputs.expected(&case);
    let expected = Expected { d: plain.d.iter().map(|x| x * 4.0 * 0.5 * 8.0).collect(), limit: 0.0 };
    let placement = Placement::contiguous::<T, T, f32>(&case);
    for_each_way::<T, T>(gpu, &case, is_aligned::<T, T>(&case), |way| {
        for on_host in [true, false] {
            let stream = gpu.new_stream()?;
            let on_device = OnDevice::upload(&stream, &inputs, &placement)?;
            let stored = |factor| Buffer::upload_blocking(&stream, &[factor]);
            let (a, b, d) = (stored(4.0)?, stored(0.5)?, stored(8.0)?);
            let mut out = Guarded::<f32>::new(gpu, &stream, placement.d.count())?;
            let view = placement.d.moved(out.offset());
            let tensors = on_device.tensors(&case, &placement, tensor_mut(out.buffer(), &view)?)?;
            let of = |factor: f32, buffer| -> ferrotile::Result<Scale<'_>> {
                Ok(if on_host { Scale::Value(factor) } else { Scale::Device(TensorRef::contiguous(buffer, [1])?) })
            };
            let tensors =
                GemmTensors { a_scale: of(4.0, &a)?, b_scale: of(0.5, &b)?, d_scale: of(8.0, &d)?, ..tensors };
            gemm(stream.as_ref(), tensors, &GemmOptions { splits: None, ..case.options(way) })?;
            check(&case, &out.read(&stream)?, &expected)?;
        }
        Ok(())
    })
}

/// Two of the three factors leave the range of f32 together, and the third brings them back.
fn balanced<T: Stored>(gpu: &Gpu, (): &()) -> Outcome {
    let case = Case::new(shape(gpu), GemmLayout::Nn);
    let inputs = Inputs::<T, T, f32>::integers(&case, 6);
    let expected = Expected { limit: 0.0, ..inputs.expected(&case) };
    let placement = Placement::contiguous::<T, T, f32>(&case);
    let stream = gpu.new_stream()?;
    let on_device = OnDevice::upload(&stream, &inputs, &placement)?;
    let mut out = Guarded::<f32>::new(gpu, &stream, placement.d.count())?;
    let view = placement.d.moved(out.offset());
    let tensors = on_device.tensors(&case, &placement, tensor_mut(out.buffer(), &view)?)?;
    let [alpha, a_scale, b_scale] = [70f32, 60.0, -130.0].map(f32::exp2);
    let (a_scale, b_scale) = (Scale::Value(a_scale), Scale::Value(b_scale));
    let options = GemmOptions { alpha, ..GemmOptions::new(case.layout) };
    gemm(stream.as_ref(), GemmTensors { a_scale, b_scale, ..tensors }, &options)?;
    check(&case, &out.read(&stream)?, &expected)
}
