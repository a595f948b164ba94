//! The PTX of the probes, one tiny kernel for each wrapper of `cuda_std`.

use layout::Arch;

/// The PTX of the probes for an architecture.
pub fn probe_ptx(arch: Arch) -> &'static str {
    // The build script has written these files.
    match arch {
        Arch::Sm80 => include_str!(concat!(env!("OUT_DIR"), "/probes.sm_80.ptx")),
        Arch::Sm89 => include_str!(concat!(env!("OUT_DIR"), "/probes.sm_89.ptx")),
        Arch::Sm90a => include_str!(concat!(env!("OUT_DIR"), "/probes.sm_90a.ptx")),
    }
}
