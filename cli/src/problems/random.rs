//! Normally distributed inputs.

use ferrotile::{BatchedSizes, Dtype, Float, Layout, Result, VarlenSizes};
use ndarray::Array2;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use rayon::prelude::*;

use crate::files::tensor::Half;
use crate::memory::zeros;
use crate::problems::attention::{HostAttention, HostTerms};
use crate::problems::descale::Factors;
use crate::problems::varlen::HostVarlen;

/// Elements that one generator fills: chunks are filled in parallel, each from its own seed.
const CHUNK: usize = 1 << 16;

/// A problem of these sizes, and of this head dimension of V, with normally distributed elements; the seed determines
/// them.
pub(crate) fn problem<T: Half, O>(sizes: BatchedSizes, value_dim: usize, seed: u64) -> Result<HostAttention<T, O>> {
    let layout = Layout::Bhsd;
    Ok(HostAttention {
        layout,
        sizes,
        value_dim,
        q: elements(&sizes.q_shape(layout), 3 * seed)?,
        k: elements(&sizes.kv_shape(layout), 3 * seed + 1)?,
        v: elements(&sizes.v_shape(layout, value_dim), 3 * seed + 2)?,
        factors: factors::<T>(),
        terms: HostTerms { sink: None, bias: None },
    })
}

/// Sequences of these lengths, as many rows as keys, and of this head dimension of V, with normally distributed
/// elements.
pub(crate) fn sequences<T: Half, O>(
    sizes: VarlenSizes,
    value_dim: usize,
    lens: impl Iterator<Item = usize>,
) -> Result<HostVarlen<T, O>> {
    let mut cu_seqlens = vec![0];
    cu_seqlens.extend(lens.scan(0, |end, len| {
        *end += len;
        Some(*end)
    }));
    let VarlenSizes { q_heads, kv_heads, q_total, k_total, head_dim, .. } = sizes;
    let [q, k, v] = [[q_total, q_heads, head_dim], [k_total, kv_heads, head_dim], [k_total, kv_heads, value_dim]];
    Ok(HostVarlen {
        sizes,
        value_dim,
        cu_seqlens: [cu_seqlens.clone(), cu_seqlens],
        inputs: [elements(&q, 0)?, elements(&k, 1)?, elements(&v, 2)?],
        factors: factors::<T>(),
        terms: HostTerms { sink: None, bias: None },
    })
}

/// What 8-bit integers with the factor 1 / 64 are made of: seven deviations are the largest of them.
const INTEGER_DEVIATION: f64 = 64.0;

/// Elements that are normally distributed with their factors.
fn elements<T: Half>(shape: &[usize], seed: u64) -> Result<Vec<T>> {
    of_deviation(shape, seed, if T::DTYPE == Dtype::U8 { INTEGER_DEVIATION } else { 1.0 })
}

/// The factors of [`elements`], of types that have them.
fn factors<T: Half>() -> Factors {
    let of_tensor = || (T::DTYPE == Dtype::U8).then(|| Array2::from_elem((1, 1), INTEGER_DEVIATION.recip() as f32));
    [of_tensor(), of_tensor(), of_tensor()]
}

/// Normally distributed elements of an array of this shape; the seed determines them. No part of them comes twice:
/// equal rows make large products some per cent slower.
pub(crate) fn normal<T: Float>(shape: &[usize], seed: u64) -> Result<Vec<T>> {
    of_deviation(shape, seed, 1.0)
}

fn of_deviation<T: Float>(shape: &[usize], seed: u64, deviation: f64) -> Result<Vec<T>> {
    let mut values = zeros(shape)?;
    values.par_chunks_mut(CHUNK).enumerate().for_each(|(index, chunk)| {
        let mut random = Xoshiro256PlusPlus::seed_from_u64((seed << 32) + index as u64);
        chunk.fill_with(|| T::from_f64(deviation * random.sample::<f64, _>(StandardNormal)));
    });
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn inputs_are_normal_and_different() {
        let sizes = BatchedSizes { batch: 1, q_heads: 4, kv_heads: 2, q_len: 512, k_len: 512, head_dim: 64 };
        let problem: HostAttention<f16> = problem(sizes, 32, 1).unwrap();
        assert_eq!([&problem.q, &problem.k, &problem.v].map(Vec::len), [131_072, 65_536, 32_768]);
        let variance = problem.q.iter().map(|x| x.to_f64().powi(2)).sum::<f64>() / problem.q.len() as f64;
        assert!((variance - 1.0).abs() < 0.05, "{variance}");
        assert_ne!(problem.k[..CHUNK / 2], problem.v);
        assert_ne!(problem.q[..CHUNK], problem.q[CHUNK..]);
    }
}
