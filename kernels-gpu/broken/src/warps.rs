//! What the lanes of a warp do together, and do not.

use cuda_std::{global, thread, warp};

use crate::words;

pair! {
    shuffle_source_broken, shuffle_source_correct: shuffle_source;
    shuffle_lanes_broken, shuffle_lanes_correct: shuffle_lanes;
    warp_barrier_broken, warp_barrier_correct: warp_barrier;
}

/// The lower half of the warp asks for values of the upper half, which takes no part.
#[inline(always)]
unsafe fn shuffle_source<const BROKEN: bool>(out: *mut u32, _: *const u32) {
    let (lane, thread) = (warp::lane_id(), thread::thread_idx_x());
    // SAFETY: the areas have a word for each thread.
    unsafe {
        if lane < 16 {
            let distance = if BROKEN { 16 } else { 8 };
            let (value, _) = warp::warp_shuffle_xor(0xFFFF, thread, distance, 32); // fault: shuffle_source
            global::store(out.add(thread as usize), value);
        }
    }
}

/// The mask names lanes that are elsewhere.
#[inline(always)]
unsafe fn shuffle_lanes<const BROKEN: bool>(out: *mut u32, _: *const u32) {
    let (lane, thread) = (warp::lane_id(), thread::thread_idx_x());
    // SAFETY: the areas have a word for each thread.
    unsafe {
        if lane < 16 {
            let mask = if BROKEN { u32::MAX } else { 0xFFFF };
            let (value, _) = warp::warp_shuffle_xor(mask, thread, 8, 32); // fault: shuffle_lanes
            global::store(out.add(thread as usize), value);
        } else {
            global::store(out.add(thread as usize), 0);
            warp::sync_warp(0xFFFF_0000);
            global::store(out.add(thread as usize), 1);
        }
    }
}

/// Lanes of one warp exchange words, as if they ran in step.
#[inline(always)]
unsafe fn warp_barrier<const BROKEN: bool>(out: *mut u32, _: *const u32) {
    let thread = thread::thread_idx_x();
    // SAFETY: the areas have a word for each thread.
    unsafe {
        words().store(thread, thread);
        if !BROKEN {
            warp::sync_warp(u32::MAX);
        }
        let value = words().load(thread ^ 1); // fault: warp_barrier
        global::store(out.add(thread as usize), value);
    }
}
