//! Builds the probes for every architecture; `src/probe_ptx.rs` embeds them.

use cuda_builder::Arch;

fn main() {
    if let Err(error) = cuda_builder::embed(&["kernels-gpu/probes"], &Arch::ALL) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
