//! Who makes, owns and frees what the driver hands out: this crate by itself, or with the types of cust.

use std::ffi::{CStr, c_int};
use std::fmt::Debug;
#[cfg(not(feature = "cust"))]
use std::ptr;

use super::error::check;
use super::table::{self as cuda, CUcontext, CUdevice};
use crate::backend::Handle;
use crate::error::Result;

/// The primary context of a card, and the life of its memory, streams, events and modules.
///
/// [`Device`](super::Device) is the same for all of them. It makes the context current before it calls any function but
/// [`Objects::retain`], and makes streams itself: cust makes none that are not ordered with the default stream.
pub(crate) trait Objects: Debug + Send + Sync + Sized + 'static {
    /// Retains the primary context of a card until the value is dropped. It may become current on this thread.
    fn retain(ordinal: u32) -> Result<Self>;

    fn context(&self) -> CUcontext;

    /// The context as cust has it.
    #[cfg(feature = "cust")]
    fn cust_context(&self) -> Option<&::cust::context::Context>;

    /// Device memory of `bytes` bytes (not 0).
    fn allocate(bytes: usize) -> Result<u64>;

    /// # Safety
    /// The address is one of [`Objects::allocate`], and is not used again.
    unsafe fn free(address: u64);

    /// Page-locked host memory of `bytes` bytes (not 0).
    fn allocate_pinned(bytes: usize) -> Result<*mut u8>;

    /// # Safety
    /// The address is one of [`Objects::allocate_pinned`], and is not used again.
    unsafe fn free_pinned(address: *mut u8);

    /// # Safety
    /// The handle is a `CUstream`, and is not used again.
    unsafe fn destroy_stream(stream: Handle);

    /// An event, as a `CUevent`.
    fn create_event() -> Result<Handle>;

    /// # Safety
    /// The handle is one of [`Objects::create_event`], and is not used again.
    unsafe fn destroy_event(event: Handle);

    /// Compiles PTX, or returns the driver's code.
    fn load_module(ptx: &CStr) -> Result<Handle, c_int>;

    /// # Safety
    /// The handle is one of [`Objects::load_module`]. Neither the module nor its functions are used again.
    unsafe fn unload_module(module: Handle);

    /// A function as a `CUfunction`, or the driver's code.
    ///
    /// # Safety
    /// The handle is a live one of [`Objects::load_module`].
    unsafe fn function(module: Handle, name: &CStr) -> Result<Handle, c_int>;
}

/// The card of a number.
pub(super) fn device(ordinal: u32) -> Result<CUdevice> {
    let mut device = 0;
    // SAFETY: `device` is written.
    check("cuDeviceGet", unsafe { cuda::cuDeviceGet(&mut device, ordinal as c_int) })?;
    Ok(device)
}

/// The objects of this crate: the driver's handles as they are.
#[cfg(not(feature = "cust"))]
#[derive(Debug)]
pub(crate) struct Handles {
    device: CUdevice,
    context: Handle,
}

#[cfg(not(feature = "cust"))]
impl Objects for Handles {
    fn retain(ordinal: u32) -> Result<Self> {
        let device = device(ordinal)?;
        let mut context = ptr::null_mut();
        // SAFETY: `context` is written.
        check("cuDevicePrimaryCtxRetain", unsafe { cuda::cuDevicePrimaryCtxRetain(&mut context, device) })?;
        Ok(Handles { device, context: Handle(context) })
    }

    fn context(&self) -> CUcontext {
        self.context.0
    }

    fn allocate(bytes: usize) -> Result<u64> {
        let mut address = 0;
        // SAFETY: `address` is written.
        check("cuMemAlloc", unsafe { cuda::cuMemAlloc_v2(&mut address, bytes) })?;
        Ok(address)
    }

    unsafe fn free(address: u64) {
        // SAFETY: the caller gives the allocation up.
        unsafe { cuda::cuMemFree_v2(address) };
    }

    fn allocate_pinned(bytes: usize) -> Result<*mut u8> {
        let mut address = ptr::null_mut();
        // SAFETY: `address` is written.
        check("cuMemAllocHost", unsafe { cuda::cuMemAllocHost_v2(&mut address, bytes) })?;
        Ok(address.cast())
    }

    unsafe fn free_pinned(address: *mut u8) {
        // SAFETY: the caller gives the allocation up.
        unsafe { cuda::cuMemFreeHost(address.cast()) };
    }

    unsafe fn destroy_stream(stream: Handle) {
        // SAFETY: the caller gives the stream up.
        unsafe { cuda::cuStreamDestroy_v2(stream.0) };
    }

    fn create_event() -> Result<Handle> {
        let mut event = ptr::null_mut();
        // SAFETY: `event` is written.
        check("cuEventCreate", unsafe { cuda::cuEventCreate(&mut event, 0) })?;
        Ok(Handle(event))
    }

    unsafe fn destroy_event(event: Handle) {
        // SAFETY: the caller gives the event up.
        unsafe { cuda::cuEventDestroy_v2(event.0) };
    }

    fn load_module(ptx: &CStr) -> Result<Handle, c_int> {
        let mut module = ptr::null_mut();
        let none = ptr::null_mut();
        // SAFETY: the text ends with NUL, `module` is written, and there are no options.
        match unsafe { cuda::cuModuleLoadDataEx(&mut module, ptx.as_ptr().cast(), 0, none, none.cast()) } {
            0 => Ok(Handle(module)),
            code => Err(code),
        }
    }

    unsafe fn unload_module(module: Handle) {
        // SAFETY: the caller gives the module up.
        unsafe { cuda::cuModuleUnload(module.0) };
    }

    unsafe fn function(module: Handle, name: &CStr) -> Result<Handle, c_int> {
        let mut function = ptr::null_mut();
        // SAFETY: the module is live, `name` ends with NUL, `function` is written.
        match unsafe { cuda::cuModuleGetFunction(&mut function, module.0, name.as_ptr()) } {
            0 => Ok(Handle(function)),
            code => Err(code),
        }
    }
}

#[cfg(not(feature = "cust"))]
impl Drop for Handles {
    fn drop(&mut self) {
        // SAFETY: the context is retained, and what was made in it is not used again.
        unsafe { cuda::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}
