//! `mbarrier` objects with the wrong number of arrivals, or used before or after their time.

use core::arch::asm;

use cuda_std::ptx::mbarrier;
use cuda_std::{global, thread};
use variants::broken::ARRIVALS;

use crate::{region, words};

pair! {
    arrivals_exceeded_broken, arrivals_exceeded_correct: arrivals_exceeded;
    arrivals_missing_broken, arrivals_missing_correct: arrivals_missing;
    mbarrier_uninitialised_broken, mbarrier_uninitialised_correct: mbarrier_uninitialised;
    mbarrier_race_broken, mbarrier_race_correct: mbarrier_race;
    phase_wait_broken, phase_wait_correct: phase_wait;
}

/// Initialises the barrier of the block.
///
/// # Safety
/// The whole block calls it.
#[inline(always)]
unsafe fn prepare(arrivals: u32) {
    // SAFETY: one thread does it, and the others wait.
    unsafe {
        if thread::thread_idx_x() == 0 {
            mbarrier::init(region("barrier"), arrivals);
        }
        thread::sync_threads();
    }
}

/// One thread arrives for all threads, though another one has arrived for itself.
#[inline(always)]
unsafe fn arrivals_exceeded<const BROKEN: bool>(out: *mut u32, _: *const u32) {
    let thread = thread::thread_idx_x();
    // SAFETY: the areas have a word for each thread.
    unsafe {
        prepare(ARRIVALS);
        if thread == 1 {
            arrive(1);
        }
        thread::sync_threads();
        if thread == 0 {
            arrive(if BROKEN { ARRIVALS } else { ARRIVALS - 1 });
        }
        global::store(out.add(thread as usize), thread);
    }
}

/// Arrives `count` times at the barrier of the block.
///
/// # Safety
/// The barrier is initialised, and its phase has so many arrivals left.
#[inline(always)]
unsafe fn arrive(count: u32) {
    // SAFETY: as required of the caller.
    unsafe {
        let barrier = region("barrier").as_raw();
        asm!("mbarrier.arrive.shared.b64 _, [{0}], {1};", in(reg32) barrier, in(reg32) count, options(nostack)); // fault: arrivals_exceeded
    }
}

/// One arrival is missing, and all wait.
#[inline(always)]
unsafe fn arrivals_missing<const BROKEN: bool>(out: *mut u32, _: *const u32) {
    let thread = thread::thread_idx_x();
    // SAFETY: the areas have a word for each thread.
    unsafe {
        prepare(if BROKEN { ARRIVALS + 1 } else { ARRIVALS });
        let phase = mbarrier::arrive(region("barrier"));
        mbarrier::wait(region("barrier"), phase); // fault: arrivals_missing
        global::store(out.add(thread as usize), thread);
    }
}

/// Threads arrive at what is no barrier yet.
#[inline(always)]
unsafe fn mbarrier_uninitialised<const BROKEN: bool>(out: *mut u32, _: *const u32) {
    let thread = thread::thread_idx_x();
    // SAFETY: the areas have a word for each thread.
    unsafe {
        if !BROKEN {
            prepare(ARRIVALS);
        }
        let phase = mbarrier::arrive(region("barrier")); // fault: mbarrier_uninitialised
        mbarrier::wait(region("barrier"), phase);
        global::store(out.add(thread as usize), thread);
    }
}

/// Threads arrive before they are ordered with the one that initialises.
#[inline(always)]
unsafe fn mbarrier_race<const BROKEN: bool>(out: *mut u32, _: *const u32) {
    let thread = thread::thread_idx_x();
    // SAFETY: the areas have a word for each thread.
    unsafe {
        if thread == 0 {
            mbarrier::init(region("barrier"), ARRIVALS);
        }
        if !BROKEN {
            thread::sync_threads();
        }
        let phase = mbarrier::arrive(region("barrier")); // fault: mbarrier_race
        mbarrier::wait(region("barrier"), phase);
        global::store(out.add(thread as usize), thread);
    }
}

/// The consumer reads without having waited for the phase of the producer.
#[inline(always)]
unsafe fn phase_wait<const BROKEN: bool>(out: *mut u32, _: *const u32) {
    let thread = thread::thread_idx_x();
    // SAFETY: the areas have a word for each thread.
    unsafe {
        words().store(thread, 0);
        prepare(ARRIVALS);
        words().store(thread, thread); // fault: phase_wait
        let phase = mbarrier::arrive(region("barrier"));
        if !BROKEN {
            mbarrier::wait(region("barrier"), phase);
        }
        if thread >= 32 {
            let value = words().load(thread - 32); // fault: phase_wait
            global::store(out.add(thread as usize), value);
        }
    }
}
