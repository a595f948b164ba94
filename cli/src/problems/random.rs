//! Normally distributed inputs.

use ferrotile::{BatchedSizes, Float, Layout, Result, VarlenSizes};
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
        q: normal(&sizes.q_shape(layout), 3 * seed)?,
        k: normal(&sizes.kv_shape(layout), 3 * seed + 1)?,
        v: normal(&sizes.v_shape(layout, value_dim), 3 * seed + 2)?,
        factors: Factors::default(),
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
        inputs: [normal(&q, 0)?, normal(&k, 1)?, normal(&v, 2)?],
        factors: Factors::default(),
        terms: HostTerms { sink: None, bias: None },
    })
}

/// Normally distributed elements of an array of this shape; the seed determines them. No part of them comes twice:
/// equal rows make large products some per cent slower.
pub(crate) fn normal<T: Float>(shape: &[usize], seed: u64) -> Result<Vec<T>> {
    let mut values = zeros(shape)?;
    values.par_chunks_mut(CHUNK).enumerate().for_each(|(index, chunk)| {
        let mut random = Xoshiro256PlusPlus::seed_from_u64((seed << 32) + index as u64);
        chunk.fill_with(|| T::from_f64(random.sample(StandardNormal)));
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
