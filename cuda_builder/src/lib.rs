//! Builds a device crate to PTX.
