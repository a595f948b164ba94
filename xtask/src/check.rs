//! `cargo xtask check`.

use std::process::Command;

use anyhow::Result;
use cuda_builder::Arch;

use crate::workspace::{self, cargo, device_crates, target};

/// Checks format, lints and documentation, with warnings as errors.
pub(crate) fn run() -> Result<()> {
    workspace::run(cargo().args(["fmt", "--all", "--check"]))?;
    workspace::run(cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    // What a device crate holds differs by architecture. Its documentation is whole for the newest.
    for arch in Arch::ALL {
        workspace::run(device_cargo(arch, "clippy").args(["--", "-D", "warnings"]))?;
    }
    let newest = Arch::Sm90a;
    let mut documentation = device_cargo(newest, "doc");
    documentation.env("RUSTDOCFLAGS", format!("-D warnings -Ctarget-cpu={newest}"));
    workspace::run(documentation.arg("--no-deps"))?;
    let mut documentation = cargo();
    documentation.env("RUSTDOCFLAGS", "-D warnings");
    documentation.args(["doc", "--workspace", "--no-deps", "--document-private-items"]);
    // On the CPU a device crate is empty, but for a page that links to what is not there.
    for name in device_packages() {
        documentation.args(["--exclude", name]);
    }
    workspace::run(&mut documentation)
}

/// A cargo command on the device crates as GPU code, in a target folder of its own: the artifacts fit neither the
/// host's builds nor `cuda_builder`'s.
fn device_cargo(arch: Arch, command: &str) -> Command {
    let mut cargo = cargo();
    cargo.env("CARGO_TARGET_DIR", target().join("check").join(arch.target_cpu()));
    cargo.env("RUSTFLAGS", format!("-Ctarget-cpu={arch}"));
    cargo.args([command, "--target", "nvptx64-nvidia-cuda", "-Zbuild-std=core"]);
    for name in device_packages() {
        cargo.args(["-p", name]);
    }
    cargo
}

/// The packages that are GPU code. The kernels with faults are among them, which no gate of a build would let pass.
fn device_packages() -> impl Iterator<Item = &'static str> {
    device_crates().chain(["cuda_std", "broken"])
}
