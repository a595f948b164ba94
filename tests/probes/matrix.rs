//! `ldmatrix`, `mma` and `wmma`: every register of every lane against the maps of `layout`, and exact products.

use ferrotile::{Element, F8E4M3, F8E5M2, Float, KernelParam};
use half::{bf16, f16};
use layout::Arch;
use layout::fragment::{self, WmmaShape};
use libtest_mimic::Failed;
use variants::probe::{LDMATRIX, LDMATRIX_COLUMNS, LDMATRIX_ROWS, Matrix, STMATRIX, WMMA};

use crate::{POISON, Probe, Test, WARP, expect_equal, expect_lanes, one_warp};

pub(crate) const TESTS: &[Test] = &[
    Test::new("ldmatrix_x1", |probe| ldmatrix(probe, 1, false)),
    Test::new("ldmatrix_x1_trans", |probe| ldmatrix(probe, 1, true)),
    Test::new("ldmatrix_x2", |probe| ldmatrix(probe, 2, false)),
    Test::new("ldmatrix_x2_trans", |probe| ldmatrix(probe, 2, true)),
    Test::new("ldmatrix_x4", |probe| ldmatrix(probe, 4, false)),
    Test::new("ldmatrix_x4_trans", |probe| ldmatrix(probe, 4, true)),
    Test::new("stmatrix_x1", |probe| stmatrix(probe, 1, false)).since(Arch::Sm90a),
    Test::new("stmatrix_x1_trans", |probe| stmatrix(probe, 1, true)).since(Arch::Sm90a),
    Test::new("stmatrix_x2", |probe| stmatrix(probe, 2, false)).since(Arch::Sm90a),
    Test::new("stmatrix_x2_trans", |probe| stmatrix(probe, 2, true)).since(Arch::Sm90a),
    Test::new("stmatrix_x4", |probe| stmatrix(probe, 4, false)).since(Arch::Sm90a),
    Test::new("stmatrix_x4_trans", |probe| stmatrix(probe, 4, true)).since(Arch::Sm90a),
    Test::new("mma_m16n8k16_f16", mma::<f16>),
    Test::new("mma_m16n8k16_bf16", mma::<bf16>),
    Test::new("mma_m16n8k8_tf32", mma_tf32),
    Test::new("mma_m16n8k32_e4m3_e4m3", mma_fp8::<F8E4M3>).since(Arch::Sm89),
    Test::new("mma_m16n8k32_e4m3_e5m2", mma_fp8::<F8E5M2>).since(Arch::Sm89),
    Test::new("mma_from_ldmatrix_f16", mma_from_ldmatrix::<f16>),
    Test::new("mma_from_ldmatrix_bf16", mma_from_ldmatrix::<bf16>),
];

/// A 16-bit type that represents small integers exactly.
trait Half: Element {
    const NAME: &'static str;

    /// The registers of a factor of `wmma`, of which `distinct` hold different elements.
    fn wmma_registers(distinct: u32) -> u32;

    fn bits_of(integer: i32) -> u16;
}

impl Half for f16 {
    const NAME: &'static str = "f16";

    fn wmma_registers(_distinct: u32) -> u32 {
        8
    }

    fn bits_of(integer: i32) -> u16 {
        f16::from_f32(integer as f32).to_bits()
    }
}

impl Half for bf16 {
    const NAME: &'static str = "bf16";

    fn wmma_registers(distinct: u32) -> u32 {
        distinct
    }

    fn bits_of(integer: i32) -> u16 {
        bf16::from_f32(integer as f32).to_bits()
    }
}

/// Integers from -8 to 8 without a pattern that a wrong map could keep; `seed` tells matrices apart.
pub(crate) fn entry(seed: u32, row: u32, column: u32) -> i32 {
    let hash = (seed * 1_000_003 + row * 8191 + column).wrapping_mul(2_654_435_761) >> 16;
    (hash % 17) as i32 - 8
}

/// The element of `A B + C` with entries of three seeds.
fn product(k: u32, a: impl Fn(u32) -> i32, b: impl Fn(u32) -> i32, c: i32) -> f32 {
    ((0..k).map(|k| a(k) * b(k)).sum::<i32>() + c) as f32
}

fn ldmatrix(probe: &Probe<'_>, registers: u32, transposed: bool) -> Result<(), Failed> {
    let value = |row: u32, column: u32| row * LDMATRIX_COLUMNS + column;
    let input: Vec<u16> = (0..LDMATRIX_ROWS * LDMATRIX_COLUMNS).map(|i| i as u16).collect();
    let buffer = probe.upload(&input)?;
    for unit in 0..LDMATRIX_COLUMNS / 8 {
        let got = probe.run(&one_warp(&LDMATRIX), 32 * registers as usize, &[&buffer.as_raw(), &unit])?;
        expect_lanes(&got, registers as usize, |lane| {
            let half = |matrix: u32, half: u32| {
                let (row, column) = fragment::ldmatrix(lane, half);
                let (row, column) = if transposed { (column, row) } else { (row, column) };
                value(matrix * 8 + row, unit * 8 + column)
            };
            (0..registers).map(|matrix| half(matrix, 0) | half(matrix, 1) << 16).collect()
        })?;
    }
    Ok(())
}

fn stmatrix(probe: &Probe<'_>, matrices: u32, transposed: bool) -> Result<(), Failed> {
    let value = |matrix: u32, row: u32, column: u32| matrix * 1000 + row * 8 + column + 1;
    let register = |lane: u32, matrix: u32| {
        let bits = |half| {
            let (row, column) = fragment::ldmatrix(lane, half);
            if transposed { value(matrix, column, row) } else { value(matrix, row, column) }
        };
        bits(0) | bits(1) << 16
    };
    let input: Vec<u32> = (0..32).flat_map(|lane| (0..matrices).map(move |matrix| register(lane, matrix))).collect();
    let buffer = probe.upload(&input)?;
    let got = probe.run(&one_warp(&STMATRIX), 32 * matrices as usize, &[&buffer.as_raw()])?;
    let expected: Vec<u32> = (0..32 * matrices)
        .map(|word| (word / 32, word % 32 / 4, word % 4 * 2))
        .map(|(matrix, row, column)| value(matrix, row, column) | value(matrix, row, column + 1) << 16)
        .collect();
    expect_equal(&got, &expected, |at| format!("matrix {}, row {}, word {}", at / 32, at % 32 / 4, at % 4))
}

fn mma<T: Half>(probe: &Probe<'_>) -> Result<(), Failed> {
    for seed in 0..8 {
        let [a, b, c] = [3 * seed, 3 * seed + 1, 3 * seed + 2];
        let matrix = |seed, rows: u32, columns: u32| -> Vec<i32> {
            (0..rows * columns).map(|i| entry(seed, i / columns, i % columns)).collect()
        };
        let halves = |values: Vec<i32>| -> Vec<u16> { values.into_iter().map(T::bits_of).collect() };
        let a_buffer = probe.upload(&halves(matrix(a, 16, 16)))?;
        let b_buffer = probe.upload(&halves(matrix(b, 16, 8)))?;
        let c_values: Vec<f32> = matrix(c, 16, 8).into_iter().map(|value| value as f32).collect();
        let c_buffer = probe.upload(&c_values)?;
        let params: [&dyn KernelParam; 3] = [&a_buffer.as_raw(), &b_buffer.as_raw(), &c_buffer.as_raw()];
        let got = probe.run(&WARP, 16 * 8, &params)?;
        let expected: Vec<u32> = (0..16 * 8)
            .map(|i| (i / 8, i % 8))
            .map(|(row, column)| product(16, |k| entry(a, row, k), |k| entry(b, k, column), entry(c, row, column)))
            .map(f32::to_bits)
            .collect();
        expect_equal(&got, &expected, |at| format!("row {}, column {}", at / 8, at % 8))?;
    }
    Ok(())
}

/// Integers up to 8 are values of both FP8 types, and their sums are exact.
fn mma_fp8<B: Float>(probe: &Probe<'_>) -> Result<(), Failed> {
    for seed in 0..8 {
        let [a, b, c] = [3 * seed, 3 * seed + 1, 3 * seed + 2];
        let values = |seed, rows: u32, columns: u32| {
            (0..rows * columns).map(move |i| f64::from(entry(seed, i / columns, i % columns)))
        };
        // E5M2 has three bits: 5 and 7 become 4 or 6 and 8.
        let stored = |value: f64| B::from_f64(value);
        let a_buffer = probe.upload(&values(a, 16, 32).map(F8E4M3::from_f64).collect::<Vec<_>>())?;
        let b_buffer = probe.upload(&values(b, 32, 8).map(stored).collect::<Vec<_>>())?;
        let c_buffer = probe.upload(&values(c, 16, 8).map(|value| value as f32).collect::<Vec<_>>())?;
        let params: [&dyn KernelParam; 3] = [&a_buffer.as_raw(), &b_buffer.as_raw(), &c_buffer.as_raw()];
        let got = probe.run(&WARP, 16 * 8, &params)?;
        let b_entry = |k: u32, column: u32| stored(f64::from(entry(b, k, column))).to_f64() as i32;
        let expected: Vec<u32> = (0..16 * 8)
            .map(|i| (i / 8, i % 8))
            .map(|(row, column)| product(32, |k| entry(a, row, k), |k| b_entry(k, column), entry(c, row, column)))
            .map(f32::to_bits)
            .collect();
        expect_equal(&got, &expected, |at| format!("row {}, column {}", at / 8, at % 8))?;
    }
    Ok(())
}

fn mma_tf32(probe: &Probe<'_>) -> Result<(), Failed> {
    for seed in 0..8 {
        let [a, b, c] = [3 * seed, 3 * seed + 1, 3 * seed + 2];
        let matrix =
            |seed, rows: u32| -> Vec<f32> { (0..rows * 8).map(|i| entry(seed, i / 8, i % 8) as f32).collect() };
        let (a_buffer, b_buffer) = (probe.upload(&matrix(a, 16))?, probe.upload(&matrix(b, 8))?);
        let c_buffer = probe.upload(&matrix(c, 16))?;
        let params: [&dyn KernelParam; 3] = [&a_buffer.as_raw(), &b_buffer.as_raw(), &c_buffer.as_raw()];
        let got = probe.run(&WARP, 16 * 8, &params)?;
        let expected: Vec<u32> = (0..16 * 8)
            .map(|i| (i / 8, i % 8))
            .map(|(row, column)| product(8, |k| entry(a, row, k), |k| entry(b, k, column), entry(c, row, column)))
            .map(f32::to_bits)
            .collect();
        expect_equal(&got, &expected, |at| format!("row {}, column {}", at / 8, at % 8))?;
    }
    Ok(())
}

fn mma_from_ldmatrix<T: Half>(probe: &Probe<'_>) -> Result<(), Failed> {
    let tile: Vec<u16> = (0..LDMATRIX_ROWS * LDMATRIX_COLUMNS)
        .map(|i| T::bits_of(entry(77, i / LDMATRIX_COLUMNS, i % LDMATRIX_COLUMNS)))
        .collect();
    let buffer = probe.upload(&tile)?;
    for k_step in 0..LDMATRIX_COLUMNS / 16 {
        let got = probe.run(&one_warp(&LDMATRIX), 8 * 32, &[&buffer.as_raw(), &k_step])?;
        let at = |row: u32| move |k: u32| entry(77, row, k_step * 16 + k);
        expect_lanes(&got, 8, |lane| {
            let element = |register: u32| {
                let (row, column) = fragment::mma_m16n8k16_c(lane, register % 4);
                product(16, at(row), at(16 + column + register / 4 * 8), 0).to_bits()
            };
            (0..8).map(element).collect()
        })?;
    }
    Ok(())
}

/// The argument of a `wmma` probe.
#[repr(C)]
struct WmmaMatrices {
    a: u64,
    b: u64,
    c: u64,
    fragments: u64,
    d_by_shared: u64,
    d_by_global: u64,
}

// SAFETY: `repr(C)`, six device addresses, as the probes declare it.
unsafe impl KernelParam for WmmaMatrices {}

/// A case of `wmma`: the shape and the orders of A and B.
#[derive(Clone, Copy)]
struct Wmma {
    shape: WmmaShape,
    a_row_major: bool,
    b_row_major: bool,
}

/// The tests of all `wmma` probes: they differ in shape, type and orders, which their names say.
pub(crate) fn wmma_tests() -> impl Iterator<Item = &'static Test> {
    const fn tests<T: Half, const SHAPE: usize>(names: [&'static str; 4]) -> [Test; 4] {
        [
            Test::new(names[0], wmma::<T, SHAPE, true, true>),
            Test::new(names[1], wmma::<T, SHAPE, true, false>),
            Test::new(names[2], wmma::<T, SHAPE, false, true>),
            Test::new(names[3], wmma::<T, SHAPE, false, false>),
        ]
    }
    static WMMA_TESTS: [[Test; 4]; 6] = [
        tests::<f16, 0>([
            "wmma_m16n16k16_f16_row_row",
            "wmma_m16n16k16_f16_row_col",
            "wmma_m16n16k16_f16_col_row",
            "wmma_m16n16k16_f16_col_col",
        ]),
        tests::<f16, 1>([
            "wmma_m32n8k16_f16_row_row",
            "wmma_m32n8k16_f16_row_col",
            "wmma_m32n8k16_f16_col_row",
            "wmma_m32n8k16_f16_col_col",
        ]),
        tests::<f16, 2>([
            "wmma_m8n32k16_f16_row_row",
            "wmma_m8n32k16_f16_row_col",
            "wmma_m8n32k16_f16_col_row",
            "wmma_m8n32k16_f16_col_col",
        ]),
        tests::<bf16, 0>([
            "wmma_m16n16k16_bf16_row_row",
            "wmma_m16n16k16_bf16_row_col",
            "wmma_m16n16k16_bf16_col_row",
            "wmma_m16n16k16_bf16_col_col",
        ]),
        tests::<bf16, 1>([
            "wmma_m32n8k16_bf16_row_row",
            "wmma_m32n8k16_bf16_row_col",
            "wmma_m32n8k16_bf16_col_row",
            "wmma_m32n8k16_bf16_col_col",
        ]),
        tests::<bf16, 2>([
            "wmma_m8n32k16_bf16_row_row",
            "wmma_m8n32k16_bf16_row_col",
            "wmma_m8n32k16_bf16_col_row",
            "wmma_m8n32k16_bf16_col_col",
        ]),
    ];
    WMMA_TESTS.iter().flatten()
}

fn wmma<T: Half, const SHAPE: usize, const A_ROW: bool, const B_ROW: bool>(probe: &Probe<'_>) -> Result<(), Failed> {
    let case = Wmma { shape: WmmaShape::ALL[SHAPE], a_row_major: A_ROW, b_row_major: B_ROW };
    case.check_fragments::<T>(probe)?;
    for seed in 0..4 {
        case.check_product::<T>(probe, seed)?;
    }
    Ok(())
}

/// What a `wmma` probe wrote.
struct WmmaResult {
    fragments: Vec<u32>,
    d_by_shared: Vec<u32>,
    d_by_global: Vec<u32>,
}

/// What stands between the rows of C, as f32.
const PADDING: f32 = -12_345.0;

impl Wmma {
    /// The registers of A, B and C in one lane.
    fn registers<T: Half>(self) -> [u32; 3] {
        let [a, b] = [self.shape.a_registers(), self.shape.b_registers()].map(T::wmma_registers);
        [a, b, WmmaShape::C_REGISTERS]
    }

    fn a(self) -> Matrix {
        Matrix::wmma_a(self.shape, self.a_row_major)
    }

    fn b(self) -> Matrix {
        Matrix::wmma_b(self.shape, self.b_row_major)
    }

    /// C, and D as it is stored by way of shared memory.
    fn c(self) -> Matrix {
        Matrix::wmma_c(self.shape, self.a_row_major)
    }

    /// D as it is stored to global memory.
    fn d(self) -> Matrix {
        Matrix::wmma_c(self.shape, self.b_row_major)
    }

    fn run<T: Half>(
        self,
        probe: &Probe<'_>,
        a: impl Fn(u32, u32) -> u16,
        b: impl Fn(u32, u32) -> u16,
        c: impl Fn(u32, u32) -> f32,
    ) -> Result<WmmaResult, Failed> {
        let a = probe.upload(&in_memory(self.a(), u16::MAX, a))?;
        let b = probe.upload(&in_memory(self.b(), u16::MAX, b))?;
        let c = probe.upload(&in_memory(self.c(), PADDING, c))?;
        let registers = self.registers::<T>().iter().sum::<u32>();
        let fragments = probe.output(32 * registers as usize)?;
        let d_by_shared = probe.output(self.c().len_elems() as usize)?;
        let d_by_global = probe.output(self.d().len_elems() as usize)?;
        let matrices = WmmaMatrices {
            a: a.as_raw(),
            b: b.as_raw(),
            c: c.as_raw(),
            fragments: fragments.as_raw(),
            d_by_shared: d_by_shared.as_raw(),
            d_by_global: d_by_global.as_raw(),
        };
        probe.launch(&one_warp(&WMMA), &[&matrices])?;
        Ok(WmmaResult {
            fragments: probe.read(&fragments)?,
            d_by_shared: probe.read(&d_by_shared)?,
            d_by_global: probe.read(&d_by_global)?,
        })
    }

    /// Every element tells where it is, as bits; the loads do not look at them.
    fn check_fragments<T: Half>(self, probe: &Probe<'_>) -> Result<(), Failed> {
        let shape = self.shape;
        let place = |row: u32, column: u32| (row * 64 + column) as u16;
        let got = self.run::<T>(probe, place, place, |row, column| place(row, column).into())?.fragments;
        let pair = |element: &dyn Fn(u32) -> (u32, u32)| {
            let bits = |half| u32::from(place(element(half).0, element(half).1));
            bits(0) | bits(1) << 16
        };
        let [of_a, of_b, of_c] = self.registers::<T>();
        expect_lanes(&got, (of_a + of_b + of_c) as usize, |lane| {
            let a = (0..of_a).map(|register| pair(&|half| shape.a(lane, register % shape.a_registers(), half)));
            let b = (0..of_b).map(|register| pair(&|half| shape.b(lane, register % shape.b_registers(), half)));
            let c = (0..of_c).map(|register| {
                let (row, column) = shape.c(lane, register);
                f32::from(place(row, column)).to_bits()
            });
            a.chain(b).chain(c).collect()
        })
    }

    /// The product of small integers is exact; what is between the rows of D stays.
    fn check_product<T: Half>(self, probe: &Probe<'_>, seed: u32) -> Result<(), Failed> {
        let [a, b, c] = [3 * seed, 3 * seed + 1, 3 * seed + 2];
        let half = |seed| move |row, column| T::bits_of(entry(seed, row, column));
        let got = self.run::<T>(probe, half(a), half(b), |row, column| entry(c, row, column) as f32)?;
        let d = |row, column| {
            let value = product(self.shape.k(), |k| entry(a, row, k), |k| entry(b, k, column), entry(c, row, column));
            value.to_bits()
        };
        let what = |by: &'static str| move |at| format!("{} D by {by}, word {at}", T::NAME);
        expect_equal(&got.d_by_shared, &in_memory(self.c(), PADDING.to_bits(), d), what("shared memory"))?;
        expect_equal(&got.d_by_global, &in_memory(self.d(), POISON, d), what("global memory"))
    }
}

/// A matrix as it lies in memory, with `padding` between its rows or columns.
fn in_memory<T: Copy>(matrix: Matrix, padding: T, element: impl Fn(u32, u32) -> T) -> Vec<T> {
    let mut memory = vec![padding; matrix.len_elems() as usize];
    for row in 0..matrix.rows {
        for column in 0..matrix.columns {
            memory[matrix.index(row, column) as usize] = element(row, column);
        }
    }
    memory
}
