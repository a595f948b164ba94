//! Kernels that are not ordered as usual: one that lets its successor start before it writes, one that writes to inputs
//! while they are read, and a launch that waits while thousands of others run.

use std::sync::atomic::{AtomicBool, Ordering};

use ferrotile::{
    Arch, AttentionPlan, AttentionTensors, Buffer, Gpu, Kernel, LaunchConfig, Layout, Mask, PagedSizes, PagedTensors,
    Stream, StreamRef, TensorMut, TensorRef,
};
use half::{bf16, f16};
use libtest_mimic::Failed;
use tests::guard::Guarded;
use tests::inputs::{self, Half};
use tests::is_small;
use tests::request::Request;
use variants::attention::{AttentionConfig, AttentionKernel, Seqlens};

use crate::Trials;
use crate::case::{Case, Inputs, Outcome, Output, Placement, for_each_config, run_contiguous};
use crate::scores::Terms;
use crate::varlen::{self, Batch, Data, Outputs, Stored, Strides};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    for head_dim in [64, 128, 256] {
        let name = |what: &str| format!("unordered/{what}/d{head_dim}");
        trials.both(&name("inputs_that_are_written_late"), &head_dim, late_inputs::<f16>, late_inputs::<bf16>);
        trials.both(&name("lengths_that_are_written_late"), &head_dim, late_lengths::<f16>, late_lengths::<bf16>);
        let name = name("lengths_that_change_meanwhile");
        trials.both(&name, &head_dim, changing_lengths::<f16>, changing_lengths::<bf16>);
    }
    trials.both("unordered/pages_that_change_meanwhile", &(), changing_pages::<f16>, changing_pages::<bf16>);
    // Freeing memory waits for all work of a card, in every thread, and here work waits for another thread.
    let waits = "unordered/a_launch_that_waits_has_all_its_tiles";
    trials.add_alone(format!("{waits}/f16"), waiting::<f16>);
    trials.add_alone(format!("{waits}/bf16"), waiting::<bf16>);
}

/// `late_copy(to, from, words, nanoseconds)` lets the next kernel start, waits, and copies then.
///
/// `scribble(out, words, rounds, seed, least, span)` writes random numbers from `least` on, `span` of them, again and
/// again.
///
/// `gate(word, nanoseconds)` waits until the word is not 0, and writes 2 to it if that takes longer.
const PTX: &str = "\
.version 7.8
.target sm_90
.address_size 64

.visible .entry late_copy(.param .u64 to, .param .u64 from, .param .u32 words, .param .u64 nanoseconds)
{
    .reg .pred %p;
    .reg .b32 %index, %words, %word;
    .reg .b64 %to, %from, %end, %now, %offset, %place;
    griddepcontrol.launch_dependents;
    ld.param.u64 %to, [to];
    cvta.to.global.u64 %to, %to;
    ld.param.u64 %from, [from];
    cvta.to.global.u64 %from, %from;
    ld.param.u32 %words, [words];
    ld.param.u64 %end, [nanoseconds];
    mov.u64 %now, %globaltimer;
    add.u64 %end, %end, %now;
wait:
    mov.u64 %now, %globaltimer;
    setp.lt.u64 %p, %now, %end;
    @%p bra wait;
    mov.u32 %index, %tid.x;
copy:
    setp.ge.u32 %p, %index, %words;
    @%p bra done;
    mul.wide.u32 %offset, %index, 4;
    add.u64 %place, %from, %offset;
    ld.global.u32 %word, [%place];
    add.u64 %place, %to, %offset;
    st.global.u32 [%place], %word;
    add.u32 %index, %index, 32;
    bra copy;
done:
    ret;
}

.visible .entry scribble(
    .param .u64 out, .param .u32 words, .param .u32 rounds, .param .u32 seed, .param .u32 least, .param .u32 span
)
{
    .reg .pred %p;
    .reg .b32 %index, %words, %rounds, %random, %number, %least, %span;
    .reg .b64 %out, %place;
    ld.param.u64 %out, [out];
    cvta.to.global.u64 %out, %out;
    ld.param.u32 %words, [words];
    ld.param.u32 %rounds, [rounds];
    ld.param.u32 %random, [seed];
    ld.param.u32 %least, [least];
    ld.param.u32 %span, [span];
    mov.u32 %index, %tid.x;
    mad.lo.u32 %random, %index, 747796405, %random;
again:
    mov.u32 %index, %tid.x;
next:
    setp.ge.u32 %p, %index, %words;
    @%p bra written;
    mad.lo.u32 %random, %random, 1664525, 1013904223;
    mul.hi.u32 %number, %random, %span;
    add.u32 %number, %number, %least;
    mul.wide.u32 %place, %index, 4;
    add.u64 %place, %out, %place;
    st.volatile.global.u32 [%place], %number;
    add.u32 %index, %index, 32;
    bra next;
written:
    sub.u32 %rounds, %rounds, 1;
    setp.ne.u32 %p, %rounds, 0;
    @%p bra again;
    ret;
}

.visible .entry gate(.param .u64 word, .param .u64 nanoseconds)
{
    .reg .pred %p;
    .reg .b32 %word;
    .reg .b64 %place, %end, %now;
    ld.param.u64 %place, [word];
    cvta.to.global.u64 %place, %place;
    ld.param.u64 %end, [nanoseconds];
    mov.u64 %now, %globaltimer;
    add.u64 %end, %end, %now;
wait:
    ld.volatile.global.u32 %word, [%place];
    setp.ne.u32 %p, %word, 0;
    @%p bra open;
    mov.u64 %now, %globaltimer;
    setp.lt.u64 %p, %now, %end;
    @%p bra wait;
    st.volatile.global.u32 [%place], 2;
open:
    ret;
}
";

/// A kernel of [`PTX`]; before sm_90 none lets another start.
fn kernel(gpu: &Gpu, name: &str) -> Result<Kernel, Failed> {
    let text = if gpu.arch() < Arch::Sm90a {
        PTX.replace(".target sm_90", ".target sm_80").replace("griddepcontrol.launch_dependents;", "")
    } else {
        PTX.to_owned()
    };
    Ok(gpu.load_ptx(&text)?.kernel(name)?)
}

const WARP: LaunchConfig =
    LaunchConfig { grid: [1; 3], block: [32, 1, 1], cluster: [1; 3], shared_bytes: 0, overlaps: false };

/// How long a late copy waits: longer than a launch takes.
const LATE_NS: u64 = 300_000;

/// Enqueues a late copy of what `from` holds.
fn late_copy<E>(kernel: &Kernel, stream: StreamRef<'_>, to: &Buffer<E>, from: &Buffer<E>) -> ferrotile::Result<()>
where
    E: ferrotile::Element,
{
    let words = (to.len() * size_of::<E>() / 4) as u32;
    // SAFETY: these are the kernel's parameters, and both buffers have the words; freeing one waits for the copy.
    unsafe { kernel.launch(stream, &WARP, &[&to.as_raw(), &from.as_raw(), &words, &LATE_NS]) }
}

/// Q, K and V of a call are those of the kernel before it, whose copies start when the call may have; also where each
/// block has several tiles, and where calls do not overlap.
fn late_inputs<T: Half>(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    let copy = kernel(gpu, "late_copy")?;
    // The emulator does one kernel after the other: there it is about the calls, not their times.
    let (heads, changed) = if is_small(gpu) { (1, 1..2) } else { (40, 0..3) };
    for case in [Case::new(2, heads, 70, 130, head_dim, Mask::Causal), Case::new(1, 2, 130, 130, head_dim, Mask::Full)]
    {
        let inputs = Inputs::<T>::normal(&case, 71);
        for_each_config::<T>(gpu, &case, |config| {
            let expected = run_contiguous(gpu, &case, &inputs, config)?;
            let placement = Placement::contiguous(&case, Layout::Bhsd);
            let stream = gpu.new_stream()?;
            let late = [&inputs.q, &inputs.k, &inputs.v].map(|values| Buffer::upload_blocking(&stream, values));
            let [late_q, late_k, late_v] = late;
            let late = [late_q?, late_k?, late_v?];
            for isolated in [false, true] {
                let options = Request { isolated, ..case.options(Layout::Bhsd, config) };
                let plan = options.plan(gpu, T::DTYPE, case.sizes)?;
                for input in changed.clone() {
                    let mut now = Vec::new();
                    for (index, values) in [&inputs.q, &inputs.k, &inputs.v].into_iter().enumerate() {
                        let early = if index == input { vec![T::poison(); values.len()] } else { values.clone() };
                        now.push(Buffer::upload_blocking(&stream, &early)?);
                    }
                    let mut out = Guarded::<T>::new(gpu, &stream, placement.out.count())?;
                    let view = placement.out.moved(out.offset());
                    stream.synchronize()?;
                    late_copy(&copy, stream.as_ref(), &now[input], &late[input])?;
                    let [q, k, v] = [&now[0], &now[1], &now[2]];
                    let tensors = AttentionTensors::new(
                        TensorRef::contiguous(q, case.q_shape())?,
                        TensorRef::contiguous(k, case.kv_shape())?,
                        TensorRef::contiguous(v, case.kv_shape())?,
                        view.tensor_mut(out.buffer(), Layout::Bhsd)?,
                    );
                    plan.run(&stream, tensors)?;
                    let got = Output { out: out.read(&stream)?, lse: expected.lse.clone() };
                    got.check_same(&case, &expected)?;
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Lengths of a call are those of the kernel before it, which writes them late; before, there are others, or none.
fn late_lengths<T: Half>(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    let copy = kernel(gpu, "late_copy")?;
    let batch = Batch::new(head_dim, Mask::Causal);
    let data = Data::<T>::normal(&batch, Terms::NONE, 72);
    let (problem, strides) = (batch.problem(), Strides::dense(&batch));
    for_configs_of_lengths(gpu, &batch, &data, |config| {
        let expected = varlen::run(gpu, &batch, &data, strides, config)?;
        let stream = gpu.new_stream()?;
        let stored = Stored::upload(gpu, &batch, &data, strides)?;
        let mut late = Vec::new();
        for starts in &stored.starts {
            late.push(Buffer::upload_blocking(&stream, &starts.download_blocking(&stream)?)?);
        }
        let plan = batch.options(&data.terms, config).plan(gpu, T::DTYPE, problem)?;
        for (early, which) in [(0, 0), (0, 1), (9, 0), (9, 1)] {
            let mut outputs = Outputs::<T>::new(gpu, &stream, &problem, strides)?;
            let count = batch.sequences.len() as i32;
            let early = Buffer::upload_blocking(&stream, &(0..=count).map(|entry| entry * early).collect::<Vec<_>>())?;
            stream.synchronize()?;
            late_copy(&copy, stream.as_ref(), &stored.starts[which], &early)?;
            late_copy(&copy, stream.as_ref(), &stored.starts[which], &late[which])?;
            plan.run(stream.as_ref(), stored.tensors(&problem, strides, &mut outputs.out, &mut outputs.lse)?)?;
            for (entry, output) in outputs.read(&stream, &batch, strides)?.iter().enumerate() {
                output.check_same(&batch.case(entry), &expected[entry])?;
            }
        }
        Ok(())
    })
}

/// Every configuration that takes several lengths.
fn for_configs_of_lengths<T: Half>(
    gpu: &Gpu,
    batch: &Batch,
    data: &Data<T>,
    check: impl FnMut(&'static AttentionConfig) -> Outcome,
) -> Outcome {
    let configs = batch.configs(gpu, &data.terms).filter(|config| config.seqlens == Seqlens::Varlen);
    crate::case::for_configs(batch, configs, check)
}

/// Numbers that are written again and again: where, how many, the least and how many there are of them.
struct Changing {
    address: u64,
    words: usize,
    least: u32,
    span: u32,
}

/// Does `work` while a thread has a stream of its own write to numbers.
fn while_changing(gpu: &Gpu, numbers: &[Changing], work: impl FnOnce() -> Outcome) -> Outcome {
    let scribble = kernel(gpu, "scribble")?;
    let rounds: u32 = if is_small(gpu) { 50 } else { 2_000 };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| -> ferrotile::Result<()> {
            let stream = gpu.new_stream()?;
            let mut seed = 1_u32;
            while !done.load(Ordering::Relaxed) {
                for Changing { address, words, least, span } in numbers {
                    seed = seed.wrapping_mul(69_069).wrapping_add(1);
                    let words = *words as u32;
                    // SAFETY: these are the kernel's parameters, and the words are there until this thread has ended.
                    unsafe {
                        scribble.launch(stream.as_ref(), &WARP, &[address, &words, &rounds, &seed, least, span])?;
                    }
                }
                stream.synchronize()?;
            }
            Ok(())
        });
        let outcome = work();
        done.store(true, Ordering::Relaxed);
        writer.join().unwrap_or_else(|_| panic!("the writer panicked"))?;
        outcome
    })
}

/// Whatever lengths there are at any time, a call ends and writes inside its output, and only rows that some of them
/// name.
fn changing_lengths<T: Half>(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    let batch = Batch::new(head_dim, Mask::Causal);
    let data = Data::<T>::normal(&batch, Terms::NONE, 73);
    let (problem, strides) = (batch.problem(), Strides::dense(&batch));
    // All rows that the lengths may name, as those of one sequence.
    let [before, after] = batch.around;
    let named = [problem.q_total, problem.k_total].map(|total| total - before - after);
    let mut inside = batch.clone();
    inside.sequences = vec![(named[0], named[1])];
    let calls = if is_small(gpu) { 2 } else { 100 };
    for_configs_of_lengths(gpu, &batch, &data, |config| {
        for anything in [false, true] {
            let stream = gpu.new_stream()?;
            let stored = Stored::upload(gpu, &batch, &data, strides)?;
            let mut outputs = Outputs::<T>::new(gpu, &stream, &problem, strides)?;
            let plan = batch.options(&data.terms, config).plan(gpu, T::DTYPE, problem)?;
            let changing = |index: usize| Changing {
                address: stored.starts[index].as_raw(),
                words: batch.sequences.len() + 1,
                least: if anything { 0 } else { before as u32 },
                span: if anything { u32::MAX } else { named[index] as u32 + 1 },
            };
            stream.synchronize()?;
            // Rows that two sequences have are written twice, which the emulator calls a race: keys change there alone.
            let changing = if gpu.is_emulated() { vec![changing(1)] } else { vec![changing(0), changing(1)] };
            while_changing(gpu, &changing, || {
                for _ in 0..calls {
                    plan.run(stream.as_ref(), stored.tensors(&problem, strides, &mut outputs.out, &mut outputs.lse)?)?;
                    stream.synchronize()?;
                }
                Ok(())
            })?;
            if anything {
                outputs.out.read(&stream)?;
                outputs.lse.read(&stream)?;
            } else {
                outputs.read(&stream, &inside, strides)?;
            }
        }
        Ok(())
    })
}

/// Whatever numbers of keys and entries of the block table there are at any time, a call ends and writes inside its
/// output.
fn changing_pages<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let calls = if is_small(gpu) { 2 } else { 100 };
    for (head_dim, bias) in [(64, false), (128, true), (256, false)] {
        let problem =
            PagedSizes { batch: 3, q_heads: 4, kv_heads: 2, q_len: 2, head_dim, pages: 7, page_len: 16, table_len: 9 };
        let (stream, mut random) = (gpu.new_stream()?, inputs::random(74));
        let mut upload = |shape: &[usize]| {
            Buffer::upload_blocking(&stream, &inputs::normal::<T>(&mut random, shape.iter().product(), 1.0))
        };
        let (q_shape, kv_shape) = (problem.q_shape(Layout::Bhsd), problem.kv_shape());
        let bias_shape = [1, 4, 2, 9 * 16];
        let (q, k, v, terms) = (upload(&q_shape)?, upload(&kv_shape)?, upload(&kv_shape)?, upload(&bias_shape)?);
        let (table, lens) = (Buffer::<i32>::zeroed(gpu, 3 * 9)?, Buffer::<i32>::zeroed(gpu, 3)?);
        for splits in [1, 2] {
            let options = Request {
                mask: Mask::Causal,
                splits: Some(splits),
                bias,
                max_workspace_bytes: 1 << 20,
                ..Request::new(Layout::Bhsd)
            };
            let plan = options.plan(gpu, T::DTYPE, problem)?;
            let bytes = plan.workspace_bytes();
            let mut workspace = Buffer::<u8>::zeroed(gpu, bytes)?;
            let mut out = Guarded::<T>::new(gpu, &stream, q.len())?;
            let (offset, [_, heads, rows, columns]) = (out.offset(), q_shape.map(|size| size as i64));
            stream.synchronize()?;
            let changing = [
                // Pages that there are and one that is not, and as many keys as there can be and one more.
                Changing { address: table.as_raw(), words: table.len(), least: 0, span: 8 },
                Changing { address: lens.as_raw(), words: lens.len(), least: 0, span: 9 * 16 + 2 },
            ];
            while_changing(gpu, &changing, || {
                for _ in 0..calls {
                    let strides = [heads * rows * columns, rows * columns, columns, 1];
                    let mut tensors = PagedTensors::new(
                        TensorRef::contiguous(&q, q_shape)?,
                        [TensorRef::contiguous(&k, kv_shape)?, TensorRef::contiguous(&v, kv_shape)?],
                        TensorRef::contiguous(&table, [3, 9])?,
                        TensorRef::contiguous(&lens, [3])?,
                        TensorMut::strided(out.buffer(), offset, q_shape, strides)?,
                    );
                    if bias {
                        tensors.bias = Some(TensorRef::contiguous(&terms, bias_shape)?);
                    }
                    tensors.workspace = Some(TensorMut::contiguous(&mut workspace, [bytes])?);
                    plan.run(stream.as_ref(), tensors)?;
                    stream.synchronize()?;
                }
                Ok(())
            })?;
            out.read(&stream)?;
        }
    }
    Ok(())
}

/// A launch waits on its stream while more others than there are counters run on another, and still runs beside some.
/// A card does so with one kernel: counters are the host's, and thousands of launches of each kernel take minutes.
fn waiting<T: Half>(gpu: &Gpu) -> Outcome {
    let heads = if is_small(gpu) { 2 } else { 300 };
    let mut tried = false;
    let case = Case::new(1, heads, 300, 70, 8, Mask::Causal);
    let inputs = Inputs::<T>::normal(&case, 75);
    for_each_config::<T>(gpu, &case, |config| {
        if tried || !matches!(config.kernel, AttentionKernel::Wgmma(_)) {
            return Ok(());
        }
        tried = !is_small(gpu);
        let expected = run_contiguous(gpu, &case, &inputs, config)?;
        let plan = case.options(Layout::Bhsd, config).plan(gpu, T::DTYPE, case.sizes)?;
        let before = if is_small(gpu) { 2 } else { (1 << 15) - 32 };
        let mut streams = Vec::new();
        for _ in 0..16 {
            // Streams may share a queue of the card, in which nothing passes the gate: others are tried then.
            streams.push([gpu.new_stream()?, gpu.new_stream()?]);
            let last = &streams[streams.len() - 1];
            if waits_while_others_run(gpu, &case, &inputs, &plan, &expected, (last, 1, SECOND_NS / 2))? {
                let all = (last, before, 30 * SECOND_NS);
                let waited = waits_while_others_run(gpu, &case, &inputs, &plan, &expected, all)?;
                return if waited { Ok(()) } else { Err("the gate opened before all launches had run".into()) };
            }
        }
        Err("no two of the streams have queues of their own".into())
    })
}

/// A billion nanoseconds.
const SECOND_NS: u64 = 1_000_000_000;

/// Whether the launch on the first stream did wait until so many others had run on the second; its gate opens by itself
/// after the time.
fn waits_while_others_run<T: Half>(
    gpu: &Gpu,
    case: &Case,
    inputs: &Inputs<T>,
    plan: &AttentionPlan,
    expected: &Output<T>,
    ([waits, runs], before, gate_ns): (&[Stream; 2], usize, u64),
) -> Result<bool, Failed> {
    let gate = kernel(gpu, "gate")?;
    let beside = if is_small(gpu) { 2 } else { 128 };
    let [q, k, v] = [&inputs.q, &inputs.k, &inputs.v].map(|values| Buffer::upload_blocking(waits, values));
    let (q, k, v) = (q?, k?, v?);
    let (q, k, v) = (
        TensorRef::contiguous(&q, case.q_shape())?,
        TensorRef::contiguous(&k, case.kv_shape())?,
        TensorRef::contiguous(&v, case.kv_shape())?,
    );
    let view = Placement::contiguous(case, Layout::Bhsd).out;
    let mut outs = [(); 2].map(|()| Guarded::<T>::new(gpu, waits, view.count()));
    let mut word = Buffer::<u32>::zeroed(gpu, 1)?;
    waits.synchronize()?;
    if gpu.is_emulated() {
        // Work is done when it is enqueued, and would wait for ever.
        word.fill_bytes(runs, 1)?;
    }
    // SAFETY: these are the kernel's parameters; freeing the buffer waits for it.
    unsafe { gate.launch(waits.as_ref(), &WARP, &[&word.as_raw(), &gate_ns]) }?;
    let mut launch = |stream: StreamRef<'_>, index: usize| -> Outcome {
        let out = outs[index].as_mut().map_err(|error| format!("{error:?}"))?;
        let view = view.moved(out.offset());
        let out = view.tensor_mut(out.buffer(), Layout::Bhsd)?;
        Ok(plan.run(stream, AttentionTensors::new(q, k, v, out))?)
    };
    launch(waits.as_ref(), 0)?;
    (0..before).try_for_each(|_| launch(runs.as_ref(), 1))?;
    runs.synchronize()?;
    let waited = gpu.is_emulated() || word.download_blocking(runs)?[0] == 0;
    word.fill_bytes(runs, 1)?;
    (0..beside).try_for_each(|_| launch(runs.as_ref(), 1))?;
    for (out, stream) in outs.into_iter().zip([waits, runs]) {
        Output { out: out?.read(stream)?, lse: expected.lse.clone() }.check_same(case, expected)?;
    }
    Ok(waited)
}
