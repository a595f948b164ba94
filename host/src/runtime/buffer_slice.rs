//! Borrowed parts of device memory: what copies read and write.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use crate::element::Element;
use crate::error::{Error, Result};
use crate::runtime::gpu::Gpu;
use crate::runtime::param::KernelParam;
use crate::runtime::stream::StreamRef;

/// Reports host data of another length.
pub(crate) fn same_length(op: &'static str, got: usize, expected: usize) -> Result<()> {
    if got == expected { Ok(()) } else { Err(Error::Length { op, got, expected }) }
}

/// The first element of a range and the number of its elements, of a memory of `len` elements.
fn within(range: impl RangeBounds<usize>, len: usize) -> Result<(usize, usize)> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => len,
    };
    if start <= end && end <= len {
        Ok((start, end - start))
    } else {
        let shape = vec![end.saturating_sub(start)];
        Err(Error::OutOfBounds { shape, strides: vec![1], offset: start, len })
    }
}

/// Some elements of a [`Buffer`], one after the other, for reading.
///
/// ```
/// use ferrotile::{Arch, Buffer, Gpu};
///
/// let gpu = Gpu::emulated(Arch::Sm80);
/// let stream = gpu.new_stream()?;
/// let buffer = Buffer::upload_blocking(&stream, &[1, 2, 3, 4, 5])?;
/// assert_eq!(buffer.slice(1..3)?.download_blocking(&stream)?, [2, 3]);
/// assert!(buffer.slice(4..6).is_err());
/// # Ok::<(), ferrotile::Error>(())
/// ```
///
/// [`Buffer`]: crate::Buffer
pub struct BufferSlice<'a, T> {
    gpu: &'a Gpu,
    address: u64,
    len: usize,
    memory: PhantomData<&'a [T]>,
}

impl<T> Clone for BufferSlice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for BufferSlice<'_, T> {}

impl<'a, T> BufferSlice<'a, T> {
    /// # Safety
    /// The memory has `len` elements from `address` on and stays allocated for `'a`, and for the work that is enqueued
    /// meanwhile.
    pub(crate) const unsafe fn new(gpu: &'a Gpu, address: u64, len: usize) -> Self {
        BufferSlice { gpu, address, len, memory: PhantomData }
    }

    /// The number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The card that holds the memory.
    #[must_use]
    pub const fn gpu(&self) -> &'a Gpu {
        self.gpu
    }

    /// The device address (`CUdeviceptr`) of the first element.
    #[must_use]
    pub const fn as_raw(&self) -> u64 {
        self.address
    }

    /// Some of these elements, counted from the first.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] where the range leaves the slice.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<BufferSlice<'a, T>> {
        let (start, len) = within(range, self.len)?;
        let address = self.address + (start * size_of::<T>()) as u64;
        Ok(BufferSlice { gpu: self.gpu, address, len, memory: PhantomData })
    }

    pub(crate) const fn size_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }
}

impl<'a, T: Element> BufferSlice<'a, T> {
    /// The same bits as elements of another type of the same size.
    ///
    /// ```
    /// use ferrotile::{Arch, Buffer, Gpu};
    /// use half::f16;
    ///
    /// let gpu = Gpu::emulated(Arch::Sm80);
    /// let stream = gpu.new_stream()?;
    /// let bits = Buffer::upload_blocking(&stream, &[0x3c00_u16])?;
    /// assert_eq!(bits.as_slice().cast::<f16>().download_blocking(&stream)?, [f16::ONE]);
    /// # Ok::<(), ferrotile::Error>(())
    /// ```
    #[must_use]
    pub const fn cast<U: Element>(self) -> BufferSlice<'a, U> {
        const { assert!(size_of::<T>() == size_of::<U>(), "the types have different sizes") };
        let BufferSlice { gpu, address, len, .. } = self;
        BufferSlice { gpu, address, len, memory: PhantomData }
    }

    /// Copies the elements to the host, and waits for the stream.
    ///
    /// # Errors
    /// [`Error::WrongDevice`] for a stream of another card, and those of the copy.
    pub fn download_blocking<'s>(&self, stream: impl Into<StreamRef<'s>>) -> Result<Vec<T>> {
        let handle = stream.into().on("buffer", self.gpu)?;
        let mut data = vec![T::default(); self.len];
        if self.len > 0 {
            let device = self.gpu.device();
            // SAFETY: both ranges have `size_bytes` bytes, of which every pattern is a `T`; `data` is borrowed until
            // the copy is done.
            unsafe { device.copy_to_host(handle, data.as_mut_ptr().cast(), self.address, self.size_bytes()) }?;
            device.synchronize_stream(handle)?;
        }
        Ok(data)
    }
}

// SAFETY: the address is the card's, of elements that stay there while the slice does.
unsafe impl<T> KernelParam for BufferSlice<'_, T> {
    fn as_param(&self) -> (*const c_void, usize) {
        self.address.as_param()
    }
}

// SAFETY: as above.
unsafe impl<T> KernelParam for BufferSliceMut<'_, T> {
    fn as_param(&self) -> (*const c_void, usize) {
        self.slice.as_param()
    }
}

/// Some elements of a [`Buffer`], one after the other, for writing.
///
/// ```
/// use ferrotile::{Arch, Buffer, Gpu};
///
/// let gpu = Gpu::emulated(Arch::Sm80);
/// let stream = gpu.new_stream()?;
/// let mut buffer = Buffer::<i32>::zeroed(&gpu, 5)?;
/// buffer.slice_mut(1..3)?.overwrite_blocking(&stream, &[7, 8])?;
/// assert_eq!(buffer.download_blocking(&stream)?, [0, 7, 8, 0, 0]);
/// # Ok::<(), ferrotile::Error>(())
/// ```
///
/// [`Buffer`]: crate::Buffer
pub struct BufferSliceMut<'a, T> {
    slice: BufferSlice<'a, T>,
    memory: PhantomData<&'a mut [T]>,
}

impl<'a, T> BufferSliceMut<'a, T> {
    /// # Safety
    /// As for [`BufferSlice::new`], and nothing else accesses the memory for `'a`.
    pub(crate) const unsafe fn new(gpu: &'a Gpu, address: u64, len: usize) -> Self {
        // SAFETY: the caller's promise.
        BufferSliceMut { slice: unsafe { BufferSlice::new(gpu, address, len) }, memory: PhantomData }
    }

    /// The number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.slice.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.slice.len == 0
    }

    /// The card that holds the memory.
    #[must_use]
    pub const fn gpu(&self) -> &'a Gpu {
        self.slice.gpu
    }

    /// The device address (`CUdeviceptr`) of the first element.
    #[must_use]
    pub const fn as_raw(&self) -> u64 {
        self.slice.address
    }

    /// The same elements for reading.
    #[must_use]
    pub const fn as_slice(&self) -> BufferSlice<'_, T> {
        self.slice
    }

    /// Some of these elements, counted from the first.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] where the range leaves the slice.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<BufferSliceMut<'_, T>> {
        Ok(BufferSliceMut { slice: self.slice.slice(range)?, memory: PhantomData })
    }

    /// The elements before an index and those from it on, which two calls may write to.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] for an index beyond the end.
    pub fn split_at_mut(self, index: usize) -> Result<[BufferSliceMut<'a, T>; 2]> {
        let halves = [self.slice.slice(..index)?, self.slice.slice(index..)?];
        Ok(halves.map(|slice| BufferSliceMut { slice, memory: PhantomData }))
    }
}

impl<'a, T: Element> BufferSliceMut<'a, T> {
    /// The same bits as elements of another type of the same size: see [`BufferSlice::cast`].
    #[must_use]
    pub const fn cast<U: Element>(self) -> BufferSliceMut<'a, U> {
        BufferSliceMut { slice: self.slice.cast(), memory: PhantomData }
    }

    /// Overwrites the elements with host data of the same length, and waits for the stream.
    ///
    /// # Errors
    /// [`Error::Length`] for another length, [`Error::WrongDevice`] for a stream of another card, and those of the
    /// copy.
    pub fn overwrite_blocking<'s>(&mut self, stream: impl Into<StreamRef<'s>>, data: &[T]) -> Result<()> {
        same_length("Buffer::overwrite_blocking", data.len(), self.slice.len)?;
        let handle = stream.into().on("buffer", self.slice.gpu)?;
        if data.is_empty() {
            return Ok(());
        }
        let device = self.slice.gpu.device();
        // SAFETY: both ranges have `size_bytes` bytes; `data` is borrowed until the copy is done.
        unsafe { device.copy_to_device(handle, self.slice.address, data.as_ptr().cast(), self.slice.size_bytes()) }?;
        device.synchronize_stream(handle)
    }

    /// Sets every byte to `value`, in the order of the stream.
    ///
    /// # Errors
    /// [`Error::WrongDevice`] for a stream of another card, and those of the driver.
    pub fn fill_bytes<'s>(&mut self, stream: impl Into<StreamRef<'s>>, value: u8) -> Result<()> {
        let handle = stream.into().on("buffer", self.slice.gpu)?;
        if self.slice.is_empty() {
            return Ok(());
        }
        let BufferSlice { gpu, address, .. } = self.slice;
        // SAFETY: the memory is as large, and freeing it waits for this work.
        unsafe { gpu.device().fill_bytes(handle, address, value, self.slice.size_bytes()) }
    }

    /// Overwrites the elements with as many of the same card, in the order of the stream.
    ///
    /// # Errors
    /// [`Error::Length`] for another number of them, [`Error::WrongDevice`] for memory or a stream of another card.
    pub fn copy_from<'s>(&mut self, stream: impl Into<StreamRef<'s>>, source: BufferSlice<'_, T>) -> Result<()> {
        same_length("BufferSliceMut::copy_from", source.len, self.slice.len)?;
        let stream = stream.into();
        let handle = stream.on("buffer", self.slice.gpu)?;
        stream.on("source", source.gpu)?;
        if source.is_empty() {
            return Ok(());
        }
        let BufferSlice { gpu, address, .. } = self.slice;
        // SAFETY: both ranges have as many bytes; `self` borrows its own for writing, so they do not overlap. Freeing
        // either waits for this work.
        unsafe { gpu.device().copy_on_device(handle, address, source.address, source.size_bytes()) }
    }
}

impl<T> fmt::Debug for BufferSlice<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferSlice({} elements at {:#x} on device {})", self.len, self.address, self.gpu.ordinal())
    }
}

impl<T> fmt::Debug for BufferSliceMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BufferSlice { gpu, address, len, .. } = self.slice;
        write!(f, "BufferSliceMut({len} elements at {address:#x} on device {})", gpu.ordinal())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_start_and_end_within_the_memory() {
        assert_eq!(within(.., 5), Ok((0, 5)));
        assert_eq!(within(2..5, 5), Ok((2, 3)));
        assert_eq!(within(2..=3, 5), Ok((2, 2)));
        assert_eq!(within(5.., 5), Ok((5, 0)));
        #[expect(clippy::reversed_empty_ranges, reason = "it must be refused")]
        let reversed = within(3..2, 5);
        for refused in [within(4..6, 5), within(6.., 5), reversed, within(..=usize::MAX, 5)] {
            assert!(matches!(refused, Err(Error::OutOfBounds { len: 5, .. })), "{refused:?}");
        }
    }
}
