//! Normally distributed inputs.

use ferrotile::{AttentionProblem, Layout, VarlenProblem};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use rayon::prelude::*;

use crate::case::{Case, Extra};
use crate::problem::{Half, Problem, Terms};
use crate::sequences::Sequences;

/// Elements that one generator fills: chunks are filled in parallel, each from its own seed.
const CHUNK: usize = 1 << 16;

/// A problem of these sizes, and of this head dimension of V, with normally distributed elements; the seed determines
/// them.
pub(crate) fn problem<T: Half>(sizes: AttentionProblem, value_dim: usize, seed: u64) -> Problem<T> {
    let layout = Layout::Bhsd;
    let len = |shape: [usize; 4]| shape.iter().product();
    let [q_len, k_len, v_len] =
        [sizes.q_shape(layout), sizes.kv_shape(layout), sizes.v_shape(layout, value_dim)].map(len);
    Problem {
        layout,
        sizes,
        value_dim,
        q: normal(q_len, 3 * seed),
        k: normal(k_len, 3 * seed + 1),
        v: normal(v_len, 3 * seed + 2),
        terms: Terms::default(),
    }
}

/// The tensors of a case of attention whose sequences have one length.
pub(crate) fn problem_of<T: Half>(case: &Case) -> Problem<T> {
    let mut problem = problem(case.problem(), case.value_dim, 0);
    if case.extra == Extra::Bias {
        problem.terms.bias = Some((normal(case.len * case.len, 3), [1, 1, case.len, case.len]));
    }
    problem
}

/// Those of a case with several lengths.
pub(crate) fn sequences_of<T: Half>(case: &Case) -> Sequences<T> {
    sequences(case.sequences(), case.value_dim, case.lens())
}

/// Sequences of these lengths, as many rows as keys, and of this head dimension of V, with normally distributed
/// elements.
pub(crate) fn sequences<T: Half>(
    sizes: VarlenProblem,
    value_dim: usize,
    lens: impl Iterator<Item = usize>,
) -> Sequences<T> {
    let mut starts = vec![0];
    starts.extend(lens.scan(0, |end, len| {
        *end += len;
        Some(*end)
    }));
    let VarlenProblem { q_heads, kv_heads, q_total, k_total, head_dim, .. } = sizes;
    let (q_elems, k_rows) = (q_total * q_heads * head_dim, k_total * kv_heads);
    Sequences {
        sizes,
        value_dim,
        starts: [starts.clone(), starts],
        inputs: [normal(q_elems, 0), normal(k_rows * head_dim, 1), normal(k_rows * value_dim, 2)],
        terms: Terms::default(),
    }
}

/// Normally distributed elements; the seed determines them.
pub(crate) fn normal<T: Half>(len: usize, seed: u64) -> Vec<T> {
    let mut values = vec![T::from_f64(0.0); len];
    values.par_chunks_mut(CHUNK).enumerate().for_each(|(index, chunk)| {
        let mut random = Xoshiro256PlusPlus::seed_from_u64((seed << 32) + index as u64);
        for value in chunk {
            *value = T::from_f64(random.sample(StandardNormal));
        }
    });
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn inputs_are_normal_and_different() {
        let sizes = AttentionProblem { batch: 1, q_heads: 4, kv_heads: 2, q_len: 512, k_len: 512, head_dim: 64 };
        let problem: Problem<f16> = problem(sizes, 32, 1);
        assert_eq!([&problem.q, &problem.k, &problem.v].map(Vec::len), [131_072, 65_536, 32_768]);
        let variance = problem.q.iter().map(|x| x.to_f64().powi(2)).sum::<f64>() / problem.q.len() as f64;
        assert!((variance - 1.0).abs() < 0.05, "{variance}");
        assert_ne!(problem.k[..CHUNK / 2], problem.v);
        assert_ne!(problem.q[..CHUNK], problem.q[CHUNK..]);
    }
}
