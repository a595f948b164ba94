//! Probes of `ptx::mbarrier` and `ptx::fence`.

use cuda_std::ptx::mbarrier;
use cuda_std::shared::{self, SharedArray};
use cuda_std::{kernel, thread};
use variants::probe::{MBARRIER, MBARRIER_PHASES, MBARRIER_THREADS};

/// One thread takes an mbarrier of two arrivals through a phase and a half, and writes whether the first phase was
/// complete after one arrival, after two and after three, and whether the second was.
///
/// # Safety
/// One thread; the dynamic shared memory is that of `MBARRIER`; `out` has 4 words.
#[kernel(max_threads = 1)]
pub unsafe fn mbarrier_phases(out: *mut [u32; 4]) {
    let barrier = shared::dynamic().offset(MBARRIER.get("barrier").offset_bytes);
    // SAFETY: the only thread initialises the barrier, and arrives three times in phases of two.
    unsafe {
        mbarrier::init(barrier, 2);
        let first = mbarrier::arrive(barrier);
        let after_one = mbarrier::test_wait(barrier, first);
        let _ = mbarrier::arrive(barrier);
        let after_two = mbarrier::test_wait(barrier, first);
        let second = mbarrier::arrive(barrier);
        let after_three = mbarrier::test_wait(barrier, first);
        let of_second = mbarrier::test_wait(barrier, second);
        *out = [after_one, after_two, after_three, of_second].map(u32::from);
    }
}

/// Two warps exchange a word a thread in each phase, with nothing but the mbarrier between stores and loads.
///
/// # Safety
/// One block of `MBARRIER_THREADS` threads; the dynamic shared memory is that of `MBARRIER`; `out` has a word for each
/// thread and phase.
#[kernel(max_threads = MBARRIER_THREADS)]
pub unsafe fn mbarrier_exchange(out: *mut u32) {
    let barrier = shared::dynamic().offset(MBARRIER.get("barrier").offset_bytes);
    let values = SharedArray::<u32>::of_region(MBARRIER.get("values"));
    let thread = thread::thread_idx_x();
    // SAFETY: every thread arrives once in each phase; the second phase of a round keeps the next stores from its
    // loads.
    unsafe {
        if thread == 0 {
            mbarrier::init(barrier, MBARRIER_THREADS);
        }
        thread::sync_threads();
        for round in 0..MBARRIER_PHASES {
            values.store(thread, round * 1000 + thread);
            mbarrier::wait(barrier, mbarrier::arrive(barrier));
            let value = values.load((thread + 32) % MBARRIER_THREADS);
            *out.add((round * MBARRIER_THREADS + thread) as usize) = value;
            mbarrier::wait(barrier, mbarrier::arrive(barrier));
        }
    }
}

/// One thread takes an mbarrier of one arrival through a phase that announces no bytes, and into a phase that waits for
/// 16 bytes which do not come. It writes whether the phases of both parities are complete: at the start, after the
/// first arrival, after the second.
///
/// # Safety
/// One thread; the dynamic shared memory is that of `MBARRIER`; `out` has 6 words.
#[cfg(target_feature = "sm_90")]
#[kernel(max_threads = 1)]
pub unsafe fn mbarrier_parity(out: *mut [u32; 6]) {
    use cuda_std::ptx::fence;

    let barrier = shared::dynamic().offset(MBARRIER.get("barrier").offset_bytes);
    // SAFETY: the only thread initialises the barrier, and arrives once in each of two phases.
    unsafe {
        // Each answer is stored before the next arrival, which releases it: a try_wait whose answer is not needed yet
        // is still in flight in the hardware when a later arrival of the same thread completes the phase.
        let write_parities = |when: usize| {
            for parity in 0..2 {
                let complete = mbarrier::try_wait_parity(barrier, parity) as u32;
                cuda_std::global::store(out.cast::<u32>().wrapping_add(2 * when + parity as usize), complete);
            }
        };
        mbarrier::init(barrier, 1);
        fence::mbarrier_init();
        fence::proxy_async_shared();
        write_parities(0);
        mbarrier::arrive_expect_tx(barrier, 0);
        mbarrier::wait_parity(barrier, 0);
        write_parities(1);
        mbarrier::arrive_expect_tx(barrier, 16);
        write_parities(2);
    }
}
