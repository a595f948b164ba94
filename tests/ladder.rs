//! Every step of the ladder on the device under test: a trial for each step and property.

use std::process::ExitCode;

use ferrotile::{Arch, Buffer, Error, Float, Gpu, LadderPlan, TensorMut, TensorRef};
use half::f16;
use libtest_mimic::Failed;
use ndarray::Array2;
use rand::RngExt;
use rand_distr::StandardNormal;
use tests::compare::{check, check_same};
use tests::guard::Guarded;
use tests::inputs::random;
use tests::is_small;
use variants::ladder::{LADDER, LadderStep};

type Outcome = Result<(), Failed>;

/// A property of a step on a device.
type Property = fn(&Gpu, &'static LadderStep) -> Outcome;

/// M, N and K: one tile, several stages with and without a remainder of the ring, several tiles for a persistent block.
fn sizes(gpu: &Gpu, step: &LadderStep) -> Vec<[usize; 3]> {
    let (m, n, k) = ((step.m * step.cluster) as usize, step.n as usize, step.k as usize);
    if step.k_steps() == 1 {
        return vec![[m, n, k], [3 * m, 2 * n, k]];
    }
    let mut sizes = vec![[m, n, k], [m, n, 3 * k], [2 * m, 3 * n, 4 * k], [m, 2 * n, 9 * k]];
    // More tiles than blocks, where a card is not emulated on two cores.
    if !is_small(gpu) {
        sizes.push([17 * m, 9 * n, 5 * k]);
    }
    sizes
}

/// A and B with elements drawn one by one, and C of the step.
struct Case {
    sizes: [usize; 3],
    a: Array2<f16>,
    b: Array2<f16>,
}

impl Case {
    fn new([m, n, k]: [usize; 3], mut draw: impl FnMut() -> f64) -> Case {
        let mut matrix = |rows| Array2::from_shape_simple_fn((rows, k), || <f16 as Float>::from_f64(draw()));
        Case { sizes: [m, n, k], a: matrix(m), b: matrix(n) }
    }

    fn run(&self, gpu: &Gpu, step: &'static LadderStep) -> Result<Vec<f32>, Failed> {
        let [m, n, k] = self.sizes;
        let stream = gpu.new_stream()?;
        let a = Buffer::upload_array_blocking(&stream, self.a.view())?;
        let b = Buffer::upload_array_blocking(&stream, self.b.view())?;
        let mut c = Guarded::<f32>::new(gpu, &stream, m * n)?;
        let offset = c.offset();
        let out = TensorMut::strided(c.buffer(), offset, [m, n], [n as i64, 1])?;
        let (a, b) = (TensorRef::contiguous(&a, [m, k])?, TensorRef::contiguous(&b, [n, k])?);
        LadderPlan::new(gpu, step, a, b, out)?.run(stream.as_ref())?;
        c.read(&stream)
    }

    fn expected(&self) -> Vec<f64> {
        self.a.mapv(f16::to_f64).dot(&self.b.mapv(f16::to_f64).t()).into_raw_vec_and_offset().0
    }
}

/// Small integers: every product and sum is exact.
fn integers_are_exact(gpu: &Gpu, step: &'static LadderStep) -> Outcome {
    let mut random = random(1);
    for sizes in sizes(gpu, step) {
        let case = Case::new(sizes, || f64::from(random.random_range(-4..=4)));
        check(&case.run(gpu, step)?, &case.expected(), &sizes[..2], 0.0)
            .map_err(|error| format!("{sizes:?}: {error}"))?;
    }
    Ok(())
}

/// The largest error is below 1e-5 of the largest element, and the same in every run.
fn sums_are_rounded_to_f32(gpu: &Gpu, step: &'static LadderStep) -> Outcome {
    let mut random = random(2);
    for sizes in sizes(gpu, step) {
        let case = Case::new(sizes, || random.sample(StandardNormal));
        let (got, expected) = (case.run(gpu, step)?, case.expected());
        let largest = expected.iter().fold(0.0, |largest: f64, element| largest.max(element.abs()));
        check(&got, &expected, &sizes[..2], 1e-5 * largest).map_err(|error| format!("{sizes:?}: {error}"))?;
        check_same(&case.run(gpu, step)?, &got, &sizes[..2])?;
    }
    Ok(())
}

/// Sizes that are not multiples of the tile are refused.
fn other_sizes_are_refused(gpu: &Gpu, step: &'static LadderStep) -> Outcome {
    let tile = [step.m * step.cluster, step.n, step.k].map(|size| size as usize);
    for changed in 0..tile.len() {
        let mut sizes = tile;
        sizes[changed] += 8;
        let refused = Case::new(sizes, || 1.0).run(gpu, step);
        let expected = Error::Shape {
            op: "ladder",
            tensor: "multiples of the tile: C and K",
            got: sizes.to_vec(),
            expected: tile.to_vec(),
        };
        match refused {
            Err(failed) if failed.message() == Some(&expected.to_string()) => {}
            other => return Err(format!("{sizes:?}: {other:?}").into()),
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let properties: [(&str, Property); 3] = [
        ("integers_are_exact", integers_are_exact),
        ("sums_are_rounded_to_f32", sums_are_rounded_to_f32),
        ("other_sizes_are_refused", other_sizes_are_refused),
    ];
    let runs_here = match tests::device() {
        tests::Device::Gpu(gpu) => gpu.arch() == Arch::Sm90a,
        _ => true,
    };
    let mut trials = Vec::new();
    for (name, body) in properties {
        for step in LADDER {
            let trial = tests::device_trial(format!("{name}/{step}"), move |gpu| body(gpu, step));
            trials.push(trial.with_ignored_flag(!runs_here));
        }
    }
    tests::run_trials(trials)
}
