//! Quantisation: tensors of f16, bf16 or f32 to E4M3 or 8-bit integers with f32 factors on the card, and back.

use std::fmt;

use layout::{Arch, Dtype};
use variants::quantize::{
    DEQUANTIZE, FACTORS, QUANTIZE, QuantizeArgs, QuantizeKernel, least_factor, narrow_type, parts, wide_type,
};

use crate::attention::Layout;
use crate::backend::LaunchConfig;
use crate::checks::{
    argument, has_element_type, has_shape, has_type, is_contiguous, rows_aligned, same_device, same_devices,
};
use crate::element::{ElementType, Float};
use crate::error::Result;
use crate::runtime::gpu::Gpu;
use crate::runtime::module::Kernel;
use crate::runtime::param::KernelParam;
use crate::runtime::raw_tensor::RawTensor;
use crate::runtime::stream::StreamRef;
use crate::runtime::tensor::{TensorMut, TensorRef};

const OP: &str = "quantize";

// SAFETY: plain `repr(C)` data without padding.
unsafe impl KernelParam for QuantizeArgs {}

/// The tensors of one call of [`quantize()`].
#[derive(Debug)]
pub struct QuantizeTensors<'a, T, Q> {
    /// What is quantised, `[batch, heads, rows, columns]`, its dimensions in the order of the call's layout, by any
    /// strides.
    pub x: TensorRef<'a, T, 4>,
    /// Where the quantised elements go, shaped as `x`, by any strides.
    pub out: TensorMut<'a, Q, 4>,
    /// Where the factors go, `[batch or 1, heads or 1]` and contiguous: what the elements of a batch entry, of a head,
    /// or of all are to be multiplied by. [`Descales`](crate::Descales) takes them as they are.
    pub descales: TensorMut<'a, f32, 2>,
}

/// The tensors of one call of [`dequantize`].
#[derive(Debug)]
pub struct DequantizeTensors<'a, Q, T> {
    /// Quantised elements `[batch, heads, rows, columns]`, their dimensions in the order of the call's layout, by any
    /// strides.
    pub x: TensorRef<'a, Q, 4>,
    /// What they are multiplied by, `[batch or 1, heads or 1]`, contiguous.
    pub descales: TensorRef<'a, f32, 2>,
    /// Where the products go, shaped as `x`, by any strides.
    pub out: TensorMut<'a, T, 4>,
}

/// The loaded kernels that quantise elements of one type, for repeated calls and for captures, in which kernels are not
/// loaded.
///
/// ```
/// use ferrotile::{Arch, Dtype, Gpu, QuantizePlan};
///
/// let gpu = Gpu::emulated(Arch::Sm80);
/// let plan = QuantizePlan::new(&gpu, Dtype::F16, Dtype::U8)?;
/// assert_eq!(plan.to_string(), "quantize from f16 to u8");
/// # Ok::<(), ferrotile::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "a plan computes nothing until it is run"]
pub struct QuantizePlan {
    types: Types,
    factors: Kernel,
    kernel: Kernel,
}

/// The loaded kernel that brings quantised elements back, as [`QuantizePlan`].
#[derive(Debug, Clone)]
#[must_use = "a plan computes nothing until it is run"]
pub struct DequantizePlan {
    types: Types,
    kernel: Kernel,
}

/// The types of a plan: those of wide and of quantised elements.
#[derive(Debug, Clone, Copy)]
struct Types {
    wide: Dtype,
    narrow: Dtype,
}

impl Types {
    fn new(wide: Dtype, narrow: Dtype) -> Result<Self> {
        if wide_type(wide).is_none() {
            return Err(argument(OP, "element type", wide, "f16, bf16 or f32"));
        }
        if narrow_type(narrow).is_none() {
            return Err(argument(OP, "element type of quantised elements", narrow, "e4m3 or u8"));
        }
        Ok(Self { wide, narrow })
    }

    /// The argument of the kernels and the blocks of the grid, after a check that the tensors fit together and are on
    /// the device of the stream. No blocks where there are neither elements nor factors.
    fn arguments(
        self,
        stream: StreamRef<'_>,
        [wide, narrow, descales]: [&RawTensor; 3],
        layout: Layout,
    ) -> Result<(QuantizeArgs, u32)> {
        has_type(OP, "element type", wide.element_type(), self.wide)?;
        has_type(OP, "element type of quantised elements", narrow.element_type(), self.narrow)?;
        has_element_type(OP, "descale factors", descales, ElementType::F32)?;
        let &[first, second, third, last] = wide.shape() else {
            return Err(argument(OP, "dimensions", wide.shape().len(), "4"));
        };
        has_shape(OP, "the quantised tensor", narrow.shape(), wide.shape())?;
        let [batch, heads, mut rows, columns] = layout.reorder([first, second, third, last]);
        let one_or = |dim: usize, of: usize| if descales.shape().get(dim) == Some(&1) { 1 } else { of };
        let groups = [one_or(0, batch), one_or(1, heads)];
        has_shape(OP, "the descale factors", descales.shape(), &groups)?;
        is_contiguous(OP, "strides of the descale factors", descales)?;
        let all = [wide, narrow, descales].map(Some);
        let names = ["the wide tensor", "the quantised tensor", "the descale factors"];
        same_devices(names.into_iter().zip(all), stream.ordinal())?;
        // A group without elements has a factor all the same, which a block without rows writes.
        if batch == 0 || heads == 0 || columns == 0 {
            rows = 0;
        }
        let [batch, heads] = [batch.max(groups[0]), heads.max(groups[1])];
        let parts = parts(rows, columns).map(|parts| parts.max(1));
        let blocks = parts.and_then(|parts| batch.checked_mul(heads)?.checked_mul(parts as usize));
        let Some((blocks, parts)) = blocks.and_then(|blocks| i32::try_from(blocks).ok()).zip(parts) else {
            let got = format!("{batch} x {heads} heads of {rows} x {columns}");
            return Err(argument(OP, "elements", got, "fewer than 2^34 of a head and 2^43 in all"));
        };
        let strides = |tensor: &RawTensor| {
            let [batch, head, row, _] = layout.reorder(std::array::from_fn(|dim| tensor.step(dim)));
            [batch, head, row]
        };
        let aligned = columns.is_multiple_of(variants::quantize::CHUNK) && rows_aligned(wide) && rows_aligned(narrow);
        let args = QuantizeArgs {
            wide: wide.as_raw(),
            narrow: narrow.as_raw(),
            factors: descales.as_raw(),
            wide_strides: strides(wide),
            narrow_strides: strides(narrow),
            factor_strides: [descales.step(0), descales.step(1)],
            heads: heads as u32,
            rows: rows as u32,
            columns: columns.max(1) as u32,
            parts,
            wide_type: wide_type(self.wide).unwrap_or_default(),
            narrow_type: narrow_type(self.narrow).unwrap_or_default(),
            aligned: u32::from(aligned),
            least_factor: least_factor(self.narrow).to_bits(),
        };
        Ok((args, blocks as u32))
    }
}

/// The launch of a kernel, which overlaps with the one before where it waits for that.
fn launch_config(stream: StreamRef<'_>, blocks: u32, waits: bool) -> LaunchConfig {
    LaunchConfig {
        shared_bytes: QuantizeKernel::SHARED_BYTES,
        overlaps: waits && stream.gpu().arch() >= Arch::Sm90a,
        ..LaunchConfig::of_blocks(blocks, QuantizeKernel::THREADS)
    }
}

impl QuantizePlan {
    /// Loads the kernels that quantise elements of type `from`, f16, bf16 or f32, to type `to`, E4M3 or u8.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) for other types, and those of loading a module.
    pub fn new(gpu: &Gpu, from: Dtype, to: Dtype) -> Result<Self> {
        let types = Types::new(from, to)?;
        let load = |kernel: QuantizeKernel| gpu.kernel(OP, kernel.name);
        Ok(Self { types, factors: load(FACTORS)?, kernel: load(QUANTIZE)? })
    }

    /// Quantises on `stream` and returns before it is done; see [`quantize()`].
    ///
    /// # Errors
    /// Those of [`quantize()`], and [`Error::Argument`](crate::Error::Argument) for other element types than the
    /// plan's.
    pub fn run<'s, T: Float, Q: Float>(
        &self,
        stream: impl Into<StreamRef<'s>>,
        tensors: QuantizeTensors<'_, T, Q>,
        layout: Layout,
    ) -> Result<()> {
        let QuantizeTensors { x, out, descales } = tensors;
        // SAFETY: the views borrow tensors whose owners keep the memory until the stream has done the work, and no two
        // indices of a view that is written to are the same element.
        unsafe { self.run_raw(stream, [&x.erased(), &out.erased(), &descales.erased()], layout) }
    }

    /// As [`QuantizePlan::run`], for tensors whose types the compiler does not know: for bindings. The tensors are
    /// those of [`QuantizeTensors`], in that order.
    ///
    /// # Safety
    /// As [`AttentionPlan::run_raw`](crate::AttentionPlan::run_raw).
    ///
    /// # Errors
    /// Those of [`QuantizePlan::run`].
    pub unsafe fn run_raw<'s>(
        &self,
        stream: impl Into<StreamRef<'s>>,
        [x, out, descales]: [&RawTensor; 3],
        layout: Layout,
    ) -> Result<()> {
        let stream = stream.into();
        same_device("plan", self.kernel.ordinal(), stream.ordinal())?;
        let (args, blocks) = self.types.arguments(stream, [x, out, descales], layout)?;
        let factors: usize = descales.shape().iter().product();
        if blocks == 0 || factors == 0 {
            return Ok(());
        }
        // SAFETY: the factors are so many words without gaps, and the launches are the kernels'; the caller's promise
        // is for the rest.
        unsafe {
            let bytes = factors * size_of::<f32>();
            stream.gpu().device().fill_bytes(stream.enqueue()?, args.factors, 0, bytes)?;
            self.factors.launch(stream, &launch_config(stream, blocks, false), &[&args])?;
            self.kernel.launch(stream, &launch_config(stream, blocks, true), &[&args])
        }
    }
}

impl DequantizePlan {
    /// Loads the kernel that brings elements of type `from`, E4M3 or u8, to type `to`, f16, bf16 or f32.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) for other types, and those of loading a module.
    pub fn new(gpu: &Gpu, from: Dtype, to: Dtype) -> Result<Self> {
        Ok(Self { types: Types::new(to, from)?, kernel: gpu.kernel(OP, DEQUANTIZE.name)? })
    }

    /// Multiplies on `stream` and returns before it is done; see [`dequantize`].
    ///
    /// # Errors
    /// Those of [`dequantize`], and [`Error::Argument`](crate::Error::Argument) for other element types than the
    /// plan's.
    pub fn run<'s, Q: Float, T: Float>(
        &self,
        stream: impl Into<StreamRef<'s>>,
        tensors: DequantizeTensors<'_, Q, T>,
        layout: Layout,
    ) -> Result<()> {
        let DequantizeTensors { x, descales, out } = tensors;
        // SAFETY: as for `QuantizePlan::run`.
        unsafe { self.run_raw(stream, [&x.erased(), &descales.erased(), &out.erased()], layout) }
    }

    /// As [`DequantizePlan::run`], for tensors whose types the compiler does not know: for bindings. The tensors are
    /// those of [`DequantizeTensors`], in that order.
    ///
    /// # Safety
    /// As [`AttentionPlan::run_raw`](crate::AttentionPlan::run_raw).
    ///
    /// # Errors
    /// Those of [`DequantizePlan::run`].
    pub unsafe fn run_raw<'s>(
        &self,
        stream: impl Into<StreamRef<'s>>,
        [x, descales, out]: [&RawTensor; 3],
        layout: Layout,
    ) -> Result<()> {
        let stream = stream.into();
        same_device("plan", self.kernel.ordinal(), stream.ordinal())?;
        let (args, blocks) = self.types.arguments(stream, [out, x, descales], layout)?;
        if args.rows == 0 || blocks == 0 {
            return Ok(());
        }
        // SAFETY: the launch is the kernel's; the caller's promise is for the rest.
        unsafe { self.kernel.launch(stream, &launch_config(stream, blocks, true), &[&args]) }
    }
}

impl fmt::Display for QuantizePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("quantize from {} to {}", self.types.wide, self.types.narrow))
    }
}

impl fmt::Display for DequantizePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("dequantize from {} to {}", self.types.narrow, self.types.wide))
    }
}

/// Quantises a tensor of f16, bf16 or f32 to E4M3 or 8-bit integers on `stream`, and returns before it is done.
///
/// The factors `[batch or 1, heads or 1]` say what has a factor of its own: each head of each batch entry, each head,
/// each batch entry, or the tensor. The factor is the largest magnitude over 448, the largest number of either type.
/// An element is divided by it and becomes the nearest number of its type, ties to even:
///
/// | type | element | factor of small magnitudes |
/// | --- | --- | --- |
/// | E4M3 | `e4m3(x / factor)` | 1 where it were below 2^-126 |
/// | u8 | `round((x / (448 factor) + 1) * 127.5)`, 0 to 255 | 1 where the largest magnitude is at most 10^-6 |
///
/// Infinities and NaN do not count for the factor. Infinities become the largest number of their sign. NaN becomes NaN
/// in E4M3, and 128 in u8, which has no NaN: what 0 becomes. Every step is in f32; [`reference::quantize`] gives the
/// same bits. The result does not depend on the architecture.
///
/// The first call loads two kernels; [`QuantizePlan`] does so ahead of time.
///
/// ```
/// use ferrotile::{Arch, Buffer, Gpu, Layout, QuantizeTensors, TensorMut, TensorRef, quantize};
/// use half::f16;
///
/// let gpu = Gpu::emulated(Arch::Sm80);
/// let stream = gpu.new_stream()?;
/// let shape = [1, 2, 1, 8]; // two heads of one row
/// let x: Vec<f16> = (0..16).map(|index| f16::from_f32(index as f32)).collect();
/// let x = Buffer::upload_blocking(&stream, &x)?;
/// let (mut out, mut factors) = (Buffer::<u8>::zeroed(&gpu, 16)?, Buffer::<f32>::zeroed(&gpu, 2)?);
/// let tensors = QuantizeTensors {
///     x: TensorRef::contiguous(&x, shape)?,
///     out: TensorMut::contiguous(&mut out, shape)?,
///     descales: TensorMut::contiguous(&mut factors, [1, 2])?, // by head
/// };
/// quantize(&stream, tensors, Layout::Bhsd)?;
/// assert_eq!(factors.download_blocking(&stream)?, [7.0 / 448.0, 15.0 / 448.0]);
/// assert_eq!(out.download_blocking(&stream)?[6..8], [237, 255]); // 6 and 7 of 7
/// # Ok::<(), ferrotile::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`], [`Error::Argument`] or [`Error::WrongDevice`] for tensors that do not fit,
/// [`Error::ForeignCapture`], before anything is enqueued; those of loading a module; [`Error::Driver`] where the
/// driver refuses a launch.
///
/// [`reference::quantize`]: crate::reference::quantize
/// [`Error::Shape`]: crate::Error::Shape
/// [`Error::Argument`]: crate::Error::Argument
/// [`Error::WrongDevice`]: crate::Error::WrongDevice
/// [`Error::ForeignCapture`]: crate::Error::ForeignCapture
/// [`Error::Driver`]: crate::Error::Driver
pub fn quantize<'s, T: Float, Q: Float>(
    stream: impl Into<StreamRef<'s>>,
    tensors: QuantizeTensors<'_, T, Q>,
    layout: Layout,
) -> Result<()> {
    let stream = stream.into();
    QuantizePlan::new(stream.gpu(), T::DTYPE, Q::DTYPE)?.run(stream, tensors, layout)
}

/// Multiplies elements of E4M3 or 8-bit integers by their factors, to f16, bf16 or f32, on `stream`, and returns before
/// it is done. The way back of [`quantize()`]: an integer q counts as `(2 q - 255) * (448 / 255)`. Products are f32 and
/// rounded to the type of the output; those beyond f16 become infinite.
///
/// The first call loads a kernel; [`DequantizePlan`] does so ahead of time.
///
/// ```
/// use ferrotile::{Arch, Buffer, DequantizeTensors, Gpu, Layout, TensorMut, TensorRef, dequantize};
///
/// let gpu = Gpu::emulated(Arch::Sm80);
/// let stream = gpu.new_stream()?;
/// let x = Buffer::upload_blocking(&stream, &[255_u8, 0, 255, 0, 0, 0, 255, 255])?;
/// let factor = Buffer::upload_blocking(&stream, &[0.5_f32])?;
/// let mut out = Buffer::<f32>::zeroed(&gpu, 8)?;
/// let tensors = DequantizeTensors {
///     x: TensorRef::contiguous(&x, [1, 1, 1, 8])?,
///     descales: TensorRef::contiguous(&factor, [1, 1])?,
///     out: TensorMut::contiguous(&mut out, [1, 1, 1, 8])?,
/// };
/// dequantize(&stream, tensors, Layout::Bhsd)?;
/// assert_eq!(out.download_blocking(&stream)?[..3], [224.0, -224.0, 224.0]);
/// # Ok::<(), ferrotile::Error>(())
/// ```
///
/// # Errors
/// As [`quantize()`].
pub fn dequantize<'s, Q: Float, T: Float>(
    stream: impl Into<StreamRef<'s>>,
    tensors: DequantizeTensors<'_, Q, T>,
    layout: Layout,
) -> Result<()> {
    let stream = stream.into();
    DequantizePlan::new(stream.gpu(), Q::DTYPE, T::DTYPE)?.run(stream, tensors, layout)
}
