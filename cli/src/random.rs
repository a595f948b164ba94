//! Normally distributed inputs.

use ferrotile::{AttentionProblem, Layout, VarlenProblem};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use rayon::prelude::*;

use crate::problem::{Half, Problem, Terms};
use crate::sequences::Sequences;

/// Elements that one generator fills: chunks are filled in parallel, each from its own seed.
const CHUNK: usize = 1 << 16;

/// A problem of these sizes with normally distributed elements; the seed determines them.
pub(crate) fn problem<T: Half>(sizes: AttentionProblem, seed: u64) -> Problem<T> {
    let layout = Layout::Bhsd;
    let len = |shape: [usize; 4]| shape.iter().product();
    let (q_len, kv_len) = (len(sizes.q_shape(layout)), len(sizes.kv_shape(layout)));
    Problem {
        layout,
        sizes,
        value_dim: sizes.head_dim,
        q: normal(q_len, 3 * seed),
        k: normal(kv_len, 3 * seed + 1),
        v: normal(kv_len, 3 * seed + 2),
        terms: Terms::default(),
    }
}

/// Sequences of these lengths, as many rows as keys, with normally distributed elements.
pub(crate) fn sequences<T: Half>(sizes: VarlenProblem, lens: impl Iterator<Item = usize>) -> Sequences<T> {
    let mut starts = vec![0];
    starts.extend(lens.scan(0, |end, len| {
        *end += len;
        Some(*end)
    }));
    let VarlenProblem { q_heads, kv_heads, q_total, k_total, head_dim, .. } = sizes;
    let (q_elems, kv_elems) = (q_total * q_heads * head_dim, k_total * kv_heads * head_dim);
    Sequences {
        sizes,
        value_dim: head_dim,
        starts: [starts.clone(), starts],
        inputs: [normal(q_elems, 0), normal(kv_elems, 1), normal(kv_elems, 2)],
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
        let problem: Problem<f16> = problem(sizes, 1);
        assert_eq!((problem.q.len(), problem.k.len()), (131_072, 65_536));
        let variance = problem.q.iter().map(|x| x.to_f64().powi(2)).sum::<f64>() / problem.q.len() as f64;
        assert!((variance - 1.0).abs() < 0.05, "{variance}");
        assert_ne!(problem.k, problem.v);
        assert_ne!(problem.q[..CHUNK], problem.q[CHUNK..]);
    }
}
