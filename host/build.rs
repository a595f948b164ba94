//! Builds the kernel families for the architectures whose features are on; `src/runtime/ptx.rs` embeds them.

use cuda_builder::Arch;
use variants::{FAMILIES, OPTIONAL_FAMILIES};

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
    let is_wanted =
        |family: &&str| std::env::var_os(format!("CARGO_FEATURE_{}", family.to_ascii_uppercase())).is_some();
    let optional = OPTIONAL_FAMILIES.into_iter().filter(is_wanted);
    let crates: Vec<String> =
        FAMILIES.into_iter().chain(optional).map(|family| format!("kernels-gpu/{family}")).collect();
    if let Err(error) = cuda_builder::embed(&crates.iter().map(String::as_str).collect::<Vec<_>>(), &archs) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
