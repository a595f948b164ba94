//! Copies by `cp.async` that are waited for too late, too little, or by the wrong threads.

use cuda_std::ptx::cp_async;
use cuda_std::{global, thread};
use variants::broken::{STAGES, THREADS, TILES, WORDS};

use crate::words;

pair! {
    copy_wait_broken, copy_wait_correct: copy_wait;
    copy_group_broken, copy_group_correct: copy_group;
    copy_barrier_broken, copy_barrier_correct: copy_barrier;
    copy_overwritten_broken, copy_overwritten_correct: copy_overwritten;
    stage_reuse_broken, stage_reuse_correct: stage_reuse;
    copy_misaligned_broken, copy_misaligned_correct: copy_misaligned;
    copy_tail_broken, copy_tail_correct: copy_tail;
}

/// Starts the copy of this thread's word of a tile into a stage, in a group of its own.
///
/// # Safety
/// The input has the tile; nobody uses the word of the stage.
#[inline(always)]
unsafe fn start(stage: u32, tile: u32, input: *const u32) {
    let thread = thread::thread_idx_x();
    // SAFETY: as required of the caller.
    unsafe {
        let from = input.add((tile * WORDS + thread) as usize);
        cp_async::ca_4(words().addr(stage * WORDS + thread), from, 4); // fault: stage_reuse
    }
    cp_async::commit_group();
}

/// Nobody waits for the copy; the barrier does not.
#[inline(always)]
unsafe fn copy_wait<const BROKEN: bool>(out: *mut u32, input: *const u32) {
    let thread = thread::thread_idx_x();
    // SAFETY: the areas have a word for each thread.
    unsafe {
        words().store(thread, 0);
        start(0, 0, input);
        if !BROKEN {
            cp_async::wait_group::<0>();
        }
        thread::sync_threads();
        let value = words().load(thread ^ 1); // fault: copy_wait
        global::store(out.add(thread as usize), value);
    }
}

/// The wait leaves the newest group in flight, which is the one that is needed.
#[inline(always)]
unsafe fn copy_group<const BROKEN: bool>(out: *mut u32, input: *const u32) {
    let thread = thread::thread_idx_x();
    // SAFETY: the areas have a word for each thread and tile.
    unsafe {
        words().store(WORDS + thread, 0);
        start(0, 0, input);
        start(1, 1, input);
        if BROKEN {
            cp_async::wait_group::<1>();
        } else {
            cp_async::wait_group::<0>();
        }
        thread::sync_threads();
        let value = words().load(WORDS + (thread ^ 1)); // fault: copy_group
        global::store(out.add(thread as usize), value);
        cp_async::wait_group::<0>();
    }
}

/// Each thread waits for its own copies, and reads those of others without a barrier.
#[inline(always)]
unsafe fn copy_barrier<const BROKEN: bool>(out: *mut u32, input: *const u32) {
    let thread = thread::thread_idx_x();
    // SAFETY: the areas have a word for each thread.
    unsafe {
        start(0, 0, input);
        cp_async::wait_group::<0>();
        if !BROKEN {
            thread::sync_threads();
        }
        let value = words().load(thread ^ 1); // fault: copy_barrier
        global::store(out.add(thread as usize), value);
    }
}

/// A store to where a copy is still writing.
#[inline(always)]
unsafe fn copy_overwritten<const BROKEN: bool>(out: *mut u32, input: *const u32) {
    let thread = thread::thread_idx_x();
    // SAFETY: the areas have a word for each thread.
    unsafe {
        start(0, 0, input);
        if !BROKEN {
            cp_async::wait_group::<0>();
        }
        words().store(thread, 7); // fault: copy_overwritten
        cp_async::wait_group::<0>();
        global::store(out.add(thread as usize), words().load(thread));
    }
}

/// A pipeline of two stages that refills a stage while other threads may still read it.
#[inline(always)]
unsafe fn stage_reuse<const BROKEN: bool>(out: *mut u32, input: *const u32) {
    let thread = thread::thread_idx_x();
    // SAFETY: the areas have a word for each thread and tile.
    unsafe {
        start(0, 0, input);
        let mut tile = 0;
        while tile < TILES {
            cp_async::wait_group::<0>();
            thread::sync_threads();
            let stage = tile % STAGES;
            if BROKEN && tile + 1 < TILES {
                // The stage of the tile at hand, in place of the other one.
                start(stage, tile + 1, input);
            } else if tile + 1 < TILES {
                start(1 - stage, tile + 1, input);
            }
            let from = if BROKEN { 0 } else { stage };
            let value = words().load(from * WORDS + (THREADS - 1 - thread));
            global::store(out.add((tile * WORDS + thread) as usize), value);
            tile += 1;
        }
    }
}

/// Copies of 16 bytes to where only 4 are aligned.
#[inline(always)]
unsafe fn copy_misaligned<const BROKEN: bool>(out: *mut u32, input: *const u32) {
    let thread = thread::thread_idx_x();
    // SAFETY: a quarter of the threads copies four words each.
    unsafe {
        if thread < THREADS / 4 {
            let to = words().addr(4 * thread).offset(if BROKEN { 4 } else { 0 });
            cp_async::cg_16(to, input.add(4 * thread as usize), 16); // fault: copy_misaligned
        }
        cp_async::wait_all();
        thread::sync_threads();
        global::store(out.add(thread as usize), words().load(thread));
    }
}

/// The last copy reads behind the input: it asks for more bytes than there are.
#[inline(always)]
unsafe fn copy_tail<const BROKEN: bool>(out: *mut u32, input: *const u32) {
    let (thread, last) = (thread::thread_idx_x(), TILES * WORDS - 1);
    // SAFETY: the copies of the first threads are inside; what is not asked for is zero.
    unsafe {
        let word = last - (THREADS - 1) + thread + 1;
        let bytes = if BROKEN || word <= last { 4 } else { 0 };
        cp_async::ca_4(words().addr(thread), input.add(word as usize), bytes); // fault: copy_tail
        cp_async::wait_all();
        global::store(out.add(thread as usize), words().load(thread));
    }
}
