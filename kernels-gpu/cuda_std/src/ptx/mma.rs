//! Matrix products of one warp with fragments in registers, in the maps that the PTX ISA fixes; sm_80 and later.

use layout::Dtype;

use crate::asm;
#[cfg(any(target_feature = "sm_89", not(target_arch = "nvptx64")))]
use crate::convert::Element8;
use crate::convert::Element16;

/// Multiplies one 16x16 by one 16x8 tile of 16-bit elements and adds an f32 accumulator, across the warp: `A B + C`.
///
/// PTX: `mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32`, or `.bf16.bf16` (PTX 7.0, sm_80).
/// Fragments: [`layout::fragment::mma_m16n8k16_a`], [`layout::fragment::mma_m16n8k16_b`],
/// [`layout::fragment::mma_m16n8k16_c`].
/// Not a memory fence.
///
/// # Safety
/// - All 32 lanes of the warp execute this call together; none has exited.
#[inline(always)]
pub unsafe fn m16n8k16<E: Element16>(a: [u32; 4], b: [u32; 2], mut c: [f32; 4]) -> [f32; 4] {
    macro_rules! mma {
        ($types:literal) => {
            asm!(
                concat!(
                    "mma.sync.aligned.m16n8k16.row.col.", $types,
                    " {{{0}, {1}, {2}, {3}}}, {{{4}, {5}, {6}, {7}}}, {{{8}, {9}}}, {{{0}, {1}, {2}, {3}}};"
                ),
                inout(reg32) c[0], inout(reg32) c[1], inout(reg32) c[2], inout(reg32) c[3],
                in(reg32) a[0], in(reg32) a[1], in(reg32) a[2], in(reg32) a[3], in(reg32) b[0], in(reg32) b[1],
                options(nomem, nostack, preserves_flags)
            )
        };
    }
    // SAFETY: as required of the caller. The type is a constant, so one of the two remains.
    unsafe {
        match E::DTYPE {
            Dtype::Bf16 => mma!("f32.bf16.bf16.f32"),
            _ => mma!("f32.f16.f16.f32"),
        }
    }
    c
}

/// Multiplies one 16x8 by one 8x8 tile of TF32 elements and adds an f32 accumulator, across the warp: `A B + C`.
///
/// A TF32 element is an f32 whose lower 13 bits count for nothing: see [`crate::convert::tf32_from_f32`].
///
/// PTX: `mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32` (PTX 7.0, sm_80).
/// Fragments: [`layout::fragment::mma_m16n8k8_a`], [`layout::fragment::mma_m16n8k8_b`],
/// [`layout::fragment::mma_m16n8k16_c`].
/// Not a memory fence.
///
/// # Safety
/// - All 32 lanes of the warp execute this call together; none has exited.
#[inline(always)]
pub unsafe fn m16n8k8_tf32(a: [u32; 4], b: [u32; 2], mut c: [f32; 4]) -> [f32; 4] {
    // SAFETY: as required of the caller.
    unsafe {
        asm!(
            "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {{{0}, {1}, {2}, {3}}}, {{{4}, {5}, {6}, {7}}}, \
             {{{8}, {9}}}, {{{0}, {1}, {2}, {3}}};",
            inout(reg32) c[0], inout(reg32) c[1], inout(reg32) c[2], inout(reg32) c[3],
            in(reg32) a[0], in(reg32) a[1], in(reg32) a[2], in(reg32) a[3], in(reg32) b[0], in(reg32) b[1],
            options(nomem, nostack, preserves_flags)
        );
    }
    c
}

/// Multiplies one 16x32 by one 32x8 tile of 8-bit elements and adds an f32 accumulator, across the warp: `A B + C`.
///
/// The tensor cores of sm_89 and sm_90 add the products with about 14 bits.
///
/// PTX: `mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32`, or `.e5m2` for either (PTX 8.4, sm_89).
/// Fragments: [`layout::fragment::mma_m16n8k32_a`], [`layout::fragment::mma_m16n8k32_b`],
/// [`layout::fragment::mma_m16n8k16_c`].
/// Not a memory fence.
///
/// # Safety
/// - All 32 lanes of the warp execute this call together; none has exited.
#[cfg(any(target_feature = "sm_89", not(target_arch = "nvptx64")))]
#[inline(always)]
pub unsafe fn m16n8k32<A: Element8, B: Element8>(a: [u32; 4], b: [u32; 2], mut c: [f32; 4]) -> [f32; 4] {
    macro_rules! mma {
        ($types:literal) => {
            asm!(
                concat!(
                    "mma.sync.aligned.m16n8k32.row.col.", $types,
                    " {{{0}, {1}, {2}, {3}}}, {{{4}, {5}, {6}, {7}}}, {{{8}, {9}}}, {{{0}, {1}, {2}, {3}}};"
                ),
                inout(reg32) c[0], inout(reg32) c[1], inout(reg32) c[2], inout(reg32) c[3],
                in(reg32) a[0], in(reg32) a[1], in(reg32) a[2], in(reg32) a[3], in(reg32) b[0], in(reg32) b[1],
                options(nomem, nostack, preserves_flags)
            )
        };
    }
    // SAFETY: as required of the caller. The types are constants, so one of the four remains.
    unsafe {
        match (A::DTYPE, B::DTYPE) {
            (Dtype::E5M2, Dtype::E5M2) => mma!("f32.e5m2.e5m2.f32"),
            (Dtype::E5M2, _) => mma!("f32.e5m2.e4m3.f32"),
            (_, Dtype::E5M2) => mma!("f32.e4m3.e5m2.f32"),
            _ => mma!("f32.e4m3.e4m3.f32"),
        }
    }
    c
}
