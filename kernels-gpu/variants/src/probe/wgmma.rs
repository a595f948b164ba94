//! The products of the `wgmma` probes, one a kernel: every pair of types, order, swizzle and number of columns.

use layout::Dtype::{self, Bf16, E4M3, E5M2, F16, F32};
use layout::Swizzle;
use layout::descriptor::{Major, Operand};
use layout::smem::SmemLayout;

/// Rows of A and D.
pub const M: u32 = 64;

/// The threads of a warpgroup.
pub const THREADS: u32 = 128;

/// The map of the probes, for the largest tiles.
pub const MAP: SmemLayout = SmemLayout::new().region("a", 16 << 10, 1024).region("b", 64 << 10, 1024);

/// One product, D = A B + D.
#[derive(Debug, Clone, Copy)]
pub struct WgmmaProbe {
    /// The kernel: `wgmma_<D>_<A>_<B>_n<N>_s<steps>_<A>_<B>`, where a tile in shared memory is `k` or `mn` for its
    /// order and the width of its swizzle, and registers are `r`.
    pub name: &'static str,
    /// The type of D.
    pub d: Dtype,
    /// How A is stored.
    pub a: Operand,
    /// How B is stored.
    pub b: Operand,
    /// Columns of B and D.
    pub n: u32,
    /// Instructions along K.
    pub steps: u32,
    /// Whether A is negated.
    pub negate_a: bool,
    /// Whether B is negated.
    pub negate_b: bool,
}

impl WgmmaProbe {
    /// Columns of A and rows of B.
    pub const fn k(&self) -> u32 {
        self.steps * self.a.k_step_elems()
    }

    /// The size of the tile of A, 0 in registers.
    pub const fn a_bytes(&self) -> u32 {
        tile_bytes(self.a, M, self.k())
    }

    /// The size of the tile of B.
    pub const fn b_bytes(&self) -> u32 {
        tile_bytes(self.b, self.n, self.k())
    }

    /// The 32-bit registers of D in one thread.
    pub const fn d_registers(&self) -> u32 {
        self.n / 2 * self.d.size_bytes() as u32 / 4
    }

    const fn negated(self, negate_a: bool, negate_b: bool) -> WgmmaProbe {
        WgmmaProbe { negate_a, negate_b, ..self }
    }
}

const fn tile_bytes(operand: Operand, mn: u32, k: u32) -> u32 {
    match operand.major() {
        Major::K => operand.tile_bytes(k),
        Major::Mn => operand.tile_bytes(mn),
    }
}

/// Order and swizzle of an operand in shared memory.
type Stored = Option<(Major, Swizzle)>;

const K0: Stored = Some((Major::K, Swizzle::None));
const K32: Stored = Some((Major::K, Swizzle::B32));
const K64: Stored = Some((Major::K, Swizzle::B64));
const K128: Stored = Some((Major::K, Swizzle::B128));
const MN0: Stored = Some((Major::Mn, Swizzle::None));
const MN32: Stored = Some((Major::Mn, Swizzle::B32));
const MN64: Stored = Some((Major::Mn, Swizzle::B64));
const MN128: Stored = Some((Major::Mn, Swizzle::B128));
const IN_REGISTERS: Stored = None;

const fn operand(dtype: Dtype, stored: Stored, mn: u32, steps: u32) -> Operand {
    match stored {
        None => Operand::in_registers(dtype),
        Some((Major::K, swizzle)) => Operand::new(dtype, Major::K, swizzle, mn),
        Some((Major::Mn, swizzle)) => Operand::new(dtype, Major::Mn, swizzle, steps * 16),
    }
}

const fn case(
    name: &'static str,
    d: Dtype,
    (a, b): (Dtype, Dtype),
    (n, steps): (u32, u32),
    (a_stored, b_stored): (Stored, Stored),
) -> WgmmaProbe {
    let (a, b) = (operand(a, a_stored, M, steps), operand(b, b_stored, n, steps));
    WgmmaProbe { name, d, a, b, n, steps, negate_a: false, negate_b: false }
}

/// Every probe.
#[rustfmt::skip]
pub const WGMMA: &[WgmmaProbe] = &[
    case("wgmma_f32_f16_f16_n8_s1_k0_k0", F32, (F16, F16), (8, 1), (K0, K0)),
    case("wgmma_f32_f16_f16_n24_s2_k0_mn0", F32, (F16, F16), (24, 2), (K0, MN0)),
    case("wgmma_f32_f16_f16_n24_s4_mn0_k0", F32, (F16, F16), (24, 4), (MN0, K0)),
    case("wgmma_f32_f16_f16_n8_s8_mn0_mn0", F32, (F16, F16), (8, 8), (MN0, MN0)),
    case("wgmma_f32_f16_f16_n24_s4_k32_k32", F32, (F16, F16), (24, 4), (K32, K32)),
    case("wgmma_f32_f16_f16_n64_s2_k32_mn32", F32, (F16, F16), (64, 2), (K32, MN32)),
    case("wgmma_f32_f16_f16_n8_s1_mn32_k32", F32, (F16, F16), (8, 1), (MN32, K32)),
    case("wgmma_f32_f16_f16_n128_s4_mn32_mn32", F32, (F16, F16), (128, 4), (MN32, MN32)),
    case("wgmma_f32_f16_f16_n64_s4_k64_k64", F32, (F16, F16), (64, 4), (K64, K64)),
    case("wgmma_f32_f16_f16_n128_s8_k64_mn64", F32, (F16, F16), (128, 8), (K64, MN64)),
    case("wgmma_f32_f16_f16_n24_s2_mn64_k64", F32, (F16, F16), (24, 2), (MN64, K64)),
    case("wgmma_f32_f16_f16_n256_s4_mn64_mn64", F32, (F16, F16), (256, 4), (MN64, MN64)),
    case("wgmma_f32_f16_f16_n128_s4_k128_k128", F32, (F16, F16), (128, 4), (K128, K128)),
    case("wgmma_f32_f16_f16_n256_s4_k128_mn128", F32, (F16, F16), (256, 4), (K128, MN128)),
    case("wgmma_f32_f16_f16_n64_s8_mn128_k128", F32, (F16, F16), (64, 8), (MN128, K128)),
    case("wgmma_f32_f16_f16_n64_s2_mn128_mn128", F32, (F16, F16), (64, 2), (MN128, MN128)),
    case("wgmma_f32_f16_f16_n256_s8_k128_k128", F32, (F16, F16), (256, 8), (K128, K128)),
    case("wgmma_f32_f16_f16_n24_s1_k64_mn128", F32, (F16, F16), (24, 1), (K64, MN128)),
    case("wgmma_f32_bf16_bf16_n128_s4_k128_k128", F32, (Bf16, Bf16), (128, 4), (K128, K128)),
    case("wgmma_f32_bf16_bf16_n256_s2_mn64_mn128", F32, (Bf16, Bf16), (256, 2), (MN64, MN128)),
    case("wgmma_f32_bf16_bf16_n24_s8_k0_k32", F32, (Bf16, Bf16), (24, 8), (K0, K32)),
    case("wgmma_f32_tf32_tf32_n8_s1_k0_k0", F32, (F32, F32), (8, 1), (K0, K0)),
    case("wgmma_f32_tf32_tf32_n64_s4_k128_k128", F32, (F32, F32), (64, 4), (K128, K128)),
    case("wgmma_f32_tf32_tf32_n24_s2_k32_k64", F32, (F32, F32), (24, 2), (K32, K64)),
    case("wgmma_f32_tf32_tf32_n256_s8_k128_k64", F32, (F32, F32), (256, 8), (K128, K64)),
    case("wgmma_f32_e4m3_e4m3_n128_s4_k128_k128", F32, (E4M3, E4M3), (128, 4), (K128, K128)),
    case("wgmma_f32_e4m3_e5m2_n64_s2_k64_k64", F32, (E4M3, E5M2), (64, 2), (K64, K64)),
    case("wgmma_f32_e5m2_e4m3_n24_s8_k32_k128", F32, (E5M2, E4M3), (24, 8), (K32, K128)),
    case("wgmma_f32_e5m2_e5m2_n256_s1_k0_k0", F32, (E5M2, E5M2), (256, 1), (K0, K0)),
    case("wgmma_f16_f16_f16_n64_s4_k128_k128", F16, (F16, F16), (64, 4), (K128, K128)),
    case("wgmma_f16_f16_f16_n256_s2_mn128_mn32", F16, (F16, F16), (256, 2), (MN128, MN32)),
    case("wgmma_f16_f16_f16_n8_s1_k32_k0", F16, (F16, F16), (8, 1), (K32, K0)),
    case("wgmma_f16_e4m3_e4m3_n128_s4_k128_k128", F16, (E4M3, E4M3), (128, 4), (K128, K128)),
    case("wgmma_f16_e4m3_e5m2_n24_s2_k32_k32", F16, (E4M3, E5M2), (24, 2), (K32, K32)),
    case("wgmma_f16_e5m2_e4m3_n8_s1_k0_k64", F16, (E5M2, E4M3), (8, 1), (K0, K64)),
    case("wgmma_f16_e5m2_e5m2_n256_s4_k64_k128", F16, (E5M2, E5M2), (256, 4), (K64, K128)),
    case("wgmma_f32_f16_f16_n64_s4_r_k128", F32, (F16, F16), (64, 4), (IN_REGISTERS, K128)),
    case("wgmma_f32_f16_f16_n128_s8_r_mn128", F32, (F16, F16), (128, 8), (IN_REGISTERS, MN128)),
    case("wgmma_f32_bf16_bf16_n256_s1_r_mn64", F32, (Bf16, Bf16), (256, 1), (IN_REGISTERS, MN64)),
    case("wgmma_f32_tf32_tf32_n24_s4_r_k128", F32, (F32, F32), (24, 4), (IN_REGISTERS, K128)),
    case("wgmma_f32_e4m3_e4m3_n128_s2_r_k64", F32, (E4M3, E4M3), (128, 2), (IN_REGISTERS, K64)),
    case("wgmma_f32_e4m3_e5m2_n8_s4_r_k128", F32, (E4M3, E5M2), (8, 4), (IN_REGISTERS, K128)),
    case("wgmma_f32_e5m2_e4m3_n24_s1_r_k32", F32, (E5M2, E4M3), (24, 1), (IN_REGISTERS, K32)),
    case("wgmma_f32_e5m2_e5m2_n64_s8_r_k0", F32, (E5M2, E5M2), (64, 8), (IN_REGISTERS, K0)),
    case("wgmma_f16_f16_f16_n24_s2_r_mn0", F16, (F16, F16), (24, 2), (IN_REGISTERS, MN0)),
    case("wgmma_f16_e5m2_e4m3_n64_s4_r_k128", F16, (E5M2, E4M3), (64, 4), (IN_REGISTERS, K128)),
    case("wgmma_f32_f16_f16_n64_s1_k32_k32_neg_a", F32, (F16, F16), (64, 1), (K32, K32)).negated(true, false),
    case("wgmma_f32_bf16_bf16_n64_s2_r_k64_neg_b", F32, (Bf16, Bf16), (64, 2), (IN_REGISTERS, K64))
        .negated(false, true),
    case("wgmma_f16_f16_f16_n24_s4_k128_k128_neg_ab", F16, (F16, F16), (24, 4), (K128, K128)).negated(true, true),
    case("wgmma_f32_e4m3_e5m2_n64_s1_k32_k32_neg_b", F32, (E4M3, E5M2), (64, 1), (K32, K32)).negated(false, true),
    case("wgmma_f32_tf32_tf32_n8_s1_r_k32_neg_a", F32, (F32, F32), (8, 1), (IN_REGISTERS, K32)).negated(true, false),
    // The other numbers of columns.
    case("wgmma_f32_f16_f16_n16_s2_k64_k64", F32, (F16, F16), (16, 2), (K64, K64)),
    case("wgmma_f32_f16_f16_n32_s2_k64_k64", F32, (F16, F16), (32, 2), (K64, K64)),
    case("wgmma_f32_f16_f16_n40_s2_k64_k64", F32, (F16, F16), (40, 2), (K64, K64)),
    case("wgmma_f32_f16_f16_n48_s2_k64_k64", F32, (F16, F16), (48, 2), (K64, K64)),
    case("wgmma_f32_f16_f16_n56_s2_k64_k64", F32, (F16, F16), (56, 2), (K64, K64)),
    case("wgmma_f32_f16_f16_n72_s2_k64_k64", F32, (F16, F16), (72, 2), (K64, K64)),
    case("wgmma_f32_f16_f16_n80_s2_k64_k64", F32, (F16, F16), (80, 2), (K64, K64)),
    case("wgmma_f32_f16_f16_n88_s2_k64_k64", F32, (F16, F16), (88, 2), (K64, K64)),
    case("wgmma_f32_f16_f16_n96_s2_k64_k64", F32, (F16, F16), (96, 2), (K64, K64)),
    case("wgmma_f32_f16_f16_n104_s2_k64_k64", F32, (F16, F16), (104, 2), (K64, K64)),
    case("wgmma_f32_f16_f16_n112_s2_k64_k64", F32, (F16, F16), (112, 2), (K64, K64)),
    case("wgmma_f32_f16_f16_n120_s2_k64_k64", F32, (F16, F16), (120, 2), (K64, K64)),
    case("wgmma_f32_f16_f16_n136_s2_k64_k64", F32, (F16, F16), (136, 2), (K64, K64)),
    case("wgmma_f32_f16_f16_n144_s2_k64_k64", F32, (F16, F16), (144, 2), (K64, K64)),
    case("wgmma_f32_f16_f16_n152_s2_k64_k64", F32, (F16, F16), (152, 2), (K64, K64)),
    case("wgmma_f32_f16_f16_n160_s2_k64_k64", F32, (F16, F16), (160, 2), (K64, K64)),
    case("wgmma_f32_f16_f16_n168_s2_k64_k64", F32, (F16, F16), (168, 2), (K64, K64)),
    case("wgmma_f32_f16_f16_n176_s2_k64_k64", F32, (F16, F16), (176, 2), (K64, K64)),
    case("wgmma_f32_f16_f16_n184_s2_k64_k64", F32, (F16, F16), (184, 2), (K64, K64)),
    case("wgmma_f32_f16_f16_n192_s2_k64_k64", F32, (F16, F16), (192, 2), (K64, K64)),
    case("wgmma_f32_f16_f16_n200_s2_k64_k64", F32, (F16, F16), (200, 2), (K64, K64)),
    case("wgmma_f32_f16_f16_n208_s2_k64_k64", F32, (F16, F16), (208, 2), (K64, K64)),
    case("wgmma_f32_f16_f16_n216_s2_k64_k64", F32, (F16, F16), (216, 2), (K64, K64)),
    case("wgmma_f32_f16_f16_n224_s2_k64_k64", F32, (F16, F16), (224, 2), (K64, K64)),
    case("wgmma_f32_f16_f16_n232_s2_k64_k64", F32, (F16, F16), (232, 2), (K64, K64)),
    case("wgmma_f32_f16_f16_n240_s2_k64_k64", F32, (F16, F16), (240, 2), (K64, K64)),
    case("wgmma_f32_f16_f16_n248_s2_k64_k64", F32, (F16, F16), (248, 2), (K64, K64)),
    case("wgmma_f16_f16_f16_n16_s1_k32_k128", F16, (F16, F16), (16, 1), (K32, K128)),
    case("wgmma_f16_f16_f16_n32_s1_k32_k128", F16, (F16, F16), (32, 1), (K32, K128)),
    case("wgmma_f16_f16_f16_n40_s1_k32_k128", F16, (F16, F16), (40, 1), (K32, K128)),
    case("wgmma_f16_f16_f16_n48_s1_k32_k128", F16, (F16, F16), (48, 1), (K32, K128)),
    case("wgmma_f16_f16_f16_n56_s1_k32_k128", F16, (F16, F16), (56, 1), (K32, K128)),
    case("wgmma_f16_f16_f16_n72_s1_k32_k128", F16, (F16, F16), (72, 1), (K32, K128)),
    case("wgmma_f16_f16_f16_n80_s1_k32_k128", F16, (F16, F16), (80, 1), (K32, K128)),
    case("wgmma_f16_f16_f16_n88_s1_k32_k128", F16, (F16, F16), (88, 1), (K32, K128)),
    case("wgmma_f16_f16_f16_n96_s1_k32_k128", F16, (F16, F16), (96, 1), (K32, K128)),
    case("wgmma_f16_f16_f16_n104_s1_k32_k128", F16, (F16, F16), (104, 1), (K32, K128)),
    case("wgmma_f16_f16_f16_n112_s1_k32_k128", F16, (F16, F16), (112, 1), (K32, K128)),
    case("wgmma_f16_f16_f16_n120_s1_k32_k128", F16, (F16, F16), (120, 1), (K32, K128)),
    case("wgmma_f16_f16_f16_n136_s1_k32_k128", F16, (F16, F16), (136, 1), (K32, K128)),
    case("wgmma_f16_f16_f16_n144_s1_k32_k128", F16, (F16, F16), (144, 1), (K32, K128)),
    case("wgmma_f16_f16_f16_n152_s1_k32_k128", F16, (F16, F16), (152, 1), (K32, K128)),
    case("wgmma_f16_f16_f16_n160_s1_k32_k128", F16, (F16, F16), (160, 1), (K32, K128)),
    case("wgmma_f16_f16_f16_n168_s1_k32_k128", F16, (F16, F16), (168, 1), (K32, K128)),
    case("wgmma_f16_f16_f16_n176_s1_k32_k128", F16, (F16, F16), (176, 1), (K32, K128)),
    case("wgmma_f16_f16_f16_n184_s1_k32_k128", F16, (F16, F16), (184, 1), (K32, K128)),
    case("wgmma_f16_f16_f16_n192_s1_k32_k128", F16, (F16, F16), (192, 1), (K32, K128)),
    case("wgmma_f16_f16_f16_n200_s1_k32_k128", F16, (F16, F16), (200, 1), (K32, K128)),
    case("wgmma_f16_f16_f16_n208_s1_k32_k128", F16, (F16, F16), (208, 1), (K32, K128)),
    case("wgmma_f16_f16_f16_n216_s1_k32_k128", F16, (F16, F16), (216, 1), (K32, K128)),
    case("wgmma_f16_f16_f16_n224_s1_k32_k128", F16, (F16, F16), (224, 1), (K32, K128)),
    case("wgmma_f16_f16_f16_n232_s1_k32_k128", F16, (F16, F16), (232, 1), (K32, K128)),
    case("wgmma_f16_f16_f16_n240_s1_k32_k128", F16, (F16, F16), (240, 1), (K32, K128)),
    case("wgmma_f16_f16_f16_n248_s1_k32_k128", F16, (F16, F16), (248, 1), (K32, K128)),
];

/// The index of the kernel called `name`.
///
/// # Panics
/// If there is none.
pub const fn index_of(name: &str) -> usize {
    let mut index = 0;
    while index < WGMMA.len() {
        if layout::text::same_text(WGMMA[index].name, name) {
            return index;
        }
        index += 1;
    }
    panic!("no wgmma probe of this name")
}

/// The product of the probes of several groups, which are beside those of the table.
pub const GROUPS: WgmmaProbe = WGMMA[index_of("wgmma_f32_f16_f16_n24_s4_k32_k32")];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_fits_its_region() {
        for probe in WGMMA {
            assert!(probe.a_bytes() <= MAP.get("a").stage_bytes, "{}", probe.name);
            assert!(probe.b_bytes() <= MAP.get("b").stage_bytes, "{}", probe.name);
        }
    }

    #[test]
    fn every_type_order_and_swizzle_is_probed() {
        for dtype in [F16, Bf16, F32, E4M3, E5M2] {
            assert!(WGMMA.iter().any(|probe| probe.a.dtype() == dtype && probe.a.is_in_registers()), "{dtype}");
        }
        for a in [E4M3, E5M2] {
            for b in [E4M3, E5M2] {
                for d in [F32, F16] {
                    let pair = |probe: &WgmmaProbe| (probe.d, probe.a.dtype(), probe.b.dtype()) == (d, a, b);
                    assert!(WGMMA.iter().any(pair), "{d} {a} {b}");
                }
            }
        }
        for swizzle in Swizzle::ALL {
            for major in [Major::K, Major::Mn] {
                let stored = |operand: Operand| (operand.major(), operand.swizzle()) == (major, swizzle);
                let in_shared = |probe: &&WgmmaProbe| !probe.a.is_in_registers();
                assert!(WGMMA.iter().filter(in_shared).any(|probe| stored(probe.a)), "A {major:?} {swizzle:?}");
                assert!(WGMMA.iter().any(|probe| stored(probe.b)), "B {major:?} {swizzle:?}");
            }
        }
        for n in (8..=256).step_by(8) {
            for d in [F32, F16] {
                assert!(WGMMA.iter().any(|probe| (probe.n, probe.d) == (n, d)), "{n} {d}");
            }
        }
    }
}
