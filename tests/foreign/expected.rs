//! The kernels, their launches, and what follows from their inputs. `record.py` has the same table.

use crate::Argument::{F16, F32, F64, Float, I32, InOut, Out, U8, U32, U64, Unused, Word};
use crate::Near::{Equal, Within};
use crate::{Argument, Case, Near, floats, ramp, wide};

const fn case(
    file: &'static str,
    kernel: &'static str,
    blocks: [u32; 2],
    threads: [u32; 2],
    arguments: &'static [Argument],
    (near, expected): (Near, fn() -> Vec<u8>),
) -> Case {
    let (grid, block) = ([blocks[0], blocks[1], 1], [threads[0], threads[1], 1]);
    Case { file, kernel, grid, block, shared_bytes: 0, arguments, near, expected }
}

/// A kernel of Triton, of `warps` warps.
const fn triton(
    kernel: &'static str,
    blocks: [u32; 2],
    warps: u32,
    shared_bytes: u32,
    arguments: &'static [Argument],
    expected: (Near, fn() -> Vec<u8>),
) -> Case {
    Case { shared_bytes, ..case(kernel, kernel, blocks, [32 * warps, 1], arguments, expected) }
}

/// Relative errors that functions of a few roundings of f32 have.
const SMALL: Near = Within(1e-6);

pub(crate) const CASES: &[Case] = &[
    case(
        "saxpy",
        "saxpy",
        [2, 1],
        [128, 1],
        &[F32(1000, 1), InOut(1000, 2), Float(1.5), Word(1000)],
        (Equal(0x603a_7d6d_699f_1ff5), || {
            singles(floats(1000, 1).iter().zip(floats(1000, 2)).map(|(x, y)| 1.5 * x + y))
        }),
    ),
    case("gelu", "gelu", [2, 1], [64, 1], &[F32(400, 1), Out(400), Word(100)], (SMALL, gelu)),
    case(
        "reduce",
        "reduce",
        [4, 1],
        [128, 1],
        &[F32(2000, 1), Out(1), Word(2000)],
        (Equal(0x4cde_587f_9d91_de58), || singles([floats(2000, 1).iter().sum()])),
    ),
    case("softmax", "softmax", [5, 1], [128, 1], &[F32(1000, 1), Out(1000), Word(200)], (SMALL, softmax)),
    case(
        "transpose",
        "transpose",
        [2, 2],
        [32, 8],
        &[F32(2000, 1), Out(2000), Word(40), Word(50)],
        (Equal(0xcfaf_807b_f0c9_7d67), transposed),
    ),
    case(
        "matmul",
        "matmul",
        [2, 2],
        [16, 16],
        &[F32(1024, 1), F32(1024, 2), Out(1024), Word(32)],
        (Equal(0x9e52_5637_9def_90f1), || product(32, false)),
    ),
    case(
        "wmma",
        "wmma_matmul",
        [2, 2],
        [32, 1],
        &[F16(1024, 1), F16(1024, 2), Out(1024), Word(32)],
        (Equal(0x7a08_3091_3a7e_ac67), || product(32, true)),
    ),
    case(
        "half2",
        "half2_relu",
        [2, 1],
        [128, 1],
        &[F16(400, 1), F16(400, 2), Out(200), Word(200)],
        (Equal(0x47c9_bb80_04b3_1b5b), || {
            let value = |(x, y): (&f64, f64)| half::f16::from_f64((x * y + x).max(0.0)).to_le_bytes();
            floats(400, 1).iter().zip(floats(400, 2)).flat_map(value).collect()
        }),
    ),
    case(
        "histogram",
        "histogram",
        [3, 1],
        [256, 1],
        &[U8(5000, 1), Out(256), Word(5000)],
        (Equal(0xd1a5_4317_4515_ebd1), || {
            let mut counts = [0; 256];
            ramp(5000, 1).for_each(|number| counts[number as usize] += 1);
            words(counts)
        }),
    ),
    case(
        "scan",
        "scan",
        [1, 1],
        [1024, 1],
        &[I32(1024, 1), Out(1024)],
        (Equal(0x2b6c_c8cf_b76a_8293), || {
            let mut sum = 0;
            words(ramp(1024, 1).map(|number| {
                sum += number as i32 - 125;
                sum as u32
            }))
        }),
    ),
    case(
        "pipeline",
        "pipeline",
        [1, 1],
        [128, 1],
        &[F32(2048, 1), Out(2048), Word(512)],
        (Equal(0x88cc_0f64_67e7_1699), || singles(floats(2048, 1).iter().map(|x| 2.0 * x))),
    ),
    case("normalize", "normalize", [1, 1], [32, 1], &[F32(500, 1), Out(500), Word(20), Word(25)], (SMALL, normalize)),
    case(
        "collatz",
        "collatz",
        [1, 1],
        [256, 1],
        &[U32(256, 1), Out(256)],
        (Equal(0x1ead_4b70_c5f1_30c4), || {
            words(ramp(256, 1).map(|number| {
                let (mut value, mut count) = (number as u64 + 1, 0);
                while value != 1 {
                    value = if value % 2 == 1 { 3 * value + 1 } else { value / 2 };
                    count += 1;
                }
                count
            }))
        }),
    ),
    case(
        "rust",
        "happy",
        [2, 1],
        [128, 1],
        &[U32(200, 1), Out(200), Word(200)],
        (Equal(0x7fd2_3f9d_eee3_c9c0), || {
            words(ramp(200, 1).map(|number| {
                let mut value = number as u32 + 1;
                while value != 1 && value != 4 {
                    let digits = [value % 10, value / 10 % 10, value / 100];
                    value = digits.iter().map(|digit| digit * digit).sum();
                }
                value
            }))
        }),
    ),
    case(
        "rust",
        "heat",
        [2, 1],
        [128, 1],
        &[F64(200, 1), Out(400), Word(200)],
        (Equal(0x508c_d739_535e_b2d9), || {
            let x = floats(200, 1);
            let at = |at: usize| x[at.min(199)];
            let step = |i: usize| at(i) + 0.25 * (at(i.saturating_sub(1)) - 2.0 * at(i) + at(i + 1));
            (0..200).flat_map(|i| step(i).to_le_bytes()).collect()
        }),
    ),
    case(
        "rust",
        "bits",
        [1, 1],
        [128, 1],
        &[U64(128, 1), Out(256)],
        (Equal(0x4d0b_8e23_63d7_e0af), || {
            let x: Vec<u64> = ramp(128, 1).map(wide).collect();
            let value = |at: usize| {
                let other = x[at ^ 1].reverse_bits().rotate_left(at as u32);
                other ^ u64::from(x[at].count_ones()) ^ (u64::from(x[at].leading_zeros()) << 32)
            };
            (0..128).flat_map(|at| value(at).to_le_bytes()).collect()
        }),
    ),
    triton(
        "add",
        [4, 1],
        4,
        0,
        &[F32(1000, 1), F32(1000, 2), Out(1000), Word(1000), Unused, Unused],
        (Equal(0x9f6c_058e_169b_598b), || singles(floats(1000, 1).iter().zip(floats(1000, 2)).map(|(x, y)| x + y))),
    ),
    triton("row_softmax", [5, 1], 4, 16, &[F32(1000, 1), Out(1000), Word(200), Unused, Unused], (SMALL, softmax)),
    triton("layer_norm", [5, 1], 2, 8, &[F32(1000, 1), Out(1000), Word(200), Unused, Unused], (SMALL, layer_norm)),
    triton(
        "swap_axes",
        [2, 2],
        4,
        4096,
        &[F32(2000, 1), Out(2000), Word(40), Word(50), Unused, Unused],
        (Equal(0xcfaf_807b_f0c9_7d67), transposed),
    ),
    triton(
        "dot",
        [2, 2],
        4,
        4096,
        &[F16(4096, 1), F16(4096, 2), Out(4096), Word(64), Unused, Unused],
        (Equal(0x4501_2648_d290_8150), || product(64, false)),
    ),
    triton(
        "total",
        [4, 1],
        4,
        16,
        &[F32(2000, 1), Out(1), Word(2000), Unused, Unused],
        (Equal(0x4cde_587f_9d91_de58), || singles([floats(2000, 1).iter().sum()])),
    ),
];

fn singles(values: impl IntoIterator<Item = f64>) -> Vec<u8> {
    values.into_iter().flat_map(|value| (value as f32).to_le_bytes()).collect()
}

fn words(values: impl IntoIterator<Item = u32>) -> Vec<u8> {
    values.into_iter().flat_map(u32::to_le_bytes).collect()
}

fn gelu() -> Vec<u8> {
    let gelu = |x: f64| 0.5 * x * (1.0 + (0.7978845608 * (x + 0.044715 * x * x * x)).tanh());
    singles(floats(400, 1).into_iter().map(gelu))
}

/// Of five rows of 200 numbers.
fn softmax() -> Vec<u8> {
    singles(floats(1000, 1).chunks(200).flat_map(|row| {
        let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|x| (x - most).exp()).sum();
        row.iter().map(move |x| (x - most).exp() / sum).collect::<Vec<_>>()
    }))
}

/// The same rows, with their mean 0 and their variance 1.
fn layer_norm() -> Vec<u8> {
    singles(floats(1000, 1).chunks(200).flat_map(|row| {
        let mean = row.iter().sum::<f64>() / 200.0;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 200.0;
        row.iter().map(move |x| (x - mean) / (variance + 1e-5).sqrt()).collect::<Vec<_>>()
    }))
}

/// Twenty rows of 25 numbers, each divided by its root mean square.
fn normalize() -> Vec<u8> {
    singles(floats(500, 1).chunks(25).flat_map(|row| {
        let square = row.iter().map(|x| x * x).sum::<f64>() / 25.0;
        row.iter().map(move |x| x / (square + 1e-5).sqrt()).collect::<Vec<_>>()
    }))
}

/// Of a matrix of 40 x 50.
fn transposed() -> Vec<u8> {
    let x = floats(2000, 1);
    singles((0..2000).map(|at| x[at % 40 * 50 + at / 40]))
}

/// Of two matrices of n x n; the second by its columns where it is transposed.
fn product(n: usize, transposed: bool) -> Vec<u8> {
    let (a, b) = (floats(n * n, 1), floats(n * n, 2));
    let element = |row: usize, column: usize| -> f64 {
        (0..n).map(|k| a[row * n + k] * if transposed { b[column * n + k] } else { b[k * n + column] }).sum()
    };
    singles((0..n * n).map(|at| element(at / n, at % n)))
}
