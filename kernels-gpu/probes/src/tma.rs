//! Probes of `ptx::tma`. All of them are launched with blocks of one warp.

use cuda_std::ptx::tma::{self, TensorMap};
use cuda_std::ptx::{cluster, fence, mbarrier};
use cuda_std::shared::{self, SharedAddr};
use cuda_std::{global, kernel, thread, warp};
use variants::probe::{COPY_FILL, TMA, TMA_TILE_BYTES};

/// The place of a box: its coordinates, innermost first, zeros behind the last; and its size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct BoxAt {
    coordinates: [i32; 5],
    bytes: u32,
}

impl BoxAt {
    /// The first `RANK` coordinates.
    #[inline(always)]
    fn coordinates<const RANK: usize>(&self) -> [i32; RANK] {
        let mut coordinates = [0; RANK];
        let mut dim = 0;
        while dim < RANK {
            coordinates[dim] = self.coordinates[dim];
            dim += 1;
        }
        coordinates
    }
}

/// Tile and barrier of the block.
#[inline(always)]
fn tile_and_barrier() -> (SharedAddr, SharedAddr) {
    let region = |name| shared::dynamic().offset(TMA.get(name).offset_bytes);
    (region("tile"), region("barrier"))
}

/// Fills the tile, and makes the barrier one of `arrivals` arrivals.
///
/// # Safety
/// The whole block calls it; the dynamic shared memory is that of `TMA`.
#[inline(always)]
unsafe fn prepare(tile: SharedAddr, barrier: SharedAddr, arrivals: u32) {
    let mut i = warp::lane_id();
    // SAFETY: the tile has so many words; the whole block is here.
    unsafe {
        while i < TMA_TILE_BYTES / 4 {
            tile.offset(i * 4).store(COPY_FILL);
            i += 32;
        }
        if warp::lane_id() == 0 {
            mbarrier::init(barrier, arrivals);
            fence::mbarrier_init();
        }
        fence::proxy_async_shared();
        thread::sync_threads();
    }
}

/// Writes the tile.
///
/// # Safety
/// `out` has `TMA_TILE_BYTES` bytes; the copy has been waited for.
#[inline(always)]
unsafe fn show(out: *mut u32, tile: SharedAddr) {
    let mut i = warp::lane_id();
    while i < TMA_TILE_BYTES / 4 {
        // SAFETY: as required of the caller.
        unsafe { global::store(out.add(i as usize), tile.offset(i * 4).load()) };
        i += 32;
    }
}

/// Loads a box, which it has prefetched, over the filled tile, and writes the tile.
///
/// # Safety
/// As for the probes.
#[inline(always)]
unsafe fn load<const RANK: usize>(out: *mut u32, at: BoxAt, map: *const TensorMap) {
    let (tile, barrier) = tile_and_barrier();
    // SAFETY: the tile has room for the box; the barrier is initialised and expects it.
    unsafe {
        prepare(tile, barrier, 1);
        if warp::lane_id() == 0 {
            tma::prefetch_tensormap(map);
            tma::prefetch::<RANK>(map, at.coordinates());
            mbarrier::expect_tx(barrier, at.bytes);
            tma::load::<RANK>(tile, map, at.coordinates(), barrier);
        }
        mbarrier::arrive_if(barrier, warp::lane_id() == 0);
        mbarrier::wait_parity(barrier, 0);
        show(out, tile);
    }
}

/// The first block of a cluster of two loads a box into both, and both write their tile.
///
/// # Safety
/// As for the probes.
#[inline(always)]
unsafe fn multicast<const RANK: usize>(out: *mut u32, at: BoxAt, map: *const TensorMap) {
    let (tile, barrier) = tile_and_barrier();
    let rank = thread::cluster_rank();
    // SAFETY: the tiles have room for the box; the barriers are initialised in the whole cluster and expect it.
    unsafe {
        prepare(tile, barrier, 1);
        if warp::lane_id() == 0 {
            mbarrier::arrive_expect_tx(barrier, at.bytes);
        }
        cluster::sync();
        if rank == 0 && warp::lane_id() == 0 {
            tma::load_multicast::<RANK>(tile, map, at.coordinates(), barrier, 0b11);
        }
        mbarrier::wait_parity(barrier, 0);
        show(out.add((rank * TMA_TILE_BYTES / 4) as usize), tile);
        cluster::sync();
    }
}

/// Copies a box from `input` to shared memory and from there to its place in the tensor, stored or added.
///
/// # Safety
/// As for the probes.
#[inline(always)]
unsafe fn store<const RANK: usize, const ADD: bool>(input: *const u32, at: BoxAt, map: *const TensorMap) {
    let (tile, _) = tile_and_barrier();
    let mut i = warp::lane_id();
    // SAFETY: the tile has room for the box, and is made visible to the copy; the thread outlives it.
    unsafe {
        while i < at.bytes / 4 {
            tile.offset(i * 4).store(global::load(input.add(i as usize)));
            i += 32;
        }
        fence::proxy_async_shared();
        thread::sync_threads();
        if warp::lane_id() == 0 {
            if ADD {
                tma::reduce_add::<RANK>(map, at.coordinates(), tile);
            } else {
                tma::store::<RANK>(map, at.coordinates(), tile);
            }
            tma::commit_group();
            tma::wait_group::<0>();
        }
    }
}

/// Declares the probes of one rank.
macro_rules! tma_probes {
    ($($rank:literal: $load:ident $multicast:ident $store:ident $reduce_add:ident,)*) => {$(
        /// Loads a box over a filled tile, and writes the tile.
        ///
        /// # Safety
        /// The dynamic shared memory is that of `TMA`, the map has this rank and a box of `at`, and `out` has
        /// `TMA_TILE_BYTES` bytes.
        #[kernel(max_threads = 32)]
        pub unsafe fn $load(out: *mut u32, at: BoxAt, map: TensorMap) {
            // SAFETY: as required of the caller.
            unsafe { load::<$rank>(out, at, map) }
        }

        /// Loads a box into two blocks, and writes both tiles.
        ///
        /// # Safety
        /// A cluster of two blocks; otherwise as for the load, with twice the output.
        #[kernel(max_threads = 32, cluster = 2)]
        pub unsafe fn $multicast(out: *mut u32, at: BoxAt, map: TensorMap) {
            // SAFETY: as required of the caller.
            unsafe { multicast::<$rank>(out, at, map) }
        }

        /// Stores a box.
        ///
        /// # Safety
        /// The dynamic shared memory is that of `TMA`, the map has this rank and a box of `at`, which is what `input`
        /// has.
        #[kernel(max_threads = 32)]
        pub unsafe fn $store(input: *const u32, at: BoxAt, map: TensorMap) {
            // SAFETY: as required of the caller.
            unsafe { store::<$rank, false>(input, at, map) }
        }

        /// Adds a box.
        ///
        /// # Safety
        /// As for the store.
        #[kernel(max_threads = 32)]
        pub unsafe fn $reduce_add(input: *const u32, at: BoxAt, map: TensorMap) {
            // SAFETY: as required of the caller.
            unsafe { store::<$rank, true>(input, at, map) }
        }
    )*};
}

tma_probes! {
    1: tma_load_1d tma_load_multicast_1d tma_store_1d tma_reduce_add_1d,
    2: tma_load_2d tma_load_multicast_2d tma_store_2d tma_reduce_add_2d,
    3: tma_load_3d tma_load_multicast_3d tma_store_3d tma_reduce_add_3d,
    4: tma_load_4d tma_load_multicast_4d tma_store_4d tma_reduce_add_4d,
    5: tma_load_5d tma_load_multicast_5d tma_store_5d tma_reduce_add_5d,
}

/// Stores a box twice, from the same tile, which is written anew as soon as the first copy has read it; then loads what
/// the second one and ordinary stores have left in the tensor.
///
/// # Safety
/// The dynamic shared memory is that of `TMA`; the map is of `tensor`, 64 words, in boxes of 32; `out` has
/// `TMA_TILE_BYTES` bytes.
#[kernel(max_threads = 32)]
pub unsafe fn tma_groups(out: *mut u32, tensor: *mut u32, map: TensorMap) {
    let (tile, barrier) = tile_and_barrier();
    let lane = warp::lane_id();
    // SAFETY: each access is ordered as the comments say; the box and the tensor have a word or two for each lane.
    unsafe {
        prepare(tile, barrier, 1);
        for round in 0..2 {
            tile.offset(lane * 4).store(1000 * (round + 1) + lane);
            fence::proxy_async_shared();
            thread::sync_threads();
            if lane == 0 {
                tma::store(map, [32 * round as i32], tile);
                tma::commit_group();
                // The tile may be written again; the tensor need not be complete.
                tma::wait_group_read::<0>();
            }
            thread::sync_threads();
        }
        if lane == 0 {
            tma::wait_group::<0>();
        }
        thread::sync_threads();
        // An ordinary store, which an asynchronous load is to see.
        global::store(tensor.add(lane as usize), 3000 + lane);
        fence::proxy_async_global();
        fence::proxy_async_shared();
        thread::sync_threads();
        if lane == 0 {
            mbarrier::arrive_expect_tx(barrier, 2 * 32 * 4);
            tma::load(tile, map, [0], barrier);
            tma::load(tile.offset(32 * 4), map, [32], barrier);
        }
        mbarrier::wait_parity(barrier, 0);
        show(out, tile);
    }
}
