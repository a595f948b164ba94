//! What follows from the inputs of `cases.txt`, by plain loops in f64 and in integers.

mod compilers;
mod cuda;

use crate::Near;
use crate::cases::{floats, ramp, wide};

/// A kernel, how near its output is to this one, and the output.
pub(crate) type Expected = (&'static str, Near, fn() -> Vec<u8>);

/// Relative errors that functions of a few roundings of f32 have.
const SMALL: Near = Near::Single(1e-6);

/// The expected outputs of all cases.
pub(crate) fn all() -> impl Iterator<Item = &'static Expected> {
    FIRST.iter().chain(cuda::EXPECTED).chain(compilers::EXPECTED)
}

const FIRST: &[Expected] = &[
    ("saxpy", Near::Exact, || singles(floats(1000, 1).iter().zip(floats(1000, 2)).map(|(x, y)| 1.5 * x + y))),
    ("gelu", SMALL, gelu),
    ("reduce", Near::Exact, || singles([floats(2000, 1).iter().sum()])),
    ("softmax", SMALL, softmax),
    ("transpose", Near::Exact, transposed),
    ("matmul", Near::Exact, || product(32, false)),
    ("wmma", Near::Exact, || product(32, true)),
    ("half2", Near::Exact, || {
        let value = |(x, y): (&f64, f64)| half::f16::from_f64((x * y + x).max(0.0)).to_le_bytes();
        floats(400, 1).iter().zip(floats(400, 2)).flat_map(value).collect()
    }),
    ("histogram", Near::Exact, histogram),
    ("scan", Near::Exact, || words(prefix_sums(ramp(1024, 1).map(|number| (number - 125) as u32)))),
    ("pipeline", Near::Exact, || singles(floats(2048, 1).iter().map(|x| 2.0 * x))),
    ("normalize", SMALL, normalize),
    ("collatz", Near::Exact, || {
        words(ramp(256, 1).map(|number| {
            let (mut value, mut count) = (number as u64 + 1, 0);
            while value != 1 {
                value = if value % 2 == 1 { 3 * value + 1 } else { value / 2 };
                count += 1;
            }
            count
        }))
    }),
    ("happy", Near::Exact, || {
        words(ramp(200, 1).map(|number| {
            let mut value = number as u32 + 1;
            while value != 1 && value != 4 {
                let digits = [value % 10, value / 10 % 10, value / 100];
                value = digits.iter().map(|digit| digit * digit).sum();
            }
            value
        }))
    }),
    ("heat", Near::Exact, || {
        let x = floats(200, 1);
        let at = |at: usize| x[at.min(199)];
        let step = |i: usize| at(i) + 0.25 * (at(i.saturating_sub(1)) - 2.0 * at(i) + at(i + 1));
        (0..200).flat_map(|i| step(i).to_le_bytes()).collect()
    }),
    ("bits", Near::Exact, || {
        let x: Vec<u64> = ramp(128, 1).map(wide).collect();
        let value = |at: usize| {
            let other = x[at ^ 1].reverse_bits().rotate_left(at as u32);
            other ^ u64::from(x[at].count_ones()) ^ (u64::from(x[at].leading_zeros()) << 32)
        };
        (0..128).flat_map(|at| value(at).to_le_bytes()).collect()
    }),
    ("add", Near::Exact, || singles(floats(1000, 1).iter().zip(floats(1000, 2)).map(|(x, y)| x + y))),
    ("row_softmax", SMALL, softmax),
    ("layer_norm", SMALL, layer_norm),
    ("swap_axes", Near::Exact, transposed),
    ("dot", Near::Exact, || product(64, false)),
    ("total", Near::Exact, || singles([floats(2000, 1).iter().sum()])),
];

/// Each number with all before it.
fn prefix_sums(numbers: impl Iterator<Item = u32>) -> impl Iterator<Item = u32> {
    numbers.scan(0, |sum: &mut u32, number| {
        *sum = sum.wrapping_add(number);
        Some(*sum)
    })
}

fn histogram() -> Vec<u8> {
    let mut counts = [0; 256];
    ramp(5000, 1).for_each(|number| counts[number as usize] += 1);
    words(counts)
}

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
