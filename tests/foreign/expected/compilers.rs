//! Those of Triton and Numba that came later.

use super::cuda::philox;
use super::{Expected, floats, histogram, prefix_sums, product, ramp, singles, words};
use crate::Near::{Double, Exact, Single};

pub(super) const EXPECTED: &[Expected] = &[
    ("dot_bf16", Exact, || product(64, false)),
    ("dot_tf32", Exact, || product(64, false)),
    ("dot_int8", Exact, || {
        let numbers = |seed| -> Vec<i32> { ramp(4096, seed).map(|number| number as i32 - 125).collect() };
        let (a, b) = (numbers(1), numbers(2));
        let sum = |i: usize, j: usize| (0..64).map(|k| a[i * 64 + k] * b[k * 64 + j]).sum::<i32>();
        words((0..4096).map(|at| sum(at / 64, at % 64) as u32))
    }),
    // The weights of the values are rounded to f16.
    ("attention", Single(1e-3), attention),
    ("running", Exact, || {
        let numbers: Vec<u32> = ramp(1024, 1).map(|number| (number - 125) as u32).collect();
        words(numbers.chunks(512).flat_map(|block| prefix_sums(block.iter().copied())))
    }),
    ("sorted", Exact, || {
        let mut numbers: Vec<i32> = ramp(256, 1).map(|number| number as i32 - 125).collect();
        numbers.chunks_mut(128).for_each(<[i32]>::sort_unstable);
        words(numbers.into_iter().map(|number| number as u32))
    }),
    ("bins", Exact, || {
        let mut counts = [0; 256];
        ramp(1024, 1).for_each(|number| counts[number as usize + 1] += 1);
        words(counts)
    }),
    ("gather", Exact, || {
        let table = floats(800, 1);
        singles(ramp(32, 1).flat_map(|pick| {
            let rows = std::iter::successors(Some((pick + 1) as usize % 16), |row| Some(row / 2));
            let rows: Vec<usize> = rows.take_while(|&row| row > 0).collect();
            let sum = |column: usize| rows.iter().fold(0.0, |sum, row| sum + table[row * 50 + column]);
            (0..50).map(sum).collect::<Vec<f64>>()
        }))
    }),
    ("random", Exact, || words((0..512).map(|at| philox([at, 0, 0, 0], [1234, 0])[0]))),
    ("extremes", Exact, || {
        let mut results = [0u32; 18];
        for number in ramp(500, 1).map(|number| number as u32 + 1) {
            let at = number as usize % 8;
            results[at] = results[at].max(number);
            results[8 + at] ^= number;
        }
        (results[16], results[17]) = (1, 4);
        words(results)
    }),
    ("numba_axpy", Exact, || singles(floats(200, 1).iter().zip(floats(200, 2)).map(|(x, y)| 1.5 * x + y))),
    ("numba_logistic", Double(4e-16), || {
        floats(200, 1).iter().flat_map(|x| (1.0 / (1.0 + (-x).exp()) + x.abs().sqrt()).to_le_bytes()).collect()
    }),
    ("numba_floors", Exact, || {
        let numbers = |seed| -> Vec<i32> { ramp(200, seed).map(|number| number as i32 - 125).collect() };
        let (x, y) = (numbers(1), numbers(2));
        let quotient = |i: usize| (f64::from(x[i]) / f64::from(y[i] | 1)).floor() as i32;
        let rest = |i: usize| x[i] - quotient(i) * (y[i] | 1);
        words((0..200).map(|i| quotient(i) as u32).chain((0..200).map(|i| rest(i) as u32)))
    }),
    ("numba_block_sum", Exact, || singles([floats(2000, 1).iter().sum()])),
    ("numba_counts", Exact, histogram),
    ("numba_product", Exact, || product(32, false)),
    ("numba_insertion", Exact, || {
        let mut numbers: Vec<i32> = ramp(256, 1).map(|number| number as i32 - 125).collect();
        numbers.chunks_mut(8).for_each(<[i32]>::sort_unstable);
        words(numbers.into_iter().map(|number| number as u32))
    }),
];

/// Causal attention of 64 rows and keys of 32 elements.
fn attention() -> Vec<u8> {
    let (q, k, v) = (floats(2048, 1), floats(2048, 2), floats(2048, 3));
    let row = |i: usize| {
        let score = |j: usize| (0..32).map(|d| q[i * 32 + d] * k[j * 32 + d]).sum::<f64>() * 0.17677669;
        let scores: Vec<f64> = (0..=i).map(score).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let terms: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
        let sum: f64 = terms.iter().sum();
        (0..32)
            .map(|d| terms.iter().enumerate().map(|(j, term)| term * v[j * 32 + d]).sum::<f64>() / sum)
            .collect::<Vec<f64>>()
    };
    singles((0..64).flat_map(row))
}
