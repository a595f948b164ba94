//! Opens the driver library on first use, so that programs build and start on machines without it.

use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use libloading::Library;

use crate::error::DriverError;

/// The file that every NVIDIA driver for Linux installs.
const LIBRARY: &str = "libcuda.so.1";

/// The driver library, or why it could not be opened. It is never closed: it has threads of its own.
fn library() -> Result<&'static Library, &'static str> {
    static OPENED: OnceLock<Result<Library, String>> = OnceLock::new();
    let opened = OPENED.get_or_init(|| {
        // SAFETY: the initialisers of NVIDIA's driver library may run at any time on any thread.
        unsafe { Library::new(LIBRARY) }.map_err(|error| match error.source() {
            Some(words_of_the_system) => words_of_the_system.to_string(),
            None => error.to_string(),
        })
    });
    opened.as_ref().map_err(String::as_str)
}

/// Why there is no driver; `None` where there is one.
pub(super) fn absence() -> Option<&'static str> {
    library().err()
}

/// The address of the function whose NUL-terminated name is `name`; `None` without a driver or where the driver lacks
/// it.
pub(super) fn symbol(name: &[u8]) -> Option<*const c_void> {
    // SAFETY: the symbol is only read as an address; the caller gives it the type of the function.
    let symbol = unsafe { library().ok()?.get::<*const c_void>(name) }.ok()?;
    Some(*symbol)
}

/// What `cuGetErrorString` or `cuGetErrorName`, whichever `function` is, says about `code`.
fn error_string(function: &CStr, code: c_int) -> Option<&'static CStr> {
    let address = symbol(function.to_bytes_with_nul())?;
    // SAFETY: both functions have this type (cuda.h).
    let function: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int = unsafe { std::mem::transmute(address) };
    let mut text = ptr::null();
    // SAFETY: `text` is written, with null for an unknown code.
    unsafe { function(code, &mut text) };
    // SAFETY: a text of the driver is a NUL-terminated constant.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

/// The driver's words for a code; `None` without a driver or where it does not know the code.
pub(super) fn error_text(code: c_int) -> Option<&'static CStr> {
    error_string(c"cuGetErrorString", code)
}

/// The name of a code in cuda.h; `None` without a driver or where it does not know the code.
pub(super) fn error_name(code: c_int) -> Option<&'static CStr> {
    error_string(c"cuGetErrorName", code)
}

/// A code that a driver function returned, with the driver's name and words for it.
pub(super) fn driver_error(code: c_int) -> DriverError {
    let text = |words: Option<&'static CStr>| words.and_then(|words| words.to_str().ok());
    DriverError::new(code as u32, text(error_name(code)), text(error_text(code)))
}
