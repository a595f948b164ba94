//! Streams, graphs and plans.

use ferrotile::{AttentionTensors, Gpu, Layout, Mask, Stream, attention};
use half::{bf16, f16};
use tests::guard::Guarded;
use tests::inputs::Half;
use tests::is_small;

use crate::Trials;
use crate::case::{Case, Expected, Inputs, Outcome, Output, Placement, Stored, few, for_each_config, run_contiguous};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    trials.both("two_streams_at_once", &(), two_streams::<f16>, two_streams::<bf16>);
    trials.both("threads_share_a_device", &(), threads::<f16>, threads::<bf16>);
    trials.both("a_captured_graph_computes_again", &(), captured_graph::<f16>, captured_graph::<bf16>);
    trials.both("a_plan_is_the_call", &(), planned::<f16>, planned::<bf16>);
    trials.both("the_library_chooses_a_kernel", &(), chosen::<f16>, chosen::<bf16>);
}

fn case(gpu: &Gpu) -> Case {
    let (q_len, k_len) = if is_small(gpu) { (67, 70) } else { (131, 150) };
    Case::new(2, few(gpu, 3), q_len, k_len, 64, Mask::Causal)
}

/// Calls with few tiles and, on a card, with so many that blocks take them from a counter; an emulated device has few
/// blocks.
fn cases(gpu: &Gpu) -> Vec<Case> {
    let many = (!gpu.is_emulated()).then(|| Case::new(2, 150, 70, 70, 8, Mask::Causal));
    [case(gpu)].into_iter().chain(many).collect()
}

/// Inputs on a card, an output, and what is expected of it.
struct Job<T: Half> {
    stream: Stream,
    placement: Placement,
    stored: Stored<T>,
    out: Guarded<T>,
    expected: Expected,
}

impl<T: Half> Job<T> {
    fn new(gpu: &Gpu, case: &Case, seed: u64) -> Result<Job<T>, libtest_mimic::Failed> {
        let stream = gpu.new_stream()?;
        let placement = Placement::contiguous(case, Layout::Bhsd);
        let inputs = Inputs::normal(case, seed);
        let stored = Stored::upload(gpu, &inputs, &placement)?;
        let out = Guarded::new(gpu, &stream, placement.out.count())?;
        stream.synchronize()?;
        Ok(Job { stream, placement, stored, out, expected: inputs.expected(case) })
    }

    fn check(&self, case: &Case) -> Outcome {
        let out = self.out.read(&self.stream)?;
        let limit = self.expected.limit.max_abs;
        tests::compare::check(&out, &self.expected.out, &case.q_shape(), limit)?;
        Ok(())
    }
}

/// Calls in turn on two streams, each waited for only at the end.
fn two_streams<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    cases(gpu).iter().try_for_each(|case| two_streams_of::<T>(gpu, case))
}

fn two_streams_of<T: Half>(gpu: &Gpu, case: &Case) -> Outcome {
    for_each_config::<T>(gpu, case, |config| {
        let mut jobs = [Job::<T>::new(gpu, case, 11)?, Job::new(gpu, case, 12)?];
        for _ in 0..if is_small(gpu) { 3 } else { 20 } {
            for Job { stream, placement, stored, out, .. } in &mut jobs {
                let view = placement.out.moved(out.offset());
                let [q, k, v] = stored.tensors(placement)?;
                let out = view.tensor_mut(out.buffer(), Layout::Bhsd)?;
                let (tensors, request) = (AttentionTensors::new(q, k, v, out), case.options(Layout::Bhsd, config));
                attention(&*stream, tensors, &request.params(), &request.options())?;
            }
        }
        jobs.iter().try_for_each(|job| job.check(case))
    })
}

/// Four threads that each make streams, buffers and calls.
fn threads<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let case = case(gpu);
    let inputs = Inputs::<T>::normal(&case, 13);
    for_each_config::<T>(gpu, &case, |config| {
        let first = run_contiguous(gpu, &case, &inputs, config)?;
        std::thread::scope(|scope| {
            let again = || {
                (0..if is_small(gpu) { 1 } else { 5 })
                    .try_for_each(|_| run_contiguous(gpu, &case, &inputs, config)?.check_same(&case, &first))
            };
            let threads = [(); 4].map(|()| scope.spawn(again));
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into())))
        })
    })
}

/// A call that is captured does nothing; each replay computes it, on what the inputs hold by then.
fn captured_graph<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    cases(gpu).iter().try_for_each(|case| captured_graph_of::<T>(gpu, case))
}

fn captured_graph_of<T: Half>(gpu: &Gpu, case: &Case) -> Outcome {
    for_each_config::<T>(gpu, case, |config| {
        let mut job = Job::<T>::new(gpu, case, 14)?;
        let plan = case.options(Layout::Bhsd, config).plan(gpu, T::DTYPE, case.sizes)?;
        let view = job.placement.out.moved(job.out.offset());
        let [q, k, v] = job.stored.tensors(&job.placement)?;
        let out = &mut job.out;
        let graph = job.stream.capture(|stream| {
            let out = view.tensor_mut(out.buffer(), Layout::Bhsd)?;
            plan.run(stream, AttentionTensors::new(q, k, v, out))
        })?;
        job.out.check_untouched(&job.stream)?;
        for _ in 0..3 {
            job.out.buffer().fill_bytes(&job.stream, 0xFF)?;
            // SAFETY: the inputs, the output and the plan outlive the replay, which `check` waits for.
            unsafe { graph.launch(job.stream.as_ref()) }?;
            job.check(case)?;
        }
        Ok(())
    })
}

/// A plan for named kernels gives the bits of the call, and says which kernel it runs.
fn planned<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let case = case(gpu);
    let inputs = Inputs::<T>::normal(&case, 15);
    for_each_config::<T>(gpu, &case, |config| {
        let plan = case.options(Layout::Bhsd, config).plan(gpu, T::DTYPE, case.sizes)?;
        if plan.to_string() != config.name || plan.kernel_name() != config.name {
            return Err(format!("the plan is for {plan}").into());
        }
        let mut job = Job::<T>::new(gpu, &case, 15)?;
        let view = job.placement.out.moved(job.out.offset());
        for _ in 0..2 {
            let [q, k, v] = job.stored.tensors(&job.placement)?;
            let out = view.tensor_mut(job.out.buffer(), Layout::Bhsd)?;
            plan.run(&job.stream, AttentionTensors::new(q, k, v, out))?;
        }
        let once = run_contiguous(gpu, &case, &inputs, config)?;
        let twice = Output { out: job.out.read(&job.stream)?, lse: once.lse.clone() };
        twice.check_same(&case, &once)
    })
}

/// Without a name the library runs one of the kernels that serve the problem, whatever its sizes.
fn chosen<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let long = if is_small(gpu) { 140 } else { 512 };
    for head_dim in [8, 64, 72, 128, 136, 256] {
        for (q_len, k_len) in [(1, 1), (1, 300), (300, 20), (long, long)] {
            let case = Case::new(1, 2, q_len, k_len, head_dim, Mask::Full);
            let mut options =
                case.options(Layout::Bhsd, case.configs::<T>(gpu).next().ok_or("no kernel serves the case")?);
            options.kernel = None;
            let plan = options.plan(gpu, T::DTYPE, case.sizes)?;
            let inputs = Inputs::<T>::normal(&case, 16);
            let expected = inputs.expected(&case);
            let config = case
                .configs::<T>(gpu)
                .find(|config| config.name == plan.kernel_name().as_str())
                .ok_or("the chosen kernel does not serve the case")?;
            run_contiguous(gpu, &case, &inputs, config)?.check(&case, &expected)?;
        }
    }
    Ok(())
}
