//! How options are spelt: names in any case, and what is meant by options that other programs have.

use std::str::FromStr;

use clap::ValueEnum;
use clap::error::ContextKind;
use ferrotile::Layout;

/// What the exit codes mean, for the help of every command.
pub(crate) const EXIT_CODES: &str = "Exit codes:
  0  the work is done, and a check has passed
  1  the work failed: a check, a result that is not finite, no such card, a kernel that it lacks, no place to write
  2  the request is at fault: options, files, shapes, types, elements that a conversion would lose";

/// Options of other programs, and what says the same here.
const ELSEWHERE: [(&str, &str); 15] = [
    ("--causal", "--mask causal"),
    ("--is-causal", "--mask causal"),
    ("--window", "--mask window:LEFT,RIGHT"),
    ("--window-size", "--mask window:LEFT,RIGHT"),
    ("--attn-mask", "--bias"),
    ("--attn-bias", "--bias"),
    ("--f16", "--dtype f16"),
    ("--fp16", "--dtype f16"),
    ("--half", "--dtype f16"),
    ("--bf16", "--dtype bf16"),
    ("--fp8", "--dtype e4m3"),
    ("--uint8", "--dtype u8"),
    ("--softmax-scale", "--scale"),
    ("--cpu", "--device cpu"),
    ("--output", "--out"),
];

/// A layout as options spell it.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum LayoutName {
    Bhsd,
    Bshd,
}

impl From<LayoutName> for Layout {
    fn from(name: LayoutName) -> Layout {
        match name {
            LayoutName::Bhsd => Layout::Bhsd,
            LayoutName::Bshd => Layout::Bshd,
        }
    }
}

/// Parses a name that is spelt in lower case, in any case.
pub(crate) fn in_any_case<T: FromStr>(text: &str) -> Result<T, T::Err> {
    text.to_lowercase().parse()
}

/// A number as options take it.
pub(crate) fn finite(text: &str) -> Result<f32, &'static str> {
    text.parse().ok().filter(|scale: &f32| scale.is_finite()).ok_or("expected a finite number")
}

/// What says the same as an option that there is none of, if that is known.
pub(crate) fn meant(error: &clap::Error) -> Option<String> {
    let wrong = error.get(ContextKind::InvalidArg)?.to_string();
    let (_, right) = ELSEWHERE.iter().find(|(option, _)| *option == wrong)?;
    Some(format!("error: unexpected argument '{wrong}' found: give {right}"))
}
