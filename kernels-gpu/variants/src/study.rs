//! The study of tensor cores on Ampere (`docs/wmma.md`). Its kernels differ from one of the library's in one choice, so
//! that a measurement says what the choice is worth. The library never chooses them. The device crate is
//! `kernels-gpu/study`.

use layout::Dtype;
use layout::text::same_text;

use crate::ata::{self, AtaConfig, AtaUnit, Precision};
use crate::attention::{self, AttentionConfig, MmaTile};
use crate::lines::{Line, count, kernels};

/// The kernel family.
pub const STUDY: &str = "study";

/// Position of the configuration called `name` in [`ATTENTION_STUDY`]; does not compile (in a constant) where there is
/// none.
pub const fn attention_index(name: &str) -> usize {
    let mut index = 0;
    while index < ATTENTION_STUDY.len() {
        if same_text(ATTENTION_STUDY[index].name, name) {
            return index;
        }
        index += 1;
    }
    panic!("no configuration of ATTENTION_STUDY has this name")
}

/// The kernels of attention. Their names have the grammar of [`ATTENTION`](crate::attention::ATTENTION), and two more
/// parts:
///
/// | part of a name | meaning |
/// | --- | --- |
/// | `_ldg` | tiles go through registers instead of `cp.async` |
/// | `_fma` | P V by multiply-adds instead of tensor cores |
pub const ATTENTION_STUDY: &[AttentionConfig] = &kernels::<_, { count(LINES) }>(LINES);

/// The kernel of a configuration for f16.
const fn f16(name: &'static str, head_dim: usize, tile: MmaTile) -> Line<AttentionConfig> {
    let config = AttentionConfig::mma(head_dim, tile).of_family(STUDY);
    Line { first: config.named(name, Dtype::F16), bf16: None }
}

/// The same and that for bf16.
const fn both(names: [&'static str; 2], head_dim: usize, tile: MmaTile) -> Line<AttentionConfig> {
    let [f16_name, bf16_name] = names;
    let line = f16(f16_name, head_dim, tile);
    Line { bf16: Some(line.first.named(bf16_name, Dtype::Bf16)), ..line }
}

/// Each group is to be compared with the library's kernel of the same head dimension.
const LINES: &[Line<AttentionConfig>] = &[
    // Query rows of a tile. 32 are twice the blocks; 128 are half the traffic of K and V.
    both(["attention_f16_d64_mma_32x64_s2", "attention_bf16_d64_mma_32x64_s2"], 64, MmaTile::new(32, 64, 2)),
    both(["attention_f16_d64_mma_128x64_s2", "attention_bf16_d64_mma_128x64_s2"], 64, MmaTile::new(128, 64, 2)),
    // One stage instead of two.
    f16("attention_f16_d64_mma_64x64_s1", 64, MmaTile::new(64, 64, 1)),
    f16("attention_f16_d64_mma_32x64_s1", 64, MmaTile::new(32, 64, 1)),
    f16("attention_f16_d64_mma_128x64_s1", 64, MmaTile::new(128, 64, 1)),
    // Steps of 32 keys instead of 64.
    f16("attention_f16_d64_mma_64x32_s2", 64, MmaTile::new(64, 32, 2)),
    f16("attention_f16_d64_mma_32x32_s2", 64, MmaTile::new(32, 32, 2)),
    f16("attention_f16_d64_mma_128x32_s2", 64, MmaTile::new(128, 32, 2)),
    // Without `cp.async`, without tensor cores for P V, and without both.
    f16("attention_f16_d64_mma_64x64_s2_ldg", 64, MmaTile::new(64, 64, 2).through_registers()),
    f16("attention_f16_d64_mma_64x64_s2_fma", 64, MmaTile::new(64, 64, 2).scalar_pv()),
    f16("attention_f16_d64_mma_64x64_s2_ldg_fma", 64, MmaTile::new(64, 64, 2).through_registers().scalar_pv()),
    // The same choices at head dimension 128.
    both(["attention_f16_d128_mma_32x32_s2", "attention_bf16_d128_mma_32x32_s2"], 128, MmaTile::new(32, 32, 2)),
    f16("attention_f16_d128_mma_128x32_s1", 128, MmaTile::new(128, 32, 1)),
    f16("attention_f16_d128_mma_64x32_s2_fma", 128, MmaTile::new(64, 32, 2).scalar_pv()),
];

const _: () = attention::assert_all_fit(ATTENTION_STUDY);

/// Position of the configuration called `name` in [`ATA_STUDY`]; does not compile (in a constant) where there is none.
pub const fn ata_index(name: &str) -> usize {
    let mut index = 0;
    while index < ATA_STUDY.len() {
        if same_text(ATA_STUDY[index].name, name) {
            return index;
        }
        index += 1;
    }
    panic!("no configuration of ATA_STUDY has this name")
}

/// The kernels of ATA, to be compared with those of [`ATA`](crate::ata::ATA) of the same sizes.
pub const ATA_STUDY: &[AtaConfig] = &[
    // `wmma` instead of `mma.sync`.
    AtaConfig { family: STUDY, ..ata::config("ata_bf16_wmma_8x64x16", Precision::Bf16, AtaUnit::Wmma, [8, 64, 16], 1) },
];

const _: () = ata::assert_all_fit(ATA_STUDY);
