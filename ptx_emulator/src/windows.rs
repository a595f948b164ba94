//! Where the memories of a thread lie in the generic address space. Global memory has the addresses that it has in its
//! own space, all above these windows (`memory::GLOBAL_ADDRESSES`).

/// Generic address of shared address 0.
pub(crate) const SHARED: u64 = 1 << 32;
/// Generic address of local address 0.
pub(crate) const LOCAL: u64 = 2 << 32;
/// Generic address of the first parameter.
pub(crate) const PARAM: u64 = 3 << 32;
/// In an address of `.shared::cluster`, the bit from which on stands one more than the rank of the block; zero there is
/// the own block, so that its addresses are the same in both windows.
pub(crate) const RANK_SHIFT: u32 = 24;
/// Length of each window.
pub(crate) const BYTES: u64 = 1 << 32;
