//! Attention on E4M3 with softcap, bias, sinks and sequences of several lengths, and with an O of E4M3.

use ferrotile::{
    Accumulation, AttentionTensors, Buffer, Dtype, F8E4M3, Float, Gpu, Layout, Mask, Stream, TensorMut, TensorRef,
    VarlenSizes, VarlenTensors, attention, attention_varlen,
};
use half::{bf16, f16};
use libtest_mimic::Failed;
use ndarray::{Array2, s};
use tests::catalogue::attention_configs;
use tests::compare;
use tests::guard::{Guarded, Poison};
use tests::inputs::{self, Half};
use tests::request::Request;
use tests::view::View;
use tests::{Trials, is_small};
use variants::attention::{AttentionConfig, AttentionKernel, ScoreMod, Seqlens};

use crate::case::{Case, Inputs, Outcome, Output, for_configs};
use crate::fp8::{Factors, Quantized, StoredFactors, factors, is_compiled, is_two_level, run_with, within};
use crate::scores::Terms;
use crate::varlen::{Batch, Outputs, Strides, every_term, terms_of};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    for head_dim in [64, 128, 256] {
        let name = |what: &str| format!("fp8_{what}/d{head_dim}");
        trials.both(&name("terms_match_the_reference"), &head_dim, match_terms::<f16>, match_terms::<bf16>);
        trials.both(&name("several_lengths_match_the_reference"), &head_dim, lengths::<f16>, lengths::<bf16>);
        trials.typed(&name("several_lengths_give_the_bits_of_each_alone"), "bf16", &head_dim, same_alone);
    }
    trials.typed("fp8_several_lengths_fill_many_tiles", "bf16", &(), many_tiles);
    trials.typed("fp8_a_bias_picks_keys", "f16", &(), bias_picks_keys);
    for head_dim in [64, 96, 128, 192, 256] {
        trials.typed(&format!("fp8_an_output_of_e4m3_is_scaled_and_rounded/d{head_dim}"), "f16", &head_dim, narrow);
    }
    trials.typed("fp8_an_output_of_e4m3_lies_anywhere", "f16", &(), narrow_anywhere);
    trials.typed("fp8_several_lengths_have_an_output_of_e4m3", "f16", &(), narrow_lengths);
}

/// The kernels of a device for these head dimensions that compute such scores and lengths with an O of this type.
fn configs(
    gpu: &Gpu,
    (head_dim, out): (usize, Dtype),
    (scores, lengths): (ScoreMod, Seqlens),
    (mask, q_len, k_len): (Mask, usize, usize),
) -> impl Iterator<Item = &'static AttentionConfig> + use<> {
    attention_configs(gpu.arch(), Dtype::E4M3, [head_dim; 2])
        .filter(move |config| config.out == out && config.covers(scores, lengths))
        .filter(move |config| config.takes(mask, q_len, k_len))
}

/// The kernels for a case with these terms.
fn configs_of<O: Half>(
    gpu: &Gpu,
    case: &Case,
    terms: &Terms<O>,
) -> impl Iterator<Item = &'static AttentionConfig> + use<O> {
    let Case { sizes, mask, .. } = *case;
    configs(gpu, (sizes.head_dim, O::DTYPE), (terms.scores(), Seqlens::Fixed), (mask, sizes.q_len, sizes.k_len))
}

fn accumulation(config: &&'static AttentionConfig) -> Accumulation {
    if is_two_level(config) { Accumulation::TwoLevel } else { Accumulation::Direct }
}

/// Checks every kernel that serves the case with these terms.
fn check<O: Half>(gpu: &Gpu, case: &Case, quantized: &Quantized, terms: &Terms<O>) -> Outcome {
    for_configs(case, configs_of(gpu, case, terms), |config| {
        let types = (O::DTYPE, accumulation(&config));
        let (exact, limits) = terms.of_reference(case, |terms| quantized.limits_of(case, terms, types));
        let output = run_with(gpu, case, quantized, terms, config)?;
        within((&output.out, &output.lse), &exact, &limits)
    })
}

/// A softcap, a bias, and all terms together, with every kind of factors and scales of both signs.
fn match_terms<O: Half>(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    if !is_compiled(gpu)? {
        return Ok(());
    }
    let lengths: &[(usize, usize)] =
        if is_small(gpu) { &[(70, 136), (17, 131)] } else { &[(1, 33), (65, 63), (17, 131), (70, 136), (130, 300)] };
    let masks = [Mask::Causal, Mask::Full, Mask::Window { left: 40, right: 3 }];
    for (seed, (&(q_len, k_len), mask)) in lengths.iter().zip(masks.into_iter().cycle()).enumerate() {
        let shape = [1, 4, q_len, k_len];
        let mut values = inputs::normal::<O>(&mut inputs::random(61), shape.iter().product(), 2.0);
        values.iter_mut().step_by(7).for_each(|value| *value = O::from_f64(f64::NEG_INFINITY));
        let (bias, sink) = (Terms::bias(values, shape), Some(vec![0.5, -1.0, 3.0, 40.0]));
        let none = Terms::<O>::NONE;
        let of_terms = [
            Terms { softcap: Some(3.0), ..none.clone() },
            Terms { softcap: Some(30.0), sink: sink.clone(), ..none.clone() },
            Terms { softcap: Some(1e4), ..none.clone() },
            Terms { bias: bias.clone(), ..none.clone() },
            Terms { softcap: Some(5.0), sink, bias },
        ];
        // Every kind of terms, and then all together.
        let chosen = if is_small(gpu) && seed > 0 { &of_terms[4..] } else { &of_terms[..] };
        for (index, terms) in chosen.iter().enumerate() {
            let scale = [None, Some(-0.4), Some(1.0)][index % 3];
            let case = Case { scale, ..Case::new(1, 1, q_len, k_len, head_dim, mask).grouped(4, 2) };
            let seed = (seed + index) as u64;
            check(gpu, &case, &Quantized::normal(&case, 60 + seed, factors(&case, seed)), terms)?;
        }
    }
    Ok(())
}

/// A bias of minus infinity for every key of a row but one: O is a copy of rows of V, which E4M3 and f16 hold.
fn bias_picks_keys(gpu: &Gpu, (): &()) -> Outcome {
    if !is_compiled(gpu)? {
        return Ok(());
    }
    for &head_dim in if is_small(gpu) { &[64, 256][..] } else { &[48, 64, 128, 256] } {
        let case = Case::new(2, 2, 66, 99, head_dim, Mask::Full).grouped(2, 1);
        let mut quantized = Quantized::normal(&case, 27, [None, None, None]);
        quantized.inputs.q.fill(F8E4M3::default());
        let shape = [2, 2, 66, 99];
        let mut bias = vec![f16::NEG_INFINITY; shape.iter().product()];
        let mut expected = Vec::new();
        for (head, row) in (0..4).flat_map(|head| (0..66).map(move |row| (head, row))) {
            let key = (5 * row + 7 * head) % 99;
            bias[(head * 66 + row) * 99 + key] = f16::from_f32(-3.0);
            let value = &quantized.inputs.v[(head / 2 * 99 + key) * head_dim..][..head_dim];
            expected.extend(value.iter().map(|x| x.to_f64()));
        }
        let terms = Terms { bias: Terms::bias(bias, shape), ..Terms::NONE };
        for_configs(case, configs_of(gpu, &case, &terms), |config| {
            let output = run_with(gpu, &case, &quantized, &terms, config)?;
            compare::check(&output.out, &expected, &case.q_shape(), 0.0)?;
            compare::check(&output.lse, &vec![-3.0; output.lse.len()], &case.lse_shape(), 1e-6)?;
            Ok(())
        })?;
    }
    Ok(())
}

/// Elements of Q, K or V of a sequence, and how many rows they have.
type Part = fn(&Inputs<F8E4M3>) -> &Vec<F8E4M3>;
type Len = fn(&(usize, usize)) -> usize;

/// The tensors of sequences on a card.
struct Stored {
    inputs: [Buffer<F8E4M3>; 3],
    starts: [Buffer<i32>; 2],
    factors: StoredFactors,
    strides: Strides,
}

impl Stored {
    /// As a call takes them, without terms.
    fn tensors<'a, O: Float + Poison>(
        &'a self,
        problem: &VarlenSizes,
        outputs: &'a mut Outputs<O>,
    ) -> ferrotile::Result<VarlenTensors<'a, F8E4M3, O>> {
        let VarlenSizes { batch, q_heads, kv_heads, q_total, k_total, head_dim, .. } = *problem;
        let Strides([q_row, kv_row, o_row]) = self.strides;
        let [q, k, v] = &self.inputs;
        let input = |buffer, shape, row| TensorRef::strided(buffer, 0, shape, [row, head_dim as i64, 1]);
        let (q_shape, kv_shape) = ([q_total, q_heads, head_dim], [k_total, kv_heads, head_dim]);
        let Outputs { out, lse } = outputs;
        let (out_offset, lse_offset) = (out.offset(), lse.offset());
        Ok(VarlenTensors {
            descales: self.factors.descales()?,
            q: input(q, q_shape, q_row)?,
            k: input(k, kv_shape, kv_row)?,
            v: input(v, kv_shape, kv_row)?,
            out: TensorMut::strided(out.buffer(), out_offset, q_shape, [o_row, head_dim as i64, 1])?,
            cu_seqlens_q: TensorRef::contiguous(&self.starts[0], [batch + 1])?,
            cu_seqlens_k: TensorRef::contiguous(&self.starts[1], [batch + 1])?,
            lse: Some(TensorMut::strided(lse.buffer(), lse_offset, [q_heads, q_total], [q_total as i64, 1])?),
            sink: None,
            bias: None,
        })
    }
}

/// Sequences of E4M3, each with what it has of the factors of all.
struct Sequences {
    batch: Batch,
    members: Vec<Quantized>,
    factors: Factors,
}

impl Sequences {
    fn normal(batch: Batch, seed: u64) -> Sequences {
        let (count, [q_heads, kv_heads]) = (batch.sequences.len(), batch.heads);
        let whole = Case::new(count, 1, 1, 1, batch.head_dim, batch.mask).grouped(q_heads, kv_heads);
        let factors = factors(&whole, seed);
        let of_entry = |factors: &Array2<f64>, entry: usize| {
            let entry = entry % factors.dim().0;
            factors.slice(s![entry..=entry, ..]).to_owned()
        };
        let member = |entry: usize| {
            let own = factors.each_ref().map(|factors| factors.as_ref().map(|factors| of_entry(factors, entry)));
            Quantized::normal(&batch.case(entry), 100 * seed + entry as u64, own)
        };
        let members = (0..count).map(member).collect();
        Sequences { batch, members, factors }
    }

    fn configs<O: Half>(&self, gpu: &Gpu, terms: &Terms<O>) -> impl Iterator<Item = &'static AttentionConfig> + use<O> {
        let VarlenSizes { max_q_len, max_k_len, head_dim, .. } = self.batch.problem();
        let lengths = (terms.scores(), Seqlens::Varlen);
        configs(gpu, (head_dim, O::DTYPE), lengths, (self.batch.mask, max_q_len, max_k_len))
    }

    /// Copies the tensors to a card, rows `gap` elements farther apart than they are long. What belongs to no sequence
    /// is NaN.
    fn upload(&self, stream: &Stream, gap: i64) -> Result<Stored, Failed> {
        let (batch, problem, [q_starts, k_starts]) = (&self.batch, self.batch.problem(), self.batch.starts());
        let strides = Strides(Strides::dense(batch).0.map(|row| row + gap));
        let [q_row, kv_row, _] = strides.0;
        let [q_heads, kv_heads] = batch.heads;
        let tensor = |(total, heads, row): (usize, usize, i64), starts: &[i32], of: Part, len: Len| {
            let mut storage = vec![F8E4M3::poison(); total * row as usize];
            for (entry, member) in self.members.iter().enumerate() {
                let view = batch.view(heads, starts[entry] as usize, len(&batch.sequences[entry]), row);
                view.scatter(of(&member.inputs), &mut storage);
            }
            Buffer::upload_blocking(stream, &storage)
        };
        let (of_q, of_k) = ((problem.q_total, q_heads, q_row), (problem.k_total, kv_heads, kv_row));
        Ok(Stored {
            inputs: [
                tensor(of_q, &q_starts, |inputs| &inputs.q, |entry| entry.0)?,
                tensor(of_k, &k_starts, |inputs| &inputs.k, |entry| entry.1)?,
                tensor(of_k, &k_starts, |inputs| &inputs.v, |entry| entry.1)?,
            ],
            starts: [Buffer::upload_blocking(stream, &q_starts)?, Buffer::upload_blocking(stream, &k_starts)?],
            factors: StoredFactors::upload(stream, &self.factors)?,
            strides,
        })
    }

    /// Runs one kernel and returns the output of each sequence.
    fn run<O: Half>(
        &self,
        gpu: &Gpu,
        terms: &Terms<O>,
        config: &AttentionConfig,
        gap: i64,
    ) -> Result<Vec<Output<O>>, Failed> {
        let (stream, problem) = (gpu.new_stream()?, self.batch.problem());
        let (stored, stored_terms) = (self.upload(&stream, gap)?, terms.upload(gpu)?);
        let mut outputs = Outputs::<O>::new(gpu, &stream, &problem, stored.strides)?;
        let tensors = VarlenTensors {
            sink: stored_terms.sink()?,
            bias: stored_terms.bias()?,
            ..stored.tensors(&problem, &mut outputs)?
        };
        let request = self.batch.options(terms, config);
        let lengths = [problem.max_q_len, problem.max_k_len];
        attention_varlen(&stream, tensors, lengths, &request.params(), &request.options())?;
        outputs.read(&stream, &self.batch, stored.strides)
    }

    /// Checks each sequence against the reference of it alone.
    fn check<O: Half>(&self, outputs: &[Output<O>], terms: &Terms<O>, config: &'static AttentionConfig) -> Outcome {
        let types = (O::DTYPE, accumulation(&config));
        for (entry, (output, member)) in outputs.iter().zip(&self.members).enumerate() {
            let case = self.batch.case(entry);
            let own = terms_of(terms, &self.batch, entry);
            let (exact, limits) = own.of_reference(&case, |terms| member.limits_of(&case, terms, types));
            within((&output.out, &output.lse), &exact, &limits)
                .map_err(|failure| format!("sequence {entry}: {}", failure.message().unwrap_or("failed")))?;
        }
        Ok(())
    }
}

/// Sequences at the edges of tiles, and without rows, keys or both, with every kind of terms and factors.
fn lengths<O: Half>(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    if !is_compiled(gpu)? {
        return Ok(());
    }
    for (seed, mask) in [Mask::Window { left: 30, right: 4 }, Mask::Full, Mask::Causal].into_iter().enumerate() {
        let batch = Batch { heads: [2, 2], ..Batch::new(head_dim, mask) };
        let sink = Terms { sink: Some(vec![0.5, 40.0]), ..Terms::NONE };
        let capped = Terms { softcap: Some(6.0), ..sink.clone() };
        for (index, terms) in [Terms::NONE, sink, capped, every_term::<O>(&batch)].into_iter().enumerate() {
            // Each mask with some terms, and each terms with some mask.
            if is_small(gpu) && (seed + index) % 3 != 0 {
                continue;
            }
            let sequences = Sequences::normal(batch.clone(), (seed + index) as u64);
            for_configs(&batch, sequences.configs(gpu, &terms), |config| {
                sequences.check(&sequences.run(gpu, &terms, config, 0)?, &terms, config)
            })?;
        }
    }
    Ok(())
}

/// What a sequence gives does not depend on the others, nor on how far rows are apart: it is what it gives alone, bit
/// by bit.
fn same_alone(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    if !is_compiled(gpu)? {
        return Ok(());
    }
    let batch = Batch { heads: [2, 2], ..Batch::new(head_dim, Mask::Causal) };
    let sequences = Sequences::normal(batch.clone(), 2);
    for terms in [every_term::<bf16>(&batch), Terms { softcap: Some(6.0), ..Terms::NONE }, Terms::NONE] {
        for_configs(&batch, sequences.configs(gpu, &terms), |config| {
            let outputs = sequences.run(gpu, &terms, config, 0)?;
            let gap = if matches!(config.kernel, AttentionKernel::Mma(_)) { 5 } else { 48 };
            let apart = if terms.bias.is_none() { Some(sequences.run(gpu, &terms, config, gap)?) } else { None };
            for (entry, output) in outputs.iter().enumerate() {
                let case = batch.case(entry);
                if let Some(apart) = &apart {
                    output.check_same(&case, &apart[entry])?;
                }
                let own = terms_of(&terms, &batch, entry);
                output.check_same(&case, &run_with(gpu, &case, &sequences.members[entry], &own, config)?)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// More tiles than blocks, in sequences from one row to many tiles, with factors of each sequence and head; twice with
/// the same bits.
fn many_tiles(gpu: &Gpu, (): &()) -> Outcome {
    if !is_compiled(gpu)? {
        return Ok(());
    }
    let (count, heads) = if is_small(gpu) { (8, [1, 1]) } else { (60, [12, 4]) };
    let lens = [1, 129, 257, 191, 64, 0, 128, 193];
    let members: Vec<_> = (0..count).map(|entry| (lens[entry % 8], lens[(5 * entry + 3) % 8])).collect();
    for &head_dim in if is_small(gpu) { &[64][..] } else { &[64, 128, 256] } {
        let batch = Batch { sequences: members.clone(), heads, ..Batch::new(head_dim, Mask::Causal) };
        let sequences = Sequences::normal(batch.clone(), 2);
        for_configs(&batch, sequences.configs::<bf16>(gpu, &Terms::NONE), |config| {
            let outputs = sequences.run(gpu, &Terms::NONE, config, 0)?;
            sequences.check(&outputs, &Terms::<bf16>::NONE, config)?;
            let again = sequences.run(gpu, &Terms::NONE, config, 0)?;
            (0..outputs.len()).try_for_each(|entry| again[entry].check_same(&batch.case(entry), &outputs[entry]))
        })?;
    }
    Ok(())
}

/// Runs one kernel with an O of E4M3, times `scale`, whose rows are `gap` elements farther apart than they are long.
fn run_narrow(
    gpu: &Gpu,
    case: &Case,
    Quantized { inputs, factors }: &Quantized,
    (scale, gap): (f32, usize),
    config: &AttentionConfig,
) -> Result<(Vec<F8E4M3>, Vec<f32>), Failed> {
    let stream = gpu.new_stream()?;
    let upload = |values: &Vec<F8E4M3>| Buffer::upload_blocking(&stream, values);
    let (q, k, v) = (upload(&inputs.q)?, upload(&inputs.k)?, upload(&inputs.v)?);
    let factors = StoredFactors::upload(&stream, factors)?;
    let [_, heads, rows, columns] = case.q_shape();
    let row = columns + gap;
    let view = View {
        offset: 0,
        shape: case.q_shape(),
        strides: [heads * rows * row, rows * row, row, 1].map(|stride| stride as i64),
    };
    let mut out = Guarded::<F8E4M3>::new(gpu, &stream, view.storage_len())?;
    let mut lse = Guarded::<f32>::new(gpu, &stream, case.lse_shape().iter().product())?;
    let (out_view, lse_offset) = (view.moved(out.offset()), lse.offset());
    let [lse_batch, lse_head, lse_rows] = case.lse_shape();
    let lse_strides = [lse_head * lse_rows, lse_rows, 1].map(|stride| stride as i64);
    let tensors = AttentionTensors {
        descales: factors.descales()?,
        lse: Some(TensorMut::strided(lse.buffer(), lse_offset, [lse_batch, lse_head, lse_rows], lse_strides)?),
        ..AttentionTensors::new(
            TensorRef::contiguous(&q, case.q_shape())?,
            TensorRef::contiguous(&k, case.kv_shape())?,
            TensorRef::contiguous(&v, case.kv_shape())?,
            out_view.tensor_mut(out.buffer(), Layout::Bhsd)?,
        )
    };
    let request = Request { out_scale: Some(scale), ..case.options(Layout::Bhsd, config) };
    attention(&stream, tensors, &request.params(), &request.options())?;
    Ok((view.gather_alone(&out.read(&stream)?)?, lse.read(&stream)?))
}

/// The kernels that can have an O of E4M3.
fn narrow_configs(gpu: &Gpu, case: &Case, lengths: Seqlens) -> impl Iterator<Item = &'static AttentionConfig> + use<> {
    let Case { sizes, mask, .. } = *case;
    let kind = (ScoreMod::None, lengths);
    configs(gpu, (sizes.head_dim, Dtype::F16), kind, (mask, sizes.q_len, sizes.k_len))
        .filter(|config| config.may_narrow_out())
}

/// Each element is within the limit of O times the scale, which is O of values times it, or is 448 with its sign.
fn narrow(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    if !is_compiled(gpu)? {
        return Ok(());
    }
    let lengths: &[(usize, usize)] =
        if is_small(gpu) { &[(70, 133), (90, 40)] } else { &[(70, 133), (90, 40), (257, 300)] };
    for (index, &(q_len, k_len)) in lengths.iter().enumerate() {
        for (seed, scale) in [(0, 1.0f32), (1, 64.0), (3, 3e4), (2, 1e-3)] {
            if is_small(gpu) && (index as u64 + seed) % 2 == 1 {
                continue;
            }
            let mask = [Mask::Full, Mask::Causal][(index + seed as usize) % 2];
            let case = Case::new(1, 1, q_len, k_len, head_dim, mask).grouped(4, 2);
            let quantized = Quantized::normal(&case, 71 + seed, factors(&case, seed));
            let mut scaled = quantized.clone();
            let of_v = scaled.factors[2].take().unwrap_or_else(|| Array2::ones((1, 1)));
            scaled.factors[2] = Some(of_v * f64::from(scale));
            for_configs(case, narrow_configs(gpu, &case, Seqlens::Fixed), |config| {
                let types = (Dtype::E4M3, accumulation(&config));
                let (mut exact, limits) =
                    Terms::<f16>::NONE.of_reference(&case, |terms| scaled.limits_of(&case, terms, types));
                exact.0.mapv_inplace(|x| x.clamp(-448.0, 448.0));
                let (out, lse) = run_narrow(gpu, &case, &quantized, (scale, 0), config)?;
                within((&out, &lse), &exact, &limits)
            })?;
        }
    }
    Ok(())
}

/// Rows of O that start anywhere give the bits of rows without gaps, from kernels that take them.
fn narrow_anywhere(gpu: &Gpu, (): &()) -> Outcome {
    if !is_compiled(gpu)? {
        return Ok(());
    }
    for head_dim in [64, 128, 40] {
        let case = Case::new(2, 2, 70, 133, head_dim, Mask::Causal);
        let quantized = Quantized::normal(&case, 81, factors(&case, 2));
        let is_mma = |config: &&AttentionConfig| matches!(config.kernel, AttentionKernel::Mma(_));
        for_configs(case, narrow_configs(gpu, &case, Seqlens::Fixed).filter(is_mma), |config| {
            let dense = run_narrow(gpu, &case, &quantized, (2.0, 0), config)?;
            for gap in [1, 3, 8, 16] {
                let apart = run_narrow(gpu, &case, &quantized, (2.0, gap), config)?;
                if apart != dense {
                    return Err(format!("rows {gap} elements apart have other elements").into());
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Sequences have the elements of each alone.
fn narrow_lengths(gpu: &Gpu, (): &()) -> Outcome {
    if !is_compiled(gpu)? {
        return Ok(());
    }
    let batch = Batch { heads: [2, 2], ..Batch::new(64, Mask::Causal) };
    let sequences = Sequences::normal(batch.clone(), 2);
    let (stream, problem, scale) = (gpu.new_stream()?, batch.problem(), 16.0);
    let longest = Case::new(1, 1, problem.max_q_len, problem.max_k_len, 64, batch.mask);
    for_configs(&batch, narrow_configs(gpu, &longest, Seqlens::Varlen), |config| {
        let stored = sequences.upload(&stream, 0)?;
        let mut outputs = Outputs::<F8E4M3>::new(gpu, &stream, &problem, stored.strides)?;
        let request = Request { out_scale: Some(scale), ..batch.options(&Terms::<f16>::NONE, config) };
        let tensors = stored.tensors(&problem, &mut outputs)?;
        let lengths = [problem.max_q_len, problem.max_k_len];
        attention_varlen(&stream, tensors, lengths, &request.params(), &request.options())?;
        for (entry, output) in outputs.read(&stream, &batch, stored.strides)?.iter().enumerate() {
            let (case, member) = (batch.case(entry), &sequences.members[entry]);
            let (out, lse) = run_narrow(gpu, &case, member, (scale, 0), config)?;
            if (&output.out, &output.lse) != (&out, &lse) {
                return Err(format!("sequence {entry} is not what it is alone").into());
            }
        }
        Ok(())
    })
}
