//! The PTX of the probes, one tiny kernel for each wrapper of `cuda_std`.

use layout::Arch;

/// (package, architecture, PTX), written by the build script.
static TABLE: &[(&str, Arch, &str)] = include!(concat!(env!("OUT_DIR"), "/ptx_table.rs"));

/// The PTX of the probes for an architecture.
pub fn probe_ptx(arch: Arch) -> &'static str {
    let row = TABLE.iter().find(|row| row.1 == arch);
    row.expect("the build script builds every architecture").2
}
