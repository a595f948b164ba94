//! The feature `cust`: the objects of a card as the types of the crate cust.
//!
//! cust 0.3.2 has no public way from an event or a raw stream to its handle and back, and it drops the flag of streams
//! that are not ordered with the default stream. So streams and events of cust are made of their handles here.

mod forwarders;

use std::ffi::{CStr, c_int, c_void};
use std::mem::{self, ManuallyDrop};
use std::ptr;

use ::cust::context::Context;
use ::cust::device::Device;
use ::cust::error::CudaError;
use ::cust::event::{Event, EventFlags};
use ::cust::memory::{self, DevicePointer};
use ::cust::module::Module;
use ::cust::stream::Stream;

use crate::backend::Handle;
use crate::backend::cuda::{self, CUcontext, Objects};
use crate::error::{Error, Result};

/// A type of cust that is a handle of the driver and nothing else.
///
/// # Safety
/// The type is a struct with a handle as a field. [`OneHandle::IS_ONE`] asserts that there is no room for more.
unsafe trait OneHandle: Sized {
    /// Does not compile for a type that is larger than a handle, or aligned otherwise.
    const IS_ONE: () =
        assert!(size_of::<Self>() == size_of::<*mut c_void>() && align_of::<Self>() == align_of::<*mut c_void>());
}

// SAFETY: cust 0.3.2 declares `struct Stream { inner: CUstream }`.
unsafe impl OneHandle for Stream {}
// SAFETY: cust 0.3.2 declares `struct Event(CUevent)`.
unsafe impl OneHandle for Event {}

/// The object of cust that has this handle.
///
/// # Safety
/// The handle is a live one of the object's kind, and the object's to destroy.
unsafe fn adopt<T: OneHandle>(handle: Handle) -> T {
    let () = T::IS_ONE;
    // SAFETY: `T` is a handle and nothing else, and the caller passes one of its kind.
    unsafe { mem::transmute_copy::<*mut c_void, T>(&handle.0) }
}

/// The handle of an object of cust, which the caller destroys.
fn release<T: OneHandle>(object: T) -> Handle {
    let () = T::IS_ONE;
    // SAFETY: `T` is a handle and nothing else.
    Handle(unsafe { mem::transmute_copy::<ManuallyDrop<T>, *mut c_void>(&ManuallyDrop::new(object)) })
}

/// A handle as the object of cust that has it.
///
/// # Safety
/// The handle is one of the object's kind, and live as long as it is borrowed.
unsafe fn view<T: OneHandle>(handle: &Handle) -> &T {
    let () = T::IS_ONE;
    // SAFETY: `T` is a handle and nothing else, at the same alignment, and the caller passes one of its kind.
    unsafe { &*ptr::from_ref(&handle.0).cast::<T>() }
}

/// A stream of this library as one of cust.
///
/// # Safety
/// The handle is a `CUstream` that is live as long as it is borrowed.
pub(crate) unsafe fn stream(handle: &Handle) -> &Stream {
    // SAFETY: the caller's promise.
    unsafe { view(handle) }
}

/// An event of this library as one of cust.
///
/// # Safety
/// The handle is a `CUevent` that is live as long as it is borrowed.
pub(crate) unsafe fn event(handle: &Handle) -> &Event {
    // SAFETY: the caller's promise.
    unsafe { view(handle) }
}

/// A module of this library as one of cust.
///
/// # Safety
/// The handle is one of a card's modules that is live as long as it is borrowed.
pub(crate) unsafe fn module(handle: &Handle) -> &Module {
    // SAFETY: the handle is the address of a `Module` (see `load_module`).
    unsafe { &*handle.0.cast_const().cast::<Module>() }
}

/// The context of a stream of cust.
pub(crate) fn context_of(stream: &Stream) -> Result<CUcontext> {
    let mut context = ptr::null_mut();
    // SAFETY: the stream is live, `context` is written.
    let code = unsafe { forwarders::cuStreamGetCtx(stream.as_inner(), &mut context) };
    cuda::check("cuStreamGetCtx", code)?;
    Ok(context.cast())
}

/// The number of the card of a context.
///
/// # Safety
/// The context is live.
pub(crate) unsafe fn ordinal_of(mut context: CUcontext) -> Result<u32> {
    let mut device = 0;
    // SAFETY: the context is current between the two calls, and `device` is written.
    unsafe {
        cuda::check("cuCtxPushCurrent", cuda::cuCtxPushCurrent_v2(context))?;
        let code = forwarders::cuCtxGetDevice(&mut device);
        cuda::cuCtxPopCurrent_v2(&mut context);
        cuda::check("cuCtxGetDevice", code)?;
    }
    Ok(device.unsigned_abs())
}

/// A result of cust as one of this crate.
fn from_cust<T>(call: &'static str, result: Result<T, CudaError>) -> Result<T> {
    result.map_err(|error| Error::Driver { call, error: cuda::driver_error(error as c_int) })
}

/// Objects of cust.
#[derive(Debug)]
pub(crate) struct CustObjects {
    context: Context,
}

impl Objects for CustObjects {
    fn retain(ordinal: u32) -> Result<Self> {
        let device = from_cust("cuDeviceGet", Device::get_device(ordinal))?;
        Ok(CustObjects { context: from_cust("cuDevicePrimaryCtxRetain", Context::new(device))? })
    }

    fn context(&self) -> CUcontext {
        self.context.as_raw().cast()
    }

    fn cust_context(&self) -> Option<&Context> {
        Some(&self.context)
    }

    fn allocate(bytes: usize) -> Result<u64> {
        // SAFETY: who reads the memory has written it.
        from_cust("cuMemAlloc", unsafe { memory::cuda_malloc::<u8>(bytes) }).map(|pointer| pointer.as_raw())
    }

    unsafe fn free(address: u64) {
        // SAFETY: the caller gives the allocation up. An error is that of earlier work.
        let _ = unsafe { memory::cuda_free(DevicePointer::<u8>::from_raw(address)) };
    }

    fn allocate_pinned(bytes: usize) -> Result<*mut u8> {
        // SAFETY: who reads the memory has written it.
        from_cust("cuMemAllocHost", unsafe { memory::cuda_malloc_locked::<u8>(bytes) })
    }

    unsafe fn free_pinned(address: *mut u8) {
        // SAFETY: the caller gives the allocation up. An error is that of earlier work.
        let _ = unsafe { memory::cuda_free_locked(address) };
    }

    unsafe fn destroy_stream(stream: Handle) {
        // SAFETY: the caller gives the stream up.
        drop(unsafe { adopt::<Stream>(stream) });
    }

    fn create_event() -> Result<Handle> {
        from_cust("cuEventCreate", Event::new(EventFlags::DEFAULT)).map(release)
    }

    unsafe fn destroy_event(event: Handle) {
        // SAFETY: the caller gives the event up.
        drop(unsafe { adopt::<Event>(event) });
    }

    fn load_module(ptx: &CStr) -> Result<Handle, c_int> {
        let module = Module::from_ptx_cstr(ptx, &[]).map_err(|error| error as c_int)?;
        Ok(Handle(Box::into_raw(Box::new(module)).cast()))
    }

    unsafe fn unload_module(module: Handle) {
        // SAFETY: the address is one of `load_module`, which the caller gives up.
        drop(unsafe { Box::from_raw(module.0.cast::<Module>()) });
    }

    unsafe fn function(handle: Handle, name: &CStr) -> Result<Handle, c_int> {
        // A name that is no UTF-8 is that of no kernel.
        let name = name.to_str().map_err(|_| cuda::NOT_FOUND)?;
        // SAFETY: the caller's promise.
        let function = unsafe { module(&handle) }.get_function(name).map_err(|error| error as c_int)?;
        Ok(Handle(function.to_raw().cast()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_become_objects_of_cust_and_handles_again() {
        let handle = Handle(ptr::dangling_mut::<c_void>());
        // SAFETY: neither object is used or dropped.
        unsafe {
            assert_eq!(stream(&handle).as_inner().cast(), handle.0);
            assert_eq!(ManuallyDrop::new(adopt::<Stream>(handle)).as_inner().cast(), handle.0);
            assert_eq!(release(adopt::<Event>(handle)), handle);
        }
    }

    #[test]
    fn cust_reaches_the_driver_or_hears_that_there_is_none() {
        let version = ::cust::CudaApiVersion::get();
        match cuda::device_count() {
            Ok(_) => assert!(version.is_ok_and(|version| version.major() > 10)),
            Err(_) => {
                assert_eq!(version.map(|version| version.major()), Err(CudaError::NoDevice));
                assert_eq!(CudaError::NoDevice.to_string(), "\"unknown error\"");
            }
        }
    }
}
