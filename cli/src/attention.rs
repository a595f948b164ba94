//! `ferrotile attention`: attention on tensors from files.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use ferrotile::{AttentionOptions, Dtype, Gpu, Layout, Mask, tolerance};
use half::{bf16, f16};

use crate::device::{Device, DeviceChoice};
use crate::on_card;
use crate::problem::{AnyProblem, Exact, Half, Problem, ProblemError, Solution, Terms, element_type};
use crate::sequences::{Sequences, StartsFile};
use crate::tensor::{self, Elements, FileError, OutputFile, Tensor};

/// Computes O = softmax(scale * Q K^T + mask) V on tensors from files.
#[derive(Debug, Args)]
pub(crate) struct AttentionArgs {
    #[command(flatten)]
    input: InputArgs,
    #[command(flatten)]
    how: HowArgs,
    #[command(flatten)]
    terms: TermsArgs,
    #[command(flatten)]
    lengths: LengthsArgs,
    /// Where O is written: .npy (f16) or .safetensors (f16 or bf16, tensor `o`).
    #[arg(long)]
    out: PathBuf,
    /// Where the f32 log-sum-exp [batch, heads, rows], or [heads, rows of all], is written: .npy or .safetensors
    /// (tensor `lse`).
    #[arg(long)]
    lse: Option<PathBuf>,
    /// The kernel to run, by name; `ferrotile info` lists them.
    #[arg(long)]
    variant: Option<String>,
    /// Also compute O in f64 on the CPU, print the largest error, and fail if it is too large.
    #[arg(long)]
    check: bool,
    /// Where to run: auto (a card, or the CPU reference where there is none), cpu, cuda, cuda:N, emulator or
    /// emulator:ARCH.
    #[arg(long, default_value = "auto")]
    device: DeviceChoice,
}

/// The files of Q, K and V.
#[derive(Debug, Args)]
pub(crate) struct InputArgs {
    /// NPY file of Q.
    #[arg(long, requires_all = ["k", "v"])]
    q: Option<PathBuf>,
    /// NPY file of K.
    #[arg(long, requires_all = ["q", "v"])]
    k: Option<PathBuf>,
    /// NPY file of V.
    #[arg(long, requires_all = ["q", "k"])]
    v: Option<PathBuf>,
    /// One safetensors file with tensors `q`, `k` and `v` instead.
    #[arg(long, conflicts_with_all = ["q", "k", "v"])]
    safetensors: Option<PathBuf>,
}

/// What is done to scores beside mask and scale.
#[derive(Debug, Args)]
pub(crate) struct TermsArgs {
    /// What bounds scaled scores: CAP * tanh(score / CAP) takes their place.
    #[arg(long, value_name = "CAP", allow_hyphen_values = true, value_parser = finite)]
    softcap: Option<f32>,
    /// NPY file [query heads] of the score of a key that every row of a head sees and whose value is 0.
    #[arg(long)]
    sink: Option<PathBuf>,
    /// NPY file [batch or 1, query heads or 1, rows, keys] of what is added to scaled and capped scores; it is
    /// converted to the type of Q.
    #[arg(long)]
    bias: Option<PathBuf>,
}

/// Sequences of several lengths.
#[derive(Debug, Args)]
pub(crate) struct LengthsArgs {
    /// NPY file (int32 or int64) [sequences + 1] of the row where each sequence starts, and the end of the last one: Q,
    /// K and V are then [rows or keys of all sequences, heads, head dimension], sequence after sequence.
    #[arg(long, value_name = "STARTS", conflicts_with = "layout")]
    cu_seqlens_q: Option<PathBuf>,
    /// The same of the keys [default: as the rows].
    #[arg(long, value_name = "STARTS", requires = "cu_seqlens_q")]
    cu_seqlens_k: Option<PathBuf>,
}

/// How the tensors are read and attention is computed.
#[derive(Debug, Args)]
pub(crate) struct HowArgs {
    /// Which keys a row sees: full, causal or window:LEFT,RIGHT (aligned at the last row and key).
    #[arg(long, default_value = "full")]
    mask: Mask,
    /// What scores are multiplied by [default: 1 / sqrt(head dimension)].
    #[arg(long, allow_hyphen_values = true, value_parser = finite)]
    scale: Option<f32>,
    /// What the dimensions of the tensors are: batch, heads, sequence (rows), head dimension.
    #[arg(long, value_enum, default_value = "bhsd")]
    layout: LayoutName,
    /// Convert the elements to this type first.
    #[arg(long, value_enum)]
    dtype: Option<DtypeName>,
}

/// A layout as options spell it.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum LayoutName {
    Bhsd,
    Bshd,
}

/// An element type as options spell it.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum DtypeName {
    F16,
    Bf16,
}

/// No file of inputs is named.
#[derive(Debug, thiserror::Error)]
#[error("give --q, --k and --v, or --safetensors")]
pub(crate) struct NoInput;

/// The error of the result exceeds its limit, or is infinite.
#[derive(Debug, thiserror::Error)]
#[error("the largest error against f64 is {error:.3e}, the tolerance {limit:.3e}")]
pub(crate) struct CheckFailed {
    pub(crate) error: f64,
    pub(crate) limit: f64,
}

/// What a request asks to compute: one problem, or sequences of several lengths.
pub(crate) trait Task<T: Half>: Sized {
    /// The same with these tensors, which are checked and converted.
    fn with_terms(self, sink: Option<Tensor>, bias: Option<Tensor>) -> Result<Self, ProblemError>;

    /// Checks the options, whoever computes.
    fn check_options(&self, options: &AttentionOptions) -> ferrotile::Result<()>;

    /// The shape of O.
    fn out_shape(&self) -> Vec<usize>;

    /// The shape of the LSE.
    fn lse_shape(&self) -> Vec<usize>;

    /// O and LSE by a kernel, and the kernel's name.
    fn solve_on_card(&self, gpu: &Gpu, options: &AttentionOptions) -> ferrotile::Result<(Solution<T>, String)>;

    /// O and LSE on the CPU, rounded where a kernel rounds.
    fn solve_on_cpu(&self, options: &AttentionOptions) -> Solution<T>;

    /// Compares O with the f64 reference.
    fn check(&self, solution: &Solution<T>, options: &AttentionOptions) -> Checked;
}

impl<T: Half> Task<T> for Problem<T> {
    fn with_terms(self, sink: Option<Tensor>, bias: Option<Tensor>) -> Result<Self, ProblemError> {
        let terms = Terms::new(&self.sizes, sink, bias)?;
        Ok(Problem { terms, ..self })
    }

    fn check_options(&self, options: &AttentionOptions) -> ferrotile::Result<()> {
        self.options(options).check(self.sizes.head_dim)
    }

    fn out_shape(&self) -> Vec<usize> {
        Problem::out_shape(self).to_vec()
    }

    fn lse_shape(&self) -> Vec<usize> {
        vec![self.sizes.batch, self.sizes.q_heads, self.sizes.q_len]
    }

    fn solve_on_card(&self, gpu: &Gpu, options: &AttentionOptions) -> ferrotile::Result<(Solution<T>, String)> {
        on_card::solve(gpu, self, options)
    }

    fn solve_on_cpu(&self, options: &AttentionOptions) -> Solution<T> {
        Problem::solve_on_cpu(self, options)
    }

    fn check(&self, solution: &Solution<T>, options: &AttentionOptions) -> Checked {
        Checked::new(&solution.out, &self.exact(options))
    }
}

/// The largest error of O against f64, and the largest that a kernel may have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Checked {
    error: f64,
    limit: f64,
    /// Whether the error is accepted.
    holds: bool,
}

impl Checked {
    /// Of O without a row: nothing is wrong with it.
    pub(crate) const OF_NOTHING: Checked = Checked { error: 0.0, limit: 0.0, holds: true };

    pub(crate) fn new<T: Half>(out: &[T], exact: &Exact) -> Checked {
        let error = tolerance::max_error(out, &exact.out);
        Checked { error, limit: exact.limit, holds: exact.accepts(error) }
    }

    /// The one that does not hold, or comes nearer to its limit.
    pub(crate) fn worse(self, other: Checked) -> Checked {
        let is_worse = match (self.holds, other.holds) {
            (true, true) => other.error / other.limit > self.error / self.limit,
            (holds, _) => holds,
        };
        if is_worse { other } else { self }
    }
}

/// A number as options take it.
pub(crate) fn finite(text: &str) -> Result<f32, &'static str> {
    text.parse().ok().filter(|scale: &f32| scale.is_finite()).ok_or("expected a finite number")
}

impl InputArgs {
    /// Reads Q, K and V; `None` where no file is named.
    pub(crate) fn read(&self) -> Result<Option<[Tensor; 3]>, FileError> {
        if let Some(path) = &self.safetensors {
            return tensor::read_safetensors(path, ["q", "k", "v"]).map(Some);
        }
        let (Some(q), Some(k), Some(v)) = (&self.q, &self.k, &self.v) else { return Ok(None) };
        let read = |path: &Path| tensor::read_npy(path);
        Ok(Some([read(q)?, read(k)?, read(v)?]))
    }

    /// The files that are named.
    fn paths(&self) -> impl Iterator<Item = &Path> {
        [&self.q, &self.k, &self.v, &self.safetensors].into_iter().flatten().map(PathBuf::as_path)
    }
}

impl TermsArgs {
    /// The files that are named.
    fn paths(&self) -> impl Iterator<Item = &Path> {
        [&self.sink, &self.bias].into_iter().flatten().map(PathBuf::as_path)
    }
}

impl LengthsArgs {
    /// Reads where rows and keys start; `None` where all sequences are as long.
    fn read(&self) -> Result<Option<[StartsFile; 2]>, FileError> {
        let Some(q) = &self.cu_seqlens_q else { return Ok(None) };
        let q = StartsFile::read(q)?;
        let k = self.cu_seqlens_k.as_deref().map_or_else(|| Ok(q.clone()), StartsFile::read)?;
        Ok(Some([q, k]))
    }

    /// The files that are named.
    fn paths(&self) -> impl Iterator<Item = &Path> {
        [&self.cu_seqlens_q, &self.cu_seqlens_k].into_iter().flatten().map(PathBuf::as_path)
    }
}

impl HowArgs {
    /// The options of the library.
    pub(crate) fn options(&self, variant: Option<String>) -> AttentionOptions {
        let layout = match self.layout {
            LayoutName::Bhsd => Layout::Bhsd,
            LayoutName::Bshd => Layout::Bshd,
        };
        AttentionOptions { mask: self.mask, scale: self.scale, variant, ..AttentionOptions::new(layout) }
    }

    /// The element type asked for.
    pub(crate) fn dtype(&self) -> Option<Dtype> {
        self.dtype.map(|name| match name {
            DtypeName::F16 => Dtype::F16,
            DtypeName::Bf16 => Dtype::Bf16,
        })
    }

    /// Checks the tensors and converts them as asked.
    pub(crate) fn problem(&self, tensors: [Tensor; 3]) -> Result<AnyProblem, ProblemError> {
        AnyProblem::new(tensors, self.options(None).layout, self.dtype())
    }
}

/// Reads, computes, checks and writes, in this order.
pub(crate) fn run(args: &AttentionArgs) -> anyhow::Result<()> {
    let tensors = args.input.read()?.ok_or(NoInput)?;
    let Some(starts) = args.lengths.read()? else {
        return match args.how.problem(tensors)? {
            AnyProblem::F16(problem) => run_typed(args, problem),
            AnyProblem::Bf16(problem) => run_typed(args, problem),
        };
    };
    match element_type(&tensors, args.how.dtype())? {
        Dtype::Bf16 => run_typed(args, Sequences::<bf16>::new(tensors, starts.each_ref())?),
        _ => run_typed(args, Sequences::<f16>::new(tensors, starts.each_ref())?),
    }
}

fn run_typed<T: Half>(args: &AttentionArgs, task: impl Task<T>) -> anyhow::Result<()> {
    let [sink, bias] =
        [&args.terms.sink, &args.terms.bias].map(|path| path.as_deref().map(tensor::read_npy).transpose());
    let task = task.with_terms(sink?, bias?)?;
    let out_file = OutputFile::plan(&args.out, T::DTYPE.name())?;
    let lse_file = args.lse.as_ref().map(|path| OutputFile::plan(path, "f32")).transpose()?;
    if args.lse.as_ref().is_some_and(|lse| out_file.replaces(lse)) {
        return Err(FileError::Output { path: args.out.clone(), reason: "--out and --lse are the same file" }.into());
    }
    for input in args.input.paths().chain(args.terms.paths()).chain(args.lengths.paths()) {
        if out_file.replaces(input) || lse_file.as_ref().is_some_and(|lse| lse.replaces(input)) {
            return Err(FileError::Output { path: input.to_owned(), reason: "an input cannot be an output too" }.into());
        }
    }
    let softcap = args.terms.softcap;
    let options = AttentionOptions { softcap, ..args.how.options(args.variant.clone()) };
    task.check_options(&options)?;
    let solution = solve(&args.device, &task, &options)?;
    let checked = args.check.then(|| check(&task, &solution, &options)).transpose()?;
    let out = Tensor { shape: task.out_shape(), elements: T::elements(solution.out) };
    let lse = Tensor { shape: task.lse_shape(), elements: Elements::F32(solution.lse) };
    // Both files are complete before either gets its name.
    let written = out_file.write("o", &out)?;
    let lse_written = lse_file.as_ref().map(|file| file.write("lse", &lse)).transpose()?;
    written.publish()?;
    lse_written.map_or(Ok(()), |lse| lse.publish())?;
    if let Some(line) = checked {
        writeln!(io::stdout(), "{line}")?;
    }
    Ok(())
}

/// Compares O with the f64 reference; the line that says how far it is.
fn check<T: Half>(
    task: &impl Task<T>,
    solution: &Solution<T>,
    options: &AttentionOptions,
) -> Result<String, CheckFailed> {
    let Checked { error, limit, holds } = task.check(solution, options);
    if !holds {
        return Err(CheckFailed { error, limit });
    }
    Ok(format!("largest error against f64: {error:.3e}, tolerance: {limit:.3e}"))
}

fn solve<T: Half>(
    device: &DeviceChoice,
    task: &impl Task<T>,
    options: &AttentionOptions,
) -> anyhow::Result<Solution<T>> {
    match device.open()? {
        Device::Gpu(gpu) => {
            let (solution, kernel) = task.solve_on_card(&gpu, options)?;
            eprintln!("{kernel} on {}", gpu.name());
            Ok(solution)
        }
        Device::Cpu if options.variant.is_some() => Err(ProblemError::VariantOnCpu.into()),
        Device::Cpu => {
            device.announce_cpu();
            Ok(task.solve_on_cpu(options))
        }
    }
}
