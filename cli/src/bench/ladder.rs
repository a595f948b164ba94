//! `ferrotile bench ladder`: the steps from one `wgmma` to a matrix product, each checked and then timed.

use std::io::{self, Write};

use clap::Args;
use ferrotile::{
    Buffer, Dtype, Float, GemmLayout, GemmOptions, GemmPlan, GemmProblem, GemmTensors, Gpu, LadderPlan, StreamRef,
    TensorMut, TensorRef,
};
use half::f16;
use ndarray::Array2;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use variants::ladder::{LADDER, LadderStep};

use crate::bench::measure::{Repeats, Timer, open_card};
use crate::device;
use crate::progress;
use crate::table::table;

/// What to measure.
#[derive(Debug, Args)]
pub(crate) struct LadderBenchArgs {
    /// M, N and K of the steps that loop along K; the first step has M and N of 8192.
    #[arg(long, default_value_t = 4096)]
    size: usize,
    /// Measurements [default: about 60 ms].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: Option<u32>,
    /// The card: cuda, cuda:N or N.
    #[arg(long, default_value = "cuda", value_parser = device::card)]
    device: u32,
}

/// M, N and K.
type Sizes = [usize; 3];

/// M and N of the product whose result is checked.
const CHECKED: usize = 512;

/// A step has computed something else than a matrix product.
#[derive(Debug, thiserror::Error)]
#[error("{step}: the largest error is {error:.1e} of the largest element, more than {LIMIT:.1e}")]
struct WrongProduct {
    step: String,
    error: f64,
}

/// The largest error relative to the largest element. Products of f16 are exact in f32 and their sums are rounded, of
/// 512 terms at most.
const LIMIT: f64 = 1e-5;

/// Checks, measures and prints.
pub(crate) fn run(args: &LadderBenchArgs) -> anyhow::Result<()> {
    let gpu = open_card(args.device)?;
    writeln!(io::stdout(), "{}, {} multiprocessors, {} PTX", gpu.name(), gpu.multiprocessors(), gpu.arch())?;
    let mut timer = Timer::new(&gpu, Repeats { warmup: None, iterations: args.iterations })?;
    let mut lines = Vec::new();
    let shown = progress::bar(LADDER.len() + 1);
    for step in LADDER {
        shown.set_message(step.to_string());
        // The first step takes K of one instruction, and writes more than it computes: a large C fills the card.
        let single = step.k_steps() == 1;
        let k = |k| if single { step.k as usize } else { k };
        let error = check(&gpu, &timer, step, [CHECKED, CHECKED, k(CHECKED)], |product, stream| {
            product.plan(&gpu, step)?.run(stream)
        })?;
        let side = if single { 8192 } else { args.size };
        let sizes @ [m, n, k] = [side, side, k(args.size)];
        let mut product = Product::new(&gpu, &timer, sizes)?;
        let mut plan = product.plan(&gpu, step)?;
        let registers = plan.kernel().attributes().registers;
        let us = timer.microseconds(false, |stream| plan.run(stream))?;
        lines.push(vec![
            step.to_string(),
            format!("{m}x{n}x{k}"),
            format!("{error:.1e}"),
            format!("{:.1}", us.p50),
            format!("{:.1}", (2 * m * n * k) as f64 / us.p50 / 1e6),
            registers.to_string(),
            step.smem().total_bytes().to_string(),
        ]);
        shown.inc(1);
    }
    lines.push(library(&gpu, &mut timer, args.size)?);
    drop(shown);
    let heading = ["step", "MxNxK", "error", "p50 us", "TFLOP/s", "registers", "shared bytes"];
    write!(io::stdout(), "{}", table(&heading, &lines))?;
    Ok(())
}

/// The last step, the library's product. It is checked with results in f32 like the other steps, and timed with results
/// in f16, which are the usual ones.
fn library(gpu: &Gpu, timer: &mut Timer, size: usize) -> anyhow::Result<Vec<String>> {
    let plan = |side: usize, d| {
        let problem = GemmProblem::new([side; 3], Dtype::F16, Dtype::F16, d);
        GemmPlan::new(gpu, &problem, &GemmOptions::new(GemmLayout::Nt))
    };
    let checked = plan(CHECKED, Dtype::F32)?;
    let error = check(gpu, timer, &checked, [CHECKED; 3], |product, stream| {
        run_library(&checked, stream, &product.a, &product.b, &mut product.c, CHECKED)
    })?;
    let timed = plan(size, Dtype::F16)?;
    let Product { a, b, .. } = Product::new(gpu, timer, [size; 3])?;
    let mut d = Buffer::<f16>::zeroed(gpu, size * size)?;
    let us = timer.microseconds(false, |stream| run_library(&timed, stream, &a, &b, &mut d, size))?;
    Ok(vec![
        timed.to_string(),
        format!("{size}x{size}x{size}"),
        format!("{error:.1e}"),
        format!("{:.1}", us.p50),
        format!("{:.1}", 2.0 * (size as f64).powi(3) / us.p50 / 1e6),
        timed.kernel().attributes().registers.to_string(),
        timed.facts().shared_bytes.to_string(),
    ])
}

/// Enqueues the library's product of square matrices.
fn run_library<D: Float>(
    plan: &GemmPlan,
    stream: StreamRef<'_>,
    a: &Buffer<f16>,
    b: &Buffer<f16>,
    d: &mut Buffer<D>,
    side: usize,
) -> ferrotile::Result<()> {
    let shape = [1, side, side];
    let (a, b) = (TensorRef::contiguous(a, shape)?, TensorRef::contiguous(b, shape)?);
    plan.run(stream, GemmTensors::new(a, b, TensorMut::contiguous(d, shape)?), None)
}

/// The matrices of one product on the card.
struct Product {
    sizes: Sizes,
    a: Buffer<f16>,
    b: Buffer<f16>,
    c: Buffer<f32>,
}

impl Product {
    fn new(gpu: &Gpu, timer: &Timer, sizes: Sizes) -> ferrotile::Result<Product> {
        let [m, n, k] = sizes;
        let upload = |matrix: Array2<f16>| Buffer::upload_array_blocking(timer.stream(), matrix.view());
        Ok(Product { sizes, a: upload(normal(m, k, 0))?, b: upload(normal(n, k, 1))?, c: Buffer::zeroed(gpu, m * n)? })
    }

    fn plan(&mut self, gpu: &Gpu, step: &'static LadderStep) -> ferrotile::Result<LadderPlan<'_>> {
        let [m, n, k] = self.sizes;
        let a = TensorRef::contiguous(&self.a, [m, k])?;
        let b = TensorRef::contiguous(&self.b, [n, k])?;
        LadderPlan::new(gpu, step, a, b, TensorMut::contiguous(&mut self.c, [m, n])?)
    }
}

/// Normally distributed elements, the same in every run.
fn normal(rows: usize, columns: usize, seed: u64) -> Array2<f16> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    Array2::from_shape_simple_fn((rows, columns), || f16::from_f32(random.sample(StandardNormal)))
}

/// The largest error of a step relative to the largest element, in f64.
fn check(
    gpu: &Gpu,
    timer: &Timer,
    step: &impl ToString,
    sizes: Sizes,
    run: impl FnOnce(&mut Product, StreamRef<'_>) -> ferrotile::Result<()>,
) -> anyhow::Result<f64> {
    let [m, n, k] = sizes;
    let mut product = Product::new(gpu, timer, sizes)?;
    product.c.fill_bytes(timer.stream(), u8::MAX)?;
    run(&mut product, timer.stream().as_ref())?;
    let got = product.c.download_blocking(timer.stream())?;
    let exact = normal(m, k, 0).mapv(f16::to_f64).dot(&normal(n, k, 1).mapv(f16::to_f64).t());
    let largest = exact.iter().fold(0.0, |largest: f64, element| largest.max(element.abs()));
    let error = ferrotile::tolerance::max_error(&got, exact.as_slice().expect("a product is contiguous")) / largest;
    if error < LIMIT { Ok(error) } else { Err(WrongProduct { step: step.to_string(), error }.into()) }
}
