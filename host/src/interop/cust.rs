//! The feature `cust`: contexts, streams, events, modules and memory of the crate cust.

use std::mem::ManuallyDrop;

use ::cust::context::Context;
use ::cust::event::Event as CustEvent;
use ::cust::memory::{DeviceBuffer, DeviceCopy, DevicePointer};
use ::cust::module::Module as CustModule;
use ::cust::stream::Stream as CustStream;

use crate::backend::cust;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::runtime::buffer::Buffer;
use crate::runtime::buffer_slice::{BufferSlice, BufferSliceMut};
use crate::runtime::gpu::Gpu;
use crate::runtime::module::Module;
use crate::runtime::stream::{Event, Stream, StreamRef};

impl Gpu {
    /// The card of a context of cust, with the feature `cust`.
    ///
    /// # Errors
    /// Those of [`Gpu::new`].
    pub fn from_cust(context: &Context) -> Result<Gpu> {
        // SAFETY: a context of cust is retained.
        Gpu::new(unsafe { cust::ordinal_of(context.as_raw().cast()) }?)
    }

    /// The card's context as one of cust, with the feature `cust`; `None` for an emulated device.
    ///
    /// Functions of cust work in the context that is current on the thread:
    /// [`CurrentContext::set_current`](::cust::context::CurrentContext::set_current) takes this one.
    #[must_use]
    pub fn cust_context(&self) -> Option<&Context> {
        self.device().cust_context()
    }
}

impl<'a> TryFrom<&'a CustStream> for StreamRef<'a> {
    type Error = Error;

    /// Borrows a stream of cust, on the card where it was made, with the feature `cust`.
    ///
    /// # Errors
    /// [`Error::ForeignContext`] unless it is in the card's primary context, and those of [`Gpu::new`].
    fn try_from(stream: &'a CustStream) -> Result<Self> {
        let context = cust::context_of(stream)?;
        // SAFETY: the context of a live stream is live.
        let ordinal = unsafe { cust::ordinal_of(context) }?;
        let gpu = Gpu::opened(ordinal)?;
        if gpu.cust_context().is_some_and(|primary| primary.as_raw().cast() == context) {
            // SAFETY: the stream is live for `'a`, in the primary context; cust cannot capture.
            Ok(unsafe { StreamRef::from_raw(stream.as_inner().cast(), gpu) })
        } else {
            Err(Error::ForeignContext { ordinal })
        }
    }
}

impl Stream {
    /// The stream as one of cust, with the feature `cust`; `None` on an emulated device.
    #[must_use]
    pub fn as_cust(&self) -> Option<&CustStream> {
        self.gpu().cust_context()?;
        // SAFETY: the handle is a stream of a card, which lives as long as `self`.
        Some(unsafe { cust::stream(self.handle()) })
    }
}

impl Event {
    /// The event as one of cust, with the feature `cust`; `None` on an emulated device.
    #[must_use]
    pub fn as_cust(&self) -> Option<&CustEvent> {
        let (gpu, handle) = self.parts();
        gpu.cust_context()?;
        // SAFETY: the handle is an event of a card, which lives as long as `self`.
        Some(unsafe { cust::event(handle) })
    }
}

impl Module {
    /// The module as one of cust, with the feature `cust`; `None` on an emulated device.
    #[must_use]
    pub fn as_cust(&self) -> Option<&CustModule> {
        let (device, handle) = self.parts();
        device.cust_context()?;
        // SAFETY: the handle is a module of a card, which lives as long as `self`.
        Some(unsafe { cust::module(handle) })
    }
}

impl<'a, T: Element + DeviceCopy> BufferSlice<'a, T> {
    /// Memory of cust, with the feature `cust`. [`BufferSlice::cast`] makes `f16` and the like of integers: the types
    /// of half 2 are none of cust's.
    ///
    /// cust copies on the legacy default stream, with which streams of this library are not ordered.
    ///
    /// # Safety
    /// The memory is in the primary context of `gpu`, and stays allocated until the work that is given the slice is
    /// done. Dropping a buffer of cust waits for the work, with two exceptions: a buffer that was allocated
    /// asynchronously, and `drop_async`.
    #[must_use]
    pub unsafe fn from_cust(gpu: &'a Gpu, buffer: &'a DeviceBuffer<T>) -> Self {
        // SAFETY: the buffer has as many elements; the caller's promise.
        unsafe { BufferSlice::new(gpu, buffer.as_device_ptr().as_raw(), buffer.len()) }
    }
}

impl<'a, T: Element + DeviceCopy> BufferSliceMut<'a, T> {
    /// As [`BufferSlice::from_cust`], for writing.
    ///
    /// # Safety
    /// As for [`BufferSlice::from_cust`].
    #[must_use]
    pub unsafe fn from_cust(gpu: &'a Gpu, buffer: &'a mut DeviceBuffer<T>) -> Self {
        // SAFETY: the buffer has as many elements, and is borrowed for writing; the caller's promise.
        unsafe { BufferSliceMut::new(gpu, buffer.as_device_ptr().as_raw(), buffer.len()) }
    }
}

impl<T: Element + DeviceCopy> Buffer<T> {
    /// Takes a buffer of cust over, with the feature `cust`.
    ///
    /// # Safety
    /// The buffer is in the primary context of `gpu`. It was not allocated asynchronously.
    #[must_use]
    pub unsafe fn from_cust(gpu: &Gpu, buffer: DeviceBuffer<T>) -> Buffer<T> {
        let buffer = ManuallyDrop::new(buffer);
        // SAFETY: the allocation is this buffer's from now on; the caller's promise.
        unsafe { Buffer::from_allocation(gpu, buffer.as_device_ptr().as_raw(), buffer.len()) }
    }

    /// Gives the buffer out as one of cust, with the feature `cust`, once all work on the card is done.
    ///
    /// # Errors
    /// Those of [`Gpu::synchronize`], and [`Error::Unsupported`] on an emulated device.
    pub fn into_cust_blocking(self) -> Result<DeviceBuffer<T>> {
        if self.gpu().cust_context().is_none() {
            return Err(Error::Unsupported {
                op: "Buffer::into_cust_blocking",
                feature: "memory of an emulated device".to_owned(),
                remedy: "download it".to_owned(),
            });
        }
        self.gpu().synchronize()?;
        let buffer = ManuallyDrop::new(self);
        // SAFETY: the allocation has as many elements, is one of `cuMemAlloc`, and is not used any more.
        Ok(unsafe { DeviceBuffer::from_raw_parts(DevicePointer::from_raw(buffer.as_raw()), buffer.len()) })
    }
}
