//! The feature `cudarc`: contexts, streams and memory of the crate cudarc.

use std::fmt;

use ::cudarc::driver::{CudaContext, CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop};

use crate::element::Element;
use crate::error::{Error, Result};
use crate::runtime::buffer_slice::{BufferSlice, BufferSliceMut};
use crate::runtime::gpu::Gpu;
use crate::runtime::stream::StreamRef;

/// The card of a context, which must be the primary one.
fn card_of(context: &CudaContext) -> Result<&'static Gpu> {
    let ordinal = u32::try_from(context.ordinal()).unwrap_or(u32::MAX);
    if context.is_primary() { Gpu::opened(ordinal) } else { Err(Error::ForeignContext { ordinal }) }
}

impl Gpu {
    /// The card of a context of cudarc, with the feature `cudarc`.
    ///
    /// # Errors
    /// [`Error::ForeignContext`] unless it is the card's primary context, and those of [`Gpu::new`].
    pub fn from_cudarc(context: &CudaContext) -> Result<Gpu> {
        card_of(context).cloned()
    }
}

impl<'a> TryFrom<&'a CudaStream> for StreamRef<'a> {
    type Error = Error;

    /// Borrows a stream of cudarc, with the feature `cudarc`.
    ///
    /// # Errors
    /// [`Error::ForeignContext`] unless it is in the card's primary context, and those of [`Gpu::new`].
    fn try_from(stream: &'a CudaStream) -> Result<Self> {
        let gpu = card_of(stream.context())?;
        // SAFETY: the stream is live for `'a`, in the primary context.
        Ok(unsafe { StreamRef::from_raw(stream.cu_stream().cast(), gpu) })
    }
}

/// Memory of cudarc that work on one of its streams reads: a `CudaSlice`, `CudaView` or `CudaViewMut`.
///
/// The stream waits for what other streams of cudarc have written there. When this is dropped, cudarc learns that the
/// work which was enqueued on the stream until then reads the memory.
///
/// ```no_run
/// use cudarc::driver::CudaContext;
/// use ferrotile::{CudarcSlice, Gpu, StreamRef, TensorRef};
///
/// let context = CudaContext::new(0)?;
/// let stream = context.new_stream()?;
/// let q = stream.clone_htod(&[0.0_f32; 64])?;
/// // SAFETY: the work that reads `q` is enqueued on `stream` before `q` is dropped.
/// let q = unsafe { CudarcSlice::new(&q, &stream) }?;
/// let tensor = TensorRef::of_slice(q.as_slice(), [1, 64])?;
/// let stream = StreamRef::try_from(&*stream)?;
/// # let _ = (tensor, stream);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CudarcSlice<'a, T> {
    elements: BufferSlice<'a, T>,
    _read: SyncOnDrop<'a>,
}

/// Memory of cudarc that work on one of its streams writes: a `CudaSlice` or `CudaViewMut`.
///
/// As [`CudarcSlice`], for work that writes.
pub struct CudarcSliceMut<'a, T> {
    elements: BufferSliceMut<'a, T>,
    _written: SyncOnDrop<'a>,
}

impl<'a, T: Element> CudarcSlice<'a, T> {
    /// Memory that work on `stream` reads.
    ///
    /// # Safety
    /// The work that is given the elements is enqueued on `stream`, or on streams that `stream` waits for before this
    /// is dropped.
    ///
    /// # Errors
    /// [`Error::ForeignContext`] unless the memory is in the card's primary context, [`Error::WrongDevice`] for a
    /// stream of another card, and those of [`Gpu::new`].
    pub unsafe fn new(memory: &'a impl DevicePtr<T>, stream: &'a CudaStream) -> Result<Self> {
        let gpu = card(memory, stream)?;
        let len = memory.len();
        let (address, read) = memory.device_ptr(stream);
        // SAFETY: the memory has `len` elements; the caller's promise, and cudarc's.
        Ok(CudarcSlice { elements: unsafe { BufferSlice::new(gpu, address, len) }, _read: read })
    }

    /// The elements.
    #[must_use]
    pub fn as_slice(&self) -> BufferSlice<'_, T> {
        self.elements
    }
}

impl<'a, T: Element> CudarcSliceMut<'a, T> {
    /// Memory that work on `stream` writes.
    ///
    /// # Safety
    /// As for [`CudarcSlice::new`].
    ///
    /// # Errors
    /// As [`CudarcSlice::new`].
    pub unsafe fn new(memory: &'a mut impl DevicePtrMut<T>, stream: &'a CudaStream) -> Result<Self> {
        let gpu = card(memory, stream)?;
        let len = memory.len();
        let (address, written) = memory.device_ptr_mut(stream);
        // SAFETY: the memory has `len` elements and is borrowed for writing; the caller's promise, and cudarc's.
        Ok(CudarcSliceMut { elements: unsafe { BufferSliceMut::new(gpu, address, len) }, _written: written })
    }

    /// The elements, for writing.
    pub fn as_mut_slice(&mut self) -> BufferSliceMut<'_, T> {
        // SAFETY: the elements are those of this value, which is borrowed for writing.
        unsafe { BufferSliceMut::new(self.elements.gpu(), self.elements.as_raw(), self.elements.len()) }
    }
}

/// The card of memory that a stream uses.
fn card<T>(memory: &impl DeviceSlice<T>, stream: &CudaStream) -> Result<&'static Gpu> {
    let (gpu, of_stream) = (card_of(memory.stream().context())?, card_of(stream.context())?);
    crate::checks::same_device("buffer", gpu.ordinal(), of_stream.ordinal())?;
    Ok(gpu)
}

impl<T> fmt::Debug for CudarcSlice<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CudarcSlice").field(&self.elements).finish()
    }
}

impl<T> fmt::Debug for CudarcSliceMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CudarcSliceMut").field(&self.elements).finish()
    }
}
