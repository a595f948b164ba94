//! Addresses that are wrong, and memory that nothing wrote.

use cuda_std::ptx::ldmatrix;
use cuda_std::{global, shared, thread, warp};
use layout::{Swizzle, fragment};
use variants::broken::{MAP, TILE_ROW_BYTES, TILE_ROWS, TILE_SWIZZLE, TILES, WORDS};

use crate::{region, words};

pair! {
    tail_broken, tail_correct: tail;
    head_broken, head_correct: head;
    misaligned_broken, misaligned_correct: misaligned;
    shared_end_broken, shared_end_correct: shared_end;
    shared_unwritten_broken, shared_unwritten_correct: shared_unwritten;
    global_unwritten_broken, global_unwritten_correct: global_unwritten;
    swizzle_broken, swizzle_correct: swizzle;
    matrix_row_broken, matrix_row_correct: matrix_row;
}

/// The last thread of a tile has no element, and stores one all the same.
#[inline(always)]
unsafe fn tail<const BROKEN: bool>(out: *mut u32, _: *const u32) {
    let at = (TILES - 1) * WORDS + 1 + thread::thread_idx_x();
    // SAFETY: the output has `TILES * WORDS` words.
    unsafe {
        if BROKEN || at < TILES * WORDS {
            global::store(out.add(at as usize), at); // fault: tail
        }
    }
}

/// A stencil that reads in front of its input.
#[inline(always)]
unsafe fn head<const BROKEN: bool>(out: *mut u32, input: *const u32) {
    let thread = thread::thread_idx_x();
    // SAFETY: the areas have a word for each thread.
    unsafe {
        let before = if BROKEN { 1 } else { thread.min(1) };
        let left = global::load(input.wrapping_add(thread as usize).wrapping_sub(before as usize)); // fault: head
        global::store(out.add(thread as usize), left);
    }
}

/// A load of four words from an address that is a multiple of one.
#[inline(always)]
unsafe fn misaligned<const BROKEN: bool>(out: *mut u32, input: *const u32) {
    let thread = thread::thread_idx_x();
    let step = if BROKEN { 3 } else { 4 };
    // SAFETY: the input has four words for each thread.
    unsafe {
        let [a, b, c, d] = global::load(input.add((step * thread) as usize).cast::<[u32; 4]>()); // fault: misaligned
        global::store(out.add(thread as usize), a + b + c + d);
    }
}

/// A store behind the shared memory of the launch.
#[inline(always)]
unsafe fn shared_end<const BROKEN: bool>(_: *mut u32, _: *const u32) {
    let end = if BROKEN { MAP.total_bytes() } else { MAP.total_bytes() - 4 };
    // SAFETY: one thread stores the last word.
    unsafe {
        if thread::thread_idx_x() == 5 {
            shared::dynamic().offset(end).store(1u32); // fault: shared_end
        }
    }
}

/// Half of the threads initialise shared memory that all of them read.
#[inline(always)]
unsafe fn shared_unwritten<const BROKEN: bool>(out: *mut u32, _: *const u32) {
    let thread = thread::thread_idx_x();
    // SAFETY: the areas have a word for each thread.
    unsafe {
        if !BROKEN || thread < 32 {
            words().store(thread, 0);
        }
        thread::sync_threads();
        let value = words().load(thread); // fault: shared_unwritten
        global::store(out.add(thread as usize), value);
    }
}

/// Accumulates into an output that nothing set to zero.
#[inline(always)]
unsafe fn global_unwritten<const BROKEN: bool>(out: *mut u32, input: *const u32) {
    let thread = thread::thread_idx_x();
    // SAFETY: the areas have a word for each thread.
    unsafe {
        let mut sum = global::load(input.add(thread as usize));
        if BROKEN {
            sum += global::load(out.add(thread as usize)); // fault: global_unwritten
        }
        global::store(out.add(thread as usize), sum);
    }
}

/// Fills the used half of each row of the tile, a row a lane of the first warp.
///
/// # Safety
/// The whole block calls it.
#[inline(always)]
unsafe fn fill_tile(swizzle: Swizzle) {
    let row = thread::thread_idx_x();
    // SAFETY: the tile has a row for each lane of a warp.
    unsafe {
        let mut column = 0;
        while row < TILE_ROWS && column < TILE_ROW_BYTES {
            let offset = swizzle.apply(row * TILE_SWIZZLE.row_bytes() + column);
            region("tile").offset(offset).store([row; 4]);
            column += 16;
        }
        thread::sync_threads();
    }
}

/// The tile is stored plainly and read swizzled: the second half of its rows is read, which is not there.
#[inline(always)]
unsafe fn swizzle<const BROKEN: bool>(out: *mut u32, _: *const u32) {
    let (matrix, row) = fragment::ldmatrix_source(warp::lane_id());
    // SAFETY: both warps read the first matrices of the tile.
    unsafe {
        fill_tile(if BROKEN { Swizzle::None } else { TILE_SWIZZLE });
        let offset = TILE_SWIZZLE.apply((matrix * 8 + row) * TILE_SWIZZLE.row_bytes());
        let values = ldmatrix::x4(region("tile").offset(offset)); // fault: swizzle
        global::store(out.add(thread::thread_idx_x() as usize), values[0] + values[1] + values[2] + values[3]);
    }
}

/// The rows of a matrix begin at multiples of 8 bytes.
#[inline(always)]
unsafe fn matrix_row<const BROKEN: bool>(out: *mut u32, _: *const u32) {
    let (matrix, row) = fragment::ldmatrix_source(warp::lane_id());
    let shift = if BROKEN { 8 } else { 16 };
    // SAFETY: both warps read the first matrices of the tile.
    unsafe {
        fill_tile(Swizzle::None);
        let rows = region("tile").offset((matrix * 8 + row) * TILE_SWIZZLE.row_bytes() + shift);
        let values = ldmatrix::x4(rows); // fault: matrix_row
        global::store(out.add(thread::thread_idx_x() as usize), values[0] + values[1] + values[2] + values[3]);
    }
}
