//! A case of any family, as the benchmarks of the families spell theirs.

use std::fmt;
use std::str::FromStr;

use crate::bench::ata::AtaCase;
use crate::bench::decode::DecodeCase;
use crate::bench::gemm::GemmCase;
use crate::problems::case::Case;

/// A call of one of the families.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnyCase {
    Attention(Case),
    Decode(DecodeCase),
    Gemm(GemmCase),
    Ata(AtaCase),
}

/// The text is a case of no family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected a case such as 1x8x512x64/causal/f16, 16x32:8x1x8192x128/causal/f16, 512x512x512/f16 or n2624_c3_d27_f8"
)]
pub(crate) struct ParseAnyCaseError;

impl FromStr for AnyCase {
    type Err = ParseAnyCaseError;

    fn from_str(text: &str) -> Result<AnyCase, ParseAnyCaseError> {
        let attention = || text.parse().ok().filter(|case: &Case| case.check().is_ok()).map(AnyCase::Attention);
        let found = attention()
            .or_else(|| text.parse().ok().map(AnyCase::Decode))
            .or_else(|| text.parse().ok().map(AnyCase::Gemm))
            .or_else(|| text.parse().ok().map(AnyCase::Ata));
        found.ok_or(ParseAnyCaseError)
    }
}

impl fmt::Display for AnyCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AnyCase::Attention(case) => case.fmt(f),
            AnyCase::Decode(case) => case.fmt(f),
            AnyCase::Gemm(case) => case.fmt(f),
            AnyCase::Ata(case) => case.fmt(f),
        }
    }
}

impl AnyCase {
    /// The benchmark that takes the case: what stands behind `ferrotile bench`.
    pub(crate) fn benchmark(&self) -> &'static str {
        match self {
            AnyCase::Attention(_) => "attention",
            AnyCase::Decode(_) => "decode",
            AnyCase::Gemm(_) => "gemm",
            AnyCase::Ata(_) => "ata",
        }
    }
}
