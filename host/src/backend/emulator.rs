//! The backend without a card: `ptx_emulator` runs the kernels on the CPU.
//!
//! Work is done when it is enqueued, which is one of the orders that streams and events allow. A stream that is
//! captured records the work instead. Handles are numbers of objects in a table, so that a handle which is not live is
//! an error and nothing worse.

mod device;
mod objects;

pub(crate) use device::EmulatedDevice;
