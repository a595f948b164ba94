//! Problems in host memory, from files or random, their solutions on a card or the CPU, and the check of these.

pub(crate) mod attention;
pub(crate) mod bias;
pub(crate) mod case;
pub(crate) mod cu_seqlens;
pub(crate) mod descale;
pub(crate) mod error;
pub(crate) mod gemm;
pub(crate) mod on_card;
pub(crate) mod random;
pub(crate) mod request;
pub(crate) mod task;
pub(crate) mod varlen;
pub(crate) mod verdict;
