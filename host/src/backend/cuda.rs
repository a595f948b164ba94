//! The backend of a card: every call into the CUDA driver. Nothing outside this folder names cust or a driver function.

mod device;
mod load;
mod module;
mod symbols;

pub(crate) use device::{Device, device_count, facts_of, ordinal_of_stream};
