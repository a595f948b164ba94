//! Opens the driver library on first use, so that programs build and start on machines without it.

use std::error::Error;
use std::ffi::c_int;
use std::sync::OnceLock;

use libloading::Library;

/// `CUDA_ERROR_NO_DEVICE`.
pub(super) const NO_DEVICE: c_int = 100;
/// `CUDA_ERROR_NOT_FOUND`.
pub(crate) const NOT_FOUND: c_int = 500;

/// The file that every NVIDIA driver installs.
pub(super) const LIBRARY: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };

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

/// The driver's function of this name, which ends with a NUL; `None` without a driver or where the driver lacks it.
///
/// # Safety
/// `F` is the type of the function.
pub(crate) unsafe fn function<F: Copy>(name: &str) -> Option<F> {
    // SAFETY: the caller's promise; an `Option` of a function is its address, null for none.
    let found = unsafe { library().ok()?.get::<Option<F>>(name.as_bytes()) }.ok()?;
    *found
}

/// What a call returns of a function that [`function`] has not found.
pub(crate) fn missing() -> c_int {
    if absence().is_some() { NO_DEVICE } else { NOT_FOUND }
}
