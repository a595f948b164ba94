//! The PTX that the library carries.

use std::ops::Range;

use layout::Arch;

/// A kernel family for an architecture: its PTX, and where each entry stands in it.
type Family = (&'static str, Arch, &'static str, &'static [(&'static str, Range<usize>)]);

/// Written by the build script.
static TABLE: &[Family] = include!(concat!(env!("OUT_DIR"), "/ptx_table.rs"));

fn family_of(family: &str, arch: Arch) -> Option<&'static Family> {
    TABLE.iter().find(|embedded| embedded.0 == family && embedded.1 == arch)
}

/// The PTX of a kernel family, such as `"attention"`, for an architecture; `None` if the architecture's feature is off
/// or there is no such family.
///
/// ```
/// use ferrotile::{Arch, embedded_ptx};
///
/// assert!(embedded_ptx("gemm", Arch::Sm80).is_some_and(|ptx| ptx.contains(".target sm_80")));
/// ```
pub fn embedded_ptx(family: &str, arch: Arch) -> Option<&'static str> {
    family_of(family, arch).map(|embedded| embedded.2)
}

/// The names of the kernels of a family, in the order of its PTX; none where [`embedded_ptx`] is none.
///
/// ```
/// use ferrotile::{Arch, embedded_kernels};
///
/// assert!(embedded_kernels("ata", Arch::Sm80).count() > 0);
/// ```
pub fn embedded_kernels(family: &str, arch: Arch) -> impl Iterator<Item = &'static str> {
    family_of(family, arch).into_iter().flat_map(|embedded| embedded.3.iter().map(|(name, _)| *name))
}

/// The PTX of one kernel of a family, a module of its own: what [`Gpu::kernel`](crate::Gpu::kernel) loads. `None` where
/// [`embedded_ptx`] is, or if the family has no such kernel.
///
/// The driver compiles everything that it loads, which takes seconds for a whole family. The build script has found
/// where each kernel stands, because a search at run time would take 9 ms.
///
/// ```
/// use ferrotile::{Arch, embedded_kernels, kernel_ptx};
///
/// let name = embedded_kernels("gemm", Arch::Sm80).next().unwrap();
/// assert_eq!(kernel_ptx("gemm", Arch::Sm80, name).unwrap().matches(".visible .entry").count(), 1);
/// ```
pub fn kernel_ptx(family: &str, arch: Arch, entry: &str) -> Option<String> {
    let (_, _, ptx, entries) = family_of(family, arch)?;
    let (_, range) = entries.iter().find(|(name, _)| *name == entry)?;
    let ((_, first), (_, last)) = (entries.first()?, entries.last()?);
    Some([&ptx[..first.start], &ptx[range.clone()], &ptx[last.end..]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: &str = ".visible .entry ";

    #[test]
    fn every_entry_stands_alone() {
        for (family, arch, ptx, entries) in TABLE {
            // The ladder is for Hopper alone.
            assert!(!entries.is_empty() || (*family == "ladder" && *arch != Arch::Sm90a), "{family} {arch}");
            assert_eq!(ptx.matches(ENTRY).count(), entries.len(), "{family} {arch}");
            assert_eq!(embedded_kernels(family, *arch).count(), entries.len(), "{family} {arch}");
            for name in embedded_kernels(family, *arch) {
                let alone = kernel_ptx(family, *arch, name).unwrap();
                assert_eq!(alone.matches(ENTRY).count(), 1, "{name}");
                assert!(alone.contains(&format!("{ENTRY}{name}(")), "{name}");
                assert_eq!(alone.matches('{').count(), alone.matches('}').count(), "{name}");
                assert!(alone.starts_with(".version") && alone.ends_with('\n'), "{name}");
                assert_eq!(alone.matches("\t.file").count(), ptx.matches("\t.file").count(), "{name}");
            }
            assert_eq!(kernel_ptx(family, *arch, "no_such_entry"), None);
        }
        assert_eq!(kernel_ptx("no_such_family", Arch::Sm80, "no_such_entry"), None);
        assert_eq!(embedded_kernels("no_such_family", Arch::Sm80).count(), 0);
    }
}
