//! Streams, graphs, plans and the library's choice.

use ferrotile::{Buffer, GemmLayout, GemmOptions, GemmPlan, GemmProblem, Gpu, Stream, TensorMut};
use half::{bf16, f16};
use libtest_mimic::Failed;
use tests::catalogue::gemm_config_of;
use tests::compare::check_same;
use tests::guard::Guarded;
use tests::is_small;

use crate::Trials;
use crate::case::{
    Case, Expected, Inputs, OnDevice, Outcome, Placement, Stored, Way, aligned_operands, check, for_each_way, run,
    tensor_mut,
};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    trials.both("products_in_flight_on_four_streams", &(), in_flight::<f16>, in_flight::<bf16>);
    trials.both("a_captured_graph_computes_again", &(), captured_graph::<f16>, captured_graph::<bf16>);
    trials.both("the_library_chooses_kernels", &(), chosen::<f16>, chosen::<bf16>);
    trials.both("many_launches_end", &(), many_launches::<f16>, many_launches::<bf16>);
}

fn case(gpu: &Gpu) -> Case {
    Case::new(if is_small(gpu) { [20, 40, 72] } else { [200, 264, 520] }, GemmLayout::Nt)
}

/// A product that is enqueued again and again, and what is expected of it.
struct Job<T: Stored> {
    on_device: OnDevice<T, T, T>,
    placement: Placement,
    out: Guarded<T>,
    workspace: Buffer<u8>,
    expected: Expected,
}

impl<T: Stored> Job<T> {
    fn new(gpu: &Gpu, stream: &Stream, case: &Case, plan: &GemmPlan, seed: u64) -> Result<Job<T>, Failed> {
        let placement = Placement::contiguous::<T, T, T>(case);
        let inputs = Inputs::normal(case, seed);
        Ok(Job {
            on_device: OnDevice::upload(stream, &inputs, &placement)?,
            out: Guarded::new(gpu, stream, placement.d.count())?,
            workspace: Buffer::zeroed(gpu, plan.workspace_bytes())?,
            expected: inputs.expected(case),
            placement,
        })
    }

    fn enqueue(&mut self, stream: ferrotile::StreamRef<'_>, case: &Case, plan: &GemmPlan) -> Outcome {
        let view = self.placement.d.moved(self.out.offset());
        let tensors = self.on_device.tensors(case, &self.placement, tensor_mut(self.out.buffer(), &view)?)?;
        let bytes = self.workspace.len();
        plan.run(stream, tensors, Some(TensorMut::contiguous(&mut self.workspace, [bytes])?))?;
        Ok(())
    }
}

fn plan_of<T: Stored>(gpu: &Gpu, case: &Case, way: &Way) -> ferrotile::Result<GemmPlan> {
    GemmPlan::new(gpu, &case.problem::<T, T, T>(), &case.options(way))
}

/// Sixteen products on each of four streams, each with its own poisoned output, waited for only at the end.
fn in_flight<T: Stored>(gpu: &Gpu, (): &()) -> Outcome {
    let case = case(gpu);
    let per_stream = if is_small(gpu) { 1 } else { 16 };
    for_each_way::<T, T>(gpu, &case, true, |way| {
        let plan = plan_of::<T>(gpu, &case, way)?;
        let streams = [gpu.new_stream()?, gpu.new_stream()?, gpu.new_stream()?, gpu.new_stream()?];
        let mut jobs = Vec::new();
        for index in 0..4 * per_stream {
            jobs.push(Job::<T>::new(gpu, &streams[index % 4], &case, &plan, (index % 5) as u64)?);
        }
        for (index, job) in jobs.iter_mut().enumerate() {
            job.enqueue(streams[index % 4].as_ref(), &case, &plan)?;
        }
        for (index, job) in jobs.iter().enumerate() {
            check(&case, &job.out.read(&streams[index % 4])?, &job.expected)?;
        }
        Ok(())
    })
}

/// A call that is captured does nothing; each replay computes it.
fn captured_graph<T: Stored>(gpu: &Gpu, (): &()) -> Outcome {
    let case = case(gpu);
    for_each_way::<T, T>(gpu, &case, true, |way| {
        let plan = plan_of::<T>(gpu, &case, way)?;
        let stream = gpu.new_stream()?;
        let mut job = Job::<T>::new(gpu, &stream, &case, &plan, 14)?;
        stream.synchronize()?;
        let mut outcome = Ok(());
        let graph = stream.capture(|stream| {
            outcome = job.enqueue(stream, &case, &plan);
            Ok(())
        })?;
        outcome?;
        job.out.check_untouched(&stream)?;
        for _ in 0..3 {
            job.out.buffer().fill_bytes(&stream, 0xFF)?;
            // SAFETY: the tensors, the workspace and the plan outlive the replay, which `read` waits for.
            unsafe { graph.launch(stream.as_ref()) }?;
            check(&case, &job.out.read(&stream)?, &job.expected)?;
        }
        Ok(())
    })
}

/// Without a name the library runs one of the kernels that serve the problem, and says which.
fn chosen<T: Stored>(gpu: &Gpu, (): &()) -> Outcome {
    let shapes: &[[usize; 3]] = if is_small(gpu) {
        &[[1, 16, 16], [16, 24, 200]]
    } else {
        &[[1, 1, 1], [1, 4096, 1024], [16, 512, 4096], [64, 64, 64], [500, 700, 300], [1024, 1024, 1024]]
    };
    for (&shape, layout) in shapes.iter().flat_map(|shape| GemmLayout::ALL.map(|layout| (shape, layout))) {
        let case = Case::new(shape, layout);
        let inputs = Inputs::<T, T, T>::normal(&case, 16);
        let placement = Placement::contiguous::<T, T, T>(&case);
        for max_workspace_bytes in [0, 64 << 20] {
            let [a_aligned, b_aligned] = aligned_operands::<T, T>(&case);
            let problem = GemmProblem { a_aligned, b_aligned, ..case.problem::<T, T, T>() };
            let options = GemmOptions { max_workspace_bytes, ..GemmOptions::new(layout) };
            let plan = GemmPlan::new(gpu, &problem, &options)?;
            if !plan.to_string().contains(gemm_config_of(&plan).name) || plan.workspace_bytes() > max_workspace_bytes {
                return Err(format!("{plan} needs {} bytes", plan.workspace_bytes()).into());
            }
            let way = Way { config: gemm_config_of(&plan), splits: plan.splits() };
            let d = run(gpu, &case, &inputs, &placement, &way).map_err(|error| format!("{plan}: {error:?}"))?;
            check(&case, &d, &inputs.expected(&case)).map_err(|error| format!("{case}, {plan}: {error:?}"))?;
        }
    }
    Ok(())
}

/// Launches beyond what a queue holds, 100,000 and more with those of all rows, with the same result at the end as at
/// first.
fn many_launches<T: Stored>(gpu: &Gpu, (): &()) -> Outcome {
    let launches = if is_small(gpu) { 3 } else { 10_000 };
    let case = Case::new([40, 72, 264], GemmLayout::Nn);
    for_each_way::<T, T>(gpu, &case, true, |way| {
        let plan = plan_of::<T>(gpu, &case, way)?;
        let stream = gpu.new_stream()?;
        let mut job = Job::<T>::new(gpu, &stream, &case, &plan, 17)?;
        job.enqueue(stream.as_ref(), &case, &plan)?;
        let first = job.out.read(&stream)?;
        check(&case, &first, &job.expected)?;
        for _ in 0..launches {
            job.enqueue(stream.as_ref(), &case, &plan)?;
        }
        check_same(&job.out.read(&stream)?, &first, &[1, case.m, case.n])?;
        Ok(())
    })
}
