//! Compiles the kernels to PTX, which `src/lib.rs` has in it.

use std::path::Path;
use std::process::exit;

use cuda_builder::{Arch, CudaBuilder};

fn main() {
    let out = std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    let ptx = Path::new(&out).join("kernels.ptx");
    // PTX of the oldest architecture runs on every card.
    match CudaBuilder::new("kernels")
        .arch(Arch::Sm80)
        .copy_to(ptx)
        .build()
    {
        Ok(build) => build.emit_rerun(),
        Err(error) => {
            eprintln!("{error}");
            exit(1);
        }
    }
}
