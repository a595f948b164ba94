//! Attention on 8-bit integers: Q, K and V of u8 with factors, O of f16 or bf16.

use ferrotile::reference::{AttentionTerms, AttentionTypes};
use ferrotile::tolerance::{AttentionLimits, QuantizationError};
use ferrotile::{
    AttentionOptions, AttentionParams, AttentionPlan, AttentionProblem, AttentionTensors, BatchedSizes, Buffer,
    Descales, Dtype, Error, Float, Gpu, Layout, Mask, PagedSizes, QuantizeTensors, TensorMut, TensorRef, VarlenTensors,
    attention, attention_varlen, quantize, reference, tolerance,
};
use half::{bf16, f16};
use libtest_mimic::Failed;
use ndarray::{Array2, Array3, Array4};
use rand::RngExt;
use tests::catalogue::attention_configs;
use tests::compare;
use tests::guard::Guarded;
use tests::inputs::{self, Half};
use tests::request::Request;
use tests::view::View;
use tests::{Device, Trials, device, expect_error, is_small};
use variants::attention::{AttentionConfig, Seqlens};

use crate::case::{Case, Expected, Inputs, Outcome, Output, dense, for_configs};
use crate::scores::Terms;

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    for mask in [Mask::Full, Mask::Causal, Mask::Window { left: 40, right: 3 }] {
        trials.both("u8_normal_inputs", &mask, normal::<f16>, normal::<bf16>);
    }
    trials.both("u8_terms_of_scores", &(), terms_of_scores::<f16>, terms_of_scores::<bf16>);
    trials.both("u8_several_lengths", &(), several_lengths::<f16>, several_lengths::<bf16>);
    trials.typed("u8_every_integer_is_its_number", "f16", &(), every_integer);
    trials.typed("u8_extremes", "bf16", &(), extremes);
    trials.typed("u8_equal_weights_give_the_mean", "f16", &(), equal_weights);
    trials.typed("u8_hidden_keys_are_not_seen", "f16", &(), hidden_keys);
    trials.typed("u8_without_keys", "bf16", &(), without_keys);
    trials.typed("u8_rows_that_start_anywhere", "f16", &(), anywhere);
    trials.typed("u8_refusals", "bf16", &(), refusals);
    // The emulator takes long for the others.
    let problems = if matches!(device(), Device::Gpu(gpu) if is_small(gpu)) { 1 } else { 3 };
    for (name, sizes) in &QuantizationError::PROBLEMS[..problems] {
        trials.both(&format!("u8_of_normal_numbers/{name}"), sizes, gates::<f16>, gates::<bf16>);
    }
}

/// Integers of Q, K and V, and their factors `[batch or 1, heads or 1]`.
#[derive(Clone)]
struct Quantized {
    inputs: Inputs<u8>,
    factors: [Array2<f64>; 3],
}

/// What integers in the order batch, head, row, element stand for without factors.
fn tensor(values: &[u8], [batch, heads, rows, columns]: [usize; 4]) -> Array4<f64> {
    let values = values.iter().map(|x| x.to_f64()).collect();
    Array4::from_shape_vec((batch, heads, rows, columns), values).expect("elements fill the shape")
}

impl Quantized {
    /// Integers of numbers with deviation 1, times factors of 1 / 128: a few are cut off.
    fn normal(case: &Case, seed: u64) -> Quantized {
        let mut random = inputs::random(seed);
        let mut number = || u8::from_f64(128.0 * inputs::normal_number(&mut random));
        let mut draw = |shape: [usize; 4]| (0..shape.iter().product()).map(|_| number()).collect();
        let inputs = Inputs { q: draw(case.q_shape()), k: draw(case.kv_shape()), v: draw(case.kv_shape()) };
        Quantized { inputs, factors: factors(case, seed) }
    }

    /// Integers of which none is rarer than others.
    fn uniform(case: &Case, seed: u64, factors: [f64; 3]) -> Quantized {
        let mut random = inputs::random(seed);
        let mut draw = |shape: [usize; 4]| (0..shape.iter().product()).map(|_| random.random()).collect();
        let inputs = Inputs { q: draw(case.q_shape()), k: draw(case.kv_shape()), v: draw(case.kv_shape()) };
        Quantized { inputs, factors: factors.map(|factor| Array2::from_elem((1, 1), factor)) }
    }

    fn stored(&self, case: &Case) -> [Array4<f64>; 3] {
        let Inputs { q, k, v } = &self.inputs;
        [tensor(q, case.q_shape()), tensor(k, case.kv_shape()), tensor(v, case.kv_shape())]
    }

    fn dequantized(&self, case: &Case) -> [Array4<f64>; 3] {
        let stored = self.stored(case);
        [0, 1, 2].map(|index| reference::dequantize(stored[index].view(), self.factors[index].view()))
    }

    /// The exact result, and the limit of each element.
    fn limits<O: Half>(&self, case: &Case, terms: &Terms<O>) -> ((Array4<f64>, Array3<f64>), AttentionLimits) {
        let [q, k, v] = self.dequantized(case);
        let stored = self.stored(case);
        let stored = stored.each_ref().map(|tensor| tensor.view());
        let factors = self.factors.each_ref().map(|factors| factors.view());
        terms.of_reference(case, |terms| {
            let exact = reference::attention_with(q.view(), k.view(), v.view(), terms);
            let exact_views = (exact.0.view(), exact.1.view());
            let limits = tolerance::u8_attention_limits(stored, terms, factors, O::DTYPE, exact_views);
            (exact.clone(), limits)
        })
    }

    /// What attention gives on the numbers that the integers stand for.
    fn expected<O: Half>(&self, case: &Case) -> Expected {
        let [q, k, v] = self.dequantized(case);
        let terms = AttentionTerms::new(case.mask, case.scale());
        let types = AttentionTypes { inputs: u8::DTYPE, out: O::DTYPE };
        let rounded = reference::attention_with_rounded(q.view(), k.view(), v.view(), &terms, types);
        Expected::new::<O>(reference::attention_with(q.view(), k.view(), v.view(), &terms), rounded)
    }
}

/// Factors around 1 / 128: one for each tensor, one for each head, or one for each head of Q in each batch entry.
fn factors(case: &Case, seed: u64) -> [Array2<f64>; 3] {
    let sizes = &case.sizes;
    let of = |batch: usize, heads: usize, first: f64| {
        let factor = |(b, h)| first / 128.0 * (1.0 + 0.5 * b as f64 + 0.25 * h as f64);
        Array2::from_shape_fn((batch, heads), factor)
    };
    match seed % 3 {
        0 => [of(1, 1, 0.5), of(1, 1, -1.5), of(1, 1, 3.0)],
        1 => [of(1, sizes.kv_heads, 0.75), of(1, sizes.kv_heads, 1.25), of(1, sizes.kv_heads, 0.125)],
        _ => [of(sizes.batch, sizes.q_heads, -0.75), of(sizes.batch, sizes.kv_heads, 1.0), of(sizes.batch, 1, 2.0)],
    }
}

/// The kernels that serve a case with an O of this type, with these terms and lengths.
fn configs<O: Half>(
    gpu: &Gpu,
    case: &Case,
    terms: &Terms<O>,
    lengths: Seqlens,
) -> impl Iterator<Item = &'static AttentionConfig> + use<O> {
    let scores = terms.scores();
    attention_configs(gpu.arch(), u8::DTYPE, [case.sizes.head_dim; 2])
        .filter(move |config| config.out == O::DTYPE && config.covers(scores, lengths))
}

/// Integers and factors on a card.
struct Stored {
    inputs: [(View, Buffer<u8>); 3],
    factors: [(Buffer<f32>, [usize; 2]); 3],
}

impl Stored {
    /// At these views; what is between the integers is 255.
    fn upload(gpu: &Gpu, quantized: &Quantized, views: [View; 3]) -> Result<Stored, Failed> {
        let stream = gpu.new_stream()?;
        let Inputs { q, k, v } = &quantized.inputs;
        let place = |view: View, values: &[u8]| {
            let mut storage = vec![u8::MAX; view.storage_len()];
            view.scatter(values, &mut storage);
            Buffer::upload_blocking(&stream, &storage).map(|buffer| (view, buffer))
        };
        let of_factors = |factors: &Array2<f64>| {
            let values: Vec<f32> = factors.iter().map(|&factor| factor as f32).collect();
            Buffer::upload_blocking(&stream, &values).map(|buffer| (buffer, factors.dim().into()))
        };
        let [of_q, of_k, of_v] = &quantized.factors;
        Ok(Stored {
            inputs: [place(views[0], q)?, place(views[1], k)?, place(views[2], v)?],
            factors: [of_factors(of_q)?, of_factors(of_k)?, of_factors(of_v)?],
        })
    }

    fn descales(&self) -> ferrotile::Result<Descales<'_>> {
        let view = |index: usize| {
            let (buffer, shape) = &self.factors[index];
            TensorRef::contiguous(buffer, *shape).map(Some)
        };
        Ok(Descales { q: view(0)?, k: view(1)?, v: view(2)? })
    }
}

/// Views without gaps.
fn contiguous(case: &Case) -> [View; 3] {
    [case.q_shape(), case.kv_shape(), case.kv_shape()].map(|shape| View::contiguous(shape, Layout::Bhsd))
}

/// Runs one kernel, or the one that the library chooses, on inputs at these views.
fn run<O: Half>(
    gpu: &Gpu,
    case: &Case,
    (quantized, views): (&Quantized, [View; 3]),
    terms: &Terms<O>,
    config: Option<&AttentionConfig>,
) -> Result<Output<O>, Failed> {
    let stream = gpu.new_stream()?;
    let (stored, stored_terms) = (Stored::upload(gpu, quantized, views)?, terms.upload(gpu)?);
    let mut out = Guarded::<O>::new(gpu, &stream, case.q_shape().iter().product())?;
    let mut lse = Guarded::<f32>::new(gpu, &stream, case.lse_shape().iter().product())?;
    let (out_offset, lse_offset) = (out.offset(), lse.offset());
    let input = |index: usize| {
        let (view, buffer) = &stored.inputs[index];
        view.tensor(buffer, Layout::Bhsd)
    };
    let tensors = AttentionTensors {
        descales: stored.descales()?,
        lse: Some(TensorMut::strided(lse.buffer(), lse_offset, case.lse_shape(), dense(case.lse_shape()))?),
        sink: stored_terms.sink()?,
        bias: stored_terms.bias()?,
        ..AttentionTensors::new(
            input(0)?,
            input(1)?,
            input(2)?,
            TensorMut::strided(out.buffer(), out_offset, case.q_shape(), dense(case.q_shape()))?,
        )
    };
    let kernel = config.map(|config| config.name.to_owned());
    let request = Request { mask: case.mask, scale: case.scale, kernel, ..Request::new(Layout::Bhsd) };
    let request = Request { softcap: terms.softcap, bias: terms.bias.is_some(), ..request };
    attention(&stream, tensors, &request.params(), &request.options())?;
    Ok(Output { out: out.read(&stream)?, lse: lse.read(&stream)? })
}

/// Checks each element of each kernel by its own limit.
fn check_limits<O: Half>(gpu: &Gpu, case: &Case, quantized: &Quantized, terms: &Terms<O>) -> Outcome {
    let (exact, limits) = quantized.limits::<O>(case, terms);
    let within = |name: &str, got: Vec<f64>, exact: Vec<f64>, limits: Vec<f64>| {
        for (index, ((got, exact), limit)) in got.into_iter().zip(exact).zip(limits).enumerate() {
            if tolerance::element_error(got, exact) > limit || !limit.is_finite() {
                return Err(format!("{name} {index} is {got:e}, expected {exact:e}, limit {limit:e}"));
            }
        }
        Ok(())
    };
    for_configs(case, configs(gpu, case, terms, Seqlens::Fixed), |config| {
        let output = run::<O>(gpu, case, (quantized, contiguous(case)), terms, Some(config))?;
        let out = output.out.iter().map(|x| x.to_f64()).collect();
        within("O", out, exact.0.iter().copied().collect(), limits.out.iter().copied().collect())?;
        let lse = output.lse.iter().map(|&x| x.into()).collect();
        within("LSE", lse, exact.1.iter().copied().collect(), limits.lse.iter().copied().collect())?;
        Ok(())
    })
}

/// Head dimensions of kernels, and narrower ones in steps of 8.
const HEAD_DIMS: [usize; 8] = [8, 64, 72, 96, 128, 136, 200, 256];

/// Those that a trial takes: where trials are small, one of a kernel and one that is padded.
fn head_dims(gpu: &Gpu) -> &'static [usize] {
    if is_small(gpu) { &[64, 72] } else { &HEAD_DIMS }
}

fn normal<O: Half>(gpu: &Gpu, &mask: &Mask) -> Outcome {
    // Where trials are small, every third combination.
    let (dims, lengths, every): (&[usize], &[_], _) = if is_small(gpu) {
        (&[64, 72, 128, 136], &[(65, 130), (3, 200)], 3)
    } else {
        (&HEAD_DIMS, &[(1, 1), (65, 130), (128, 257), (300, 200), (7, 1031)], 1)
    };
    for index in (0..2 * dims.len() * lengths.len()).step_by(every) {
        let (rest, q_heads) = (index / 2, [2, 4][index % 2]);
        let ((q_len, k_len), head_dim) = (lengths[rest % lengths.len()], dims[rest / lengths.len()]);
        let case = Case::new(2, 1, q_len, k_len, head_dim, mask).grouped(q_heads, 2);
        let quantized = Quantized::normal(&case, (index / every) as u64);
        let expected = quantized.expected::<O>(&case);
        for_configs(case, configs::<O>(gpu, &case, &Terms::NONE, Seqlens::Fixed), |config| {
            let output = run::<O>(gpu, &case, (&quantized, contiguous(&case)), &Terms::NONE, Some(config))?;
            output.check(&case, &expected)
        })?;
    }
    Ok(())
}

/// Softcap, sink and bias, each alone and together, and a scale below 0.
fn terms_of_scores<O: Half>(gpu: &Gpu, (): &()) -> Outcome {
    for &head_dim in head_dims(gpu) {
        for (q_len, k_len, mask) in [(65, 63, Mask::Causal), (17, 131, Mask::Full)] {
            let case = Case::new(1, 2, q_len, k_len, head_dim, mask).grouped(2, 1).scaled(-0.2);
            let quantized = Quantized::normal(&case, 3);
            let shape = [1, 2, q_len, k_len];
            let values = inputs::normal(&mut inputs::random(5), shape.iter().product(), 2.0);
            let sink = Terms { sink: Some(vec![0.5, -1.5]), ..Terms::NONE };
            let softcap = Terms { softcap: Some(5.0), ..Terms::NONE };
            let bias = Terms { bias: Terms::bias(values, shape), ..Terms::NONE };
            let all = Terms { softcap: Some(5.0), sink: sink.sink.clone(), bias: bias.bias.clone() };
            for terms in [sink, softcap, bias, all] {
                check_limits::<O>(gpu, &case, &quantized, &terms)?;
            }
        }
    }
    Ok(())
}

/// Sequences that follow each other give the bits of each alone.
fn several_lengths<O: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let stream = gpu.new_stream()?;
    let (sequences, heads, around) = ([(65, 63), (0, 0), (1, 130), (17, 0), (66, 97)], [2, 1], 3);
    for &head_dim in head_dims(gpu) {
        let ends = |of: fn(&(usize, usize)) -> usize| {
            let mut ends = vec![around as i32];
            sequences.iter().for_each(|entry| ends.push(ends[ends.len() - 1] + of(entry) as i32));
            ends
        };
        let (q_starts, k_starts) = (ends(|entry| entry.0), ends(|entry| entry.1));
        let total = |starts: &[i32]| starts[starts.len() - 1] as usize + around;
        let (q_total, k_total) = (total(&q_starts), total(&k_starts));
        let all = Case::new(1, 1, q_total, k_total, head_dim, Mask::Causal).grouped(heads[0], heads[1]).scaled(0.3);
        let quantized = Quantized { factors: factors(&all, 1), ..Quantized::normal(&all, 7) };
        let stored = Stored::upload(gpu, &quantized, contiguous(&all))?;
        let starts = [&q_starts, &k_starts].map(|starts| Buffer::upload_blocking(&stream, starts));
        let [of_q, of_k] = starts;
        let (of_q, of_k) = (of_q?, of_k?);
        let batch = sequences.len();
        let rows_of = |index: usize, total: usize, heads: usize| {
            let strides = [head_dim as i64, (total * head_dim) as i64, 1];
            TensorRef::strided(&stored.inputs[index].1, 0, [total, heads, head_dim], strides)
        };
        for_configs(all, configs::<O>(gpu, &all, &Terms::NONE, Seqlens::Varlen), |config| {
            let mut out = Guarded::<O>::new(gpu, &stream, q_total * heads[0] * head_dim)?;
            let offset = out.offset();
            let tensors = VarlenTensors {
                q: rows_of(0, q_total, heads[0])?,
                k: rows_of(1, k_total, heads[1])?,
                v: rows_of(2, k_total, heads[1])?,
                out: TensorMut::strided(
                    out.buffer(),
                    offset,
                    [q_total, heads[0], head_dim],
                    [head_dim as i64, (q_total * head_dim) as i64, 1],
                )?,
                descales: stored.descales()?,
                cu_seqlens_q: TensorRef::contiguous(&of_q, [batch + 1])?,
                cu_seqlens_k: TensorRef::contiguous(&of_k, [batch + 1])?,
                lse: None,
                sink: None,
                bias: None,
            };
            let request = all.options(Layout::Bshd, config);
            attention_varlen(&stream, tensors, [66, 130], &request.params(), &request.options())?;
            let mut got = out.read(&stream)?;
            for (entry, &(q_len, k_len)) in sequences.iter().enumerate() {
                let case = Case::new(1, 1, q_len, k_len, head_dim, all.mask).grouped(heads[0], heads[1]).scaled(0.3);
                let view = |shape: [usize; 4], total: usize, start: i32| View {
                    offset: start as usize * head_dim,
                    shape,
                    strides: [0, (total * head_dim) as i64, head_dim as i64, 1],
                };
                let of_queries = view(case.q_shape(), q_total, q_starts[entry]);
                let of_keys = view(case.kv_shape(), k_total, k_starts[entry]);
                let Inputs { q, k, v } = &quantized.inputs;
                let inputs = Inputs { q: of_queries.gather(q), k: of_keys.gather(k), v: of_keys.gather(v) };
                let alone = Quantized { inputs, factors: quantized.factors.clone() };
                let alone = run::<O>(gpu, &case, (&alone, contiguous(&case)), &Terms::NONE, Some(config))?;
                compare::check_same(&of_queries.gather(&got), &alone.out, &case.q_shape())?;
                of_queries.scatter(&vec![O::poison(); of_queries.count()], &mut got);
            }
            if got.iter().all(|x| x.is_poison()) {
                Ok(())
            } else {
                Err("something outside the sequences was written".into())
            }
        })?;
    }
    Ok(())
}

/// One key: O is V, whose 256 integers are all there, times a factor.
fn every_integer(gpu: &Gpu, (): &()) -> Outcome {
    for &head_dim in head_dims(gpu) {
        let heads = 256_usize.div_ceil(head_dim);
        let case = Case::new(1, heads, 5, 1, head_dim, Mask::Full);
        // An integer less its middle, which f16 holds: f32 rounds the factor, and its product.
        let unit = 127.5 / 448.0;
        let mut quantized = Quantized::uniform(&case, 11, [unit; 3]);
        quantized.inputs.v = (0..heads * head_dim).map(|index| index as u8).collect();
        for_configs(case, configs::<f16>(gpu, &case, &Terms::NONE, Seqlens::Fixed), |config| {
            let output = run::<f16>(gpu, &case, (&quantized, contiguous(&case)), &Terms::NONE, Some(config))?;
            for (index, got) in output.out.iter().enumerate() {
                let (head, column) = (index / (5 * head_dim), index % head_dim);
                let expected = f64::from(quantized.inputs.v[head * head_dim + column]) - 127.5;
                if got.to_f64() != expected {
                    return Err(format!("head {head}, column {column}: {got:?}, not {expected}").into());
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Integers from 0 to 255, the ends alone, and factors from 0 to 1e4: scores from next to nothing to 1e12.
fn extremes(gpu: &Gpu, (): &()) -> Outcome {
    for &head_dim in head_dims(gpu) {
        let (heads, q_len, k_len) = if is_small(gpu) { (1, 20, 70) } else { (2, 70, 150) };
        let case = Case::new(1, heads, q_len, k_len, head_dim, Mask::Causal);
        for of in [[1e-6, 1.0, 1e4], [1e4, 1e4, 1.0], [0.0, 1.0, 1.0], [-1e-3, 1e-2, -448.0], [1e-30, 1e28, 1e-30]] {
            let mut quantized = Quantized::uniform(&case, 17, of);
            check_limits::<bf16>(gpu, &case, &quantized, &Terms::NONE)?;
            for (index, x) in quantized.inputs.v.iter_mut().chain(&mut quantized.inputs.q).enumerate() {
                *x = if index % 3 == 0 { 0 } else { u8::MAX };
            }
            check_limits::<bf16>(gpu, &case, &quantized, &Terms::NONE)?;
        }
    }
    Ok(())
}

/// Keys that are all the same have the same weight, however many there are.
fn equal_weights(gpu: &Gpu, (): &()) -> Outcome {
    let lengths: &[usize] = if is_small(gpu) { &[130, 700] } else { &[1, 130, 1500, 16384] };
    for (&head_dim, &k_len) in head_dims(gpu).iter().flat_map(|dim| lengths.iter().map(move |len| (dim, len))) {
        let case = Case::new(1, 1, 3, k_len, head_dim, Mask::Full);
        let mut quantized = Quantized::uniform(&case, 19, [1.0 / 448.0; 3]);
        quantized.inputs.k.fill(200);
        check_limits::<f16>(gpu, &case, &quantized, &Terms::NONE)?;
    }
    Ok(())
}

/// What the mask hides changes no bit.
fn hidden_keys(gpu: &Gpu, (): &()) -> Outcome {
    for &head_dim in head_dims(gpu) {
        // Keys 0 to 29 are before the windows of all rows.
        let case = Case::new(1, 1, 100, 300, head_dim, Mask::Window { left: 170, right: 2 });
        let quantized = Quantized::normal(&case, 29);
        let mut changed = quantized.clone();
        for (k, v) in changed.inputs.k.chunks_mut(300 * head_dim).zip(changed.inputs.v.chunks_mut(300 * head_dim)) {
            k[..30 * head_dim].fill(u8::MAX);
            v[..30 * head_dim].fill(0);
        }
        for_configs(case, configs::<f16>(gpu, &case, &Terms::NONE, Seqlens::Fixed), |config| {
            let of = |quantized| run::<f16>(gpu, &case, (quantized, contiguous(&case)), &Terms::NONE, Some(config));
            of(&changed)?.check_same(&case, &of(&quantized)?)
        })?;
    }
    Ok(())
}

/// No keys, no rows, and rows that see none.
fn without_keys(gpu: &Gpu, (): &()) -> Outcome {
    for &head_dim in head_dims(gpu) {
        for (q_len, k_len, mask) in
            [(70, 0, Mask::Full), (3, 0, Mask::Causal), (0, 70, Mask::Full), (200, 40, Mask::Causal)]
        {
            let case = Case::new(2, 2, q_len, k_len, head_dim, mask);
            let quantized = Quantized::normal(&case, 31);
            let expected = quantized.expected::<bf16>(&case);
            for_configs(case, configs::<bf16>(gpu, &case, &Terms::NONE, Seqlens::Fixed), |config| {
                let views = contiguous(&case);
                run::<bf16>(gpu, &case, (&quantized, views), &Terms::NONE, Some(config))?.check(&case, &expected)
            })?;
        }
    }
    Ok(())
}

/// Rows that start at any address, and at any distance from each other, give the bits of rows without gaps.
fn anywhere(gpu: &Gpu, (): &()) -> Outcome {
    for &head_dim in head_dims(gpu) {
        let case = Case::new(1, if is_small(gpu) { 1 } else { 2 }, 70, 100, head_dim, Mask::Causal);
        let quantized = Quantized::normal(&case, 41);
        let apart = |gap: i64, offset: usize| {
            [case.q_shape(), case.kv_shape(), case.kv_shape()].map(|shape| {
                let [_, heads, rows, columns] = shape.map(|size| size as i64);
                let row = columns + gap;
                View { offset, shape, strides: [heads * rows * row, row, heads * row, 1] }
            })
        };
        // The last row first.
        let backwards = contiguous(&case).map(|view| {
            let [batch, head, row, _] = view.strides;
            View { offset: (head - row) as usize, strides: [batch, head, -row, 1], ..view }
        });
        for_configs(case, configs::<f16>(gpu, &case, &Terms::NONE, Seqlens::Fixed), |config| {
            let at = |views| run::<f16>(gpu, &case, (&quantized, views), &Terms::NONE, Some(config));
            let dense = at(contiguous(&case))?;
            for views in [apart(1, 0), apart(0, 3), apart(8, 8), apart(4, 4), backwards] {
                let same = at(views)?.check_same(&case, &dense);
                same.map_err(|error| format!("{:?}: {}", views[0], error.message().unwrap_or_default()))?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Normal numbers of f16, quantised on the device with a factor for each head: the result beside that of the numbers
/// themselves.
fn gates<O: Half>(gpu: &Gpu, sizes: &BatchedSizes) -> Outcome {
    let stream = gpu.new_stream()?;
    let (shape, params) = (sizes.q_shape(Layout::Bhsd), AttentionParams::new(Layout::Bhsd));
    let (count, heads) = (shape.iter().product(), [1, sizes.q_heads]);
    for seed in [0, 1, 2] {
        let mut random = inputs::random(seed);
        let numbers = [(); 3].map(|()| inputs::normal::<f16>(&mut random, count, 1.0));
        let mut stored = Vec::new();
        for numbers in &numbers {
            let x = Buffer::upload_blocking(&stream, numbers)?;
            let mut elements = Buffer::<u8>::zeroed(gpu, count)?;
            let mut factors = Buffer::<f32>::zeroed(gpu, sizes.q_heads)?;
            let tensors = QuantizeTensors {
                x: TensorRef::contiguous(&x, shape)?,
                out: TensorMut::contiguous(&mut elements, shape)?,
                descales: TensorMut::contiguous(&mut factors, heads)?,
            };
            quantize(&stream, tensors, Layout::Bhsd)?;
            stored.push((elements, factors));
        }
        let of_tensor = |index: usize| TensorRef::contiguous(&stored[index].0, shape);
        let of_factors = |index: usize| TensorRef::contiguous(&stored[index].1, heads).map(Some);
        let mut out = Guarded::<O>::new(gpu, &stream, count)?;
        let offset = out.offset();
        let tensors = AttentionTensors {
            descales: Descales { q: of_factors(0)?, k: of_factors(1)?, v: of_factors(2)? },
            ..AttentionTensors::new(
                of_tensor(0)?,
                of_tensor(1)?,
                of_tensor(2)?,
                TensorMut::strided(out.buffer(), offset, shape, dense(shape))?,
            )
        };
        attention(&stream, tensors, &params, &AttentionOptions::default())?;
        let wide = numbers.map(|numbers| {
            let numbers = numbers.iter().map(|x| x.to_f64());
            Array4::from_shape_vec(shape, numbers.collect()).expect("elements fill the shape")
        });
        let [q, k, v] = wide.each_ref().map(|tensor| tensor.view());
        let (exact, _) = reference::attention(q, k, v, Mask::Full, 0.125);
        let error = QuantizationError::new(&out.read(&stream)?, exact.as_slice().expect("contiguous"));
        if !error.is_within_limits() {
            return Err(format!("seed {seed}: {error:?}").into());
        }
    }
    Ok(())
}

/// What no kernel takes is refused by name.
fn refusals(gpu: &Gpu, (): &()) -> Outcome {
    let stream = gpu.new_stream()?;
    let case = Case::new(1, 4, 16, 16, 64, Mask::Full).grouped(4, 2);
    let (q, kv) = (Buffer::<u8>::zeroed(gpu, 4 * 16 * 64)?, Buffer::<u8>::zeroed(gpu, 2 * 16 * 64)?);
    let factors = Buffer::<f32>::zeroed(gpu, 16)?;
    let mut out = Buffer::<bf16>::zeroed(gpu, 4 * 16 * 64)?;
    let mut call = |descales: Descales<'_>| {
        let kv = TensorRef::contiguous(&kv, case.kv_shape())?;
        let q = TensorRef::contiguous(&q, case.q_shape())?;
        let out = TensorMut::contiguous(&mut out, case.q_shape())?;
        let tensors = AttentionTensors { descales, ..AttentionTensors::new(q, kv, kv, out) };
        attention(&stream, tensors, &AttentionParams::new(Layout::Bhsd), &AttentionOptions::default())
    };
    let of = |shape: [usize; 2]| TensorRef::strided(&factors, 0, shape, [shape[1] as i64, 1]).map(Some);
    let all = Descales { q: of([1, 4])?, k: of([1, 2])?, v: of([1, 1])? };
    call(all)?;
    let is_missing = |error: &Error, name: &str| matches!(error, Error::Argument { argument, got, .. } if argument.contains(name) && got == "none");
    expect_error(call(Descales::NONE), |error| is_missing(error, "of Q"))?;
    expect_error(call(Descales { k: None, ..all }), |error| is_missing(error, "of K"))?;
    expect_error(call(Descales { v: None, ..all }), |error| is_missing(error, "of V"))?;
    let is_shape = |error: &Error| matches!(error, Error::Shape { tensor, .. } if tensor.contains("of K"));
    expect_error(call(Descales { k: of([1, 4])?, ..all }), is_shape)?;
    let plan = |dtype: Dtype, params: AttentionParams| {
        AttentionPlan::new(gpu, dtype, &AttentionProblem::new(case.sizes, params), &AttentionOptions::default())
    };
    let params = AttentionParams::new(Layout::Bhsd);
    let of_type = |out: Dtype| AttentionParams { out: Some(out), ..params };
    for out in [Dtype::F32, Dtype::U8, Dtype::E4M3] {
        let is_out = |error: &Error| matches!(error, Error::Argument { argument: "element type of O", .. });
        expect_error(plan(Dtype::U8, of_type(out)).map(drop), is_out)?;
    }
    for (dtype, kv) in [(Dtype::F16, Dtype::U8), (Dtype::U8, Dtype::F16), (Dtype::U8, Dtype::E4M3)] {
        let is_kv = |error: &Error| matches!(error, Error::Argument { argument: "element type of K and V", .. });
        expect_error(plan(dtype, AttentionParams { kv: Some(kv), ..params }).map(drop), is_kv)?;
    }
    let pages =
        PagedSizes { batch: 1, q_heads: 1, kv_heads: 1, q_len: 1, head_dim: 64, pages: 2, page_len: 16, table_len: 2 };
    let paged = AttentionPlan::new(
        gpu,
        Dtype::U8,
        &AttentionProblem::new(pages, of_type(Dtype::F16)),
        &AttentionOptions::default(),
    );
    let is_pages = |error: &Error| matches!(error, Error::Unsupported { feature, .. } if feature.contains("pages"));
    expect_error(paged.map(drop), is_pages)?;
    // Integers without factors are no inputs, and factors are for integers and FP8 alone.
    let halves = Buffer::<f16>::zeroed(gpu, 4 * 16 * 64)?;
    let mut out = Buffer::<f16>::zeroed(gpu, 4 * 16 * 64)?;
    let half = TensorRef::contiguous(&halves, case.q_shape())?;
    let tensors = AttentionTensors {
        descales: Descales { v: of([1, 1])?, ..Descales::NONE },
        ..AttentionTensors::new(half, half, half, TensorMut::contiguous(&mut out, case.q_shape())?)
    };
    let refused = attention(&stream, tensors, &params, &AttentionOptions::default());
    expect_error(refused, |error| matches!(error, Error::Argument { argument: "descale factors of V", .. }))
}
