//! Device memory and page-locked host memory.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use ndarray::{Array, ArrayView, Dimension, IntoDimension};

use crate::element::Element;
use crate::error::{Error, Result};
use crate::runtime::buffer_slice::{BufferSlice, BufferSliceMut, same_length};
use crate::runtime::gpu::Gpu;
use crate::runtime::param::KernelParam;
use crate::runtime::stream::{Event, StreamRef};

/// The size of `shape` elements of `T`, if an array of that shape fits the address space: dimensions of 0 do not make
/// the others smaller.
pub(crate) fn size_bytes<T>(shape: &[usize]) -> Result<usize> {
    let bytes = shape
        .iter()
        .try_fold(size_of::<T>(), |bytes, &dim| bytes.checked_mul(dim.max(1)))
        .filter(|&bytes| bytes <= isize::MAX as usize)
        .ok_or_else(|| Error::TooLarge {
            shape: shape.to_vec(),
            element_bytes: size_of::<T>(),
            available_bytes: None,
        })?;
    Ok(if shape.contains(&0) { 0 } else { bytes })
}

/// Device memory for `len` elements, aligned to 256 bytes.
///
/// Dropping it while kernels use it is safe: the driver waits for all work of the card's context before it frees
/// memory. A pool of buffers that are used again avoids that wait.
///
/// ```
/// use ferrotile::{Arch, Buffer, Gpu};
///
/// let gpu = Gpu::emulated(Arch::Sm80);
/// let stream = gpu.new_stream()?;
/// let mut buffer = Buffer::upload_blocking(&stream, &[1.0_f32, 2.0, 3.0])?;
/// buffer.slice_mut(..1)?.overwrite_blocking(&stream, &[8.0])?;
/// assert_eq!(buffer.download_blocking(&stream)?, [8.0, 2.0, 3.0]);
/// # Ok::<(), ferrotile::Error>(())
/// ```
pub struct Buffer<T> {
    gpu: Gpu,
    /// 0 for an empty buffer, which has no allocation.
    address: u64,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Element> Buffer<T> {
    /// Memory with unspecified content, for the constructors that overwrite all of it.
    fn allocate(gpu: &Gpu, len: usize) -> Result<Buffer<T>> {
        let bytes = size_bytes::<T>(&[len])?;
        let address = if bytes == 0 { 0 } else { gpu.device().allocate(bytes)? };
        Ok(Buffer { gpu: gpu.clone(), address, len, element: PhantomData })
    }

    /// Allocates `len` zeros. They are there when it returns, for every stream; no stream of the caller's is waited
    /// for.
    ///
    /// # Errors
    /// [`Error::TooLarge`] for more elements than the address space has, [`Error::Driver`] without memory.
    pub fn zeroed(gpu: &Gpu, len: usize) -> Result<Buffer<T>> {
        let buffer = Buffer::allocate(gpu, len)?;
        if len > 0 {
            // SAFETY: the memory is new and as large.
            unsafe { gpu.device().clear_blocking(buffer.address, buffer.size_bytes()) }?;
        }
        Ok(buffer)
    }

    /// Allocates a copy of host data on the stream's card, and waits for the stream.
    ///
    /// # Errors
    /// [`Error::TooLarge`] for more elements than the address space has, [`Error::Driver`] without memory, and those of
    /// the copy.
    pub fn upload_blocking<'s>(stream: impl Into<StreamRef<'s>>, data: &[T]) -> Result<Buffer<T>> {
        let stream = stream.into();
        let mut buffer = Buffer::allocate(stream.gpu(), data.len())?;
        buffer.overwrite_blocking(stream, data)?;
        Ok(buffer)
    }

    /// Allocates a copy of an array in row-major order on the stream's card, and waits for the stream.
    ///
    /// # Errors
    /// As [`Buffer::upload_blocking`].
    pub fn upload_array_blocking<'s, D: Dimension>(
        stream: impl Into<StreamRef<'s>>,
        array: ArrayView<'_, T, D>,
    ) -> Result<Buffer<T>> {
        match array.as_slice() {
            Some(data) => Buffer::upload_blocking(stream, data),
            None => Buffer::upload_blocking(stream, &array.iter().copied().collect::<Vec<_>>()),
        }
    }

    /// Overwrites the buffer with host data of the same length, and waits for the stream.
    ///
    /// # Errors
    /// [`Error::Length`] for another length, [`Error::WrongDevice`] for a stream of another card, and those of the
    /// copy.
    pub fn overwrite_blocking<'s>(&mut self, stream: impl Into<StreamRef<'s>>, data: &[T]) -> Result<()> {
        self.as_mut_slice().overwrite_blocking(stream, data)
    }

    /// Copies the elements to the host, and waits for the stream.
    ///
    /// # Errors
    /// [`Error::WrongDevice`] for a stream of another card, and those of the copy.
    pub fn download_blocking<'s>(&self, stream: impl Into<StreamRef<'s>>) -> Result<Vec<T>> {
        self.as_slice().download_blocking(stream)
    }

    /// Copies the elements to an array of this shape in row-major order, and waits for the stream.
    ///
    /// # Errors
    /// [`Error::Length`] for a shape of another number of elements, and those of [`Buffer::download_blocking`].
    pub fn download_array_blocking<'s, S: IntoDimension>(
        &self,
        stream: impl Into<StreamRef<'s>>,
        shape: S,
    ) -> Result<Array<T, S::Dim>> {
        let shape = shape.into_dimension();
        same_length("Buffer::download_array_blocking", size_bytes::<T>(shape.slice())? / size_of::<T>(), self.len)?;
        let data = self.download_blocking(stream)?;
        Ok(Array::from_shape_vec(shape, data).expect("the length is that of the shape"))
    }

    /// Sets every byte to `value`, in the order of the stream.
    ///
    /// # Errors
    /// [`Error::WrongDevice`] for a stream of another card, and those of the driver.
    pub fn fill_bytes<'s>(&mut self, stream: impl Into<StreamRef<'s>>, value: u8) -> Result<()> {
        self.as_mut_slice().fill_bytes(stream, value)
    }

    /// Overwrites the elements from `offset` on with those of another buffer of the card, in the order of the stream.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] where they do not fit, [`Error::WrongDevice`] for a buffer of another card.
    pub fn copy_from<'s>(&mut self, stream: impl Into<StreamRef<'s>>, offset: usize, source: &Buffer<T>) -> Result<()> {
        let end = offset.saturating_add(source.len);
        self.slice_mut(offset..end)?.copy_from(stream, source.as_slice())
    }

    /// Overwrites the buffer with pinned memory of the same length, in the order of the stream.
    ///
    /// # Errors
    /// [`Error::Length`] for another length, [`Error::WrongDevice`] for a stream of another card, [`Error::Driver`] in
    /// a capture.
    pub fn copy_from_pinned<'s>(&mut self, stream: impl Into<StreamRef<'s>>, source: &PinnedBuffer<T>) -> Result<()> {
        same_length("Buffer::copy_from_pinned", source.len, self.len)?;
        let stream = stream.into();
        stream.on("buffer", &self.gpu)?;
        source.enqueue(stream, |handle| {
            // SAFETY: both ranges have as many bytes; `source` waits for the copy before it is written or freed, and
            // freeing this buffer waits for it too.
            unsafe {
                let bytes = source.address.as_ptr().cast_const().cast();
                self.gpu.device().copy_to_device(handle, self.address, bytes, self.size_bytes())
            }
        })
    }

    /// Overwrites pinned memory of the same length with the buffer, in the order of the stream.
    ///
    /// # Errors
    /// [`Error::Length`] for another length, [`Error::WrongDevice`] for a stream of another card, [`Error::Driver`] in
    /// a capture.
    pub fn copy_to_pinned<'s>(
        &self,
        stream: impl Into<StreamRef<'s>>,
        destination: &mut PinnedBuffer<T>,
    ) -> Result<()> {
        same_length("Buffer::copy_to_pinned", destination.len, self.len)?;
        let stream = stream.into();
        stream.on("buffer", &self.gpu)?;
        destination.enqueue(stream, |handle| {
            // SAFETY: both ranges have as many bytes, of which every pattern is a `T`; `destination` waits for the copy
            // before it is accessed or freed, and freeing this buffer waits for it too.
            unsafe {
                let bytes = destination.address.as_ptr().cast();
                self.gpu.device().copy_to_host(handle, bytes, self.address, self.size_bytes())
            }
        })
    }
}

impl<T> Buffer<T> {
    /// A buffer that frees the allocation at `address`, which is 0 for no elements.
    ///
    /// # Safety
    /// The allocation is one of this card's `cuMemAlloc`, has `len` elements, and belongs to the buffer from now on.
    #[cfg(feature = "cust")]
    pub(crate) unsafe fn from_allocation(gpu: &Gpu, address: u64, len: usize) -> Buffer<T> {
        Buffer { gpu: gpu.clone(), address, len, element: PhantomData }
    }

    /// Some of the elements, for reading.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] where the range leaves the buffer.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<BufferSlice<'_, T>> {
        self.as_slice().slice(range)
    }

    /// Some of the elements, for writing.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] where the range leaves the buffer.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<BufferSliceMut<'_, T>> {
        let (address, len) = {
            let slice = self.slice(range)?;
            (slice.as_raw(), slice.len())
        };
        // SAFETY: the elements are some of this buffer, which is borrowed for writing; freeing it waits for work.
        Ok(unsafe { BufferSliceMut::new(&self.gpu, address, len) })
    }

    /// All elements, for reading.
    #[must_use]
    pub const fn as_slice(&self) -> BufferSlice<'_, T> {
        // SAFETY: the elements are those of this buffer; freeing it waits for work.
        unsafe { BufferSlice::new(&self.gpu, self.address, self.len) }
    }

    /// All elements, for writing.
    #[must_use]
    pub const fn as_mut_slice(&mut self) -> BufferSliceMut<'_, T> {
        // SAFETY: the elements are those of this buffer, which is borrowed for writing; freeing it waits for work.
        unsafe { BufferSliceMut::new(&self.gpu, self.address, self.len) }
    }

    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The card that holds the memory.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The device address (`CUdeviceptr`); 0 for an empty buffer.
    #[must_use]
    pub fn as_raw(&self) -> u64 {
        self.address
    }

    fn size_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }
}

// SAFETY: the address is the card's, of elements that stay there while the buffer does.
unsafe impl<T> KernelParam for Buffer<T> {
    fn as_param(&self) -> (*const c_void, usize) {
        self.address.as_param()
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        if self.address != 0 {
            // SAFETY: the allocation is this buffer's own; views borrow the buffer.
            unsafe { self.gpu.device().free(self.address) };
        }
    }
}

impl<T> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} elements at {:#x} on device {})", self.len, self.address, self.gpu.ordinal())
    }
}

/// Page-locked host memory, which copies reach without the host's help: [`Buffer::copy_from_pinned`] and
/// [`Buffer::copy_to_pinned`] return before the copy is done.
///
/// Access to the elements waits for the copies that were enqueued, and so does dropping it. Copies cannot be part of a
/// captured graph: they wait for one another by an event outside it.
///
/// ```
/// use ferrotile::{Arch, Buffer, Gpu, PinnedBuffer};
///
/// let gpu = Gpu::emulated(Arch::Sm80);
/// let stream = gpu.new_stream()?;
/// let (mut host, mut device) = (PinnedBuffer::<i32>::zeroed(&gpu, 2)?, Buffer::zeroed(&gpu, 2)?);
/// host.as_mut_slice_blocking()?.copy_from_slice(&[3, 4]);
/// device.copy_from_pinned(&stream, &host)?; // returns before the copy is done
/// assert_eq!(device.download_blocking(&stream)?, [3, 4]);
/// # Ok::<(), ferrotile::Error>(())
/// ```
pub struct PinnedBuffer<T> {
    gpu: Gpu,
    /// Dangling for an empty buffer, which has no allocation.
    address: NonNull<T>,
    len: usize,
    /// Behind every copy that was enqueued, on whatever stream.
    copied: Mutex<Event>,
}

// SAFETY: the memory is owned, and every use of it from `&self` is a read or under the lock.
unsafe impl<T: Send> Send for PinnedBuffer<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for PinnedBuffer<T> {}

impl<T: Element> PinnedBuffer<T> {
    /// Allocates `len` zeros.
    ///
    /// # Errors
    /// [`Error::TooLarge`] for more elements than the address space has, [`Error::Driver`] without memory.
    pub fn zeroed(gpu: &Gpu, len: usize) -> Result<PinnedBuffer<T>> {
        let bytes = size_bytes::<T>(&[len])?;
        let copied = gpu.new_event()?;
        // Waiting for an event that was never recorded is nothing, which a capture would accept.
        copied.record(gpu.new_stream()?.as_ref())?;
        let copied = Mutex::new(copied);
        let mut address = NonNull::dangling();
        if bytes > 0 {
            let memory = NonNull::new(gpu.device().allocate_pinned(bytes)?).expect("the driver reports failure");
            // SAFETY: the memory is new and as large; pages are aligned for every element.
            unsafe { memory.write_bytes(0, bytes) };
            address = memory.cast();
        }
        Ok(PinnedBuffer { gpu: gpu.clone(), address, len, copied })
    }

    /// The elements, once the copies that were enqueued are done.
    ///
    /// # Errors
    /// Those of the copies that were enqueued.
    pub fn as_slice_blocking(&self) -> Result<&[T]> {
        self.wait()?;
        // SAFETY: the memory holds `len` elements, and no copy writes to it: enqueueing one takes `&mut self`.
        Ok(unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.len) })
    }

    /// The elements for writing, once the copies that were enqueued are done.
    ///
    /// # Errors
    /// Those of the copies that were enqueued.
    pub fn as_mut_slice_blocking(&mut self) -> Result<&mut [T]> {
        self.wait()?;
        // SAFETY: the memory holds `len` elements, and no copy uses it: enqueueing one takes a borrow of `self`.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.len) })
    }
}

impl<T> PinnedBuffer<T> {
    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn wait(&self) -> Result<()> {
        self.copied.lock().unwrap_or_else(PoisonError::into_inner).synchronize()
    }

    /// Enqueues a copy behind all copies that were enqueued before, on other streams too, so that the event stands for
    /// all of them.
    fn enqueue(&self, stream: StreamRef<'_>, copy: impl FnOnce(crate::backend::Handle) -> Result<()>) -> Result<()> {
        if self.len == 0 {
            return Ok(());
        }
        let handle = stream.on("pinned buffer", &self.gpu)?;
        let copied = self.copied.lock().unwrap_or_else(PoisonError::into_inner);
        stream.wait_for(&copied)?;
        copy(handle)?;
        copied.record(stream).inspect_err(|_| {
            // The event does not stand for the copy, so the copy is over before this returns.
            let _ = self.gpu.synchronize();
        })
    }
}

impl<T> Drop for PinnedBuffer<T> {
    fn drop(&mut self) {
        // Where waiting fails a copy may be in flight, and the memory stays allocated.
        if self.len > 0 && self.wait().is_ok() {
            // SAFETY: the allocation is this buffer's own, and its copies are done.
            unsafe { self.gpu.device().free_pinned(self.address.as_ptr().cast()) };
        }
    }
}

impl<T> fmt::Debug for PinnedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedBuffer({} elements)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_overflow_are_errors() {
        assert_eq!(size_bytes::<f32>(&[2, 3]), Ok(24));
        assert_eq!(size_bytes::<f32>(&[2, 0, 3]), Ok(0));
        for shape in [[usize::MAX, 0], [0, usize::MAX]] {
            let too_large = Error::TooLarge { shape: shape.to_vec(), element_bytes: 4, available_bytes: None };
            assert_eq!(size_bytes::<f32>(&shape), Err(too_large));
            assert!(Array::from_shape_vec(shape, Vec::<f32>::new()).is_err(), "an array of the shape does not exist");
        }
        assert!(size_bytes::<u8>(&[isize::MAX as usize]).is_ok());
        assert!(size_bytes::<u8>(&[isize::MAX as usize + 1]).is_err());
    }

    #[test]
    fn lengths_that_differ_are_named() {
        let error = same_length("Buffer::overwrite_blocking", 3, 4).unwrap_err();
        assert_eq!(error.to_string(), "Buffer::overwrite_blocking: 3 elements, expected 4");
    }

    #[test]
    fn buffers_may_be_sent_and_shared() {
        fn shared<T: Send + Sync>() {}
        shared::<Buffer<f32>>();
        shared::<PinnedBuffer<f32>>();
    }
}
