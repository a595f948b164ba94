//! The types of operands, and conversions between them.

use crate::slots::Reg;

/// A type of values, as in the suffixes of PTX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    Int {
        bits: u8,
        signed: bool,
    },
    F16,
    Bf16,
    F32,
    /// In the upper 19 bits of a 32-bit register.
    Tf32,
    F64,
    F16x2,
    Bf16x2,
    E4m3x2,
    E5m2x2,
}

impl Type {
    pub(crate) const fn bits(self) -> u32 {
        match self {
            Type::Int { bits, .. } => bits as u32,
            Type::F16 | Type::Bf16 | Type::E4m3x2 | Type::E5m2x2 => 16,
            Type::F32 | Type::Tf32 | Type::F16x2 | Type::Bf16x2 => 32,
            Type::F64 => 64,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    /// None written: the conversion is exact, or of integers.
    Exact,
    Nearest,
    /// To the nearest, a tie away from zero.
    NearestAway,
    Zero,
    Down,
    Up,
    /// To an integer, in the type of floats or not.
    NearestInt,
    ZeroInt,
    DownInt,
    UpInt,
}

/// One `cvt`. Packed results have two sources, the upper half first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cvt {
    pub(crate) to: Type,
    pub(crate) from: Type,
    pub(crate) round: Round,
    pub(crate) ftz: bool,
    pub(crate) saturate: bool,
    pub(crate) relu: bool,
    pub(crate) d: Reg,
    pub(crate) a: Reg,
    pub(crate) b: Reg,
}
