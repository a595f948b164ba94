//! The catalogue of GEMM kernels on `mma.sync` and `wgmma`: their shapes, with the reason for each.

use layout::Dtype;
use layout::descriptor::Major;
use layout::text::same_text;

use super::config::FRAGMENT;
use super::wgmma::check_wgmma;
use super::{Accumulation, CHUNK_BYTES, GemmConfig, GemmLayout, GemmTile, GemmUnit, Operands, TWO_LEVEL_K};
use crate::lines::{Line, count, kernels};

/// Position of the configuration called `name` in [`GEMM`]; does not compile (in a constant) where there is none.
pub const fn config_index(name: &str) -> usize {
    let mut index = 0;
    while index < GEMM.len() {
        if same_text(GEMM[index].name, name) {
            return index;
        }
        index += 1;
    }
    panic!("no configuration of GEMM has this name")
}

/// A tile with its warps, resident blocks and rate.
#[derive(Clone, Copy)]
struct Shape {
    tile: GemmTile,
    min_blocks: u32,
    products_per_cycle: u32,
}

const fn shape(
    [m, n, k]: [usize; 3],
    stages: usize,
    warps: [usize; 2],
    min_blocks: u32,
    products_per_cycle: u32,
) -> Shape {
    Shape { tile: GemmTile { m, n, k, stages, warps }, min_blocks, products_per_cycle }
}

/// Large problems. A warp of 64x64 reads the fewest bytes of shared memory for each product. The shape has half as many
/// barriers as [`LARGE`], with which tensor cores work 67 % of the time instead of 62 %. It takes all registers, and
/// with tn more than there are.
const LONG: Shape = shape([128, 256, 64], 3, [2, 4], 1, 880);
/// The same in the 99 KiB of sm_89.
const LARGE: Shape = shape([128, 256, 32], 4, [2, 4], 1, 860);
/// Two blocks of four such warps on a multiprocessor: half the columns, where 128x256 leaves too much of the last tiles
/// idle.
const MEDIUM: Shape = shape([128, 128, 32], 4, [2, 2], 2, 850);
/// Small problems.
const SMALL: Shape = shape([64, 64, 64], 3, [2, 2], 2, 580);
/// Few rows, as in decoding: the time is that of reading B.
const FLAT: Shape = shape([16, 128, 64], 4, [1, 4], 2, 290);
/// Operands of any alignment.
const ANY: Shape = shape([64, 64, 32], 2, [2, 2], 2, 125);
/// FP8, large problems. Two levels of sums take 128 registers, and on an H100 they take no longer than one level. So
/// `mma` has no configuration of one level.
const MEDIUM_8BIT: Shape = shape([128, 128, 128], 3, [2, 4], 1, 620);
/// FP8, small problems.
const SMALL_8BIT: Shape = shape([64, 64, 128], 3, [2, 2], 2, 480);

const fn mma(name: &'static str, dtype: Dtype, layout: GemmLayout, shape: Shape) -> GemmConfig {
    config(name, dtype, dtype, Operands::Aligned(layout), Accumulation::Direct, shape)
}

const fn any(name: &'static str, dtype: Dtype) -> GemmConfig {
    config(name, dtype, dtype, Operands::Any, Accumulation::Direct, ANY)
}

const fn fp8(name: &'static str, b: Dtype, shape: Shape) -> GemmConfig {
    config(name, Dtype::E4M3, b, Operands::Aligned(GemmLayout::Nt), Accumulation::TwoLevel, shape)
}

const fn config(
    name: &'static str,
    a: Dtype,
    b: Dtype,
    operands: Operands,
    accumulation: Accumulation,
    shape: Shape,
) -> GemmConfig {
    let Shape { tile, min_blocks, products_per_cycle } = shape;
    let (unit, cluster) = (GemmUnit::Mma, 1);
    GemmConfig { name, a, b, operands, unit, accumulation, tile, cluster, min_blocks, products_per_cycle }
}

/// `wgmma`, large problems: the widest instruction reads the fewest bytes of shared memory for each product. With three
/// stages the buffers hold a whole tile of D, so that the consumers wait for no store.
const WIDE: Shape = shape([128, 256, 64], 3, [8, 1], 1, 1850);
/// Where tiles of [`WIDE`] leave too much of the last round idle.
const MIDDLE: Shape = shape([128, 192, 64], 4, [8, 1], 1, 1600);
/// The same, further.
const SQUARE: Shape = shape([128, 128, 64], 6, [8, 1], 1, 1400);
/// Small problems.
const LOW: Shape = shape([64, 128, 64], 8, [4, 1], 1, 1000);
/// The smallest; as many bytes in flight as fit, which is what few blocks live on.
const LEAST: Shape = shape([64, 64, 64], 12, [4, 1], 1, 850);
/// FP8: as [`LEAST`].
const LEAST_8BIT: Shape = shape([64, 64, 128], 12, [4, 1], 1, 1300);
/// FP8: the bytes of [`WIDE`].
const WIDE_8BIT: Shape = shape([128, 256, 128], 3, [8, 1], 1, 3600);
/// FP8 with sums at two levels, which take twice the registers.
const SQUARE_8BIT: Shape = shape([128, 128, 128], 6, [8, 1], 1, 2400);
/// The same, small problems.
const LOW_8BIT: Shape = shape([64, 128, 128], 8, [4, 1], 1, 1500);

const fn wgmma(name: &'static str, dtype: Dtype, layout: GemmLayout, shape: Shape) -> GemmConfig {
    on_wgmma(config(name, dtype, dtype, Operands::Aligned(layout), Accumulation::Direct, shape))
}

const fn wgmma_fp8(name: &'static str, b: Dtype, accumulation: Accumulation, shape: Shape) -> GemmConfig {
    on_wgmma(config(name, Dtype::E4M3, b, Operands::Aligned(GemmLayout::Nt), accumulation, shape))
}

/// The configuration on `wgmma`: large tiles in clusters of two, which halves what they read of B. A cluster of four
/// finds room on fewer multiprocessors.
const fn on_wgmma(config: GemmConfig) -> GemmConfig {
    GemmConfig { unit: GemmUnit::Wgmma, cluster: if config.tile.m >= 128 { 2 } else { 1 }, ..config }
}

/// The f16 and the bf16 kernel of a configuration. `both!("mma_any_64x64x32_s2", any)` is the line of
/// `gemm_f16_mma_any_64x64x32_s2` and `gemm_bf16_mma_any_64x64x32_s2`.
macro_rules! both {
    ($name:literal, $config:ident $(, $argument:expr)*) => {
        Line {
            first: $config(concat!("gemm_f16_", $name), Dtype::F16 $(, $argument)*),
            bf16: Some($config(concat!("gemm_bf16_", $name), Dtype::Bf16 $(, $argument)*)),
        }
    };
}

/// A kernel of other types.
const fn one(config: GemmConfig) -> Line<GemmConfig> {
    Line { first: config, bf16: None }
}

/// Every compiled main kernel.
///
/// Name: `gemm_<type>_<unit>_<layout>_<m>x<n>x<k>_s<stages>`, the type of B after that of A where they differ, and at
/// the end `_two_level` where FP8 products are summed so.
pub const GEMM: &[GemmConfig] = &kernels::<_, { count(LINES) }>(LINES);

/// One line a configuration.
const LINES: &[Line<GemmConfig>] = {
    use Accumulation::{Direct, TwoLevel};
    use Dtype::{E4M3, E5M2};
    use GemmLayout::{Nn, Nt, Tn, Tt};
    &[
        both!("mma_nn_128x256x64_s3", mma, Nn, LONG),
        both!("mma_nt_128x256x64_s3", mma, Nt, LONG),
        both!("mma_tt_128x256x64_s3", mma, Tt, LONG),
        both!("mma_nn_128x256x32_s4", mma, Nn, LARGE),
        both!("mma_nt_128x256x32_s4", mma, Nt, LARGE),
        both!("mma_tn_128x256x32_s4", mma, Tn, LARGE),
        both!("mma_tt_128x256x32_s4", mma, Tt, LARGE),
        both!("mma_nn_128x128x32_s4", mma, Nn, MEDIUM),
        both!("mma_nt_128x128x32_s4", mma, Nt, MEDIUM),
        both!("mma_tn_128x128x32_s4", mma, Tn, MEDIUM),
        both!("mma_tt_128x128x32_s4", mma, Tt, MEDIUM),
        both!("mma_nn_64x64x64_s3", mma, Nn, SMALL),
        both!("mma_nt_64x64x64_s3", mma, Nt, SMALL),
        both!("mma_tn_64x64x64_s3", mma, Tn, SMALL),
        both!("mma_tt_64x64x64_s3", mma, Tt, SMALL),
        both!("mma_nn_16x128x64_s4", mma, Nn, FLAT),
        both!("mma_nt_16x128x64_s4", mma, Nt, FLAT),
        both!("mma_tn_16x128x64_s4", mma, Tn, FLAT),
        both!("mma_tt_16x128x64_s4", mma, Tt, FLAT),
        both!("mma_any_64x64x32_s2", any),
        // FP8 operands that are not stored with contiguous k are copied first.
        one(fp8("gemm_e4m3_mma_nt_128x128x128_s3_two_level", E4M3, MEDIUM_8BIT)),
        one(fp8("gemm_e4m3_mma_nt_64x64x128_s3_two_level", E4M3, SMALL_8BIT)),
        one(fp8("gemm_e4m3_e5m2_mma_nt_128x128x128_s3_two_level", E5M2, MEDIUM_8BIT)),
        one(fp8("gemm_e4m3_e5m2_mma_nt_64x64x128_s3_two_level", E5M2, SMALL_8BIT)),
        both!("wgmma_nn_128x256x64_s3", wgmma, Nn, WIDE),
        both!("wgmma_nn_128x128x64_s6", wgmma, Nn, SQUARE),
        both!("wgmma_nn_64x128x64_s8", wgmma, Nn, LOW),
        both!("wgmma_nn_64x64x64_s12", wgmma, Nn, LEAST),
        both!("wgmma_nt_128x256x64_s3", wgmma, Nt, WIDE),
        both!("wgmma_nt_128x128x64_s6", wgmma, Nt, SQUARE),
        both!("wgmma_nt_64x128x64_s8", wgmma, Nt, LOW),
        both!("wgmma_nt_64x64x64_s12", wgmma, Nt, LEAST),
        both!("wgmma_tn_128x256x64_s3", wgmma, Tn, WIDE),
        both!("wgmma_tn_128x128x64_s6", wgmma, Tn, SQUARE),
        both!("wgmma_tn_64x128x64_s8", wgmma, Tn, LOW),
        both!("wgmma_tn_64x64x64_s12", wgmma, Tn, LEAST),
        both!("wgmma_tt_128x256x64_s3", wgmma, Tt, WIDE),
        both!("wgmma_tt_128x128x64_s6", wgmma, Tt, SQUARE),
        both!("wgmma_tt_64x128x64_s8", wgmma, Tt, LOW),
        both!("wgmma_tt_64x64x64_s12", wgmma, Tt, LEAST),
        both!("wgmma_nt_128x192x64_s4", wgmma, Nt, MIDDLE),
        one(wgmma_fp8("gemm_e4m3_wgmma_nt_128x256x128_s3", E4M3, Direct, WIDE_8BIT)),
        one(wgmma_fp8("gemm_e4m3_wgmma_nt_128x128x128_s6_two_level", E4M3, TwoLevel, SQUARE_8BIT)),
        one(wgmma_fp8("gemm_e4m3_wgmma_nt_64x128x128_s8_two_level", E4M3, TwoLevel, LOW_8BIT)),
        one(wgmma_fp8("gemm_e4m3_wgmma_nt_64x64x128_s12_two_level", E4M3, TwoLevel, LEAST_8BIT)),
        one(wgmma_fp8("gemm_e4m3_e5m2_wgmma_nt_128x256x128_s3", E5M2, Direct, WIDE_8BIT)),
        one(wgmma_fp8("gemm_e4m3_e5m2_wgmma_nt_128x128x128_s6_two_level", E5M2, TwoLevel, SQUARE_8BIT)),
        one(wgmma_fp8("gemm_e4m3_e5m2_wgmma_nt_64x128x128_s8_two_level", E5M2, TwoLevel, LOW_8BIT)),
        one(wgmma_fp8("gemm_e4m3_e5m2_wgmma_nt_64x64x128_s12_two_level", E5M2, TwoLevel, LEAST_8BIT)),
    ]
};

/// Refuses a configuration of `mma` whose tile the copies and fragments cannot serve.
const fn check_mma(config: &GemmConfig) {
    let GemmTile { m, n, stages, warps, .. } = config.tile;
    assert!(m.is_multiple_of(warps[0] * FRAGMENT) && n.is_multiple_of(warps[1] * 2 * FRAGMENT));
    assert!(
        stages >= 2 && config.k_steps() >= 2 && config.k_steps().is_multiple_of(2),
        "fragments come from two buffers"
    );
    assert!(config.k_bytes() == 64 || config.k_bytes() == 128, "a row of k is a row of a swizzle");
    let two_level = matches!(config.accumulation, Accumulation::TwoLevel);
    assert!(!two_level || config.tile.k == TWO_LEVEL_K, "a stage is what the tensor cores add up");
    // A thread copies the same chunk of rows that are a multiple of 8 apart, so that the swizzle moves it the same way.
    let mut operand = 0;
    while operand < 2 {
        let (mn, major) = if operand == 0 { (m, config.tile_layout().a()) } else { (n, config.tile_layout().b()) };
        let (rows, row_bytes) = match major {
            Major::K => (mn, config.k_bytes()),
            Major::Mn => (config.tile.k, mn * config.a.size_bytes()),
        };
        let rows_at_once = config.threads() as usize * CHUNK_BYTES / row_bytes;
        assert!(
            rows_at_once.is_multiple_of(8) && rows.is_multiple_of(rows_at_once),
            "each thread copies as many chunks"
        );
        operand += 1;
    }
    let sums_bytes = config.sums_offset((warps[0] * warps[1]) as u32);
    assert!(sums_bytes <= config.smem().total_bytes(), "the sums fit where the stages were");
}

/// A configuration whose shared memory or threads cannot fit its oldest architecture does not compile.
const _: () = {
    let mut index = 0;
    while index < GEMM.len() {
        let config = &GEMM[index];
        let _ = config.smem().assert_fits(config.arch());
        assert!(config.threads() <= 1024 && config.min_blocks >= 1);
        assert!(config.a.size_bytes() == config.b.size_bytes() && config.a.size_bytes() <= 2);
        match config.unit {
            GemmUnit::Mma => check_mma(config),
            GemmUnit::Wgmma => check_wgmma(config),
        }
        index += 1;
    }
};

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::gemm::{PACK_8BIT, PACK_16BIT, REDUCE_SPLIT_K};
    use layout::Arch;
    use std::collections::HashSet;
    use std::format;
    use std::string::String;

    fn composed_name(config: &GemmConfig) -> String {
        let GemmTile { m, n, k, stages, .. } = config.tile;
        let types = if config.a == config.b { format!("{}", config.a) } else { format!("{}_{}", config.a, config.b) };
        let unit = if config.unit == GemmUnit::Mma { "mma" } else { "wgmma" };
        let two_level = if config.accumulation == Accumulation::TwoLevel { "_two_level" } else { "" };
        format!("gemm_{types}_{unit}_{}_{m}x{n}x{k}_s{stages}{two_level}", config.operands.name())
    }

    #[test]
    fn names_follow_the_grammar_and_are_unique() {
        let mut names = HashSet::from([REDUCE_SPLIT_K.name, PACK_8BIT.name, PACK_16BIT.name]);
        for (index, config) in GEMM.iter().enumerate() {
            assert_eq!(config.name, composed_name(config));
            assert_eq!(config_index(config.name), index);
            assert!(names.insert(config.name));
        }
    }

    #[test]
    fn every_sixteen_bit_problem_is_served_on_every_architecture() {
        for (dtype, layout, aligned) in [Dtype::F16, Dtype::Bf16]
            .into_iter()
            .flat_map(|dtype| GemmLayout::ALL.map(|layout| (dtype, layout)))
            .flat_map(|(dtype, layout)| [true, false].map(|aligned| (dtype, layout, aligned)))
        {
            let serves = |config: &&GemmConfig| {
                config.multiplies(dtype, dtype, Accumulation::TwoLevel) && config.takes(layout, aligned)
            };
            assert!(GEMM.iter().filter(serves).any(|config| config.is_in(Arch::Sm80)), "{dtype} {layout} {aligned}");
        }
    }

    #[test]
    fn two_level_sums_are_never_served_by_one_level_of_fp8() {
        for config in GEMM.iter().filter(|config| config.a == Dtype::E4M3) {
            assert!(config.multiplies(config.a, config.b, Accumulation::Direct));
            let two_level = config.accumulation == Accumulation::TwoLevel;
            assert_eq!(config.multiplies(config.a, config.b, Accumulation::TwoLevel), two_level);
        }
    }

    #[test]
    fn a_column_of_a_packed_tile_is_spread_over_the_banks() {
        for kernel in [PACK_8BIT, PACK_16BIT] {
            let banks: HashSet<u32> = (0..32).map(|row| row * kernel.row_bytes() / 4 % 32).collect();
            assert!(banks.len() >= 16, "{}", kernel.name);
        }
    }
}
