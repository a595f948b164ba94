//! Probes of `ptx::ldmatrix`, `ptx::mma` and `ptx::wmma`. All of them are launched with one warp.

use cuda_std::convert::{Bf16, Element16, F16};
#[cfg(target_feature = "sm_89")]
use cuda_std::convert::{E4m3, E5m2, Element8};
use cuda_std::ptx::wmma::{self, Col, Factors, M8N32K16, M16N16K16, M32N8K16, Order, Row};
use cuda_std::ptx::{ldmatrix, mma};
use cuda_std::shared::{self, SharedAddr, Word};
use cuda_std::{global, kernel, thread, warp};
use layout::fragment;
use variants::probe::{self, LDMATRIX_COLUMNS, LDMATRIX_ROWS, LDMATRIX_SWIZZLE, Matrix};

/// Copies `len` words to shared memory, by the whole warp.
///
/// # Safety
/// Both areas have `len` words.
#[inline(always)]
unsafe fn fill<T: Word>(to: SharedAddr, from: *const T, len: u32) {
    let mut i = warp::lane_id();
    while i < len {
        // SAFETY: as required of the caller.
        unsafe { to.offset(i * size_of::<T>() as u32).store(global::load(from.add(i as usize))) };
        i += 32;
    }
}

/// The base of the `ldmatrix` tile after it has been filled, swizzled, from the row-major `input`.
///
/// # Safety
/// `input` has an element for each of the tile; the dynamic shared memory is that of `LDMATRIX`.
#[inline(always)]
unsafe fn swizzled_tile(input: *const u16) -> SharedAddr {
    let tile = shared::dynamic().offset(probe::LDMATRIX.get("tile").offset_bytes);
    let mut i = warp::lane_id();
    while i < LDMATRIX_ROWS * LDMATRIX_COLUMNS {
        // SAFETY: as required of the caller.
        unsafe { tile.offset(LDMATRIX_SWIZZLE.apply(i * 2)).store(*input.add(i as usize)) };
        i += 32;
    }
    // SAFETY: the whole block is here.
    unsafe { thread::sync_threads() };
    tile
}

/// The address that this lane gives to `ldmatrix` for matrices that lie under each other in 16-byte column `unit`.
#[inline(always)]
fn row_address(tile: SharedAddr, unit: u32) -> SharedAddr {
    let (matrix, row) = fragment::ldmatrix_source(warp::lane_id());
    tile.offset(LDMATRIX_SWIZZLE.tile_offset(matrix * 8 + row, unit * 16, LDMATRIX_ROWS))
}

/// Declares a probe of one form of `ldmatrix`: every lane writes its registers for the matrices in 16-byte column
/// `unit`.
macro_rules! ldmatrix_probe {
    ($name:ident, $registers:literal, $row:ident => $load:expr) => {
        /// Writes the registers of one form of `ldmatrix`.
        ///
        /// # Safety
        /// The dynamic shared memory is that of `LDMATRIX`; `input` is its tile; `out` has a word for each register and
        /// lane.
        #[kernel(max_threads = 32)]
        pub unsafe fn $name(out: *mut [u32; $registers], input: *const u16, unit: u32) {
            // SAFETY: the whole warp is here, and the rows are in the tile.
            unsafe {
                let $row = row_address(swizzled_tile(input), unit);
                *out.add(warp::lane_id() as usize) = $load;
            }
        }
    };
}

ldmatrix_probe!(ldmatrix_x1, 1, row => [ldmatrix::x1(row)]);
ldmatrix_probe!(ldmatrix_x1_trans, 1, row => [ldmatrix::x1_trans(row)]);
ldmatrix_probe!(ldmatrix_x2, 2, row => ldmatrix::x2(row));
ldmatrix_probe!(ldmatrix_x2_trans, 2, row => ldmatrix::x2_trans(row));
ldmatrix_probe!(ldmatrix_x4, 4, row => ldmatrix::x4(row));
ldmatrix_probe!(ldmatrix_x4_trans, 4, row => ldmatrix::x4_trans(row));

/// Probes of `stmatrix`, in a module because they are those of sm_90.
#[cfg(target_feature = "sm_90")]
pub mod stores {
    use cuda_std::ptx::stmatrix;
    use cuda_std::{kernel, shared, thread, warp};
    use layout::fragment;
    use variants::probe::STMATRIX;

    /// Declares a probe of one form of `stmatrix`: stores the registers of every lane, and writes the matrices.
    macro_rules! stmatrix_probe {
        ($name:ident, $registers:literal, $store:path) => {
            /// Writes the matrices that one form of `stmatrix` stores, one under the other.
            ///
            /// # Safety
            /// One warp; the dynamic shared memory is that of `STMATRIX`; `input` has the registers of every lane;
            /// `out` has 32 words a matrix.
            #[kernel(max_threads = 32)]
            pub unsafe fn $name(out: *mut u32, input: *const [u32; $registers]) {
                let rows = shared::dynamic().offset(STMATRIX.get("rows").offset_bytes);
                let lane = warp::lane_id();
                let (matrix, row) = fragment::ldmatrix_source(lane);
                // SAFETY: the whole warp is here, and the rows are in the region.
                unsafe {
                    $store(rows.offset((matrix * 8 + row) * 16), *input.add(lane as usize));
                    thread::sync_threads();
                    for word in 0..$registers {
                        let index = word * 32 + lane;
                        *out.add(index as usize) = rows.offset(index * 4).load();
                    }
                }
            }
        };
    }

    stmatrix_probe!(stmatrix_x1, 1, stmatrix::x1);
    stmatrix_probe!(stmatrix_x1_trans, 1, stmatrix::x1_trans);
    stmatrix_probe!(stmatrix_x2, 2, stmatrix::x2);
    stmatrix_probe!(stmatrix_x2_trans, 2, stmatrix::x2_trans);
    stmatrix_probe!(stmatrix_x4, 4, stmatrix::x4);
    stmatrix_probe!(stmatrix_x4_trans, 4, stmatrix::x4_trans);
}

/// Multiplies row-major 16x16 by 16x8, adds 16x8, all in global memory, with fragments by the maps of `layout`.
///
/// # Safety
/// The pointers are to matrices of these shapes.
#[inline(always)]
unsafe fn mma_m16n8k16<E: Element16>(d: *mut f32, a: *const u16, b: *const u16, c: *const f32) {
    let lane = warp::lane_id();
    let at = |(row, column): (u32, u32), columns: u32| (row * columns + column) as usize;
    let pair = |lo: u16, hi: u16| lo as u32 | (hi as u32) << 16;
    let c_at = |register| at(fragment::mma_m16n8k16_c(lane, register), 8);
    // SAFETY: the maps stay in the matrices, and the whole warp is here.
    unsafe {
        let a_at = |register, half| *a.add(at(fragment::mma_m16n8k16_a(lane, register, half), 16));
        let b_at = |register, half| *b.add(at(fragment::mma_m16n8k16_b(lane, register, half), 8));
        let a = [0, 1, 2, 3].map(|register| pair(a_at(register, 0), a_at(register, 1)));
        let b = [0, 1].map(|register| pair(b_at(register, 0), b_at(register, 1)));
        let result = mma::m16n8k16::<E>(a, b, [0, 1, 2, 3].map(|register| *c.add(c_at(register))));
        *d.add(c_at(0)) = result[0];
        *d.add(c_at(1)) = result[1];
        *d.add(c_at(2)) = result[2];
        *d.add(c_at(3)) = result[3];
    }
}

/// The product of `mma_m16n8k16` in f16.
///
/// # Safety
/// The matrices are row-major: A 16x16, B 16x8, C and D 16x8.
#[kernel(max_threads = 32)]
pub unsafe fn mma_m16n8k16_f16(d: *mut f32, a: *const u16, b: *const u16, c: *const f32) {
    // SAFETY: the matrices are as required.
    unsafe { mma_m16n8k16::<F16>(d, a, b, c) }
}

/// The product of `mma_m16n8k16` in bf16.
///
/// # Safety
/// The matrices are row-major: A 16x16, B 16x8, C and D 16x8.
#[kernel(max_threads = 32)]
pub unsafe fn mma_m16n8k16_bf16(d: *mut f32, a: *const u16, b: *const u16, c: *const f32) {
    // SAFETY: the matrices are as required.
    unsafe { mma_m16n8k16::<Bf16>(d, a, b, c) }
}

/// The product of `mma_m16n8k8_tf32`, with fragments by the maps of `layout`.
///
/// # Safety
/// The matrices are row-major, TF32 in the bits of f32: A 16x8, B 8x8; C and D 16x8 of f32.
#[kernel(max_threads = 32)]
pub unsafe fn mma_m16n8k8_tf32(d: *mut f32, a: *const u32, b: *const u32, c: *const f32) {
    let lane = warp::lane_id();
    let at = |(row, column): (u32, u32)| (row * 8 + column) as usize;
    let c_at = |register| at(fragment::mma_m16n8k16_c(lane, register));
    // SAFETY: the maps stay in the matrices, and the whole warp is here.
    unsafe {
        let a = [0, 1, 2, 3].map(|register| *a.add(at(fragment::mma_m16n8k8_a(lane, register))));
        let b = [0, 1].map(|register| *b.add(at(fragment::mma_m16n8k8_b(lane, register))));
        let result = mma::m16n8k8_tf32(a, b, [0, 1, 2, 3].map(|register| *c.add(c_at(register))));
        *d.add(c_at(0)) = result[0];
        *d.add(c_at(1)) = result[1];
        *d.add(c_at(2)) = result[2];
        *d.add(c_at(3)) = result[3];
    }
}

/// The product of `mma_m16n8k32`, with fragments by the maps of `layout`.
///
/// # Safety
/// As the probes.
#[cfg(target_feature = "sm_89")]
#[inline(always)]
unsafe fn mma_m16n8k32<B: Element8>(d: *mut f32, a: *const u8, b: *const u8, c: *const f32) {
    let lane = warp::lane_id();
    let word = |bytes: [u8; 4]| u32::from_le_bytes(bytes);
    let c_at = |register| {
        let (row, column) = fragment::mma_m16n8k16_c(lane, register);
        (row * 8 + column) as usize
    };
    // SAFETY: the maps stay in the matrices, and the whole warp is here.
    unsafe {
        let a = [0, 1, 2, 3].map(|register| {
            word([0, 1, 2, 3].map(|byte| {
                let (row, k) = fragment::mma_m16n8k32_a(lane, register, byte);
                global::load(a.add((row * 32 + k) as usize))
            }))
        });
        let b = [0, 1].map(|register| {
            word([0, 1, 2, 3].map(|byte| {
                let (k, column) = fragment::mma_m16n8k32_b(lane, register, byte);
                global::load(b.add((k * 8 + column) as usize))
            }))
        });
        let result = mma::m16n8k32::<E4m3, B>(a, b, [0, 1, 2, 3].map(|register| *c.add(c_at(register))));
        *d.add(c_at(0)) = result[0];
        *d.add(c_at(1)) = result[1];
        *d.add(c_at(2)) = result[2];
        *d.add(c_at(3)) = result[3];
    }
}

/// The product of `mma_m16n8k32` of e4m3 by e4m3.
///
/// # Safety
/// The matrices are row-major: A 16x32, B 32x8, C and D 16x8.
#[cfg(target_feature = "sm_89")]
#[kernel(max_threads = 32)]
pub unsafe fn mma_m16n8k32_e4m3_e4m3(d: *mut f32, a: *const u8, b: *const u8, c: *const f32) {
    // SAFETY: the matrices are as required.
    unsafe { mma_m16n8k32::<E4m3>(d, a, b, c) }
}

/// The product of `mma_m16n8k32` of e4m3 by e5m2.
///
/// # Safety
/// The matrices are row-major: A 16x32, B 32x8, C and D 16x8.
#[cfg(target_feature = "sm_89")]
#[kernel(max_threads = 32)]
pub unsafe fn mma_m16n8k32_e4m3_e5m2(d: *mut f32, a: *const u8, b: *const u8, c: *const f32) {
    // SAFETY: the matrices are as required.
    unsafe { mma_m16n8k32::<E5m2>(d, a, b, c) }
}

/// The matrices of a `wmma` probe, by value as one argument.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WmmaMatrices {
    a: *const u16,
    b: *const u16,
    c: *const f32,
    fragments: *mut u32,
    d_by_shared: *mut f32,
    d_by_global: *mut f32,
}

/// Loads A, B and C, writes their registers (lane by lane: A, B, C), and writes the product twice: stored to shared
/// memory and copied, and stored to global memory. C and the first D have the order of A, the second D that of B.
///
/// # Safety
/// The dynamic shared memory is that of `WMMA`; the matrices have the layouts of `variants::probe::Matrix`.
#[inline(always)]
unsafe fn wmma<S: Factors<E>, E: Element16, LA: Order, LB: Order>(m: WmmaMatrices) {
    let (a_form, b_form) = (Matrix::wmma_a(S::SHAPE, LA::ROW), Matrix::wmma_b(S::SHAPE, LB::ROW));
    let (c_form, d_form) = (Matrix::wmma_c(S::SHAPE, LA::ROW), Matrix::wmma_c(S::SHAPE, LB::ROW));
    let region = |name| shared::dynamic().offset(probe::WMMA.get(name).offset_bytes);
    let (a_at, b_at, c_at, d_at) = (region("a"), region("b"), region("c"), region("d"));
    // SAFETY: regions and matrices are large enough, the barriers separate stores from loads, the whole warp is here.
    unsafe {
        fill(a_at, m.a, a_form.len_elems());
        fill(b_at, m.b, b_form.len_elems());
        fill(c_at, m.c, c_form.len_elems());
        // The padding of D is compared too.
        fill(d_at, m.c, c_form.len_elems());
        thread::sync_threads();
        let a = wmma::load_a::<S, E, LA>(a_at, a_form.stride());
        let b = wmma::load_b::<S, E, LB>(b_at, b_form.stride());
        let c = wmma::load_c::<S, LA>(c_at, c_form.stride());
        let d = wmma::mma::<S, E, LA, LB>(a, b, c);
        wmma::store_d_shared::<S, LA>(d_at, d, c_form.stride());
        wmma::store_d_global::<S, LB>(m.d_by_global, d, d_form.stride());
        thread::sync_threads();

        let mut i = warp::lane_id();
        while i < c_form.len_elems() {
            global::store(m.d_by_shared.add(i as usize), d_at.offset(i * 4).load());
            i += 32;
        }
        let (a, b) = (a.as_ref(), b.as_ref());
        let out = m.fragments.add(warp::lane_id() as usize * (a.len() + b.len() + c.len()));
        for (i, register) in a.iter().enumerate() {
            global::store(out.add(i), *register);
        }
        for (i, register) in b.iter().enumerate() {
            global::store(out.add(a.len() + i), *register);
        }
        for (i, value) in c.iter().enumerate() {
            global::store(out.add(a.len() + b.len() + i), value.to_bits());
        }
    }
}

/// Declares the probes of one shape and element type, for the four orders of A and B.
macro_rules! wmma_probes {
    ($shape:ident, $element:ident, $($name:ident: $a:ident $b:ident),*) => {$(
        /// A product in one shape, element type and pair of orders.
        ///
        /// # Safety
        /// As for the function `wmma`.
        #[kernel(max_threads = 32)]
        pub unsafe fn $name(matrices: WmmaMatrices) {
            // SAFETY: the matrices are as required.
            unsafe { wmma::<$shape, $element, $a, $b>(matrices) }
        }
    )*};
}

wmma_probes!(M16N16K16, F16, wmma_m16n16k16_f16_row_row: Row Row, wmma_m16n16k16_f16_row_col: Row Col,
    wmma_m16n16k16_f16_col_row: Col Row, wmma_m16n16k16_f16_col_col: Col Col);
wmma_probes!(M32N8K16, F16, wmma_m32n8k16_f16_row_row: Row Row, wmma_m32n8k16_f16_row_col: Row Col,
    wmma_m32n8k16_f16_col_row: Col Row, wmma_m32n8k16_f16_col_col: Col Col);
wmma_probes!(M8N32K16, F16, wmma_m8n32k16_f16_row_row: Row Row, wmma_m8n32k16_f16_row_col: Row Col,
    wmma_m8n32k16_f16_col_row: Col Row, wmma_m8n32k16_f16_col_col: Col Col);
wmma_probes!(M16N16K16, Bf16, wmma_m16n16k16_bf16_row_row: Row Row, wmma_m16n16k16_bf16_row_col: Row Col,
    wmma_m16n16k16_bf16_col_row: Col Row, wmma_m16n16k16_bf16_col_col: Col Col);
wmma_probes!(M32N8K16, Bf16, wmma_m32n8k16_bf16_row_row: Row Row, wmma_m32n8k16_bf16_row_col: Row Col,
    wmma_m32n8k16_bf16_col_row: Col Row, wmma_m32n8k16_bf16_col_col: Col Col);
wmma_probes!(M8N32K16, Bf16, wmma_m8n32k16_bf16_row_row: Row Row, wmma_m8n32k16_bf16_row_col: Row Col,
    wmma_m8n32k16_bf16_col_row: Col Row, wmma_m8n32k16_bf16_col_col: Col Col);

/// Multiplies with two `mma` what `ldmatrix` loaded from one swizzled tile: A is rows 0 to 15, B the transpose of rows
/// 16 to 31, both of columns `16 * k_step` on. Every lane writes its accumulators, of columns 0 to 7 and 8 to 15.
///
/// # Safety
/// The dynamic shared memory is that of `LDMATRIX`; `input` is its tile.
#[inline(always)]
unsafe fn mma_from_ldmatrix<E: Element16>(out: *mut [[f32; 4]; 2], input: *const u16, k_step: u32) {
    let (matrix, row) = fragment::ldmatrix_source(warp::lane_id());
    // SAFETY: the rows are in the tile, and the whole warp is here.
    unsafe {
        let tile = swizzled_tile(input);
        let at = |row, unit| tile.offset(LDMATRIX_SWIZZLE.tile_offset(row, (k_step * 2 + unit) * 16, LDMATRIX_ROWS));
        let a = ldmatrix::x4(at(matrix % 2 * 8 + row, matrix / 2));
        let [b0, b1, b2, b3] = ldmatrix::x4(at(16 + matrix / 2 * 8 + row, matrix % 2));
        *out.add(warp::lane_id() as usize) =
            [mma::m16n8k16::<E>(a, [b0, b1], [0.0; 4]), mma::m16n8k16::<E>(a, [b2, b3], [0.0; 4])];
    }
}

/// `mma_from_ldmatrix` in f16.
///
/// # Safety
/// The dynamic shared memory is that of `LDMATRIX`; `input` is its tile; `out` has 8 values for each lane.
#[kernel(max_threads = 32)]
pub unsafe fn mma_from_ldmatrix_f16(out: *mut [[f32; 4]; 2], input: *const u16, k_step: u32) {
    // SAFETY: the areas are as required.
    unsafe { mma_from_ldmatrix::<F16>(out, input, k_step) }
}

/// `mma_from_ldmatrix` in bf16.
///
/// # Safety
/// The dynamic shared memory is that of `LDMATRIX`; `input` is its tile; `out` has 8 values for each lane.
#[kernel(max_threads = 32)]
pub unsafe fn mma_from_ldmatrix_bf16(out: *mut [[f32; 4]; 2], input: *const u16, k_step: u32) {
    // SAFETY: the areas are as required.
    unsafe { mma_from_ldmatrix::<Bf16>(out, input, k_step) }
}
