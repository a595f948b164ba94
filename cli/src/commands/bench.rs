//! `ferrotile bench`: times of kernels.

use clap::{Args, Subcommand};

use crate::bench::ata::{self, AtaBenchArgs};
use crate::bench::attention::{self, AttentionBenchArgs};
use crate::bench::decode::{self, DecodeBenchArgs};
use crate::bench::gemm::{self, GemmBenchArgs};
use crate::bench::ladder::{self, LadderBenchArgs};
use crate::bench::load::{self, LoadBenchArgs};
use crate::bench::rotary::{self, RotaryBenchArgs};
use crate::bench::study::{self, StudyBenchArgs};

/// Measures kernels on a card.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    family: BenchFamily,
}

/// A kernel family.
#[derive(Debug, Subcommand)]
enum BenchFamily {
    /// Measures attention.
    Attention(AttentionBenchArgs),
    /// Measures attention of few query rows on many keys, beside a copy.
    Decode(DecodeBenchArgs),
    /// Measures rotary embedding and append to a cache, beside a copy.
    Rotary(RotaryBenchArgs),
    /// Measures products with symmetric block matrices.
    Ata(AtaBenchArgs),
    /// Checks and measures the steps from one wgmma to a matrix product (docs/wgmma.md).
    Ladder(LadderBenchArgs),
    /// Measures what each choice of the kernels on mma.sync is worth (docs/wmma.md).
    Study(StudyBenchArgs),
    /// Measures matrix products.
    Gemm(GemmBenchArgs),
    /// Measures first calls: how long kernels take to load and to run once.
    Load(LoadBenchArgs),
}

/// Measures and prints.
pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<()> {
    match &args.family {
        BenchFamily::Attention(args) => attention::run(args),
        BenchFamily::Decode(args) => decode::run(args),
        BenchFamily::Rotary(args) => rotary::run(args),
        BenchFamily::Ata(args) => ata::run(args),
        BenchFamily::Ladder(args) => ladder::run(args),
        BenchFamily::Study(args) => study::run(args),
        BenchFamily::Gemm(args) => gemm::run(args),
        BenchFamily::Load(args) => load::run(args),
    }
}
