//! Probes of `ptx::wgmma` and `ptx::setmaxnreg`. All but the last are launched with one warpgroup.

use core::mem::MaybeUninit;

use cuda_std::ptx::wgmma::{self, Accumulator, Product};
use cuda_std::ptx::{fence, setmaxnreg};
use cuda_std::shared::{self, SharedAddr};
use cuda_std::{global, kernel, thread};
use layout::SmemRegion;
use layout::descriptor::{Descriptor, Operand};
use variants::probe::wgmma::{GROUPS, MAP, THREADS, WGMMA, WgmmaProbe, index_of};
use variants::probe::{SETMAXNREG, SETMAXNREG_THREADS};

/// The product of a configuration of the table.
enum Table<const ID: usize> {}

impl<const ID: usize> Product for Table<ID> {
    const A: Operand = WGMMA[ID].a;
    const B: Operand = WGMMA[ID].b;
    const NEGATE_A: bool = WGMMA[ID].negate_a;
    const NEGATE_B: bool = WGMMA[ID].negate_b;
}

const A_TILE: SmemRegion = MAP.get("a");
const B_TILE: SmemRegion = MAP.get("b");

/// The operands of a probe: the images of the tiles, or of A the fragments of thread 0, of thread 1 and so on; the
/// accumulators of the threads, in the same order; and whether they are added to.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WgmmaOperands {
    a: *const u32,
    b: *const u32,
    initial: *const u32,
    scale_d: u32,
}

/// Copies the image of a tile to shared memory, by the whole warpgroup.
///
/// # Safety
/// Both areas have so many bytes.
#[inline(always)]
unsafe fn fill(to: SharedAddr, from: *const u32, bytes: u32) {
    let mut i = thread::thread_idx_x();
    while i < bytes / 4 {
        // SAFETY: as required of the caller.
        unsafe { to.offset(i * 4).store(global::load(from.add(i as usize))) };
        i += THREADS;
    }
}

/// Fills the tiles of a probe and gives their descriptors, of which that of A is not one if A is in registers.
///
/// # Safety
/// The dynamic shared memory is `MAP`; the images are those of the probe.
#[inline(always)]
unsafe fn tiles<const ID: usize>(a: *const u32, b: *const u32) -> (Descriptor, Descriptor) {
    let base = shared::dynamic();
    // SAFETY: the regions have room for every tile; the whole block is here.
    unsafe {
        if !WGMMA[ID].a.is_in_registers() {
            fill(base.offset(A_TILE.offset_bytes), a, WGMMA[ID].a_bytes());
        }
        fill(base.offset(B_TILE.offset_bytes), b, WGMMA[ID].b_bytes());
        fence::proxy_async_shared();
        thread::sync_threads();
    }
    let (a, b) = const {
        let WgmmaProbe { a, b, .. } = WGMMA[ID];
        let b = b.descriptor(B_TILE.offset_bytes);
        (if a.is_in_registers() { b } else { a.descriptor(A_TILE.offset_bytes) }, b)
    };
    (a.offset(base.as_raw()), b.offset(base.as_raw()))
}

/// The 32-bit registers of an accumulator.
const fn registers<D: Accumulator>() -> usize {
    size_of::<D>() / 4
}

/// The accumulators of this thread.
///
/// # Safety
/// `initial` has the registers of every thread.
#[inline(always)]
unsafe fn load<D: Accumulator>(initial: *const u32) -> D {
    let mut d = MaybeUninit::<D>::uninit();
    // SAFETY: as required of the caller; an accumulator is an array of 32-bit numbers, each of which is set.
    unsafe {
        let from = initial.add(thread::thread_idx_x() as usize * registers::<D>());
        for i in 0..registers::<D>() {
            d.as_mut_ptr().cast::<u32>().add(i).write(global::load(from.add(i)));
        }
        d.assume_init()
    }
}

/// Writes the registers of this thread behind those of the threads before it.
///
/// # Safety
/// `out` has the registers of every thread.
#[inline(always)]
unsafe fn write<D: Accumulator>(out: *mut u32, d: D) {
    // SAFETY: as required of the caller; an accumulator is an array of 32-bit numbers.
    unsafe {
        let to = out.add(thread::thread_idx_x() as usize * registers::<D>());
        for i in 0..registers::<D>() {
            global::store(to.add(i), core::ptr::from_ref(&d).cast::<u32>().add(i).read());
        }
    }
}

/// The fragments of A of this thread.
///
/// # Safety
/// `a` has those of every thread.
#[inline(always)]
unsafe fn fragments<const STEPS: usize>(a: *const u32) -> [[u32; 4]; STEPS] {
    let mut fragments = [[0; 4]; STEPS];
    for (step, registers) in fragments.iter_mut().enumerate() {
        // SAFETY: as required of the caller.
        *registers = unsafe { global::load(a.cast::<[u32; 4]>().add(thread::thread_idx_x() as usize * STEPS + step)) };
    }
    fragments
}

/// # Safety
/// The dynamic shared memory is `MAP`; operands and `out` are those of the probe.
#[inline(always)]
unsafe fn multiply<const ID: usize, D: Accumulator, const STEPS: usize>(out: *mut u32, operands: WgmmaOperands) {
    const { assert!(WGMMA[ID].steps as usize == STEPS && WGMMA[ID].n == D::COLUMNS) };
    // SAFETY: the whole warpgroup is here, and the tiles are filled.
    unsafe {
        let (a, b) = tiles::<ID>(operands.a, operands.b);
        let mut d: D = load(operands.initial);
        wgmma::mma_async::<Table<ID>, D, STEPS>(&mut d, a, b, operands.scale_d != 0);
        wgmma::wait_group::<0, D>(&mut d);
        write(out, d);
    }
}

/// # Safety
/// The dynamic shared memory is `MAP`; operands and `out` are those of the probe.
#[inline(always)]
unsafe fn multiply_registers<const ID: usize, D: Accumulator, const STEPS: usize>(
    out: *mut u32,
    operands: WgmmaOperands,
) {
    const { assert!(WGMMA[ID].steps as usize == STEPS && WGMMA[ID].n == D::COLUMNS) };
    // SAFETY: the whole warpgroup is here, and the tile is filled.
    unsafe {
        let (_, b) = tiles::<ID>(operands.a, operands.b);
        let a = fragments::<STEPS>(operands.a);
        let mut d: D = load(operands.initial);
        wgmma::mma_async_registers::<Table<ID>, D, STEPS>(&mut d, &a, b, operands.scale_d != 0);
        wgmma::wait_group::<0, D>(&mut d);
        write(out, d);
    }
}

/// Declares kernels of configurations, by the function that is their body.
macro_rules! wgmma_probes {
    ($body:ident: $($name:ident: $d:ty, $steps:literal;)*) => {$(
        /// A configuration of the table of products.
        ///
        /// # Safety
        /// One warpgroup; the dynamic shared memory is `MAP`; operands and `out` are those of the probe.
        #[kernel(max_threads = THREADS)]
        pub unsafe fn $name(out: *mut u32, operands: WgmmaOperands) {
            // SAFETY: as required of the caller.
            unsafe { $body::<{ index_of(stringify!($name)) }, $d, $steps>(out, operands) }
        }
    )*};
}

wgmma_probes! { multiply:
    wgmma_f32_f16_f16_n8_s1_k0_k0: [f32; 4], 1;
    wgmma_f32_f16_f16_n24_s2_k0_mn0: [f32; 12], 2;
    wgmma_f32_f16_f16_n24_s4_mn0_k0: [f32; 12], 4;
    wgmma_f32_f16_f16_n8_s8_mn0_mn0: [f32; 4], 8;
    wgmma_f32_f16_f16_n24_s4_k32_k32: [f32; 12], 4;
    wgmma_f32_f16_f16_n64_s2_k32_mn32: [f32; 32], 2;
    wgmma_f32_f16_f16_n8_s1_mn32_k32: [f32; 4], 1;
    wgmma_f32_f16_f16_n128_s4_mn32_mn32: [f32; 64], 4;
    wgmma_f32_f16_f16_n64_s4_k64_k64: [f32; 32], 4;
    wgmma_f32_f16_f16_n128_s8_k64_mn64: [f32; 64], 8;
    wgmma_f32_f16_f16_n24_s2_mn64_k64: [f32; 12], 2;
    wgmma_f32_f16_f16_n256_s4_mn64_mn64: [f32; 128], 4;
    wgmma_f32_f16_f16_n128_s4_k128_k128: [f32; 64], 4;
    wgmma_f32_f16_f16_n256_s4_k128_mn128: [f32; 128], 4;
    wgmma_f32_f16_f16_n64_s8_mn128_k128: [f32; 32], 8;
    wgmma_f32_f16_f16_n64_s2_mn128_mn128: [f32; 32], 2;
    wgmma_f32_f16_f16_n256_s8_k128_k128: [f32; 128], 8;
    wgmma_f32_f16_f16_n24_s1_k64_mn128: [f32; 12], 1;
    wgmma_f32_bf16_bf16_n128_s4_k128_k128: [f32; 64], 4;
    wgmma_f32_bf16_bf16_n256_s2_mn64_mn128: [f32; 128], 2;
    wgmma_f32_bf16_bf16_n24_s8_k0_k32: [f32; 12], 8;
    wgmma_f32_tf32_tf32_n8_s1_k0_k0: [f32; 4], 1;
    wgmma_f32_tf32_tf32_n64_s4_k128_k128: [f32; 32], 4;
    wgmma_f32_tf32_tf32_n24_s2_k32_k64: [f32; 12], 2;
    wgmma_f32_tf32_tf32_n256_s8_k128_k64: [f32; 128], 8;
    wgmma_f32_e4m3_e4m3_n128_s4_k128_k128: [f32; 64], 4;
    wgmma_f32_e4m3_e5m2_n64_s2_k64_k64: [f32; 32], 2;
    wgmma_f32_e5m2_e4m3_n24_s8_k32_k128: [f32; 12], 8;
    wgmma_f32_e5m2_e5m2_n256_s1_k0_k0: [f32; 128], 1;
    wgmma_f16_f16_f16_n64_s4_k128_k128: [u32; 16], 4;
    wgmma_f16_f16_f16_n256_s2_mn128_mn32: [u32; 64], 2;
    wgmma_f16_f16_f16_n8_s1_k32_k0: [u32; 2], 1;
    wgmma_f16_e4m3_e4m3_n128_s4_k128_k128: [u32; 32], 4;
    wgmma_f16_e4m3_e5m2_n24_s2_k32_k32: [u32; 6], 2;
    wgmma_f16_e5m2_e4m3_n8_s1_k0_k64: [u32; 2], 1;
    wgmma_f16_e5m2_e5m2_n256_s4_k64_k128: [u32; 64], 4;
    wgmma_f32_f16_f16_n64_s1_k32_k32_neg_a: [f32; 32], 1;
    wgmma_f16_f16_f16_n24_s4_k128_k128_neg_ab: [u32; 6], 4;
    wgmma_f32_e4m3_e5m2_n64_s1_k32_k32_neg_b: [f32; 32], 1;
    wgmma_f32_f16_f16_n16_s2_k64_k64: [f32; 8], 2;
    wgmma_f32_f16_f16_n32_s2_k64_k64: [f32; 16], 2;
    wgmma_f32_f16_f16_n40_s2_k64_k64: [f32; 20], 2;
    wgmma_f32_f16_f16_n48_s2_k64_k64: [f32; 24], 2;
    wgmma_f32_f16_f16_n56_s2_k64_k64: [f32; 28], 2;
    wgmma_f32_f16_f16_n72_s2_k64_k64: [f32; 36], 2;
    wgmma_f32_f16_f16_n80_s2_k64_k64: [f32; 40], 2;
    wgmma_f32_f16_f16_n88_s2_k64_k64: [f32; 44], 2;
    wgmma_f32_f16_f16_n96_s2_k64_k64: [f32; 48], 2;
    wgmma_f32_f16_f16_n104_s2_k64_k64: [f32; 52], 2;
    wgmma_f32_f16_f16_n112_s2_k64_k64: [f32; 56], 2;
    wgmma_f32_f16_f16_n120_s2_k64_k64: [f32; 60], 2;
    wgmma_f32_f16_f16_n136_s2_k64_k64: [f32; 68], 2;
    wgmma_f32_f16_f16_n144_s2_k64_k64: [f32; 72], 2;
    wgmma_f32_f16_f16_n152_s2_k64_k64: [f32; 76], 2;
    wgmma_f32_f16_f16_n160_s2_k64_k64: [f32; 80], 2;
    wgmma_f32_f16_f16_n168_s2_k64_k64: [f32; 84], 2;
    wgmma_f32_f16_f16_n176_s2_k64_k64: [f32; 88], 2;
    wgmma_f32_f16_f16_n184_s2_k64_k64: [f32; 92], 2;
    wgmma_f32_f16_f16_n192_s2_k64_k64: [f32; 96], 2;
    wgmma_f32_f16_f16_n200_s2_k64_k64: [f32; 100], 2;
    wgmma_f32_f16_f16_n208_s2_k64_k64: [f32; 104], 2;
    wgmma_f32_f16_f16_n216_s2_k64_k64: [f32; 108], 2;
    wgmma_f32_f16_f16_n224_s2_k64_k64: [f32; 112], 2;
    wgmma_f32_f16_f16_n232_s2_k64_k64: [f32; 116], 2;
    wgmma_f32_f16_f16_n240_s2_k64_k64: [f32; 120], 2;
    wgmma_f32_f16_f16_n248_s2_k64_k64: [f32; 124], 2;
    wgmma_f16_f16_f16_n16_s1_k32_k128: [u32; 4], 1;
    wgmma_f16_f16_f16_n32_s1_k32_k128: [u32; 8], 1;
    wgmma_f16_f16_f16_n40_s1_k32_k128: [u32; 10], 1;
    wgmma_f16_f16_f16_n48_s1_k32_k128: [u32; 12], 1;
    wgmma_f16_f16_f16_n56_s1_k32_k128: [u32; 14], 1;
    wgmma_f16_f16_f16_n72_s1_k32_k128: [u32; 18], 1;
    wgmma_f16_f16_f16_n80_s1_k32_k128: [u32; 20], 1;
    wgmma_f16_f16_f16_n88_s1_k32_k128: [u32; 22], 1;
    wgmma_f16_f16_f16_n96_s1_k32_k128: [u32; 24], 1;
    wgmma_f16_f16_f16_n104_s1_k32_k128: [u32; 26], 1;
    wgmma_f16_f16_f16_n112_s1_k32_k128: [u32; 28], 1;
    wgmma_f16_f16_f16_n120_s1_k32_k128: [u32; 30], 1;
    wgmma_f16_f16_f16_n136_s1_k32_k128: [u32; 34], 1;
    wgmma_f16_f16_f16_n144_s1_k32_k128: [u32; 36], 1;
    wgmma_f16_f16_f16_n152_s1_k32_k128: [u32; 38], 1;
    wgmma_f16_f16_f16_n160_s1_k32_k128: [u32; 40], 1;
    wgmma_f16_f16_f16_n168_s1_k32_k128: [u32; 42], 1;
    wgmma_f16_f16_f16_n176_s1_k32_k128: [u32; 44], 1;
    wgmma_f16_f16_f16_n184_s1_k32_k128: [u32; 46], 1;
    wgmma_f16_f16_f16_n192_s1_k32_k128: [u32; 48], 1;
    wgmma_f16_f16_f16_n200_s1_k32_k128: [u32; 50], 1;
    wgmma_f16_f16_f16_n208_s1_k32_k128: [u32; 52], 1;
    wgmma_f16_f16_f16_n216_s1_k32_k128: [u32; 54], 1;
    wgmma_f16_f16_f16_n224_s1_k32_k128: [u32; 56], 1;
    wgmma_f16_f16_f16_n232_s1_k32_k128: [u32; 58], 1;
    wgmma_f16_f16_f16_n240_s1_k32_k128: [u32; 60], 1;
    wgmma_f16_f16_f16_n248_s1_k32_k128: [u32; 62], 1;
}

wgmma_probes! { multiply_registers:
    wgmma_f32_f16_f16_n64_s4_r_k128: [f32; 32], 4;
    wgmma_f32_f16_f16_n128_s8_r_mn128: [f32; 64], 8;
    wgmma_f32_bf16_bf16_n256_s1_r_mn64: [f32; 128], 1;
    wgmma_f32_tf32_tf32_n24_s4_r_k128: [f32; 12], 4;
    wgmma_f32_e4m3_e4m3_n128_s2_r_k64: [f32; 64], 2;
    wgmma_f32_e4m3_e5m2_n8_s4_r_k128: [f32; 4], 4;
    wgmma_f32_e5m2_e4m3_n24_s1_r_k32: [f32; 12], 1;
    wgmma_f32_e5m2_e5m2_n64_s8_r_k0: [f32; 32], 8;
    wgmma_f16_f16_f16_n24_s2_r_mn0: [u32; 6], 2;
    wgmma_f16_e5m2_e4m3_n64_s4_r_k128: [u32; 16], 4;
    wgmma_f32_bf16_bf16_n64_s2_r_k64_neg_b: [f32; 32], 2;
    wgmma_f32_tf32_tf32_n8_s1_r_k32_neg_a: [f32; 4], 1;
}

const GROUPS_ID: usize = index_of(GROUPS.name);
const GROUPS_STEPS: usize = GROUPS.steps as usize;
type GroupsD = [f32; GROUPS.d_registers() as usize];

/// The product of `GROUPS` in new registers.
///
/// # Safety
/// One warpgroup; the dynamic shared memory is `MAP`; operands and `out` are those of `GROUPS`.
#[kernel(max_threads = THREADS)]
pub unsafe fn wgmma_product(out: *mut u32, operands: WgmmaOperands) {
    // SAFETY: the whole warpgroup is here, and the tiles are filled.
    unsafe {
        let (a, b) = tiles::<GROUPS_ID>(operands.a, operands.b);
        let mut d = wgmma::product::<Table<GROUPS_ID>, GroupsD, GROUPS_STEPS>(a, b);
        wgmma::wait_group::<0, _>(&mut d);
        write(out, d);
    }
}

const PRODUCT_REGISTERS_ID: usize = index_of("wgmma_f32_f16_f16_n64_s4_r_k128");

/// A product with A in registers, in new registers.
///
/// # Safety
/// One warpgroup; the dynamic shared memory is `MAP`; operands and `out` are those of
/// `wgmma_f32_f16_f16_n64_s4_r_k128`.
#[kernel(max_threads = THREADS)]
pub unsafe fn wgmma_product_registers(out: *mut u32, operands: WgmmaOperands) {
    // SAFETY: the whole warpgroup is here, and the tile is filled.
    unsafe {
        let (_, b) = tiles::<PRODUCT_REGISTERS_ID>(operands.a, operands.b);
        let a = fragments::<4>(operands.a);
        let mut d = wgmma::product_registers::<Table<PRODUCT_REGISTERS_ID>, [f32; 32], 4>(&a, b);
        wgmma::wait_group::<0, _>(&mut d);
        write(out, d);
    }
}

/// The product of `GROUPS` three times, added to the same accumulators, then their double and their negative; the
/// three are in flight at once, with an empty group behind them.
///
/// # Safety
/// One warpgroup; the dynamic shared memory is `MAP`; the operands are those of `GROUPS`, and `out` has room for three
/// results.
#[kernel(max_threads = THREADS)]
pub unsafe fn wgmma_groups(out: *mut u32, operands: WgmmaOperands) {
    let registers = GROUPS.d_registers() * THREADS;
    // SAFETY: the whole warpgroup is here, and the tiles are filled.
    unsafe {
        let (a, b) = tiles::<GROUPS_ID>(operands.a, operands.b);
        let mut d: [GroupsD; 3] = [load(operands.initial); 3];
        d[1] = d[1].map(|value| value * 2.0);
        d[2] = d[2].map(|value| -value);
        let [first, second, third] = &mut d;
        wgmma::mma_async::<Table<GROUPS_ID>, _, GROUPS_STEPS>(first, a, b, true);
        wgmma::mma_async::<Table<GROUPS_ID>, _, GROUPS_STEPS>(second, a, b, true);
        wgmma::mma_async::<Table<GROUPS_ID>, _, GROUPS_STEPS>(third, a, b, true);
        wgmma::fence();
        wgmma::commit_group();
        wgmma::wait_group::<3, _>(first);
        write(out, *first);
        wgmma::wait_group::<0, _>(second);
        wgmma::settle(third);
        write(out.add(registers as usize), *second);
        write(out.add(2 * registers as usize), *third);
    }
}

/// The first warpgroup gives up registers, which the second takes; every thread writes its number.
///
/// # Safety
/// `SETMAXNREG_THREADS` threads; `out` has a word for each.
#[kernel(max_threads = SETMAXNREG_THREADS, min_blocks = 1)]
pub unsafe fn setmaxnreg_exchange(out: *mut u32) {
    let thread = thread::thread_idx_x();
    // SAFETY: whole warpgroups take each branch, and what one gives up is what the other takes.
    unsafe {
        match thread / THREADS {
            0 => setmaxnreg::decrease::<{ SETMAXNREG.0 }>(),
            1 => setmaxnreg::increase::<{ SETMAXNREG.1 }>(),
            _ => {}
        }
        *out.add(thread as usize) = thread;
    }
}
