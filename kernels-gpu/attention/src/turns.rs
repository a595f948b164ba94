//! Consumer warpgroups that have the tensor cores one after the other, a step each, in the order of their numbers.
//!
//! Each waits at a barrier of its own for the one before it, the first for the last. While one is on the tensor cores
//! the others have the exponentials of theirs: without turns all come at once, first to the one and then to the other.
//! All take as many turns: who has a step less than others hands one on unused.

use cuda_std::ptx::barrier;
use layout::attention::WARPGROUP_THREADS;

use crate::row::Row;

/// The barrier of the first warpgroup, behind those of the block and of all consumers.
const FIRST: u32 = 2;

/// Who waits, and who hands on.
const THREADS: u32 = 2 * WARPGROUP_THREADS;

/// Gives the first turn to the first warpgroup.
///
/// # Safety
/// All threads of consumer warpgroup `group` call it together, once, before it takes a turn.
#[inline(always)]
pub(crate) unsafe fn start<const ROW: usize>(group: u32) {
    if const { Row::<ROW>::STEP_END.in_turn() } && group == const { last::<ROW>() } {
        // SAFETY: the caller's contract.
        unsafe { hand_on::<ROW>(group) };
    }
}

/// Waits for the turn of warpgroup `group`.
///
/// # Safety
/// All threads of the warpgroup call it together; all warpgroups take as many turns.
#[inline(always)]
pub(crate) unsafe fn take(group: u32) {
    // SAFETY: the caller's contract.
    unsafe { barrier::sync_numbered::<THREADS>(FIRST + group) };
}

/// Gives the turn to the warpgroup after `group`.
///
/// # Safety
/// All threads of the warpgroup call it together, in its turn.
#[inline(always)]
pub(crate) unsafe fn hand_on<const ROW: usize>(group: u32) {
    let next = if group == const { last::<ROW>() } { 0 } else { group + 1 };
    // SAFETY: the caller's contract.
    unsafe { barrier::arrive_numbered::<THREADS>(FIRST + next) };
}

/// Takes and hands on the turn that warpgroup `group` lacks where it has a step less than others of the `steps` of the
/// tile, which two groups of keys share at most.
///
/// # Safety
/// All threads of the warpgroup call it together, behind its last turn in a tile.
#[inline(always)]
pub(crate) unsafe fn make_up<const ROW: usize>(group: u32, steps: u32) {
    let key_groups = const { Row::<ROW>::KEY_GROUPS };
    if !steps.is_multiple_of(key_groups) && !group.is_multiple_of(key_groups) {
        // SAFETY: the caller's contract.
        unsafe {
            take(group);
            hand_on::<ROW>(group);
        }
    }
}

/// The last consumer warpgroup.
const fn last<const ROW: usize>() -> u32 {
    Row::<ROW>::TILE.consumers() as u32 - 1
}
