//! `ferrotile bench gemm`: times of matrix products.

use std::fmt;
use std::str::FromStr;

use clap::Args;
use ferrotile::{
    Accumulation, Buffer, Dtype, F8E4M3, Float, GemmLayout, GemmOptions, GemmPlan, GemmProblem, GemmTensors, Gpu,
    Stream, StreamRef, TensorMut, TensorRef,
};
use half::{bf16, f16};
use variants::gemm::GEMM;

use crate::bench::error::BenchError;
use crate::bench::kernel_names;
use crate::bench::measure::{MeasureArgs, Timer};
use crate::bench::report::Entry;
use crate::problems::random;
use crate::progress;
use crate::spelling::in_any_case;

/// Workspace that plans may use.
const WORKSPACE_BYTES: usize = 256 << 20;

/// What to measure and how.
#[derive(Debug, Args)]
pub(crate) struct GemmBenchArgs {
    /// A case MxNxK/dtype, such as 4096x4096x4096/f16 (or bf16, e4m3); may be repeated [default: those of the
    /// comparison with vendor libraries].
    #[arg(long = "case", num_args = 1..)]
    cases: Vec<GemmCase>,
    /// How A and B are stored: nn, nt, tn or tt; may be repeated.
    #[arg(long = "layout", num_args = 1.., default_values_t = [GemmLayout::Nt], value_parser = in_any_case::<GemmLayout>)]
    layouts: Vec<GemmLayout>,
    /// A kernel by name, or `all` for every one that serves a case; may be repeated [default: the library's choice].
    #[arg(long = "kernel", alias = "variant", num_args = 1..)]
    kernels: Vec<String>,
    /// Splits of k (split-K) [default: the library's choice].
    #[arg(long)]
    splits: Option<usize>,
    /// Start each kernel only when the one before has ended, and not while it still runs.
    #[arg(long)]
    isolated: bool,
    #[command(flatten)]
    measure: MeasureArgs,
}

/// One product to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GemmCase {
    m: usize,
    n: usize,
    k: usize,
    pub(crate) dtype: Dtype,
}

/// The shapes (m, n, k) of the comparison with vendor libraries.
const SHAPES: [[usize; 3]; 10] = [
    [64, 64, 64],
    [512, 512, 512],
    [1024, 1024, 1024],
    [2048, 2048, 2048],
    [4096, 4096, 4096],
    [8192, 8192, 8192],
    [128, 4096, 4096],
    [4096, 14336, 4096],
    [4096, 4096, 1001],
    [1000, 3000, 2000],
];

/// Products up to this many terms are measured by replaying a graph, where a launch costs nothing.
const SMALL_TERMS: f64 = 2048.0 * 2048.0 * 2048.0;

impl GemmCase {
    /// The cases measured where none is named; FP8 where vendor libraries multiply it.
    fn defaults() -> Vec<GemmCase> {
        let types = [Dtype::F16, Dtype::Bf16, Dtype::E4M3];
        let cases = SHAPES.into_iter().flat_map(|[m, n, k]| types.map(|dtype| GemmCase { m, n, k, dtype }));
        let multiple = |size: usize| size.is_multiple_of(16);
        cases.filter(|case| case.dtype != Dtype::E4M3 || (multiple(case.k) && multiple(case.n))).collect()
    }

    /// Whether products take these sizes.
    fn check(&self) -> Result<(), BenchError> {
        let problem = GemmProblem::new([self.m, self.n, self.k], self.dtype, self.dtype, Dtype::F16);
        problem.check().map_err(|reason| BenchError::Case { case: self.to_string(), reason })
    }

    fn problem<T: Float, D: Float>(&self, layout: GemmLayout) -> GemmProblem {
        let problem = GemmProblem::new([self.m, self.n, self.k], T::DTYPE, T::DTYPE, D::DTYPE);
        let aligned =
            |[_, rows, columns]: [usize; 3]| rows <= 1 || (columns * T::DTYPE.size_bytes()).is_multiple_of(16);
        let (a_aligned, b_aligned) = (aligned(problem.a_shape(layout)), aligned(problem.b_shape(layout)));
        GemmProblem { a_aligned, b_aligned, ..problem }
    }
}

impl fmt::Display for GemmCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GemmCase { m, n, k, dtype } = self;
        f.pad(&format!("{m}x{n}x{k}/{dtype}"))
    }
}

/// A product of normally distributed matrices in the memory of a card.
pub(crate) struct CardProduct<T: Float, D: Float> {
    problem: GemmProblem,
    layout: GemmLayout,
    a: Buffer<T>,
    b: Buffer<T>,
    d: Buffer<D>,
}

impl<T: Float, D: Float> CardProduct<T, D> {
    /// The same matrices in every run.
    pub(crate) fn new(gpu: &Gpu, stream: &Stream, case: &GemmCase, layout: GemmLayout) -> ferrotile::Result<Self> {
        let problem = case.problem::<T, D>(layout);
        problem.check()?;
        let operand = |shape: [usize; 3], seed| Buffer::upload_blocking(stream, &random::normal(&shape, seed)?);
        let (a, b) = (operand(problem.a_shape(layout), 0)?, operand(problem.b_shape(layout), 1)?);
        let d = Buffer::zeroed(gpu, problem.d_shape().iter().product())?;
        Ok(CardProduct { problem, layout, a, b, d })
    }

    pub(crate) const fn problem(&self) -> &GemmProblem {
        &self.problem
    }

    /// Enqueues the product.
    pub(crate) fn run(
        &mut self,
        stream: StreamRef<'_>,
        plan: &GemmPlan,
        workspace: &mut Buffer<u8>,
    ) -> ferrotile::Result<()> {
        let tensors = GemmTensors::new(
            TensorRef::contiguous(&self.a, self.problem.a_shape(self.layout))?,
            TensorRef::contiguous(&self.b, self.problem.b_shape(self.layout))?,
            TensorMut::contiguous(&mut self.d, self.problem.d_shape())?,
        );
        let bytes = workspace.len();
        plan.run(stream, tensors, Some(TensorMut::contiguous(workspace, [bytes])?))
    }
}

/// The text is not a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected MxNxK/dtype with numbers above 0 and f16, bf16 or e4m3, such as 4096x4096x4096/f16")]
pub(crate) struct ParseGemmCaseError;

impl FromStr for GemmCase {
    type Err = ParseGemmCaseError;

    fn from_str(text: &str) -> Result<GemmCase, ParseGemmCaseError> {
        let (shape, dtype) = text.split_once('/').ok_or(ParseGemmCaseError)?;
        let parts: Vec<&str> = shape.split('x').collect();
        let &[m, n, k] = parts.as_slice() else { return Err(ParseGemmCaseError) };
        let size = |part: &str| part.parse().ok().filter(|&size| size > 0).ok_or(ParseGemmCaseError);
        let dtype = [Dtype::F16, Dtype::Bf16, Dtype::E4M3].into_iter().find(|known| known.name() == dtype);
        Ok(GemmCase { m: size(m)?, n: size(n)?, k: size(k)?, dtype: dtype.ok_or(ParseGemmCaseError)? })
    }
}

/// Measures and prints.
pub(crate) fn run(args: &GemmBenchArgs) -> anyhow::Result<()> {
    kernel_names::check(&args.kernels, "gemm", GEMM.iter().map(|config| config.name))?;
    let cases = if args.cases.is_empty() { GemmCase::defaults() } else { args.cases.clone() };
    args.measure.check_place()?;
    cases.iter().try_for_each(GemmCase::check)?;
    let gpu = args.measure.gpu()?;
    let mut timer = args.measure.timer(&gpu)?;
    let (mut lines, mut entries) = (Vec::new(), Vec::new());
    let shown = progress::bar(cases.len() * args.layouts.len());
    for (case, &layout) in cases.iter().flat_map(|case| args.layouts.iter().map(move |layout| (case, layout))) {
        shown.set_message(case.to_string());
        let measured = match case.dtype {
            Dtype::Bf16 => measure::<bf16, bf16>(&gpu, &mut timer, case, layout, args)?,
            // The vendor's library, which this is compared with, writes f16 too.
            Dtype::E4M3 => measure::<F8E4M3, f16>(&gpu, &mut timer, case, layout, args)?,
            _ => measure::<f16, f16>(&gpu, &mut timer, case, layout, args)?,
        };
        for (line, entry) in measured {
            lines.push(line);
            entries.push(entry);
        }
        shown.inc(1);
    }
    drop(shown);
    let heading = ["case", "layout", "kernels", "p50 us", "p90 us", "TFLOP/s", "registers", "workspace"];
    args.measure.report(&gpu, &heading, &lines, entries)
}

/// The library's choices, with a workspace.
pub(crate) fn options(layout: GemmLayout) -> GemmOptions {
    GemmOptions { max_workspace_bytes: WORKSPACE_BYTES, ..GemmOptions::new(layout) }
}

/// The plans to measure: those of the kernels named that serve the case, or the library's choice for each way to sum.
fn plans<T: Float, D: Float>(
    gpu: &Gpu,
    case: &GemmCase,
    layout: GemmLayout,
    args: &GemmBenchArgs,
) -> ferrotile::Result<Vec<GemmPlan>> {
    let problem = case.problem::<T, D>(layout);
    let ways: &[Accumulation] = if T::DTYPE.size_bytes() == 1 {
        &[Accumulation::Direct, Accumulation::TwoLevel]
    } else {
        &[Accumulation::Direct]
    };
    let mut plans = Vec::new();
    for &accumulation in ways {
        let (splits, isolated) = (args.splits, args.isolated);
        let options = GemmOptions { accumulation, splits, isolated, ..options(layout) };
        if args.kernels.is_empty() {
            plans.push(GemmPlan::new(gpu, &problem, &options)?);
            continue;
        }
        let wanted = |name: &str| kernel_names::include(&args.kernels, name);
        for config in GEMM
            .iter()
            .filter(|config| config.multiplies(T::DTYPE, T::DTYPE, accumulation) && config.accumulation == accumulation)
            .filter(|config| wanted(config.name) && config.is_in(gpu.arch()))
        {
            let options = GemmOptions { kernel: Some(config.name.to_owned()), ..options.clone() };
            // A kernel that does not serve the case is passed over.
            plans.extend(GemmPlan::new(gpu, &problem, &options).ok());
        }
    }
    Ok(plans)
}

fn measure<T: Float, D: Float>(
    gpu: &Gpu,
    timer: &mut Timer,
    case: &GemmCase,
    layout: GemmLayout,
    args: &GemmBenchArgs,
) -> ferrotile::Result<Vec<(Vec<String>, Entry)>> {
    let mut on_card = CardProduct::<T, D>::new(gpu, timer.stream(), case, layout)?;
    let flops = on_card.problem.flops();
    let mut measured = Vec::new();
    for plan in plans::<T, D>(gpu, case, layout, args)? {
        let bytes = plan.workspace_bytes();
        let mut workspace = Buffer::<u8>::zeroed(gpu, bytes)?;
        let us = timer.microseconds(flops <= 2.0 * SMALL_TERMS, |stream| on_card.run(stream, &plan, &mut workspace))?;
        let tflops = flops / us.p50 / 1e6;
        let line = vec![
            case.to_string(),
            layout.to_string(),
            plan.to_string(),
            format!("{:.2}", us.p50),
            format!("{:.2}", us.p90),
            format!("{tflops:.1}"),
            plan.kernel().attributes().registers.to_string(),
            bytes.to_string(),
        ];
        let entry = Entry::measured("gemm", case, &plan, &us, flops);
        measured.push((line, entry));
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_read_as_they_are_written() {
        for case in GemmCase::defaults() {
            assert_eq!(case.to_string().parse(), Ok(case));
        }
        for text in ["", "1x2x3", "1x2/f16", "1x2x0/f16", "1x2x3/f32", "1x2x3x4/f16", "1x2x-3/f16"] {
            assert_eq!(text.parse::<GemmCase>(), Err(ParseGemmCaseError), "{text}");
        }
    }

    #[test]
    fn sizes_beyond_the_kernels_are_refused() {
        let case = |text: &str| text.parse::<GemmCase>().unwrap().check();
        assert!(matches!(case("99999999999x1x1/f16"), Err(BenchError::Case { .. })));
        assert!(case("4096x4096x4096/e4m3").is_ok());
    }

    #[test]
    fn fp8_is_measured_where_vendor_libraries_multiply_it() {
        let cases = GemmCase::defaults();
        let of = |dtype| cases.iter().filter(|case| case.dtype == dtype).count();
        assert_eq!((of(Dtype::F16), of(Dtype::Bf16), of(Dtype::E4M3)), (10, 10, 8));
    }
}
