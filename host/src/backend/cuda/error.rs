//! The driver's codes as errors of this crate.

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use super::load::NOT_FOUND;
use super::table;
use crate::error::{DriverError, Error, Result};

/// `CUDA_ERROR_INVALID_PTX`.
pub(super) const INVALID_PTX: c_int = 218;
/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`.
pub(super) const CAPTURE_UNSUPPORTED: c_int = 900;

/// The code that a driver function returned, as a result.
pub(crate) fn check(call: &'static str, code: c_int) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(Error::Driver { call, error: driver_error(code) }) }
}

/// Like [`check`] for a function that CUDA `needed` introduced.
pub(super) fn check_recent(call: &'static str, needed: (u32, u32), code: c_int) -> Result<()> {
    if code == NOT_FOUND { Err(Error::DriverTooOld { call, needed }) } else { check(call, code) }
}

/// A code that a driver function returned, with the driver's name and words for it.
pub(crate) fn driver_error(code: c_int) -> DriverError {
    let text = |words: Option<&'static CStr>| words.and_then(|words| words.to_str().ok());
    DriverError::new(code as u32, text(error_name(code)), text(error_text(code)))
}

/// The name of a code in cuda.h; `None` without a driver or where it does not know the code.
pub(super) fn error_name(code: c_int) -> Option<&'static CStr> {
    // SAFETY: the text is written, or left alone.
    constant(|text| unsafe { table::cuGetErrorName(code, text) })
}

/// The driver's words for a code; `None` without a driver or where it does not know the code.
pub(crate) fn error_text(code: c_int) -> Option<&'static CStr> {
    // SAFETY: the text is written, or left alone.
    constant(|text| unsafe { table::cuGetErrorString(code, text) })
}

/// The text that a call gives out, if it does.
fn constant(call: impl FnOnce(&mut *const c_char) -> c_int) -> Option<&'static CStr> {
    let mut text = ptr::null();
    call(&mut text);
    // SAFETY: a text of the driver is a NUL-terminated constant.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}
