//! Clusters: blocks that run at the same time, meet at a barrier and reach each other's shared memory; sm_90.
//!
//! The rank of a block is [`thread::cluster_rank`](crate::thread::cluster_rank).
#![cfg(any(target_feature = "sm_90", not(target_arch = "nvptx64")))]

use crate::asm;
use crate::shared::SharedAddr;
use crate::word::Word;

/// Arrives at the barrier of the cluster: what this thread did before is visible to those that have waited.
///
/// PTX: `barrier.cluster.arrive.release.aligned` (PTX 7.8, sm_90), release semantics in the cluster.
///
/// # Safety
/// - All threads of the warp execute this call together; every thread of the cluster arrives, and each waits once
///   before it arrives again.
#[inline(always)]
pub unsafe fn arrive() {
    // SAFETY: as required of the caller. The absent `nomem` keeps the compiler from moving accesses across it.
    unsafe { asm!("barrier.cluster.arrive.release.aligned;", options(nostack, preserves_flags)) }
}

/// Arrives at the barrier of the cluster without ordering what this thread did before. After
/// [`fence::mbarrier_init`](crate::ptx::fence::mbarrier_init) that is enough for the barriers that it covers.
///
/// In the machine code, the release of [`arrive`] is a fence of the whole card.
///
/// PTX: `barrier.cluster.arrive.relaxed.aligned` (PTX 8.0, sm_90).
/// Not a memory fence.
///
/// # Safety
/// As for [`arrive`].
#[inline(always)]
pub unsafe fn arrive_relaxed() {
    // SAFETY: as required of the caller. The absent `nomem` keeps the compiler from moving accesses across it.
    unsafe { asm!("barrier.cluster.arrive.relaxed.aligned;", options(nostack, preserves_flags)) }
}

/// Waits until every thread of the cluster has arrived.
///
/// PTX: `barrier.cluster.wait.acquire.aligned` (PTX 7.8, sm_90), acquire semantics in the cluster.
///
/// # Safety
/// - All threads of the warp execute this call together, after [`arrive`].
#[inline(always)]
pub unsafe fn wait() {
    // SAFETY: as required of the caller. The absent `nomem` keeps the compiler from moving accesses across it.
    unsafe { asm!("barrier.cluster.wait.acquire.aligned;", options(nostack, preserves_flags)) }
}

/// [`arrive`] and [`wait`].
///
/// # Safety
/// As for both.
#[inline(always)]
pub unsafe fn sync() {
    // SAFETY: as required of the caller.
    unsafe {
        arrive();
        wait();
    }
}

/// An address in the shared memory of any block of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterAddr(u32);

impl ClusterAddr {
    /// Where the block of this rank has what this block has at `own`.
    ///
    /// PTX: `mapa.shared::cluster.u32` (PTX 7.8, sm_90).
    ///
    /// # Safety
    /// - The cluster has a block of this rank.
    #[inline(always)]
    pub unsafe fn of_block(own: SharedAddr, rank: u32) -> ClusterAddr {
        let raw;
        // SAFETY: as required of the caller; an address is computed.
        unsafe {
            asm!("mapa.shared::cluster.u32 {0}, {1}, {2};", out(reg32) raw, in(reg32) own.as_raw(), in(reg32) rank,
                options(pure, nomem, nostack, preserves_flags));
        }
        ClusterAddr(raw)
    }

    /// The address as PTX has it.
    #[inline(always)]
    pub const fn as_raw(self) -> u32 {
        self.0
    }

    /// `bytes` further on in the same block.
    #[inline(always)]
    #[must_use]
    pub const fn offset(self, bytes: u32) -> ClusterAddr {
        ClusterAddr(self.0.wrapping_add(bytes))
    }

    /// Loads one word.
    ///
    /// PTX: `ld.shared::cluster{.v2,.v4}.b16/.b32` (PTX 7.8, sm_90).
    /// Not a memory fence.
    ///
    /// # Safety
    /// - The address is aligned to the size of the word and lies inside the shared memory of its block, where something
    ///   was stored. That block has not exited.
    /// - No thread writes it without a barrier of the cluster in between: the load may be merged with an earlier equal
    ///   one.
    #[inline(always)]
    pub unsafe fn load<T: Word>(self) -> T {
        // SAFETY: as required of the caller.
        unsafe { T::load_cluster(self.0) }
    }

    /// Starts to store `N` words, 1, 2 or 4, which no register of this thread need keep; their bytes count on `barrier`
    /// when they are there.
    ///
    /// PTX: `st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{.v2,.v4}.b32` (PTX 8.1, sm_90).
    /// Not a memory fence: they are visible to who has waited for the phase of `barrier` in which they count.
    ///
    /// # Safety
    /// - The address is aligned to the size of the words and in the shared memory of its block; `barrier` is an
    ///   mbarrier of the same block, whose initialisation is visible, and the current phase of which expects the bytes
    ///   or will.
    /// - The block does not exit before it has waited for that phase, and nothing uses the place until then.
    #[inline(always)]
    pub unsafe fn store_async<const N: usize>(self, words: [u32; N], barrier: ClusterAddr) {
        // SAFETY: as required of the caller. The absent `nomem` keeps the compiler from moving accesses across it.
        unsafe {
            match *words.as_slice() {
                [a] => asm!("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [{0}], {2}, [{1}];",
                    in(reg32) self.0, in(reg32) barrier.0, in(reg32) a, options(nostack, preserves_flags)),
                [a, b] => {
                    asm!("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [{0}], {{{2}, {3}}}, [{1}];",
                    in(reg32) self.0, in(reg32) barrier.0, in(reg32) a, in(reg32) b, options(nostack, preserves_flags))
                }
                [a, b, c, d] => asm!(
                    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [{0}], {{{2}, {3}, {4}, {5}}}, [{1}];",
                    in(reg32) self.0, in(reg32) barrier.0, in(reg32) a, in(reg32) b, in(reg32) c, in(reg32) d,
                    options(nostack, preserves_flags)
                ),
                _ => const { assert!(matches!(N, 1 | 2 | 4), "words of one instruction") },
            }
        }
    }
}
