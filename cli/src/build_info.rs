//! Which build this is.

use ferrotile::{Arch, embedded_kernels};
use serde::Serialize;

use crate::catalogue::FAMILIES;

/// The build of this program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct BuildInfo {
    /// The version of the program.
    pub(crate) version: &'static str,
    /// The commit that it was built from, or `unknown` where there was no repository.
    pub(crate) git_hash: &'static str,
    /// Whether sources differed from that commit; `None` where there was no repository.
    pub(crate) git_dirty: Option<bool>,
    /// The architectures whose kernels are in it.
    pub(crate) archs: Vec<String>,
}

impl BuildInfo {
    /// This build.
    pub(crate) fn new() -> BuildInfo {
        let has_kernels = |arch: &Arch| FAMILIES.iter().any(|family| embedded_kernels(family, *arch).next().is_some());
        let archs = Arch::ALL.into_iter().filter(has_kernels);
        BuildInfo {
            version: env!("CARGO_PKG_VERSION"),
            git_hash: env!("FERROTILE_GIT_HASH"),
            git_dirty: env!("FERROTILE_GIT_DIRTY").parse().ok(),
            archs: archs.map(|arch| arch.to_string()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commit_is_a_hash_or_unknown() {
        let BuildInfo { git_hash, git_dirty, .. } = BuildInfo::new();
        let is_hash = git_hash.len() >= 40 && git_hash.chars().all(|digit| digit.is_ascii_hexdigit());
        assert!(is_hash || git_hash == "unknown", "{git_hash}");
        assert_eq!(is_hash, git_dirty.is_some());
    }
}
