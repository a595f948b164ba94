//! The PTX that the library carries.

use layout::Arch;

/// (family, architecture, PTX), written by the build script.
static TABLE: &[(&str, Arch, &str)] = include!(concat!(env!("OUT_DIR"), "/ptx_table.rs"));

/// The PTX of a kernel family, such as `"attention"`, for an architecture; `None` if the architecture's feature is off
/// or there is no such family.
pub fn embedded_ptx(family: &str, arch: Arch) -> Option<&'static str> {
    TABLE.iter().find(|row| row.0 == family && row.1 == arch).map(|row| row.2)
}

/// The PTX of one kernel of a family, a module of its own: what [`Gpu::kernel`](crate::Gpu::kernel) loads.
pub fn kernel_ptx(family: &str, arch: Arch, entry: &str) -> Option<String> {
    with_one_entry(embedded_ptx(family, arch)?, entry)
}

/// What precedes the name of every entry.
const ENTRY: &str = "\n.visible .entry ";

/// The module with one of its entries alone; `None` if it has no entry of this name.
///
/// The driver compiles all of what it loads, which takes seconds for a whole family. The entries of a family share
/// nothing but the declarations before the first and the file names of the line tables after the last.
pub(crate) fn with_one_entry(ptx: &str, entry: &str) -> Option<String> {
    let declarations = &ptx[..ptx.find(ENTRY)?];
    let files = ptx.find("\n\t.file").unwrap_or(ptx.len());
    let start = ptx.find(&format!("{ENTRY}{entry}("))?;
    let end = ptx[start + 1..].find(ENTRY).map_or(files, |length| start + 1 + length);
    Some([declarations, &ptx[start..end], &ptx[files..]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_stands_alone() {
        for (family, arch, ptx) in TABLE {
            let names: Vec<&str> = ptx.split(ENTRY).skip(1).filter_map(|text| text.split('(').next()).collect();
            // The ladder is for Hopper alone.
            assert!(!names.is_empty() || (*family == "ladder" && *arch != Arch::Sm90a), "{family} {arch}");
            for name in &names {
                let alone = with_one_entry(ptx, name).unwrap();
                assert_eq!(alone.matches(ENTRY).count(), 1, "{name}");
                assert!(alone.contains(&format!("{ENTRY}{name}(")), "{name}");
                assert_eq!(alone.matches('{').count(), alone.matches('}').count(), "{name}");
                assert!(alone.starts_with(".version"), "{name}");
                assert_eq!(alone.matches("\t.file").count(), ptx.matches("\t.file").count(), "{name}");
            }
            assert_eq!(with_one_entry(ptx, "no_such_entry"), None);
        }
    }
}
