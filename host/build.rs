//! Builds the kernel families for the architectures whose features are on; `src/runtime/ptx.rs` embeds them.

use cuda_builder::Arch;
use variants::FAMILIES;

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
    let ladder = std::env::var_os("CARGO_FEATURE_LADDER").map(|_| "ladder");
    let crates: Vec<String> =
        FAMILIES.into_iter().chain(ladder).map(|family| format!("kernels-gpu/{family}")).collect();
    if let Err(error) = cuda_builder::embed(&crates.iter().map(String::as_str).collect::<Vec<_>>(), &archs) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
