//! The backend of a card: calls into the CUDA driver. Nothing outside this folder and `backend/cust` calls the driver.

mod device;
mod error;
mod load;
mod module;
mod objects;
mod table;

pub(crate) use device::{Device, device_count, facts_of};
#[cfg(feature = "cust")]
pub(crate) use error::{check, driver_error, error_text};
#[cfg(feature = "cust")]
pub(crate) use load::NOT_FOUND;
pub(crate) use load::{function, missing};
#[cfg(not(feature = "cust"))]
pub(crate) use objects::Handles;
#[cfg(feature = "cust")]
pub(crate) use objects::Objects;
pub(crate) use table::table;
#[cfg(feature = "cust")]
pub(crate) use table::{CUcontext, cuCtxPopCurrent_v2, cuCtxPushCurrent_v2, known_to_cust};
