//! Probes of `shared` and `global`. All of them are launched with one warp.

use cuda_std::global::{self, Word};
use cuda_std::shared::{self, SharedArray};
use cuda_std::{kernel, thread, warp};
use layout::smem::BASE_ALIGN_BYTES;
use variants::probe::{ATOMIC_MOST, GLOBAL_WORDS_BYTES, SHARED_WORDS, WORDS};

/// Passes a word of each type to the facing lane through the dynamic shared memory, and writes what each lane got and
/// the base modulo its alignment.
///
/// # Safety
/// The dynamic shared memory is that of `WORDS`; `out` has `SHARED_WORDS` words for each lane.
#[kernel(max_threads = 32)]
pub unsafe fn shared_words(out: *mut [u32; SHARED_WORDS as usize]) {
    let lane = warp::lane_id();
    let facing = 31 - lane;
    let (small, word) =
        (SharedArray::<u16>::of_region(WORDS.get("u16")), SharedArray::<u32>::of_region(WORDS.get("u32")));
    let float = SharedArray::<f32>::of_region(WORDS.get("f32"));
    let pair = SharedArray::<[u32; 2]>::of_region(WORDS.get("u32x2"));
    let four = SharedArray::<[u32; 4]>::of_region(WORDS.get("u32x4"));
    let byte = SharedArray::<u8>::of_region(WORDS.get("u8"));
    // SAFETY: every region has an element for each lane, and the barrier separates the stores from the loads.
    unsafe {
        small.store(lane, lane as u16 * 257);
        word.store(lane, lane + 1000);
        float.store(lane, lane as f32 + 0.25);
        pair.store(lane, [lane, lane + 100]);
        four.store(lane, [lane, lane + 10, lane + 20, lane + 30]);
        byte.store(lane, lane as u8 * 7);
        thread::sync_threads();
        let (pair, four) = (pair.load(facing), four.load(facing));
        *out.add(lane as usize) = [
            small.load(facing) as u32,
            word.load(facing),
            float.load(facing).to_bits(),
            pair[0],
            pair[1],
            four[0],
            four[1],
            four[2],
            four[3],
            u32::from(byte.load(facing)),
            shared::dynamic().as_raw() % BASE_ALIGN_BYTES,
        ];
    }
}

/// Copies one word of each type a lane, first by `load`, then by `load_nc`; then by `load_where` for even lanes, where
/// odd ones have that of the facing lane.
///
/// # Safety
/// `input` has 512 bytes and `out` `GLOBAL_WORDS_BYTES` for each of the six types, both 16-byte aligned.
#[kernel(max_threads = 32)]
pub unsafe fn global_words(out: *mut u8, input: *const u8) {
    // SAFETY: the areas do not overlap and have room for 3 x 32 words of 16 bytes.
    unsafe {
        copy_words::<u16>(out, input);
        copy_words::<u32>(out.add(GLOBAL_WORDS_BYTES as usize), input);
        copy_words::<f32>(out.add(2 * GLOBAL_WORDS_BYTES as usize), input);
        copy_words::<[u32; 2]>(out.add(3 * GLOBAL_WORDS_BYTES as usize), input);
        copy_words::<[u32; 4]>(out.add(4 * GLOBAL_WORDS_BYTES as usize), input);
        copy_words::<u8>(out.add(5 * GLOBAL_WORDS_BYTES as usize), input);
    }
}

/// Each lane counts twice on one number, and writes what it was, and what it is when all have counted.
///
/// # Safety
/// `counter` is 0; `out` has three words for each lane.
#[kernel(max_threads = 32)]
pub unsafe fn global_atomic_inc(out: *mut [u32; 3], counter: *mut u32) {
    // SAFETY: nothing else uses the counter, and the warp is together.
    unsafe {
        let counted = [(); 2].map(|()| global::atomic_inc(counter, ATOMIC_MOST));
        warp::sync_warp(warp::FULL_MASK);
        *out.add(warp::lane_id() as usize) = [counted[0], counted[1], global::load_relaxed(counter)];
    }
}

/// Each lane raises one number to a multiple of its own. It writes what the number was, and what it is when all lanes
/// have raised it.
///
/// # Safety
/// `number` is 0; `out` has two words for each lane.
#[kernel(max_threads = 32)]
pub unsafe fn global_atomic_max(out: *mut [u32; 2], number: *mut u32) {
    let lane = warp::lane_id();
    // SAFETY: nothing else uses the number, and the warp is together.
    unsafe {
        let before = global::atomic_max(number, lane * 7);
        warp::sync_warp(warp::FULL_MASK);
        *out.add(lane as usize) = [before, global::load_relaxed(number)];
    }
}

/// # Safety
/// As for `global_words`, for one type.
#[inline(always)]
unsafe fn copy_words<T: Word>(out: *mut u8, input: *const u8) {
    let lane = warp::lane_id() as usize;
    let (out, input) = (out.cast::<T>(), input.cast::<T>());
    // SAFETY: as required of the caller.
    unsafe {
        global::store(out.add(lane), global::load(input.add(lane)));
        global::store(out.add(32 + lane), global::load_nc(input.add(lane)));
        let facing = global::load(input.add(31 - lane));
        global::store(out.add(64 + lane), global::load_where(lane.is_multiple_of(2), input.add(lane), facing));
    }
}
