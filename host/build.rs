//! Builds the kernel families for the architectures whose features are on; `src/ptx.rs` embeds them.

use cuda_builder::Arch;

/// The device crates, each of which is one kernel family.
const FAMILIES: &[&str] = &["kernels-gpu/ata", "kernels-gpu/attention"];

fn main() {
    let enabled = |arch: &Arch| {
        let feature = match arch {
            Arch::Sm80 => "CARGO_FEATURE_SM80",
            Arch::Sm89 => "CARGO_FEATURE_SM89",
            Arch::Sm90a => "CARGO_FEATURE_SM90",
        };
        std::env::var_os(feature).is_some()
    };
    let archs: Vec<Arch> = Arch::ALL.into_iter().filter(enabled).collect();
    if let Err(error) = cuda_builder::embed(FAMILIES, &archs) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
