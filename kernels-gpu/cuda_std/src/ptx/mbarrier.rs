//! Barriers in shared memory that count arrivals, and on sm_90 also the bytes of asynchronous copies.
//!
//! An mbarrier is 8 bytes, 8-byte aligned. It goes through phases. A phase completes when as many threads have arrived
//! as the mbarrier was initialised for, and, on sm_90, as many bytes as were announced. The next phase begins at once.
//! A waiter names the phase it waits for: on sm_80 by the token of an arrival, on sm_90 also by its parity (0 for the
//! first).
//!
//! ```no_run
//! # use cuda_std::{ptx::mbarrier, shared::SharedAddr, thread};
//! # const TILE_BYTES: u32 = 1024;
//! # unsafe fn example(full: SharedAddr, producer: bool, phase: u32) {
//! if thread::thread_idx_x() == 0 { mbarrier::init(full, 1) }
//! thread::sync_threads();
//! if producer { mbarrier::arrive_expect_tx(full, TILE_BYTES); /* start the copy on `full` */ }
//! mbarrier::wait_parity(full, phase & 1);
//! # }
//! ```

use crate::asm;
use crate::shared::SharedAddr;

/// The phase in which an arrival took place.
#[derive(Debug, Clone, Copy)]
#[must_use = "waiting needs the phase of the arrival"]
pub struct Phase(u64);

/// Makes the 8 bytes at `barrier` an mbarrier whose phases take `arrivals` arrivals.
///
/// PTX: `mbarrier.init.shared.b64` (PTX 7.0, sm_80).
/// Not a memory fence: a barrier of the block (and, for asynchronous copies, `fence::mbarrier_init`) must follow before
/// use.
///
/// # Safety
/// - `barrier` is 8-byte aligned in the shared memory of the block, and not in use as an mbarrier.
/// - `arrivals` is from 1 to 2^20 - 1; one thread executes this call.
#[inline(always)]
pub unsafe fn init(barrier: SharedAddr, arrivals: u32) {
    // SAFETY: as required of the caller.
    unsafe {
        asm!("mbarrier.init.shared.b64 [{0}], {1};", in(reg32) barrier.as_raw(), in(reg32) arrivals,
            options(nostack, preserves_flags));
    }
}

/// Arrives once, and gives the phase in which that counts.
///
/// PTX: `mbarrier.arrive.shared.b64` (PTX 7.0, sm_80), release semantics in the block.
///
/// # Safety
/// - `barrier` is an initialised mbarrier, whose current phase has an arrival left.
#[inline(always)]
pub unsafe fn arrive(barrier: SharedAddr) -> Phase {
    let phase: u64;
    // SAFETY: as required of the caller. The absent `nomem` keeps the compiler from moving accesses across it.
    unsafe {
        asm!("mbarrier.arrive.shared.b64 {0}, [{1}];", out(reg64) phase, in(reg32) barrier.as_raw(),
            options(nostack, preserves_flags));
    }
    Phase(phase)
}

/// Whether `phase`, the current or the preceding one, has completed.
///
/// PTX: `mbarrier.test_wait.shared.b64` (PTX 7.0, sm_80), acquire semantics in the block if it has.
///
/// # Safety
/// - `barrier` is an initialised mbarrier, and `phase` is its current or preceding phase.
#[inline(always)]
pub unsafe fn test_wait(barrier: SharedAddr, phase: Phase) -> bool {
    let complete: u32;
    // SAFETY: as required of the caller. The absent `nomem` keeps the compiler from moving accesses across it.
    unsafe {
        asm!(
            "{{ .reg .pred p; mbarrier.test_wait.shared.b64 p, [{1}], {2}; selp.u32 {0}, 1, 0, p; }}",
            out(reg32) complete, in(reg32) barrier.as_raw(), in(reg64) phase.0, options(nostack)
        );
    }
    complete != 0
}

/// Waits until `phase` has completed.
///
/// # Safety
/// As for [`test_wait`]. Returns only if the missing arrivals come.
#[inline(always)]
pub unsafe fn wait(barrier: SharedAddr, phase: Phase) {
    // SAFETY: as required of the caller.
    while unsafe { !test_wait(barrier, phase) } {}
}

/// Arrives once and announces `bytes` bytes of asynchronous copies, which the current phase then waits for too.
///
/// PTX: `mbarrier.arrive.expect_tx.shared::cta.b64` (PTX 8.0, sm_90), release semantics in the block.
///
/// # Safety
/// - `barrier` is an initialised mbarrier, whose current phase has an arrival left.
/// - Copies of so many bytes complete on `barrier`; at most 2^20 - 1 are announced in one phase.
#[cfg(any(target_feature = "sm_90", not(target_arch = "nvptx64")))]
#[inline(always)]
pub unsafe fn arrive_expect_tx(barrier: SharedAddr, bytes: u32) {
    // SAFETY: as required of the caller. The absent `nomem` keeps the compiler from moving accesses across it.
    unsafe {
        asm!("mbarrier.arrive.expect_tx.shared::cta.b64 _, [{0}], {1};", in(reg32) barrier.as_raw(), in(reg32) bytes,
            options(nostack, preserves_flags));
    }
}

/// Whether the phase of this parity, the current or the preceding one, has completed; the hardware may wait a while
/// first.
///
/// The hardware goes on with instructions that do not need the answer. So a later arrival of the same thread can
/// complete the phase that this test still asks about.
///
/// PTX: `mbarrier.try_wait.parity.shared::cta.b64` (PTX 7.8, sm_90), acquire semantics in the block if it has.
///
/// # Safety
/// - `barrier` is an initialised mbarrier; `parity` is 0 or 1.
#[cfg(any(target_feature = "sm_90", not(target_arch = "nvptx64")))]
#[inline(always)]
pub unsafe fn try_wait_parity(barrier: SharedAddr, parity: u32) -> bool {
    let complete: u32;
    // SAFETY: as required of the caller. The absent `nomem` keeps the compiler from moving accesses across it.
    unsafe {
        asm!(
            "{{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [{1}], {2}; selp.u32 {0}, 1, 0, p; }}",
            out(reg32) complete, in(reg32) barrier.as_raw(), in(reg32) parity, options(nostack)
        );
    }
    complete != 0
}

/// Waits until the phase of this parity has completed: parity 0 the first, 1 the second, 0 the third.
///
/// # Safety
/// As for [`try_wait_parity`]. Returns only if the missing arrivals and bytes come.
#[cfg(any(target_feature = "sm_90", not(target_arch = "nvptx64")))]
#[inline(always)]
pub unsafe fn wait_parity(barrier: SharedAddr, parity: u32) {
    // SAFETY: as required of the caller.
    while unsafe { !try_wait_parity(barrier, parity) } {}
}

/// Announces `bytes` bytes of asynchronous copies, which the current phase then waits for too, without arriving.
///
/// PTX: `mbarrier.expect_tx.relaxed.cta.shared::cta.b64` (PTX 8.0, sm_90).
/// Not a memory fence.
///
/// # Safety
/// - `barrier` is an initialised mbarrier, whose current phase has an arrival left.
/// - Copies of so many bytes complete on `barrier`; at most 2^20 - 1 are announced in one phase.
#[cfg(any(target_feature = "sm_90", not(target_arch = "nvptx64")))]
#[inline(always)]
pub unsafe fn expect_tx(barrier: SharedAddr, bytes: u32) {
    // SAFETY: as required of the caller. The absent `nomem` keeps the compiler from moving accesses across it.
    unsafe {
        asm!("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [{0}], {1};", in(reg32) barrier.as_raw(),
            in(reg32) bytes, options(nostack, preserves_flags));
    }
}

/// Arrives once on the mbarrier at the same place in the block of rank `rank` of the cluster, if `arrives`.
///
/// One lane of a warp arrives for all without a branch. The scope of the release is the block. That frees what
/// asynchronous copies have read for the next copies, but it does not order ordinary stores to the other block. (A
/// release in the cluster is a fence of the whole card in the machine code.)
///
/// PTX: `mapa.shared::cluster.u32` and `mbarrier.arrive.shared::cluster.b64` (PTX 8.0, sm_90), release semantics in the
/// block.
///
/// # Safety
/// - `barrier` is, in the other block, an initialised mbarrier, whose current phase has an arrival left.
/// - The rank is less than the size of the cluster, and that block has started and not exited.
#[cfg(any(target_feature = "sm_90", not(target_arch = "nvptx64")))]
#[inline(always)]
pub unsafe fn arrive_cluster_if(barrier: SharedAddr, rank: u32, arrives: bool) {
    // SAFETY: as required of the caller. The absent `nomem` keeps the compiler from moving accesses across it.
    unsafe {
        asm!(
            "{{ .reg .pred p; .reg .b32 t; setp.ne.u32 p, {2}, 0; mapa.shared::cluster.u32 t, {0}, {1};",
            "@p mbarrier.arrive.shared::cluster.b64 _, [t]; }}",
            in(reg32) barrier.as_raw(), in(reg32) rank, in(reg32) arrives as u32, options(nostack)
        );
    }
}

/// Arrives once, if `arrives`: one lane of a warp for all, without a branch.
///
/// PTX: `mbarrier.arrive.shared::cta.b64` (PTX 7.8, sm_90), release semantics in the block.
///
/// # Safety
/// - `barrier` is an initialised mbarrier, whose current phase has an arrival left.
#[cfg(any(target_feature = "sm_90", not(target_arch = "nvptx64")))]
#[inline(always)]
pub unsafe fn arrive_if(barrier: SharedAddr, arrives: bool) {
    // SAFETY: as required of the caller. The absent `nomem` keeps the compiler from moving accesses across it.
    unsafe {
        asm!(
            "{{ .reg .pred p; setp.ne.u32 p, {1}, 0; @p mbarrier.arrive.shared::cta.b64 _, [{0}]; }}",
            in(reg32) barrier.as_raw(), in(reg32) arrives as u32, options(nostack)
        );
    }
}
