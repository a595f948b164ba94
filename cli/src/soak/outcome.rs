//! What becomes of a run: right, refused, or a failure of some kind.

use std::fmt::Display;

use ferrotile::Error;

/// How a run ends without a failure.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome {
    /// The results are right; with the largest share of its limit that an error has.
    Right(f64),
    /// A typed error, where one is allowed: a kernel was named that does not take the tensors. Nothing was written.
    Refused(String),
}

/// What kind of thing is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An element is too far from the reference.
    Wrong,
    /// An element is NaN or infinite where the reference is not.
    NotFinite,
    /// Something else was written.
    StrayWrite,
    /// The same call twice gave different bits.
    Unrepeatable,
    /// An error where the problem is one that the library takes.
    Refused,
    /// An error of the device: a driver's, or one that the emulator found in a kernel.
    Device,
    /// The library panicked.
    Panicked,
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Failure {
    /// The kind.
    pub(crate) kind: Kind,
    /// In words.
    pub(crate) message: String,
}

impl Failure {
    /// A failure in words.
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Failure {
        Failure { kind, message: message.into() }
    }

    /// The failure with the part of the problem that has it.
    pub(crate) fn of(self, part: impl Display) -> Failure {
        Failure { message: format!("{part}: {}", self.message), ..self }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let of_device = matches!(error, Error::Driver { .. } | Error::Emulator { .. });
        Failure::new(if of_device { Kind::Device } else { Kind::Refused }, format!("an error: {error}"))
    }
}

/// What a run returns.
pub(crate) type Run = Result<Outcome, Failure>;

/// Why a run ends before its results have been found right.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Stop {
    /// The library refused, where it may ([`Outcome::Refused`]).
    Refused(String),
    /// Something is wrong.
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Failed(failure)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error.into())
    }
}

/// What `error` means for a problem of which the caller may have asked too much (`asked`): a kernel by name, splits.
pub(crate) fn refusal(asked: bool, error: Error) -> Stop {
    use Error::{Alignment, Argument, UnknownKernel, Unsupported, UnsupportedType};
    match error {
        Alignment { .. } | Argument { .. } | UnsupportedType { .. } | UnknownKernel { .. } | Unsupported { .. }
            if asked =>
        {
            Stop::Refused(error.to_string())
        }
        error => error.into(),
    }
}
