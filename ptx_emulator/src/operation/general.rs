//! Instructions of ordinary programs that none of this workspace's kernels has: carries, directed roundings, dot
//! products of bytes, integer tensor-core products, calls of functions, printing.

use super::{Address, D, P, Reg, Space, Test, W};
use crate::float::Rounding;
use crate::float::exact::Operation;
use crate::report::Class;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum General {
    Carry(Carry),
    Rounded(Rounded),
    /// `rcp.approx.ftz.f64`, or `rsqrt.approx.ftz.f64`: of the upper word, to the upper word.
    Gross {
        root: bool,
        d: D,
        a: D,
    },
    /// `rsqrt.approx.f64`.
    RootOf64 {
        d: D,
        a: D,
    },
    Dot(Dot),
    Field {
        op: FieldOp,
        d: W,
        s: [W; 3],
    },
    /// `testp`.
    TestNumber {
        kind: NumberKind,
        d: P,
        a: Reg,
    },
    /// Whether a generic address is in a memory; `constant` where that is constant memory, which is a part of global
    /// memory here.
    IsSpace {
        space: Space,
        constant: bool,
        d: P,
        a: D,
    },
    /// `discard`: what the line holds is lost.
    Discard {
        address: Address,
    },
    IntegerMma(IntegerMma),
    /// The lanes' part of what a `bar.red` combines, before they arrive.
    BarrierVote {
        value: Test,
    },
    /// What it combined, once the barrier is complete.
    BarrierResult {
        op: Reduction,
        d: Reg,
    },
    /// The frame of a function that is called has so many bytes, which the stack must have.
    Reserve {
        bytes: u32,
    },
    /// Bytes in local memory that may be unwritten: parameters and results of calls.
    CopyLocal {
        to: Address,
        from: Address,
        bytes: u32,
    },
    /// The registers of a function that may be called again before it returns, to or from local memory.
    Spill {
        restores: bool,
        to: Address,
        registers: Vec<Reg>,
    },
    /// `vprintf`: the addresses of the format and of the arguments, and how many arguments there were.
    Print {
        format: D,
        arguments: D,
        d: W,
    },
    /// `__assertfail`.
    AssertFail {
        message: D,
        file: D,
        line: W,
        function: D,
    },
}

/// `add.cc` to `madc.hi.cc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Carry {
    pub(crate) op: CarryOp,
    /// The flag that it adds, and that it sets; one of the warp's predicates.
    pub(crate) reads: Option<P>,
    pub(crate) sets: Option<P>,
    pub(crate) d: Reg,
    pub(crate) s: [Reg; 3],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CarryOp {
    Add,
    /// The flag is a borrow.
    Sub,
    MadLow,
    MadHigh {
        signed: bool,
    },
}

/// Arithmetic on f32 or f64 in a direction of rounding other than to nearest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rounded {
    pub(crate) operation: Operation,
    pub(crate) rounding: Rounding,
    pub(crate) ftz: bool,
    pub(crate) saturate: bool,
    pub(crate) d: Reg,
    pub(crate) s: [Reg; 3],
}

/// `dp4a` and `dp2a`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dot {
    /// Bits of an element of `a`: 8, or 16, whose partners are the low or high bytes of `b`.
    pub(crate) bits: u32,
    pub(crate) high: bool,
    pub(crate) a_signed: bool,
    pub(crate) b_signed: bool,
    pub(crate) d: W,
    pub(crate) s: [W; 3],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldOp {
    SignExtend { signed: bool, wrap: bool },
    Mask { wrap: bool },
    FindNth,
    Permute(Permute),
}

/// The modes of `prmt`, whose selector is a number of a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permute {
    Forward4,
    Backward4,
    Replicate8,
    EdgeLeft,
    EdgeRight,
    Replicate16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NumberKind {
    Finite,
    Infinite,
    Number,
    NotANumber,
    Normal,
    Subnormal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reduction {
    And,
    Or,
    Count,
}

/// `mma` of bytes: m8n8k16, m16n8k16, m16n8k32.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IntegerMma {
    pub(crate) m: u32,
    pub(crate) k: u32,
    pub(crate) a_signed: bool,
    pub(crate) b_signed: bool,
    pub(crate) saturate: bool,
    pub(crate) d: Vec<W>,
    pub(crate) a: Vec<W>,
    pub(crate) b: Vec<W>,
    pub(crate) c: Vec<W>,
}

impl General {
    pub(crate) fn class(&self) -> Class {
        match self {
            General::Carry(_) | General::Dot(_) | General::Field { .. } => Class::Integer,
            General::Rounded(_) | General::Gross { .. } | General::RootOf64 { .. } => Class::Float,
            General::TestNumber { .. } | General::IsSpace { .. } => Class::Select,
            General::Discard { .. } | General::CopyLocal { .. } | General::Print { .. } => Class::Store,
            General::Spill { .. } | General::AssertFail { .. } => Class::Store,
            General::Reserve { .. } => Class::Branch,
            General::IntegerMma(_) => Class::TensorCore,
            General::BarrierVote { .. } | General::BarrierResult { .. } => Class::Barrier,
        }
    }

    /// The order of the blocks of a launch shows in what it does.
    pub(crate) fn is_ordered(&self) -> bool {
        matches!(self, General::Print { .. })
    }
}
