//! Probes of `warp`. All of them are launched with one warp.

use cuda_std::{kernel, shared_array, thread, warp};

/// Shuffles the value `7 * lane + 3` in every mode and writes what each lane got: value and in-range flag of idx, xor,
/// up and down, then the idx value as f32.
///
/// # Safety
/// `out` has 9 words for each lane; `width` is a power of two up to 32.
#[kernel(max_threads = 32)]
pub unsafe fn warp_shuffles(out: *mut [u32; 9], lane: u32, width: u32) {
    let value = warp::lane_id() * 7 + 3;
    // SAFETY: the whole warp is here.
    unsafe {
        let idx = warp::warp_shuffle_idx(warp::FULL_MASK, value, lane, width);
        let xor = warp::warp_shuffle_xor(warp::FULL_MASK, value, lane, width);
        let up = warp::warp_shuffle_up(warp::FULL_MASK, value, lane, width);
        let down = warp::warp_shuffle_down(warp::FULL_MASK, value, lane, width);
        let (float, _) = warp::warp_shuffle_idx(warp::FULL_MASK, value as f32, lane, width);
        *out.add(warp::lane_id() as usize) =
            [idx.0, idx.1 as u32, xor.0, xor.1 as u32, up.0, up.1 as u32, down.0, down.1 as u32, float.to_bits()];
    }
}

/// The lanes in `mask` vote, lane `i` with bit `i` of `predicates`, and write all, any and ballot.
///
/// # Safety
/// `out` has 3 words for each lane.
#[kernel(max_threads = 32)]
pub unsafe fn warp_votes(out: *mut [u32; 3], predicates: u32, mask: u32) {
    let lane = warp::lane_id();
    let predicate = predicates >> lane & 1 != 0;
    if mask >> lane & 1 != 0 {
        // SAFETY: exactly the lanes in the mask are here.
        unsafe {
            let all = warp::warp_vote_all(mask, predicate);
            let any = warp::warp_vote_any(mask, predicate);
            *out.add(lane as usize) = [all as u32, any as u32, warp::warp_vote_ballot(mask, predicate)];
        }
    }
}

/// Reduces one value a lane and writes the sum and maximum of the quad, then those of the warp.
///
/// # Safety
/// `input` has a value and `out` 4 words for each lane.
#[kernel(max_threads = 32)]
pub unsafe fn warp_reductions(out: *mut [f32; 4], input: *const f32) {
    let lane = warp::lane_id() as usize;
    // SAFETY: the whole warp is here.
    unsafe {
        let value = *input.add(lane);
        *out.add(lane) = [warp::quad_sum(value), warp::quad_max(value), warp::warp_sum(value), warp::warp_max(value)];
    }
}

/// Passes each lane's number to the lane above it through shared memory, four times, with a warp barrier around each.
///
/// # Safety
/// `out` has a word for each lane.
#[kernel(max_threads = 32)]
pub unsafe fn warp_sync(out: *mut u32) {
    let words = shared_array![u32; 32];
    let lane = warp::lane_id();
    let mut value = lane;
    // SAFETY: the whole warp is here; the barriers separate stores from loads.
    unsafe {
        for _ in 0..4 {
            words.store(lane, value);
            warp::sync_warp(warp::FULL_MASK);
            value = words.load((lane + 1) % 32);
            warp::sync_warp(warp::FULL_MASK);
        }
        *out.add(thread::thread_idx_x() as usize) = value;
    }
}

/// Writes whether the lane was elected, twice.
///
/// # Safety
/// `out` has 2 words for each lane.
#[cfg(target_feature = "sm_90")]
#[kernel(max_threads = 32)]
pub unsafe fn warp_elect(out: *mut [u32; 2]) {
    // SAFETY: the whole warp is here.
    unsafe { *out.add(warp::lane_id() as usize) = [warp::elect() as u32, warp::elect() as u32] }
}
