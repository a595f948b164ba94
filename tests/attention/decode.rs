//! Few query rows on many keys: every configuration that decodes, its splits of the keys, and what it has in common
//! with the others.

use ferrotile::{AttentionPlan, AttentionTensors, Buffer, Error, Gpu, Layout, Mask, Stream, StreamRef, TensorMut};
use half::{bf16, f16};
use libtest_mimic::Failed;
use tests::catalogue::config_of;
use tests::guard::Guarded;
use tests::inputs::{self, Half};
use tests::request::Request;
use tests::{is_small, shapes};
use variants::attention::{AttentionConfig, AttentionKernel, DECODE_KEYS, DECODE_ROWS, MAX_SPLITS, ScoreMod, Seqlens};

use crate::Trials;
use crate::case::{Case, Inputs, Outcome, Output, Placement, Stored, run_contiguous, run_with};
use crate::exact::Largest;
use crate::scores::{self, Terms};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    for head_dim in [64, 128, 256, 40, 96, 136, 192] {
        for q_len in [1, 2, 5, DECODE_ROWS] {
            let name = format!("decode/matches_reference/d{head_dim}/rows{q_len}");
            trials.both(&name, &(head_dim, q_len), matches_reference::<f16>, matches_reference::<bf16>);
        }
    }
    for (q_heads, kv_heads) in [(1, 1), (4, 2), (6, 2), (5, 1), (6, 1), (7, 1), (16, 2), (20, 1), (33, 1)] {
        let name = format!("decode/packs_heads/{q_heads}_on_{kv_heads}");
        trials.both(&name, &(q_heads, kv_heads), packs_heads::<f16>, packs_heads::<bf16>);
    }
    trials.both("decode/windows_are_split_where_they_are", &(), windows::<f16>, windows::<bf16>);
    trials.both("decode/empty_tensors", &(), empty::<f16>, empty::<bf16>);
    trials.both("decode/large_scores", &(), large_scores::<f16>, large_scores::<bf16>);
    trials.both("decode/the_largest_probability_is_1", &(), largest_probability::<f16>, largest_probability::<bf16>);
    trials.both("decode/equals_the_last_rows_of_prefill", &(), equals_prefill::<f16>, equals_prefill::<bf16>);
    trials.both(
        "decode/terms_are_those_of_prefill",
        &(),
        equals_prefill_with_terms::<f16>,
        equals_prefill_with_terms::<bf16>,
    );
    trials.both("decode/repeated_runs_are_the_same", &(), repeated_runs::<f16>, repeated_runs::<bf16>);
    trials.both("decode/as_many_splits_as_there_may_be", &(), many_splits::<f16>, many_splits::<bf16>);
    trials.both(
        "decode/launches_of_a_stream_share_semaphores",
        &(),
        semaphores_are_shared::<f16>,
        semaphores_are_shared::<bf16>,
    );
    trials.both("decode/is_one_launch", &(), one_launch::<f16>, one_launch::<bf16>);
    trials.both("decode/more_tiles_than_semaphores", &(), many_tiles::<f16>, many_tiles::<bf16>);
    trials.both("decode/two_streams_at_once", &(), two_streams::<f16>, two_streams::<bf16>);
    trials.both("decode/a_captured_graph_computes_again", &(), captured_graph::<f16>, captured_graph::<bf16>);
    trials.both("decode/is_chosen_for_few_rows", &(), is_chosen::<f16>, is_chosen::<bf16>);
    trials.both("decode/refuses_what_it_cannot_split", &(), refusals::<f16>, refusals::<bf16>);
}

/// More workspace than any case needs.
const WORKSPACE_BYTES: usize = 1 << 26;

/// The configurations that decode the case and are made for its head dimension.
fn configurations<T: Half>(gpu: &Gpu, case: &Case) -> Vec<&'static AttentionConfig> {
    let decoding = |config: &&AttentionConfig| matches!(config.kernel, AttentionKernel::Decode(_));
    let all: Vec<_> = case.configs::<T>(gpu).filter(decoding).collect();
    let narrowest = all.first().expect("every head dimension has one").head_dim;
    all.into_iter().filter(|config| config.head_dim == narrowest).collect()
}

/// The one for the fewest packed rows.
fn configuration<T: Half>(gpu: &Gpu, case: &Case) -> &'static AttentionConfig {
    configurations::<T>(gpu, case)[0]
}

/// The options for so many splits.
fn options_of(case: &Case, config: &AttentionConfig, splits: usize) -> Request {
    let named = case.options(Layout::Bhsd, config);
    Request { splits: Some(splits), max_workspace_bytes: WORKSPACE_BYTES, ..named }
}

fn options<T: Half>(gpu: &Gpu, case: &Case, splits: usize) -> Request {
    options_of(case, configuration::<T>(gpu, case), splits)
}

fn run_of<T: Half>(
    gpu: &Gpu,
    case: &Case,
    inputs: &Inputs<T>,
    config: &AttentionConfig,
    splits: usize,
) -> Result<Output<T>, Failed> {
    run_with(gpu, case, inputs, &Placement::contiguous(case, Layout::Bhsd), &options_of(case, config, splits))
}

fn run<T: Half>(gpu: &Gpu, case: &Case, inputs: &Inputs<T>, splits: usize) -> Result<Output<T>, Failed> {
    run_of(gpu, case, inputs, configuration::<T>(gpu, case), splits)
}

/// Checks every configuration on the case with these numbers of splits.
fn check<T: Half>(gpu: &Gpu, case: &Case, inputs: &Inputs<T>, splits: &[usize]) -> Outcome {
    let expected = inputs.expected(case);
    for config in configurations::<T>(gpu, case) {
        for &splits in splits {
            let outcome = run_of(gpu, case, inputs, config, splits).and_then(|output| output.check(case, &expected));
            outcome.map_err(|failure| {
                format!("{case}, {config}, {splits} splits: {}", failure.message().unwrap_or("failed"))
            })?;
        }
    }
    Ok(())
}

fn matches_reference<T: Half>(gpu: &Gpu, &(head_dim, q_len): &(usize, usize)) -> Outcome {
    let edges = shapes::around(&[DECODE_KEYS, 4 * DECODE_KEYS, 12 * DECODE_KEYS]);
    for (index, k_len) in edges.into_iter().chain([300]).enumerate() {
        let masks = [Mask::Full, Mask::Causal];
        // Where trials are small the masks take turns.
        for &mask in if is_small(gpu) { &masks[index % 2..][..1] } else { &masks[..] } {
            let case = Case::new(2, 1, q_len, k_len, head_dim, mask).grouped(4, 2);
            check(gpu, &case, &Inputs::<T>::normal(&case, 21), &[1, 3])?;
        }
    }
    Ok(())
}

fn packs_heads<T: Half>(gpu: &Gpu, &(q_heads, kv_heads): &(usize, usize)) -> Outcome {
    for (q_len, head_dim) in [(1, 128), (3, 64), (16, 64)] {
        let case = Case::new(2, 1, q_len, 77, head_dim, Mask::Causal).grouped(q_heads, kv_heads);
        check(gpu, &case, &Inputs::<T>::normal(&case, 22), &[1, 2, 4])?;
    }
    Ok(())
}

fn windows<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let window = |left, right| Mask::Window { left, right };
    let masks = [
        window(0, 0),
        window(3, 0),
        window(0, 5),
        window(40, 2),
        window(130, 0),
        window(usize::MAX, 1),
        window(1, usize::MAX),
        window(500, 500),
    ];
    for mask in masks {
        for (q_len, k_len) in [(1, 200), (7, 200), (16, 200), (16, 9)] {
            let case = Case::new(1, 1, q_len, k_len, 64, mask).grouped(6, 2);
            check(gpu, &case, &Inputs::<T>::normal(&case, 23), &[1, 2, 5])?;
        }
    }
    Ok(())
}

fn empty<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let sizes = [(0, 2, 5, 5), (2, 0, 5, 5), (2, 2, 0, 5), (2, 2, 5, 0), (2, 2, 0, 0), (0, 0, 0, 0)];
    for (batch, heads, q_len, k_len) in sizes {
        let case = Case::new(batch, heads, q_len, k_len, 128, Mask::Causal);
        check(gpu, &case, &Inputs::<T>::normal(&case, 24), &[1, 3])?;
    }
    Ok(())
}

/// Scores that grow with the key by more than f16 probabilities hold, and scores below -5e4.
fn large_scores<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    for (head_dim, step) in [(64, 4.0), (128, -4.0), (24, 1.0 / 16.0)] {
        let case = Case::new(1, 2, 3, 260, head_dim, Mask::Full).scaled(1.0);
        // One product of a row is not 0, so scores are exact.
        let mut inputs = Inputs::<T>::of_deviation(&case, 25, [0.0, 1.0, 1.0]);
        inputs.q.chunks_mut(head_dim).for_each(|query| query[0] = T::from_f64(step));
        for (key, values) in inputs.k.chunks_mut(head_dim).enumerate() {
            values[0] = T::from_f64((key % 260) as f64);
        }
        check(gpu, &case, &inputs, &[1, 4])?;
        // As many products of this size are 6e4, where f32 resolves 1/256; what keys differ by is an integer.
        let size = (6e4 / (head_dim - 1) as f64).sqrt().ceil();
        for query in inputs.q.chunks_mut(head_dim) {
            query.fill(T::from_f64(-size));
            query[0] = T::from_f64(1.0);
        }
        for (key, values) in inputs.k.chunks_mut(head_dim).enumerate() {
            values.fill(T::from_f64(size));
            values[0] = T::from_f64((key % 5) as f64);
        }
        if inputs.expected(&case).lse.iter().any(|lse| *lse > -5e4) {
            return Err("the scores are not as large as they are meant to be".into());
        }
        check(gpu, &case, &inputs, &[1, 4])?;
    }
    Ok(())
}

/// Each warp and split has a largest score of its own, and weights of them are f32.
fn largest_probability<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let case = Case::new(1, 8, 16, 300, 64, Mask::Full).scaled(1.0);
    let largest = Largest::<T>::new(&case);
    [1, 3].into_iter().try_for_each(|splits| largest.check(&run(gpu, &case, &largest.inputs, splits)?.out))
}

/// The last rows of attention of many rows, by every configuration, are what decoding gives.
fn equals_prefill<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    for head_dim in [64, 128, 256] {
        let len = 130;
        let whole = Case::new(1, 1, len, len, head_dim, Mask::Causal).grouped(4, 2);
        let inputs = Inputs::<T>::normal(&whole, 26);
        for q_len in [1, 9] {
            let case = Case::new(1, 1, q_len, len, head_dim, Mask::Causal).grouped(4, 2);
            let first = |head: usize| (head * len + len - q_len) * head_dim;
            let last_rows = |rows: &[T]| -> Vec<T> {
                (0..4).flat_map(|head| rows[first(head)..][..q_len * head_dim].to_vec()).collect()
            };
            let part = Inputs { q: last_rows(&inputs.q), ..inputs.clone() };
            let mut expected = part.expected(&case);
            let decoded = run(gpu, &case, &part, 2)?;
            for config in whole.configs::<T>(gpu) {
                let prefill = run_contiguous(gpu, &whole, &inputs, config)?;
                expected.out = last_rows(&prefill.out).into_iter().map(|x| x.to_f64()).collect();
                // Both are rounded.
                let limit = 2.0 * expected.limit.max_abs;
                tests::compare::check(&decoded.out, &expected.out, &case.q_shape(), limit)?;
            }
        }
    }
    Ok(())
}

/// As [`equals_prefill`], with a softcap, sinks and a bias of each head, in one part and in several, by the kernel that
/// is chosen.
fn equals_prefill_with_terms<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let (len, heads) = (if is_small(gpu) { 50 } else { 130 }, 4);
    for head_dim in [64, 128, 256] {
        let whole = Case::new(1, 1, len, len, head_dim, Mask::Causal).grouped(heads, 2);
        let inputs = Inputs::<T>::normal(&whole, 28);
        let bias: Vec<T> = inputs::normal(&mut inputs::random(29), heads * len * len, 2.0);
        let terms = Terms {
            softcap: Some(1.5),
            sink: Some(vec![0.5, -2.0, f32::NEG_INFINITY, 3.0]),
            bias: Terms::bias(bias.clone(), [1, heads, len, len]),
        };
        let prefills = whole
            .configs_of::<T>(gpu, ScoreMod::General, Seqlens::Fixed)
            .map(|config| scores::run(gpu, &whole, &inputs, &terms, config))
            .collect::<Result<Vec<_>, _>>()?;
        for q_len in [1, 9] {
            let case = Case::new(1, 1, q_len, len, head_dim, Mask::Causal).grouped(heads, 2);
            let last_rows = |rows: &[T], columns: usize| -> Vec<T> {
                let first = |head: usize| (head * len + len - q_len) * columns;
                (0..heads).flat_map(|head| rows[first(head)..][..q_len * columns].to_vec()).collect()
            };
            let part = Inputs { q: last_rows(&inputs.q, head_dim), ..inputs.clone() };
            let part_bias = Terms::bias(last_rows(&bias, len), [1, heads, q_len, len]);
            let part_terms = Terms { bias: part_bias, ..terms.clone() };
            let expected = part_terms.expected(&case, &part);
            for splits in [1, 3] {
                let options = Request {
                    mask: case.mask,
                    splits: Some(splits),
                    max_workspace_bytes: WORKSPACE_BYTES,
                    ..Request::new(Layout::Bhsd)
                };
                let general = Request { softcap: terms.softcap, bias: true, ..options.clone() };
                let chosen = config_of(&general.plan(gpu, T::DTYPE, case.sizes)?);
                if !matches!(chosen.kernel, AttentionKernel::Decode(_)) {
                    return Err(format!("{case} with terms is for {chosen}").into());
                }
                let decoded = scores::run_with(gpu, &case, &part, &part_terms, &options)?;
                decoded.check(&case, &expected)?;
                for prefill in &prefills {
                    let prefill: Vec<f64> = last_rows(&prefill.out, head_dim).iter().map(|x| x.to_f64()).collect();
                    // Both are rounded.
                    let limit = 2.0 * expected.limit.max_abs;
                    tests::compare::check(&decoded.out, &prefill, &case.q_shape(), limit)?;
                }
            }
        }
    }
    Ok(())
}

fn repeated_runs<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    for (head_dim, splits) in [(64, 1), (64, 3), (128, 1), (128, 5), (256, 2)] {
        let case = Case::new(2, 1, 3, 333, head_dim, Mask::Causal).grouped(4, 2);
        let inputs = Inputs::<T>::normal(&case, 27);
        let first = run(gpu, &case, &inputs, splits)?;
        let repeats = if is_small(gpu) { 3 } else { 200 };
        (0..repeats).try_for_each(|_| run(gpu, &case, &inputs, splits)?.check_same(&case, &first))?;
    }
    Ok(())
}

/// As many splits as there may be, of which some have no keys; tiles with fewer elements than a block has threads, and
/// with more.
fn many_splits<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    for (q_heads, q_len, head_dim, value_tail) in [(1, 1, 8, 0), (3, 1, 64, 9), (7, 2, 128, 0), (2, 9, 256, 5)] {
        let k_len = 16 * if is_small(gpu) { 40 } else { 300 } + value_tail;
        let case = Case::new(1, 1, q_len, k_len, head_dim, Mask::Causal).grouped(q_heads, 1);
        let splits: &[usize] = if is_small(gpu) { &[2, 17, MAX_SPLITS] } else { &[2, 15, 17, 31, 64, 100, MAX_SPLITS] };
        check(gpu, &case, &Inputs::<T>::normal(&case, 33), splits)?;
    }
    Ok(())
}

/// Launches of one stream count the splits of their tiles in the same semaphores, whatever their numbers are, and find
/// them at 0.
fn semaphores_are_shared<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let case = Case::new(2, 1, 2, 200, 64, Mask::Causal).grouped(4, 2);
    let wide = Case::new(5, 1, 1, 40, 64, Mask::Full).grouped(6, 3);
    let stream = gpu.new_stream()?;
    let plan = |case: &Case, splits| options::<T>(gpu, case, splits).plan(gpu, T::DTYPE, case.sizes);
    let mut jobs = Vec::new();
    for (seed, (case, splits)) in [(case, 3), (wide, 2), (case, 7), (case, 2)].into_iter().enumerate() {
        let plan = plan(&case, splits)?;
        jobs.push((case, Job::<T>::new(gpu, &case, &plan, 34 + seed as u64)?, plan));
    }
    for _ in 0..5 {
        for (_, job, plan) in &mut jobs {
            job.launch(stream.as_ref(), plan)?;
        }
    }
    jobs.iter().try_for_each(|(case, job, _)| job.check(&stream, case))
}

/// Also where it splits the keys. Only an emulated device says how many launches there were.
fn one_launch<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let gpu = Gpu::emulated(gpu.arch());
    let case = Case::new(1, 1, 1, 100, 64, Mask::Causal).grouped(4, 2);
    for splits in [1, 3] {
        let plan = options::<T>(&gpu, &case, splits).plan(&gpu, T::DTYPE, case.sizes)?;
        let (mut job, stream) = (Job::<T>::new(&gpu, &case, &plan, 39)?, gpu.new_stream()?);
        let ((), launches) = gpu.counted(|| job.launch(stream.as_ref(), &plan))?;
        if launches.len() != 1 {
            return Err(format!("{splits} splits take {} launches", launches.len()).into());
        }
        job.check(&stream, &case)?;
    }
    Ok(())
}

/// More tiles than a launch can have semaphores of the device: those of the workspace, whatever was there before.
fn many_tiles<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let case = Case::new(1030, 1, 1, 24, 64, Mask::Full);
    let plan = options::<T>(gpu, &case, 2).plan(gpu, T::DTYPE, case.sizes)?;
    let mut job = Job::<T>::new(gpu, &case, &plan, 38)?;
    let stream = gpu.new_stream()?;
    for _ in 0..if is_small(gpu) { 1 } else { 10 } {
        job.workspace.fill_bytes(&stream, 0xFF)?;
        job.launch(stream.as_ref(), &plan)?;
    }
    job.check(&stream, &case)
}

/// What a run needs.
struct Job<T: Half> {
    placement: Placement,
    stored: Stored<T>,
    out: Guarded<T>,
    workspace: Buffer<u8>,
    inputs: Inputs<T>,
}

impl<T: Half> Job<T> {
    fn new(gpu: &Gpu, case: &Case, plan: &AttentionPlan, seed: u64) -> Result<Job<T>, Failed> {
        let stream = gpu.new_stream()?;
        let placement = Placement::contiguous(case, Layout::Bhsd);
        let inputs = Inputs::normal(case, seed);
        let stored = Stored::upload(gpu, &inputs, &placement)?;
        let out = Guarded::new(gpu, &stream, placement.out.count())?;
        let workspace = Buffer::zeroed(gpu, plan.workspace_bytes())?;
        stream.synchronize()?;
        Ok(Job { placement, stored, out, workspace, inputs })
    }

    fn launch(&mut self, stream: StreamRef<'_>, plan: &AttentionPlan) -> ferrotile::Result<()> {
        let view = self.placement.out.moved(self.out.offset());
        let [q, k, v] = self.stored.tensors(&self.placement).expect("views of their buffers");
        let out = view.tensor_mut(self.out.buffer(), Layout::Bhsd)?;
        let bytes = self.workspace.len();
        let mut tensors = AttentionTensors::new(q, k, v, out);
        tensors.workspace = Some(TensorMut::contiguous(&mut self.workspace, [bytes])?);
        plan.run(stream, tensors)
    }

    fn check(&self, stream: &Stream, case: &Case) -> Outcome {
        let (out, expected) = (self.out.read(stream)?, self.inputs.expected(case));
        tests::compare::check(&out, &expected.out, &case.q_shape(), expected.limit.max_abs)?;
        Ok(())
    }
}

/// One plan, two streams, a workspace each.
fn two_streams<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let case = Case::new(2, 1, 2, 400, 128, Mask::Causal).grouped(4, 2);
    let plan = options::<T>(gpu, &case, 3).plan(gpu, T::DTYPE, case.sizes)?;
    let mut jobs = [Job::<T>::new(gpu, &case, &plan, 28)?, Job::new(gpu, &case, &plan, 29)?];
    let streams = [gpu.new_stream()?, gpu.new_stream()?];
    for _ in 0..20 {
        for (job, stream) in jobs.iter_mut().zip(&streams) {
            job.launch(stream.as_ref(), &plan)?;
        }
    }
    jobs.iter().zip(&streams).try_for_each(|(job, stream)| job.check(stream, &case))
}

fn captured_graph<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let case = Case::new(2, 1, 2, 400, 128, Mask::Causal).grouped(4, 2);
    let plan = options::<T>(gpu, &case, 3).plan(gpu, T::DTYPE, case.sizes)?;
    let mut job = Job::<T>::new(gpu, &case, &plan, 30)?;
    let stream = gpu.new_stream()?;
    let graph = stream.capture(|stream| job.launch(stream, &plan))?;
    job.out.check_untouched(&stream)?;
    for _ in 0..3 {
        job.out.buffer().fill_bytes(&stream, 0xFF)?;
        // SAFETY: the inputs, the output, the workspace and the plan outlive the replay, which `check` waits for.
        unsafe { graph.launch(stream.as_ref()) }?;
        job.check(&stream, &case)?;
    }
    Ok(())
}

/// Without a name few rows are decoded, in as many splits as the workspace allows.
fn is_chosen<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    for (head_dim, q_len, q_heads) in [(64, 1, 4), (128, 16, 4), (128, 16, 6), (200, 2, 4)] {
        let case = Case::new(1, 1, q_len, 2000, head_dim, Mask::Causal).grouped(q_heads, 2);
        for bytes in [0, WORKSPACE_BYTES] {
            let options = Request { mask: case.mask, max_workspace_bytes: bytes, ..Request::new(Layout::Bhsd) };
            let plan = options.plan(gpu, T::DTYPE, case.sizes)?;
            let packed_rows = q_heads / 2 * q_len;
            let configs = configurations::<T>(gpu, &case);
            let wide = configs.iter().find(|config| config.rows() > 16 && packed_rows > config.rows());
            if config_of(&plan) != *wide.unwrap_or(&configs[0]) || plan.workspace_bytes() > bytes {
                return Err(format!("the plan is {plan} with {} bytes", plan.workspace_bytes()).into());
            }
            if (plan.splits() == 1) != (plan.workspace_bytes() == 0) || (bytes == 0 && plan.splits() > 1) {
                return Err(format!("{} splits in {} bytes", plan.splits(), plan.workspace_bytes()).into());
            }
            let inputs = Inputs::<T>::normal(&case, 31);
            let output = run_with(gpu, &case, &inputs, &Placement::contiguous(&case, Layout::Bhsd), &options)?;
            output.check(&case, &inputs.expected(&case))?;
        }
    }
    Ok(())
}

fn refusals<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    // O, a maximum and a sum of four rows of each split, and a semaphore for each of two tiles.
    const WORKSPACE_OF_3: usize = 3 * 4 * 66 * 4 + 2 * 4;
    let case = Case::new(1, 1, 1, 400, 64, Mask::Full).grouped(4, 2);
    let named = |splits, bytes| Request { max_workspace_bytes: bytes, ..options::<T>(gpu, &case, splits) };
    for (splits, bytes) in [(0, WORKSPACE_BYTES), (100_000, WORKSPACE_BYTES), (2, 0), (3, WORKSPACE_OF_3 - 1)] {
        match named(splits, bytes).plan(gpu, T::DTYPE, case.sizes) {
            Err(Error::Argument { argument: "splits", .. }) => {}
            other => return Err(format!("{splits} splits in {bytes} bytes: {other:?}").into()),
        }
    }
    let plan = named(3, WORKSPACE_OF_3).plan(gpu, T::DTYPE, case.sizes)?;
    let mut job = Job::<T>::new(gpu, &case, &plan, 32)?;
    job.workspace = Buffer::zeroed(gpu, plan.workspace_bytes() - 1)?;
    let stream = gpu.new_stream()?;
    match job.launch(stream.as_ref(), &plan) {
        Err(Error::Argument { argument: "workspace", .. }) => job.out.check_untouched(&stream),
        other => Err(format!("too little workspace: {other:?}").into()),
    }
}
