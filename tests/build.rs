//! Builds the probes for every architecture, which `src/probe_ptx.rs` embeds, and the kernels with faults, which
//! `broken/main.rs` does.

use std::path::Path;

use cuda_builder::{Arch, CudaBuilder, Error};

fn main() {
    if let Err(error) = build() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn build() -> Result<(), Error> {
    cuda_builder::embed(&["kernels-gpu/probes"], &Arch::ALL)?;
    let out = std::env::var_os("OUT_DIR").unwrap_or_default();
    let ptx = Path::new(&out).join("broken.ptx");
    CudaBuilder::new("kernels-gpu/broken").arch(Arch::Sm90a).copy_to(ptx).build()?.emit_rerun();
    Ok(())
}
