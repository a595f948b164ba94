//! `wgmma` and bulk copies that are not fenced, not waited for, or told the wrong numbers.

use cuda_std::ptx::tma::{self, TensorMap};
use cuda_std::ptx::wgmma::{self, Product};
use cuda_std::ptx::{fence, mbarrier};
use cuda_std::shared::{self, SharedAddr};
use cuda_std::{global, thread};
use layout::descriptor::{Descriptor, Operand};
use variants::broken::{FACTOR, FACTOR_BYTES, FACTOR_ROWS, FACTOR_STEPS, HOPPER, WARPGROUP};

hopper_pair! {
    proxy_fence_broken, proxy_fence_correct: proxy_fence;
    store_fence_broken, store_fence_correct: store_fence;
    early_accumulator_broken, early_accumulator_correct: early_accumulator;
    product_wait_broken, product_wait_correct: product_wait;
    product_warps_broken, product_warps_correct: product_warps;
    bytes_many_broken, bytes_many_correct: bytes_many;
    bytes_few_broken, bytes_few_correct: bytes_few;
    box_wait_broken, box_wait_correct: box_wait;
    box_parity_broken, box_parity_correct: box_parity;
    box_reuse_broken, box_reuse_correct: box_reuse;
    box_source_broken, box_source_correct: box_source;
    box_align_broken, box_align_correct: box_align;
    box_column_broken, box_column_correct: box_column;
}

/// The product of the factors.
enum Factors {}

impl Product for Factors {
    const A: Operand = FACTOR;
    const B: Operand = FACTOR;
}

/// The accumulators of a thread.
type Sums = [f32; FACTOR_ROWS as usize / 2];

/// The place of a region.
#[inline(always)]
fn region(name: &str) -> SharedAddr {
    shared::dynamic().offset(HOPPER.get(name).offset_bytes)
}

/// The descriptor of a factor.
#[inline(always)]
fn descriptor(name: &str) -> Descriptor {
    FACTOR.descriptor(HOPPER.get(name).offset_bytes).offset(shared::dynamic().as_raw())
}

/// Initialises the barrier of the block, of one arrival, and fills both factors.
///
/// # Safety
/// The whole block calls it.
#[inline(always)]
unsafe fn prepare() {
    // SAFETY: one thread initialises the barrier, and the others wait.
    unsafe {
        if thread::thread_idx_x() == 0 {
            mbarrier::init(region("barrier"), 1);
            fence::mbarrier_init();
        }
        fill(region("a"), 0);
        fill(region("b"), 0);
        fence::proxy_async_shared();
        thread::sync_threads();
    }
}

/// Fills a factor, by the whole block.
///
/// # Safety
/// Nobody else uses the factor.
#[inline(always)]
unsafe fn fill(factor: SharedAddr, value: u32) {
    let mut at = thread::thread_idx_x() * 4;
    while at < FACTOR_BYTES {
        // SAFETY: as required of the caller.
        unsafe { factor.offset(at).store(value) }; // fault: product_wait, box_source
        at += WARPGROUP * 4;
    }
}

/// One thread loads the first factor and expects so many bytes.
///
/// # Safety
/// Nobody else uses the factor; the barrier waits for nothing else.
#[inline(always)]
unsafe fn load(map: *const TensorMap, bytes: u32) {
    // SAFETY: as required of the caller.
    unsafe {
        if thread::thread_idx_x() == 0 {
            mbarrier::arrive_expect_tx(region("barrier"), bytes);
            tma::load(region("a"), map, [0, 0], region("barrier")); // fault: box_reuse
        }
    }
}

/// Writes a word of the first factor.
///
/// # Safety
/// The factor is complete; the output has a word for each thread.
#[inline(always)]
unsafe fn show(out: *mut u32) {
    let thread = thread::thread_idx_x();
    // SAFETY: as required of the caller.
    unsafe {
        let value = region("a").offset(thread * 4).load(); // fault: box_wait, box_parity
        global::store(out.add(thread as usize), value);
    }
}

/// Factors that ordinary stores wrote are multiplied without a proxy fence.
#[inline(always)]
unsafe fn proxy_fence<const BROKEN: bool>(out: *mut u32, _: *const TensorMap) {
    // SAFETY: the whole warpgroup is here.
    unsafe {
        prepare();
        fill(region("a"), 1);
        if !BROKEN {
            fence::proxy_async_shared();
        }
        thread::sync_threads();
        let mut d = wgmma::product::<Factors, Sums, FACTOR_STEPS>(descriptor("a"), descriptor("b")); // fault: proxy_fence
        wgmma::wait_group::<0, _>(&mut d);
        global::store(out.add(thread::thread_idx_x() as usize), d[0].to_bits());
    }
}

/// A tile that ordinary stores wrote is copied to global memory without a proxy fence.
#[inline(always)]
unsafe fn store_fence<const BROKEN: bool>(_: *mut u32, map: *const TensorMap) {
    // SAFETY: the whole block is here.
    unsafe {
        prepare();
        fill(region("a"), 1);
        if !BROKEN {
            fence::proxy_async_shared();
        }
        thread::sync_threads();
        if thread::thread_idx_x() == 0 {
            tma::store(map, [0, 0], region("a")); // fault: store_fence
            tma::commit_group();
            tma::wait_group::<0>();
        }
    }
}

/// The sums are read before the product has been waited for.
#[inline(always)]
unsafe fn early_accumulator<const BROKEN: bool>(out: *mut u32, _: *const TensorMap) {
    let out = out.wrapping_add(thread::thread_idx_x() as usize);
    // SAFETY: the whole warpgroup is here.
    unsafe {
        prepare();
        let mut d = wgmma::product::<Factors, Sums, FACTOR_STEPS>(descriptor("a"), descriptor("b"));
        if !BROKEN {
            wgmma::wait_group::<0, _>(&mut d);
        }
        global::store(out, d[3].to_bits()); // fault: early_accumulator
        wgmma::wait_group::<0, _>(&mut d);
    }
}

/// A factor is overwritten while the product reads it.
#[inline(always)]
unsafe fn product_wait<const BROKEN: bool>(out: *mut u32, _: *const TensorMap) {
    // SAFETY: the whole warpgroup is here.
    unsafe {
        prepare();
        let mut d = wgmma::product::<Factors, Sums, FACTOR_STEPS>(descriptor("a"), descriptor("b"));
        if !BROKEN {
            wgmma::wait_group::<0, _>(&mut d);
            thread::sync_threads();
        }
        fill(region("a"), 1);
        wgmma::wait_group::<0, _>(&mut d);
        global::store(out.add(thread::thread_idx_x() as usize), d[0].to_bits());
    }
}

/// One warp of the warpgroup has no part in the product.
#[inline(always)]
unsafe fn product_warps<const BROKEN: bool>(out: *mut u32, _: *const TensorMap) {
    let thread = thread::thread_idx_x();
    // SAFETY: the whole warpgroup is here.
    unsafe {
        prepare();
        if BROKEN && thread >= 96 {
            return;
        }
        let mut d = wgmma::product::<Factors, Sums, FACTOR_STEPS>(descriptor("a"), descriptor("b")); // fault: product_warps
        wgmma::wait_group::<0, _>(&mut d);
        global::store(out.add(thread as usize), d[0].to_bits());
    }
}

/// The barrier expects more bytes than the copy brings.
#[inline(always)]
unsafe fn bytes_many<const BROKEN: bool>(out: *mut u32, map: *const TensorMap) {
    // SAFETY: the whole block is here.
    unsafe {
        prepare();
        load(map, if BROKEN { FACTOR_BYTES + 16 } else { FACTOR_BYTES });
        mbarrier::wait_parity(region("barrier"), 0); // fault: bytes_many
        show(out);
    }
}

/// The barrier expects fewer bytes than the copies bring.
#[inline(always)]
unsafe fn bytes_few<const BROKEN: bool>(out: *mut u32, map: *const TensorMap) {
    // SAFETY: the whole block is here.
    unsafe {
        prepare();
        if thread::thread_idx_x() == 0 {
            mbarrier::arrive_expect_tx(region("barrier"), if BROKEN { FACTOR_BYTES } else { 2 * FACTOR_BYTES });
            tma::load(region("a"), map, [0, 0], region("barrier"));
            tma::load(region("b"), map, [0, FACTOR_ROWS as i32], region("barrier"));
        }
        thread::sync_threads();
        mbarrier::wait_parity(region("barrier"), 0);
        let value = region("b").offset(thread::thread_idx_x() * 4).load(); // fault: bytes_few
        global::store(out.add(thread::thread_idx_x() as usize), value);
    }
}

/// The box is read before it has arrived.
#[inline(always)]
unsafe fn box_wait<const BROKEN: bool>(out: *mut u32, map: *const TensorMap) {
    // SAFETY: the whole block is here.
    unsafe {
        prepare();
        load(map, FACTOR_BYTES);
        thread::sync_threads();
        if !BROKEN {
            mbarrier::wait_parity(region("barrier"), 0);
        }
        show(out);
        mbarrier::wait_parity(region("barrier"), 0);
    }
}

/// The wait is for the parity of the phase before.
#[inline(always)]
unsafe fn box_parity<const BROKEN: bool>(out: *mut u32, map: *const TensorMap) {
    // SAFETY: the whole block is here.
    unsafe {
        prepare();
        load(map, FACTOR_BYTES);
        thread::sync_threads();
        mbarrier::wait_parity(region("barrier"), BROKEN as u32);
        show(out);
        mbarrier::wait_parity(region("barrier"), 0);
    }
}

/// The next box is loaded while other threads may still read the one before.
#[inline(always)]
unsafe fn box_reuse<const BROKEN: bool>(out: *mut u32, map: *const TensorMap) {
    // SAFETY: the whole block is here.
    unsafe {
        prepare();
        load(map, FACTOR_BYTES);
        mbarrier::wait_parity(region("barrier"), 0);
        show(out); // fault: box_reuse
        if !BROKEN {
            thread::sync_threads();
        }
        load(map, FACTOR_BYTES);
        mbarrier::wait_parity(region("barrier"), 1);
        show(out);
    }
}

/// A tile is written anew while a copy to global memory reads it.
#[inline(always)]
unsafe fn box_source<const BROKEN: bool>(_: *mut u32, map: *const TensorMap) {
    // SAFETY: the whole block is here.
    unsafe {
        prepare();
        if thread::thread_idx_x() == 0 {
            tma::store(map, [0, 0], region("a"));
            tma::commit_group();
            if !BROKEN {
                tma::wait_group_read::<0>();
            }
        }
        thread::sync_threads();
        fill(region("a"), 1);
        if thread::thread_idx_x() == 0 {
            tma::wait_group::<0>();
        }
    }
}

/// The box goes to where the swizzle has not its period.
#[inline(always)]
unsafe fn box_align<const BROKEN: bool>(out: *mut u32, map: *const TensorMap) {
    // SAFETY: the whole block is here.
    unsafe {
        prepare();
        if thread::thread_idx_x() == 0 {
            mbarrier::arrive_expect_tx(region("barrier"), FACTOR_BYTES);
            let to = region("a").offset(if BROKEN { 128 } else { 0 });
            tma::load(to, map, [0, 0], region("barrier")); // fault: box_align
        }
        mbarrier::wait_parity(region("barrier"), 0);
        show(out);
    }
}

/// The box starts in the middle of 16 bytes.
#[inline(always)]
unsafe fn box_column<const BROKEN: bool>(out: *mut u32, map: *const TensorMap) {
    // SAFETY: the whole block is here.
    unsafe {
        prepare();
        if thread::thread_idx_x() == 0 {
            mbarrier::arrive_expect_tx(region("barrier"), FACTOR_BYTES);
            let column = if BROKEN { 4 } else { 8 };
            tma::load(region("a"), map, [column, 0], region("barrier")); // fault: box_column
        }
        mbarrier::wait_parity(region("barrier"), 0);
        show(out);
    }
}
