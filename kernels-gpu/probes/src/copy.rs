//! Probes of `ptx::cp_async`. All of them are launched with one warp.

use cuda_std::ptx::cp_async;
use cuda_std::shared::{SharedAddr, SharedArray};
use cuda_std::{kernel, thread, warp};
use variants::probe::{COPIES, COPY_FILL, COPY_GROUPS};

/// Copies 4 bytes a lane, of which `source_bytes` from `input`, over a filled area; writes the area.
///
/// # Safety
/// The dynamic shared memory is that of `COPIES`; `input` and `out` have 4 bytes for each lane.
#[kernel(max_threads = 32)]
pub unsafe fn cp_async_ca_4(out: *mut u32, input: *const u8, source_bytes: u32) {
    // SAFETY: the areas are as the probe requires.
    unsafe { copy::<4>(out, input, |to, from| cp_async::ca_4(to, from, source_bytes)) }
}

/// Copies 8 bytes a lane, of which `source_bytes` from `input`, over a filled area; writes the area.
///
/// # Safety
/// The dynamic shared memory is that of `COPIES`; `input` and `out` have 8 bytes for each lane.
#[kernel(max_threads = 32)]
pub unsafe fn cp_async_ca_8(out: *mut u32, input: *const u8, source_bytes: u32) {
    // SAFETY: the areas are as the probe requires.
    unsafe { copy::<8>(out, input, |to, from| cp_async::ca_8(to, from, source_bytes)) }
}

/// Copies 16 bytes a lane, of which `source_bytes` from `input`, over a filled area; writes the area.
///
/// # Safety
/// The dynamic shared memory is that of `COPIES`; `input` and `out` have 16 bytes for each lane.
#[kernel(max_threads = 32)]
pub unsafe fn cp_async_cg_16(out: *mut u32, input: *const u8, source_bytes: u32) {
    // SAFETY: the areas are as the probe requires.
    unsafe { copy::<16>(out, input, |to, from| cp_async::cg_16(to, from, source_bytes)) }
}

/// # Safety
/// As for the probes above; `start` copies `BYTES` bytes.
#[inline(always)]
unsafe fn copy<const BYTES: u32>(out: *mut u32, input: *const u8, start: impl Fn(SharedAddr, *const u8)) {
    let words = SharedArray::<u32>::of_region(COPIES.get("bytes"));
    let lane = warp::lane_id();
    // SAFETY: as required of the caller; each lane copies and reads its own bytes.
    unsafe {
        for i in 0..BYTES / 4 {
            words.store(lane * BYTES / 4 + i, COPY_FILL);
        }
        start(words.addr(lane * BYTES / 4), input.add((lane * BYTES) as usize));
        cp_async::commit_group();
        cp_async::wait_group::<0>();
        for i in 0..BYTES / 4 {
            let index = lane * BYTES / 4 + i;
            *out.add(index as usize) = words.load(index);
        }
    }
}

/// Copies `COPY_GROUPS` words a lane, each in its own group, and reads every word as soon as its group has been waited
/// for. The words of the facing lane are read, after a block barrier.
///
/// # Safety
/// The dynamic shared memory is that of `COPIES`; `input` and `out` have a word for each lane and group.
#[kernel(max_threads = 32)]
pub unsafe fn cp_async_groups(out: *mut u32, input: *const u32) {
    let words = SharedArray::<u32>::of_region(COPIES.get("bytes"));
    let lane = warp::lane_id();
    let read = |group: u32| {
        // SAFETY: the group has been waited for, and the barrier is passed by the whole block.
        unsafe {
            thread::sync_threads();
            *out.add((group * 32 + lane) as usize) = words.load(group * 32 + 31 - lane);
        }
    };
    for group in 0..COPY_GROUPS {
        let index = group * 32 + lane;
        // SAFETY: both areas have a word for each lane and group.
        unsafe { cp_async::ca_4(words.addr(index), input.add(index as usize), 4) };
        cp_async::commit_group();
    }
    cp_async::wait_group::<3>();
    read(0);
    cp_async::wait_group::<2>();
    read(1);
    cp_async::wait_group::<1>();
    read(2);
    cp_async::wait_group::<0>();
    read(3);
}

const _: () = assert!(COPY_GROUPS == 4);

/// Copies 16 bytes a lane in no group and waits for everything; writes the bytes of the facing lane.
///
/// # Safety
/// The dynamic shared memory is that of `COPIES`; `input` and `out` have 16 bytes for each lane.
#[kernel(max_threads = 32)]
pub unsafe fn cp_async_wait_all(out: *mut [u32; 4], input: *const [u32; 4]) {
    let words = SharedArray::<[u32; 4]>::of_region(COPIES.get("bytes"));
    let lane = warp::lane_id();
    // SAFETY: both areas have 16 bytes for each lane; the barrier separates the copies from the loads.
    unsafe {
        cp_async::cg_16(words.addr(lane), input.add(lane as usize), 16);
        cp_async::wait_all();
        thread::sync_threads();
        *out.add(lane as usize) = words.load(31 - lane);
    }
}
