//! The PTX that the library carries, compressed: each kernel is a stream of its own.

use std::io::Read;
use std::ops::Range;

use layout::Arch;
use lzma_rust2::LzmaReader;

/// A kernel family for an architecture, and its streams in the format `.lzma`.
type Family = (&'static str, Arch, &'static [u8], Index);

/// Where the streams are: the text before the first entry, the text behind the last one, and each entry with the number
/// of its base, whose text the dictionary of its stream starts with.
type Index = ([Range<usize>; 2], &'static [(&'static str, Range<usize>, Option<usize>)]);

/// Written by the build script.
static TABLE: &[Family] = include!(concat!(env!("OUT_DIR"), "/ptx_table.rs"));

fn family_of(family: &str, arch: Arch) -> Option<&'static Family> {
    TABLE.iter().find(|embedded| embedded.0 == family && embedded.1 == arch)
}

/// Whether there is PTX of a family for an architecture.
pub(crate) fn is_embedded(family: &str, arch: Arch) -> bool {
    family_of(family, arch).is_some()
}

/// The text of a stream whose dictionary starts with a text.
fn inflate(stream: &[u8], base: &str) -> String {
    let mut text = String::new();
    let reader = LzmaReader::new_mem_limit(stream, u32::MAX, Some(base.as_bytes()));
    let read = reader.and_then(|mut reader| reader.read_to_string(&mut text));
    read.expect("the build script has compressed it");
    text
}

/// The PTX of a kernel family, such as `"attention"`, for an architecture; `None` if the architecture's feature is off
/// or there is no such family. It takes 0.1 s to inflate that of the largest family.
///
/// ```
/// use ferrotile::{Arch, embedded_ptx};
///
/// assert!(embedded_ptx("gemm", Arch::Sm80).is_some_and(|ptx| ptx.contains(".target sm_80")));
/// ```
pub fn embedded_ptx(family: &str, arch: Arch) -> Option<String> {
    let (_, _, streams, ([head, tail], entries)) = family_of(family, arch)?;
    // A base stands before what it is the base of.
    let mut texts: Vec<String> = Vec::new();
    for (_, part, base) in *entries {
        let text = inflate(&streams[part.clone()], base.map_or("", |base| &texts[base]));
        texts.push(text);
    }
    Some([inflate(&streams[head.clone()], ""), texts.concat(), inflate(&streams[tail.clone()], "")].concat())
}

/// The names of the kernels of a family, in the order of its PTX; none where [`embedded_ptx`] is none.
///
/// ```
/// use ferrotile::{Arch, embedded_kernels};
///
/// assert!(embedded_kernels("ata", Arch::Sm80).count() > 0);
/// ```
pub fn embedded_kernels(family: &str, arch: Arch) -> impl Iterator<Item = &'static str> {
    family_of(family, arch).into_iter().flat_map(|embedded| embedded.3.1.iter().map(|(name, ..)| *name))
}

/// The PTX of one kernel of a family, a module of its own: what [`Gpu::kernel`](crate::Gpu::kernel) loads. `None` where
/// [`embedded_ptx`] is, or if the family has no such kernel.
///
/// The driver compiles everything that it loads, which takes seconds for a whole family. So the program carries each
/// kernel as a stream of its own, which takes about 1 ms to inflate.
///
/// ```
/// use ferrotile::{Arch, embedded_kernels, kernel_ptx};
///
/// let name = embedded_kernels("gemm", Arch::Sm80).next().unwrap();
/// assert_eq!(kernel_ptx("gemm", Arch::Sm80, name).unwrap().matches(".visible .entry").count(), 1);
/// ```
pub fn kernel_ptx(family: &str, arch: Arch, entry: &str) -> Option<String> {
    let (_, _, streams, ([head, tail], entries)) = family_of(family, arch)?;
    let (_, part, base) = entries.iter().find(|(name, ..)| *name == entry)?;
    let base = base.map_or(String::new(), |base| inflate(&streams[entries[base].1.clone()], ""));
    let entry = inflate(&streams[part.clone()], &base);
    Some([inflate(&streams[head.clone()], ""), entry, inflate(&streams[tail.clone()], "")].concat())
}

#[cfg(test)]
mod tests {
    use variants::FAMILIES;

    use super::*;

    const ENTRY: &str = ".visible .entry ";

    /// The most that the PTX of a program may take that has no optional family. A small program takes 2.45 MB beside
    /// it, and shall stay under 9 MB (`xtask/src/package/verify.rs`).
    const MOST_BYTES: usize = 6_500_000;

    #[test]
    fn the_ptx_is_small() {
        let embedded = TABLE.iter().filter(|(family, ..)| FAMILIES.contains(family));
        let bytes: usize = embedded.map(|(_, _, streams, _)| streams.len()).sum();
        assert!(bytes <= MOST_BYTES, "{bytes} bytes of PTX");
    }

    #[test]
    fn every_entry_stands_alone() {
        for (family, arch, _, (_, entries)) in TABLE {
            let ptx = embedded_ptx(family, *arch).unwrap();
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
