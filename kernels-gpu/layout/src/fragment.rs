//! Which element of a matrix each register of each lane holds, for the tensor-core instructions of sm_80 and later.
//!
//! A warp holds a matrix in pieces, its fragments: some registers in each of 32 lanes. A 32-bit register has two 16-bit
//! halves. Every map below goes from (lane, register, half) to the (row, column) of the element.
//!
//! Let `group = lane / 4` and `thread = lane % 4`. The maps of 16-bit elements and of accumulators are made of one 8x8
//! matrix: a lane has the row `group` and the columns `2 * thread` and `2 * thread + 1`. `ldmatrix` delivers the same.
//! TF32 elements fill a register each; of their 8x4 matrix a lane has the row `group` and the column `thread`.
//!
//! The maps of `mma`, `ldmatrix`, `stmatrix` and `wgmma` are those of the PTX ISA, and kernels may rely on them
//! ("Matrix fragments for mma.m16n8k16", ".. mma.m16n8k8", "Register fragments and shared memory matrix layouts" of
//! `wgmma`).
//!
//! Those of `wmma` ([`WmmaShape::a`], [`WmmaShape::b`], [`WmmaShape::c`]) are left open by the ISA, and no kernel
//! relies on them. The ones here are what the compiler of CUDA 13 makes of PTX of sm_80, sm_89 and sm_90a, measured on
//! sm_90. The emulator has them too, and the probes compare every register with them.

/// The element of an 8x8 matrix that `ldmatrix` puts into `half` of one register of `lane`, as (row, column).
///
/// The transposing form gives the same with row and column exchanged.
#[inline(always)]
pub const fn ldmatrix(lane: u32, half: u32) -> (u32, u32) {
    (lane / 4, lane % 4 * 2 + half)
}

/// The matrix and the row in it whose address `lane` gives to `ldmatrix`, as (matrix, row).
///
/// Lanes 0 to 7 serve matrix 0, lanes 8 to 15 matrix 1 and so on; the forms with fewer matrices do not read the rest.
#[inline(always)]
pub const fn ldmatrix_source(lane: u32) -> (u32, u32) {
    (lane / 8, lane % 8)
}

/// The element of A, 16x16, in `half` of `register` 0 to 3 of `mma.m16n8k16`, as (row, k).
#[inline(always)]
pub const fn mma_m16n8k16_a(lane: u32, register: u32, half: u32) -> (u32, u32) {
    let (row, k) = ldmatrix(lane, half);
    (row + register % 2 * 8, k + register / 2 * 8)
}

/// The element of B, 16x8, in `half` of `register` 0 or 1 of `mma.m16n8k16`, as (k, column).
#[inline(always)]
pub const fn mma_m16n8k16_b(lane: u32, register: u32, half: u32) -> (u32, u32) {
    let (column, k) = ldmatrix(lane, half);
    (k + register * 8, column)
}

/// The element of C and D, 16x8 of f32, in `register` 0 to 3 of every `mma.m16n8`, as (row, column).
#[inline(always)]
pub const fn mma_m16n8k16_c(lane: u32, register: u32) -> (u32, u32) {
    let (row, column) = ldmatrix(lane, register % 2);
    (row + register / 2 * 8, column)
}

/// The element of A, 16x8 of tf32, in `register` 0 to 3 of `mma.m16n8k8`, as (row, k).
#[inline(always)]
pub const fn mma_m16n8k8_a(lane: u32, register: u32) -> (u32, u32) {
    (lane / 4 + register % 2 * 8, lane % 4 + register / 2 * 4)
}

/// The element of B, 8x8 of tf32, in `register` 0 or 1 of `mma.m16n8k8`, as (k, column).
#[inline(always)]
pub const fn mma_m16n8k8_b(lane: u32, register: u32) -> (u32, u32) {
    (lane % 4 + register * 4, lane / 4)
}

/// The element of A, 16x32 of 8 bits, in `byte` 0 to 3 of `register` 0 to 3 of `mma.m16n8k32`, as (row, k).
#[inline(always)]
pub const fn mma_m16n8k32_a(lane: u32, register: u32, byte: u32) -> (u32, u32) {
    (lane / 4 + register % 2 * 8, lane % 4 * 4 + byte + register / 2 * 16)
}

/// The element of B, 32x8 of 8 bits, in `byte` 0 to 3 of `register` 0 or 1 of `mma.m16n8k32`, as (k, column).
#[inline(always)]
pub const fn mma_m16n8k32_b(lane: u32, register: u32, byte: u32) -> (u32, u32) {
    (lane % 4 * 4 + byte + register * 16, lane / 4)
}

/// The element of D, 64 rows of f32, in `register` of a thread of the warpgroup of `wgmma`, as (row, column).
///
/// Each warp has 16 rows, as four registers of [`mma_m16n8k16_c`] for every 8 columns.
#[inline(always)]
pub const fn wgmma_d(thread: u32, register: u32) -> (u32, u32) {
    let (row, column) = mma_m16n8k16_c(thread % 32, register % 4);
    (thread / 32 * 16 + row, register / 4 * 8 + column)
}

/// The element of D, 64 rows of f16, in `half` of `register` of a thread of the warpgroup of `wgmma`, as (row, column).
#[inline(always)]
pub const fn wgmma_d_f16(thread: u32, register: u32, half: u32) -> (u32, u32) {
    wgmma_d(thread, register * 2 + half)
}

/// The element of A, as (row, k), in `part` of `register` 0 to 3 of a thread of the warpgroup of `wgmma`. A has 64 rows
/// of 32 bytes, and elements of `element_bytes` bytes. A register has 4 / `element_bytes` parts, lowest bits first.
///
/// For 16-bit types each warp has 16 rows as in [`mma_m16n8k16_a`]; for the others the same bytes hold fewer or more
/// elements.
#[inline(always)]
pub const fn wgmma_a(thread: u32, register: u32, part: u32, element_bytes: u32) -> (u32, u32) {
    let parts = 4 / element_bytes;
    let row = thread / 32 * 16 + thread % 32 / 4 + register % 2 * 8;
    (row, (thread % 4 + register / 2 * 4) * parts + part)
}

/// A shape of `wmma`: D, m x n, is A, m x k, times B, k x n, plus C. Its maps are measured: the ISA leaves them open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WmmaShape {
    /// 16x16 from 16x16 and 16x16.
    M16N16K16,
    /// 32x8 from 32x16 and 16x8.
    M32N8K16,
    /// 8x32 from 8x16 and 16x32: the transpose of [`WmmaShape::M32N8K16`], register by register.
    M8N32K16,
}

impl WmmaShape {
    /// Every shape.
    pub const ALL: [WmmaShape; 3] = [WmmaShape::M16N16K16, WmmaShape::M32N8K16, WmmaShape::M8N32K16];

    /// The registers of C and D in one lane.
    pub const C_REGISTERS: u32 = 8;

    /// Rows of A, C and D.
    pub const fn m(self) -> u32 {
        match self {
            WmmaShape::M16N16K16 => 16,
            WmmaShape::M32N8K16 => 32,
            WmmaShape::M8N32K16 => 8,
        }
    }

    /// Columns of B, C and D.
    pub const fn n(self) -> u32 {
        match self {
            WmmaShape::M16N16K16 => 16,
            WmmaShape::M32N8K16 => 8,
            WmmaShape::M8N32K16 => 32,
        }
    }

    /// Columns of A and rows of B.
    pub const fn k(self) -> u32 {
        16
    }

    /// The registers of A in one lane that hold different elements. The f16 forms have eight registers: the rest repeat
    /// them in order.
    pub const fn a_registers(self) -> u32 {
        self.m() * self.k() / 64
    }

    /// The registers of B in one lane that hold different elements, as [`WmmaShape::a_registers`].
    pub const fn b_registers(self) -> u32 {
        self.n() * self.k() / 64
    }

    /// The element of A in `half` of `register` of `lane`, as (row, k).
    #[inline(always)]
    pub const fn a(self, lane: u32, register: u32, half: u32) -> (u32, u32) {
        match self {
            WmmaShape::M16N16K16 => mma_m16n8k16_a(lane, register, half),
            WmmaShape::M32N8K16 => {
                let (row, k) = mma_m16n8k16_a(lane, register % 4, half);
                (row + register / 4 * 16, k)
            }
            WmmaShape::M8N32K16 => transpose(WmmaShape::M32N8K16.b(lane, register, half)),
        }
    }

    /// The element of B in `half` of `register` of `lane`, as (k, column).
    #[inline(always)]
    pub const fn b(self, lane: u32, register: u32, half: u32) -> (u32, u32) {
        match self {
            WmmaShape::M16N16K16 => {
                let (k, column) = mma_m16n8k16_b(lane, register % 2, half);
                (k, column + register / 2 * 8)
            }
            WmmaShape::M32N8K16 => mma_m16n8k16_b(lane, register, half),
            WmmaShape::M8N32K16 => transpose(WmmaShape::M32N8K16.a(lane, register, half)),
        }
    }

    /// The element of C and D, in f32, in `register` of `lane`, as (row, column).
    #[inline(always)]
    pub const fn c(self, lane: u32, register: u32) -> (u32, u32) {
        match self {
            WmmaShape::M16N16K16 => {
                let (row, column) = mma_m16n8k16_c(lane, register % 4);
                (row, column + register / 4 * 8)
            }
            WmmaShape::M32N8K16 => {
                let (row, column) = mma_m16n8k16_c(lane, register % 4);
                (row + register / 4 * 16, column)
            }
            WmmaShape::M8N32K16 => transpose(WmmaShape::M32N8K16.c(lane, register)),
        }
    }
}

const fn transpose((row, column): (u32, u32)) -> (u32, u32) {
    (column, row)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts that the places cover a `rows` x `columns` matrix, each element once.
    fn assert_covers(what: &str, rows: u32, columns: u32, places: impl Iterator<Item = (u32, u32)>) {
        let mut seen = [[false; 32]; 32];
        let mut count = 0;
        for (row, column) in places {
            assert!(row < rows && column < columns, "{what}: ({row}, {column}) is outside {rows}x{columns}");
            assert!(!seen[row as usize][column as usize], "{what}: ({row}, {column}) is held twice");
            seen[row as usize][column as usize] = true;
            count += 1;
        }
        assert_eq!(count, rows * columns, "{what}");
    }

    /// All (lane, register, half) of a fragment with `registers` registers of two halves.
    fn halves(registers: u32) -> impl Iterator<Item = (u32, u32, u32)> {
        (0..32).flat_map(move |lane| {
            (0..registers).flat_map(move |register| (0..2).map(move |half| (lane, register, half)))
        })
    }

    /// All (lane, register, byte) of a fragment with `registers` registers of four bytes.
    fn bytes(registers: u32) -> impl Iterator<Item = (u32, u32, u32)> {
        (0..32).flat_map(move |lane| {
            (0..registers).flat_map(move |register| (0..4).map(move |byte| (lane, register, byte)))
        })
    }

    /// All (lane, register) of a fragment with `registers` registers of one element.
    fn words(registers: u32) -> impl Iterator<Item = (u32, u32)> {
        (0..32).flat_map(move |lane| (0..registers).map(move |register| (lane, register)))
    }

    #[test]
    fn every_element_is_held_by_exactly_one_register() {
        assert_covers("ldmatrix", 8, 8, halves(1).map(|(lane, _, half)| ldmatrix(lane, half)));
        assert_covers("mma a", 16, 16, halves(4).map(|(lane, register, half)| mma_m16n8k16_a(lane, register, half)));
        assert_covers("mma b", 16, 8, halves(2).map(|(lane, register, half)| mma_m16n8k16_b(lane, register, half)));
        assert_covers("mma c", 16, 8, words(4).map(|(lane, register)| mma_m16n8k16_c(lane, register)));
        assert_covers("tf32 a", 16, 8, words(4).map(|(lane, register)| mma_m16n8k8_a(lane, register)));
        assert_covers("tf32 b", 8, 8, words(2).map(|(lane, register)| mma_m16n8k8_b(lane, register)));
        assert_covers("fp8 a", 16, 32, bytes(4).map(|(lane, register, byte)| mma_m16n8k32_a(lane, register, byte)));
        assert_covers("fp8 b", 32, 8, bytes(2).map(|(lane, register, byte)| mma_m16n8k32_b(lane, register, byte)));
        for s in WmmaShape::ALL {
            let a = halves(s.a_registers()).map(|(lane, register, half)| s.a(lane, register, half));
            assert_covers("wmma a", s.m(), s.k(), a);
            let b = halves(s.b_registers()).map(|(lane, register, half)| s.b(lane, register, half));
            assert_covers("wmma b", s.k(), s.n(), b);
            let c = words(WmmaShape::C_REGISTERS).map(|(lane, register)| s.c(lane, register));
            assert_covers("wmma c", s.m(), s.n(), c);
        }
    }

    #[test]
    fn every_element_of_wgmma_is_held_by_exactly_one_register() {
        // By warps of 16 rows and blocks of 32 columns, the most that the check takes.
        for warp in 0..4 {
            let threads = move || warp * 32..warp * 32 + 32;
            let in_warp = move |(row, column): (u32, u32)| (row - warp * 16, column);
            for block in 0..8 {
                let in_block = move |(row, column): (u32, u32)| (row, column - block * 32);
                let d = threads().flat_map(|thread| (block * 16..block * 16 + 16).map(move |r| wgmma_d(thread, r)));
                assert_covers("wgmma d", 16, 32, d.map(in_warp).map(in_block));
                let registers = || block * 8..block * 8 + 8;
                let d = threads().flat_map(|thread| {
                    registers().flat_map(move |r| (0..2).map(move |half| wgmma_d_f16(thread, r, half)))
                });
                assert_covers("wgmma d of f16", 16, 32, d.map(in_warp).map(in_block));
            }
            for element_bytes in [1, 2, 4] {
                let a = threads().flat_map(|thread| {
                    (0..4).flat_map(move |r| (0..4 / element_bytes).map(move |p| wgmma_a(thread, r, p, element_bytes)))
                });
                assert_covers("wgmma a", 16, 32 / element_bytes, a.map(in_warp));
            }
        }
    }

    #[test]
    fn each_warp_of_wgmma_holds_a_as_mma_does() {
        for (lane, register, half) in halves(4) {
            assert_eq!(wgmma_a(lane, register, half, 2), mma_m16n8k16_a(lane, register, half));
        }
        // One place of each other width, from the figures of the ISA.
        assert_eq!(wgmma_a(5, 3, 0, 4), (9, 5));
        assert_eq!(wgmma_a(38, 2, 3, 1), (17, 27));
    }

    #[test]
    fn every_ldmatrix_row_has_one_lane() {
        assert_covers("ldmatrix source", 4, 8, (0..32).map(ldmatrix_source));
    }

    #[test]
    fn two_accumulators_are_one_register_of_the_next_a() {
        // What lets P = softmax(Q K^T) be the A operand of P V without leaving the registers: of two m16n8 side by
        // side, the pair of accumulators (2r, 2r + 1) is where the two halves of register r of A are.
        for (lane, register, half) in halves(4) {
            let accumulator = register * 2 + half;
            let (row, column) = mma_m16n8k16_c(lane, accumulator % 4);
            assert_eq!(mma_m16n8k16_a(lane, register, half), (row, column + accumulator / 4 * 8));
        }
    }

    #[test]
    fn one_ldmatrix_is_b_of_two_mma_side_by_side() {
        // Rows of memory are columns of B; matrices 0 and 1 are k 0 to 7 and 8 to 15 of columns 0 to 7, matrices 2 and
        // 3 of columns 8 to 15.
        for (lane, register, half) in halves(4) {
            let (row, place) = ldmatrix(lane, half);
            let (column, k) = (row + register / 2 * 8, place + register % 2 * 8);
            let (k_of_b, column_of_b) = mma_m16n8k16_b(lane, register % 2, half);
            assert_eq!((k, column), (k_of_b, column_of_b + register / 2 * 8));
        }
    }

    #[test]
    fn m8n32k16_is_the_transpose_of_m32n8k16() {
        let (wide, tall) = (WmmaShape::M8N32K16, WmmaShape::M32N8K16);
        assert_eq!((wide.m(), wide.n()), (tall.n(), tall.m()));
        assert_eq!((wide.a_registers(), wide.b_registers()), (tall.b_registers(), tall.a_registers()));
        // One measured register of each fragment, so that a change of the maps of M32N8K16 does not pass through.
        assert_eq!(wide.a(1, 1, 1), (0, 11));
        assert_eq!(wide.b(4, 4, 0), (0, 17));
        assert_eq!(wide.c(5, 3), (3, 9));
    }
}
