//! Kernels that the user names.

/// The word for every kernel.
const ALL: &str = "all";

/// No kernel of that name.
#[derive(Debug, thiserror::Error)]
#[error("no {family} kernel is called '{name}'; `ferrotile info --kernels` lists them")]
pub(crate) struct UnknownKernel {
    family: &'static str,
    name: String,
}

/// Refuses a name that is none of the `known` ones of the family, nor the word for all.
pub(crate) fn check(
    names: &[String],
    family: &'static str,
    known: impl Iterator<Item = &'static str> + Clone,
) -> Result<(), UnknownKernel> {
    match names.iter().find(|&name| name != ALL && !known.clone().any(|known| known == name)) {
        Some(name) => Err(UnknownKernel { family, name: name.clone() }),
        None => Ok(()),
    }
}

/// Whether a kernel is among those named.
pub(crate) fn include(names: &[String], kernel: &str) -> bool {
    names.iter().any(|name| name == ALL || name == kernel)
}
