//! Copies of tensor tiles by the tensor memory accelerator (TMA), asynchronous; sm_90.
//!
//! A [`TensorMap`], which the host encodes, describes a tensor of 1 to 5 dimensions and the box that one instruction
//! copies. The map is a parameter of the kernel by value; in the body `#[kernel]` makes the parameter's name its
//! address.
//!
//! Coordinates are those of the first element of the box. The innermost dimension comes first, where the host's shapes
//! have it last. A box may reach outside the tensor: elements there arrive as zeros, and are not written.
//!
//! ```no_run
//! # use cuda_std::ptx::{fence, mbarrier, tma};
//! # use cuda_std::{shared::SharedAddr, thread};
//! # const BOX_BYTES: u32 = 1024;
//! // `map` is the name of a parameter `map: TensorMap` of the kernel.
//! unsafe fn copy(map: *const tma::TensorMap, [column, row]: [i32; 2], tile: SharedAddr, full: SharedAddr) {
//!     let is_first = thread::thread_idx_x() == 0;
//!     if is_first {
//!         tma::prefetch_tensormap(map);
//!         mbarrier::arrive_expect_tx(full, BOX_BYTES);        // the whole box, however much of it is outside
//!         tma::load(tile, map, [column, row], full);
//!     }
//!     mbarrier::wait_parity(full, 0);
//!     // .. change the tile ..
//!     fence::proxy_async_shared();
//!     thread::sync_threads();
//!     if is_first {
//!         tma::store(map, [column, row], tile);
//!         tma::commit_group();
//!         tma::wait_group_read::<0>();                        // before the tile is written again
//!     }
//! }
//! ```
//!
//! One thread issues a copy for the whole block.
#![cfg(any(target_feature = "sm_90", not(target_arch = "nvptx64")))]

pub use layout::TensorMap;

use crate::asm;
use crate::shared::SharedAddr;

/// Runs one form of a copy for the rank of its coordinates: `by_rank!(RANK, form, coordinates, operands)`, where the
/// form takes the name of the rank and the list of the coordinates.
macro_rules! by_rank {
    ($form:ident, $c:ident) => {
        match RANK {
            1 => $form!("1d", "{{{c0}}}", c0 0),
            2 => $form!("2d", "{{{c0}, {c1}}}", c0 0, c1 1),
            3 => $form!("3d", "{{{c0}, {c1}, {c2}}}", c0 0, c1 1, c2 2),
            4 => $form!("4d", "{{{c0}, {c1}, {c2}, {c3}}}", c0 0, c1 1, c2 2, c3 3),
            _ => $form!("5d", "{{{c0}, {c1}, {c2}, {c3}, {c4}}}", c0 0, c1 1, c2 2, c3 3, c4 4),
        }
    };
}

/// The coordinates of a box of any rank, with zeros where there is no dimension.
#[inline(always)]
fn five<const RANK: usize>(coordinates: [i32; RANK]) -> [i32; 5] {
    const { assert!(RANK >= 1 && RANK <= 5, "TMA copies tiles of 1 to 5 dimensions") };
    let mut five = [0; 5];
    let mut dim = 0;
    while dim < RANK {
        five[dim] = coordinates[dim];
        dim += 1;
    }
    five
}

/// Starts the copy of a box from global memory to `dst`; its bytes count on the mbarrier.
///
/// PTX: `cp.async.bulk.tensor.{1..5}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes` (PTX 8.0, sm_90).
/// Not a memory fence: waiting for the phase of the mbarrier makes the box visible.
///
/// # Safety
/// - `map` is the address of a kernel parameter that describes a tensor of `RANK` dimensions, which is valid until the
///   copy has finished.
/// - The innermost coordinate is a multiple of 16 bytes; the unit takes any other for an illegal instruction.
/// - `dst` is in the shared memory of the block and has room for the box. It is aligned to 128 bytes and to the period
///   of the map's swizzle. Nothing accesses it until the phase has completed.
/// - `barrier` is an initialised mbarrier of the block, visible to asynchronous copies; its current phase expects the
///   bytes of the box.
#[inline(always)]
pub unsafe fn load<const RANK: usize>(
    dst: SharedAddr,
    map: *const TensorMap,
    coordinates: [i32; RANK],
    barrier: SharedAddr,
) {
    let c = five(coordinates);
    macro_rules! form {
        ($rank:literal, $list:literal, $($name:ident $i:literal),+) => {
            asm!(
                concat!(
                    "cp.async.bulk.tensor.", $rank, ".shared::cluster.global.tile.mbarrier::complete_tx::bytes",
                    " [{dst}], [{map}, ", $list, "], [{barrier}];"
                ),
                dst = in(reg32) dst.as_raw(), map = in(reg64) map, barrier = in(reg32) barrier.as_raw(),
                $($name = in(reg32) c[$i],)+ options(nostack, preserves_flags)
            )
        };
    }
    // SAFETY: as required of the caller.
    unsafe { by_rank!(form, c) }
}

/// Starts the copy of a box from global memory to several blocks of the cluster: those whose bit is set in `blocks`.
/// The box arrives at the same place in the shared memory of each, and its bytes count on the mbarrier at the place of
/// `barrier` there.
///
/// PTX: `cp.async.bulk.tensor.{1..5}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster` (PTX
/// 8.0, sm_90).
/// Not a memory fence: waiting for the phase of the mbarrier makes the box visible in its block.
///
/// # Safety
/// - As for [`load`], in each of the blocks. Their mbarriers are initialised, and a barrier of the cluster stands in
///   between. No block exits before its copy has finished.
/// - Bit `i` of `blocks` is the block of rank `i`, which is in the cluster.
#[inline(always)]
pub unsafe fn load_multicast<const RANK: usize>(
    dst: SharedAddr,
    map: *const TensorMap,
    coordinates: [i32; RANK],
    barrier: SharedAddr,
    blocks: u16,
) {
    let c = five(coordinates);
    macro_rules! form {
        ($rank:literal, $list:literal, $($name:ident $i:literal),+) => {
            asm!(
                concat!(
                    "cp.async.bulk.tensor.", $rank, ".shared::cluster.global.tile.mbarrier::complete_tx::bytes",
                    ".multicast::cluster [{dst}], [{map}, ", $list, "], [{barrier}], {blocks};"
                ),
                dst = in(reg32) dst.as_raw(), map = in(reg64) map, barrier = in(reg32) barrier.as_raw(),
                blocks = in(reg16) blocks, $($name = in(reg32) c[$i],)+ options(nostack, preserves_flags)
            )
        };
    }
    // SAFETY: as required of the caller.
    unsafe { by_rank!(form, c) }
}

/// Starts to bring a box from global memory into the L2 cache, for a [`load`] that comes later. It changes no result.
///
/// PTX: `cp.async.bulk.prefetch.tensor.{1..5}d.L2.global.tile` (PTX 8.0, sm_90).
/// Not a memory fence.
///
/// # Safety
/// `map` and `coordinates` are as for [`load`].
#[inline(always)]
pub unsafe fn prefetch<const RANK: usize>(map: *const TensorMap, coordinates: [i32; RANK]) {
    let c = five(coordinates);
    macro_rules! form {
        ($rank:literal, $list:literal, $($name:ident $i:literal),+) => {
            asm!(
                concat!("cp.async.bulk.prefetch.tensor.", $rank, ".L2.global.tile [{map}, ", $list, "];"),
                map = in(reg64) map, $($name = in(reg32) c[$i],)+ options(nostack, preserves_flags)
            )
        };
    }
    // SAFETY: as required of the caller.
    unsafe { by_rank!(form, c) }
}

/// Starts the copy of a box from `src` to global memory, in this thread's current group.
///
/// PTX: `cp.async.bulk.tensor.{1..5}d.global.shared::cta.tile.bulk_group` (PTX 8.0, sm_90).
/// Not a memory fence.
///
/// # Safety
/// - `map` is the address of a kernel parameter that describes a tensor of `RANK` dimensions, valid for writes.
/// - The innermost coordinate is as for [`load`], and no coordinate is negative: the unit takes that for an illegal
///   instruction, too. The box may reach beyond the other edges of the tensor.
/// - `src` is in the shared memory of the block, is aligned as for [`load`], and holds the box: written before a
///   [`fence::proxy_async_shared`](crate::ptx::fence::proxy_async_shared) of the writing threads and a barrier.
/// - The box is not written until [`wait_group_read`] or [`wait_group`] has covered the group, and this thread does not
///   exit before.
#[inline(always)]
pub unsafe fn store<const RANK: usize>(map: *const TensorMap, coordinates: [i32; RANK], src: SharedAddr) {
    let c = five(coordinates);
    macro_rules! form {
        ($rank:literal, $list:literal, $($name:ident $i:literal),+) => {
            asm!(
                concat!(
                    "cp.async.bulk.tensor.", $rank, ".global.shared::cta.tile.bulk_group [{map}, ", $list, "], [{src}];"
                ),
                src = in(reg32) src.as_raw(), map = in(reg64) map, $($name = in(reg32) c[$i],)+
                options(nostack, preserves_flags)
            )
        };
    }
    // SAFETY: as required of the caller.
    unsafe { by_rank!(form, c) }
}

/// Starts the addition of a box at `src` to the tensor in global memory, in this thread's current group. Each element
/// is added atomically, in the type of the map.
///
/// PTX: `cp.reduce.async.bulk.tensor.{1..5}d.global.shared::cta.add.tile.bulk_group` (PTX 8.0, sm_90).
/// Not a memory fence.
///
/// # Safety
/// As for [`store`].
#[inline(always)]
pub unsafe fn reduce_add<const RANK: usize>(map: *const TensorMap, coordinates: [i32; RANK], src: SharedAddr) {
    let c = five(coordinates);
    macro_rules! form {
        ($rank:literal, $list:literal, $($name:ident $i:literal),+) => {
            asm!(
                concat!(
                    "cp.reduce.async.bulk.tensor.", $rank, ".global.shared::cta.add.tile.bulk_group [{map}, ", $list,
                    "], [{src}];"
                ),
                src = in(reg32) src.as_raw(), map = in(reg64) map, $($name = in(reg32) c[$i],)+
                options(nostack, preserves_flags)
            )
        };
    }
    // SAFETY: as required of the caller.
    unsafe { by_rank!(form, c) }
}

/// Closes the stores and additions that this thread has started since its last group into a new group, which may be
/// empty.
///
/// PTX: `cp.async.bulk.commit_group` (PTX 8.0, sm_90).
/// Not a memory fence.
#[inline(always)]
pub fn commit_group() {
    // SAFETY: has no precondition.
    unsafe { asm!("cp.async.bulk.commit_group;", options(nostack, preserves_flags)) }
}

/// Waits until at most `PENDING` of this thread's newest groups are in flight. What the older ones wrote is then
/// visible to this thread.
///
/// PTX: `cp.async.bulk.wait_group PENDING` (PTX 8.0, sm_90).
/// Not a memory fence.
#[inline(always)]
pub fn wait_group<const PENDING: u32>() {
    // SAFETY: has no precondition. The absent `nomem` keeps the compiler from moving accesses across it.
    unsafe { asm!("cp.async.bulk.wait_group {0};", const PENDING, options(nostack, preserves_flags)) }
}

/// Waits until at most `PENDING` of this thread's newest groups still read shared memory: the boxes of the older ones
/// can be written again.
///
/// PTX: `cp.async.bulk.wait_group.read PENDING` (PTX 8.0, sm_90).
/// Not a memory fence.
#[inline(always)]
pub fn wait_group_read<const PENDING: u32>() {
    // SAFETY: has no precondition. The absent `nomem` keeps the compiler from moving accesses across it.
    unsafe { asm!("cp.async.bulk.wait_group.read {0};", const PENDING, options(nostack, preserves_flags)) }
}

/// Brings a tensor map near, so that the first copy does not wait for it.
///
/// PTX: `prefetch.tensormap` (PTX 8.0, sm_90).
///
/// # Safety
/// `map` is the address of a kernel parameter.
#[inline(always)]
pub unsafe fn prefetch_tensormap(map: *const TensorMap) {
    // SAFETY: as required of the caller.
    unsafe { asm!("prefetch.tensormap [{0}];", in(reg64) map, options(nostack, preserves_flags)) }
}
