//! Attention on E4M3: Q, K and V with factors, O of f16 or bf16.

use ferrotile::reference::{AttentionTerms, AttentionTypes};
use ferrotile::tolerance::{AttentionLimits, Fp8Terms};
use ferrotile::{
    Accumulation, Arch, AttentionOptions, AttentionParams, AttentionPlan, AttentionProblem, AttentionTensors, Buffer,
    Descales, Dtype, Error, F8E4M3, Float, Gpu, Layout, Mask, Stream, TensorMut, TensorRef, attention, reference,
    tolerance,
};
use half::{bf16, f16};
use libtest_mimic::Failed;
use ndarray::{Array2, Array3, Array4};
use tests::catalogue::attention_configs;
use tests::compare;
use tests::guard::{Guarded, Poison};
use tests::inputs::{self, Half};
use tests::request::Request;
use tests::{Trials, is_small};
use variants::attention::{AttentionConfig, AttentionKernel, ScoreMod, Seqlens};

use crate::case::{Case, Expected, Inputs, Outcome, Output, dense, for_configs};
use crate::scores::Terms;

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    for mask in [Mask::Full, Mask::Causal, Mask::Window { left: 40, right: 3 }] {
        trials.both("fp8_normal_inputs", &mask, normal::<f16>, normal::<bf16>);
    }
    trials.both("fp8_one_key_has_the_weight", &(), one_key::<f16>, one_key::<bf16>);
    trials.typed("fp8_equal_weights_give_the_mean", "f16", &(), equal_weights);
    trials.typed("fp8_extremes", "bf16", &(), extremes);
    trials.typed("fp8_a_first_key_dominates", "f16", &(), first_key);
    trials.typed("fp8_hidden_keys_are_not_seen", "f16", &(), hidden_keys);
    trials.typed("fp8_without_keys", "bf16", &(), without_keys);
}

/// Whether the device has kernels for E4M3; where it has none, that plans say so.
pub(crate) fn is_compiled(gpu: &Gpu) -> Result<bool, Failed> {
    if gpu.arch() >= Arch::Sm89 {
        return Ok(true);
    }
    let problem =
        AttentionProblem::new(Case::new(1, 1, 8, 8, 64, Mask::Full).sizes, AttentionParams::new(Layout::Bhsd));
    match AttentionPlan::new(gpu, Dtype::E4M3, &problem, &AttentionOptions::default()) {
        Err(Error::Unsupported { feature, remedy, .. }) if feature.contains("e4m3") && remedy.contains("sm_89") => {
            Ok(false)
        }
        other => Err(format!("{other:?}").into()),
    }
}

/// Factors of Q, K and V `[batch or 1, heads or 1]`.
pub(crate) type Factors = [Option<Array2<f64>>; 3];

/// Elements of E4M3 in the order batch, head, row, element.
fn tensor(values: &[F8E4M3], [batch, heads, rows, columns]: [usize; 4]) -> Array4<f64> {
    let values = values.iter().map(|x| x.to_f64()).collect();
    Array4::from_shape_vec((batch, heads, rows, columns), values).expect("elements fill the shape")
}

/// Inputs of deviation 1, with elements of E4M3 and factors.
#[derive(Debug, Clone)]
pub(crate) struct Quantized {
    pub(crate) inputs: Inputs<F8E4M3>,
    pub(crate) factors: Factors,
}

impl Quantized {
    pub(crate) fn normal(case: &Case, seed: u64, factors: Factors) -> Quantized {
        let mut random = inputs::random(seed);
        let mut draw = |shape: [usize; 4]| {
            let count: usize = shape.iter().product();
            (0..count).map(|_| F8E4M3::from_f64(inputs::normal_number(&mut random))).collect()
        };
        let inputs = Inputs { q: draw(case.q_shape()), k: draw(case.kv_shape()), v: draw(case.kv_shape()) };
        Quantized { inputs, factors }
    }

    /// Q, K and V as they are stored.
    fn stored(&self, case: &Case) -> [Array4<f64>; 3] {
        let Inputs { q, k, v } = &self.inputs;
        [tensor(q, case.q_shape()), tensor(k, case.kv_shape()), tensor(v, case.kv_shape())]
    }

    /// Q, K and V times their factors.
    fn dequantized(&self, case: &Case) -> [Array4<f64>; 3] {
        let mut tensors = self.stored(case);
        for (tensor, factors) in tensors.iter_mut().zip(&self.factors) {
            if let Some(factors) = factors {
                *tensor = reference::dequantize(tensor.view(), factors.view());
            }
        }
        tensors
    }

    /// The exact result, and the limit of each element.
    fn limits<O: Half>(
        &self,
        case: &Case,
        accumulation: Accumulation,
    ) -> ((Array4<f64>, Array3<f64>), AttentionLimits) {
        let terms = AttentionTerms::new(case.mask, case.scale());
        self.limits_of(case, &terms, (O::DTYPE, accumulation))
    }

    /// The same with these terms, for an O of this type.
    pub(crate) fn limits_of(
        &self,
        case: &Case,
        terms: &AttentionTerms<'_>,
        (out, accumulation): (Dtype, Accumulation),
    ) -> ((Array4<f64>, Array3<f64>), AttentionLimits) {
        let [q, k, v] = self.dequantized(case);
        let exact = reference::attention_with(q.view(), k.view(), v.view(), terms);
        let factors = self.factors.each_ref().map(|factors| factors.as_ref().map(|factors| factors.view()));
        let fp8 = Fp8Terms { factors, out, accumulation };
        let stored = self.stored(case);
        let stored = stored.each_ref().map(|tensor| tensor.view());
        let limits = tolerance::fp8_attention_limits(stored, terms, &fp8, (exact.0.view(), exact.1.view()));
        (exact, limits)
    }

    /// What attention gives on the dequantised inputs.
    ///
    /// The LSE may be as far off as sums of scores with 13 bits make it.
    pub(crate) fn expected<O: Half>(&self, case: &Case) -> Expected {
        let [q, k, v] = self.dequantized(case);
        let terms = AttentionTerms::new(case.mask, case.scale());
        let types = AttentionTypes { inputs: F8E4M3::DTYPE, out: O::DTYPE };
        let rounded = reference::attention_with_rounded(q.view(), k.view(), v.view(), &terms, types);
        let (exact, limits) = self.limits::<O>(case, Accumulation::TwoLevel);
        let lse_limit = limits.lse.iter().copied().fold(0.0, f64::max);
        Expected { lse_limit, ..Expected::new::<O>(exact, rounded) }
    }
}

/// The kernels that serve a case with an O of this type.
pub(crate) fn configs<O: Half>(gpu: &Gpu, case: &Case) -> impl Iterator<Item = &'static AttentionConfig> + use<O> {
    let Case { sizes, mask, .. } = *case;
    attention_configs(gpu.arch(), F8E4M3::DTYPE, [sizes.head_dim; 2])
        .filter(|config| config.out == O::DTYPE && config.covers(ScoreMod::None, Seqlens::Fixed))
        .filter(move |config| config.takes(mask, sizes.q_len, sizes.k_len))
}

/// Factors on a card.
pub(crate) struct StoredFactors([Option<(Buffer<f32>, [usize; 2])>; 3]);

impl StoredFactors {
    pub(crate) fn upload(stream: &Stream, factors: &Factors) -> ferrotile::Result<StoredFactors> {
        let mut stored = [None, None, None];
        for (stored, factors) in stored.iter_mut().zip(factors) {
            let Some(factors) = factors else { continue };
            let values: Vec<f32> = factors.iter().map(|&factor| factor as f32).collect();
            *stored = Some((Buffer::upload_blocking(stream, &values)?, factors.dim().into()));
        }
        Ok(StoredFactors(stored))
    }

    pub(crate) fn descales(&self) -> ferrotile::Result<Descales<'_>> {
        let view = |index: usize| {
            self.0[index].as_ref().map(|(factors, shape)| TensorRef::contiguous(factors, *shape)).transpose()
        };
        Ok(Descales { q: view(0)?, k: view(1)?, v: view(2)? })
    }
}

/// Runs one kernel on tensors without gaps.
pub(crate) fn run<O: Half>(
    gpu: &Gpu,
    case: &Case,
    quantized: &Quantized,
    config: &AttentionConfig,
) -> Result<Output<O>, Failed> {
    run_with(gpu, case, quantized, &Terms::NONE, config)
}

/// The same with these terms.
pub(crate) fn run_with<O: Half>(
    gpu: &Gpu,
    case: &Case,
    Quantized { inputs, factors }: &Quantized,
    terms: &Terms<O>,
    config: &AttentionConfig,
) -> Result<Output<O>, Failed> {
    let stream = gpu.new_stream()?;
    let upload = |values: &Vec<F8E4M3>| Buffer::upload_blocking(&stream, values);
    let (q, k, v) = (upload(&inputs.q)?, upload(&inputs.k)?, upload(&inputs.v)?);
    let (factors, stored_terms) = (StoredFactors::upload(&stream, factors)?, terms.upload(gpu)?);
    let mut out = Guarded::<O>::new(gpu, &stream, case.q_shape().iter().product())?;
    let mut lse = Guarded::<f32>::new(gpu, &stream, case.lse_shape().iter().product())?;
    let (out_offset, lse_offset) = (out.offset(), lse.offset());
    let tensors = AttentionTensors {
        descales: factors.descales()?,
        lse: Some(TensorMut::strided(lse.buffer(), lse_offset, case.lse_shape(), dense(case.lse_shape()))?),
        sink: stored_terms.sink()?,
        bias: stored_terms.bias()?,
        ..AttentionTensors::new(
            TensorRef::contiguous(&q, case.q_shape())?,
            TensorRef::contiguous(&k, case.kv_shape())?,
            TensorRef::contiguous(&v, case.kv_shape())?,
            TensorMut::strided(out.buffer(), out_offset, case.q_shape(), dense(case.q_shape()))?,
        )
    };
    let request = Request { softcap: terms.softcap, ..case.options(Layout::Bhsd, config) };
    attention(&stream, tensors, &request.params(), &request.options())?;
    Ok(Output { out: out.read(&stream)?, lse: lse.read(&stream)? })
}

pub(crate) fn head_dims(gpu: &Gpu) -> &'static [usize] {
    if is_small(gpu) { &[64, 128, 208] } else { &[16, 64, 80, 96, 128, 176, 192, 256] }
}

/// Those of trials whose numbers count more than their shapes.
pub(crate) fn few_head_dims(gpu: &Gpu) -> &'static [usize] {
    if is_small(gpu) { &[64] } else { head_dims(gpu) }
}

/// No factors, one for each tensor, or one for each head.
pub(crate) fn factors(case: &Case, seed: u64) -> Factors {
    let sizes = &case.sizes;
    let of = |batch: usize, heads: usize, first: f64| {
        Array2::from_shape_fn((batch, heads), |(b, h)| first * (1.0 + 0.5 * b as f64 + 0.25 * h as f64))
    };
    match seed % 4 {
        0 => [None, None, None],
        1 => [Some(of(1, 1, 0.5)), Some(of(1, 1, -1.5)), Some(of(1, 1, 3.0))],
        2 => [
            Some(of(sizes.batch, sizes.kv_heads, 0.75)),
            Some(of(sizes.batch, sizes.kv_heads, 1.25)),
            Some(of(sizes.batch, sizes.kv_heads, 0.125)),
        ],
        _ => [Some(of(1, sizes.q_heads, -0.75)), None, Some(of(sizes.batch, 1, 2.0))],
    }
}

fn normal<O: Half>(gpu: &Gpu, &mask: &Mask) -> Outcome {
    if !is_compiled(gpu)? {
        return Ok(());
    }
    let lengths: &[(usize, usize)] =
        if is_small(gpu) { &[(65, 130), (3, 300)] } else { &[(1, 1), (65, 130), (128, 257), (300, 200), (7, 1031)] };
    let mut seed = 0;
    for &head_dim in head_dims(gpu) {
        for &(q_len, k_len) in lengths {
            for (q_heads, kv_heads) in [(2, 2), (4, 2)] {
                let case = Case::new(2, 1, q_len, k_len, head_dim, mask).grouped(q_heads, kv_heads);
                seed += 1;
                let quantized = Quantized::normal(&case, seed, factors(&case, seed));
                let expected = quantized.expected::<O>(&case);
                for_configs(case, configs::<O>(gpu, &case), |config| {
                    run::<O>(gpu, &case, &quantized, config)?.check(&case, &expected)
                })?;
            }
        }
    }
    Ok(())
}

/// Integers of up to 16 elements apart, which E4M3 holds.
fn integer(index: usize, period: usize) -> F8E4M3 {
    F8E4M3::from_f64((index * 7919 % period) as f64 - (period / 2) as f64)
}

/// Each row scores one key far above all others: O is the value of that key, an integer, wherever it is. Keys before it
/// weigh less than 2^-23, and their share of O stays in f32.
fn one_key<O: Half>(gpu: &Gpu, (): &()) -> Outcome {
    if !is_compiled(gpu)? {
        return Ok(());
    }
    // Five digits of four columns each.
    for &head_dim in head_dims(gpu).iter().filter(|&&head_dim| head_dim >= 20) {
        let (q_len, k_len) = (97, 461);
        let case = Case::new(1, 2, q_len, k_len, head_dim, Mask::Full).grouped(4, 2);
        // A key has the digits of its number to base 4, one of four columns each; a query those of the key it wants.
        let has = move |key: usize, column: usize| column < 20 && key >> (2 * (column / 4)) & 3 == column % 4;
        let digits = |key: usize| (0..head_dim).map(move |column| if has(key, column) { 16.0 } else { 0.0 });
        let wanted = |head: usize, row: usize| (row * 31 + head * 97 + 5) % k_len;
        let elements = |numbers: Vec<f64>| numbers.into_iter().map(F8E4M3::from_f64).collect::<Vec<_>>();
        let q = (0..4 * q_len).flat_map(|row| digits(wanted(row / q_len, row % q_len)).collect::<Vec<_>>()).collect();
        let k = (0..2 * k_len).flat_map(|key| digits(key % k_len).collect::<Vec<_>>()).collect();
        let v: Vec<F8E4M3> = (0..2 * k_len * head_dim).map(|index| integer(index, 31)).collect();
        let inputs = Inputs { q: elements(q), k: elements(k), v: v.clone() };
        let quantized = Quantized { inputs, factors: [None, None, None] };
        for_configs(case, configs::<O>(gpu, &case), |config| {
            let output = run::<O>(gpu, &case, &quantized, config)?;
            for (row, got) in output.out.chunks(head_dim).enumerate() {
                let (head, row) = (row / q_len, row % q_len);
                let key = head / 2 * k_len + wanted(head, row);
                let value = &v[key * head_dim..][..head_dim];
                for (column, (got, value)) in got.iter().zip(value).enumerate() {
                    if (got.to_f64() - value.to_f64()).abs() > 1e-4 {
                        return Err(format!("head {head}, row {row}, column {column}: {got:?}, not {value:?}").into());
                    }
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Q = 0: all keys weigh the same, however many there are. With sums of their own, steps lose nothing.
fn equal_weights(gpu: &Gpu, (): &()) -> Outcome {
    if !is_compiled(gpu)? {
        return Ok(());
    }
    let lengths: &[usize] = if is_small(gpu) { &[130, 1500] } else { &[1, 130, 1500, 16384] };
    for (&head_dim, &k_len) in few_head_dims(gpu).iter().flat_map(|dim| lengths.iter().map(move |len| (dim, len))) {
        let case = Case::new(1, 1, 70, k_len, head_dim, Mask::Full);
        let mut quantized = Quantized::normal(&case, 9, [None, None, None]);
        quantized.inputs.q.fill(F8E4M3::default());
        quantized.inputs.v = (0..k_len * head_dim).map(|index| integer(index / head_dim + 3 * index, 17)).collect();
        let expected = quantized.expected::<f16>(&case);
        let largest = expected.out.iter().fold(0f64, |largest, x| largest.max(x.abs()));
        for_configs(case, configs::<f16>(gpu, &case).filter(is_two_level), |config| {
            let output = run::<f16>(gpu, &case, &quantized, config)?;
            // The reciprocal of the sum errs by one step of f32, and O is rounded once.
            let limit = largest * (tolerance::atol(Dtype::F16) / 2.0 + 4.0 * tolerance::atol(Dtype::F32));
            compare::check(&output.out, &expected.out, &case.q_shape(), limit)?;
            Ok(())
        })?;
    }
    Ok(())
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "`filter` passes references")]
pub(crate) fn is_two_level(config: &&'static AttentionConfig) -> bool {
    match config.kernel {
        AttentionKernel::Wgmma(tile) => tile.accumulation == Accumulation::TwoLevel,
        _ => true,
    }
}

/// Checks each element by its own limit, which is that of the kernel's sums.
fn check_limits<O: Half>(gpu: &Gpu, case: &Case, quantized: &Quantized) -> Outcome {
    for_configs(case, configs::<O>(gpu, case), |config| {
        let accumulation = if is_two_level(&config) { Accumulation::TwoLevel } else { Accumulation::Direct };
        let (exact, limits) = quantized.limits::<O>(case, accumulation);
        let output = run::<O>(gpu, case, quantized, config)?;
        within((&output.out, &output.lse), &exact, &limits)
    })
}

/// Checks each element by its own limit.
pub(crate) fn within<O: Float>(
    (out, lse): (&[O], &[f32]),
    (exact_out, exact_lse): &(Array4<f64>, Array3<f64>),
    limits: &AttentionLimits,
) -> Outcome {
    let check = |name: &str, got: Vec<f64>, exact: &[f64], limits: &[f64]| {
        for (index, ((got, exact), limit)) in got.into_iter().zip(exact).zip(limits).enumerate() {
            if tolerance::element_error(got, *exact) > *limit || !limit.is_finite() {
                return Err(format!("{name} {index} is {got:e}, expected {exact:e}, limit {limit:e}"));
            }
        }
        Ok(())
    };
    let exact_out = exact_out.as_slice().expect("contiguous");
    let out = out.iter().map(|x| x.to_f64()).collect();
    check("O", out, exact_out, limits.out.as_slice().expect("contiguous"))?;
    let exact_lse = exact_lse.as_slice().expect("contiguous");
    let lse = lse.iter().map(|&x| x.into()).collect();
    check("LSE", lse, exact_lse, limits.lse.as_slice().expect("contiguous"))?;
    Ok(())
}

/// Elements of 448, factors of 1e-6, 1e4 and 0, and scores from next to nothing to 1e12.
fn extremes(gpu: &Gpu, (): &()) -> Outcome {
    if !is_compiled(gpu)? {
        return Ok(());
    }
    let factor = |x: f64| Some(Array2::from_elem((1, 1), x));
    for &head_dim in few_head_dims(gpu) {
        let case = Case::new(1, 2, 70, 200, head_dim, Mask::Causal);
        for of in [[1e-6, 1.0, 1e4], [1e-6, 1e4, 1e-6], [1e4, 1e4, 1.0], [0.0, 1.0, 1.0], [-1e-3, 1e-2, -448.0]] {
            let mut quantized = Quantized::normal(&case, 17, of.map(factor));
            check_limits::<bf16>(gpu, &case, &quantized)?;
            for (index, x) in quantized.inputs.v.iter_mut().chain(&mut quantized.inputs.q).enumerate() {
                *x = F8E4M3::from_f64(if index % 3 == 0 { 448.0 } else { -448.0 });
            }
            check_limits::<bf16>(gpu, &case, &quantized)?;
        }
    }
    Ok(())
}

/// The first key, which is seen last, has nearly all of the weight: P is 1 there and tiny elsewhere.
fn first_key(gpu: &Gpu, (): &()) -> Outcome {
    if !is_compiled(gpu)? {
        return Ok(());
    }
    for &head_dim in few_head_dims(gpu) {
        for mask in [Mask::Full, Mask::Causal] {
            let case = Case::new(1, 1, 130, 600, head_dim, mask);
            for distance in [5.0, 11.0, 40.0] {
                let mut quantized = Quantized::normal(&case, 23, [None, None, None]);
                quantized.inputs.q.fill(F8E4M3::from_f64(1.0));
                let first = F8E4M3::from_f64(distance / (head_dim as f64).sqrt());
                quantized.inputs.k.iter_mut().for_each(|x| *x = F8E4M3::from_f64(x.to_f64() / 16.0));
                quantized.inputs.k[..head_dim].fill(first);
                check_limits::<f16>(gpu, &case, &quantized)?;
            }
        }
    }
    Ok(())
}

/// NaN in keys that no row of a tile sees, and in keys that the mask hides, changes nothing.
fn hidden_keys(gpu: &Gpu, (): &()) -> Outcome {
    if !is_compiled(gpu)? {
        return Ok(());
    }
    for &head_dim in few_head_dims(gpu) {
        // The last 30 keys are hidden from all rows.
        let case = Case::new(1, 2, 100, 300, head_dim, Mask::Window { left: 1000, right: 0 });
        let hidden = Case::new(1, 2, 100, 300, head_dim, Mask::Causal);
        let mut quantized = Quantized::normal(&case, 29, [None, None, None]);
        let whole = quantized.expected::<f16>(&case);
        for_configs(case, configs::<f16>(gpu, &case), |config| {
            run::<f16>(gpu, &case, &quantized, config)?.check(&case, &whole)
        })?;
        // Rows 0 to 68 see keys up to 268.
        let mut first_rows = quantized.expected::<f16>(&hidden);
        for head in 0..2 {
            for key in 270..300 {
                quantized.inputs.k[(head * 300 + key) * head_dim..][..head_dim].fill(F8E4M3::poison());
            }
            for row in 70..100 {
                let nan = (head * 100 + row) * head_dim;
                first_rows.out[nan..][..head_dim].fill(f64::NAN);
                first_rows.lse[head * 100 + row] = f64::NAN;
            }
        }
        for_configs(hidden, configs::<f16>(gpu, &hidden), |config| {
            run::<f16>(gpu, &hidden, &quantized, config)?.check(&hidden, &first_rows)
        })?;
    }
    Ok(())
}

/// No keys, no rows, and rows that see none.
fn without_keys(gpu: &Gpu, (): &()) -> Outcome {
    if !is_compiled(gpu)? {
        return Ok(());
    }
    for &head_dim in few_head_dims(gpu) {
        for (q_len, k_len, mask) in
            [(70, 0, Mask::Full), (3, 0, Mask::Causal), (0, 70, Mask::Full), (200, 40, Mask::Causal)]
        {
            let case = Case::new(2, 2, q_len, k_len, head_dim, mask);
            let quantized = Quantized::normal(&case, 31, [None, None, None]);
            let expected = quantized.expected::<bf16>(&case);
            for_configs(case, configs::<bf16>(gpu, &case), |config| {
                run::<bf16>(gpu, &case, &quantized, config)?.check(&case, &expected)
            })?;
        }
    }
    Ok(())
}
