//! `cargo xtask check`.

use anyhow::Result;
use cuda_builder::Arch;

use crate::workspace::{self, DEVICE_CRATES, cargo, target};

/// Format, lints and documentation, with warnings as errors; device code for every architecture, since what it holds differs.
pub(crate) fn run() -> Result<()> {
    workspace::run(cargo().args(["fmt", "--all", "--check"]))?;
    workspace::run(cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    let device = DEVICE_CRATES.into_iter().chain(["cuda_std"]).flat_map(|name| ["-p", name]);
    for arch in Arch::ALL {
        // A folder of its own: neither the host's nor the builder's artifacts fit.
        let target = target().join("check").join(arch.target_cpu());
        let gpu = ["--target", "nvptx64-nvidia-cuda", "-Zbuild-std=core"];
        let mut clippy = cargo();
        clippy.env("RUSTFLAGS", format!("-Ctarget-cpu={arch}")).env("CARGO_TARGET_DIR", target);
        workspace::run(clippy.arg("clippy").args(device.clone()).args(gpu).args(["--", "-D", "warnings"]))?;
    }
    let mut documentation = cargo();
    documentation.env("RUSTDOCFLAGS", "-D warnings");
    workspace::run(documentation.args(["doc", "--workspace", "--no-deps", "--document-private-items"]))
}
