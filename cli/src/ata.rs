//! `ferrotile ata`: products with symmetric matrices from files.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use ferrotile::{AtaOptions, AtaPlan, Gpu, Precision, SymmetricBlockMatrix, reference, tolerance};
use layout::ata::BLOCK;
use ndarray::Array3;

use crate::device::{Device, DeviceChoice};
use crate::matrix_file;
use crate::problem::ProblemError;
use crate::tensor::{self, Elements, FileError, OutputFile, Tensor};

/// Computes Y = A X with a symmetric matrix A for each channel.
#[derive(Debug, Args)]
pub(crate) struct AtaArgs {
    /// A: .npy, dense [n, n] or [channels, n, n]; or .npz, SciPy's diagonals (scipy.sparse.save_npz of a dia_array,
    /// both halves or the upper one), or 16x16 blocks `blocks` [channels, block diagonals, block rows, 16, 16] with n
    /// from `shape` [2], if any.
    #[arg(long)]
    matrix: PathBuf,
    /// NPY file of X: [frames, channels, n], [channels, n] or [n].
    #[arg(long)]
    x: PathBuf,
    /// Where Y is written, f32, of the shape of X: .npy or .safetensors (tensor `y`).
    #[arg(long)]
    out: PathBuf,
    /// What is computed in: f32, tf32, tf32x3 (about as f32), f16 (scaled for each channel) or bf16.
    #[arg(long, default_value_t)]
    precision: Precision,
    /// How far mirrored elements of A may differ, as a share of the largest of the channel.
    #[arg(long, default_value_t = 1e-6, allow_hyphen_values = true, value_parser = share)]
    symmetry_tolerance: f32,
    /// The kernel to run, by name; `ferrotile info` lists them.
    #[arg(long)]
    variant: Option<String>,
    /// Also compute Y in f64 on the CPU, print the largest error, and fail if an element exceeds the tolerance of the
    /// precision.
    #[arg(long)]
    check: bool,
    /// Where to run: auto (a card, or the CPU reference where there is none), cpu, cuda, cuda:N, emulator or
    /// emulator:ARCH.
    #[arg(long, default_value = "auto")]
    device: DeviceChoice,
}

/// X does not fit A.
#[derive(Debug, thiserror::Error)]
#[error("X has shape {got:?}, expected {expected}")]
pub(crate) struct WrongVectors {
    got: Vec<usize>,
    expected: String,
}

/// An element of Y is further from the f64 product than the precision explains.
#[derive(Debug, thiserror::Error)]
#[error("the largest error against f64 is {error:.3e}; an element has {share:.2} times its tolerance")]
pub(crate) struct CheckFailed {
    error: f64,
    share: f64,
}

fn share(text: &str) -> Result<f32, &'static str> {
    text.parse().ok().filter(|share: &f32| share.is_finite() && *share >= 0.0).ok_or("expected a number of at least 0")
}

/// Reads, computes, checks and writes, in this order.
pub(crate) fn run(args: &AtaArgs) -> anyhow::Result<()> {
    let out_file = OutputFile::plan(&args.out, "f32")?;
    for input in [&args.matrix, &args.x] {
        if out_file.replaces(input) {
            return Err(FileError::Output { path: input.clone(), reason: "an input cannot be an output too" }.into());
        }
    }
    let matrix = matrix_file::read(&args.matrix, args.symmetry_tolerance)?;
    let Tensor { shape, elements } = tensor::read_npy(&args.x)?;
    let x = vectors(&shape, elements, &matrix)?;
    let y = multiply(args, &matrix, &x)?;
    let checked = args.check.then(|| check(&matrix, args.precision, &x, &y)).transpose()?;
    let y = Tensor { shape, elements: Elements::F32(y.into_iter().collect()) };
    out_file.write("y", &y)?.publish()?;
    if let Some(line) = checked {
        writeln!(io::stdout(), "{line}")?;
    }
    Ok(())
}

/// X as `[frames, channels, n]`.
fn vectors(shape: &[usize], elements: Elements, matrix: &SymmetricBlockMatrix) -> Result<Array3<f32>, WrongVectors> {
    let (channels, n) = (matrix.channels(), matrix.n());
    let dims = match *shape {
        [frames, of_x, len] if (of_x, len) == (channels, n) => Some((frames, channels, n)),
        [of_x, len] if (of_x, len) == (channels, n) => Some((1, channels, n)),
        [len] if (1, len) == (channels, n) => Some((1, 1, n)),
        _ => None,
    };
    let array = dims.and_then(|dims| Array3::from_shape_vec(dims, elements.into_f32()).ok());
    let one = if channels == 1 { format!(" or [{n}]") } else { String::new() };
    let expected = format!("[frames, {channels}, {n}], [{channels}, {n}]{one}: A has {channels} channels and n = {n}");
    array.ok_or_else(|| WrongVectors { got: shape.to_vec(), expected })
}

fn multiply(args: &AtaArgs, matrix: &SymmetricBlockMatrix, x: &Array3<f32>) -> anyhow::Result<Array3<f32>> {
    match args.device.open()? {
        Device::Gpu(gpu) => on_card(args, &gpu, matrix, x),
        Device::Cpu if args.variant.is_some() => Err(ProblemError::VariantOnCpu.into()),
        Device::Cpu => {
            args.device.announce_cpu();
            let stored = matrix.rounded(args.precision).blocks().mapv(f64::from);
            Ok(reference::ata_blocks(stored.view(), x.mapv(f64::from).view()).mapv(|element| element as f32))
        }
    }
}

fn on_card(args: &AtaArgs, gpu: &Gpu, matrix: &SymmetricBlockMatrix, x: &Array3<f32>) -> anyhow::Result<Array3<f32>> {
    let stream = gpu.new_stream()?;
    let options = AtaOptions { variant: args.variant.clone(), ..AtaOptions::default() };
    let matrix = matrix.upload_blocking(stream.as_ref(), args.precision)?;
    let kernel = AtaPlan::new(&matrix, x.dim().0, &options)?.to_string();
    let y = matrix.multiply_array_blocking(stream.as_ref(), x.view(), &options)?;
    eprintln!("{kernel} on {}", gpu.name());
    Ok(y)
}

/// Compares Y with the product in f64 of A as it was given; the line that says how far it is. An element may differ by
/// what its row's rounding of A to the precision makes of it, and by what the precision's arithmetic adds
/// ([`tolerance::ata_limit`]).
fn check(
    matrix: &SymmetricBlockMatrix,
    precision: Precision,
    x: &Array3<f32>,
    y: &Array3<f32>,
) -> Result<String, CheckFailed> {
    let rounded = matrix.rounded(precision);
    let terms = (2 * matrix.block_diagonals() * BLOCK).min(matrix.block_rows() * BLOCK);
    let wide = x.mapv(f64::from);
    let exact = reference::ata_blocks(matrix.blocks().mapv(f64::from).view(), wide.view());
    let stored = reference::ata_blocks(rounded.blocks().mapv(f64::from).view(), wide.view());
    let magnitudes = rounded.blocks().mapv(|element| f64::from(element).abs());
    let magnitudes = reference::ata_blocks(magnitudes.view(), tolerance::ata_magnitudes(precision, x.view()).view());
    let (mut error, mut share) = (0f64, 0f64);
    for (((&y, &exact), &stored), &magnitude) in y.iter().zip(&exact).zip(&stored).zip(&magnitudes) {
        let of_element = tolerance::element_error(y.into(), exact);
        // Rounding to f32 is the last step of every one.
        let of_result = f64::from(f32::EPSILON) * exact.abs();
        let limit = tolerance::ata_limit(precision, magnitude, terms) + (stored - exact).abs() + of_result;
        error = error.max(of_element);
        // An infinite error is beyond every limit, an infinite one too.
        let of_limit = if of_element == 0.0 { 0.0 } else { of_element / limit };
        share = share.max(if of_limit.is_nan() { f64::INFINITY } else { of_limit });
    }
    if share > 1.0 || error.is_infinite() {
        return Err(CheckFailed { error, share });
    }
    Ok(format!("largest error against f64: {error:.3e}, at most {share:.2} of the tolerance of {precision}"))
}
