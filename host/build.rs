//! Builds the kernel families for the architectures whose features are on; `src/ptx.rs` embeds them.

use cuda_builder::Arch;
use layout::FAMILIES;

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
    let crates = FAMILIES.map(|family| format!("kernels-gpu/{family}"));
    if let Err(error) = cuda_builder::embed(&crates.each_ref().map(String::as_str), &archs) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
