//! Ping-pong: consumer warpgroups use the tensor cores one after the other, one step each, in the order of their
//! numbers.
//!
//! Each warpgroup waits at a named barrier of its own until the one before it arrives there; the first waits for the
//! last. While one warpgroup has the tensor cores, the others compute their exponentials. Without this order all of
//! them would want the tensor cores at once, and then the exponentials at once. Every warpgroup passes its barrier
//! equally often: a warpgroup with one step less than the others calls [`WarpScheduler::skip`].

use cuda_std::ptx::barrier;
use variants::attention::WARPGROUP_THREADS;

use crate::sm90::config::Config;

/// The barrier of the first warpgroup, behind those of the block and of all consumers.
const FIRST: u32 = 2;

/// The threads of a barrier: a warpgroup that waits, and the one that arrives.
const THREADS: u32 = 2 * WARPGROUP_THREADS;

/// The order of the consumer warpgroups of configuration `ID`.
pub(crate) enum WarpScheduler<const ID: usize> {}

impl<const ID: usize> WarpScheduler<ID> {
    /// The last consumer warpgroup.
    const LAST: u32 = Config::<ID>::TILE.consumers() as u32 - 1;

    /// Lets the first warpgroup start.
    ///
    /// # Safety
    /// All threads of consumer warpgroup `warpgroup` call it together, once, before they wait.
    #[inline(always)]
    pub(crate) unsafe fn start(warpgroup: u32) {
        if Config::<ID>::PV_OVERLAP.pingpong() && warpgroup == Self::LAST {
            // SAFETY: the caller's contract.
            unsafe { Self::arrive(warpgroup) };
        }
    }

    /// Waits until the tensor cores are for warpgroup `warpgroup`.
    ///
    /// # Safety
    /// All threads of the warpgroup call it together; all warpgroups wait equally often.
    #[inline(always)]
    pub(crate) unsafe fn wait(warpgroup: u32) {
        // SAFETY: the caller's contract.
        unsafe { barrier::sync_numbered::<THREADS>(FIRST + warpgroup) };
    }

    /// Leaves the tensor cores to the warpgroup after `warpgroup`.
    ///
    /// # Safety
    /// All threads of the warpgroup call it together, after [`Self::wait`].
    #[inline(always)]
    pub(crate) unsafe fn arrive(warpgroup: u32) {
        let next = if warpgroup == Self::LAST { 0 } else { warpgroup + 1 };
        // SAFETY: the caller's contract.
        unsafe { barrier::arrive_numbered::<THREADS>(FIRST + next) };
    }

    /// Waits and arrives once more where warpgroup `warpgroup` has one step less than others. The tile has `steps`
    /// steps, which at most two split-KV warpgroups share.
    ///
    /// # Safety
    /// All threads of the warpgroup call it together, behind its last step of a tile.
    #[inline(always)]
    pub(crate) unsafe fn skip(warpgroup: u32, steps: u32) {
        let split_kv = const { Config::<ID>::SPLIT_KV_WARPGROUPS };
        if !steps.is_multiple_of(split_kv) && !warpgroup.is_multiple_of(split_kv) {
            // SAFETY: the caller's contract.
            unsafe {
                Self::wait(warpgroup);
                Self::arrive(warpgroup);
            }
        }
    }
}
