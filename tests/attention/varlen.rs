//! Sequences of several lengths that follow each other in one tensor.

use std::fmt;

use ferrotile::{
    Buffer, Descales, Gpu, Layout, Mask, TensorMut, TensorRef, VarlenSizes, VarlenTensors, attention_varlen,
};
use half::{bf16, f16};
use libtest_mimic::Failed;
use tests::guard::{Guarded, Poison};
use tests::inputs::{self, Half};
use tests::is_small;
use tests::request::Request;
use tests::view::View;
use variants::attention::{AttentionConfig, AttentionKernel, Seqlens};

use crate::Trials;
use crate::case::{Case, Inputs, Outcome, Output, for_configs};
use crate::scores::{self, Terms};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    for head_dim in [64, 128, 256, 40] {
        let name = |what: &str| format!("several_lengths/{what}/d{head_dim}");
        trials.both(&name("match_the_reference"), &head_dim, match_reference::<f16>, match_reference::<bf16>);
        trials.both(&name("give_the_bits_of_each_alone"), &head_dim, same_alone::<f16>, same_alone::<bf16>);
        trials.both(&name("keep_nan_in_its_member"), &head_dim, nan_stays::<f16>, nan_stays::<bf16>);
        trials.both(&name("lie_anywhere"), &head_dim, strided::<f16>, strided::<bf16>);
    }
    trials.both("several_lengths/may_change_between_replays", &(), replayed::<f16>, replayed::<bf16>);
    trials.both("several_lengths/may_be_none", &(), none::<f16>, none::<bf16>);
    trials.both("several_lengths/are_served_wherever_they_lie", &(), unnamed::<f16>, unnamed::<bf16>);
    trials.both("several_lengths/fill_many_tiles", &(), many_tiles::<f16>, many_tiles::<bf16>);
    trials.both("refuses/several_lengths_that_do_not_fit", &(), refused::<f16>, refused::<bf16>);
}

/// Sequences of a batch: rows and keys of each, at the edges of tiles, and without the one, the other or both.
const SEQUENCES: [(usize, usize); 9] =
    [(65, 63), (0, 0), (1, 130), (64, 64), (0, 33), (17, 0), (0, 0), (66, 97), (15, 16)];

/// Sequences that follow each other, and rows around them that belong to none.
#[derive(Debug, Clone)]
pub(crate) struct Batch {
    pub(crate) sequences: Vec<(usize, usize)>,
    /// Rows of Q and keys before the first sequence, and after the last.
    pub(crate) around: [usize; 2],
    pub(crate) heads: [usize; 2],
    pub(crate) head_dim: usize,
    pub(crate) mask: Mask,
    pub(crate) scale: f32,
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Batch { sequences, heads: [q_heads, kv_heads], head_dim, mask, .. } = self;
        write!(f, "{sequences:?} x{q_heads}:{kv_heads}x{head_dim}/{mask}")
    }
}

impl Batch {
    pub(crate) fn new(head_dim: usize, mask: Mask) -> Batch {
        Batch { sequences: SEQUENCES.to_vec(), around: [3, 5], heads: [2, 1], head_dim, mask, scale: 0.3 }
    }

    pub(crate) fn problem(&self) -> VarlenSizes {
        let [q_starts, k_starts] = self.starts();
        let longest = |of: fn(&(usize, usize)) -> usize| self.sequences.iter().map(of).max().unwrap_or(0);
        VarlenSizes {
            batch: self.sequences.len(),
            q_heads: self.heads[0],
            kv_heads: self.heads[1],
            q_total: q_starts[self.sequences.len()] as usize + self.around[1],
            k_total: k_starts[self.sequences.len()] as usize + self.around[1],
            max_q_len: longest(|entry| entry.0),
            max_k_len: longest(|entry| entry.1),
            head_dim: self.head_dim,
        }
    }

    /// The first row and key of each sequence, and the ends.
    pub(crate) fn starts(&self) -> [Vec<i32>; 2] {
        [|entry: &(usize, usize)| entry.0, |entry: &(usize, usize)| entry.1].map(|len| {
            let ends = self.sequences.iter().scan(self.around[0], |end, entry| {
                *end += len(entry);
                Some(*end as i32)
            });
            std::iter::once(self.around[0] as i32).chain(ends).collect()
        })
    }

    /// One sequence as a case of its own.
    pub(crate) fn case(&self, entry: usize) -> Case {
        let (q_len, k_len) = self.sequences[entry];
        let [q_heads, kv_heads] = self.heads;
        Case::new(1, 1, q_len, k_len, self.head_dim, self.mask).grouped(q_heads, kv_heads).scaled(self.scale)
    }

    pub(crate) fn configs<T: Half>(
        &self,
        gpu: &Gpu,
        terms: &Terms<T>,
    ) -> impl Iterator<Item = &'static AttentionConfig> + use<T> {
        let VarlenSizes { batch, q_heads, kv_heads, max_q_len, max_k_len, head_dim, .. } = self.problem();
        let case = Case::new(batch, 1, max_q_len, max_k_len, head_dim, self.mask).grouped(q_heads, kv_heads);
        case.configs_of::<T>(gpu, terms.scores(), Seqlens::Varlen)
    }

    pub(crate) fn options<T: Half>(&self, terms: &Terms<T>, config: &AttentionConfig) -> Request {
        Request {
            mask: self.mask,
            scale: Some(self.scale),
            softcap: terms.softcap,
            bias: terms.bias.is_some(),
            kernel: Some(config.name.to_owned()),
            ..Request::new(Layout::Bshd)
        }
    }

    /// The view of rows `start..start + len` of a tensor `[total, heads, head_dim]` with this distance between rows.
    pub(crate) fn view(&self, heads: usize, start: usize, len: usize, row: i64) -> View {
        let shape = [1, heads, len, self.head_dim];
        View { offset: start * row as usize, shape, strides: [0, self.head_dim as i64, row, 1] }
    }
}

/// Inputs of each sequence, and terms of each: the bias is `[sequences, q_heads, max_q_len, max_k_len]`.
#[derive(Clone)]
pub(crate) struct Data<T> {
    inputs: Vec<Inputs<T>>,
    pub(crate) terms: Terms<T>,
}

impl<T: Half> Data<T> {
    pub(crate) fn normal(batch: &Batch, terms: Terms<T>, seed: u64) -> Data<T> {
        let inputs = (0..batch.sequences.len()).map(|entry| Inputs::normal(&batch.case(entry), seed + entry as u64));
        Data { inputs: inputs.collect(), terms }
    }

    /// The terms of one sequence.
    fn terms_of(&self, batch: &Batch, entry: usize) -> Terms<T> {
        terms_of(&self.terms, batch, entry)
    }
}

/// The terms of one sequence: its part of the bias.
pub(crate) fn terms_of<T: Half>(terms: &Terms<T>, batch: &Batch, entry: usize) -> Terms<T> {
    let (q_len, k_len) = batch.sequences[entry];
    let bias = terms.bias.as_ref().and_then(|(values, view)| {
        let [_, heads, rows, keys] = view.shape;
        let first = entry * heads * rows * keys;
        let part =
            View { offset: first, shape: [1, heads, q_len, k_len], strides: [0, (rows * keys) as i64, keys as i64, 1] };
        Terms::bias(part.gather(values), part.shape)
    });
    Terms { bias, ..terms.clone() }
}

/// Distances between rows of Q, of K and V, and of O, in elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strides(pub(crate) [i64; 3]);

impl Strides {
    pub(crate) fn dense(batch: &Batch) -> Strides {
        let [q, kv] = batch.heads.map(|heads| (heads * batch.head_dim) as i64);
        Strides([q, kv, q])
    }
}

/// Tensors of a batch on a card, between whose sequences nothing is; before, after and between rows is NaN.
pub(crate) struct Stored<T> {
    inputs: [Buffer<T>; 3],
    pub(crate) starts: [Buffer<i32>; 2],
    terms: scores::StoredTerms<T>,
}

impl<T: Half> Stored<T> {
    pub(crate) fn upload(gpu: &Gpu, batch: &Batch, data: &Data<T>, strides: Strides) -> Result<Stored<T>, Failed> {
        let stream = gpu.new_stream()?;
        let problem = batch.problem();
        let [q_starts, k_starts] = batch.starts();
        let tensor = |total: usize,
                      heads,
                      starts: &[i32],
                      row,
                      of: fn(&Inputs<T>) -> &Vec<T>,
                      len: fn(&(usize, usize)) -> usize| {
            let mut storage = vec![T::poison(); total * row as usize];
            for (entry, inputs) in data.inputs.iter().enumerate() {
                let view = batch.view(heads, starts[entry] as usize, len(&batch.sequences[entry]), row);
                view.scatter(of(inputs), &mut storage);
            }
            Buffer::upload_blocking(&stream, &storage)
        };
        let [q_heads, kv_heads] = batch.heads;
        let [q_row, kv_row, _] = strides.0;
        Ok(Stored {
            inputs: [
                tensor(problem.q_total, q_heads, &q_starts, q_row, |inputs| &inputs.q, |entry| entry.0)?,
                tensor(problem.k_total, kv_heads, &k_starts, kv_row, |inputs| &inputs.k, |entry| entry.1)?,
                tensor(problem.k_total, kv_heads, &k_starts, kv_row, |inputs| &inputs.v, |entry| entry.1)?,
            ],
            starts: [Buffer::upload_blocking(&stream, &q_starts)?, Buffer::upload_blocking(&stream, &k_starts)?],
            terms: data.terms.upload(gpu)?,
        })
    }

    pub(crate) fn tensors<'a>(
        &'a self,
        problem: &VarlenSizes,
        Strides([q_row, kv_row, o_row]): Strides,
        out: &'a mut Guarded<T>,
        lse: &'a mut Guarded<f32>,
    ) -> ferrotile::Result<VarlenTensors<'a, T>> {
        let VarlenSizes { batch, q_heads, kv_heads, q_total, k_total, head_dim, .. } = *problem;
        let (out_offset, lse_offset) = (out.offset(), lse.offset());
        let [q, k, v] = &self.inputs;
        let input = |buffer, shape, row| TensorRef::strided(buffer, 0, shape, [row, head_dim as i64, 1]);
        let kv_shape = [k_total, kv_heads, head_dim];
        let out_shape = [q_total, q_heads, head_dim];
        Ok(VarlenTensors {
            descales: Descales::NONE,
            q: input(q, out_shape, q_row)?,
            k: input(k, kv_shape, kv_row)?,
            v: input(v, kv_shape, kv_row)?,
            out: TensorMut::strided(out.buffer(), out_offset, out_shape, [o_row, head_dim as i64, 1])?,
            cu_seqlens_q: TensorRef::contiguous(&self.starts[0], [batch + 1])?,
            cu_seqlens_k: TensorRef::contiguous(&self.starts[1], [batch + 1])?,
            lse: Some(TensorMut::strided(lse.buffer(), lse_offset, [q_heads, q_total], [q_total as i64, 1])?),
            sink: self.terms.sink()?,
            bias: self.terms.bias()?,
        })
    }
}

/// The outputs of a call, all of them poison before it.
pub(crate) struct Outputs<T: Poison> {
    pub(crate) out: Guarded<T>,
    pub(crate) lse: Guarded<f32>,
}

impl<T: Poison> Outputs<T> {
    pub(crate) fn new(
        gpu: &Gpu,
        stream: &ferrotile::Stream,
        problem: &VarlenSizes,
        strides: Strides,
    ) -> Result<Outputs<T>, Failed> {
        let out = Guarded::new(gpu, stream, problem.q_total * strides.0[2] as usize)?;
        Ok(Outputs { out, lse: Guarded::new(gpu, stream, problem.q_heads * problem.q_total)? })
    }

    /// The output of each sequence, after a check that nothing else was written.
    pub(crate) fn read(
        &self,
        stream: &ferrotile::Stream,
        batch: &Batch,
        strides: Strides,
    ) -> Result<Vec<Output<T>>, Failed> {
        let (mut out, mut lse) = (self.out.read(stream)?, self.lse.read(stream)?);
        let q_heads = batch.heads[0];
        let q_total = batch.problem().q_total;
        let mut outputs = Vec::new();
        for (entry, &start) in batch.starts()[0][..batch.sequences.len()].iter().enumerate() {
            let (start, len) = (start as usize, batch.sequences[entry].0);
            let view = batch.view(q_heads, start, len, strides.0[2]);
            let of_lse = View { offset: start, shape: [1, 1, q_heads, len], strides: [0, 0, q_total as i64, 1] };
            outputs.push(Output { out: view.gather(&out), lse: of_lse.gather(&lse) });
            view.scatter(&vec![T::poison(); view.count()], &mut out);
            of_lse.scatter(&vec![f32::poison(); of_lse.count()], &mut lse);
        }
        if out.iter().all(|x| x.is_poison()) && lse.iter().all(|x| x.is_poison()) {
            Ok(outputs)
        } else {
            Err("something outside the sequences was written".into())
        }
    }
}

/// Runs one kernel and returns the output of each sequence.
pub(crate) fn run<T: Half>(
    gpu: &Gpu,
    batch: &Batch,
    data: &Data<T>,
    strides: Strides,
    config: &AttentionConfig,
) -> Result<Vec<Output<T>>, Failed> {
    let stream = gpu.new_stream()?;
    let problem = batch.problem();
    let stored = Stored::upload(gpu, batch, data, strides)?;
    let mut outputs = Outputs::new(gpu, &stream, &problem, strides)?;
    let tensors = stored.tensors(&problem, strides, &mut outputs.out, &mut outputs.lse)?;
    let lengths = [problem.max_q_len, problem.max_k_len];
    let request = batch.options(&data.terms, config);
    attention_varlen(&stream, tensors, lengths, &request.params(), &request.options())?;
    outputs.read(&stream, batch, strides)
}

/// Terms of every kind.
pub(crate) fn every_term<T: Half>(batch: &Batch) -> Terms<T> {
    let VarlenSizes { batch, q_heads, max_q_len, max_k_len, .. } = batch.problem();
    let shape = [batch, q_heads, max_q_len, max_k_len];
    let values = inputs::normal(&mut inputs::random(41), shape.iter().product(), 2.0);
    let sink = Some((0..q_heads).map(|head| head as f32 - 1.0).collect());
    Terms { softcap: Some(6.0), sink, bias: Terms::bias(values, shape) }
}

fn match_reference<T: Half>(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    for mask in [Mask::Full, Mask::Causal, Mask::Window { left: 30, right: 4 }] {
        let batch = Batch::new(head_dim, mask);
        let sink = Terms { sink: Some(vec![0.5, 40.0]), ..Terms::NONE };
        let capped = Terms { softcap: Some(6.0), ..sink.clone() };
        for terms in [Terms::NONE, sink, capped, every_term(&batch)] {
            let data = Data::<T>::normal(&batch, terms, 42);
            let expected: Vec<_> = (0..batch.sequences.len())
                .map(|entry| data.terms_of(&batch, entry).expected(&batch.case(entry), &data.inputs[entry]))
                .collect();
            for_configs(&batch, batch.configs(gpu, &data.terms), |config| {
                let outputs = run(gpu, &batch, &data, Strides::dense(&batch), config)?;
                (0..outputs.len()).try_for_each(|entry| outputs[entry].check(&batch.case(entry), &expected[entry]))
            })?;
        }
    }
    Ok(())
}

/// What a sequence gives does not depend on the others: it is what it gives alone, bit by bit.
fn same_alone<T: Half>(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    let batch = Batch::new(head_dim, Mask::Causal);
    [every_term(&batch), Terms { softcap: Some(6.0), ..Terms::NONE }].into_iter().try_for_each(|terms| {
        let data = Data::<T>::normal(&batch, terms, 43);
        for_configs(&batch, batch.configs(gpu, &data.terms), |config| {
            let outputs = run(gpu, &batch, &data, Strides::dense(&batch), config)?;
            let taken = |&entry: &usize| {
                let (q_len, k_len) = batch.sequences[entry];
                config.takes(batch.mask, q_len, k_len)
            };
            (0..outputs.len()).filter(taken).try_for_each(|entry| {
                let case = batch.case(entry);
                let alone = scores::run(gpu, &case, &data.inputs[entry], &data.terms_of(&batch, entry), config)?;
                outputs[entry].check_same(&case, &alone)
            })
        })
    })
}

/// Sequences whose Q, K or V is NaN throughout, between others that do not notice.
fn nan_stays<T: Half>(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    for mask in [Mask::Full, Mask::Causal] {
        let batch = Batch::new(head_dim, mask);
        let clean = Data::<T>::normal(&batch, Terms::NONE, 44);
        let mut dirty = clean.clone();
        let spoiled = [0, 3, 7];
        dirty.inputs[0].k.fill(T::poison());
        dirty.inputs[3].v.fill(T::poison());
        dirty.inputs[7].q.fill(T::poison());
        for_configs(&batch, batch.configs(gpu, &clean.terms), |config| {
            let without = run(gpu, &batch, &clean, Strides::dense(&batch), config)?;
            let outputs = run(gpu, &batch, &dirty, Strides::dense(&batch), config)?;
            (0..outputs.len())
                .filter(|entry| !spoiled.contains(entry))
                .try_for_each(|entry| outputs[entry].check_same(&batch.case(entry), &without[entry]))
        })?;
    }
    Ok(())
}

/// Rows far apart, and rows that start anywhere, which kernels that copy by TMA refuse.
fn strided<T: Half>(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    let batch = Batch::new(head_dim, Mask::Causal);
    let data = Data::<T>::normal(&batch, Terms::NONE, 45);
    let dense = Strides::dense(&batch);
    for_configs(&batch, batch.configs(gpu, &data.terms), |config| {
        let expected = run(gpu, &batch, &data, dense, config)?;
        for gap in [24, 5] {
            let result = run(gpu, &batch, &data, Strides(dense.0.map(|row| row + gap)), config);
            let outputs = match (&config.kernel, gap) {
                (AttentionKernel::Wgmma(_), 5) => match result {
                    Err(failed) if failed.message().is_some_and(|text| text.contains("boundary")) => continue,
                    _ => return Err("rows that start anywhere were not refused".into()),
                },
                _ => result?,
            };
            for (entry, output) in outputs.iter().enumerate() {
                output.check_same(&batch.case(entry), &expected[entry])?;
            }
        }
        Ok(())
    })
}

/// The kernel of the library's choice, or the one that takes its place where rows start anywhere.
fn unnamed<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let batch = Batch::new(64, Mask::Causal);
    let data = Data::<T>::normal(&batch, Terms::NONE, 50);
    let (problem, stream) = (batch.problem(), gpu.new_stream()?);
    let options = Request { mask: batch.mask, scale: Some(batch.scale), ..Request::new(Layout::Bshd) };
    for gap in [0, 5] {
        let strides = Strides(Strides::dense(&batch).0.map(|row| row + gap));
        let stored = Stored::upload(gpu, &batch, &data, strides)?;
        let mut outputs = Outputs::new(gpu, &stream, &problem, strides)?;
        let tensors = stored.tensors(&problem, strides, &mut outputs.out, &mut outputs.lse)?;
        let lengths = [problem.max_q_len, problem.max_k_len];
        attention_varlen(&stream, tensors, lengths, &options.params(), &options.options())?;
        for (entry, output) in outputs.read(&stream, &batch, strides)?.iter().enumerate() {
            let case = batch.case(entry);
            output.check(&case, &Terms::NONE.expected(&case, &data.inputs[entry]))?;
        }
    }
    Ok(())
}

/// More tiles than blocks, so that blocks take many one after the other, in sequences from one row to many tiles, and
/// twice with the same bits.
fn many_tiles<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let (sequences, heads) = if is_small(gpu) { (8, [1, 1]) } else { (60, [12, 4]) };
    let lens = [1, 130, 257, 3, 64, 0, 128, 385];
    let sequences: Vec<_> = (0..sequences).map(|entry| (lens[entry % 8], lens[(5 * entry + 3) % 8])).collect();
    let batch = Batch { sequences, heads, ..Batch::new(64, Mask::Causal) };
    let data = Data::<T>::normal(&batch, Terms::NONE, 51);
    let strides = Strides::dense(&batch);
    for_configs(&batch, batch.configs(gpu, &data.terms).filter(|config| config.seqlens == Seqlens::Varlen), |config| {
        let outputs = run(gpu, &batch, &data, strides, config)?;
        for (entry, output) in outputs.iter().enumerate() {
            let case = batch.case(entry);
            output.check(&case, &Terms::NONE.expected(&case, &data.inputs[entry]))?;
        }
        let again = run(gpu, &batch, &data, strides, config)?;
        (0..outputs.len()).try_for_each(|entry| again[entry].check_same(&batch.case(entry), &outputs[entry]))
    })
}

/// A captured call computes the lengths that stand on the card when it is replayed.
fn replayed<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let batch =
        |sequences: [(usize, usize); 2]| Batch { sequences: sequences.to_vec(), ..Batch::new(64, Mask::Causal) };
    let batches = [batch([(40, 40), (20, 30)]), batch([(20, 30), (40, 40)])];
    let (problem, strides) = (batches[0].problem(), Strides::dense(&batches[0]));
    let data = batches.each_ref().map(|batch| Data::<T>::normal(batch, Terms::NONE, 47));
    for_configs(&batches[0], batches[0].configs(gpu, &data[0].terms), |config| {
        let stream = gpu.new_stream()?;
        let plan = batches[0].options(&data[0].terms, config).plan(gpu, T::DTYPE, problem)?;
        if plan.to_string() != config.name || plan.kernel_name() != config.name {
            return Err(format!("the plan is for {plan}").into());
        }
        let mut stored = Stored::upload(gpu, &batches[0], &data[0], strides)?;
        let mut outputs = Outputs::<T>::new(gpu, &stream, &problem, strides)?;
        let graph = stream.capture(|stream| {
            plan.run(stream, stored.tensors(&problem, strides, &mut outputs.out, &mut outputs.lse)?)
        })?;
        outputs.out.check_untouched(&stream)?;
        for (batch, data) in batches.iter().zip(&data) {
            let next = Stored::upload(gpu, batch, data, strides)?;
            for (to, from) in stored.inputs.iter_mut().zip(&next.inputs) {
                to.overwrite_blocking(&stream, &from.download_blocking(&stream)?)?;
            }
            for (to, from) in stored.starts.iter_mut().zip(&next.starts) {
                to.overwrite_blocking(&stream, &from.download_blocking(&stream)?)?;
            }
            outputs.out.buffer().fill_bytes(&stream, 0xFF)?;
            outputs.lse.buffer().fill_bytes(&stream, 0xFF)?;
            // SAFETY: the tensors and the plan outlive the replay, which the download waits for.
            unsafe { graph.launch(stream.as_ref()) }?;
            for (entry, output) in outputs.read(&stream, batch, strides)?.iter().enumerate() {
                let case = batch.case(entry);
                output.check_same(&case, &scores::run(gpu, &case, &data.inputs[entry], &Terms::NONE, config)?)?;
            }
        }
        Ok(())
    })
}

/// No sequence, and none that has anything.
fn none<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    for sequences in [vec![], vec![(0, 0); 3], vec![(0, 5), (0, 0)], vec![(5, 0)]] {
        let batch = Batch { sequences, ..Batch::new(64, Mask::Causal) };
        let data = Data::<T>::normal(&batch, Terms { sink: Some(vec![1.0, 2.0]), ..Terms::NONE }, 48);
        for_configs(&batch, batch.configs(gpu, &data.terms), |config| {
            for output in run(gpu, &batch, &data, Strides::dense(&batch), config)? {
                let right = output.out.iter().all(|x| x.to_f64() == 0.0);
                let sinks = output.lse.chunks(5).zip([1.0, 2.0]);
                if !right || !sinks.into_iter().all(|(rows, sink)| rows.iter().all(|lse| *lse == sink)) {
                    return Err("rows without keys are not zeros with their sink".into());
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Tensors that do not fit the problem of a plan.
fn refused<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let batch = Batch::new(64, Mask::Full);
    let data = Data::<T>::normal(&batch, Terms::NONE, 49);
    let (right, strides) = (batch.problem(), Strides::dense(&batch));
    let stream = gpu.new_stream()?;
    let wrong = [
        (VarlenSizes { q_total: right.q_total + 1, ..right }, "Q has shape"),
        (VarlenSizes { k_total: right.k_total - 1, ..right }, "K has shape"),
        (VarlenSizes { batch: right.batch - 1, ..right }, "cu_seqlens_q has shape"),
        (VarlenSizes { kv_heads: 2, ..right }, "K has shape"),
    ];
    let config = batch.configs(gpu, &data.terms).next().ok_or("no kernel serves the batch")?;
    for (problem, message) in wrong {
        let plan = batch.options(&data.terms, config).plan(gpu, T::DTYPE, problem)?;
        let stored = Stored::upload(gpu, &batch, &data, strides)?;
        let mut outputs = Outputs::<T>::new(gpu, &stream, &right, strides)?;
        let tensors = stored.tensors(&right, strides, &mut outputs.out, &mut outputs.lse)?;
        match plan.run(stream.as_ref(), tensors) {
            Err(error) if error.to_string().contains(message) => outputs.out.check_untouched(&stream)?,
            other => return Err(format!("{other:?}, expected {message}").into()),
        }
    }
    Ok(())
}
