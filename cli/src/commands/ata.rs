//! `ferrotile ata`: products with symmetric matrices from files.

use std::path::PathBuf;

use clap::Args;
use ferrotile::{AtaOptions, AtaPlan, Gpu, Precision, SymmetricBlockMatrix, reference, tolerance};
use ndarray::Array3;
use serde::Serialize;
use variants::ata::BLOCK;

use crate::device::RunArgs;
use crate::files::convert::{Converted, Converter};
use crate::files::input::{self, Input, Origin, file_of};
use crate::files::matrix::{self, MatrixFile};
use crate::files::npy::Opaque;
use crate::files::output::OutputFile;
use crate::files::tensor::{Elements, Tensor};
use crate::json::{JsonArgs, RunFacts, WrittenTensor};
use crate::problems::verdict::{Checked, Comparison, NotFinite, Verdict, Verdicts};
use crate::spelling::in_any_case;

/// What helps where Y is not finite.
const CURE: &str = "scale A or X";

/// Computes Y = A X with a symmetric matrix A for each channel.
#[derive(Debug, Args)]
pub(crate) struct AtaArgs {
    /// A: .npy, dense [n, n] or [channels, n, n]; or .npz, SciPy's diagonals (scipy.sparse.save_npz of a dia_array,
    /// both halves or one), or 16x16 blocks `blocks` [channels, block diagonals, block rows, 16, 16] with n from
    /// `shape` [2], if any; or .safetensors with any of these.
    #[arg(long)]
    matrix: PathBuf,
    /// NPY or safetensors file of X: [frames, channels, n], [channels, n] or [n]; FILE.safetensors:NAME names a tensor.
    #[arg(long)]
    x: PathBuf,
    /// Where Y is written, f32, of the shape of X: .npy, .safetensors (tensor `y`), or - (.npy on stdout).
    #[arg(long)]
    out: PathBuf,
    /// What is computed in: f32, tf32, tf32x3 (about as f32), f16 (scaled for each channel) or bf16.
    #[arg(long, default_value_t, value_parser = in_any_case::<Precision>)]
    precision: Precision,
    /// How far mirrored elements of A may differ, as a share of the largest of the channel.
    #[arg(long, default_value_t = 1e-6, allow_hyphen_values = true, value_parser = share)]
    symmetry_tolerance: f32,
    /// Convert elements that are then infinite or 0, and say how many, instead of refusing them.
    #[arg(long)]
    allow_overflow: bool,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    json: JsonArgs,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct AtaResult {
    #[serde(flatten)]
    run: RunFacts,
    n: usize,
    channels: usize,
    block_diagonals: usize,
    frames: usize,
    precision: &'static str,
    /// Which half of A the file has.
    half: String,
    out: WrittenTensor,
    notes: Vec<String>,
    /// The comparisons with f64 that `--check` asks for.
    check: Vec<Comparison>,
}

/// X does not fit A.
#[derive(Debug, thiserror::Error)]
#[error("{x} has shape {got:?}, expected {expected}")]
pub(crate) struct WrongVectors {
    x: Origin,
    got: Vec<usize>,
    expected: String,
}

fn share(text: &str) -> Result<f32, &'static str> {
    text.parse().ok().filter(|share: &f32| share.is_finite() && *share >= 0.0).ok_or("expected a number of at least 0")
}

/// Reads, converts, computes, checks and writes, in this order.
pub(crate) fn run(args: &AtaArgs) -> anyhow::Result<()> {
    let out_file = OutputFile::plan(&args.out, "f32")?;
    out_file.check_inputs([&args.matrix, &args.x].map(|path| file_of(path)))?;
    let mut converter = Converter::new(args.run.check, args.allow_overflow);
    let matrix = matrix::read(&args.matrix, args.symmetry_tolerance, &mut converter)?;
    let x = input::read(&args.x, "X", Opaque::REFUSED)?;
    let vectors = Vectors::new(x, &matrix.matrix, &mut converter)?;
    let findings = converter.finish()?;
    let (a, x) = (&matrix.matrix, &vectors.x);
    let say_understood = || {
        eprintln!(
            "ata: A from {}, channels {}, n {}, block diagonals {}, frames {}, precision {}",
            matrix.half,
            a.channels(),
            a.n(),
            a.block_diagonals(),
            x.dim().0,
            args.precision
        );
        findings.print();
    };
    let (y, run) = args.run.device.compute(
        args.run.kernel.as_ref(),
        say_understood,
        |gpu, started| on_card(args, gpu, a, x, started),
        || on_cpu(args, a, x),
    )?;
    let y: Vec<f32> = y.into_iter().collect();
    let shape = vectors.shape.clone();
    let verdicts = || check(&matrix, args.precision, &vectors, &y);
    let checked = Checked::new(args.run.check.then_some(verdicts), args.allow_overflow, CURE)?;
    if findings.all_finite && !args.allow_overflow {
        NotFinite::check("Y", &shape, &y, CURE)?;
    }
    let out = Tensor { shape, elements: Elements::F32(y) };
    out_file.write("y", &out)?.publish()?;
    let result = AtaResult {
        run,
        n: a.n(),
        channels: a.channels(),
        block_diagonals: a.block_diagonals(),
        frames: x.dim().0,
        precision: args.precision.name(),
        half: matrix.half.to_string(),
        out: WrittenTensor::new(&args.out, &out),
        notes: findings.notes,
        check: checked.comparisons,
    };
    Ok(args.json.print_beside([&out_file], &result, |_| checked.text)?)
}

/// X.
struct Vectors {
    /// Its shape in the file.
    shape: Vec<usize>,
    /// Its elements in f32, `[frames, channels, n]`.
    x: Array3<f32>,
    /// The file's own elements, where they are others and the converter keeps them.
    own: Option<Array3<f64>>,
}

impl Vectors {
    fn new(x: Input, matrix: &SymmetricBlockMatrix, converter: &mut Converter) -> Result<Vectors, WrongVectors> {
        let (channels, n) = (matrix.channels(), matrix.n());
        let dims = match x.tensor.shape[..] {
            [frames, of_x, len] if (of_x, len) == (channels, n) => (frames, channels, n),
            [of_x, len] if (of_x, len) == (channels, n) => (1, channels, n),
            [len] if (1, len) == (channels, n) => (1, 1, n),
            _ => {
                let one = if channels == 1 { format!(" or [{n}]") } else { String::new() };
                let of_a = format!("A has {channels} channels and n = {n}");
                let expected = format!("[frames, {channels}, {n}], [{channels}, {n}]{one}: {of_a}");
                return Err(WrongVectors { x: x.origin, got: x.tensor.shape, expected });
            }
        };
        let Converted { shape, values, own } = converter.convert::<f32>(x);
        let array = "a file has an element for each index";
        Ok(Vectors {
            shape,
            x: Array3::from_shape_vec(dims, values).expect(array),
            own: own.map(|own| Array3::from_shape_vec(dims, own).expect(array)),
        })
    }
}

fn on_card(
    args: &AtaArgs,
    gpu: &Gpu,
    matrix: &SymmetricBlockMatrix,
    x: &Array3<f32>,
    started: &dyn Fn(&str),
) -> ferrotile::Result<Array3<f32>> {
    let stream = gpu.new_stream()?;
    let options = AtaOptions { kernel: args.run.kernel.clone(), ..AtaOptions::default() };
    let matrix = matrix.upload_blocking(stream.as_ref(), args.precision)?;
    started(&AtaPlan::new(&matrix, x.dim().0, &options)?.to_string());
    matrix.multiply_array_blocking(stream.as_ref(), x.view(), &options)
}

/// Y in f32 of A as the precision rounds it.
fn on_cpu(args: &AtaArgs, matrix: &SymmetricBlockMatrix, x: &Array3<f32>) -> Array3<f32> {
    let stored = matrix.rounded(args.precision).blocks().mapv(f64::from);
    reference::ata_blocks(stored.view(), x.mapv(f64::from).view()).mapv(|element| element as f32)
}

/// Compares Y with the product in f64.
///
/// The limit of an element has three parts: what rounding its row of A to the precision changes, what the arithmetic of
/// the precision adds ([`tolerance::ata_limit`]), and the rounding of the result. Where A or X has wider elements in
/// its file, rounding both to f32, 2^-24 of each, adds 2^-23 of the sum of the magnitudes. A kernel may multiply an
/// element of A that is 0 by an element of X that is not finite, or leave the product out: NaN and the sum of the other
/// products are both right.
fn check(matrix: &MatrixFile, precision: Precision, vectors: &Vectors, y: &[f32]) -> Verdicts {
    let given = &matrix.matrix;
    let rounded = given.rounded(precision);
    let terms = (2 * given.block_diagonals() * BLOCK).min(given.block_rows() * BLOCK);
    let x = vectors.x.mapv(f64::from);
    let product = |matrix: &SymmetricBlockMatrix, x: &Array3<f64>| -> Vec<f64> {
        reference::ata_blocks(matrix.blocks().mapv(f64::from).view(), x.view()).into_iter().collect()
    };
    let (exact, stored) = (product(given, &x), product(&rounded, &x));
    let magnitudes = rounded.blocks().mapv(|element| f64::from(element).abs());
    let finite = vectors.x.mapv(|element| if element.is_finite() { element } else { 0.0 });
    let sizes = tolerance::ata_magnitudes(precision, finite.view());
    let magnitudes: Vec<f64> = reference::ata_blocks(magnitudes.view(), sizes.view()).into_iter().collect();
    let limit = |index: usize| {
        let of_rounding = (stored[index] - exact[index]).abs();
        let of_result = f64::from(f32::EPSILON) * exact[index].abs();
        let of_input = if of_rounding.is_finite() { of_rounding + of_result } else { 0.0 };
        tolerance::ata_limit(precision, magnitudes[index], terms) + of_input
    };
    let n = given.n();
    let with_zeros = |x: &Array3<f64>, mut exact: Vec<f64>| {
        let has_all_finite: Vec<bool> = x.rows().into_iter().map(|x| x.iter().all(|x| x.is_finite())).collect();
        for ((index, exact), y) in exact.iter_mut().enumerate().zip(y) {
            if y.is_nan() && exact.is_finite() && !has_all_finite[index / n] {
                *exact = f64::NAN;
            }
        }
        exact
    };
    let own = (matrix.has_own() || vectors.own.is_some()).then(|| {
        let x = vectors.own.as_ref().unwrap_or(&x);
        let exact = with_zeros(x, matrix.multiply_own(x.view()).into_iter().collect());
        let of_conversion = (-23f64).exp2();
        Verdict::new("Y", &vectors.shape)
            .compare(0, y, &exact, |index| limit(index) + of_conversion * magnitudes[index])
    });
    let given = Verdict::new("Y", &vectors.shape).compare(0, y, &with_zeros(&x, exact.clone()), limit);
    Verdicts { given, own }
}
