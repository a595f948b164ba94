//! Probes of `thread`.

use core::sync::atomic::{AtomicU32, Ordering};

#[cfg(target_feature = "sm_90")]
use cuda_std::{global, ptx::griddepcontrol};
use cuda_std::{kernel, shared_array, thread};
use variants::probe::BLOCK_THREADS;

/// Writes the twelve indices and sizes of every thread, in the order of the thread's number in the grid.
///
/// # Safety
/// `out` has 12 words for each thread of the grid.
#[kernel]
pub unsafe fn thread_indices(out: *mut [u32; 12]) {
    let thread_idx = [thread::thread_idx_x(), thread::thread_idx_y(), thread::thread_idx_z()];
    let block_idx = [thread::block_idx_x(), thread::block_idx_y(), thread::block_idx_z()];
    let block_dim = [thread::block_dim_x(), thread::block_dim_y(), thread::block_dim_z()];
    let grid_dim = [thread::grid_dim_x(), thread::grid_dim_y(), thread::grid_dim_z()];
    let flat = |index: [u32; 3], dim: [u32; 3]| (index[2] * dim[1] + index[1]) * dim[0] + index[0];
    let threads = block_dim[0] * block_dim[1] * block_dim[2];
    let number = flat(block_idx, grid_dim) * threads + flat(thread_idx, block_dim);
    let [t, b, d, g] = [thread_idx, block_idx, block_dim, grid_dim];
    // SAFETY: the number is less than the threads of the grid.
    unsafe { *out.add(number as usize) = [t[0], t[1], t[2], b[0], b[1], b[2], d[0], d[1], d[2], g[0], g[1], g[2]] }
}

/// Writes `index_1d` of every thread of a one-dimensional grid.
///
/// # Safety
/// `out` has a word for each thread of the grid.
#[kernel]
pub unsafe fn thread_index_1d(out: *mut u32) {
    let index = thread::index_1d();
    // SAFETY: the index is less than the threads of the grid.
    unsafe { *out.add(index as usize) = index }
}

/// Writes the rank of every block of a two-dimensional grid in its cluster.
///
/// # Safety
/// Blocks of one thread; `out` has a word for each.
#[cfg(target_feature = "sm_90")]
#[kernel]
pub unsafe fn thread_cluster_rank(out: *mut u32) {
    let block = thread::block_idx_x() + thread::block_idx_y() * thread::grid_dim_x();
    // SAFETY: the number is less than the blocks of the grid.
    unsafe { *out.add(block as usize) = thread::cluster_rank() }
}

/// Adds one to the word of the thread that the kernel before gave another thread of another block, and passes it on: by
/// as many launches as overlap, each word counts them.
///
/// # Safety
/// `from` and `to` have a word for each thread of the grid; the launch before wrote `from`, and the one before it read
/// `to`.
#[cfg(target_feature = "sm_90")]
#[kernel]
pub unsafe fn griddepcontrol_chain(from: *const u32, to: *mut u32) {
    griddepcontrol::launch_dependents();
    let (index, threads) = (thread::index_1d(), thread::grid_dim_x() * thread::block_dim_x());
    griddepcontrol::wait();
    // SAFETY: the indices are less than the threads of the grid; what was written before is there after the wait.
    unsafe { *to.add(index as usize) = global::load(from.add((threads - 1 - index) as usize)) + 1 }
}

/// Passes each thread's number to the thread that faces it, by two static arrays and a block barrier.
///
/// # Safety
/// One block of `BLOCK_THREADS` threads; `out` has two words for each.
#[kernel(max_threads = BLOCK_THREADS)]
pub unsafe fn thread_sync(out: *mut [u32; 2]) {
    let words = shared_array![u32; BLOCK_THREADS as usize];
    let floats = shared_array![f32; BLOCK_THREADS as usize];
    let thread = thread::thread_idx_x();
    let facing = words.len() - 1 - thread;
    // SAFETY: the arrays have an element for each thread, and the barrier separates the stores from the loads.
    unsafe {
        words.store(thread, thread);
        floats.store(thread, thread as f32 + 0.5);
        thread::sync_threads();
        *out.add(thread as usize) = [words.load(facing), floats.load(facing).to_bits()];
    }
}

/// Thread 0 of a block passes a message to thread 32 through global memory, with a fence of the block on both sides.
///
/// # Safety
/// One block of 64 threads; `message` is data, flag and result, all zero.
#[kernel]
pub unsafe fn thread_block_fence(message: *mut u32) {
    // SAFETY: the three words are touched by atomic accesses alone.
    unsafe {
        pass_message(
            message,
            thread::thread_idx_x() / 32,
            thread::thread_idx_x().is_multiple_of(32),
            thread::block_fence,
        )
    }
}

/// Block 0 passes a message to block 1 through global memory, with a fence of the device on both sides.
///
/// # Safety
/// Two blocks of one thread; `message` is data, flag and result, all zero.
#[kernel]
pub unsafe fn thread_device_fence(message: *mut u32) {
    // SAFETY: the three words are touched by atomic accesses alone.
    unsafe { pass_message(message, thread::block_idx_x(), true, thread::device_fence) }
}

/// # Safety
/// `message` is three words that others touch by atomic accesses alone.
#[inline(always)]
unsafe fn pass_message(message: *mut u32, side: u32, active: bool, fence: impl Fn()) {
    // SAFETY: as required of the caller.
    let [data, flag, result] = unsafe {
        [AtomicU32::from_ptr(message), AtomicU32::from_ptr(message.add(1)), AtomicU32::from_ptr(message.add(2))]
    };
    if active && side == 0 {
        data.store(42, Ordering::Relaxed);
        fence();
        flag.store(1, Ordering::Relaxed);
    } else if active {
        while flag.load(Ordering::Relaxed) == 0 {}
        fence();
        result.store(data.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}
