//! What more than one family checks of its tensors before anything is enqueued.

use crate::error::{Error, Result};

/// Reports `what` on device `got` where the stream is on `expected`.
pub(crate) fn same_device(what: &'static str, got: u32, expected: u32) -> Result<()> {
    if got == expected { Ok(()) } else { Err(Error::WrongDevice { what, got, expected }) }
}
