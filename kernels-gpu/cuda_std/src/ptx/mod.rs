//! One thin function for each PTX instruction that the kernels use.
//!
//! Module and function name together read as the instruction: `cp_async::wait_group::<1>()` is `cp.async.wait_group 1`.
//! Arguments are in PTX order after the results; values go in, values come out. Fragments are plain arrays of
//! registers, whose maps are in [`layout::fragment`]. Shared operands are [`SharedAddr`](crate::shared::SharedAddr),
//! global ones raw pointers. Every function has a kernel in `probes` and a test of its meaning.

pub mod barrier;
pub mod cluster;
pub mod cp_async;
pub mod fence;
pub mod griddepcontrol;
pub mod ldmatrix;
pub mod mbarrier;
pub mod mma;
pub mod setmaxnreg;
pub mod stmatrix;
pub mod tma;
pub mod wgmma;
pub mod wmma;
