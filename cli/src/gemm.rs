//! `ferrotile gemm`: matrix products of tensors from files.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ferrotile::reference::{self, GemmTerms};
use ferrotile::{
    Accumulation, Activation, Buffer, F8E4M3, Float, GemmLayout, GemmOptions, GemmPlan, GemmProblem, GemmTensors, Gpu,
    TensorMut, TensorRef, tolerance,
};
use half::{bf16, f16};
use layout::descriptor::Major;
use ndarray::{Array3, ArrayView3};

use crate::attention::CheckFailed;
use crate::device::{Device, DeviceChoice};
use crate::tensor::{self, Elements, FileError, OutputFile, Tensor};

/// Workspace that a plan may use.
const WORKSPACE_BYTES: usize = 256 << 20;

/// Computes D = activation(alpha * A B + beta * C) on matrices [rows, columns] or batches [batch, rows, columns] from
/// NPY files.
#[derive(Debug, Args)]
pub(crate) struct GemmArgs {
    /// NPY file of A: m x k, or k x m where the layout says t.
    #[arg(long)]
    a: PathBuf,
    /// NPY file of B: k x n, or n x k where the layout says t.
    #[arg(long)]
    b: PathBuf,
    /// NPY file of C: m x n.
    #[arg(long)]
    c: Option<PathBuf>,
    /// Where D is written: .npy (f16, f32) or .safetensors (bf16 and e4m3 too, tensor `d`).
    #[arg(long)]
    out: PathBuf,
    /// What the product is multiplied by.
    #[arg(long, default_value_t = 1.0, allow_hyphen_values = true)]
    alpha: f32,
    /// What C is multiplied by [default: 1 where C is given, else 0].
    #[arg(long, allow_hyphen_values = true, requires = "c")]
    beta: Option<f32>,
    /// How A and B are stored: n as the formula has it, t transposed; first A, then B.
    #[arg(long, default_value = "nn")]
    layout: GemmLayout,
    /// What is applied to each element.
    #[arg(long, value_enum, default_value = "none")]
    activation: ActivationName,
    /// Convert the elements of A and B to this type first.
    #[arg(long, value_enum)]
    dtype: Option<InputDtype>,
    /// The type of C and D [default: that of A and B; f16 for e4m3].
    #[arg(long, value_enum)]
    out_dtype: Option<OutputDtype>,
    /// Sum FP8 products in the tensor cores alone.
    #[arg(long)]
    direct: bool,
    /// The kernel to run, by name; `ferrotile info` lists them.
    #[arg(long)]
    variant: Option<String>,
    /// Also compute D in f64 on the CPU, print the largest error, and fail if it is too large.
    #[arg(long)]
    check: bool,
    /// Where to run: auto (a card, or the CPU reference where there is none), cpu, cuda, cuda:N, emulator or
    /// emulator:ARCH.
    #[arg(long, default_value = "auto")]
    device: DeviceChoice,
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
    /// Of FP8 operands alone.
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
        tensor: &'static str,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// Elements that the kernels do not read.
    #[error(
        "A has elements of type {a} and B of type {b}; kernels read f16, bf16 and e4m3: give --dtype to convert them"
    )]
    NeedsDtype {
        /// Type of A.
        a: &'static str,
        /// Type of B.
        b: &'static str,
    },
    /// A kernel named where there is none.
    #[error("--variant names a kernel of the GPU, but this runs on the CPU")]
    VariantOnCpu,
}

/// An element type of D.
trait Stored: Float + Into<f64> {
    /// Elements of this type for a file.
    fn elements(values: Vec<Self>) -> Elements;
}

impl Stored for f16 {
    fn elements(values: Vec<f16>) -> Elements {
        Elements::F16(values)
    }
}

impl Stored for bf16 {
    fn elements(values: Vec<bf16>) -> Elements {
        Elements::Bf16(values)
    }
}

impl Stored for f32 {
    fn elements(values: Vec<f32>) -> Elements {
        Elements::F32(values)
    }
}

impl Stored for F8E4M3 {
    fn elements(values: Vec<F8E4M3>) -> Elements {
        Elements::E4m3(values.into_iter().map(F8E4M3::to_bits).collect())
    }
}

/// A batch of matrices in f64, as they are stored.
struct Matrices {
    values: Array3<f64>,
    /// Whether the file has no batch dimension.
    single: bool,
}

impl Matrices {
    fn new(tensor: &'static str, file: Tensor) -> Result<Matrices, GemmError> {
        let shape = match *file.shape.as_slice() {
            [rows, columns] => [1, rows, columns],
            [batch, rows, columns] => [batch, rows, columns],
            _ => return Err(GemmError::Rank { tensor, shape: file.shape }),
        };
        let values =
            Array3::from_shape_vec(shape, file.elements.into_f64()).expect("a file has an element for each index");
        Ok(Matrices { values, single: file.shape.len() == 2 })
    }

    /// The elements rounded to a type.
    fn rounded<T: Float>(&self) -> Vec<T> {
        self.values.iter().map(|&value| T::from_f64(value)).collect()
    }
}

/// Reads, computes, checks and writes, in this order.
pub(crate) fn run(args: &GemmArgs) -> anyhow::Result<()> {
    let (a, b) = (tensor::read_npy(&args.a)?, tensor::read_npy(&args.b)?);
    let names = (a.elements.dtype_name(), b.elements.dtype_name());
    let dtype = match (args.dtype, names) {
        (Some(dtype), _) => dtype,
        (None, ("f16", "f16")) => InputDtype::F16,
        (None, (a, b)) => return Err(GemmError::NeedsDtype { a, b }.into()),
    };
    let (a, b) = (Matrices::new("A", a)?, Matrices::new("B", b)?);
    let c = args.c.as_ref().map(|path| tensor::read_npy(path)).transpose()?;
    let c = c.map(|c| Matrices::new("C", c)).transpose()?;
    let out_dtype = args.out_dtype.unwrap_or(match dtype {
        InputDtype::Bf16 => OutputDtype::Bf16,
        InputDtype::F16 | InputDtype::E4m3 => OutputDtype::F16,
    });
    match dtype {
        InputDtype::F16 => run_input::<f16>(args, &a, &b, c.as_ref(), out_dtype),
        InputDtype::Bf16 => run_input::<bf16>(args, &a, &b, c.as_ref(), out_dtype),
        InputDtype::E4m3 => run_input::<F8E4M3>(args, &a, &b, c.as_ref(), out_dtype),
    }
}

fn run_input<T: Float>(
    args: &GemmArgs,
    a: &Matrices,
    b: &Matrices,
    c: Option<&Matrices>,
    out_dtype: OutputDtype,
) -> anyhow::Result<()> {
    match out_dtype {
        OutputDtype::F16 => run_typed::<T, f16>(args, a, b, c),
        OutputDtype::Bf16 => run_typed::<T, bf16>(args, a, b, c),
        OutputDtype::F32 => run_typed::<T, f32>(args, a, b, c),
        OutputDtype::E4m3 => run_typed::<T, F8E4M3>(args, a, b, c),
    }
}

impl GemmArgs {
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
            variant: self.variant.clone(),
            max_workspace_bytes: WORKSPACE_BYTES,
            ..GemmOptions::new(self.layout)
        }
    }

    /// The problem that matrices of these shapes are.
    fn problem<T: Float, D: Float>(
        &self,
        a: &Matrices,
        b: &Matrices,
        c: Option<&Matrices>,
    ) -> ferrotile::Result<GemmProblem> {
        let rows_and_columns = |matrices: &Matrices, as_is: bool| {
            let (batch, rows, columns) = matrices.values.dim();
            if as_is { (batch, rows, columns) } else { (batch, columns, rows) }
        };
        let (batch, m, k) = rows_and_columns(a, self.layout.a() == Major::K);
        let (_, _, n) = rows_and_columns(b, self.layout.b() == Major::Mn);
        let problem = GemmProblem { batch, ..GemmProblem::new([m, n, k], T::DTYPE, T::DTYPE, D::DTYPE) };
        let check = |tensor, got: &Matrices, expected: [usize; 3]| {
            if got.values.shape() == expected {
                return Ok(());
            }
            let got = got.values.shape().to_vec();
            Err(ferrotile::Error::Shape { op: "gemm", tensor, got, expected: expected.to_vec() })
        };
        check("B", b, problem.b_shape(self.layout))?;
        c.map_or(Ok(()), |c| check("C", c, problem.d_shape()))?;
        problem.check()?;
        Ok(problem)
    }
}

fn run_typed<T: Float, D: Stored>(
    args: &GemmArgs,
    a: &Matrices,
    b: &Matrices,
    c: Option<&Matrices>,
) -> anyhow::Result<()> {
    let out_file = OutputFile::plan(&args.out, D::DTYPE.name())?;
    for input in [&args.a, &args.b].into_iter().chain(&args.c) {
        if out_file.replaces(input) {
            return Err(FileError::Output { path: input.clone(), reason: "an input cannot be an output too" }.into());
        }
    }
    let (options, problem) = (args.options(), args.problem::<T, D>(a, b, c)?);
    options.check()?;
    let host = HostGemm { problem, a: a.rounded::<T>(), b: b.rounded::<T>(), c: c.map(Matrices::rounded::<D>) };
    let d = match args.device.open()? {
        Device::Gpu(gpu) => host.on_card(&gpu, &options)?,
        Device::Cpu if options.variant.is_some() => return Err(GemmError::VariantOnCpu.into()),
        Device::Cpu => {
            args.device.announce_cpu();
            host.on_cpu(&options)
        }
    };
    let checked = args.check.then(|| host.check(&options, &d)).transpose()?;
    let single = a.single && b.single;
    let shape = if single { vec![problem.m, problem.n] } else { problem.d_shape().to_vec() };
    out_file.write("d", &Tensor { shape, elements: D::elements(d) })?.publish()?;
    if let Some(line) = checked {
        writeln!(io::stdout(), "{line}")?;
    }
    Ok(())
}

/// A product in host memory.
struct HostGemm<T, D> {
    problem: GemmProblem,
    a: Vec<T>,
    b: Vec<T>,
    c: Option<Vec<D>>,
}

impl<T: Float, D: Stored> HostGemm<T, D> {
    /// Calls `body` with A and B in the order of the formula and what follows the product, all in f64.
    fn wide<R>(
        &self,
        options: &GemmOptions,
        body: impl FnOnce(ArrayView3<'_, f64>, ArrayView3<'_, f64>, &GemmTerms<'_>) -> R,
    ) -> R {
        let array = |values: Vec<f64>, shape: [usize; 3], transposed: bool| {
            let array = Array3::from_shape_vec(shape, values).expect("elements fill the shape");
            if transposed { array.permuted_axes([0, 2, 1]) } else { array }
        };
        let wide = |values: &[T]| values.iter().map(|x| x.to_f64()).collect::<Vec<f64>>();
        let layout = options.layout;
        let a = array(wide(&self.a), self.problem.a_shape(layout), layout.a() == Major::Mn);
        let b = array(wide(&self.b), self.problem.b_shape(layout), layout.b() == Major::K);
        let c = self.c.as_ref().map(|c| array(c.iter().map(|x| x.to_f64()).collect(), self.problem.d_shape(), false));
        let terms = GemmTerms {
            alpha: options.alpha.into(),
            beta: options.beta.into(),
            c: c.as_ref().filter(|_| options.beta != 0.0).map(|c| c.view()),
            activation: options.activation,
            ..GemmTerms::default()
        };
        body(a.view(), b.view(), &terms)
    }

    fn on_cpu(&self, options: &GemmOptions) -> Vec<D> {
        let d = self.wide(options, |a, b, terms| reference::gemm_rounded(a, b, terms, D::DTYPE));
        d.into_iter().map(D::from_f64).collect()
    }

    fn on_card(&self, gpu: &Gpu, options: &GemmOptions) -> ferrotile::Result<Vec<D>> {
        let stream = gpu.new_stream()?;
        let (a, b) = (Buffer::upload_blocking(&stream, &self.a)?, Buffer::upload_blocking(&stream, &self.b)?);
        let c = self.c.as_ref().map(|c| Buffer::upload_blocking(&stream, c)).transpose()?;
        let mut d = Buffer::<D>::zeroed(gpu, self.problem.d_shape().iter().product())?;
        let tensors = GemmTensors::new(
            TensorRef::contiguous(&a, self.problem.a_shape(options.layout))?,
            TensorRef::contiguous(&b, self.problem.b_shape(options.layout))?,
            TensorMut::contiguous(&mut d, self.problem.d_shape())?,
        );
        let c = c.as_ref().map(|c| TensorRef::contiguous(c, self.problem.d_shape())).transpose()?;
        let tensors = GemmTensors { c, ..tensors };
        let plan = GemmPlan::new(gpu, &GemmProblem::of(&tensors, options.layout)?, options)?;
        let mut workspace = Buffer::<u8>::zeroed(gpu, plan.workspace_bytes())?;
        let bytes = workspace.len();
        plan.run(stream.as_ref(), tensors, Some(TensorMut::contiguous(&mut workspace, [bytes])?))?;
        let values = d.download_blocking(&stream)?;
        eprintln!("{plan} on {}", gpu.name());
        Ok(values)
    }

    /// Compares D with the f64 reference; the line that says how far it is.
    fn check(&self, options: &GemmOptions, d: &[D]) -> Result<String, CheckFailed> {
        let (exact, limit) = self.wide(options, |a, b, terms| {
            let exact: Vec<f64> = reference::gemm(a, b, terms).into_iter().collect();
            let rounded: Vec<f64> = reference::gemm_rounded(a, b, terms, D::DTYPE).into_iter().collect();
            let cost = tolerance::max_error(&rounded, &exact);
            let magnitude = reference::gemm_magnitude(a, b, terms, [self.problem.a, self.problem.b]);
            (exact, tolerance::gemm_limit(&self.problem, options.accumulation, cost, magnitude))
        });
        let error = tolerance::max_error(d, &exact);
        // An infinite error is none that may be, though the limit is infinite where sums overflow the f32 of the
        // kernels.
        if error.is_finite() && error <= limit {
            Ok(format!("largest error against f64: {error:.3e}, tolerance: {limit:.3e}"))
        } else {
            Err(CheckFailed { error, limit })
        }
    }
}
