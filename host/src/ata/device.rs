//! The matrix on a card.

use std::sync::OnceLock;

use variants::ata::Precision;

use super::matrix::SymmetricBlockMatrix;
use super::pack::Packed;
use super::precondition;
use crate::error::Result;
use crate::runtime::buffer::Buffer;
use crate::runtime::gpu::Gpu;
use crate::runtime::stream::StreamRef;

/// A symmetric block matrix on a card, in one precision. Made by [`SymmetricBlockMatrix::upload_blocking`].
///
/// The elements stay on the host too, shared with the [`SymmetricBlockMatrix`] that was uploaded. Solvers judge by the
/// matrix as it was given, and bring a copy of it in f32 to the card, once.
///
/// ```
/// use ferrotile::{Arch, Gpu, Buffer, Precision, SymmetricBlockMatrix, TensorMut, TensorRef};
/// use ndarray::Array3;
///
/// // 3 on the diagonal and -1 beside it, as SciPy's `dia_array` holds the upper half.
/// let data = Array3::from_shape_fn((1, 2, 32), |(_, diagonal, _)| if diagonal == 0 { 3.0 } else { -1.0 });
/// let host = SymmetricBlockMatrix::from_diagonals(32, &[0, 1], data.view())?;
///
/// let gpu = Gpu::emulated(Arch::Sm80);
/// let stream = gpu.new_stream()?;
/// let matrix = host.upload_blocking(&stream, Precision::Tf32)?;
/// let (x, mut y) = (Buffer::upload_blocking(&stream, &[1.0_f32; 8 * 32])?, Buffer::zeroed(&gpu, 8 * 32)?);
/// let shape = [8, 1, 32]; // frames, channels, n
/// matrix.multiply(&stream, TensorRef::contiguous(&x, shape)?, TensorMut::contiguous(&mut y, shape)?)?;
/// let y: Vec<f32> = y.download_blocking(&stream)?;
/// assert_eq!((y[0], y[1]), (2.0, 1.0));
/// # Ok::<(), ferrotile::Error>(())
/// ```
#[derive(Debug)]
pub struct DeviceBlockMatrix {
    host: SymmetricBlockMatrix,
    /// The same in f32, for solvers.
    exact: OnceLock<Box<DeviceBlockMatrix>>,
    /// The inverses of the diagonal blocks, for solvers.
    inverses: OnceLock<Buffer<f32>>,
    pub(super) precision: Precision,
    pub(super) channels: usize,
    pub(super) n: usize,
    pub(super) pairs: Buffer<u8>,
    pub(super) zero_pair: u32,
    pub(super) tile_refs: Buffer<u32>,
    pub(super) prefixes: Buffer<u32>,
    pub(super) kind_prefixes: Buffer<u32>,
    pub(super) starts: Buffer<u32>,
    pub(super) scales: Buffer<f32>,
    pub(super) sums_exponent: i32,
    pairs_read: usize,
}

impl SymmetricBlockMatrix {
    /// Stores it on the stream's card, and waits for the stream.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) where it has more pairs of blocks than 32 bits count, and those of
    /// allocating and copying.
    pub fn upload_blocking<'s>(
        &self,
        stream: impl Into<StreamRef<'s>>,
        precision: Precision,
    ) -> Result<DeviceBlockMatrix> {
        DeviceBlockMatrix::upload_blocking(stream.into(), self, precision)
    }
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
    pub(super) fn exact(&self) -> Result<&Self> {
        if self.precision == Precision::F32 {
            return Ok(self);
        }
        let upload = |gpu: &Gpu| self.host.upload_blocking(gpu.new_stream()?.as_ref(), Precision::F32);
        kept(&self.exact, || upload(self.gpu()).map(Box::new)).map(Box::as_ref)
    }

    /// The inverses of the blocks of the main diagonal, `[channels][block_rows][16][16]`, on the same card.
    pub(super) fn inverses(&self) -> Result<&Buffer<f32>> {
        let upload = |gpu: &Gpu| Buffer::upload_blocking(&gpu.new_stream()?, &precondition::inverses(&self.host));
        kept(&self.inverses, || upload(self.gpu()))
    }

    /// Bytes of the matrix that one product reads, each stored pair of blocks as often as it is used.
    #[must_use]
    pub fn bytes_read(&self) -> usize {
        self.pairs_read * self.precision.pair_bytes()
    }
}

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
