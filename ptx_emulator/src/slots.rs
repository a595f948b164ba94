//! The slots of a warp's register banks, as instructions name them.

/// A slot of the 32-bit bank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct W(pub(crate) u32);

/// A slot of the 64-bit bank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct D(pub(crate) u32);

/// A slot of the predicate bank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct P(pub(crate) u32);

/// A register of any type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reg {
    P(P),
    /// 16 bits, in the 32-bit bank.
    H(W),
    W(W),
    D(D),
}

/// A predicate as a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Test {
    pub(crate) p: P,
    pub(crate) negated: bool,
}
