//! Barriers that are missing, that a part of a warp reaches, or whose threads do not agree.

use cuda_std::ptx::barrier;
use cuda_std::{global, thread};
use variants::broken::{THREADS, WORDS};

use crate::words;

pair! {
    block_barrier_broken, block_barrier_correct: block_barrier;
    second_barrier_broken, second_barrier_correct: second_barrier;
    divergent_barrier_broken, divergent_barrier_correct: divergent_barrier;
    barrier_count_broken, barrier_count_correct: barrier_count;
    barrier_arrival_broken, barrier_arrival_correct: barrier_arrival;
    block_race_broken, block_race_correct: block_race;
    block_flag_broken, block_flag_correct: block_flag;
}

/// One warp reads what the other has stored, without a barrier.
#[inline(always)]
unsafe fn block_barrier<const BROKEN: bool>(out: *mut u32, _: *const u32) {
    let thread = thread::thread_idx_x();
    // SAFETY: the areas have a word for each thread.
    unsafe {
        words().store(thread, thread);
        if !BROKEN {
            thread::sync_threads();
        }
        if thread >= 32 {
            let value = words().load(thread - 32); // fault: block_barrier
            global::store(out.add(thread as usize), value);
        }
    }
}

/// A reduction by halves that forgets the barrier between its steps.
#[inline(always)]
unsafe fn second_barrier<const BROKEN: bool>(out: *mut u32, _: *const u32) {
    let thread = thread::thread_idx_x();
    // SAFETY: the areas have a word for each thread.
    unsafe {
        words().store(thread, thread);
        thread::sync_threads();
        let mut half = THREADS / 2;
        while half > 0 {
            if thread < half {
                let other = words().load(thread + half); // fault: second_barrier
                words().store(thread, words().load(thread) + other);
            }
            if !BROKEN {
                thread::sync_threads();
            }
            half /= 2;
        }
        if thread == 0 {
            global::store(out, words().load(0));
        }
    }
}

/// The lanes of a warp reach different barriers.
#[inline(always)]
unsafe fn divergent_barrier<const BROKEN: bool>(out: *mut u32, _: *const u32) {
    let thread = thread::thread_idx_x();
    // SAFETY: the areas have a word for each thread.
    unsafe {
        if BROKEN && thread % 32 < 7 {
            global::store(out.add(thread as usize), 1);
            thread::sync_threads(); // fault: divergent_barrier
            global::store(out.add(thread as usize), 2);
        } else {
            thread::sync_threads();
            global::store(out.add(thread as usize), 3);
        }
    }
}

/// Two warps at one barrier, which they expect to be of two and of three warps.
#[inline(always)]
unsafe fn barrier_count<const BROKEN: bool>(out: *mut u32, _: *const u32) {
    let thread = thread::thread_idx_x();
    // SAFETY: the areas have a word for each thread.
    unsafe {
        if BROKEN && thread >= 32 {
            barrier::sync::<1, { THREADS + 32 }>(); // fault: barrier_count
        } else {
            barrier::sync::<1, THREADS>();
        }
        global::store(out.add(thread as usize), thread);
    }
}

/// A warp waits for another one that never arrives.
#[inline(always)]
unsafe fn barrier_arrival<const BROKEN: bool>(out: *mut u32, _: *const u32) {
    let thread = thread::thread_idx_x();
    // SAFETY: the areas have a word for each thread.
    unsafe {
        if thread < 32 {
            barrier::sync::<2, THREADS>(); // fault: barrier_arrival
            global::store(out.add(thread as usize), words().load(thread + 32));
        } else {
            words().store(thread, 1);
            if !BROKEN {
                barrier::arrive::<2, THREADS>();
            }
        }
    }
}

/// Blocks that store to the same words.
#[inline(always)]
unsafe fn block_race<const BROKEN: bool>(out: *mut u32, _: *const u32) {
    let (block, thread) = (thread::block_idx_x(), thread::thread_idx_x());
    let first = if BROKEN { 0 } else { block * WORDS };
    // SAFETY: the output has a word for each thread of each block.
    unsafe {
        global::store(out.add((first + thread) as usize), block); // fault: block_race
    }
}

/// The first block tells the second one through a plain word of global memory.
#[inline(always)]
unsafe fn block_flag<const BROKEN: bool>(out: *mut u32, _: *const u32) {
    let (block, thread) = (thread::block_idx_x(), thread::thread_idx_x());
    // SAFETY: the output has a word for each thread of each block.
    unsafe {
        if block == 0 {
            global::store(out.add(thread as usize), thread);
        } else if BROKEN {
            let value = global::load(out.add(thread as usize)); // fault: block_flag
            global::store(out.add((WORDS + thread) as usize), value);
        }
    }
}
