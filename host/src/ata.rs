//! ATA: `Y = A X` with a symmetric matrix of 16x16 blocks for each channel, many frames at once.
//!
//! ```no_run
//! use ferrotile::{Buffer, Gpu, Precision, SymmetricBlockMatrix, TensorMut, TensorRef};
//! use ndarray::Array3;
//!
//! # fn main() -> ferrotile::Result<()> {
//! let (frames, channels, n) = (8, 3, 2624);
//! // 2 on the diagonal and -1 beside it, as SciPy's `dia_array` holds the upper half.
//! let data = Array3::from_shape_fn((channels, 2, n), |(_, diagonal, _)| if diagonal == 0 { 2.0 } else { -1.0 });
//! let matrix = SymmetricBlockMatrix::from_diagonals(n, &[0, 1], data.view())?;
//!
//! let gpu = Gpu::new(0)?;
//! let stream = gpu.new_stream()?;
//! let matrix = matrix.upload_blocking(stream.as_ref(), Precision::Tf32)?;
//! let x = Buffer::upload_blocking(&stream, &vec![1.0; frames * channels * n])?;
//! let mut y = Buffer::zeroed(&gpu, x.len())?;
//! let shape = [frames, channels, n];
//! matrix.multiply(stream.as_ref(), TensorRef::contiguous(&x, shape)?, TensorMut::contiguous(&mut y, shape)?)?;
//! let result: Vec<f32> = y.download_blocking(&stream)?;
//! # Ok(())
//! # }
//! ```

mod arrays;
mod cg;
mod matrix;
mod pack;
mod precondition;

use std::fmt;
use std::sync::OnceLock;

use layout::Arch;
use variants::ata::{ATA, AtaArgs, AtaConfig, AtaStrides, Divisor, Precision, STRIP_ROWS, preferred, sums_fields};

pub use cg::{CgOptions, CgOutcome, CgPlan, CgReport, CgSystem, Preconditioner};
pub use matrix::SymmetricBlockMatrix;
pub use pack::PairClasses;

use crate::backend::LaunchConfig;
use crate::error::{Error, Result};
use crate::runtime::buffer::Buffer;
use crate::runtime::gpu::Gpu;
use crate::runtime::launch::KernelParam;
use crate::runtime::module::Kernel;
use crate::runtime::stream::StreamRef;
use crate::runtime::tensor::{TensorMut, TensorRef};
use pack::Packed;

const OP: &str = "ata";

/// How to compute a product.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AtaOptions {
    /// The compiled variant to run, by name; `None` picks one by the number of frames, and by whether all its blocks
    /// are on the card at once.
    pub variant: Option<String>,
    /// Whether the product starts only when the work before it on the stream has ended. Otherwise, on sm_90, the
    /// product loads its first blocks of A while the kernel before it still runs, and then waits for that kernel's
    /// results.
    pub isolated: bool,
    /// The architecture whose kernel runs; `None` for the newest one. An older one serves to compare kernels.
    pub arch: Option<Arch>,
}

/// The compiled variants that multiply matrices of this precision.
pub fn ata_variants(precision: Precision) -> impl Iterator<Item = &'static AtaConfig> {
    ATA.iter().filter(move |row| row.precision == precision)
}

/// A symmetric block matrix on a card, in one precision. Made by [`SymmetricBlockMatrix::upload_blocking`].
///
/// The elements stay on the host too, shared with the [`SymmetricBlockMatrix`] that was uploaded. Solvers judge by the
/// matrix as it was given, and bring a copy of it in f32 to the card, once.
#[derive(Debug)]
pub struct DeviceBlockMatrix {
    host: SymmetricBlockMatrix,
    /// The same in f32, for solvers.
    exact: OnceLock<Box<DeviceBlockMatrix>>,
    /// The inverses of the diagonal blocks, for solvers.
    inverses: OnceLock<Buffer<f32>>,
    precision: Precision,
    channels: usize,
    n: usize,
    pairs: Buffer<u8>,
    zero_pair: u32,
    tile_refs: Buffer<u32>,
    prefixes: Buffer<u32>,
    kind_prefixes: Buffer<u32>,
    starts: Buffer<u32>,
    scales: Buffer<f32>,
    sums_exponent: i32,
    pairs_read: usize,
}

impl DeviceBlockMatrix {
    fn upload_blocking(stream: StreamRef<'_>, matrix: &SymmetricBlockMatrix, precision: Precision) -> Result<Self> {
        let packed = Packed::new(matrix, precision)?;
        Ok(Self {
            host: matrix.clone(),
            exact: OnceLock::new(),
            inverses: OnceLock::new(),
            precision,
            channels: matrix.channels(),
            n: matrix.n(),
            pairs: Buffer::upload_blocking(stream, &packed.pairs)?,
            zero_pair: packed.zero_pair,
            tile_refs: Buffer::upload_blocking(stream, &packed.tile_refs)?,
            prefixes: Buffer::upload_blocking(stream, &packed.prefixes)?,
            kind_prefixes: Buffer::upload_blocking(stream, &packed.kind_prefixes)?,
            starts: Buffer::upload_blocking(stream, &packed.starts)?,
            scales: Buffer::upload_blocking(stream, &packed.scales)?,
            sums_exponent: packed.sums_exponent,
            pairs_read: packed.pairs_read,
        })
    }

    /// What products with it are computed in.
    #[must_use]
    pub const fn precision(&self) -> Precision {
        self.precision
    }

    /// The number of matrices.
    #[must_use]
    pub const fn channels(&self) -> usize {
        self.channels
    }

    /// Rows of each matrix.
    #[must_use]
    pub const fn n(&self) -> usize {
        self.n
    }

    /// The card that holds it.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        self.pairs.gpu()
    }

    /// Device memory that it takes, with what solvers have added.
    #[must_use]
    pub fn footprint_bytes(&self) -> usize {
        let lists = [&self.tile_refs, &self.prefixes, &self.kind_prefixes, &self.starts];
        let words = lists.map(Buffer::len).iter().sum::<usize>() + self.scales.len();
        let exact = self.exact.get().map_or(0, |exact| exact.footprint_bytes());
        let inverses = self.inverses.get().map_or(0, |inverses| inverses.len() * size_of::<f32>());
        self.pairs.len() + words * size_of::<u32>() + exact + inverses
    }

    /// The matrix in f32, as it was given, on the same card.
    fn exact(&self) -> Result<&Self> {
        if self.precision == Precision::F32 {
            return Ok(self);
        }
        let upload = |gpu: &Gpu| self.host.upload_blocking(gpu.new_stream()?.as_ref(), Precision::F32);
        kept(&self.exact, || upload(self.gpu()).map(Box::new)).map(Box::as_ref)
    }

    /// The inverses of the blocks of the main diagonal, `[channels][block_rows][16][16]`, on the same card.
    fn inverses(&self) -> Result<&Buffer<f32>> {
        let upload = |gpu: &Gpu| Buffer::upload_blocking(&gpu.new_stream()?, &precondition::inverses(&self.host));
        kept(&self.inverses, || upload(self.gpu()))
    }

    /// Bytes of the matrix that one product reads, each stored pair of blocks as often as it is used.
    #[must_use]
    pub fn bytes_read(&self) -> usize {
        self.pairs_read * self.precision.pair_bytes()
    }

    /// Computes `Y = A X` on `stream` and returns before it is done. X and Y are `[frames, channels, n]`; Y is
    /// overwritten.
    ///
    /// The result is the same, bit by bit, in every run of one variant. A is zero where nothing is stored. But tiles of
    /// 32x32 elements with a stored pair of blocks are multiplied as a whole. So an infinity or NaN in X makes NaN in
    /// every row of Y whose tile has a column for it, even where the element of A is 0.
    ///
    /// # Errors
    /// [`Error::Shape`] for tensors that do not fit, [`Error::WrongDevice`], before anything is enqueued; those of
    /// loading the kernel; [`Error::Driver`] where the driver refuses the launch.
    pub fn multiply(&self, stream: StreamRef<'_>, x: TensorRef<'_, f32, 3>, y: TensorMut<'_, f32, 3>) -> Result<()> {
        AtaPlan::new(self, x.shape()[0], &AtaOptions::default())?.run(stream, x, y)
    }
}

/// A chosen and loaded variant for repeated products of one matrix with one number of frames. Displays as the variant's
/// name.
#[derive(Clone)]
#[must_use = "a plan computes nothing until it is run"]
pub struct AtaPlan<'a> {
    matrix: &'a DeviceBlockMatrix,
    frames: usize,
    variant: &'static AtaConfig,
    blocks: u32,
    overlaps: bool,
    kernel: Kernel,
}

impl<'a> AtaPlan<'a> {
    /// Chooses a variant and loads it.
    ///
    /// # Errors
    /// [`Error::UnknownVariant`] where the named variant does not multiply matrices of this precision;
    /// [`Error::Argument`] for more frames than a grid has blocks; those of loading a module.
    pub fn new(matrix: &'a DeviceBlockMatrix, frames: usize, options: &AtaOptions) -> Result<Self> {
        let at_once = |row: &AtaConfig| {
            let resident = u64::from(row.min_blocks) * u64::from(matrix.gpu().multiprocessors());
            row.blocks(frames, matrix.channels, matrix.n).is_some_and(|blocks| u64::from(blocks) <= resident)
        };
        let variant = match &options.variant {
            Some(name) => named(name, matrix.precision)?,
            None => preferred(matrix.precision, frames, at_once),
        };
        // Frames are counted in 32 bits, with room for a tile more.
        let blocks = variant.blocks(frames, matrix.channels, matrix.n).filter(|_| i32::try_from(frames).is_ok());
        let blocks = blocks.ok_or_else(|| Error::Argument {
            op: OP,
            argument: "frames * channels * n",
            got: format!("{frames} * {} * {}", matrix.channels, matrix.n),
            expected: format!(
                "at most 2^31 - 1 blocks of {} frames and {} rows: split the frames",
                variant.frames,
                variant.rows()
            ),
        })?;
        // What the kernels of older architectures do not wait for must have ended.
        let arch = options.arch.unwrap_or_else(|| matrix.gpu().arch());
        let overlaps = !options.isolated && arch >= Arch::Sm90a;
        let kernel = matrix.gpu().kernel_for("ata", arch, variant.name)?;
        Ok(Self { matrix, frames, variant, blocks, overlaps, kernel })
    }

    /// The chosen variant.
    #[must_use]
    pub const fn variant(&self) -> &'static AtaConfig {
        self.variant
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
    pub fn run(&self, stream: StreamRef<'_>, x: TensorRef<'_, f32, 3>, y: TensorMut<'_, f32, 3>) -> Result<()> {
        let matrix = self.matrix;
        let expected = [self.frames, matrix.channels, matrix.n];
        for (tensor, got) in [("X", x.shape()), ("Y", y.shape())] {
            if *got != expected {
                return Err(Error::Shape { op: OP, tensor, got: got.to_vec(), expected: expected.to_vec() });
            }
        }
        let ordinals = [("A", matrix.gpu().ordinal()), ("X", x.ordinal()), ("Y", y.ordinal())];
        for (what, got) in ordinals {
            if got != stream.ordinal() {
                return Err(Error::WrongDevice { what, got, expected: stream.ordinal() });
            }
        }
        if self.blocks == 0 {
            return Ok(());
        }
        let strides = |&[frame, channel, _]: &[i64; 3]| AtaStrides { frame, channel };
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
            x_strides: strides(x.strides()),
            y_strides: strides(y.strides()),
            frames: self.frames as u32,
            n: matrix.n as u32,
            strips: Divisor::new(matrix.n.div_ceil(STRIP_ROWS) as u32),
            frame_tiles: Divisor::new(self.variant.frame_tiles(self.frames) as u32),
            x_aligned: u32::from(rows_aligned(x.as_raw(), x.shape(), x.strides())),
            zero_pair: matrix.zero_pair,
            factor_limit,
            inverse_base,
        };
        let config = LaunchConfig {
            grid: [self.blocks, 1, 1],
            block: [self.variant.threads(), 1, 1],
            shared_bytes: self.variant.smem().total_bytes(),
            overlaps: self.overlaps,
            ..LaunchConfig::default()
        };
        // SAFETY: grid, block and shared memory are the variant's, the matrix is of its precision, and the views are
        // tensors of the plan's sizes; the memory of all of them is kept by its owners until the stream has done the
        // work.
        unsafe { self.kernel.launch(stream, &config, &[&args]) }
    }
}

impl fmt::Display for AtaPlan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.variant.name)
    }
}

impl fmt::Debug for AtaPlan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtaPlan")
            .field("variant", &self.variant.name)
            .field("frames", &self.frames)
            .finish_non_exhaustive()
    }
}

// SAFETY: plain `repr(C)` data without padding between what the kernels read.
unsafe impl KernelParam for AtaArgs {}

/// What `cell` keeps, or else what `make` gives it to keep.
fn kept<T>(cell: &OnceLock<T>, make: impl FnOnce() -> Result<T>) -> Result<&T> {
    match cell.get() {
        Some(value) => Ok(value),
        None => {
            let value = make()?;
            Ok(cell.get_or_init(|| value))
        }
    }
}

/// Whether every row of a tensor of f32 starts on a 16-byte boundary.
fn rows_aligned(address: u64, shape: &[usize; 3], strides: &[i64; 3]) -> bool {
    let steps_aligned = shape.iter().zip(strides).take(2).all(|(&len, stride)| len <= 1 || stride % 4 == 0);
    address.is_multiple_of(16) && steps_aligned
}

fn named(name: &str, precision: Precision) -> Result<&'static AtaConfig> {
    ata_variants(precision).find(|variant| variant.name == name).ok_or_else(|| Error::UnknownVariant {
        op: OP,
        name: name.to_owned(),
        known: ata_variants(precision).map(|variant| variant.name).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variant_is_found_by_name_only_for_its_precision() {
        for precision in Precision::ALL {
            let name = preferred(precision, 8, |_| true).name;
            assert_eq!(named(name, precision).map(|variant| variant.name), Ok(name));
            let others = Precision::ALL.into_iter().filter(|other| *other != precision);
            for other in others {
                assert!(matches!(named(name, other), Err(Error::UnknownVariant { .. })));
            }
        }
    }

    #[test]
    fn rows_are_aligned_where_address_and_the_strides_in_use_are() {
        assert!(rows_aligned(256, &[2, 3, 17], &[60, 20, 1]));
        assert!(!rows_aligned(264, &[2, 3, 17], &[60, 20, 1]));
        assert!(!rows_aligned(256, &[2, 3, 17], &[51, 17, 1]));
        assert!(rows_aligned(256, &[1, 1, 17], &[51, 17, 1]), "a dimension of one is never stepped along");
    }
}
