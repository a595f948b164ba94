//! Heads, element types and elements of an attention problem.

use ferrotile::{Arch, Dtype};
use rand::RngExt;
use serde::{Deserialize, Serialize};
use variants::attention::{ATTENTION, AttentionConfig, ScoreMod, Seqlens};
use variants::study::ATTENTION_STUDY;

use super::family::Simpler;
use super::sizes::{self, HALVES, Random};
use super::text::{as_name, is_default};
use super::values::Values;

/// Types, heads and elements of Q, K and V.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Heads {
    #[serde(with = "as_name")]
    pub(crate) dtype: Dtype,
    pub(crate) q_heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) value_dim: usize,
    /// The elements of Q, K and V.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) values: [Values; 3],
}

impl Heads {
    /// Up to `most` heads of queries.
    pub(crate) fn draw(random: &mut Random, most: usize) -> Heads {
        let kv_heads = random.random_range(1..=3.min(most));
        let group = [1, 1, 2, 3, 4, 8][random.random_range(0..6)].min(most / kv_heads).max(1);
        let head_dim = sizes::head_dim(random);
        let value_dim = match random.random_range(0..10) {
            0 => sizes::head_dim(random),
            1 => 128.min(head_dim),
            _ => head_dim,
        };
        let mut values = [Values::draw(random), Values::draw(random), Values::draw(random)];
        // The products of two vast ones are beyond f32, where nothing is specified.
        if values[0].are_vast() && values[1].are_vast() {
            values[random.random_range(0..2)] = Values::draw_tame(random);
        }
        let dtype = HALVES[random.random_range(0..2)];
        Heads { dtype, q_heads: kv_heads * group, kv_heads, head_dim, value_dim, values }
    }

    /// Multiplications for a pair of a row and a key, of all heads.
    pub(crate) fn work(&self) -> usize {
        self.q_heads * (self.head_dim + self.value_dim)
    }

    /// The configurations that serve these heads with such scores and lengths, and with K and V of E4M3 alone or not.
    pub(crate) fn configs(
        &self,
        arch: Arch,
        e4m3_kv: bool,
        score_mod: ScoreMod,
        seqlens: Seqlens,
    ) -> impl Iterator<Item = &'static AttentionConfig> {
        let (dtype, head_dims) = (self.dtype, [self.head_dim, self.value_dim]);
        let types = [dtype, if e4m3_kv { Dtype::E4M3 } else { dtype }];
        let all = ATTENTION.iter().chain(ATTENTION_STUDY);
        let served = all.filter(move |config| config.serves_types(arch, types, head_dims));
        served.filter(move |config| config.covers(score_mod, seqlens))
    }

    /// Takes out the ends of the types.
    pub(crate) fn tame(&mut self) {
        self.values.iter_mut().for_each(Values::tame);
    }

    /// Fewer heads, narrower ones, and simpler elements.
    pub(crate) fn simpler<P: Clone>(simpler: &mut Simpler<P>, field: impl Fn(&mut P) -> &mut Heads + Copy, of: &Heads) {
        simpler.change(|problem| (field(problem).q_heads, field(problem).kv_heads) = (1, 1));
        simpler.change(|problem| field(problem).q_heads = of.kv_heads);
        simpler.change(|problem| field(problem).value_dim = of.head_dim);
        for dim in [8, 64, 128, 192, 256].into_iter().filter(|&dim| dim < of.head_dim) {
            simpler.change(|problem| (field(problem).head_dim, field(problem).value_dim) = (dim, dim));
        }
        for (index, values) in of.values.into_iter().enumerate() {
            simpler.each(|problem| &mut field(problem).values[index], values.simpler());
        }
    }
}
