//! Where the memories of a thread lie in the generic address space. Generic addresses of global memory are its own
//! addresses, all above these windows (`memory::GLOBAL_ADDRESSES`).

/// Generic address of shared address 0.
pub(crate) const SHARED: u64 = 1 << 32;
/// Generic address of local address 0.
pub(crate) const LOCAL: u64 = 2 << 32;
/// Generic address of the first parameter.
pub(crate) const PARAM: u64 = 3 << 32;
/// In an address of `.shared::cluster`, the first bit of the block number: one more than the block's rank, or zero for
/// the thread's own block. So the own block has the same addresses in both windows.
pub(crate) const RANK_SHIFT: u32 = 24;
/// Length of each window.
pub(crate) const BYTES: u64 = 1 << 32;
