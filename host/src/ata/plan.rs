//! The plan of a product: a configuration that is chosen and loaded, and its runs.

use std::fmt;

use layout::Arch;
use variants::ata::{ATA, AtaArgs, AtaConfig, AtaStrides, Divisor, Precision, STRIP_ROWS, preferred, sums_fields};
use variants::study::ATA_STUDY;

use super::device::DeviceBlockMatrix;
use super::options::{AtaOptions, OP};
use crate::backend::LaunchConfig;
use crate::checks::{has_element_type, has_shape, rows_aligned, same_device, same_devices};
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::runtime::module::{Kernel, KernelFacts, KernelName};
use crate::runtime::param::KernelParam;
use crate::runtime::raw_tensor::RawTensor;
use crate::runtime::stream::StreamRef;
use crate::runtime::tensor::{TensorMut, TensorRef};

/// The names of the kernels that multiply matrices of this precision: what [`AtaOptions::kernel`] may name.
///
/// ```
/// use ferrotile::{Precision, ata_kernels};
///
/// assert!(ata_kernels(Precision::Tf32).count() > 0);
/// ```
pub fn ata_kernels(precision: Precision) -> impl Iterator<Item = KernelName> {
    configs(precision).map(|config| KernelName::new(config.name))
}

/// The configurations that multiply matrices of this precision and that a caller may name: those that the library
/// chooses from, and with the feature `study` those that measure a choice.
fn configs(precision: Precision) -> impl Iterator<Item = &'static AtaConfig> {
    let study = if cfg!(feature = "study") { ATA_STUDY } else { &[] };
    ATA.iter().chain(study).filter(move |config| config.precision == precision)
}

impl DeviceBlockMatrix {
    /// Computes `Y = A X` on `stream` and returns before it is done. X and Y are `[frames, channels, n]`; Y is
    /// overwritten.
    ///
    /// The result is the same, bit by bit, in every run of one kernel. A is zero where nothing is stored. But tiles of
    /// 32x32 elements with a stored pair of blocks are multiplied as a whole. So an infinity or NaN in X makes NaN in
    /// every row of Y whose tile has a column for it, even where the element of A is 0.
    ///
    /// # Errors
    /// [`Error::Shape`] for tensors that do not fit, [`Error::WrongDevice`], before anything is enqueued; those of
    /// loading the kernel; [`Error::Driver`] where the driver refuses the launch.
    pub fn multiply<'s>(
        &self,
        stream: impl Into<StreamRef<'s>>,
        x: TensorRef<'_, f32, 3>,
        y: TensorMut<'_, f32, 3>,
    ) -> Result<()> {
        AtaPlan::new(self, x.shape()[0], &AtaOptions::default())?.run(stream, x, y)
    }
}

/// A chosen and loaded kernel for repeated products of one matrix with one number of frames. Displays as the kernel's
/// name.
///
/// ```
/// use ferrotile::{Arch, AtaOptions, AtaPlan, Gpu, Precision, SymmetricBlockMatrix};
/// use ndarray::Array3;
///
/// // 3 on the diagonal and -1 beside it, as SciPy's `dia_array` holds the upper half.
/// let data = Array3::from_shape_fn((1, 2, 32), |(_, diagonal, _)| if diagonal == 0 { 3.0 } else { -1.0 });
/// let host = SymmetricBlockMatrix::from_diagonals(32, &[0, 1], data.view())?;
///
/// let gpu = Gpu::emulated(Arch::Sm80);
/// let matrix = host.upload_blocking(&gpu.new_stream()?, Precision::F32)?;
/// let plan = AtaPlan::new(&matrix, 8, &AtaOptions::default())?;
/// assert_eq!(plan.to_string(), plan.kernel_name().as_str());
/// # Ok::<(), ferrotile::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "a plan computes nothing until it is run"]
pub struct AtaPlan<'a> {
    matrix: &'a DeviceBlockMatrix,
    frames: usize,
    config: &'static AtaConfig,
    blocks: u32,
    overlaps: bool,
    kernel: Kernel,
}

impl<'a> AtaPlan<'a> {
    /// Chooses a kernel and loads it.
    ///
    /// # Errors
    /// [`Error::UnknownKernel`] where the named kernel does not multiply matrices of this precision;
    /// [`Error::Argument`] for more frames than a grid has blocks; those of loading a module.
    pub fn new(matrix: &'a DeviceBlockMatrix, frames: usize, options: &AtaOptions) -> Result<Self> {
        let at_once = |config: &AtaConfig| {
            let resident = u64::from(config.min_blocks) * u64::from(matrix.gpu().multiprocessors());
            config.blocks(frames, matrix.channels, matrix.n).is_some_and(|blocks| u64::from(blocks) <= resident)
        };
        let config = match &options.kernel {
            Some(name) => named(name, matrix.precision)?,
            None => preferred(matrix.precision, frames, at_once),
        };
        // Frames are counted in 32 bits, with room for a tile more.
        let blocks = config.blocks(frames, matrix.channels, matrix.n).filter(|_| i32::try_from(frames).is_ok());
        let blocks = blocks.ok_or_else(|| Error::Argument {
            op: OP,
            argument: "frames * channels * n",
            got: format!("{frames} * {} * {}", matrix.channels, matrix.n),
            expected: format!(
                "at most 2^31 - 1 blocks of {} frames and {} rows: split the frames",
                config.frames,
                config.rows()
            ),
        })?;
        // What the kernels of older architectures do not wait for must have ended.
        let arch = options.arch.unwrap_or_else(|| matrix.gpu().arch());
        let overlaps = !options.isolated && arch >= Arch::Sm90a;
        let kernel = matrix.gpu().kernel_for(config.family, arch, config.name)?;
        Ok(Self { matrix, frames, config, blocks, overlaps, kernel })
    }

    /// The name of the chosen kernel.
    #[must_use]
    pub const fn kernel_name(&self) -> KernelName {
        KernelName::new(self.config.name)
    }

    /// What the chosen kernel is launched with.
    #[must_use]
    pub const fn facts(&self) -> KernelFacts {
        let config = self.config;
        KernelFacts {
            name: KernelName::new(config.name),
            threads: config.threads(),
            shared_bytes: config.smem().total_bytes(),
        }
    }

    /// The loaded kernel, for its registers and occupancy.
    #[must_use]
    pub const fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Computes `Y = A X` as [`DeviceBlockMatrix::multiply`] does.
    ///
    /// # Errors
    /// [`Error::Shape`] for tensors that are not of the plan's sizes, [`Error::WrongDevice`], and [`Error::Driver`]
    /// where the driver refuses the launch.
    pub fn run<'s>(
        &self,
        stream: impl Into<StreamRef<'s>>,
        x: TensorRef<'_, f32, 3>,
        y: TensorMut<'_, f32, 3>,
    ) -> Result<()> {
        // SAFETY: the views borrow tensors whose owners keep the memory until the stream has done the work, and no two
        // indices of Y are the same element.
        unsafe { self.run_raw(stream, &x.erased(), &y.erased()) }
    }

    /// As [`AtaPlan::run`], for tensors whose types the compiler does not know: for bindings. X and Y are
    /// `[frames, channels, n]` of f32.
    ///
    /// ```
    /// use ferrotile::{
    ///     Arch, AtaOptions, AtaPlan, Buffer, ElementType, Gpu, Precision, RawTensor, SymmetricBlockMatrix,
    /// };
    /// use ndarray::Array3;
    ///
    /// let gpu = Gpu::emulated(Arch::Sm80);
    /// let stream = gpu.new_stream()?;
    /// let twice = Array3::from_elem((1, 1, 16), 2.0); // 2 on the diagonal
    /// let host = SymmetricBlockMatrix::from_diagonals(16, &[0], twice.view())?;
    /// let matrix = host.upload_blocking(&stream, Precision::F32)?;
    /// let plan = AtaPlan::new(&matrix, 1, &AtaOptions::default())?;
    ///
    /// let x = Buffer::upload_blocking(&stream, &[3.0_f32; 16])?;
    /// let y = Buffer::<f32>::zeroed(&gpu, 16)?;
    /// let raw = |buffer: &Buffer<f32>| {
    ///     RawTensor::new(gpu.ordinal(), buffer.as_raw(), ElementType::F32, &[1, 1, 16], &[16, 16, 1])
    /// };
    /// // SAFETY: the buffers live until the download has waited for the stream, and nothing else uses them.
    /// unsafe { plan.run_raw(&stream, &raw(&x)?, &raw(&y)?) }?;
    /// assert_eq!(y.download_blocking(&stream)?, [6.0; 16]);
    /// # Ok::<(), ferrotile::Error>(())
    /// ```
    ///
    /// # Safety
    /// Both tensors are memory that is accessible from the primary context of their card and aligned for f32. They stay
    /// allocated until the stream has done the work. Until then nothing else reads or writes Y, nor writes X. No two
    /// indices of Y are the same element, and no element of X is one of Y.
    ///
    /// # Errors
    /// Those of [`AtaPlan::run`], and [`Error::Argument`] for tensors of another element type than f32.
    pub unsafe fn run_raw<'s>(&self, stream: impl Into<StreamRef<'s>>, x: &RawTensor, y: &RawTensor) -> Result<()> {
        let (matrix, stream) = (self.matrix, stream.into());
        for (tensor, view) in [("X", x), ("Y", y)] {
            has_element_type(OP, tensor, view, ElementType::F32)?;
            has_shape(OP, tensor, view.shape(), &[self.frames, matrix.channels, matrix.n])?;
        }
        same_device("A", matrix.gpu().ordinal(), stream.ordinal())?;
        same_devices([("X", Some(x)), ("Y", Some(y))], stream.ordinal())?;
        if self.blocks == 0 {
            return Ok(());
        }
        let strides = |tensor: &RawTensor| AtaStrides { frame: tensor.strides()[0], channel: tensor.strides()[1] };
        let [factor_limit, inverse_base] = sums_fields(matrix.sums_exponent);
        let args = AtaArgs {
            x: x.as_raw(),
            y: y.as_raw(),
            pairs: matrix.pairs.as_raw(),
            tile_refs: matrix.tile_refs.as_raw(),
            prefixes: matrix.prefixes.as_raw(),
            kind_prefixes: matrix.kind_prefixes.as_raw(),
            list_starts: matrix.starts.as_raw(),
            scales: matrix.scales.as_raw(),
            x_strides: strides(x),
            y_strides: strides(y),
            frames: self.frames as u32,
            n: matrix.n as u32,
            strips: Divisor::new(matrix.n.div_ceil(STRIP_ROWS) as u32),
            frame_tiles: Divisor::new(self.config.frame_tiles(self.frames) as u32),
            x_aligned: u32::from(rows_aligned(x)),
            zero_pair: matrix.zero_pair,
            factor_limit,
            inverse_base,
        };
        let config = LaunchConfig {
            shared_bytes: self.config.smem().total_bytes(),
            overlaps: self.overlaps,
            ..LaunchConfig::of_blocks(self.blocks, self.config.threads())
        };
        // SAFETY: grid, block and shared memory are the configuration's, the matrix is of its precision, and the
        // tensors are of the plan's sizes. The matrix keeps its memory until the stream has done the work; the caller
        // answers for that of X and Y.
        unsafe { self.kernel.launch(stream, &config, &[&args]) }
    }
}

impl fmt::Display for AtaPlan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.config.name)
    }
}

impl fmt::Debug for AtaPlan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtaPlan")
            .field("kernel", &self.config.name)
            .field("frames", &self.frames)
            .finish_non_exhaustive()
    }
}

// SAFETY: plain `repr(C)` data without padding between what the kernels read.
unsafe impl KernelParam for AtaArgs {}

fn named(name: &str, precision: Precision) -> Result<&'static AtaConfig> {
    configs(precision).find(|config| config.name == name).ok_or_else(|| Error::UnknownKernel {
        op: OP,
        name: name.to_owned(),
        known: configs(precision).map(|config| config.name).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_found_by_name_only_for_its_precision() {
        for precision in Precision::ALL {
            let name = preferred(precision, 8, |_| true).name;
            assert_eq!(named(name, precision).map(|config| config.name), Ok(name));
            let others = Precision::ALL.into_iter().filter(|other| *other != precision);
            for other in others {
                assert!(matches!(named(name, other), Err(Error::UnknownKernel { .. })));
            }
        }
    }
}
