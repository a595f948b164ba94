//! Why a benchmark cannot be made as asked.

use crate::bench::kernel_names::UnknownKernel;

/// Why a benchmark cannot be made as asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// No kernel of that name.
    #[error(transparent)]
    UnknownKernel(#[from] UnknownKernel),
    /// Nothing to measure.
    #[error("a benchmark measures a card: {0}")]
    NoCard(ferrotile::Error),
    /// None of the named kernels serves the case.
    #[error("none of the kernels named serves the case {0}")]
    NothingServes(String),
    /// A case that no kernel of the study serves.
    #[error("case {0}: the study has kernels for head dimensions up to 128, without softcap, bias and varlen")]
    OutsideStudy(String),
    /// A case that attention does not take.
    #[error("case {case}: {reason}")]
    Case {
        /// The case.
        case: String,
        /// What is wrong with it.
        reason: ferrotile::Error,
    },
    /// The keys do not fill their pages.
    #[error("case {case}: give a page size that divides the number of keys")]
    PartialPage {
        /// The case.
        case: String,
    },
}

impl BenchError {
    /// Whether the request is at fault rather than the machine.
    pub(crate) fn is_bad_request(&self) -> bool {
        !matches!(self, BenchError::NoCard(_))
    }
}
