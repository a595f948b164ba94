//! Scores, scales, biases, sinks and values of every size that the types hold: a finite input has a finite result.

use std::f64::consts::LOG2_E;

use ferrotile::tolerance::{element_error, lse_limit};
use ferrotile::{Gpu, Layout, Mask};
use half::{bf16, f16};
use layout::Dtype;
use libtest_mimic::Failed;
use tests::compare;
use tests::inputs::{self, Half};
use tests::is_small;
use tests::request::Request;
use variants::attention::{AttentionConfig, AttentionKernel, ScoreMod, Seqlens};

use crate::Trials;
use crate::case::{Case, Expected, Inputs, Outcome, Output, few, for_configs};
use crate::scores::{Terms, run, run_with};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    for head_dim in [64, 128, 256, 40] {
        let name = |what: &str| format!("range/{what}/d{head_dim}");
        trials.both(&name("a_finite_bias_masks_keys"), &head_dim, masks::<f16>, masks::<bf16>);
        trials.both(&name("scores_are_of_any_size"), &head_dim, any_size::<f16>, any_size::<bf16>);
        trials.both(&name("tiny_scales_count"), &head_dim, tiny_scales::<f16>, tiny_scales::<bf16>);
        trials.both(&name("scores_and_biases_add_up"), &head_dim, large_sums::<f16>, large_sums::<bf16>);
        trials.both(&name("sinks_are_of_any_size"), &head_dim, sinks::<f16>, sinks::<bf16>);
        trials.both(&name("softcaps_bound_any_size"), &head_dim, softcaps::<f16>, softcaps::<bf16>);
        trials.both(&name("values_are_of_any_size"), &head_dim, values::<f16>, values::<bf16>);
    }
    trials.both("range/splits_weigh_masked_keys", &(), masked_splits::<f16>, masked_splits::<bf16>);
}

/// The numbers with which models mask: the lowest finite one of the type and parts of it, and round numbers.
fn masking_numbers<T: Half>() -> Vec<f64> {
    let lowest = -largest::<T>();
    let round = [-1e4, -1e9, -1e10, -1e30].into_iter().filter(|&number| number > lowest);
    [1.0, 0.5, 0.25].map(|part| part * lowest).into_iter().chain(round).collect()
}

/// The largest finite number of the type.
fn largest<T: Half>() -> f64 {
    match T::DTYPE {
        Dtype::F16 => f16::MAX.to_f64(),
        _ => bf16::MAX.to_f64(),
    }
}

/// The configurations that serve the case with these terms, all their numbers of splits.
fn check<T: Half>(gpu: &Gpu, case: &Case, inputs: &Inputs<T>, terms: &Terms<T>) -> Outcome {
    let expected = terms.expected(case, inputs);
    // Only general kernels take a scale whose product with log2(e) f32 does not hold to the last bit.
    let is_held = |factor: f64| (f64::from(f32::MIN_POSITIVE)..f64::from(f32::MAX) / LOG2_E).contains(&factor);
    let scale = case.scale().abs();
    let scores = match (terms.scores(), terms.softcap) {
        (ScoreMod::None, _) if scale > 0.0 && !is_held(scale) => ScoreMod::General,
        (ScoreMod::Softcap, Some(cap)) if !is_held(2.0 * LOG2_E * scale / f64::from(cap)) => ScoreMod::General,
        (scores, _) => scores,
    };
    for_configs(case, case.configs_of::<T>(gpu, scores, Seqlens::Fixed), |config| {
        for splits in if is_decode(config) { &[1, 3][..] } else { &[1] } {
            let options = Request {
                splits: is_decode(config).then_some(*splits),
                max_workspace_bytes: if *splits > 1 { 1 << 24 } else { 0 },
                ..case.options(Layout::Bshd, config)
            };
            let output = run_with(gpu, case, inputs, terms, &options)?;
            check_output(case, &output, &expected)
                .map_err(|error| format!("{splits} splits: {}", error.message().unwrap_or("failed")))?;
        }
        Ok(())
    })
}

fn is_decode(config: &AttentionConfig) -> bool {
    matches!(config.kernel, AttentionKernel::Decode(_))
}

/// O by the rule for all tensors; each LSE by its own size, which differs between rows by 38 orders of magnitude.
fn check_output<T: Half>(case: &Case, output: &Output<T>, expected: &Expected) -> Outcome {
    if !expected.out.iter().all(|x| x.is_finite()) || !expected.limit.max_abs.is_finite() {
        return Err("the reference is not finite".into());
    }
    compare::check(&output.out, &expected.out, &case.q_shape(), expected.limit.max_abs)?;
    for (index, (&got, &want)) in output.lse.iter().zip(&expected.lse).enumerate() {
        // What f32 cannot hold is infinite.
        let want = if want.abs() > f64::from(f32::MAX) { f64::INFINITY.copysign(want) } else { want };
        let limit = if want.is_finite() { 4.0 * lse_limit(want.abs(), 0.0) } else { 0.0 };
        let at_the_end = want.abs() > f64::from(f32::MAX) * (1.0 - 1e-6) && got.is_infinite();
        if element_error(f64::from(got), want) > limit && !at_the_end {
            return Err(format!("LSE {index} is {got:e}, expected {want:e}, limit {limit:e}").into());
        }
    }
    Ok(())
}

/// Whether the key of this number is hidden from the row of this number.
type IsMasked = fn(usize, usize) -> bool;

/// Keys that a finite bias hides are as keys that the mask hides, whichever they are; a row whose keys are all hidden
/// so weighs them alike.
fn masks<T: Half>(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    let (q_len, k_len) = (70, 200);
    let case = Case::new(1, few(gpu, 2), q_len, k_len, head_dim, Mask::Full);
    let mut random = inputs::random(41);
    let mut inputs = Inputs::<T>::normal(&case, 41);
    // Integers: scores are exact, in whichever order a kernel adds them up.
    inputs.q = inputs::integers(&mut random, inputs.q.len(), 1);
    inputs.k = inputs::integers(&mut random, inputs.k.len(), 1);
    let positions: [(&str, IsMasked); 7] = [
        ("the first keys", |_, key| key < 64),
        ("the middle", |_, key| (64..128).contains(&key)),
        ("the last keys", |_, key| key >= 128),
        ("all but the first", |_, key| key > 0),
        ("all but one", |row, key| key != (3 * row) % 200),
        ("all", |_, _| true),
        ("a causal mask", |row, key| key > row + 130),
    ];
    let numbers = masking_numbers::<T>();
    for (index, (what, is_masked)) in positions.into_iter().enumerate() {
        let chosen =
            if is_small(gpu) { &numbers[(index + head_dim / 64) % numbers.len()..][..1] } else { &numbers[..] };
        for &number in chosen {
            let bias = (0..q_len * k_len)
                .map(|at| is_masked(at / k_len, at % k_len))
                .map(|masked| T::from_f64(if masked { number } else { 0.0 }));
            let terms = Terms { bias: Terms::bias(bias.collect(), [1, 1, q_len, k_len]), ..Terms::NONE };
            check(gpu, &case, &inputs, &terms)
                .map_err(|error| format!("{what} by {number:e}: {}", error.message().unwrap_or("failed")))?;
        }
    }
    Ok(())
}

/// Scales from the smallest to the largest, of both signs, on scores that are exact: the largest of a row, and whatever
/// is as large, has all of the weight where the scale is large.
fn any_size<T: Half>(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    let scales = [1e-45, 1e-30, 1e-10, 1.0, 40.0, 1e3, 1e7, 4e8, 1e20, 1e30, 2.3e38, f32::MAX];
    let of_this = |index: usize| !is_small(gpu) || index % 6 == head_dim / 64 % 6;
    for (_, scale) in scales.into_iter().enumerate().filter(|&(index, _)| of_this(index)) {
        for (sign, (q_len, k_len)) in [(1.0, (70, 200)), (-1.0, (5, 133))] {
            let case = Case::new(1, few(gpu, 2), q_len, k_len, head_dim, Mask::Causal).scaled(sign * scale);
            let mut random = inputs::random(42);
            let mut inputs = Inputs::<T>::normal(&case, 42);
            inputs.q = inputs::integers(&mut random, inputs.q.len(), 1);
            inputs.k = inputs::integers(&mut random, inputs.k.len(), 1);
            check(gpu, &case, &inputs, &Terms::NONE)?;
        }
    }
    // Scores that are themselves so large or small.
    for (q, k) in [(1e-15f64, 1e-15f64), (1e19, 1e19), (-1e19, 1e19), (3e38, 1.0), (-3e38, 1.0)] {
        if q.abs() > largest::<T>() || k.abs() > largest::<T>() {
            continue;
        }
        let case = Case::new(1, 1, 70, 133, head_dim, Mask::Causal).scaled(1.0);
        let mut inputs = Inputs::<T>::normal(&case, 43);
        // One product a score, times 1 or 2.
        inputs.q.iter_mut().enumerate().for_each(|(at, x)| *x = T::from_f64(if at % head_dim == 3 { q } else { 0.0 }));
        inputs.k.iter_mut().enumerate().for_each(|(at, x)| {
            *x = T::from_f64(if at % head_dim == 3 { k * [0.5, 1.0][at / head_dim * 7 % 3 % 2] } else { 0.0 });
        });
        check(gpu, &case, &inputs, &Terms::NONE)?;
    }
    Ok(())
}

/// Scales around the end of f32's normal numbers, below it and of 0, on raw scores so large that the scale still counts
/// where the type of Q and K has such.
fn tiny_scales<T: Half>(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    let (q_len, k_len) = (20, 133);
    let unit = if T::DTYPE == Dtype::F16 { 2f64.powi(15) } else { 2f64.powi(61) };
    for (index, scale) in [0.0, 1e-45, -1e-39, 1e-38, -1.2e-38, 3e-38].into_iter().enumerate() {
        let case = Case::new(1, 2, q_len, k_len, head_dim, Mask::Causal).scaled(scale);
        let mut random = inputs::random(47);
        let mut inputs = Inputs::<T>::normal(&case, 47);
        let mut fill = |values: &mut [T]| {
            let integers: Vec<T> = inputs::integers(&mut random, values.len(), 1);
            for (at, (value, integer)) in values.iter_mut().zip(integers).enumerate() {
                // A few of the dimensions: no sum is beyond f32.
                *value = T::from_f64(if at % head_dim < 8 { integer.to_f64() * unit } else { 0.0 });
            }
        };
        fill(&mut inputs.q);
        fill(&mut inputs.k);
        let bias = inputs::normal(&mut random, q_len * k_len, 1.0);
        let with_bias = Terms { bias: Terms::bias(bias, [1, 1, q_len, k_len]), ..Terms::NONE };
        let capped = Terms { softcap: Some(1.0), ..Terms::NONE };
        let all = [Terms::NONE, capped, with_bias];
        for terms in if is_small(gpu) { &all[index % 3..][..1] } else { &all[..] } {
            check(gpu, &case, &inputs, terms).map_err(|error| {
                format!("scale {scale:e}, {:?}: {}", terms.scores(), error.message().unwrap_or("failed"))
            })?;
        }
    }
    Ok(())
}

/// Scores and biases whose sums are beyond f32.
fn large_sums<T: Half>(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    let (q_len, k_len) = (33, 133);
    for (scale, sign) in [(3e38, 1.0), (3e38, -1.0), (1e38, -1.0)] {
        let case = Case::new(1, 1, q_len, k_len, head_dim, Mask::Full).scaled(scale);
        let mut inputs = Inputs::<T>::normal(&case, 44);
        // Scores of 0, 1 and -1 before the scale.
        inputs.q.iter_mut().enumerate().for_each(|(at, x)| *x = T::from_f64(f64::from(u8::from(at % head_dim == 0))));
        inputs.k.iter_mut().enumerate().for_each(|(at, x)| {
            let score = [-1.0, 0.0, 1.0][at / head_dim % 3];
            *x = T::from_f64(if at % head_dim == 0 { score } else { 0.0 });
        });
        let bias = (0..q_len * k_len).map(|at| T::from_f64([1.0, 0.5, 1.0, 1.0][at % 4] * sign * largest::<T>()));
        check(gpu, &case, &inputs, &Terms { bias: Terms::bias(bias.collect(), [1, 1, q_len, k_len]), ..Terms::NONE })?;
    }
    Ok(())
}

/// Sinks far beyond all scores, on both sides; beside masked keys too.
fn sinks<T: Half>(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    let sink = Some(vec![3e38, -3e38, f32::MAX, f32::MIN, 0.0, f32::NEG_INFINITY]);
    for scale in [0.125, 1e30] {
        let case = Case::new(1, 6, 20, 70, head_dim, Mask::Causal).scaled(scale);
        let mut random = inputs::random(45);
        let mut inputs = Inputs::<T>::normal(&case, 45);
        inputs.q = inputs::integers(&mut random, inputs.q.len(), 1);
        inputs.k = inputs::integers(&mut random, inputs.k.len(), 1);
        check(gpu, &case, &inputs, &Terms { sink: sink.clone(), ..Terms::NONE })?;
        let bias = Terms::bias(vec![T::from_f64(-largest::<T>()); 20 * 70], [1, 1, 20, 70]);
        check(gpu, &case, &inputs, &Terms { sink: sink.clone(), bias, ..Terms::NONE })?;
    }
    Ok(())
}

/// Softcaps of any size on scores of any size.
fn softcaps<T: Half>(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    for (softcap, scale) in [(30.0, 1e30), (30.0, f32::MAX), (1e-30, 1e-30), (1e30, 1e28), (8e37, 1e38), (64.0, 1e-30)]
    {
        let case = Case::new(1, 2, 33, 133, head_dim, Mask::Causal).scaled(scale);
        let mut random = inputs::random(46);
        let mut inputs = Inputs::<T>::normal(&case, 46);
        inputs.q = inputs::integers(&mut random, inputs.q.len(), 1);
        inputs.k = inputs::integers(&mut random, inputs.k.len(), 1);
        check(gpu, &case, &inputs, &Terms { softcap: Some(softcap), ..Terms::NONE })?;
    }
    Ok(())
}

/// Values whose sum is within f32, all of one sign, and tiny ones.
fn values<T: Half>(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    let large = (0.5 * largest::<T>()).min(1e36);
    for (value, q_len) in [(large, 70), (large, 3), (1e-5, 33)] {
        let case = Case::new(1, 2, q_len, 200, head_dim, Mask::Causal);
        let mut inputs = Inputs::<T>::normal(&case, 47);
        let mut random = inputs::random(48);
        inputs.v.iter_mut().for_each(|x| {
            *x = T::from_f64(value * (1.0 + 0.125 * inputs::integer(&mut random, 4) / 4.0));
        });
        check(gpu, &case, &inputs, &Terms::NONE)?;
    }
    Ok(())
}

/// Rows whose keys are all masked, in splits of unlike length: an LSE has no digits left for how many keys it stands
/// for, and each key must count the same.
fn masked_splits<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let case = Case::new(1, 2, 3, 133, 64, Mask::Full).scaled(0.0);
    let inputs = Inputs::<T>::normal(&case, 49);
    let bias = Terms::bias(vec![T::from_f64(-largest::<T>()); 3 * 133], [1, 1, 3, 133]);
    let terms = Terms { bias, ..Terms::NONE };
    let expected = terms.expected(&case, &inputs);
    let config = case.configs_of::<T>(gpu, ScoreMod::General, Seqlens::Fixed).find(|config| is_decode(config));
    let config = config.ok_or("no kernel decodes the case")?;
    for splits in [1, 2, 4, 9] {
        let options =
            Request { splits: Some(splits), max_workspace_bytes: 1 << 24, ..case.options(Layout::Bshd, config) };
        let output: Result<_, Failed> = run_with(gpu, &case, &inputs, &terms, &options);
        check_output(&case, &output?, &expected)?;
    }
    run(gpu, &case, &inputs, &terms, config).and_then(|output| check_output(&case, &output, &expected))
}
