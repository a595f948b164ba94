//! Softcap, sinks and biases.

use ferrotile::reference::AttentionTerms;
use ferrotile::{AttentionTensors, Buffer, Error, Gpu, Layout, Mask, TensorRef};
use half::{bf16, f16};
use libtest_mimic::Failed;
use ndarray::{Array1, Array4};
use tests::compare;
use tests::guard::Guarded;
use tests::inputs::{self, Half};
use tests::request::Request;
use tests::view::View;
use variants::attention::{AttentionConfig, ScoreMod, Seqlens};

use crate::Trials;
use crate::case::{Case, Expected, Inputs, Outcome, Output, Placement, Stored, for_configs, run_with_terms};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    for head_dim in HEAD_DIMS {
        let name = |what: &str| format!("{what}/d{head_dim}");
        trials.both(&name("softcaps_match_the_reference"), &head_dim, softcaps::<f16>, softcaps::<bf16>);
        trials.both(&name("a_softcap_keeps_nan_in_rows_that_see_it"), &head_dim, nan_in_key::<f16>, nan_in_key::<bf16>);
        trials.both(&name("sinks_match_the_reference"), &head_dim, sinks::<f16>, sinks::<bf16>);
        trials.both(&name("biases_match_the_reference"), &head_dim, biases::<f16>, biases::<bf16>);
        trials.both(&name("all_terms_together_match_the_reference"), &head_dim, together::<f16>, together::<bf16>);
        trials.both(&name("a_bias_picks_keys"), &head_dim, bias_picks_keys::<f16>, bias_picks_keys::<bf16>);
        trials.both(&name("terms_that_change_nothing_keep_the_bits"), &head_dim, no_change::<f16>, no_change::<bf16>);
        trials.both(&name("nan_in_a_bias_stays_in_its_row"), &head_dim, nan_in_bias::<f16>, nan_in_bias::<bf16>);
    }
    trials.both("sinks_are_served_where_rows_are_few", &(), few_rows::<f16>, few_rows::<bf16>);
    trials.both("refuses/terms_that_do_not_fit", &(), refused_terms::<f16>, refused_terms::<bf16>);
    trials.both("refuses/a_bias_that_the_plan_has_not", &(), unplanned_bias::<f16>, unplanned_bias::<bf16>);
}

/// Those of tensor-core kernels, and one narrower than any.
const HEAD_DIMS: [usize; 4] = [64, 128, 256, 40];

/// Rows and keys around the edges of tiles; the last keys are whole chunks, in which some kernels load a bias.
const LENGTHS: [(usize, usize); 4] = [(1, 33), (65, 63), (17, 131), (70, 136)];

/// What is done to scores beside mask and scale, and the tensors for it.
#[derive(Debug, Clone)]
pub(crate) struct Terms<T> {
    pub(crate) softcap: Option<f32>,
    pub(crate) sink: Option<Vec<f32>>,
    /// Elements in C order, and where they lie.
    pub(crate) bias: Option<(Vec<T>, View)>,
}

impl<T: Half> Terms<T> {
    pub(crate) const NONE: Terms<T> = Terms { softcap: None, sink: None, bias: None };

    /// A bias of this shape without gaps.
    pub(crate) fn bias(values: Vec<T>, shape: [usize; 4]) -> Option<(Vec<T>, View)> {
        Some((values, View::contiguous(shape, Layout::Bhsd)))
    }

    pub(crate) fn scores(&self) -> ScoreMod {
        ScoreMod::of(self.softcap, self.bias.is_some())
    }

    /// Calls `body` with the terms of a reference.
    pub(crate) fn of_reference<R>(&self, case: &Case, body: impl FnOnce(&AttentionTerms<'_>) -> R) -> R {
        let sink = self.sink.as_ref().map(|sink| Array1::from_iter(sink.iter().copied().map(f64::from)));
        let bias = self.bias.as_ref().map(|(values, view)| {
            let values = values.iter().map(|x| x.to_f64()).collect();
            Array4::from_shape_vec(view.shape, values).expect("elements fill the shape")
        });
        body(&AttentionTerms {
            softcap: self.softcap.map(f64::from),
            sink: sink.as_ref().map(|sink| sink.view()),
            bias: bias.as_ref().map(|bias| bias.view()),
            ..AttentionTerms::new(case.mask, case.scale())
        })
    }

    pub(crate) fn expected(&self, case: &Case, inputs: &Inputs<T>) -> Expected {
        let mut expected = self.of_reference(case, |terms| inputs.expected_of(case, terms));
        if let Some(softcap) = self.softcap {
            // Kernels bound a score to 2^-21 of itself, by polynomials and an approximate reciprocal, or of the cap, as
            // a difference from it.
            let largest = expected.lse.iter().filter(|x| x.is_finite()).fold(0f64, |largest, x| largest.max(x.abs()));
            let of_cap = if self.scores() == ScoreMod::Softcap { f64::from(softcap) } else { 0.0 };
            expected.lse_limit += (largest + of_cap) * (-21f64).exp2();
        }
        expected
    }

    /// The tensors on a card; the storage of the bias is NaN between its elements.
    pub(crate) fn upload(&self, gpu: &Gpu) -> Result<StoredTerms<T>, Failed> {
        let stream = gpu.new_stream()?;
        let sink = self.sink.as_ref().map(|sink| Buffer::upload_blocking(&stream, sink)).transpose()?;
        let bias = self.bias.as_ref().map(|(values, view)| {
            let mut storage = vec![T::poison(); view.storage_len()];
            view.scatter(values, &mut storage);
            Buffer::upload_blocking(&stream, &storage).map(|buffer| (buffer, *view))
        });
        Ok(StoredTerms { sink, bias: bias.transpose()? })
    }
}

/// The tensors of terms on a card.
pub(crate) struct StoredTerms<T> {
    sink: Option<Buffer<f32>>,
    bias: Option<(Buffer<T>, View)>,
}

impl<T: Half> StoredTerms<T> {
    pub(crate) fn sink(&self) -> ferrotile::Result<Option<TensorRef<'_, f32, 1>>> {
        self.sink.as_ref().map(|sink| TensorRef::contiguous(sink, [sink.len()])).transpose()
    }

    pub(crate) fn bias(&self) -> ferrotile::Result<Option<TensorRef<'_, T, 4>>> {
        match &self.bias {
            Some((buffer, view)) => TensorRef::strided(buffer, view.offset, view.shape, view.strides).map(Some),
            None => Ok(None),
        }
    }
}

/// Runs one kernel with these terms on tensors without gaps.
pub(crate) fn run<T: Half>(
    gpu: &Gpu,
    case: &Case,
    inputs: &Inputs<T>,
    terms: &Terms<T>,
    config: &AttentionConfig,
) -> Result<Output<T>, Failed> {
    run_with(gpu, case, inputs, terms, &case.options(Layout::Bshd, config))
}

/// Runs a kernel as the options say, with these terms, on tensors without gaps.
pub(crate) fn run_with<T: Half>(
    gpu: &Gpu,
    case: &Case,
    inputs: &Inputs<T>,
    terms: &Terms<T>,
    options: &Request,
) -> Result<Output<T>, Failed> {
    run_with_terms(gpu, case, inputs, &Placement::contiguous(case, options.layout), terms, options)
}

/// Checks every kernel that serves the case with these terms.
fn check<T: Half>(gpu: &Gpu, case: &Case, inputs: &Inputs<T>, terms: &Terms<T>) -> Outcome {
    let expected = terms.expected(case, inputs);
    let rows = case.configs_of::<T>(gpu, terms.scores(), Seqlens::Fixed);
    for_configs(case, rows, |config| run(gpu, case, inputs, terms, config)?.check(case, &expected))
}

/// A few rows with sinks, on keys in one part and in several, of which one has the sink.
fn few_rows<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let case = Case::new(1, 4, 2, 133, 64, Mask::Causal).grouped(4, 2);
    let inputs = Inputs::<T>::normal(&case, 32);
    let terms = Terms { sink: Some(vec![0.0, 1.0, -2.0, 5.0]), ..Terms::NONE };
    let expected = terms.expected(&case, &inputs);
    for splits in [None, Some(1), Some(3)] {
        let options = Request { mask: case.mask, splits, max_workspace_bytes: 1 << 20, ..Request::new(Layout::Bshd) };
        run_with(gpu, &case, &inputs, &terms, &options)?.check(&case, &expected)?;
    }
    Ok(())
}

/// Caps far below the scores, among them, and far above them; without sinks and with them, and rows without keys.
fn softcaps<T: Half>(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    for (q_len, k_len) in LENGTHS.into_iter().chain([(20, 9)]) {
        for (softcap, mask, scale) in [
            (0.5, Mask::Full, 1.0),
            (30.0, Mask::Causal, 1.0),
            (2.0, Mask::Window { left: 40, right: 3 }, -0.25),
            (1e4, Mask::Full, 1.0),
        ] {
            let case = Case::new(1, 2, q_len, k_len, head_dim, mask).grouped(2, 1).scaled(scale);
            let inputs = Inputs::<T>::normal(&case, 21);
            let sink = (mask != Mask::Full).then(|| vec![0.25 * softcap, -1.5]);
            check(gpu, &case, &inputs, &Terms { softcap: Some(softcap), sink, ..Terms::NONE })?;
        }
    }
    Ok(())
}

/// Rows that see a key with NaN are NaN; the others are as without, bit by bit.
fn nan_in_key<T: Half>(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    let case = Case::new(1, 1, 70, 133, head_dim, Mask::Causal);
    let terms = Terms { softcap: Some(3.0), ..Terms::NONE };
    let clean = Inputs::<T>::normal(&case, 33);
    let mut dirty = clean.clone();
    // Row 37 is the first that sees key 100.
    dirty.k[100 * head_dim + 5] = T::poison();
    for_configs(case, case.configs_of::<T>(gpu, terms.scores(), Seqlens::Fixed), |config| {
        let without = run(gpu, &case, &clean, &terms, config)?;
        let mut got = run(gpu, &case, &dirty, &terms, config)?;
        if !got.out[37 * head_dim..].iter().all(|x| x.to_f64().is_nan()) || !got.lse[37..].iter().all(|x| x.is_nan()) {
            return Err("a row that sees NaN is not NaN".into());
        }
        got.out[37 * head_dim..].copy_from_slice(&without.out[37 * head_dim..]);
        got.lse[37..].copy_from_slice(&without.lse[37..]);
        got.check_same(&case, &without)
    })
}

/// Sinks that change nothing, far below and far above the scores and among them, for rows with and without keys.
fn sinks<T: Half>(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    for ((q_len, k_len), mask) in
        LENGTHS[..2].iter().copied().chain([(20, 9), (9, 0)]).zip([Mask::Full, Mask::Causal].into_iter().cycle())
    {
        let case = Case::new(1, 4, q_len, k_len, head_dim, mask).grouped(4, 2);
        let inputs = Inputs::<T>::normal(&case, 22);
        let sink = vec![f32::NEG_INFINITY, 1.5, -80.0, 3e4];
        check(gpu, &case, &inputs, &Terms { sink: Some(sink), ..Terms::NONE })?;
    }
    // Against the largest of large scores.
    let case = Case::new(1, 3, 33, 65, head_dim, Mask::Full).scaled(8.0);
    let inputs = Inputs::<T>::normal(&case, 23);
    check(gpu, &case, &inputs, &Terms { sink: Some(vec![180.0, -180.0, 280.0]), ..Terms::NONE })
}

/// Every shape that repeats, rows that start anywhere, rows in reverse, and keys that the bias hides.
fn biases<T: Half>(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    for (index, (q_len, k_len)) in LENGTHS.into_iter().enumerate() {
        let case = Case::new(2, 2, q_len, k_len, head_dim, [Mask::Full, Mask::Causal][index % 2]);
        let inputs = Inputs::<T>::normal(&case, 24);
        for (seed, (batch, heads)) in [(2, 2), (1, 2), (2, 1), (1, 1)].into_iter().enumerate() {
            let shape = [batch, heads, q_len, k_len];
            let mut random = inputs::random(seed as u64);
            let mut values = inputs::normal::<T>(&mut random, shape.iter().product(), 3.0);
            values.iter_mut().skip(seed).step_by(5).for_each(|value| *value = T::from_f64(f64::NEG_INFINITY));
            // Whole chunks stay so: rows are moved by one.
            let (gap, moved) = if k_len.is_multiple_of(8) { (8, 8) } else { (3, 1) };
            let row = k_len as i64 + gap;
            let (strides, offset) = if seed == 3 {
                ([0, 0, -row, 1], (q_len as i64 - 1) * row + moved)
            } else {
                ([heads as i64 * row * q_len as i64, row * q_len as i64, row, 1], seed as i64 * moved)
            };
            let bias = Some((values, View { offset: offset as usize, shape, strides }));
            check(gpu, &case, &inputs, &Terms { bias, ..Terms::NONE })?;
        }
        // One row for all, which a stride of 0 repeats.
        let values: Vec<T> = inputs::normal(&mut inputs::random(9), k_len, 3.0);
        let view = View { offset: 0, shape: [1, 1, q_len, k_len], strides: [0, 0, 0, 1] };
        check(gpu, &case, &inputs, &Terms { bias: Some((values.repeat(q_len), view)), ..Terms::NONE })?;
    }
    Ok(())
}

fn together<T: Half>(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    for ((q_len, k_len), mask) in
        LENGTHS.into_iter().zip([Mask::Causal, Mask::Window { left: 20, right: 7 }, Mask::Full].into_iter().cycle())
    {
        let case = Case::new(2, 3, q_len, k_len, head_dim, mask).grouped(3, 1).scaled(-0.7);
        let inputs = Inputs::<T>::normal(&case, 25);
        let shape = [1, 3, q_len, k_len];
        let values = inputs::normal(&mut inputs::random(26), shape.iter().product(), 2.0);
        let sink = Some((0..3).map(|head| head as f32 - 1.0).collect());
        check(gpu, &case, &inputs, &Terms { softcap: Some(5.0), sink, bias: Terms::bias(values, shape) })?;
    }
    Ok(())
}

/// A bias of minus infinity for every key of a row but one: O is a copy of rows of V, and the LSE the one bias that
/// counts.
fn bias_picks_keys<T: Half>(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    let case = Case::new(2, 2, 66, 99, head_dim, Mask::Full).grouped(2, 1);
    let [batch, heads, q_len, _] = case.q_shape();
    let mut inputs = Inputs::<T>::normal(&case, 27);
    inputs.q.fill(T::from_f64(0.0));
    let shape = [batch, heads, q_len, 99];
    let mut bias = vec![T::from_f64(f64::NEG_INFINITY); shape.iter().product()];
    let mut expected = Vec::new();
    for head in 0..batch * heads {
        for row in 0..q_len {
            let key = (5 * row + 7 * head) % 99;
            bias[(head * q_len + row) * 99 + key] = T::from_f64(-3.0);
            let value = &inputs.v[(head / 2 * 99 + key) * head_dim..][..head_dim];
            expected.extend(value.iter().map(|x| x.to_f64()));
        }
    }
    let terms = Terms { bias: Terms::bias(bias, shape), ..Terms::NONE };
    for_configs(case, case.configs_of::<T>(gpu, ScoreMod::General, Seqlens::Fixed), |config| {
        let output = run(gpu, &case, &inputs, &terms, config)?;
        compare::check(&output.out, &expected, &case.q_shape(), 0.0)?;
        compare::check(&output.lse, &vec![-3.0; output.lse.len()], &case.lse_shape(), 1e-6)?;
        Ok(())
    })
}

/// A sink of minus infinity, and a bias of zeros beside no bias, on kernels that take both.
fn no_change<T: Half>(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    let case = Case::new(1, 2, 70, 133, head_dim, Mask::Causal);
    let inputs = Inputs::<T>::normal(&case, 28);
    let rows = case.configs_of::<T>(gpu, ScoreMod::None, Seqlens::Fixed);
    for_configs(case, rows, |config| {
        let sink = Some(vec![f32::NEG_INFINITY; 2]);
        let unchanged = run(gpu, &case, &inputs, &Terms { sink, ..Terms::NONE }, config)?;
        unchanged.check_same(&case, &run(gpu, &case, &inputs, &Terms::NONE, config)?)
    })?;
    let rows = case.configs_of::<T>(gpu, ScoreMod::General, Seqlens::Fixed);
    for_configs(case, rows, |config| {
        let shape = [1, 1, 70, 133];
        let capped = Terms { softcap: Some(4.0), ..Terms::NONE };
        let with_zeros = Terms { bias: Terms::bias(vec![T::from_f64(0.0); 70 * 133], shape), ..capped.clone() };
        run(gpu, &case, &inputs, &with_zeros, config)?.check_same(&case, &run(gpu, &case, &inputs, &capped, config)?)
    })
}

/// Rows whose bias is NaN are NaN; the others are as without, bit by bit. A NaN that the mask hides is not seen.
fn nan_in_bias<T: Half>(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    let case = Case::new(1, 2, 70, 133, head_dim, Mask::Causal);
    let inputs = Inputs::<T>::normal(&case, 29);
    let shape = [1, 2, 70, 133];
    let clean: Vec<T> = inputs::normal(&mut inputs::random(30), shape.iter().product(), 1.0);
    let mut dirty = clean.clone();
    // Row 20 of the second head sees keys up to 83: one NaN inside, one beyond.
    dirty[(70 + 20) * 133 + 83] = T::poison();
    dirty[(70 + 30) * 133 + 94] = T::poison();
    let terms = |values| Terms { bias: Terms::bias(values, shape), ..Terms::NONE };
    for_configs(case, case.configs_of::<T>(gpu, ScoreMod::General, Seqlens::Fixed), |config| {
        let without = run(gpu, &case, &inputs, &terms(clean.clone()), config)?;
        let mut got = run(gpu, &case, &inputs, &terms(dirty.clone()), config)?;
        let seen = (70 + 20) * head_dim..(70 + 21) * head_dim;
        if !got.out[seen.clone()].iter().all(|x| x.to_f64().is_nan()) || !got.lse[90].is_nan() {
            return Err("a row with NaN in its bias is not NaN".into());
        }
        got.out[seen.clone()].copy_from_slice(&without.out[seen]);
        got.lse[90] = without.lse[90];
        got.check_same(&case, &without)
    })
}

/// Calls that are right but for one term.
fn refused_terms<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let case = Case::new(2, 4, 5, 7, 64, Mask::Full);
    let inputs = Inputs::<T>::normal(&case, 31);
    let config =
        case.configs_of::<T>(gpu, ScoreMod::General, Seqlens::Fixed).next().ok_or("no kernel serves the case")?;
    let bias = |shape: [usize; 4]| Terms {
        bias: Terms::bias(vec![T::poison(); shape.iter().product()], shape),
        ..Terms::NONE
    };
    let sink = |len: usize| Terms { sink: Some(vec![0.0; len]), ..Terms::NONE };
    let softcap = |cap| Terms { softcap: Some(cap), ..Terms::NONE };
    let wrong = [
        (bias([2, 4, 5, 8]), "bias has shape"),
        (bias([2, 4, 1, 7]), "bias has shape"),
        (bias([2, 2, 5, 7]), "bias has shape"),
        (bias([3, 4, 5, 7]), "bias has shape"),
        (sink(3), "sink has shape"),
        (softcap(0.0), "softcap is"),
        (softcap(-1.0), "softcap is"),
        (softcap(f32::NAN), "softcap is"),
        (softcap(f32::INFINITY), "softcap is"),
    ];
    for (terms, message) in wrong {
        match run(gpu, &case, &inputs, &terms, config) {
            Err(failed) if failed.message().is_some_and(|text| text.contains(message)) => {}
            Err(failed) => return Err(format!("{:?}, expected {message}", failed.message()).into()),
            Ok(_) => return Err(format!("{message}: the call succeeded").into()),
        }
    }
    // A kernel that does not bound scores.
    let plain = case.configs::<T>(gpu).next().ok_or("no kernel serves the case")?;
    match run(gpu, &case, &inputs, &softcap(1.0), plain) {
        Err(failed) if failed.message().is_some_and(|text| text.contains("no kernel")) => Ok(()),
        _ => Err("a kernel for plain scores was not refused".into()),
    }
}

/// A plan knows whether there is a bias; a call that says otherwise is refused, and nothing is written.
fn unplanned_bias<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let stream = gpu.new_stream()?;
    let case = Case::new(1, 1, 16, 16, 64, Mask::Full);
    let placement = Placement::contiguous(&case, Layout::Bhsd);
    let stored = Stored::upload(gpu, &Inputs::<T>::normal(&case, 0), &placement)?;
    let with_bias = Terms { bias: Terms::bias(vec![T::from_f64(0.0); 256], [1, 1, 16, 16]), ..Terms::NONE };
    for planned in [false, true] {
        let options = Request { bias: planned, ..Request::new(Layout::Bhsd) };
        let plan = options.plan(gpu, T::DTYPE, case.sizes)?;
        let terms = if planned { Terms::NONE } else { with_bias.clone() }.upload(gpu)?;
        let mut out = Guarded::<T>::new(gpu, &stream, placement.out.count())?;
        let view = placement.out.moved(out.offset());
        let [q, k, v] = stored.tensors(&placement)?;
        let tensors = AttentionTensors {
            bias: terms.bias()?,
            ..AttentionTensors::new(q, k, v, view.tensor_mut(out.buffer(), Layout::Bhsd)?)
        };
        match plan.run(stream.as_ref(), tensors) {
            Err(Error::Argument { argument: "bias", .. }) => out.check_untouched(&stream)?,
            other => return Err(format!("{other:?}").into()),
        }
    }
    Ok(())
}
