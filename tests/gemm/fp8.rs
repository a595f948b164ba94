//! FP8: e4m3 by e4m3 and e4m3 by e5m2, which sm_89 and later multiply.

use ferrotile::{
    Accumulation, Activation, Arch, Error, F8E4M3, F8E5M2, Float, GemmLayout, GemmOptions, GemmPlan, Gpu, Scale,
    TensorMut, tolerance,
};
use half::{bf16, f16};
use tests::guard::Guarded;
use tests::is_small;
use variants::gemm::GemmUnit;

use crate::Trials;
use crate::case::{
    Case, Expected, Inputs, OnDevice, Outcome, Placement, Stored, check, check_every_way, for_each_way, run, tensor_mut,
};
use crate::special::check_unread;

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    for layout in GemmLayout::ALL {
        let name = format!("fp8_integers/{layout}");
        trials.typed(&name, "e4m3", &layout, exact::<F8E4M3>);
        trials.typed(&name, "e4m3_e5m2", &layout, exact::<F8E5M2>);
    }
    trials.typed("fp8_normal_inputs", "e4m3", &(), normal::<F8E4M3>);
    trials.typed("fp8_normal_inputs", "e4m3_e5m2", &(), normal::<F8E5M2>);
    trials.typed("fp8_large_products_hide_small_ones", "e4m3", &(), hidden);
    trials.typed("fp8_outputs_saturate", "e4m3", &(), saturated);
    trials.typed("fp8_operands_at_odd_bytes", "e4m3", &(), odd_bytes);
    trials.typed("fp8_scales", "e4m3", &(), scaled);
    trials.typed("fp8_alpha_zero_does_not_read_a_and_b", "e4m3", &(), unread_operands::<F8E4M3>);
    trials.typed("fp8_alpha_zero_does_not_read_a_and_b", "e4m3_e5m2", &(), unread_operands::<F8E5M2>);
}

/// Whether the device multiplies FP8; where it does not, that plans say so.
fn is_compiled(gpu: &Gpu) -> Result<bool, libtest_mimic::Failed> {
    if gpu.arch() >= Arch::Sm89 {
        return Ok(true);
    }
    let problem = Case::new([16, 16, 16], GemmLayout::Nt).problem::<F8E4M3, F8E4M3, f16>();
    match GemmPlan::new(gpu, &problem, &GemmOptions::new(GemmLayout::Nt)) {
        Err(Error::Unsupported { feature, remedy, .. }) if feature.contains("sm_80") && remedy.contains("sm_89") => {
            Ok(false)
        }
        other => Err(format!("{other:?}").into()),
    }
}

fn shapes(gpu: &Gpu) -> &'static [[usize; 3]] {
    if is_small(gpu) {
        &[[20, 40, 144], [5, 7, 33]]
    } else {
        &[[150, 300, 400], [5, 24, 200], [131, 37, 1001], [1, 1, 1], [128, 256, 128], [40, 768, 1152], [72, 88, 0]]
    }
}

fn exact<B: Stored>(gpu: &Gpu, &layout: &GemmLayout) -> Outcome {
    if !is_compiled(gpu)? {
        return Ok(());
    }
    for (&shape, accumulation) in
        shapes(gpu).iter().flat_map(|shape| [Accumulation::Direct, Accumulation::TwoLevel].map(|level| (shape, level)))
    {
        let case = Case { accumulation, beta: 1.0, bias: true, ..Case::new(shape, layout).batched(2) };
        let inputs = Inputs::<F8E4M3, B, f32>::integers(&case, 1);
        let expected = Expected { limit: 0.0, ..inputs.expected(&case) };
        let placement = Placement::contiguous::<F8E4M3, B, f32>(&case);
        for_each_way::<F8E4M3, B>(gpu, &case, true, |way| {
            check(&case, &run(gpu, &case, &inputs, &placement, way)?, &expected)
        })?;
    }
    Ok(())
}

fn normal<B: Stored>(gpu: &Gpu, (): &()) -> Outcome {
    if !is_compiled(gpu)? {
        return Ok(());
    }
    let long = if is_small(gpu) { [16, 16, 400] } else { [40, 72, 8200] };
    for (shape, accumulation) in shapes(gpu)
        .iter()
        .copied()
        .chain([long])
        .flat_map(|shape| [Accumulation::Direct, Accumulation::TwoLevel].map(|level| (shape, level)))
    {
        let case = Case { accumulation, alpha: 0.5, activation: Activation::Silu, ..Case::new(shape, GemmLayout::Nt) };
        check_every_way(gpu, &case, &Inputs::<F8E4M3, B, f16>::normal(&case, 2))?;
        check_every_way(gpu, &case, &Inputs::<F8E4M3, B, bf16>::normal(&case, 2))?;
        check_every_way(gpu, &case, &Inputs::<F8E4M3, B, F8E4M3>::normal(&Case { beta: 0.5, ..case }, 2))?;
    }
    Ok(())
}

/// In layouts that are copied first, too.
fn unread_operands<B: Stored>(gpu: &Gpu, (): &()) -> Outcome {
    if !is_compiled(gpu)? {
        return Ok(());
    }
    for (layout, accumulation) in GemmLayout::ALL
        .into_iter()
        .flat_map(|layout| [Accumulation::Direct, Accumulation::TwoLevel].map(|a| (layout, a)))
    {
        let case = Case { alpha: 0.0, beta: 0.5, accumulation, ..Case::new([20, 40, 144], layout).batched(2) };
        check_unread::<F8E4M3, B>(gpu, &case)?;
    }
    Ok(())
}

/// Numbers whose products tensor cores cut off as far as they can: the error is within the limit, which is not far from
/// it where the accumulators have 13 bits.
fn hidden(gpu: &Gpu, (): &()) -> Outcome {
    if !is_compiled(gpu)? {
        return Ok(());
    }
    let lengths: &[usize] = if is_small(gpu) { &[16, 1040] } else { &[16, 128, 4096, 16384] };
    for (&k, accumulation) in
        lengths.iter().flat_map(|k| [Accumulation::Direct, Accumulation::TwoLevel].map(|level| (k, level)))
    {
        let case = Case { accumulation, ..Case::new([24, 16, k], GemmLayout::Nt) };
        let mut inputs = Inputs::<F8E4M3, F8E4M3, f32>::integers(&case, 6);
        // 16 at the start of every 128, and 0.172, whose square is just below 2^-13 of that of 16. Rows have signs of
        // their own, from all alike to drawn ones.
        let is_large = |at: usize| at.is_multiple_of(128) && (accumulation == Accumulation::TwoLevel || at == 0);
        let number = |at: usize| if is_large(at) { 16.0 } else { 0.171875 };
        for (at, element) in inputs.a.iter_mut().enumerate() {
            let (row, at) = (at / k, at % k);
            let sign = if at > 0 && row > 0 && (at * row * 7919) % 24 < row { -1.0 } else { 1.0 };
            *element = F8E4M3::from_f64(sign * number(at));
        }
        for (at, element) in inputs.b.iter_mut().enumerate() {
            *element = F8E4M3::from_f64(number(at % k));
        }
        let problem = case.problem::<F8E4M3, F8E4M3, f32>();
        let magnitude = (0..k).map(|at| number(at) * number(at)).sum();
        let limit = tolerance::gemm_limit(&problem, accumulation, 0.0, magnitude);
        let expected = Expected { limit, ..inputs.expected(&case) };
        let placement = Placement::contiguous::<F8E4M3, F8E4M3, f32>(&case);
        for_each_way::<F8E4M3, F8E4M3>(gpu, &case, true, |way| {
            let d = run(gpu, &case, &inputs, &placement, way)?;
            check(&case, &d, &expected)?;
            let error = tolerance::max_error(&d, &expected.d);
            // Parts of k have accumulators of their own, and rows of two levels serve where one is asked for.
            let comes_near = way.config.unit == GemmUnit::Wgmma && way.config.accumulation == accumulation;
            if comes_near && way.splits <= 1 && error < limit / 4.0 {
                return Err(format!("the limit is {limit:e}, and the error {error:e}").into());
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// E4M3 has no infinity: what is too large becomes 448.
fn saturated(gpu: &Gpu, (): &()) -> Outcome {
    if !is_compiled(gpu)? {
        return Ok(());
    }
    let case = Case { alpha: 100.0, ..Case::new([16, 24, 32], GemmLayout::Nt) };
    let inputs = Inputs::<F8E4M3, F8E4M3, F8E4M3>::integers(&case, 3);
    let expected = inputs.expected(&case);
    let clamped: Vec<f64> = expected.d.iter().map(|x| x.clamp(-448.0, 448.0)).collect();
    assert!(clamped.iter().filter(|x| x.abs() == 448.0).count() > 100);
    let placement = Placement::contiguous::<F8E4M3, F8E4M3, F8E4M3>(&case);
    for_each_way::<F8E4M3, F8E4M3>(gpu, &case, true, |way| {
        let d = run(gpu, &case, &inputs, &placement, way)?;
        // Multiples of 100 below 448 are rounded by at most 16.
        check(&case, &d, &Expected { d: clamped.clone(), limit: 16.0 })
    })
}

/// Views that start between chunks, of every layout: they are copied first.
fn odd_bytes(gpu: &Gpu, (): &()) -> Outcome {
    if !is_compiled(gpu)? {
        return Ok(());
    }
    for layout in GemmLayout::ALL {
        let case = Case::new([20, 40, 144], layout);
        let inputs = Inputs::<F8E4M3, F8E4M3, f32>::integers(&case, 4);
        let expected = Expected { limit: 0.0, ..inputs.expected(&case) };
        let plain = Placement::contiguous::<F8E4M3, F8E4M3, f32>(&case);
        let placement = Placement { a: plain.a.moved(1), b: plain.b.moved(3), ..plain };
        for_each_way::<F8E4M3, F8E4M3>(gpu, &case, false, |way| {
            check(&case, &run(gpu, &case, &inputs, &placement, way)?, &expected)
        })?;
    }
    Ok(())
}

/// The scales of A, B and D, and a plan that names the copy that it makes.
fn scaled(gpu: &Gpu, (): &()) -> Outcome {
    if !is_compiled(gpu)? {
        return Ok(());
    }
    let case = Case::new([24, 48, 64], GemmLayout::Nn);
    let inputs = Inputs::<F8E4M3, F8E4M3, f32>::integers(&case, 5);
    let plain = inputs.expected(&case);
    let expected = Expected { d: plain.d.iter().map(|x| x * 0.25 * 2.0 * 16.0).collect(), limit: 0.0 };
    let stream = gpu.new_stream()?;
    let placement = Placement::contiguous::<F8E4M3, F8E4M3, f32>(&case);
    let on_device = OnDevice::upload(&stream, &inputs, &placement)?;
    let options = GemmOptions { max_workspace_bytes: 1 << 20, ..GemmOptions::new(case.layout) };
    let plan = GemmPlan::new(gpu, &case.problem::<F8E4M3, F8E4M3, f32>(), &options)?;
    if !plan.to_string().starts_with("gemm_pack_8bit(B), gemm_e4m3_") {
        return Err(format!("the plan is {plan}").into());
    }
    let mut workspace = ferrotile::Buffer::<u8>::zeroed(gpu, plan.workspace_bytes())?;
    let mut out = Guarded::<f32>::new(gpu, &stream, placement.d.count())?;
    let view = placement.d.moved(out.offset());
    let mut tensors = on_device.tensors(&case, &placement, tensor_mut(out.buffer(), &view)?)?;
    (tensors.a_scale, tensors.b_scale, tensors.d_scale) = (Scale::Value(0.25), Scale::Value(2.0), Scale::Value(16.0));
    let bytes = workspace.len();
    plan.run(stream.as_ref(), tensors, Some(TensorMut::contiguous(&mut workspace, [bytes])?))?;
    check(&case, &out.read(&stream)?, &expected)
}
