//! A card with its context: memory, streams, events and graphs.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cust::context::Context;
use cust::device::DeviceAttribute;
use cust::error::CudaError;
use cust::sys::{
    CUcontext, CUdevice_attribute, CUevent, CUgraph, CUgraphExec, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
};

use super::load;
use super::symbols::{self, self as cuda};
use crate::backend::{Backend, DeviceFacts, Handle, Kept, Memory, Streams};
use crate::error::{Error, Result};

/// The code that a driver function returned, as a result.
pub(super) fn check(call: &'static str, code: c_int) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(Error::Driver { call, error: load::driver_error(code) }) }
}

/// Like [`check`] for a function that CUDA `needed` introduced.
pub(super) fn check_recent(call: &'static str, needed: (u32, u32), code: c_int) -> Result<()> {
    if code == symbols::NOT_FOUND { Err(Error::DriverTooOld { call, needed }) } else { check(call, code) }
}

/// A result of cust as one of this crate.
fn from_cust<T>(call: &'static str, result: Result<T, CudaError>) -> Result<T> {
    result.map_err(|error| Error::Driver { call, error: load::driver_error(error as c_int) })
}

/// The number of cards that the driver sees.
pub(crate) fn device_count() -> Result<u32> {
    if let Some(reason) = load::absence() {
        return Err(Error::NoDriver { reason: reason.to_owned() });
    }
    match cust::init(cust::CudaFlags::empty()) {
        Err(CudaError::NoDevice) => return Ok(0),
        result => from_cust("cuInit", result)?,
    }
    from_cust("cuDeviceGetCount", cust::device::Device::num_devices())
}

/// Asks the driver about card `ordinal` without making a context.
pub(crate) fn facts_of(ordinal: u32) -> Result<DeviceFacts> {
    let count = device_count()?;
    if ordinal >= count {
        return Err(Error::NoDevice { ordinal, count });
    }
    let device = from_cust("cuDeviceGet", cust::device::Device::get_device(ordinal))?;
    let attribute = |attribute| {
        from_cust("cuDeviceGetAttribute", device.get_attribute(attribute)).map(|value| value.unsigned_abs())
    };
    let mut shared_bytes_per_block = 0;
    let limit = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
    // SAFETY: `shared_bytes_per_block` is written. cust's enum of attributes lacks this one.
    let code = unsafe { cuda::cuDeviceGetAttribute(&mut shared_bytes_per_block, limit, device.as_raw()) };
    check("cuDeviceGetAttribute", code)?;
    let version = from_cust("cuDriverGetVersion", cust::CudaApiVersion::get())?;
    Ok(DeviceFacts {
        ordinal,
        name: from_cust("cuDeviceGetName", device.name())?,
        compute_capability: (
            attribute(DeviceAttribute::ComputeCapabilityMajor)?,
            attribute(DeviceAttribute::ComputeCapabilityMinor)?,
        ),
        multiprocessors: attribute(DeviceAttribute::MultiprocessorCount)?,
        memory_bytes: from_cust("cuDeviceTotalMem", device.total_memory())? as u64,
        shared_bytes_per_block: shared_bytes_per_block.unsigned_abs(),
        driver_version: (version.major().unsigned_abs(), version.minor().unsigned_abs()),
    })
}

/// One card, with its primary context retained.
#[derive(Debug)]
pub(crate) struct Device {
    facts: DeviceFacts,
    context: Context,
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

impl Device {
    pub(crate) fn open(facts: DeviceFacts) -> Result<Device> {
        let device = from_cust("cuDeviceGet", cust::device::Device::get_device(facts.ordinal))?;
        let before = current_context()?;
        let context = from_cust("cuDevicePrimaryCtxRetain", Context::new(device));
        // `Context::new` makes the context current; the thread keeps the one it had.
        // SAFETY: `before` was current on this thread.
        check("cuCtxSetCurrent", unsafe { cuda::cuCtxSetCurrent(before) })?;
        let setup_stream = Handle(ptr::null_mut());
        let mut device = Device { facts, context: context?, setup_stream, captures: Mutex::new(0) };
        device.setup_stream = device.create_stream()?;
        Ok(device)
    }

    pub(super) fn captures(&self) -> MutexGuard<'_, usize> {
        self.captures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the context current on this thread, which costs two calls of some ten nanoseconds where it is not.
    pub(super) fn enter(&self) -> Result<Entered> {
        let context = self.context.as_raw();
        if current_context()? == context {
            return Ok(Entered { pushed: false });
        }
        // SAFETY: the context is retained as long as `self` lives.
        check("cuCtxPushCurrent", unsafe { cuda::cuCtxPushCurrent_v2(context) })?;
        Ok(Entered { pushed: true })
    }
}

impl Backend for Device {
    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn synchronize(&self) -> Result<()> {
        let captures = self.captures();
        if *captures > 0 {
            return check("cuCtxSynchronize", symbols::CAPTURE_UNSUPPORTED);
        }
        let _entered = self.enter()?;
        // SAFETY: no conditions.
        check("cuCtxSynchronize", unsafe { cuda::cuCtxSynchronize() })
    }

    unsafe fn owns_stream(&self, stream: Handle) -> Result<bool> {
        let mut context: CUcontext = ptr::null_mut();
        // SAFETY: the stream is live, `context` is written.
        check("cuStreamGetCtx", unsafe { cuda::cuStreamGetCtx(stream.0.cast(), &mut context) })?;
        Ok(context == self.context.as_raw())
    }
}

impl Memory for Device {
    fn allocate(&self, bytes: usize) -> Result<u64> {
        let _entered = self.enter()?;
        let mut address = 0;
        // SAFETY: `address` is written.
        check("cuMemAlloc", unsafe { cuda::cuMemAlloc_v2(&mut address, bytes) })?;
        Ok(address)
    }

    unsafe fn free(&self, address: u64) {
        if let Ok(_entered) = self.enter() {
            // SAFETY: the caller gives the allocation up.
            unsafe { cuda::cuMemFree_v2(address) };
        }
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<*mut u8> {
        let _entered = self.enter()?;
        let mut address = ptr::null_mut();
        // SAFETY: `address` is written.
        check("cuMemAllocHost", unsafe { cuda::cuMemAllocHost_v2(&mut address, bytes) })?;
        Ok(address.cast())
    }

    unsafe fn free_pinned(&self, address: *mut u8) {
        if let Ok(_entered) = self.enter() {
            // SAFETY: the caller gives the allocation up.
            unsafe { cuda::cuMemFreeHost(address.cast()) };
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
        check("cuMemsetD8Async", unsafe { cuda::cuMemsetD8Async(address, value, bytes, stream.0.cast()) })
    }

    unsafe fn copy_to_device(&self, stream: Handle, destination: u64, source: *const u8, bytes: usize) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: the caller's promise.
        let code = unsafe { cuda::cuMemcpyHtoDAsync_v2(destination, source.cast(), bytes, stream.0.cast()) };
        check("cuMemcpyHtoDAsync", code)
    }

    unsafe fn copy_to_host(&self, stream: Handle, destination: *mut u8, source: u64, bytes: usize) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: the caller's promise.
        let code = unsafe { cuda::cuMemcpyDtoHAsync_v2(destination.cast(), source, bytes, stream.0.cast()) };
        check("cuMemcpyDtoHAsync", code)
    }

    unsafe fn copy_on_device(&self, stream: Handle, destination: u64, source: u64, bytes: usize) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: the caller's promise.
        let code = unsafe { cuda::cuMemcpyDtoDAsync_v2(destination, source, bytes, stream.0.cast()) };
        check("cuMemcpyDtoDAsync", code)
    }
}

impl Streams for Device {
    fn create_stream(&self) -> Result<Handle> {
        const NON_BLOCKING: c_uint = 1;
        const NORMAL_PRIORITY: c_int = 0;
        let _entered = self.enter()?;
        let mut stream: CUstream = ptr::null_mut();
        // SAFETY: `stream` is written.
        let code = unsafe { cuda::cuStreamCreateWithPriority(&mut stream, NON_BLOCKING, NORMAL_PRIORITY) };
        check("cuStreamCreate", code)?;
        Ok(Handle(stream.cast()))
    }

    unsafe fn destroy_stream(&self, stream: Handle) {
        if let Ok(_entered) = self.enter() {
            // SAFETY: the caller gives the stream up.
            unsafe { cuda::cuStreamDestroy_v2(stream.0.cast()) };
        }
    }

    fn stream_id(&self, stream: Handle) -> Result<u64> {
        let _entered = self.enter()?;
        let mut id = 0;
        // SAFETY: the stream is live, `id` is written.
        check_recent("cuStreamGetId", (12, 0), unsafe { cuda::cuStreamGetId(stream.0.cast(), &mut id) })?;
        Ok(id)
    }

    fn keep_until_done(&self, stream: Handle, kept: Kept) -> Result<()> {
        let _entered = self.enter()?;
        let kept = Box::into_raw(Box::new(kept));
        // SAFETY: the stream is live; the driver calls the function once, with this address.
        check("cuLaunchHostFunc", unsafe { cuda::cuLaunchHostFunc(stream.0.cast(), Some(drop_kept), kept.cast()) })
    }

    fn keep_in_capture(&self, stream: Handle, kept: Kept) -> Result<()> {
        const NO_DESTRUCTOR_SYNC: c_uint = 1;
        const MOVE: c_uint = 1;
        let _entered = self.enter()?;
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let mut graph: CUgraph = ptr::null_mut();
        let none: *mut c_void = ptr::null_mut();
        // SAFETY: the stream is live; `status` and `graph` are written, and nothing else is asked for.
        let code = unsafe {
            cuda::cuStreamGetCaptureInfo_v2(
                stream.0.cast(),
                &mut status,
                none.cast(),
                &mut graph,
                none.cast(),
                none.cast(),
            )
        };
        check_recent("cuStreamGetCaptureInfo", (11, 3), code)?;
        if graph.is_null() {
            // The capture is over, or has failed.
            return check("cuStreamGetCaptureInfo", symbols::CAPTURE_UNSUPPORTED);
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
        check("cuStreamSynchronize", unsafe { cuda::cuStreamSynchronize(stream.0.cast()) })
    }

    fn stream_wait_event(&self, stream: Handle, event: Handle) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: both are live.
        let code = unsafe { cuda::cuStreamWaitEvent(stream.0.cast(), event.0.cast(), 0) };
        check("cuStreamWaitEvent", code)
    }

    fn is_capturing(&self, stream: Handle) -> Result<bool> {
        let _entered = self.enter()?;
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream is live, `status` is written.
        check("cuStreamIsCapturing", unsafe { cuda::cuStreamIsCapturing(stream.0.cast(), &mut status) })?;
        Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    fn begin_capture(&self, stream: Handle) -> Result<()> {
        let _entered = self.enter()?;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let mut captures = self.captures();
        // SAFETY: the stream is live.
        check("cuStreamBeginCapture", unsafe { cuda::cuStreamBeginCapture_v2(stream.0.cast(), mode) })?;
        *captures += 1;
        Ok(())
    }

    fn end_capture(&self, stream: Handle) -> Result<Handle> {
        let _entered = self.enter()?;
        let mut graph: CUgraph = ptr::null_mut();
        let mut captures = self.captures();
        // SAFETY: the stream is live, `graph` is written.
        let code = unsafe { cuda::cuStreamEndCapture(stream.0.cast(), &mut graph) };
        *captures -= 1;
        drop(captures);
        check("cuStreamEndCapture", code)?;
        let mut executable: CUgraphExec = ptr::null_mut();
        // SAFETY: `graph` is live, `executable` is written.
        let code = unsafe { cuda::cuGraphInstantiateWithFlags(&mut executable, graph, 0) };
        // SAFETY: an instantiated graph does not need its template, which is not used again.
        unsafe { cuda::cuGraphDestroy(graph) };
        check_recent("cuGraphInstantiateWithFlags", (11, 4), code)?;
        Ok(Handle(executable.cast()))
    }

    unsafe fn launch_graph(&self, graph: Handle, stream: Handle) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: the caller's promise; both handles are live.
        check("cuGraphLaunch", unsafe { cuda::cuGraphLaunch(graph.0.cast(), stream.0.cast()) })
    }

    unsafe fn destroy_graph(&self, graph: Handle) {
        if let Ok(_entered) = self.enter() {
            // SAFETY: the caller gives the graph up.
            unsafe { cuda::cuGraphExecDestroy(graph.0.cast()) };
        }
    }

    fn create_event(&self) -> Result<Handle> {
        let _entered = self.enter()?;
        let mut event: CUevent = ptr::null_mut();
        // SAFETY: `event` is written.
        check("cuEventCreate", unsafe { cuda::cuEventCreate(&mut event, 0) })?;
        Ok(Handle(event.cast()))
    }

    unsafe fn destroy_event(&self, event: Handle) {
        if let Ok(_entered) = self.enter() {
            // SAFETY: the caller gives the event up.
            unsafe { cuda::cuEventDestroy_v2(event.0.cast()) };
        }
    }

    fn record_event(&self, event: Handle, stream: Handle) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: both are live.
        check("cuEventRecord", unsafe { cuda::cuEventRecord(event.0.cast(), stream.0.cast()) })
    }

    fn synchronize_event(&self, event: Handle) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: the event is live.
        check("cuEventSynchronize", unsafe { cuda::cuEventSynchronize(event.0.cast()) })
    }

    fn elapsed_ms(&self, start: Handle, end: Handle) -> Result<f32> {
        let _entered = self.enter()?;
        let mut milliseconds = 0.0;
        // SAFETY: both are live, `milliseconds` is written.
        let code = unsafe { cuda::cuEventElapsedTime(&mut milliseconds, start.0.cast(), end.0.cast()) };
        check("cuEventElapsedTime", code)?;
        Ok(milliseconds)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: every user of the stream has finished with it before its call returned.
        unsafe { self.destroy_stream(self.setup_stream) };
    }
}

/// Drops what the driver has kept.
///
/// # Safety
/// It is the address of a [`Kept`] in a box of its own, which is not used again.
unsafe extern "C" fn drop_kept(kept: *mut c_void) {
    // SAFETY: the caller's contract.
    drop(unsafe { Box::from_raw(kept.cast::<Kept>()) });
}

/// Finds the device of a stream that another library made.
///
/// # Safety
/// The stream is live.
pub(crate) unsafe fn ordinal_of_stream(stream: Handle) -> Result<u32> {
    let mut context: CUcontext = ptr::null_mut();
    // SAFETY: the stream is live, `context` is written.
    check("cuStreamGetCtx", unsafe { cuda::cuStreamGetCtx(stream.0.cast(), &mut context) })?;
    let mut device = 0;
    // SAFETY: a live stream's context is live; it is current between the two calls.
    unsafe {
        check("cuCtxPushCurrent", cuda::cuCtxPushCurrent_v2(context))?;
        let code = cuda::cuCtxGetDevice(&mut device);
        cuda::cuCtxPopCurrent_v2(&mut context);
        check("cuCtxGetDevice", code)?;
    }
    Ok(device.unsigned_abs())
}

fn current_context() -> Result<CUcontext> {
    let mut context = ptr::null_mut();
    // SAFETY: `context` is written.
    check("cuCtxGetCurrent", unsafe { cuda::cuCtxGetCurrent(&mut context) })?;
    Ok(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forwarders_reach_the_driver_or_say_that_there_is_none() {
        let mut version = -1;
        // SAFETY: `version` is written or left alone.
        let code = unsafe { cuda::cuDriverGetVersion(&mut version) };
        let of_cust = cust::CudaApiVersion::get().map(|version| version.major());
        match load::absence() {
            None => {
                assert_eq!((code, of_cust), (0, Ok(version / 1000)));
                assert!(load::error_name(2).is_some_and(|name| name == c"CUDA_ERROR_OUT_OF_MEMORY"));
            }
            Some(_) => {
                assert_eq!((code, version), (symbols::NO_DEVICE, -1));
                assert_eq!(of_cust, Err(CudaError::NoDevice));
                assert!(matches!(device_count(), Err(Error::NoDriver { reason }) if reason.contains("libcuda.so.1")));
                assert_eq!(CudaError::NoDevice.to_string(), "\"unknown error\"");
            }
        }
    }
}
