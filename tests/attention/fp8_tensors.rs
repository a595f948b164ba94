//! Tensors of attention on E4M3: where they lie, and what is refused.

use ferrotile::{
    Arch, AttentionOptions, AttentionParams, AttentionPlan, AttentionProblem, AttentionTensors, Buffer, Descales,
    Dtype, Error, F8E4M3, Gpu, Layout, Mask, TensorMut, TensorRef, attention,
};
use half::{bf16, f16};
use tests::compare;
use tests::guard::Poison;
use tests::view::View;
use tests::{Trials, expect_error};
use variants::attention::AttentionKernel;

use crate::case::{Case, Inputs, Outcome, dense};
use crate::fp8::{Quantized, configs, head_dims, is_compiled, run};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    trials.typed("fp8_strided_views", "bf16", &(), strided);
    trials.typed("fp8_rows_that_start_anywhere", "f16", &(), unaligned);
    trials.typed("fp8_refusals", "bf16", &(), refusals);
}

/// Heads that lie between each other, factors that are a view, and heads of Q with factors of their own.
fn strided(gpu: &Gpu, (): &()) -> Outcome {
    if !is_compiled(gpu)? {
        return Ok(());
    }
    let stream = gpu.new_stream()?;
    let (batch, heads, len, head_dim) = (2, 3, 100, 64);
    let case = Case::new(batch, heads, len, len, head_dim, Mask::Causal);
    let quantized = Quantized::normal(&case, 37, [None, None, None]);
    let Inputs { q, k, v } = &quantized.inputs;
    let [q, k, v] = [q, k, v].map(|values| Buffer::upload_blocking(&stream, values));
    let (q, k, v) = (q?, k?, v?);
    // `[batch][unused][head]`, of which the columns are what counts.
    let numbers: Vec<f32> = (0..batch * 2 * heads).map(|index| 0.5 + index as f32 / 8.0).collect();
    let stored = Buffer::upload_blocking(&stream, &numbers)?;
    let dense: Vec<f32> = (0..batch * heads).map(|index| numbers[index / heads * 2 * heads + index % heads]).collect();
    let dense = Buffer::upload_blocking(&stream, &dense)?;
    let shape = case.q_shape();
    let swapped = [batch, len, heads, head_dim];
    let of_head = |buffer| {
        TensorRef::strided(
            buffer,
            0,
            shape,
            [len * heads * head_dim, head_dim, heads * head_dim, 1].map(|stride| stride as i64),
        )
    };
    let mut outputs = Vec::new();
    for is_view in [true, false] {
        let factors = if is_view {
            TensorRef::strided(&stored, 0, [batch, heads], [2 * heads as i64, 1])?
        } else {
            TensorRef::contiguous(&dense, [batch, heads])?
        };
        let mut out = Buffer::<bf16>::zeroed(gpu, shape.iter().product())?;
        let descales = Descales { q: Some(factors), k: Some(factors), v: Some(factors) };
        let params = AttentionParams { mask: case.mask, ..AttentionParams::new(Layout::Bhsd) };
        if is_view {
            let tensors = AttentionTensors {
                descales,
                ..AttentionTensors::new(
                    of_head(&q)?,
                    of_head(&k)?,
                    of_head(&v)?,
                    TensorMut::contiguous(&mut out, shape)?,
                )
            };
            attention(&stream, tensors, &params, &AttentionOptions::default())?;
        } else {
            let of = |buffer| TensorRef::contiguous(buffer, swapped);
            let (q, k, v) = (of(&q)?, of(&k)?, of(&v)?);
            let strides = [len * heads * head_dim, head_dim, len * head_dim, 1].map(|stride| stride as i64);
            let out = TensorMut::strided(&mut out, 0, swapped, strides)?;
            let params = AttentionParams { layout: Layout::Bshd, ..params };
            let tensors = AttentionTensors { descales, ..AttentionTensors::new(q, k, v, out) };
            attention(&stream, tensors, &params, &AttentionOptions::default())?;
        }
        outputs.push(out.download_blocking(&stream)?);
    }
    if outputs[0].iter().all(|x| *x == bf16::ZERO) {
        return Err("nothing was written".into());
    }
    compare::check_same(&outputs[0], &outputs[1], &shape)?;
    Ok(())
}

/// Rows that start at odd addresses give the bits of rows that TMA and 16-byte copies take. Those of 40 elements end
/// with half a chunk, beyond which nothing is read.
fn unaligned(gpu: &Gpu, (): &()) -> Outcome {
    if !is_compiled(gpu)? {
        return Ok(());
    }
    let stream = gpu.new_stream()?;
    for &head_dim in head_dims(gpu).iter().chain(&[40]) {
        let case = Case::new(1, 2, 70, 100, head_dim, Mask::Causal);
        let quantized = Quantized::normal(&case, 41, [None, None, None]);
        let config = configs::<f16>(gpu, &case).find(|config| matches!(config.kernel, AttentionKernel::Mma(_)));
        let Some(config) = config else {
            // Wider heads have kernels for aligned rows alone there.
            if gpu.arch() == Arch::Sm90a && head_dim > 128 {
                continue;
            }
            return Err("no kernel takes any strides".into());
        };
        let aligned = run::<f16>(gpu, &case, &quantized, config)?;
        aligned.check(&case, &quantized.expected::<f16>(&case))?;
        let placed = |values: &[F8E4M3], shape: [usize; 4]| {
            let [_, heads, rows, columns] = shape.map(|size| size as i64);
            let row = columns + 1;
            let view = View { offset: 1, shape, strides: [heads * rows * row, rows * row, row, 1] };
            let mut storage = vec![F8E4M3::poison(); view.storage_len()];
            view.scatter(values, &mut storage);
            Buffer::upload_blocking(&stream, &storage).map(|buffer| (view, buffer))
        };
        let Inputs { q, k, v } = &quantized.inputs;
        let (q, k) = (placed(q, case.q_shape())?, placed(k, case.kv_shape())?);
        let v = placed(v, case.kv_shape())?;
        let mut out = Buffer::<f16>::zeroed(gpu, case.q_shape().iter().product())?;
        let tensors = AttentionTensors::new(
            q.0.tensor(&q.1, Layout::Bhsd)?,
            k.0.tensor(&k.1, Layout::Bhsd)?,
            v.0.tensor(&v.1, Layout::Bhsd)?,
            TensorMut::contiguous(&mut out, case.q_shape())?,
        );
        let params = AttentionParams { mask: case.mask, ..AttentionParams::new(Layout::Bhsd) };
        attention(&stream, tensors, &params, &AttentionOptions::default())?;
        compare::check_same(&out.download_blocking(&stream)?, &aligned.out, &case.q_shape())?;
    }
    Ok(())
}

/// What no kernel takes is refused by name.
fn refusals(gpu: &Gpu, (): &()) -> Outcome {
    if !is_compiled(gpu)? {
        return Ok(());
    }
    let stream = gpu.new_stream()?;
    let case = Case::new(1, 4, 16, 16, 64, Mask::Full).grouped(4, 2);
    let (q, kv) = (Buffer::<F8E4M3>::zeroed(gpu, 4 * 16 * 64 + 16)?, Buffer::<F8E4M3>::zeroed(gpu, 2 * 16 * 64)?);
    let factors = Buffer::<f32>::zeroed(gpu, 16)?;
    let mut out = Buffer::<bf16>::zeroed(gpu, 4 * 16 * 64)?;
    let mut call = |first: usize, descales: Descales<'_>, params: AttentionParams| {
        let strides = dense(case.q_shape());
        let kv = TensorRef::contiguous(&kv, case.kv_shape())?;
        let tensors = AttentionTensors {
            descales,
            ..AttentionTensors::new(
                TensorRef::strided(&q, first, case.q_shape(), strides)?,
                kv,
                kv,
                TensorMut::contiguous(&mut out, case.q_shape())?,
            )
        };
        attention(&stream, tensors, &params, &AttentionOptions::default())
    };
    let params = AttentionParams::new(Layout::Bhsd);
    call(0, Descales::NONE, params)?;
    let of = |shape: [usize; 2]| TensorRef::strided(&factors, 0, shape, [shape[1] as i64, 1]);
    call(0, Descales { q: Some(of([1, 2])?), k: Some(of([1, 2])?), v: Some(of([1, 1])?) }, params)?;
    let is_shape = |error: &Error, name: &str| matches!(error, Error::Shape { tensor, .. } if tensor.contains(name));
    expect_error(call(0, Descales { q: Some(of([1, 3])?), ..Descales::NONE }, params), |error| {
        is_shape(error, "of Q")
    })?;
    expect_error(call(0, Descales { k: Some(of([1, 4])?), ..Descales::NONE }, params), |error| {
        is_shape(error, "of K")
    })?;
    expect_error(call(0, Descales { v: Some(of([2, 2])?), ..Descales::NONE }, params), |error| {
        is_shape(error, "of V")
    })?;
    let sizes = case.sizes;
    let plan = |dtype: Dtype, params: AttentionParams| {
        AttentionPlan::new(gpu, dtype, &AttentionProblem::new(sizes, params), &AttentionOptions::default())
    };
    let _: AttentionPlan = plan(Dtype::E4M3, AttentionParams { bias: true, softcap: Some(4.0), ..params })?;
    let of_f32 = AttentionParams { out: Some(Dtype::F32), ..params };
    expect_error(plan(Dtype::E4M3, of_f32), |error| matches!(error, Error::Argument { .. }))?;
    let to_e4m3 = AttentionParams { out: Some(Dtype::E4M3), ..params };
    let _: AttentionPlan = plan(Dtype::E4M3, AttentionParams { out_scale: Some(0.5), ..to_e4m3 })?;
    expect_error(plan(Dtype::Bf16, to_e4m3), |error| matches!(error, Error::Argument { .. }))?;
    for (scale, params) in [(0.0, to_e4m3), (f32::NAN, to_e4m3), (1.0, params)] {
        expect_error(plan(Dtype::E4M3, AttentionParams { out_scale: Some(scale), ..params }), |error| {
            matches!(error, Error::Argument { argument: "out_scale", .. })
        })?;
    }
    let halves = Buffer::<f16>::zeroed(gpu, 4 * 16 * 64)?;
    let mut out = Buffer::<f16>::zeroed(gpu, 4 * 16 * 64)?;
    let half = TensorRef::contiguous(&halves, case.q_shape())?;
    let tensors = AttentionTensors {
        descales: Descales { q: Some(of([1, 1])?), ..Descales::NONE },
        ..AttentionTensors::new(half, half, half, TensorMut::contiguous(&mut out, case.q_shape())?)
    };
    let refused = attention(&stream, tensors, &params, &AttentionOptions::default());
    expect_error(refused, |error| matches!(error, Error::Argument { argument: "descale factors of Q", .. }))
}
