//! The PTX of the probes, one tiny kernel for each wrapper of `cuda_std`.

use std::ops::Range;

use layout::Arch;

/// Package, architecture, PTX, and where each entry stands in it.
type Probes = (&'static str, Arch, &'static str, &'static [(&'static str, Range<usize>)]);

/// Written by the build script.
static TABLE: &[Probes] = include!(concat!(env!("OUT_DIR"), "/ptx_table.rs"));

/// The PTX of the probes for an architecture.
pub fn probe_ptx(arch: Arch) -> &'static str {
    let probes = TABLE.iter().find(|probes| probes.1 == arch);
    probes.expect("the build script builds every architecture").2
}
