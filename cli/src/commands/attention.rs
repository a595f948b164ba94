//! `ferrotile attention`: attention on tensors from files.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use ferrotile::{Accumulation, Dtype, F8E4M3, Layout, Mask};
use half::{bf16, f16};
use serde::Serialize;

use crate::device::RunArgs;
use crate::files::convert::Converter;
use crate::files::input::{self, FileError, Input, SizesError, file_of, listed_shapes};
use crate::files::npy::Opaque;
use crate::files::output::OutputFile;
use crate::files::tensor::{Elements, Half, Stored, Tensor};
use crate::json::{JsonArgs, RunFacts, WrittenTensor};
use crate::problems::attention::{HostAttention, TermFiles, element_type, looks_like_bshd};
use crate::problems::cu_seqlens::CuSeqlensFile;
use crate::problems::descale::{FactorSource, Sharing};
use crate::problems::error::AttentionError;
use crate::problems::request::Request;
use crate::problems::task::Task;
use crate::problems::varlen::HostVarlen;
use crate::problems::verdict::{Checked, Comparison, NotFinite};
use crate::spelling::{LayoutName, finite, in_any_case};

/// What helps where O is not finite.
const CURE: &str = "scale q or k, or give --scale";

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
    fp8: Fp8Args,
    #[command(flatten)]
    lengths: LengthsArgs,
    /// Where O is written: .npy (f16), .safetensors (f16 or bf16, tensor `o`), or - (.npy on stdout).
    #[arg(long)]
    out: PathBuf,
    /// Where the f32 log-sum-exp [batch, heads, rows], or [heads, rows of all], is written: .npy or .safetensors
    /// (tensor `lse`).
    #[arg(long)]
    lse: Option<PathBuf>,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    json: JsonArgs,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct AttentionResult {
    #[serde(flatten)]
    run: RunFacts,
    /// The sizes, in words.
    problem: String,
    mask: String,
    dtype: &'static str,
    out: WrittenTensor,
    lse: Option<WrittenTensor>,
    notes: Vec<String>,
    /// The comparisons with f64 that `--check` asks for.
    check: Vec<Comparison>,
}

/// The files of Q, K and V: NPY or safetensors, of which FILE.safetensors:NAME names a tensor.
#[derive(Debug, Args)]
pub(crate) struct InputArgs {
    /// File of Q.
    #[arg(long, requires_all = ["k", "v"])]
    q: Option<PathBuf>,
    /// File of K.
    #[arg(long, requires_all = ["q", "v"])]
    k: Option<PathBuf>,
    /// File of V.
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
    /// File [query heads] of the score of a key that every row of a head sees and whose value is 0.
    #[arg(long)]
    sink: Option<PathBuf>,
    /// File of what is added to scaled and capped scores: floats, which are converted to the type of O, or bool, true
    /// where a key is visible; [batch, query heads, rows, keys], of which any may be 1 and the first ones may be left
    /// out.
    #[arg(long)]
    bias: Option<PathBuf>,
}

/// What inputs of e4m3 and u8 have beside those of other types.
#[derive(Debug, Args)]
pub(crate) struct Fp8Args {
    /// File of what elements of Q are multiplied by: a number, [heads] or [batch, heads], of which each may be 1. Heads
    /// of Q may have factors of their own, or those of the heads of K.
    #[arg(long, value_name = "FILE")]
    descale_q: Option<PathBuf>,
    /// The same for K, by its heads.
    #[arg(long, value_name = "FILE")]
    descale_k: Option<PathBuf>,
    /// The same for V, by its heads.
    #[arg(long, value_name = "FILE")]
    descale_v: Option<PathBuf>,
    /// Divide the elements by factors before they are converted, so that the largest magnitude of each tensor, or of
    /// each head of a batch entry, becomes 448; kernels multiply by these factors.
    #[arg(long, value_enum, ignore_case = true, conflicts_with_all = ["descale_q", "descale_k", "descale_v"])]
    quantize: Option<SharingName>,
    /// The type of O [default: f16 for q, k and v of e4m3 or u8, else their own].
    #[arg(long, value_enum, ignore_case = true)]
    out_dtype: Option<OutDtypeName>,
    /// Sum P V of e4m3 in the tensor cores alone.
    #[arg(long)]
    direct: bool,
}

/// Which elements share a factor, as options spell it.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum SharingName {
    Tensor,
    Head,
}

/// A type of O as options spell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OutDtypeName {
    F16,
    Bf16,
}

/// Sequences of several lengths.
#[derive(Debug, Args)]
pub(crate) struct LengthsArgs {
    /// File of integers [sequences + 1] of the row where each sequence starts, and the end of the last one: Q,
    /// K and V are then [rows or keys of all sequences, heads, head dimension], sequence after sequence.
    #[arg(long, value_name = "FILE", conflicts_with = "layout")]
    cu_seqlens_q: Option<PathBuf>,
    /// The same for K and V [default: as for Q].
    #[arg(long, value_name = "FILE", requires = "cu_seqlens_q")]
    cu_seqlens_k: Option<PathBuf>,
}

/// How the tensors are read and attention is computed.
#[derive(Debug, Args)]
pub(crate) struct HowArgs {
    /// Which keys a row sees: full, causal or window:LEFT,RIGHT (aligned at the last row and key).
    #[arg(long, default_value = "full", value_parser = in_any_case::<Mask>)]
    mask: Mask,
    /// What scores are multiplied by [default: 1 / sqrt(head dimension)].
    #[arg(long, allow_hyphen_values = true, value_parser = finite)]
    scale: Option<f32>,
    /// What the dimensions of the tensors are: batch, heads, sequence (rows), head dimension [default: bhsd].
    #[arg(long, value_enum, ignore_case = true)]
    layout: Option<LayoutName>,
    /// Convert the elements to this type first, integers among them; with bf16 or e4m3, NPY files of ml_dtypes are read
    /// as such. The integer q of u8 stands for (q / 127.5 - 1) * 448 times its factor.
    #[arg(long, value_enum, ignore_case = true)]
    dtype: Option<DtypeName>,
    /// Convert elements that are then infinite or 0, and say how many, instead of refusing them.
    #[arg(long)]
    pub(crate) allow_overflow: bool,
}

/// An element type as options spell it.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum DtypeName {
    F16,
    Bf16,
    E4m3,
    U8,
}

/// No file of inputs is named.
#[derive(Debug, thiserror::Error)]
#[error("give --q, --k and --v, or --safetensors")]
pub(crate) struct NoInput;

impl InputArgs {
    /// Reads Q, K and V; `None` where no file is named.
    pub(crate) fn read(&self, how: &HowArgs) -> Result<Option<[Input; 3]>, FileError> {
        if let Some(path) = &self.safetensors {
            return input::read_all(path, ["q", "k", "v"]).map(Some);
        }
        let (Some(q), Some(k), Some(v)) = (&self.q, &self.k, &self.v) else { return Ok(None) };
        let read = |path, name| input::read(path, name, how.opaque());
        Ok(Some([read(q, "q")?, read(k, "k")?, read(v, "v")?]))
    }

    /// The files that are named.
    fn paths(&self) -> impl Iterator<Item = &Path> {
        [&self.q, &self.k, &self.v, &self.safetensors].into_iter().flatten().map(PathBuf::as_path)
    }
}

impl TermsArgs {
    /// Reads sinks and bias.
    fn read(&self, how: &HowArgs) -> Result<TermFiles, FileError> {
        let read = |path: &Option<PathBuf>, name| {
            path.as_deref().map(|path| input::read(path, name, how.opaque())).transpose()
        };
        let factors = FactorSource::None;
        Ok(TermFiles { factors, sink: read(&self.sink, "sink")?, bias: read(&self.bias, "bias")? })
    }

    /// The files that are named.
    fn paths(&self) -> impl Iterator<Item = &Path> {
        [&self.sink, &self.bias].into_iter().flatten().map(PathBuf::as_path)
    }
}

impl Fp8Args {
    /// Reads the factors.
    fn read(&self, how: &HowArgs) -> Result<FactorSource, FileError> {
        match self.quantize {
            Some(SharingName::Tensor) => return Ok(FactorSource::Computed(Sharing::Tensor)),
            Some(SharingName::Head) => return Ok(FactorSource::Computed(Sharing::Head)),
            None => {}
        }
        let read = |path: &Option<PathBuf>, name| {
            path.as_deref().map(|path| input::read(path, name, how.opaque())).transpose()
        };
        let (q, k, v) = (&self.descale_q, &self.descale_k, &self.descale_v);
        if self.paths().next().is_none() {
            return Ok(FactorSource::None);
        }
        let files = [read(q, "descale_q")?, read(k, "descale_k")?, read(v, "descale_v")?];
        Ok(FactorSource::Files(Box::new(files)))
    }

    /// The files that are named.
    fn paths(&self) -> impl Iterator<Item = &Path> {
        [&self.descale_q, &self.descale_k, &self.descale_v].into_iter().flatten().map(PathBuf::as_path)
    }

    /// Refuses what inputs of this type do not have.
    fn check(&self, dtype: Dtype) -> Result<(), AttentionError> {
        let own = match dtype {
            Dtype::E4M3 => return Ok(()),
            Dtype::U8 if !self.direct => return Ok(()),
            Dtype::Bf16 => OutDtypeName::Bf16,
            _ => OutDtypeName::F16,
        };
        let is_own = self.out_dtype.is_none_or(|out| out == own) && !self.direct;
        if is_own { Ok(()) } else { Err(AttentionError::OutDtype(dtype.name())) }
    }
}

impl LengthsArgs {
    /// Reads where rows and keys start; `None` where all sequences are as long.
    fn read(&self) -> Result<Option<[CuSeqlensFile; 2]>, FileError> {
        let Some(q) = &self.cu_seqlens_q else { return Ok(None) };
        let q = CuSeqlensFile::read(q, "cu_seqlens_q")?;
        let of_keys = |path: &PathBuf| CuSeqlensFile::read(path, "cu_seqlens_k");
        let k = self.cu_seqlens_k.as_ref().map_or_else(|| Ok(q.clone()), of_keys)?;
        Ok(Some([q, k]))
    }

    /// The files that are named.
    fn paths(&self) -> impl Iterator<Item = &Path> {
        [&self.cu_seqlens_q, &self.cu_seqlens_k].into_iter().flatten().map(PathBuf::as_path)
    }
}

impl HowArgs {
    /// What is asked of the library.
    pub(crate) fn request(&self, kernel: Option<String>) -> Request {
        let mut request = Request::new(self.layout()).of_kernel(kernel);
        (request.params.mask, request.params.scale) = (self.mask, self.scale);
        request
    }

    /// The layout of the tensors.
    fn layout(&self) -> Layout {
        self.layout.map_or(Layout::Bhsd, Layout::from)
    }

    /// Notes that the tensors may have another layout than the default one, which nobody asked for.
    pub(crate) fn note_layout(&self, inputs: &[Input; 3], converter: &mut Converter) {
        if self.layout.is_none()
            && let Some(note) = looks_like_bshd(inputs)
        {
            converter.note(note);
        }
    }

    /// The element type asked for.
    pub(crate) fn dtype(&self) -> Option<Dtype> {
        self.dtype.map(|name| match name {
            DtypeName::F16 => Dtype::F16,
            DtypeName::Bf16 => Dtype::Bf16,
            DtypeName::E4m3 => Dtype::E4M3,
            DtypeName::U8 => Dtype::U8,
        })
    }

    /// What elements of a type without a name are.
    fn opaque(&self) -> Opaque {
        Opaque { dtype: self.dtype().map(Dtype::name), offered: &["f16", "bf16", "e4m3"] }
    }
}

/// Reads, converts, computes, checks and writes, in this order.
pub(crate) fn run(args: &AttentionArgs) -> anyhow::Result<()> {
    let inputs = args.input.read(&args.how)?.ok_or(NoInput)?;
    let dtype = element_type(&inputs, args.how.dtype())?;
    args.fp8.check(dtype)?;
    match (dtype, args.fp8.out_dtype) {
        (Dtype::Bf16, _) => run_typed::<bf16, bf16>(args, inputs),
        (Dtype::E4M3, Some(OutDtypeName::Bf16)) => run_typed::<F8E4M3, bf16>(args, inputs),
        (Dtype::E4M3, _) => run_typed::<F8E4M3, f16>(args, inputs),
        (Dtype::U8, Some(OutDtypeName::Bf16)) => run_typed::<u8, bf16>(args, inputs),
        (Dtype::U8, _) => run_typed::<u8, f16>(args, inputs),
        _ => run_typed::<f16, f16>(args, inputs),
    }
}

fn run_typed<T: Half, O: Stored>(args: &AttentionArgs, inputs: [Input; 3]) -> anyhow::Result<()> {
    let (cu_seqlens, terms) = (args.lengths.read()?, args.terms.read(&args.how)?);
    let terms = TermFiles { factors: args.fp8.read(&args.how)?, ..terms };
    let tensors = listed_shapes(&inputs);
    let mut converter = Converter::new(args.run.check, args.how.allow_overflow);
    match cu_seqlens {
        Some(cu_seqlens) => {
            let (task, own) = HostVarlen::<T, O>::new(inputs, terms, cu_seqlens.each_ref(), &mut converter)?;
            run_task::<T, O, _>(args, &task, own, &tensors, converter)
        }
        None => {
            args.how.note_layout(&inputs, &mut converter);
            let (task, own) = HostAttention::<T, O>::new(inputs, terms, args.how.layout(), &mut converter)?;
            run_task::<T, O, _>(args, &task, own, &tensors, converter)
        }
    }
}

fn run_task<T: Half, O: Stored, P: Task<T, O>>(
    args: &AttentionArgs,
    task: &P,
    own: Option<P::Own>,
    tensors: &str,
    converter: Converter,
) -> anyhow::Result<()> {
    let (out_file, lse_file) = output_files(args, O::DTYPE)?;
    let mut request = args.how.request(args.run.kernel.clone());
    request.params.softcap = args.terms.softcap;
    if args.fp8.direct {
        request.options.accumulation = Accumulation::Direct;
    }
    task.check_request(&request).map_err(|reason| SizesError::new(reason, tensors.to_owned()))?;
    let findings = converter.finish()?;
    let say_understood = || {
        let types = if O::DTYPE == T::DTYPE { T::DTYPE.to_string() } else { format!("{} to {}", T::DTYPE, O::DTYPE) };
        eprintln!("attention: {}, mask {}, {types}", task.understood(), request.params.mask);
        findings.print();
    };
    let (solution, run) = args.run.device.compute(
        request.options.kernel.as_ref(),
        say_understood,
        |gpu, started| task.solve_on_card(gpu, &request, started),
        || task.solve_on_cpu(&request),
    )?;
    let allow_overflow = args.how.allow_overflow;
    let verdicts = || task.check(own.as_ref(), &solution, &request);
    let checked = Checked::new(args.run.check.then_some(verdicts), allow_overflow, CURE)?;
    if findings.all_finite && !allow_overflow {
        NotFinite::check("O", &task.out_shape(), &solution.out, CURE)?;
    }
    let out = Tensor { shape: task.out_shape(), elements: O::elements(solution.out) };
    let lse = Tensor { shape: task.lse_shape(), elements: Elements::F32(solution.lse) };
    // Both files are complete before either gets its name.
    let written = out_file.write("o", &out)?;
    let lse_written = lse_file.as_ref().map(|file| file.write("lse", &lse)).transpose()?;
    written.publish()?;
    lse_written.map_or(Ok(()), |lse| lse.publish())?;
    let result = AttentionResult {
        run,
        problem: task.understood(),
        mask: request.params.mask.to_string(),
        dtype: T::DTYPE.name(),
        out: WrittenTensor::new(&args.out, &out),
        lse: args.lse.as_ref().map(|path| WrittenTensor::new(path, &lse)),
        notes: findings.notes,
        check: checked.comparisons,
    };
    let outputs = [&out_file].into_iter().chain(&lse_file);
    Ok(args.json.print_beside(outputs, &result, |_| checked.text)?)
}

/// Where O and the LSE are written: to files of their own.
fn output_files(args: &AttentionArgs, dtype: Dtype) -> Result<(OutputFile, Option<OutputFile>), FileError> {
    let out_file = OutputFile::plan(&args.out, dtype.name())?;
    let lse_file = args.lse.as_ref().map(|path| OutputFile::plan(path, "f32")).transpose()?;
    if args.lse.as_ref().is_some_and(|lse| out_file.replaces(lse)) {
        return Err(FileError::Output { path: args.out.clone(), reason: "--out and --lse are the same file" });
    }
    for file in [Some(&out_file), lse_file.as_ref()].into_iter().flatten() {
        let terms = args.terms.paths().chain(args.fp8.paths()).chain(args.lengths.paths());
        file.check_inputs(args.input.paths().chain(terms).map(file_of))?;
    }
    Ok((out_file, lse_file))
}
