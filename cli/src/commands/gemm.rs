//! `ferrotile gemm`: matrix products of tensors from files.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use ferrotile::{Accumulation, Activation, Dtype, F8E4M3, Float, GemmLayout, GemmOptions, GemmProblem};
use half::{bf16, f16};
use layout::descriptor::Major;
use serde::Serialize;

use crate::device::RunArgs;
use crate::files::convert::Converter;
use crate::files::input::{self, Input, Origin, SizesError, file_of, listed_shapes};
use crate::files::npy::Opaque;
use crate::files::output::OutputFile;
use crate::files::tensor::{Stored, Tensor};
use crate::json::{JsonArgs, RunFacts, WrittenTensor};
use crate::problems::gemm::{HostGemm, Operands};
use crate::problems::verdict::{Checked, Comparison, NotFinite};
use crate::spelling::in_any_case;

/// Workspace that a plan may use.
const WORKSPACE_BYTES: usize = 256 << 20;

/// Computes D = activation(alpha * A B + beta * C) on matrices [rows, columns] or batches [batch, rows, columns] from
/// NPY or safetensors files; FILE.safetensors:NAME names a tensor.
#[derive(Debug, Args)]
pub(crate) struct GemmArgs {
    /// File of A: m x k, or k x m where the layout says t.
    #[arg(long)]
    a: PathBuf,
    /// File of B: k x n, or n x k where the layout says t.
    #[arg(long)]
    b: PathBuf,
    /// File of C: m x n.
    #[arg(long)]
    c: Option<PathBuf>,
    /// Where D is written: .npy (f16, f32), .safetensors (bf16 and e4m3 too, tensor `d`), or - (.npy on stdout).
    #[arg(long)]
    out: PathBuf,
    /// What the product is multiplied by.
    #[arg(long, default_value_t = 1.0, allow_hyphen_values = true)]
    alpha: f32,
    /// What C is multiplied by [default: 1 where C is given, else 0].
    #[arg(long, allow_hyphen_values = true, requires = "c")]
    beta: Option<f32>,
    /// How A and B are stored: n as the formula has it, t transposed; first A, then B.
    #[arg(long, default_value = "nn", value_parser = in_any_case::<GemmLayout>)]
    layout: GemmLayout,
    /// What is applied to each element.
    #[arg(long, value_enum, default_value = "none", ignore_case = true)]
    activation: ActivationName,
    /// Convert the elements of A and B to this type first, integers among them; with bf16 or e4m3, NPY files of
    /// ml_dtypes are read as such.
    #[arg(long, value_enum, ignore_case = true)]
    dtype: Option<InputDtype>,
    /// The type of C and D [default: that of A and B; f16 for e4m3].
    #[arg(long, value_enum, ignore_case = true)]
    out_dtype: Option<OutputDtype>,
    /// Convert elements that are then infinite, cut off or 0, and say how many, instead of refusing them; and accept
    /// elements of D beyond its type.
    #[arg(long)]
    allow_overflow: bool,
    /// Sum FP8 products in the tensor cores alone.
    #[arg(long)]
    direct: bool,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    json: JsonArgs,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct GemmResult {
    #[serde(flatten)]
    run: RunFacts,
    batch: usize,
    m: usize,
    n: usize,
    k: usize,
    layout: String,
    dtype: &'static str,
    out: WrittenTensor,
    notes: Vec<String>,
    /// The comparisons with f64 that `--check` asks for.
    check: Vec<Comparison>,
}

/// A type of A and B as options spell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum InputDtype {
    F16,
    Bf16,
    E4m3,
}

/// A type of D as options spell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OutputDtype {
    F16,
    Bf16,
    F32,
    /// For FP8 operands alone.
    E4m3,
}

/// An activation as options spell it.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum ActivationName {
    None,
    Relu,
    Gelu,
    Silu,
}

/// Why matrices cannot be multiplied as asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GemmError {
    /// Not a matrix.
    #[error("{tensor} has shape {shape:?}, expected [rows, columns] or [batch, rows, columns]")]
    Rank {
        /// The tensor.
        tensor: Origin,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// Elements that the kernels do not read.
    #[error("kernels read f16, bf16 and e4m3, but {a} has {a_type} and {b} {b_type}: give --dtype to convert them")]
    NeedsDtype {
        /// A.
        a: Origin,
        /// Type of A.
        a_type: &'static str,
        /// B.
        b: Origin,
        /// Type of B.
        b_type: &'static str,
    },
}

/// A file of a batch of matrices.
struct Matrices {
    input: Input,
    shape: [usize; 3],
    /// Whether the file has no batch dimension.
    single: bool,
}

impl Matrices {
    fn new(input: Input) -> Result<Matrices, GemmError> {
        let (shape, single) = match input.tensor.shape[..] {
            [rows, columns] => ([1, rows, columns], true),
            [batch, rows, columns] => ([batch, rows, columns], false),
            _ => return Err(GemmError::Rank { tensor: input.origin, shape: input.tensor.shape }),
        };
        Ok(Matrices { input, shape, single })
    }
}

/// A, B and C of a request.
struct Inputs {
    a: Matrices,
    b: Matrices,
    c: Option<Matrices>,
}

impl Inputs {
    fn all(&self) -> impl Iterator<Item = &Input> {
        [&self.a, &self.b].into_iter().chain(&self.c).map(|matrices| &matrices.input)
    }
}

/// Reads, converts, computes, checks and writes, in this order.
pub(crate) fn run(args: &GemmArgs) -> anyhow::Result<()> {
    let (a, b) = (args.read(&args.a, "A")?, args.read(&args.b, "B")?);
    let dtype = match (args.dtype, a.tensor.elements.dtype_name(), b.tensor.elements.dtype_name()) {
        (Some(dtype), ..) => dtype,
        (None, "f16", "f16") => InputDtype::F16,
        (None, "bf16", "bf16") => InputDtype::Bf16,
        (None, "e4m3", "e4m3") => InputDtype::E4m3,
        (None, a_type, b_type) => {
            return Err(GemmError::NeedsDtype { a: a.origin, a_type, b: b.origin, b_type }.into());
        }
    };
    let c = args.c.as_ref().map(|path| args.read(path, "C")).transpose()?;
    let inputs = Inputs { a: Matrices::new(a)?, b: Matrices::new(b)?, c: c.map(Matrices::new).transpose()? };
    let out_dtype = args.out_dtype.unwrap_or(match dtype {
        InputDtype::Bf16 => OutputDtype::Bf16,
        InputDtype::F16 | InputDtype::E4m3 => OutputDtype::F16,
    });
    match dtype {
        InputDtype::F16 => run_input::<f16>(args, inputs, out_dtype),
        InputDtype::Bf16 => run_input::<bf16>(args, inputs, out_dtype),
        InputDtype::E4m3 => run_input::<F8E4M3>(args, inputs, out_dtype),
    }
}

fn run_input<T: Stored>(args: &GemmArgs, inputs: Inputs, out_dtype: OutputDtype) -> anyhow::Result<()> {
    match out_dtype {
        OutputDtype::F16 => run_typed::<T, f16>(args, inputs),
        OutputDtype::Bf16 => run_typed::<T, bf16>(args, inputs),
        OutputDtype::F32 => run_typed::<T, f32>(args, inputs),
        OutputDtype::E4m3 => run_typed::<T, F8E4M3>(args, inputs),
    }
}

impl GemmArgs {
    fn read(&self, path: &Path, name: &'static str) -> anyhow::Result<Input> {
        let dtype = self.dtype.map(|dtype| match dtype {
            InputDtype::F16 => "f16",
            InputDtype::Bf16 => "bf16",
            InputDtype::E4m3 => "e4m3",
        });
        let opaque = Opaque { dtype, offered: &["f16", "bf16", "e4m3"] };
        Ok(input::read(path, name, opaque)?)
    }

    /// The options of the library.
    fn options(&self) -> GemmOptions {
        GemmOptions {
            alpha: self.alpha,
            beta: self.beta.unwrap_or(if self.c.is_some() { 1.0 } else { 0.0 }),
            activation: match self.activation {
                ActivationName::None => Activation::None,
                ActivationName::Relu => Activation::Relu,
                ActivationName::Gelu => Activation::Gelu,
                ActivationName::Silu => Activation::Silu,
            },
            accumulation: if self.direct { Accumulation::Direct } else { Accumulation::TwoLevel },
            kernel: self.run.kernel.clone(),
            max_workspace_bytes: WORKSPACE_BYTES,
            ..GemmOptions::new(self.layout)
        }
    }

    /// The problem that matrices of these shapes are.
    fn problem<T: Float, D: Float>(&self, inputs: &Inputs) -> Result<GemmProblem, SizesError> {
        let wrong = |reason| SizesError::new(reason, listed_shapes(inputs.all()));
        let rows_and_columns = |[batch, rows, columns]: [usize; 3], as_is: bool| {
            if as_is { (batch, rows, columns) } else { (batch, columns, rows) }
        };
        let (batch, m, k) = rows_and_columns(inputs.a.shape, self.layout.a() == Major::K);
        let (_, _, n) = rows_and_columns(inputs.b.shape, self.layout.b() == Major::Mn);
        let problem = GemmProblem { batch, ..GemmProblem::new([m, n, k], T::DTYPE, T::DTYPE, D::DTYPE) };
        let check = |tensor, got: [usize; 3], expected: [usize; 3]| {
            if got == expected {
                return Ok(());
            }
            let (got, expected) = (got.to_vec(), expected.to_vec());
            Err(wrong(ferrotile::Error::Shape { op: "gemm", tensor, got, expected }))
        };
        check("B", inputs.b.shape, problem.b_shape(self.layout))?;
        inputs.c.as_ref().map_or(Ok(()), |c| check("C", c.shape, problem.d_shape()))?;
        problem.check().map_err(wrong)?;
        Ok(problem)
    }
}

/// What helps where D is beyond its type.
fn cure(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F16 => "use --out-dtype bf16 or f32, or a smaller --alpha",
        Dtype::E4M3 => "use --out-dtype f16, bf16 or f32, or a smaller --alpha",
        _ => "give a smaller --alpha, or scale A or B",
    }
}

fn run_typed<T: Stored, D: Stored>(args: &GemmArgs, inputs: Inputs) -> anyhow::Result<()> {
    let out_file = OutputFile::plan(&args.out, D::DTYPE.name())?;
    out_file.check_inputs([&args.a, &args.b].into_iter().chain(&args.c).map(|path| file_of(path)))?;
    let (options, problem) = (args.options(), args.problem::<T, D>(&inputs)?);
    options.check()?;
    let shape = match inputs.a.single && inputs.b.single {
        true => vec![problem.m, problem.n],
        false => problem.d_shape().to_vec(),
    };
    let mut converter = Converter::new(args.run.check, args.allow_overflow);
    let Inputs { a, b, c } = inputs;
    let (a, b) = (converter.convert::<T>(a.input), converter.convert::<T>(b.input));
    let c = c.map(|c| converter.convert::<D>(c.input));
    let findings = converter.finish()?;
    let own = Operands::of_files(&a, &b, c.as_ref());
    let host = HostGemm { problem, a: a.values, b: b.values, c: c.map(|c| c.values) };
    let say_understood = || {
        let GemmProblem { batch, m, n, k, .. } = problem;
        eprintln!("gemm: batch {batch}, m {m}, n {n}, k {k}, layout {}, {} to {}", options.layout, T::DTYPE, D::DTYPE);
        findings.print();
    };
    let (d, run) = args.run.device.compute(
        options.kernel.as_ref(),
        say_understood,
        |gpu, started| host.on_card(gpu, &options, started),
        || host.on_cpu(&options),
    )?;
    let cure = cure(D::DTYPE);
    let verdicts = || host.check(own.as_ref(), &options, &shape, &d);
    let checked = Checked::new(args.run.check.then_some(verdicts), args.allow_overflow, cure)?;
    if findings.all_finite && !args.allow_overflow {
        NotFinite::check("D", &shape, &d, cure)?;
    }
    let mut notes = findings.notes;
    if let Some(note) = cut_off(&d).filter(|_| !args.run.check && D::DTYPE == Dtype::E4M3) {
        eprintln!("note: {note}");
        notes.push(note);
    }
    let out = Tensor { shape, elements: D::elements(d) };
    out_file.write("d", &out)?.publish()?;
    let GemmProblem { batch, m, n, k, .. } = problem;
    let result = GemmResult {
        run,
        batch,
        m,
        n,
        k,
        layout: options.layout.to_string(),
        dtype: T::DTYPE.name(),
        out: WrittenTensor::new(&args.out, &out),
        notes,
        check: checked.comparisons,
    };
    Ok(args.json.print_beside([&out_file], &result, |_| checked.text)?)
}

/// How many elements have the largest value of a type that has no infinities, where some have.
fn cut_off<D: Float>(d: &[D]) -> Option<String> {
    let largest = D::from_f64(f64::INFINITY).to_f64();
    let count = d.iter().filter(|value| value.to_f64().abs() == largest).count();
    let (all, dtype) = (d.len(), D::DTYPE);
    (count > 0).then(|| format!("{count} of {all} elements of D are {largest}, where {dtype} ends: see --check"))
}
