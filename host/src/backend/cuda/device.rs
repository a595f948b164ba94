//! A card with its context: memory, streams, events and graphs.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::error::{CAPTURE_UNSUPPORTED, check, check_recent};
use super::load::{self, NO_DEVICE};
use super::objects::{self, Objects};
use super::table::{self as cuda, CUcontext};
use crate::backend::{Backend, DeviceFacts, Handle, Kept, Memory, Streams};
use crate::error::{Error, Result};

/// The number of cards that the driver sees.
pub(crate) fn device_count() -> Result<u32> {
    if let Some(reason) = load::absence() {
        return Err(Error::NoDriver { reason: reason.to_owned() });
    }
    // SAFETY: no conditions.
    match unsafe { cuda::cuInit(0) } {
        NO_DEVICE => return Ok(0),
        code => check("cuInit", code)?,
    }
    let mut count = 0;
    // SAFETY: `count` is written.
    check("cuDeviceGetCount", unsafe { cuda::cuDeviceGetCount(&mut count) })?;
    Ok(count.unsigned_abs())
}

/// Asks the driver about card `ordinal` without making a context.
pub(crate) fn facts_of(ordinal: u32) -> Result<DeviceFacts> {
    let count = device_count()?;
    if ordinal >= count {
        return Err(Error::NoDevice { ordinal, count });
    }
    let device = objects::device(ordinal)?;
    let attribute = |attribute| {
        let mut value = 0;
        // SAFETY: `value` is written.
        let code = unsafe { cuda::cuDeviceGetAttribute(&mut value, attribute, device) };
        check("cuDeviceGetAttribute", code).map(|()| value.unsigned_abs())
    };
    let mut version = 0;
    // SAFETY: `version` is written.
    check("cuDriverGetVersion", unsafe { cuda::cuDriverGetVersion(&mut version) })?;
    let mut memory_bytes = 0;
    // SAFETY: `memory_bytes` is written.
    check("cuDeviceTotalMem", unsafe { cuda::cuDeviceTotalMem_v2(&mut memory_bytes, device) })?;
    Ok(DeviceFacts {
        ordinal,
        name: name_of(device)?,
        compute_capability: (
            attribute(cuda::DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(cuda::DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(cuda::DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        memory_bytes: memory_bytes as u64,
        shared_bytes_per_block: attribute(cuda::DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        driver_version: (version.unsigned_abs() / 1000, version.unsigned_abs() % 1000 / 10),
    })
}

fn name_of(device: c_int) -> Result<String> {
    let mut name = [0_u8; 128];
    // SAFETY: `name` has the size given, and is written with a NUL at its end.
    let code = unsafe { cuda::cuDeviceGetName(name.as_mut_ptr().cast::<c_char>(), name.len() as c_int, device) };
    check("cuDeviceGetName", code)?;
    let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
    Ok(name.to_string_lossy().into_owned())
}

/// One card, with its primary context retained.
#[derive(Debug)]
pub(crate) struct Device<O: Objects> {
    facts: DeviceFacts,
    objects: O,
    /// For work that is finished before its function returns and belongs to no stream of the caller's.
    setup_stream: Handle,
    /// The streams of this library that are capturing. Waiting for the whole context would spoil the captures, on
    /// whatever thread they are, so it takes the lock and is refused while there are any.
    captures: Mutex<usize>,
}

/// The device's context is current on this thread until this is dropped.
pub(super) struct Entered {
    pushed: bool,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = ptr::null_mut();
            // SAFETY: `enter` pushed a context on this thread, and `Entered` does not leave it.
            unsafe { cuda::cuCtxPopCurrent_v2(&mut popped) };
        }
    }
}

impl<O: Objects> Device<O> {
    pub(crate) fn open(facts: DeviceFacts) -> Result<Self> {
        let before = current_context()?;
        let objects = O::retain(facts.ordinal);
        // The thread keeps the context that it had.
        // SAFETY: `before` was current on this thread.
        check("cuCtxSetCurrent", unsafe { cuda::cuCtxSetCurrent(before) })?;
        let setup_stream = Handle(ptr::null_mut());
        let mut device = Device { facts, objects: objects?, setup_stream, captures: Mutex::new(0) };
        device.setup_stream = device.create_stream()?;
        Ok(device)
    }

    pub(super) fn captures(&self) -> MutexGuard<'_, usize> {
        self.captures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the context current on this thread, which costs two calls of some ten nanoseconds where it is not.
    pub(super) fn enter(&self) -> Result<Entered> {
        let context = self.objects.context();
        if current_context()? == context {
            return Ok(Entered { pushed: false });
        }
        // SAFETY: the context is retained as long as `self` lives.
        check("cuCtxPushCurrent", unsafe { cuda::cuCtxPushCurrent_v2(context) })?;
        Ok(Entered { pushed: true })
    }
}

impl<O: Objects> Backend for Device<O> {
    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn synchronize(&self) -> Result<()> {
        let captures = self.captures();
        if *captures > 0 {
            return check("cuCtxSynchronize", CAPTURE_UNSUPPORTED);
        }
        let _entered = self.enter()?;
        // SAFETY: no conditions.
        check("cuCtxSynchronize", unsafe { cuda::cuCtxSynchronize() })
    }

    #[cfg(feature = "cust")]
    fn cust_context(&self) -> Option<&::cust::context::Context> {
        self.objects.cust_context()
    }
}

impl<O: Objects> Memory for Device<O> {
    fn allocate(&self, bytes: usize) -> Result<u64> {
        let _entered = self.enter()?;
        O::allocate(bytes)
    }

    unsafe fn free(&self, address: u64) {
        if let Ok(_entered) = self.enter() {
            // SAFETY: the caller gives the allocation up.
            unsafe { O::free(address) };
        }
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<*mut u8> {
        let _entered = self.enter()?;
        O::allocate_pinned(bytes)
    }

    unsafe fn free_pinned(&self, address: *mut u8) {
        if let Ok(_entered) = self.enter() {
            // SAFETY: the caller gives the allocation up.
            unsafe { O::free_pinned(address) };
        }
    }

    unsafe fn clear_blocking(&self, address: u64, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.fill_bytes(self.setup_stream, address, 0, bytes) }?;
        self.synchronize_stream(self.setup_stream)
    }

    unsafe fn fill_bytes(&self, stream: Handle, address: u64, value: u8, bytes: usize) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: the caller's promise.
        check("cuMemsetD8Async", unsafe { cuda::cuMemsetD8Async(address, value, bytes, stream.0) })
    }

    unsafe fn copy_to_device(&self, stream: Handle, destination: u64, source: *const u8, bytes: usize) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: the caller's promise.
        let code = unsafe { cuda::cuMemcpyHtoDAsync_v2(destination, source.cast(), bytes, stream.0) };
        check("cuMemcpyHtoDAsync", code)
    }

    unsafe fn copy_to_host(&self, stream: Handle, destination: *mut u8, source: u64, bytes: usize) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: the caller's promise.
        let code = unsafe { cuda::cuMemcpyDtoHAsync_v2(destination.cast(), source, bytes, stream.0) };
        check("cuMemcpyDtoHAsync", code)
    }

    unsafe fn copy_on_device(&self, stream: Handle, destination: u64, source: u64, bytes: usize) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: the caller's promise.
        let code = unsafe { cuda::cuMemcpyDtoDAsync_v2(destination, source, bytes, stream.0) };
        check("cuMemcpyDtoDAsync", code)
    }
}

impl<O: Objects> Streams for Device<O> {
    fn create_stream(&self) -> Result<Handle> {
        const NORMAL_PRIORITY: c_int = 0;
        let _entered = self.enter()?;
        let mut stream = ptr::null_mut();
        // SAFETY: `stream` is written.
        let code = unsafe { cuda::cuStreamCreateWithPriority(&mut stream, cuda::STREAM_NON_BLOCKING, NORMAL_PRIORITY) };
        check("cuStreamCreate", code)?;
        Ok(Handle(stream))
    }

    unsafe fn destroy_stream(&self, stream: Handle) {
        if let Ok(_entered) = self.enter() {
            // SAFETY: the caller gives the stream up.
            unsafe { O::destroy_stream(stream) };
        }
    }

    fn stream_id(&self, stream: Handle) -> Result<u64> {
        let _entered = self.enter()?;
        let mut id = 0;
        // SAFETY: the stream is live, `id` is written.
        check_recent("cuStreamGetId", (12, 0), unsafe { cuda::cuStreamGetId(stream.0, &mut id) })?;
        Ok(id)
    }

    fn keep_until_done(&self, stream: Handle, kept: Kept) -> Result<()> {
        let _entered = self.enter()?;
        let kept = Box::into_raw(Box::new(kept));
        // SAFETY: the stream is live; the driver calls the function once, with this address.
        check("cuLaunchHostFunc", unsafe { cuda::cuLaunchHostFunc(stream.0, Some(drop_kept), kept.cast()) })
    }

    fn keep_in_capture(&self, stream: Handle, kept: Kept) -> Result<()> {
        const NO_DESTRUCTOR_SYNC: c_uint = 1;
        const MOVE: c_uint = 1;
        let _entered = self.enter()?;
        let mut status = cuda::STREAM_CAPTURE_STATUS_NONE;
        let mut graph = ptr::null_mut();
        let none: *mut c_void = ptr::null_mut();
        // SAFETY: the stream is live; `status` and `graph` are written, and nothing else is asked for.
        let code = unsafe {
            cuda::cuStreamGetCaptureInfo_v2(stream.0, &mut status, none.cast(), &mut graph, none.cast(), none.cast())
        };
        check_recent("cuStreamGetCaptureInfo", (11, 3), code)?;
        if graph.is_null() {
            // The capture is over, or has failed.
            return check("cuStreamGetCaptureInfo", CAPTURE_UNSUPPORTED);
        }
        let mut object = ptr::null_mut();
        let kept = Box::into_raw(Box::new(kept));
        // SAFETY: `object` is written; the driver calls the function once, with this address, when it has no reference
        // any more. The graph takes over the only one, and hands it on to what is made of the graph.
        unsafe {
            let code = cuda::cuUserObjectCreate(&mut object, kept.cast(), Some(drop_kept), 1, NO_DESTRUCTOR_SYNC);
            check_recent("cuUserObjectCreate", (11, 3), code)?;
            let code = cuda::cuGraphRetainUserObject(graph, object, 1, MOVE);
            if code != 0 {
                cuda::cuUserObjectRelease(object, 1);
            }
            check_recent("cuGraphRetainUserObject", (11, 3), code)
        }
    }

    fn synchronize_stream(&self, stream: Handle) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: the stream is live.
        check("cuStreamSynchronize", unsafe { cuda::cuStreamSynchronize(stream.0) })
    }

    fn stream_wait_event(&self, stream: Handle, event: Handle) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: both are live.
        let code = unsafe { cuda::cuStreamWaitEvent(stream.0, event.0, 0) };
        check("cuStreamWaitEvent", code)
    }

    fn is_capturing(&self, stream: Handle) -> Result<bool> {
        let _entered = self.enter()?;
        let mut status = cuda::STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream is live, `status` is written.
        check("cuStreamIsCapturing", unsafe { cuda::cuStreamIsCapturing(stream.0, &mut status) })?;
        Ok(status != cuda::STREAM_CAPTURE_STATUS_NONE)
    }

    fn begin_capture(&self, stream: Handle) -> Result<()> {
        let _entered = self.enter()?;
        let mode = cuda::STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let mut captures = self.captures();
        // SAFETY: the stream is live.
        check("cuStreamBeginCapture", unsafe { cuda::cuStreamBeginCapture_v2(stream.0, mode) })?;
        *captures += 1;
        Ok(())
    }

    fn end_capture(&self, stream: Handle) -> Result<Handle> {
        let _entered = self.enter()?;
        let mut graph = ptr::null_mut();
        let mut captures = self.captures();
        // SAFETY: the stream is live, `graph` is written.
        let code = unsafe { cuda::cuStreamEndCapture(stream.0, &mut graph) };
        *captures -= 1;
        drop(captures);
        check("cuStreamEndCapture", code)?;
        let mut executable = ptr::null_mut();
        // SAFETY: `graph` is live, `executable` is written.
        let code = unsafe { cuda::cuGraphInstantiateWithFlags(&mut executable, graph, 0) };
        // SAFETY: an instantiated graph does not need its template, which is not used again.
        unsafe { cuda::cuGraphDestroy(graph) };
        check_recent("cuGraphInstantiateWithFlags", (11, 4), code)?;
        Ok(Handle(executable))
    }

    unsafe fn launch_graph(&self, graph: Handle, stream: Handle) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: the caller's promise; both handles are live.
        check("cuGraphLaunch", unsafe { cuda::cuGraphLaunch(graph.0, stream.0) })
    }

    unsafe fn destroy_graph(&self, graph: Handle) {
        if let Ok(_entered) = self.enter() {
            // SAFETY: the caller gives the graph up.
            unsafe { cuda::cuGraphExecDestroy(graph.0) };
        }
    }

    fn create_event(&self) -> Result<Handle> {
        let _entered = self.enter()?;
        O::create_event()
    }

    unsafe fn destroy_event(&self, event: Handle) {
        if let Ok(_entered) = self.enter() {
            // SAFETY: the caller gives the event up.
            unsafe { O::destroy_event(event) };
        }
    }

    fn record_event(&self, event: Handle, stream: Handle) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: both are live.
        check("cuEventRecord", unsafe { cuda::cuEventRecord(event.0, stream.0) })
    }

    fn synchronize_event(&self, event: Handle) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: the event is live.
        check("cuEventSynchronize", unsafe { cuda::cuEventSynchronize(event.0) })
    }

    fn elapsed_ms(&self, start: Handle, end: Handle) -> Result<f32> {
        let _entered = self.enter()?;
        let mut milliseconds = 0.0;
        // SAFETY: both are live, `milliseconds` is written.
        let code = unsafe { cuda::cuEventElapsedTime(&mut milliseconds, start.0, end.0) };
        check("cuEventElapsedTime", code)?;
        Ok(milliseconds)
    }
}

impl<O: Objects> Drop for Device<O> {
    fn drop(&mut self) {
        // SAFETY: every user of the stream has finished with it before its call returned.
        unsafe { self.destroy_stream(self.setup_stream) };
    }
}

/// Drops what the driver has kept.
///
/// # Safety
/// It is the address of a [`Kept`] in a box of its own, which is not used again.
unsafe extern "system" fn drop_kept(kept: *mut c_void) {
    // SAFETY: the caller's contract.
    drop(unsafe { Box::from_raw(kept.cast::<Kept>()) });
}

fn current_context() -> Result<CUcontext> {
    let mut context = ptr::null_mut();
    // SAFETY: `context` is written.
    check("cuCtxGetCurrent", unsafe { cuda::cuCtxGetCurrent(&mut context) })?;
    Ok(context)
}

#[cfg(test)]
mod tests {
    use super::super::error::error_name;
    use super::*;

    #[test]
    fn calls_reach_the_driver_or_say_that_there_is_none() {
        let mut version = -1;
        // SAFETY: `version` is written or left alone.
        let code = unsafe { cuda::cuDriverGetVersion(&mut version) };
        match load::absence() {
            None => {
                assert!(code == 0 && version > 1000, "{code}, {version}");
                assert!(error_name(2).is_some_and(|name| name == c"CUDA_ERROR_OUT_OF_MEMORY"));
            }
            Some(_) => {
                assert_eq!((code, version), (NO_DEVICE, -1));
                assert!(matches!(device_count(), Err(Error::NoDriver { reason }) if reason.contains(load::LIBRARY)));
                assert_eq!(error_name(2), None);
            }
        }
    }
}
