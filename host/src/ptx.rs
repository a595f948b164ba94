//! The PTX that the library carries.

use layout::Arch;

/// (family, architecture, PTX), written by the build script.
static TABLE: &[(&str, Arch, &str)] = include!(concat!(env!("OUT_DIR"), "/ptx_table.rs"));

/// The PTX of a kernel family, such as `"attention"`, for an architecture; `None` if the architecture's feature is off or there
/// is no such family.
pub fn embedded_ptx(family: &str, arch: Arch) -> Option<&'static str> {
    TABLE.iter().find(|row| row.0 == family && row.1 == arch).map(|row| row.2)
}
