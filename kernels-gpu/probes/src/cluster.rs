//! Probes of `ptx::cluster`, `ptx::barrier` and, between blocks, `ptx::mbarrier`.

use cuda_std::ptx::barrier;
use cuda_std::shared::SharedArray;
use cuda_std::{kernel, thread, warp};
use variants::probe::{PAIRS, WARPS};

/// The first warp stores a word a lane and arrives, the second waits for it and writes the words in reverse; the third
/// has nothing to do with it.
///
/// # Safety
/// Three warps; the dynamic shared memory is that of `WARPS`; `out` has 32 words.
#[kernel(max_threads = 96)]
pub unsafe fn barrier_warps(out: *mut u32) {
    let words = SharedArray::<u32>::of_region(WARPS.get("words"));
    let lane = warp::lane_id();
    // SAFETY: two warps meet at the barrier.
    unsafe {
        match thread::thread_idx_x() / 32 {
            0 => {
                words.store(lane, 100 + lane);
                barrier::arrive::<1, 64>();
            }
            1 => {
                barrier::sync::<1, 64>();
                *out.add(lane as usize) = words.load(31 - lane);
            }
            _ => {}
        }
    }
}

/// Each of two pairs of warps has a barrier whose number is that of the pair: the first warp of a pair stores a word a
/// lane and arrives, the second waits and writes them in reverse.
///
/// # Safety
/// Four warps; the dynamic shared memory is that of `PAIRS`; `out` has 64 words.
#[kernel(max_threads = 128)]
pub unsafe fn barrier_numbered(out: *mut u32) {
    let words = SharedArray::<u32>::of_region(PAIRS.get("words"));
    let (warp, lane) = (thread::thread_idx_x() / 32, warp::lane_id());
    let (pair, second) = (warp / 2, warp % 2 == 1);
    // SAFETY: the two warps of a pair meet at their barrier.
    unsafe {
        if !second {
            words.store(pair * 32 + lane, 100 + pair * 32 + lane);
            barrier::arrive_numbered::<64>(1 + pair);
        } else {
            barrier::sync_numbered::<64>(1 + pair);
            *out.add((pair * 32 + lane) as usize) = words.load(pair * 32 + 31 - lane);
        }
    }
}

/// Probes of several blocks, in a module because they are those of sm_90.
#[cfg(target_feature = "sm_90")]
pub mod blocks {
    use cuda_std::ptx::cluster::{self, ClusterAddr};
    use cuda_std::ptx::{fence, mbarrier};
    use cuda_std::{global, kernel, shared, thread, warp};
    use variants::probe::{MBARRIER, PAIRS, STORE_WORDS, STORES};

    /// Each of two blocks stores a word a lane, and after the barrier of the cluster writes those of the other behind
    /// them.
    ///
    /// # Safety
    /// A cluster of two warps; `out` has 4 words for each lane.
    #[kernel(max_threads = 32, cluster = 2)]
    pub unsafe fn cluster_sync(out: *mut u32) {
        let (rank, lane) = (thread::cluster_rank(), warp::lane_id());
        // SAFETY: every thread of the cluster meets at the barrier.
        unsafe {
            global::store(out.add((rank * 32 + lane) as usize), 1 + rank * 1000 + lane);
            cluster::arrive();
            cluster::wait();
            let other = global::load(out.add(((1 - rank) * 32 + lane) as usize));
            global::store(out.add((64 + rank * 32 + lane) as usize), other);
            cluster::sync();
        }
    }

    /// Each of two blocks stores two words a lane in its shared memory, and after the barrier of the cluster writes
    /// those of the other: the first in one load, then each alone.
    ///
    /// # Safety
    /// A cluster of two warps; the dynamic shared memory is that of `PAIRS`; `out` has 4 words for each thread of the
    /// cluster.
    #[kernel(max_threads = 32, cluster = 2)]
    pub unsafe fn cluster_load(out: *mut u32) {
        let (rank, lane) = (thread::cluster_rank(), warp::lane_id());
        let words = shared::dynamic().offset(PAIRS.get("words").offset_bytes + lane * 8);
        // SAFETY: every thread of the cluster meets at the barriers, the second of which keeps both blocks until they
        // have been read.
        unsafe {
            words.store([1000 * rank + lane, 1000 * rank + 100 + lane]);
            cluster::sync();
            let other = ClusterAddr::of_block(words, 1 - rank);
            let pair: [u32; 2] = other.load();
            let single = [other.load(), other.offset(4).load::<u32>()];
            cluster::sync();
            global::store(
                out.add((rank * 32 + lane) as usize * 4).cast::<[u32; 4]>(),
                [pair[0], pair[1], single[0], single[1]],
            );
        }
    }

    /// The lanes of each of two blocks store words in the other block: one, two and four at a time. The other block
    /// waits for all words and writes them.
    ///
    /// # Safety
    /// A cluster of two warps; the dynamic shared memory is that of `STORES`; `out` has `STORE_WORDS` words for each
    /// thread of the cluster.
    #[kernel(max_threads = 32, cluster = 2)]
    pub unsafe fn cluster_store_async(out: *mut u32) {
        let (rank, lane) = (thread::cluster_rank(), warp::lane_id());
        let at = |name: &str| shared::dynamic().offset(STORES.get(name).offset_bytes);
        let (one, two, four) = (at("one").offset(lane * 4), at("two").offset(lane * 8), at("four").offset(lane * 16));
        // SAFETY: the barriers are initialised before anyone stores; a block waits for all that is stored in it.
        unsafe {
            if lane == 0 {
                mbarrier::init(at("barrier"), 1);
                fence::mbarrier_init();
                mbarrier::arrive_expect_tx(at("barrier"), 32 * STORE_WORDS * 4);
            }
            cluster::arrive_relaxed();
            cluster::wait();
            let other = |own| ClusterAddr::of_block(own, 1 - rank);
            let (barrier, word) = (other(at("barrier")), |index: u32| 1000 * rank + 100 * index + lane);
            other(one).store_async([word(0)], barrier);
            other(two).store_async([word(1), word(2)], barrier);
            other(four).store_async([word(3), word(4), word(5), word(6)], barrier);
            mbarrier::wait_parity(at("barrier"), 0);
            let (one, two, four): (u32, [u32; 2], [u32; 4]) = (one.load(), two.load(), four.load());
            let words = [one, two[0], two[1], four[0], four[1], four[2], four[3]];
            for (index, word) in words.into_iter().enumerate() {
                global::store(out.add(((rank * 32 + lane) * STORE_WORDS) as usize + index), word);
            }
        }
    }

    /// The mbarrier of the first block takes one arrival from either block; writes whether its phase is complete after
    /// its own and after that of the other block.
    ///
    /// # Safety
    /// A cluster of two warps; the dynamic shared memory is that of `MBARRIER`; `out` has 2 words.
    #[kernel(max_threads = 32, cluster = 2)]
    pub unsafe fn mbarrier_cluster(out: *mut u32) {
        let barrier = shared::dynamic().offset(MBARRIER.get("barrier").offset_bytes);
        let (first, lead) = (thread::cluster_rank() == 0, warp::lane_id() == 0);
        // SAFETY: the barrier is initialised before anyone arrives, and outlives the arrivals.
        unsafe {
            if first && lead {
                mbarrier::init(barrier, 2);
                fence::mbarrier_init();
            }
            cluster::arrive_relaxed();
            cluster::wait();
            mbarrier::arrive_if(barrier, first && lead);
            let after_own = first && mbarrier::try_wait_parity(barrier, 0);
            if first && lead {
                global::store(out, after_own as u32);
            }
            cluster::sync();
            mbarrier::arrive_cluster_if(barrier, 0, !first && lead);
            if first {
                mbarrier::wait_parity(barrier, 0);
                if lead {
                    global::store(out.add(1), mbarrier::try_wait_parity(barrier, 0) as u32);
                }
            }
            cluster::sync();
        }
    }
}
