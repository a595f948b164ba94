//! `ferrotile quantize` and `ferrotile dequantize`: tensors of files to 8-bit elements with factors, and back.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ferrotile::{
    Buffer, DequantizePlan, DequantizeTensors, F8E4M3, Gpu, Layout, QuantizePlan, QuantizeTensors, TensorMut,
    TensorRef, reference,
};
use half::{bf16, f16};
use ndarray::{Array2, Array4};
use serde::Serialize;

use crate::device::DeviceChoice;
use crate::files::input::{self, FileError, Input, Origin, file_of};
use crate::files::npy::Opaque;
use crate::files::output::OutputFile;
use crate::files::tensor::{Elements, Stored, Tensor};
use crate::json::{JsonArgs, RunFacts, WrittenTensor};
use crate::spelling::{LayoutName, in_any_case};

/// Quantises a tensor: elements are divided by factors, so that the largest magnitude becomes 448, and rounded.
#[derive(Debug, Args)]
pub(crate) struct QuantizeArgs {
    /// NPY or safetensors file of the tensor, f16, bf16 or f32; FILE.safetensors:NAME names one.
    #[arg(long)]
    x: PathBuf,
    /// Where the elements are written: .npy (u8 alone), .safetensors (tensor `x`), or - (.npy on stdout).
    #[arg(long)]
    out: PathBuf,
    /// Where the factors are written, f32: .npy or .safetensors (tensor `descale`); [1, heads] or [1, 1].
    #[arg(long)]
    descale: PathBuf,
    /// The type of the elements: e4m3, or u8, where q stands for (q / 127.5 - 1) * 448.
    #[arg(long, value_enum, ignore_case = true)]
    dtype: NarrowName,
    /// What has a factor of its own: each head of a tensor [batch, heads, rows, columns], or the tensor, which may have
    /// any shape.
    #[arg(long, value_enum, ignore_case = true, default_value = "head")]
    per: Per,
    /// The order of the dimensions of a tensor with factors of heads.
    #[arg(long, value_enum, ignore_case = true, default_value = "bhsd")]
    layout: LayoutName,
    /// Where to run: auto (a card, or the CPU where there is none), cpu, cuda, cuda:N, emulator or emulator:ARCH.
    #[arg(long, default_value = "auto", value_parser = in_any_case::<DeviceChoice>)]
    device: DeviceChoice,
    #[command(flatten)]
    json: JsonArgs,
}

/// Multiplies quantised elements by their factors.
#[derive(Debug, Args)]
pub(crate) struct DequantizeArgs {
    /// NPY or safetensors file of the elements, e4m3 or u8.
    #[arg(long)]
    x: PathBuf,
    /// File of the factors, f32: one, or [heads] or [1, heads] for a tensor [batch, heads, rows, columns].
    #[arg(long)]
    descale: PathBuf,
    /// Where the products are written: .npy, .safetensors (tensor `x`), or - (.npy on stdout).
    #[arg(long)]
    out: PathBuf,
    /// The type of the products.
    #[arg(long, value_enum, ignore_case = true, default_value = "f16")]
    dtype: WideName,
    /// The order of the dimensions of a tensor with factors of heads.
    #[arg(long, value_enum, ignore_case = true, default_value = "bhsd")]
    layout: LayoutName,
    /// Where to run: auto (a card, or the CPU where there is none), cpu, cuda, cuda:N, emulator or emulator:ARCH.
    #[arg(long, default_value = "auto", value_parser = in_any_case::<DeviceChoice>)]
    device: DeviceChoice,
    #[command(flatten)]
    json: JsonArgs,
}

/// What `quantize --json` prints.
#[derive(Debug, Serialize)]
struct QuantizeResult {
    #[serde(flatten)]
    run: RunFacts,
    out: WrittenTensor,
    descale: WrittenTensor,
}

/// What `dequantize --json` prints.
#[derive(Debug, Serialize)]
struct DequantizeResult {
    #[serde(flatten)]
    run: RunFacts,
    out: WrittenTensor,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum NarrowName {
    E4m3,
    U8,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum WideName {
    F16,
    Bf16,
    F32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Per {
    Head,
    Tensor,
}

/// A tensor that cannot be quantised or brought back so.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QuantizeError {
    /// Elements of another type.
    #[error("{origin}: {got} elements, expected {expected}")]
    Type {
        /// Tensor and file.
        origin: Origin,
        /// Their type.
        got: &'static str,
        /// What is allowed.
        expected: &'static str,
    },
    /// A tensor without heads.
    #[error("{origin} has shape {got:?}, expected four dimensions for factors of heads (or give --per tensor)")]
    NoHeads {
        /// Tensor and file.
        origin: Origin,
        /// Its shape.
        got: Vec<usize>,
    },
    /// Factors that are not those of the tensor.
    #[error("{origin} has shape {got:?}, expected one factor, or one for each of {heads} heads")]
    Factors {
        /// Factors and file.
        origin: Origin,
        /// Their shape.
        got: Vec<usize>,
        /// The heads of the tensor.
        heads: usize,
    },
}

/// Where a tensor of a file has its heads, as four dimensions: one of any shape is one head.
struct Shape {
    dims: [usize; 4],
    layout: Layout,
    /// Groups of heads that have a factor each.
    groups: [usize; 2],
}

impl Shape {
    fn of_tensor(shape: &[usize]) -> Shape {
        let count = shape.iter().product();
        Shape { dims: [1, 1, 1, count], layout: Layout::Bhsd, groups: [1, 1] }
    }

    /// `None` for a tensor without heads.
    fn of_heads(shape: &[usize], layout: Layout) -> Option<Shape> {
        let dims: [usize; 4] = shape.try_into().ok()?;
        Some(Shape { dims, layout, groups: [1, layout.reorder(dims)[1]] })
    }

    /// Elements in the order batch, head, row, column.
    fn array<T: Clone>(&self, values: Vec<T>) -> Array4<T> {
        let array = Array4::from_shape_vec(self.dims, values).expect("a file has an element for each index");
        array.permuted_axes(self.layout.reorder([0, 1, 2, 3]))
    }

    /// Back in the order of the file.
    fn values<T: Clone>(&self, array: Array4<T>) -> Vec<T> {
        array.permuted_axes(self.layout.reorder([0, 1, 2, 3])).iter().cloned().collect()
    }
}

/// Quantises.
pub(crate) fn quantize(args: &QuantizeArgs) -> anyhow::Result<()> {
    let name = match args.dtype {
        NarrowName::E4m3 => "e4m3",
        NarrowName::U8 => "u8",
    };
    let (out, factors_out) = (OutputFile::plan(&args.out, name)?, OutputFile::plan(&args.descale, "f32")?);
    for output in [&out, &factors_out] {
        output.check_inputs([file_of(&args.x)])?;
    }
    if out.replaces(&args.descale) {
        let (path, reason) = (args.out.clone(), "--out and --descale are the same file");
        return Err(FileError::Output { path, reason }.into());
    }
    let Input { origin, tensor: Tensor { shape, elements } } =
        input::read(&args.x, "x", Opaque { dtype: Some("bf16"), offered: &["bf16"] })?;
    let place = match args.per {
        Per::Tensor => Shape::of_tensor(&shape),
        Per::Head => match Shape::of_heads(&shape, args.layout.into()) {
            Some(place) => place,
            None => return Err(QuantizeError::NoHeads { origin, got: shape }.into()),
        },
    };
    let (elements, factors, run) = match elements {
        Elements::F16(x) => quantize_to(args, &place, x)?,
        Elements::Bf16(x) => quantize_to(args, &place, x)?,
        Elements::F32(x) => quantize_to(args, &place, x)?,
        others => {
            let (got, expected) = (others.dtype_name(), "f16, bf16 or f32");
            return Err(QuantizeError::Type { origin, got, expected }.into());
        }
    };
    let elements = Tensor { shape, elements };
    let factors = Tensor { shape: place.groups.to_vec(), elements: Elements::F32(factors) };
    let written = (out.write("x", &elements)?, factors_out.write("descale", &factors)?);
    written.0.publish()?;
    written.1.publish()?;
    let result = QuantizeResult {
        run,
        out: WrittenTensor::new(&args.out, &elements),
        descale: WrittenTensor::new(&args.descale, &factors),
    };
    Ok(args.json.print_beside([&out, &factors_out], &result, |_| String::new())?)
}

/// Elements and factors, and who computed them.
type Quantized = (Elements, Vec<f32>, RunFacts);

fn quantize_to<T: Stored>(args: &QuantizeArgs, place: &Shape, x: Vec<T>) -> anyhow::Result<Quantized> {
    match args.dtype {
        NarrowName::E4m3 => quantize_as::<T, F8E4M3>(args, place, &x),
        NarrowName::U8 => quantize_as::<T, u8>(args, place, &x),
    }
}

fn quantize_as<T: Stored, Q: Stored>(args: &QuantizeArgs, place: &Shape, x: &[T]) -> anyhow::Result<Quantized> {
    let ((elements, factors), run) = args.device.compute(
        None,
        || {},
        |gpu, started| {
            let stream = gpu.new_stream()?;
            let plan = QuantizePlan::new(gpu, T::DTYPE, Q::DTYPE)?;
            started(&plan.to_string());
            let x = Buffer::upload_blocking(&stream, x)?;
            let mut out = Buffer::<Q>::zeroed(gpu, x.len())?;
            let mut factors = Buffer::<f32>::zeroed(gpu, place.groups[1])?;
            let tensors = QuantizeTensors {
                x: TensorRef::contiguous(&x, place.dims)?,
                out: TensorMut::contiguous(&mut out, place.dims)?,
                descales: TensorMut::contiguous(&mut factors, place.groups)?,
            };
            plan.run(&stream, tensors, place.layout)?;
            Ok((out.download_blocking(&stream)?, factors.download_blocking(&stream)?))
        },
        || {
            let x = place.array(x.iter().map(|x| x.to_f64() as f32).collect());
            let (elements, factors) = reference::quantize::<Q>(x.view(), place.groups);
            (place.values(elements), factors.into_raw_vec_and_offset().0)
        },
    )?;
    Ok((Q::elements(elements), factors, run))
}

/// Brings quantised elements back.
pub(crate) fn dequantize(args: &DequantizeArgs) -> anyhow::Result<()> {
    let name = match args.dtype {
        WideName::F16 => "f16",
        WideName::Bf16 => "bf16",
        WideName::F32 => "f32",
    };
    let out = OutputFile::plan(&args.out, name)?;
    out.check_inputs([&args.x, &args.descale].map(|path| file_of(path)))?;
    let x = input::read(&args.x, "x", Opaque { dtype: Some("e4m3"), offered: &["e4m3"] })?;
    let factors = input::read(&args.descale, "descale", Opaque::REFUSED)?;
    let Tensor { shape, elements } = x.tensor;
    let Elements::F32(of_factors) = factors.tensor.elements else {
        let (got, expected) = (factors.tensor.elements.dtype_name(), "f32");
        return Err(QuantizeError::Type { origin: factors.origin, got, expected }.into());
    };
    let place = match of_factors.len() {
        1 => Shape::of_tensor(&shape),
        count => match Shape::of_heads(&shape, args.layout.into()) {
            None => return Err(QuantizeError::NoHeads { origin: x.origin, got: shape }.into()),
            Some(place) if place.groups[1] == count && factors.tensor.shape.last() == Some(&count) => place,
            Some(place) => {
                let (origin, got, heads) = (factors.origin, factors.tensor.shape, place.groups[1]);
                return Err(QuantizeError::Factors { origin, got, heads }.into());
            }
        },
    };
    let (products, run) = match elements {
        Elements::E4m3(bits) => {
            let x: Vec<F8E4M3> = bits.into_iter().map(F8E4M3::from_bits).collect();
            dequantize_to(args, &place, &x, &of_factors)?
        }
        Elements::Integers("u8", values) => {
            let x: Vec<u8> = values.into_iter().map(|value| value as u8).collect();
            dequantize_to(args, &place, &x, &of_factors)?
        }
        others => {
            let (got, expected) = (others.dtype_name(), "e4m3 or u8");
            return Err(QuantizeError::Type { origin: x.origin, got, expected }.into());
        }
    };
    let products = Tensor { shape, elements: products };
    out.write("x", &products)?.publish()?;
    let result = DequantizeResult { run, out: WrittenTensor::new(&args.out, &products) };
    Ok(args.json.print_beside([&out], &result, |_| String::new())?)
}

fn dequantize_to<Q: Stored>(
    args: &DequantizeArgs,
    place: &Shape,
    x: &[Q],
    factors: &[f32],
) -> anyhow::Result<(Elements, RunFacts)> {
    match args.dtype {
        WideName::F16 => dequantize_as::<Q, f16>(args, place, x, factors),
        WideName::Bf16 => dequantize_as::<Q, bf16>(args, place, x, factors),
        WideName::F32 => dequantize_as::<Q, f32>(args, place, x, factors),
    }
}

fn dequantize_as<Q: Stored, T: Stored>(
    args: &DequantizeArgs,
    place: &Shape,
    x: &[Q],
    factors: &[f32],
) -> anyhow::Result<(Elements, RunFacts)> {
    let on_card = |gpu: &Gpu, started: &dyn Fn(&str)| {
        let stream = gpu.new_stream()?;
        let plan = DequantizePlan::new(gpu, Q::DTYPE, T::DTYPE)?;
        started(&plan.to_string());
        let (x, factors) = (Buffer::upload_blocking(&stream, x)?, Buffer::upload_blocking(&stream, factors)?);
        let mut out = Buffer::<T>::zeroed(gpu, x.len())?;
        let tensors = DequantizeTensors {
            x: TensorRef::contiguous(&x, place.dims)?,
            descales: TensorRef::contiguous(&factors, place.groups)?,
            out: TensorMut::contiguous(&mut out, place.dims)?,
        };
        plan.run(&stream, tensors, place.layout)?;
        out.download_blocking(&stream)
    };
    let on_cpu = || {
        let factors = factors.iter().map(|&factor| factor.into()).collect();
        let factors = Array2::from_shape_vec(place.groups, factors).expect("one factor a group");
        let x = place.array(x.iter().map(|x| x.to_f64()).collect());
        let products = reference::dequantize(x.view(), factors.view());
        place.values(products).into_iter().map(T::from_f64).collect()
    };
    let (products, run) = args.device.compute(None, || {}, on_card, on_cpu)?;
    Ok((T::elements(products), run))
}
