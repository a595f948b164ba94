//! Tensors of a problem on a device: inputs with poison between their elements, and outputs that show what was written.

use ferrotile::{Buffer, Float, Result, Stream, TensorMut, TensorRef};
use ndarray::{ArrayD, IxDyn};

use super::cell::Cell;
use super::check;
use super::family::Bench;
use super::outcome::{Failure, Kind};
use super::placement::{Placement, View};

/// Elements before and after an output, which a run must not change. The number is a multiple of every vector width, so
/// that the output keeps the alignment of its buffer.
const BAND: usize = 256;

/// Why making a tensor cannot fail.
const FITS: &str = "the buffer was made for the view";

/// An element type of inputs and outputs.
pub(crate) trait FloatCell: Float + Cell {}
impl<T: Float + Cell> FloatCell for T {}

/// An input on the device. What lies between its elements is poison, and shows where it is read.
pub(crate) struct Input<T, const RANK: usize> {
    view: View<RANK>,
    storage: Vec<T>,
    buffer: Buffer<T>,
}

impl<T: FloatCell, const RANK: usize> Input<T, RANK> {
    /// Copies values, in C order, to where `placement` has them.
    pub(crate) fn new(bench: &Bench, placement: &Placement, shape: [usize; RANK], values: &[T]) -> Result<Self> {
        let view = placement.view(shape);
        let mut storage = vec![T::POISON; view.storage_len()];
        view.scatter(values, &mut storage);
        Self::stored(bench, view, storage)
    }

    /// A view of a storage that is complete.
    pub(crate) fn stored(bench: &Bench, view: View<RANK>, storage: Vec<T>) -> Result<Self> {
        let buffer = Buffer::upload_blocking(&bench.streams[0], &storage)?;
        Ok(Self { view, storage, buffer })
    }

    /// The elements that the view shows, in C order.
    pub(crate) fn wide(&self) -> Vec<f64> {
        self.view.gather(&self.storage).into_iter().map(Float::to_f64).collect()
    }

    /// The elements that the view shows, as an array.
    pub(crate) fn array(&self) -> ArrayD<f64> {
        ArrayD::from_shape_vec(IxDyn(&self.view.shape), self.wide()).expect("the elements fill the shape")
    }

    /// The tensor, its dimensions as `order` brings them.
    pub(crate) fn tensor(&self, order: impl Fn([i64; RANK]) -> [i64; RANK]) -> TensorRef<'_, T, RANK> {
        let shape = order(self.view.shape.map(|size| size as i64)).map(|size| size as usize);
        TensorRef::strided(&self.buffer, self.view.offset, shape, order(self.view.strides)).expect(FITS)
    }

    /// The tensor.
    pub(crate) fn plain(&self) -> TensorRef<'_, T, RANK> {
        self.tensor(|dimensions| dimensions)
    }
}

/// An output on the device, poison throughout until something is written, with a guard band on either side.
pub(crate) struct Output<T, const RANK: usize> {
    view: View<RANK>,
    buffer: Buffer<T>,
    name: &'static str,
}

impl<T: Cell, const RANK: usize> Output<T, RANK> {
    /// An output that lies as `placement` says; the poison is on `stream` before what follows there.
    pub(crate) fn new(
        bench: &Bench,
        stream: &Stream,
        name: &'static str,
        placement: &Placement,
        shape: [usize; RANK],
    ) -> Result<Self> {
        let mut view = placement.view(shape);
        let len = view.storage_len() + 2 * BAND;
        view.offset += BAND;
        let mut buffer = Buffer::zeroed(&bench.gpu, len)?;
        buffer.fill_bytes(stream, u8::MAX)?;
        Ok(Self { view, buffer, name })
    }

    /// The tensor, its dimensions as `order` brings them.
    pub(crate) fn tensor(&mut self, order: impl Fn([i64; RANK]) -> [i64; RANK]) -> TensorMut<'_, T, RANK> {
        let shape = order(self.view.shape.map(|size| size as i64)).map(|size| size as usize);
        TensorMut::strided(&mut self.buffer, self.view.offset, shape, order(self.view.strides)).expect(FITS)
    }

    /// The tensor.
    pub(crate) fn plain(&mut self) -> TensorMut<'_, T, RANK> {
        self.tensor(|dimensions| dimensions)
    }

    /// Waits for the stream and returns the output, in C order, after a check that nothing else was written.
    pub(crate) fn read(&self, stream: &Stream) -> std::result::Result<Vec<T>, Failure> {
        let mut storage = self.buffer.download_blocking(stream)?;
        let output = self.view.gather(&storage);
        self.view.scatter(&vec![T::POISON; output.len()], &mut storage);
        match storage.iter().position(|x| !x.is_poison()) {
            None => Ok(output),
            Some(index) => {
                let at = index as i64 - self.view.offset as i64;
                let text =
                    format!("{}: element {at} of the storage was written, which is none of the output", self.name);
                Err(Failure::new(Kind::StrayWrite, text))
            }
        }
    }

    /// Waits for the stream and checks that nothing at all was written.
    pub(crate) fn check_untouched(&self, stream: &Stream) -> std::result::Result<(), Failure> {
        if self.buffer.download_blocking(stream)?.iter().all(|x| x.is_poison()) {
            return Ok(());
        }
        Err(Failure::new(Kind::StrayWrite, format!("{} was written by a call that was refused", self.name)))
    }

    /// Checks that two runs gave the same bits.
    pub(crate) fn check_same(&self, runs: [&[T]; 2]) -> std::result::Result<(), Failure> {
        check::same(self.name, runs, &self.view.shape)
    }
}
