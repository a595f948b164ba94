//! The driver as another library of the same process calls it: contexts and streams of its own.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;

use libloading::Library;

/// The driver's library; `None` without one.
fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    let name = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };
    // SAFETY: the initialisers of NVIDIA's driver library may run at any time on any thread.
    LIBRARY.get_or_init(|| unsafe { Library::new(name) }.ok()).as_ref()
}

/// A function of the driver, which must be there.
///
/// # Safety
/// `F` is the function's type.
unsafe fn function<F: Copy>(name: &str) -> F {
    // SAFETY: the caller's promise.
    let found = unsafe { library().expect("a card has a driver").get::<F>(name) };
    *found.unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Fails on a code of the driver that is none of success.
fn succeeds(call: &str, code: c_int) {
    assert_eq!(code, 0, "{call}");
}

/// The context that is current on this thread; null for none.
pub(crate) fn current_context() -> *mut c_void {
    let mut context = ptr::null_mut();
    if library().is_some() {
        // SAFETY: the type is that of cuda.h, `context` is written.
        succeeds("cuCtxGetCurrent", unsafe {
            function::<unsafe extern "system" fn(*mut *mut c_void) -> c_int>("cuCtxGetCurrent")(&mut context)
        });
    }
    context
}

/// Makes a context current on this thread, or none for null.
pub(crate) fn set_current_context(context: *mut c_void) {
    // SAFETY: the type is that of cuda.h, and the context is live.
    succeeds("cuCtxSetCurrent", unsafe {
        function::<unsafe extern "system" fn(*mut c_void) -> c_int>("cuCtxSetCurrent")(context)
    });
}

/// The primary context of a card, current on this thread.
pub(crate) fn enter_primary_context(ordinal: u32) {
    let mut context = ptr::null_mut();
    // SAFETY: the type is that of cuda.h, `context` is written. It stays retained until the process ends.
    succeeds("cuDevicePrimaryCtxRetain", unsafe {
        let retain: unsafe extern "system" fn(*mut *mut c_void, c_int) -> c_int = function("cuDevicePrimaryCtxRetain");
        retain(&mut context, ordinal as c_int)
    });
    set_current_context(context);
}

/// A context that is not the primary one, current on the thread that made it until it is dropped there.
pub(crate) struct OtherContext(*mut c_void);

impl OtherContext {
    pub(crate) fn enter(ordinal: u32) -> OtherContext {
        let mut context = ptr::null_mut();
        // SAFETY: the type is that of cuda.h, `context` is written.
        succeeds("cuCtxCreate", unsafe {
            let create: unsafe extern "system" fn(*mut *mut c_void, c_uint, c_int) -> c_int =
                function("cuCtxCreate_v2");
            create(&mut context, 0, ordinal as c_int)
        });
        OtherContext(context)
    }
}

impl Drop for OtherContext {
    fn drop(&mut self) {
        // SAFETY: the type is that of cuda.h, and the context is not used again. Destroying it pops it.
        succeeds("cuCtxDestroy", unsafe {
            function::<unsafe extern "system" fn(*mut c_void) -> c_int>("cuCtxDestroy_v2")(self.0)
        });
    }
}

/// A stream of the context that is current.
pub(crate) struct ForeignStream(*mut c_void);

impl ForeignStream {
    pub(crate) fn new() -> ForeignStream {
        let mut stream = ptr::null_mut();
        // SAFETY: the type is that of cuda.h, `stream` is written.
        succeeds("cuStreamCreate", unsafe {
            function::<unsafe extern "system" fn(*mut *mut c_void, c_uint) -> c_int>("cuStreamCreate")(&mut stream, 0)
        });
        ForeignStream(stream)
    }

    pub(crate) fn as_raw(&self) -> *mut c_void {
        self.0
    }
}

impl Drop for ForeignStream {
    fn drop(&mut self) {
        // SAFETY: the type is that of cuda.h, and the stream is not used again.
        succeeds("cuStreamDestroy", unsafe {
            function::<unsafe extern "system" fn(*mut c_void) -> c_int>("cuStreamDestroy_v2")(self.0)
        });
    }
}
