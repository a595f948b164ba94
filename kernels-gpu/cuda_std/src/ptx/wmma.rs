//! Matrix products of one warp in the shapes of `wmma`: `D = A B + C` with 16-bit A and B, f32 C and D; sm_80 and
//! later.
//!
//! ```no_run
//! # use cuda_std::convert::F16;
//! # use cuda_std::ptx::wmma::{self, Col, M16N16K16, Row};
//! # use cuda_std::shared::SharedAddr;
//! # unsafe fn example(q_tile: SharedAddr, k_tile: SharedAddr, s_tile: SharedAddr) {
//! let a = wmma::load_a::<M16N16K16, F16, Row>(q_tile, 64);
//! let b = wmma::load_b::<M16N16K16, F16, Col>(k_tile, 64);
//! let s = wmma::mma::<M16N16K16, F16, Row, Col>(a, b, [0.0; 8]);
//! wmma::store_d_shared::<M16N16K16, Row>(s_tile, s, 64);
//! # }
//! ```
//!
//! A fragment is the array of this lane's registers. The PTX ISA leaves open which elements they hold, and whether they
//! hold some twice. So factors come from [`load_a`] and [`load_b`]. An accumulator is a constant, loaded, or a result,
//! and a kernel may do to it only what every lane does to every register. A kernel that needs to know where an element
//! is, or loads by [`ldmatrix`](super::ldmatrix), takes [`mma`](super::mma), whose maps the ISA fixes.

use layout::fragment::WmmaShape;

use crate::asm;
use crate::convert::{Bf16, Element16, F16};
use crate::shared::SharedAddr;

mod sealed {
    pub trait Sealed {}
}

/// The order of a matrix in memory.
pub trait Order: sealed::Sealed {
    /// Whether the elements of a row follow each other.
    const ROW: bool;
}

/// Row-major: element (r, c) is at `r * stride + c`.
#[derive(Debug, Clone, Copy)]
pub enum Row {}

/// Column-major: element (r, c) is at `c * stride + r`.
#[derive(Debug, Clone, Copy)]
pub enum Col {}

impl sealed::Sealed for Row {}
impl sealed::Sealed for Col {}

impl Order for Row {
    const ROW: bool = true;
}

impl Order for Col {
    const ROW: bool = false;
}

/// The shape of a product, m x n x k. The functions are the instructions of that shape; the callers are below.
pub trait Shape: sealed::Sealed {
    /// The sizes.
    const SHAPE: WmmaShape;

    #[doc(hidden)]
    unsafe fn load_c<L: Order>(addr: SharedAddr, stride_elems: u32) -> [f32; 8];
    #[doc(hidden)]
    unsafe fn store_d_shared<L: Order>(addr: SharedAddr, d: [f32; 8], stride_elems: u32);
    #[doc(hidden)]
    unsafe fn store_d_global<L: Order>(ptr: *mut f32, d: [f32; 8], stride_elems: u32);
}

/// A shape with factors of type `E`.
pub trait Factors<E: Element16>: Shape {
    /// The registers of A, m x k.
    type A: Copy + AsRef<[u32]>;
    /// The registers of B, k x n.
    type B: Copy + AsRef<[u32]>;

    #[doc(hidden)]
    unsafe fn load_a<L: Order>(addr: SharedAddr, stride_elems: u32) -> Self::A;
    #[doc(hidden)]
    unsafe fn load_b<L: Order>(addr: SharedAddr, stride_elems: u32) -> Self::B;
    #[doc(hidden)]
    unsafe fn mma<LA: Order, LB: Order>(a: Self::A, b: Self::B, c: [f32; 8]) -> [f32; 8];
}

/// 16x16 from 16x16 and 16x16.
#[derive(Debug, Clone, Copy)]
pub enum M16N16K16 {}

/// 32x8 from 32x16 and 16x8.
#[derive(Debug, Clone, Copy)]
pub enum M32N8K16 {}

/// 8x32 from 8x16 and 16x32.
#[derive(Debug, Clone, Copy)]
pub enum M8N32K16 {}

/// Loads this lane's part of A, m x k, from shared memory.
///
/// PTX: `wmma.load.a.sync.aligned.{row,col}.{shape}.shared.{f16,bf16}` (PTX 7.0, sm_80).
/// Fragments: left open by the ISA.
/// Not a memory fence.
///
/// # Safety
/// - All 32 lanes of the warp execute this call together with the same arguments; none has exited.
/// - `addr` is 32-byte aligned and `stride_elems` a multiple of 8; the matrix lies in the shared memory of the block,
///   where something was stored.
/// - No thread writes it without a barrier in between.
#[inline(always)]
pub unsafe fn load_a<S: Factors<E>, E: Element16, L: Order>(addr: SharedAddr, stride_elems: u32) -> S::A {
    // SAFETY: as required of the caller.
    unsafe { S::load_a::<L>(addr, stride_elems) }
}

/// Loads this lane's part of B, k x n, from shared memory.
///
/// PTX: `wmma.load.b.sync.aligned.{row,col}.{shape}.shared.{f16,bf16}` (PTX 7.0, sm_80).
/// Fragments: left open by the ISA.
/// Not a memory fence.
///
/// # Safety
/// As for [`load_a`].
#[inline(always)]
pub unsafe fn load_b<S: Factors<E>, E: Element16, L: Order>(addr: SharedAddr, stride_elems: u32) -> S::B {
    // SAFETY: as required of the caller.
    unsafe { S::load_b::<L>(addr, stride_elems) }
}

/// Loads this lane's part of C, m x n of f32, from shared memory.
///
/// PTX: `wmma.load.c.sync.aligned.{row,col}.{shape}.shared.f32` (PTX 6.1, sm_70).
/// Fragments: left open by the ISA.
/// Not a memory fence.
///
/// # Safety
/// As for [`load_a`], with a stride that is a multiple of 4.
#[inline(always)]
pub unsafe fn load_c<S: Shape, L: Order>(addr: SharedAddr, stride_elems: u32) -> [f32; 8] {
    // SAFETY: as required of the caller.
    unsafe { S::load_c::<L>(addr, stride_elems) }
}

/// Multiplies A by B and adds C, across the warp.
///
/// PTX: `wmma.mma.sync.aligned.{row,col}.{row,col}.{shape}.f32.f32`, or `.f32.bf16.bf16.f32` (PTX 7.0, sm_80).
/// Fragments: left open by the ISA.
/// Not a memory fence.
///
/// # Safety
/// - All 32 lanes of the warp execute this call together; none has exited.
/// - `a` and `b` come from [`load_a`] and [`load_b`] of this shape, type and order; `c` is one number in all lanes, or
///   comes from [`load_c`] or from a product of this shape.
#[inline(always)]
pub unsafe fn mma<S: Factors<E>, E: Element16, LA: Order, LB: Order>(a: S::A, b: S::B, c: [f32; 8]) -> [f32; 8] {
    // SAFETY: as required of the caller.
    unsafe { S::mma::<LA, LB>(a, b, c) }
}

/// Stores this lane's part of D, m x n of f32, to shared memory.
///
/// PTX: `wmma.store.d.sync.aligned.{row,col}.{shape}.shared.f32` (PTX 6.1, sm_70).
/// Fragments: left open by the ISA.
/// Not a memory fence: a barrier must follow before another lane reads the matrix.
///
/// # Safety
/// - All 32 lanes of the warp execute this call together with the same address and stride; none has exited.
/// - `addr` is 32-byte aligned and `stride_elems` a multiple of 4; the matrix lies in the shared memory of the block.
/// - `d` comes from a product of this shape.
/// - No other warp reads or writes it without a barrier in between.
#[inline(always)]
pub unsafe fn store_d_shared<S: Shape, L: Order>(addr: SharedAddr, d: [f32; 8], stride_elems: u32) {
    // SAFETY: as required of the caller.
    unsafe { S::store_d_shared::<L>(addr, d, stride_elems) }
}

/// Stores this lane's part of D, m x n of f32, to global memory.
///
/// PTX: `wmma.store.d.sync.aligned.{row,col}.{shape}.global.f32` (PTX 6.1, sm_70).
/// Fragments: left open by the ISA.
/// Not a memory fence.
///
/// # Safety
/// As for [`store_d_shared`], with writable global memory at `ptr`.
#[inline(always)]
pub unsafe fn store_d_global<S: Shape, L: Order>(ptr: *mut f32, d: [f32; 8], stride_elems: u32) {
    // SAFETY: as required of the caller.
    unsafe { S::store_d_global::<L>(ptr, d, stride_elems) }
}

/// Operands of these numbers, in the braces of a fragment.
macro_rules! registers {
    ($first:literal $($next:literal)*) => {
        concat!("{{{", $first, "}" $(, ", {", $next, "}")*, "}}")
    };
}

/// One `wmma.load` of A or B: the operands are the registers, by number.
macro_rules! load {
    ($form:expr, [$($i:literal)*], $addr:ident, $stride:ident) => {{
        let mut r = [0u32; [$($i),*].len()];
        asm!(
            concat!("wmma.load.", $form, " ", registers!($($i)*), ", [{addr}], {stride};"),
            $(out(reg32) r[$i],)* addr = in(reg32) $addr.as_raw(), stride = in(reg32) $stride,
            options(readonly, nostack, preserves_flags)
        );
        r
    }};
}

/// One `wmma.mma`: the accumulators are operands 0 to 7, the registers of A and then of B follow, with these numbers.
macro_rules! mma {
    ($orders:literal, $shape:literal, $types:literal, $a:ident [$($i:literal)*] [$($a_at:literal)*],
     $b:ident [$($j:literal)*] [$($b_at:literal)*], $c:ident) => {{
        let mut d = $c;
        asm!(
            concat!(
                "wmma.mma.sync.aligned.", $orders, $shape, $types, " ", registers!(0 1 2 3 4 5 6 7), ", ",
                registers!($($a_at)*), ", ", registers!($($b_at)*), ", ", registers!(0 1 2 3 4 5 6 7), ";"
            ),
            inout(reg32) d[0], inout(reg32) d[1], inout(reg32) d[2], inout(reg32) d[3],
            inout(reg32) d[4], inout(reg32) d[5], inout(reg32) d[6], inout(reg32) d[7],
            $(in(reg32) $a[$i],)* $(in(reg32) $b[$j],)* options(nomem, nostack, preserves_flags)
        );
        d
    }};
}

/// One `wmma.load.c`.
macro_rules! load_c {
    ($form:expr, $addr:ident, $stride:ident) => {{
        let mut r = [0f32; 8];
        asm!(
            concat!("wmma.load.c.sync.aligned.", $form, registers!(0 1 2 3 4 5 6 7), ", [{addr}], {stride};"),
            out(reg32) r[0], out(reg32) r[1], out(reg32) r[2], out(reg32) r[3],
            out(reg32) r[4], out(reg32) r[5], out(reg32) r[6], out(reg32) r[7],
            addr = in(reg32) $addr.as_raw(), stride = in(reg32) $stride, options(readonly, nostack, preserves_flags)
        );
        r
    }};
}

/// One `wmma.store.d`.
macro_rules! store_d {
    ($form:expr, $class:ident $addr:expr, $d:ident, $stride:ident) => {
        asm!(
            concat!("wmma.store.d.sync.aligned.", $form, "[{addr}], ", registers!(0 1 2 3 4 5 6 7), ", {stride};"),
            in(reg32) $d[0], in(reg32) $d[1], in(reg32) $d[2], in(reg32) $d[3],
            in(reg32) $d[4], in(reg32) $d[5], in(reg32) $d[6], in(reg32) $d[7],
            addr = in($class) $addr, stride = in(reg32) $stride, options(nostack, preserves_flags)
        )
    };
}

/// Implements [`Shape`].
macro_rules! shape {
    ($shape:ident = $name:literal) => {
        impl sealed::Sealed for $shape {}

        // SAFETY (of every block): as required of the caller. The order is a constant, so one instruction remains.
        #[expect(clippy::undocumented_unsafe_blocks, reason = "stated once, above")]
        impl Shape for $shape {
            const SHAPE: WmmaShape = WmmaShape::$shape;

            #[inline(always)]
            unsafe fn load_c<L: Order>(addr: SharedAddr, stride: u32) -> [f32; 8] {
                unsafe {
                    match L::ROW {
                        true => load_c!(concat!("row.", $name, ".shared.f32 "), addr, stride),
                        false => load_c!(concat!("col.", $name, ".shared.f32 "), addr, stride),
                    }
                }
            }

            #[inline(always)]
            unsafe fn store_d_shared<L: Order>(addr: SharedAddr, d: [f32; 8], stride: u32) {
                unsafe {
                    match L::ROW {
                        true => store_d!(concat!("row.", $name, ".shared.f32 "), reg32 addr.as_raw(), d, stride),
                        false => store_d!(concat!("col.", $name, ".shared.f32 "), reg32 addr.as_raw(), d, stride),
                    }
                }
            }

            #[inline(always)]
            unsafe fn store_d_global<L: Order>(ptr: *mut f32, d: [f32; 8], stride: u32) {
                unsafe {
                    match L::ROW {
                        true => store_d!(concat!("row.", $name, ".global.f32 "), reg64 ptr, d, stride),
                        false => store_d!(concat!("col.", $name, ".global.f32 "), reg64 ptr, d, stride),
                    }
                }
            }
        }
    };
}

/// Implements [`Factors`] of one type: how loads and products name it; for A and for B the registers and their places
/// among the operands of `mma!`.
macro_rules! factors {
    ($shape:ident = $name:literal, $element:ident = $type:literal $types:literal,
     A [$($i:literal)*] $a_at:tt, B [$($j:literal)*] $b_at:tt) => {
        // SAFETY (of every block): as required of the caller. The orders are constants, so one instruction remains.
        #[expect(clippy::undocumented_unsafe_blocks, reason = "stated once, above")]
        impl Factors<$element> for $shape {
            type A = [u32; [$($i),*].len()];
            type B = [u32; [$($j),*].len()];

            #[inline(always)]
            unsafe fn load_a<L: Order>(addr: SharedAddr, stride: u32) -> Self::A {
                unsafe {
                    match L::ROW {
                        true => load!(concat!("a.sync.aligned.row.", $name, $type), [$($i)*], addr, stride),
                        false => load!(concat!("a.sync.aligned.col.", $name, $type), [$($i)*], addr, stride),
                    }
                }
            }

            #[inline(always)]
            unsafe fn load_b<L: Order>(addr: SharedAddr, stride: u32) -> Self::B {
                unsafe {
                    match L::ROW {
                        true => load!(concat!("b.sync.aligned.row.", $name, $type), [$($j)*], addr, stride),
                        false => load!(concat!("b.sync.aligned.col.", $name, $type), [$($j)*], addr, stride),
                    }
                }
            }

            #[inline(always)]
            unsafe fn mma<LA: Order, LB: Order>(a: Self::A, b: Self::B, c: [f32; 8]) -> [f32; 8] {
                unsafe {
                    match (LA::ROW, LB::ROW) {
                        (true, true) => mma!("row.row.", $name, $types, a [$($i)*] $a_at, b [$($j)*] $b_at, c),
                        (true, false) => mma!("row.col.", $name, $types, a [$($i)*] $a_at, b [$($j)*] $b_at, c),
                        (false, true) => mma!("col.row.", $name, $types, a [$($i)*] $a_at, b [$($j)*] $b_at, c),
                        (false, false) => mma!("col.col.", $name, $types, a [$($i)*] $a_at, b [$($j)*] $b_at, c),
                    }
                }
            }
        }
    };
}

shape!(M16N16K16 = "m16n16k16");
shape!(M32N8K16 = "m32n8k16");
shape!(M8N32K16 = "m8n32k16");
factors!(M16N16K16 = "m16n16k16", F16 = ".shared.f16" ".f32.f32",
    A [0 1 2 3 4 5 6 7] [8 9 10 11 12 13 14 15], B [0 1 2 3 4 5 6 7] [16 17 18 19 20 21 22 23]);
factors!(M32N8K16 = "m32n8k16", F16 = ".shared.f16" ".f32.f32",
    A [0 1 2 3 4 5 6 7] [8 9 10 11 12 13 14 15], B [0 1 2 3 4 5 6 7] [16 17 18 19 20 21 22 23]);
factors!(M8N32K16 = "m8n32k16", F16 = ".shared.f16" ".f32.f32",
    A [0 1 2 3 4 5 6 7] [8 9 10 11 12 13 14 15], B [0 1 2 3 4 5 6 7] [16 17 18 19 20 21 22 23]);
factors!(M16N16K16 = "m16n16k16", Bf16 = ".shared.bf16" ".f32.bf16.bf16.f32",
    A [0 1 2 3] [8 9 10 11], B [0 1 2 3] [12 13 14 15]);
factors!(M32N8K16 = "m32n8k16", Bf16 = ".shared.bf16" ".f32.bf16.bf16.f32",
    A [0 1 2 3 4 5 6 7] [8 9 10 11 12 13 14 15], B [0 1] [16 17]);
factors!(M8N32K16 = "m8n32k16", Bf16 = ".shared.bf16" ".f32.bf16.bf16.f32",
    A [0 1] [8 9], B [0 1 2 3 4 5 6 7] [10 11 12 13 14 15 16 17]);
