//! Which configuration runs a problem.

use layout::{Arch, Dtype};
use variants::attention::{
    ATTENTION, AttentionConfig, AttentionKernel, DECODE_ROWS, MAX_HEAD_DIM, Mask, MaskKind, ScoreMod, Seqlens,
    WARPGROUP_ROWS, has_transposed_values,
};
use variants::gemm::Accumulation;
use variants::study::ATTENTION_STUDY;

use super::decode::{is_decode, packed_rows};
use super::sizes::{BatchedSizes, OP};
use crate::checks::argument;
use crate::error::{Error, Result};
use crate::runtime::module::KernelName;

/// The names of the kernels of an architecture that serve this element type and these head dimensions, that
/// of Q and K and that of V and O: what [`AttentionOptions::kernel`](crate::AttentionOptions::kernel) may name. Not
/// every one takes every mask and every length.
///
/// ```
/// use ferrotile::{Arch, Dtype, attention_kernels};
///
/// let mut names = attention_kernels(Arch::Sm90a, Dtype::F16, [128, 128]);
/// assert!(names.any(|name| name.as_str().starts_with("attention_f16_d128")));
/// ```
pub fn attention_kernels(arch: Arch, dtype: Dtype, head_dims: [usize; 2]) -> impl Iterator<Item = KernelName> {
    known().filter(move |config| config.serves(arch, dtype, head_dims)).map(|config| KernelName::new(config.name))
}

/// The configurations that a caller may name: those that the library chooses from, and with the feature `study` those
/// that measure a choice.
fn known() -> impl Iterator<Item = &'static AttentionConfig> {
    let study = if cfg!(feature = "study") { ATTENTION_STUDY } else { &[] };
    ATTENTION.iter().chain(study)
}

/// The constants below say what one query row costs, in percent of what it costs a block of several consumer warpgroups
/// along M. Each names the cases that it was measured with.
///
/// A block of one consumer warpgroup, which has nothing to do while it waits (4x32x4096x64 and 4x16x4096x128 on an
/// H100).
const LONE_PERCENT: usize = 160;

/// A block of four consumer warpgroups, which have few registers and steps of few keys (4x32x4096x64 on an H200). And
/// such a block with ping-pong: 16x32x1024x64, 4x32x4096x64 and 1x32x16384x64, and with split-KV 1x8x2048x64,
/// 1x8x1920x64 and 1x16x1024x64.
const FOUR_PERCENT: usize = 110;
const IN_TURN_PERCENT: usize = 101;

/// A block of two consumer warpgroups at head dimension 64, which leave the tensor cores idle: with steps of 128 keys,
/// and of 64 (64x12x256x64, 64x12x384x64 and 64x12x128x64 causal on an H200). With steps of 256, on E4M3, they do not
/// (4x32x4096x64 and 16x32x1024x64 on an H200). And kernels of E4M3 for every mask, without one.
const TWO_PERCENT: usize = 118;
const TWO_LONG_PERCENT: usize = 105;
const TWO_MASKED_E4M3_PERCENT: usize = 122;
const TWO_SHORT_PERCENT: usize = 142;

/// Split-KV: with two warpgroups along M (1x8x2048x64 on an H200); with one, whose block reads K and V for half as many
/// rows; with one in several blocks, whose partial results meet over the cluster.
const SPLIT_PERCENT: usize = 110;
const LONE_SPLIT_PERCENT: usize = 140;
const CLUSTER_PERCENT: usize = 200;

/// What adding the partial results of split-KV costs with two warpgroups along M, in keys of a tile (64x12x197x64 and
/// 32x12x128x64 on an H200).
const SPLIT_KEYS: usize = 64;

/// What a step costs beside its keys, in keys: without a mask, and with one. At head dimension 256 (4x8x4096x256 and
/// 32x8x512x256 on an H200) and at 192 (32x16x512x192, 8x16x2048x192 and 2x16x4096x192).
const STEP_KEYS: [usize; 2] = [1, 8];
const STEP_KEYS_192: [usize; 2] = [4, 12];

/// Multicast: what a row costs where two blocks copy keys and values for each other, and what the start of the cluster
/// costs, in keys of a tile (4x8x512x128, 2x16x1024x128, 32x16x512x128 and longer cases on an H200).
const MULTICAST_PERCENT: usize = 99;
const MULTICAST_START_KEYS: usize = 96;

/// What a configuration is chosen for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) arch: Arch,
    pub(super) multiprocessors: u32,
    pub(super) dtype: Dtype,
    pub(super) kv: Dtype,
    pub(super) out: Dtype,
    pub(super) sizes: &'a BatchedSizes,
    pub(super) value_dim: usize,
    pub(super) mask: Mask,
    pub(super) score_mod: ScoreMod,
    pub(super) seqlens: Seqlens,
    /// Whether the keys lie in pages, which the kernels that decode alone read.
    pub(super) paged: bool,
}

impl Request<'_> {
    /// The configurations to choose from: those that can run it.
    fn eligible(self) -> impl Iterator<Item = &'static AttentionConfig> + Clone {
        ATTENTION.iter().filter(move |config| self.is_served_by(config))
    }

    fn is_served_by(self, config: &AttentionConfig) -> bool {
        let Request { arch, dtype, kv, out, sizes, value_dim, mask, score_mod, seqlens, paged, .. } = self;
        config.serves_types(arch, [dtype, kv], [sizes.head_dim, value_dim])
            && config.out == stored_out(dtype, out)
            && (dtype != Dtype::E4M3 || out != Dtype::E4M3 || config.may_narrow_out())
            && config.covers(score_mod, seqlens)
            && config.takes(mask, sizes.q_len, sizes.k_len)
            && (!paged || is_decode(config))
    }

    /// The configuration of this name.
    pub(super) fn named(self, name: &str) -> Result<&'static AttentionConfig> {
        if let Some(config) = known().find(|config| config.name == name && self.is_served_by(config)) {
            return Ok(config);
        }
        Err(match known().find(|config| config.name == name && !config.compiled_for(self.arch)) {
            Some(config) => Error::Unsupported {
                op: OP,
                feature: format!("{name} on {}", self.arch),
                remedy: format!("it needs {}; another kernel computes the same: do not name one", config.arch()),
            },
            None => Error::UnknownKernel {
                op: OP,
                name: name.to_owned(),
                known: known().filter(|config| self.is_served_by(config)).map(|config| config.name).collect(),
            },
        })
    }

    /// The configuration to run where none is named: one that decodes where the query rows are few, else a WGMMA kernel
    /// where one can, else the first in the table's order.
    pub(super) fn preferred(self, accumulation: Accumulation) -> Result<&'static AttentionConfig> {
        // Not one that does more than is asked: the first in the table's order does least.
        let made_for = |config: &AttentionConfig| (config.head_dim, config.value_dim, config.score_mod, config.seqlens);
        let mut decoding = self.eligible().filter(|config| is_decode(config));
        if let Some(first) = decoding.next() {
            // Wider tiles read K and V less often, but one wide tile is slower than two that share K and V in L2:
            // 8x64:8x4x4096x128 takes 80 us instead of 73, 16x32:8x16x8192x128 210 instead of 297 on an H200.
            let mut wider = decoding
                .filter(|config| made_for(config) == made_for(first) && packed_rows(self.sizes) > config.rows());
            return Ok(wider.next().unwrap_or(first));
        }
        let sums_so = |config: &&AttentionConfig| sums(config, accumulation);
        let mut configs = self.eligible().filter(|config| is_wgmma(config));
        // Not every problem has a kernel for either sum.
        let Some(first) = configs.clone().find(sums_so).or_else(|| configs.next()) else {
            return self.for_any_strides();
        };
        let same_width = self.eligible().filter(|config| {
            is_wgmma(config) && made_for(config) == made_for(first) && sums_so(config) == sums_so(&first)
        });
        Ok(same_width.fold(first, |best, config| if self.cost(config) < self.cost(best) { config } else { best }))
    }

    /// The configuration that takes tensors which TMA cannot copy.
    pub(super) fn for_any_strides(self) -> Result<&'static AttentionConfig> {
        let found = self.eligible().find(|config| !is_wgmma(config) && !is_decode(config));
        found.ok_or_else(|| self.refusal())
    }

    /// Why no kernel serves the request.
    fn refusal(self) -> Error {
        let Request { arch, dtype, kv, out, .. } = self;
        let has_types = |config: &&AttentionConfig| (config.dtype, config.kv_dtype) == (dtype, kv);
        let is_compiled = |arch| ATTENTION.iter().filter(has_types).any(|config| config.compiled_for(arch));
        let of_types = if kv == dtype { format!("{dtype}") } else { format!("{kv} beside a Q of {dtype}") };
        let unsupported = |feature: String, remedy: String| Error::Unsupported { op: OP, feature, remedy };
        let mut compiled: Vec<Dtype> = Vec::new();
        for config in ATTENTION.iter().filter(|config| config.compiled_for(arch)) {
            if !compiled.contains(&config.dtype) {
                compiled.push(config.dtype);
            }
        }
        match Arch::ALL.into_iter().find(|&arch| is_compiled(arch)) {
            None if kv != dtype && compiled.contains(&dtype) => {
                argument(OP, "element type of K and V", kv, format!("{dtype}, as Q, or e4m3 beside a Q of f16 or bf16"))
            }
            None => Error::UnsupportedType { op: OP, dtype, compiled },
            Some(oldest) if !is_compiled(arch) => unsupported(
                format!("{of_types} on {arch}"),
                format!("it needs {oldest}{}", if oldest == Arch::Sm90a { "" } else { " or later" }),
            ),
            Some(_) if !ATTENTION.iter().filter(has_types).any(|config| config.out == stored_out(dtype, out)) => {
                let expected = match dtype {
                    Dtype::E4M3 => "f16, bf16 or e4m3",
                    Dtype::U8 => "f16 or bf16",
                    _ => dtype.name(),
                };
                argument(OP, "element type of O", out, format!("{expected} for inputs of {of_types}"))
            }
            Some(_) => {
                let rows = self.sizes.q_len;
                let feature = match (self.score_mod, self.seqlens) {
                    _ if self.paged && kv == dtype => "keys in pages".to_owned(),
                    (ScoreMod::General, _) => "a bias, or a softcap above 64".to_owned(),
                    (ScoreMod::Softcap, _) => "a softcap".to_owned(),
                    (ScoreMod::None, Seqlens::Varlen) => "sequences of several lengths".to_owned(),
                    (ScoreMod::None, Seqlens::Fixed) if kv != dtype && rows > DECODE_ROWS => {
                        format!("{rows} query rows, more than {DECODE_ROWS},")
                    }
                    (ScoreMod::None, Seqlens::Fixed) => "these head dimensions".to_owned(),
                };
                let remedy = if kv == dtype { "use f16 or bf16" } else { "use K and V of the type of Q" };
                unsupported(format!("{feature} with inputs of {of_types}"), remedy.to_owned())
            }
        }
    }

    /// An estimate that follows the time of a launch: the query rows that the busiest multiprocessor computes, each
    /// over all keys, times the percentage that a row costs there. Where configurations differ in their steps, the
    /// steps count too.
    fn cost(self, config: &AttentionConfig) -> usize {
        let percent = match config.kernel {
            AttentionKernel::Wgmma(tile) => match (tile.m_warpgroups, tile.split_kv_warpgroups, tile.split_kv_ctas) {
                (1, 1, 1) => LONE_PERCENT,
                (1, _, 1) => LONE_SPLIT_PERCENT,
                (_, _, 1) if tile.pingpong() => IN_TURN_PERCENT,
                (4, 1, 1) => FOUR_PERCENT,
                (_, 1, 1) if tile.multicast_ctas > 1 => MULTICAST_PERCENT,
                (2, 1, 1) if config.head_dim == 64 && tile.n == 256 => TWO_LONG_PERCENT,
                (2, 1, 1)
                    if config.head_dim == 64
                        && has_transposed_values(config.dtype)
                        && tile.mask == MaskKind::Masked =>
                {
                    TWO_MASKED_E4M3_PERCENT
                }
                (2, 1, 1) if config.head_dim == 64 && tile.n > 64 => TWO_PERCENT,
                (2, 1, 1) if config.head_dim == 64 => TWO_SHORT_PERCENT,
                (_, 1, 1) => 100,
                (_, _, 1) => SPLIT_PERCENT,
                _ => CLUSTER_PERCENT,
            },
            _ => 100,
        };
        // Parts without a step wait for the others, and the sum of all takes 1 us: 1x1x32x64 on an H200.
        if let AttentionKernel::Wgmma(tile) = config.kernel
            && tile.kv_splits() > self.sizes.k_len.div_ceil(tile.n)
        {
            return usize::MAX;
        }
        // A warpgroup without rows waits for the other.
        if let AttentionKernel::Wgmma(tile) = config.kernel
            && (config.head_dim, tile.m_warpgroups) == (64, 2)
            && self.sizes.q_len <= WARPGROUP_ROWS
        {
            return usize::MAX;
        }
        // Keys of whole steps, of all splits of a tile together, and what steps and the combining of splits cost beside
        // them.
        let keys = match config.kernel {
            AttentionKernel::Wgmma(tile) => {
                let masked = usize::from(tile.mask == MaskKind::Masked);
                let step_keys = match config.head_dim {
                    MAX_HEAD_DIM => STEP_KEYS[masked],
                    192 => STEP_KEYS_192[masked],
                    _ => 0,
                };
                let sum_keys = if tile.m_warpgroups > 1 && tile.kv_splits() > 1 { SPLIT_KEYS } else { 0 };
                self.sizes.k_len.div_ceil(tile.n).next_multiple_of(tile.kv_splits()) * (tile.n + step_keys) + sum_keys
            }
            _ => self.sizes.k_len,
        };
        let start_keys = if config.multicast_ctas() > 1 { MULTICAST_START_KEYS } else { 0 };
        let m_tiles = self.sizes.q_len.div_ceil(config.rows()).next_multiple_of(config.multicast_ctas() as usize);
        // More tiles than a grid has are refused once a configuration is chosen.
        let tiles = self.sizes.batch.saturating_mul(self.sizes.q_heads).saturating_mul(m_tiles);
        let blocks = config.split_kv_ctas() as usize;
        let on_one = tiles.saturating_mul(blocks).div_ceil(self.multiprocessors.max(1) as usize);
        let rows = on_one.saturating_mul(config.rows() * percent) / blocks;
        rows.saturating_mul(keys).saturating_add(100 * config.rows() * start_keys)
    }
}

/// Whether the configuration sums P V so, where its element type leaves a choice.
fn sums(config: &AttentionConfig, accumulation: Accumulation) -> bool {
    match config.kernel {
        AttentionKernel::Wgmma(tile) if has_transposed_values(config.dtype) => tile.accumulation == accumulation,
        _ => true,
    }
}

/// The element type of O of the configurations that compute one of type `out`: for inputs of E4M3 those with f16 round
/// to E4M3 too.
const fn stored_out(dtype: Dtype, out: Dtype) -> Dtype {
    match (dtype, out) {
        (Dtype::E4M3, Dtype::E4M3) => Dtype::F16,
        _ => out,
    }
}

/// Whether the configuration copies tiles by TMA, which cannot express every tensor.
pub(super) fn is_wgmma(config: &AttentionConfig) -> bool {
    matches!(config.kernel, AttentionKernel::Wgmma(_))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use variants::attention::WgmmaTile;

    use super::*;

    fn request(arch: Arch, dtype: Dtype, sizes: &BatchedSizes) -> Request<'_> {
        let (mask, score_mod, seqlens) = (Mask::Causal, ScoreMod::None, Seqlens::Fixed);
        let value_dim = sizes.head_dim;
        let out = if dtype.size_bytes() == 1 { Dtype::F16 } else { dtype };
        let (kv, multiprocessors, paged) = (dtype, 132, false);
        Request { arch, multiprocessors, dtype, kv, out, sizes, value_dim, mask, score_mod, seqlens, paged }
    }

    fn problem(head_dim: usize) -> BatchedSizes {
        square(1, [2, 2], 100, head_dim)
    }

    /// As many rows as keys, of so many heads of queries and of keys.
    fn square(batch: usize, [q_heads, kv_heads]: [usize; 2], len: usize, head_dim: usize) -> BatchedSizes {
        BatchedSizes { batch, q_heads, kv_heads, q_len: len, k_len: len, head_dim }
    }

    #[test]
    fn the_preferred_configuration_has_the_narrowest_head_dimension_that_serves() {
        let sm80 = [(8, 64), (64, 64), (72, 128), (128, 128), (136, 256), (256, 256)];
        let sm90 = [(8, 64), (72, 96), (104, 128), (136, 192), (200, 256)];
        for (arch, expected) in [(Arch::Sm80, &sm80[..]), (Arch::Sm89, &sm80), (Arch::Sm90a, &sm90)] {
            for &(head_dim, served) in expected {
                for dtype in [Dtype::F16, Dtype::Bf16] {
                    let config = request(arch, dtype, &problem(head_dim)).preferred(Accumulation::TwoLevel);
                    assert_eq!(config.map(|config| config.head_dim), Ok(served), "{arch} {head_dim}");
                }
            }
        }
        let compiled = vec![Dtype::F16, Dtype::Bf16, Dtype::E4M3, Dtype::U8];
        let refused = request(Arch::Sm90a, Dtype::F32, &problem(64)).preferred(Accumulation::TwoLevel);
        assert_eq!(refused, Err(Error::UnsupportedType { op: OP, dtype: Dtype::F32, compiled }));
    }

    #[test]
    fn values_narrower_than_keys_have_configurations_of_their_own() {
        for (dims, expected) in [
            ([192, 128], [192, 128]),
            ([136, 8], [192, 128]),
            ([192, 136], [192, 192]),
            ([128, 64], [128, 128]),
            ([64, 128], [128, 128]),
            ([200, 128], [256, 256]),
        ] {
            let problem = problem(dims[0]);
            let request = Request { value_dim: dims[1], ..request(Arch::Sm90a, Dtype::F16, &problem) };
            for lengths in [Seqlens::Fixed, Seqlens::Varlen] {
                let config = Request { seqlens: lengths, ..request }.preferred(Accumulation::TwoLevel).unwrap();
                let widest = if lengths == Seqlens::Varlen && expected == [192, 192] { [256; 2] } else { expected };
                assert_eq!([config.head_dim, config.value_dim], widest, "{dims:?}");
            }
        }
    }

    /// The tile that is chosen for a problem on sm_90a.
    fn chosen(problem: &BatchedSizes, mask: Mask) -> WgmmaTile {
        let config =
            Request { mask, ..request(Arch::Sm90a, Dtype::F16, problem) }.preferred(Accumulation::TwoLevel).unwrap();
        let AttentionKernel::Wgmma(tile) = config.kernel else { panic!("{config}") };
        tile
    }

    /// That of one sequence at head dimension 64.
    fn chosen_of_heads(heads: usize, len: usize, mask: Mask) -> WgmmaTile {
        chosen(&square(1, [heads; 2], len, 64), mask)
    }

    /// Its rows, key groups and blocks.
    fn tile_of(heads: usize, len: usize, mask: Mask) -> (usize, usize, usize) {
        let tile = chosen_of_heads(heads, len, mask);
        (tile.m(), tile.split_kv_warpgroups, tile.split_kv_ctas)
    }

    #[test]
    fn few_tiles_share_their_rows() {
        for mask in [Mask::Full, Mask::Causal] {
            assert_eq!(tile_of(8, 512, mask), (64, 2, 2));
            assert_eq!(tile_of(2, 2048, mask), (64, 2, 2));
            assert_eq!(tile_of(4, 2048, mask), (64, 2, 1));
            assert_eq!(tile_of(1, 32, mask), (64, 1, 1));
            assert_eq!(tile_of(8, 256, mask), (64, 2, 1));
        }
        assert_eq!(tile_of(8, 2048, Mask::Full), (128, 2, 1));
        assert_eq!(tile_of(8, 2048, Mask::Causal), (64, 2, 1));
    }

    #[test]
    fn many_tiles_have_three_warpgroups_where_their_rows_fit() {
        for mask in [Mask::Full, Mask::Causal] {
            assert_eq!([(1024, 512), (512, 1024)].map(|(heads, len)| tile_of(heads, len, mask)), [(256, 1, 1); 2]);
            assert_eq!(tile_of(32, 16384, mask), (192, 1, 1));
        }
        assert_eq!(tile_of(128, 4096, Mask::Causal), (192, 1, 1));
        assert_eq!(tile_of(128, 4096, Mask::Full), (256, 1, 1));
    }

    #[test]
    fn four_warpgroups_have_the_steps_that_end_with_the_keys() {
        let step_keys = |(heads, len)| chosen_of_heads(heads, len, Mask::Full).n;
        assert_eq!([(1024, 512), (512, 1024)].map(step_keys), [64, 96]);
        assert_eq!([(16, 1024), (8, 2048)].map(step_keys), [64, 96]);
    }

    #[test]
    fn short_sequences_have_tiles_of_their_length() {
        let tile_of = |len, mask| {
            let tile = chosen(&square(64, [12, 12], len, 64), mask);
            (tile.m(), tile.n, tile.split_kv_warpgroups)
        };
        let full = [(128, 128, 1), (256, 64, 1), (256, 64, 1), (192, 128, 1)];
        assert_eq!([128, 197, 256, 384].map(|len| tile_of(len, Mask::Full)), full);
        assert_eq!(tile_of(128, Mask::Causal), (128, 64, 1));
    }

    #[test]
    fn steps_of_192_columns_end_with_512_keys() {
        let step = |len, mask| chosen(&square(8, [16, 16], len, 192), mask).n;
        assert_eq!([512, 2048, 4096].map(|len| step(len, Mask::Full)), [64, 64, 96]);
        assert_eq!([512, 2048, 4096].map(|len| step(len, Mask::Causal)), [64, 96, 96]);
    }

    #[test]
    fn blocks_copy_for_each_other_where_tiles_are_even() {
        let tile_of = |batch, len, mask| {
            let tile = chosen(&square(batch, [16, 4], len, 128), mask);
            (tile.m(), tile.multicast_ctas)
        };
        assert_eq!([2048, 4096, 1001].map(|len| tile_of(32, len, Mask::Full)), [(128, 2); 3]);
        assert_eq!([640, 384, 1030].map(|len| tile_of(32, len, Mask::Full)), [(128, 1); 3]);
        assert_eq!(tile_of(32, 4096, Mask::Causal), (128, 1));
        // Two tiles a block, or sixteen of few keys, are done before the clusters have gained what their start takes.
        assert_eq!([(2, 1024), (32, 512)].map(|(batch, len)| tile_of(batch, len, Mask::Full)), [(128, 1); 2]);
    }

    #[test]
    fn steps_of_wide_heads_end_with_the_keys() {
        let step = |len, mask| chosen(&square(32, [8, 8], len, 256), mask).n;
        assert_eq!([512, 4096, 16384].map(|len| step(len, Mask::Full)), [64, 64, 80]);
        assert_eq!([512, 4096, 16384].map(|len| step(len, Mask::Causal)), [64, 80, 80]);
    }

    #[test]
    fn a_kernel_is_found_by_name_only_where_it_serves() {
        for arch in Arch::ALL {
            for config in ATTENTION.iter().filter(|config| config.head_dim == 64 && config.kv_dtype == Dtype::F16) {
                let found = |dtype, head_dim| request(arch, dtype, &problem(head_dim)).named(config.name).is_ok();
                let takes = config.compiled_for(arch)
                    && config.covers(ScoreMod::None, Seqlens::Fixed)
                    && config.takes(Mask::Causal, 100, 100);
                assert_eq!(found(Dtype::F16, 64), takes, "{arch} {config}");
                assert!(!found(Dtype::F16, 72) && !found(Dtype::Bf16, 64), "{config}");
            }
        }
    }

    #[test]
    fn a_kernel_that_an_architecture_lacks_is_refused_by_its_name() {
        let (problem, wgmma) = (problem(64), |config: &&AttentionConfig| is_wgmma(config));
        let config = ATTENTION.iter().find(wgmma).unwrap();
        for arch in [Arch::Sm80, Arch::Sm89] {
            match request(arch, Dtype::F16, &problem).named(config.name) {
                Err(Error::Unsupported { feature, remedy, .. }) => {
                    assert!(feature.contains(&arch.to_string()) && remedy.contains("sm_90a"), "{feature}: {remedy}");
                }
                other => panic!("{other:?}"),
            }
        }
        let unknown = request(Arch::Sm80, Dtype::F16, &problem).named("fastest");
        assert!(matches!(unknown, Err(Error::UnknownKernel { .. })));
    }

    #[test]
    fn general_scores_and_several_lengths_have_a_configuration_on_every_architecture() {
        let kinds = [
            (ScoreMod::Softcap, Seqlens::Fixed),
            (ScoreMod::General, Seqlens::Fixed),
            (ScoreMod::None, Seqlens::Varlen),
            (ScoreMod::Softcap, Seqlens::Varlen),
        ];
        for (arch, (scores, lengths)) in Arch::ALL.into_iter().flat_map(|arch| kinds.map(|kind| (arch, kind))) {
            for head_dim in [8, 64, 72, 128, 136, 256] {
                let problem = problem(head_dim);
                for dtype in [Dtype::F16, Dtype::Bf16] {
                    let request = Request { score_mod: scores, seqlens: lengths, ..request(arch, dtype, &problem) };
                    let config = request.preferred(Accumulation::TwoLevel).unwrap();
                    assert!(config.covers(scores, lengths));
                    // Where it has kernels for the softcap alone, one of them.
                    assert!(arch != Arch::Sm90a || config.score_mod == scores, "{config}");
                }
            }
        }
    }

    #[test]
    fn keys_of_e4m3_beside_other_queries_are_for_few_rows_from_sm_89_on() {
        let (few, many) = (BatchedSizes { q_len: DECODE_ROWS, ..problem(64) }, problem(64));
        let of =
            |arch, sizes, kv| Request { kv, ..request(arch, Dtype::Bf16, sizes) }.preferred(Accumulation::TwoLevel);
        for arch in [Arch::Sm89, Arch::Sm90a] {
            assert!(of(arch, &few, Dtype::E4M3).is_ok_and(|config| config.has_e4m3_kv()), "{arch}");
            let refused = of(arch, &many, Dtype::E4M3).unwrap_err().to_string();
            assert!(refused.contains("100 query rows"), "{refused}");
        }
        let refused = of(Arch::Sm80, &few, Dtype::E4M3).unwrap_err();
        assert!(matches!(&refused, Error::Unsupported { remedy, .. } if remedy.contains("sm_89")), "{refused}");
        for kv in [Dtype::F16, Dtype::E5M2] {
            let refused = of(Arch::Sm90a, &few, kv).unwrap_err();
            assert!(matches!(refused, Error::Argument { argument: "element type of K and V", .. }), "{refused}");
        }
    }

    #[test]
    fn tiles_of_32_packed_rows_are_for_more_than_32() {
        for (head_dim, wide) in [(64, 32), (128, 32), (256, 16)] {
            for (q_len, expected) in [(1, 16), (2, 16), (8, 16), (9, wide), (16, wide)] {
                let sizes = BatchedSizes { q_heads: 8, kv_heads: 2, q_len, k_len: 500, ..problem(head_dim) };
                let config = request(Arch::Sm90a, Dtype::F16, &sizes).preferred(Accumulation::TwoLevel).unwrap();
                assert!(is_decode(config) && config.rows() == expected, "{q_len} rows of four heads take {config}");
            }
        }
    }

    /// What no problem chooses has its place in the study, and not in the PTX of the library.
    #[test]
    fn every_configuration_is_chosen_for_some_problem() {
        let sizes = |(heads, [q_len, k_len]): (usize, [usize; 2]), head_dim| BatchedSizes {
            q_len,
            k_len,
            ..square(1, [heads; 2], 1, head_dim)
        };
        let lens = [[1, 100], [32; 2], [128; 2], [512; 2], [1024; 2], [2048; 2], [4096; 2], [16384; 2]];
        let shapes: Vec<_> =
            [1, 4, 8, 16, 64, 512].into_iter().flat_map(|heads| lens.map(|len| (heads, len))).collect();
        let scores = [ScoreMod::None, ScoreMod::Softcap, ScoreMod::General];
        let kinds = scores.into_iter().flat_map(|scores| [(scores, Seqlens::Fixed), (scores, Seqlens::Varlen)]);
        let kinds: Vec<_> = kinds.flat_map(|kind| [(kind, Mask::Full), (kind, Mask::Causal)]).collect();
        let runs = [
            (Arch::Sm80, [Dtype::F16; 2], Accumulation::TwoLevel),
            (Arch::Sm80, [Dtype::U8; 2], Accumulation::TwoLevel),
            (Arch::Sm89, [Dtype::F16, Dtype::E4M3], Accumulation::TwoLevel),
            (Arch::Sm89, [Dtype::E4M3; 2], Accumulation::TwoLevel),
            (Arch::Sm90a, [Dtype::F16; 2], Accumulation::TwoLevel),
            (Arch::Sm90a, [Dtype::E4M3; 2], Accumulation::TwoLevel),
            (Arch::Sm90a, [Dtype::E4M3; 2], Accumulation::Direct),
        ];
        let mut chosen = HashSet::new();
        for [head_dim, value_dim] in [[64, 64], [96, 96], [128, 128], [192, 128], [192, 192], [256, 256]] {
            let grouped = BatchedSizes { kv_heads: 1, ..sizes((64, [1, 100]), head_dim) };
            for sizes in shapes.iter().map(|&shape| sizes(shape, head_dim)).chain([grouped]) {
                for &((score_mod, seqlens), mask) in &kinds {
                    for (arch, [dtype, kv], accumulation) in runs {
                        let request = request(arch, dtype, &sizes);
                        let request = Request { kv, value_dim, mask, score_mod, seqlens, ..request };
                        chosen.extend(request.preferred(accumulation).map(|config| config.name));
                    }
                }
            }
        }
        let of_f16 = ATTENTION.iter().filter(|config| config.out == Dtype::F16).map(|config| config.name);
        let never: Vec<_> = of_f16.filter(|name| !chosen.contains(name)).collect();
        assert!(never.is_empty(), "no problem chooses {}", never.join(", "));
    }

    #[test]
    fn a_study_can_be_named_and_is_never_chosen() {
        for config in ATTENTION_STUDY {
            let problem = problem(config.head_dim);
            let request = request(Arch::Sm80, config.dtype, &problem);
            assert_eq!(request.named(config.name).is_ok(), cfg!(feature = "study"), "{config}");
            assert!(request.eligible().all(|eligible| eligible.name != config.name), "{config}");
        }
    }

    #[test]
    fn problems_without_keys_and_unusual_strides_have_a_configuration() {
        for head_dim in [8, 96, 256] {
            let empty = BatchedSizes { k_len: 0, ..problem(head_dim) };
            let problem = problem(head_dim);
            let configs = [
                request(Arch::Sm90a, Dtype::F16, &empty).preferred(Accumulation::TwoLevel),
                request(Arch::Sm90a, Dtype::F16, &problem).for_any_strides(),
            ];
            assert!(configs.into_iter().all(|config| config.is_ok_and(|config| !is_wgmma(config))));
        }
    }
}
