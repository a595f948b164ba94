//! `cargo xtask check`.

use std::process::Command;

use anyhow::Result;
use cuda_builder::Arch;

use crate::workspace::{self, cargo, device_crates, target};

/// What makes warnings of clippy errors.
const DENY: [&str; 3] = ["--", "-D", "warnings"];

/// Checks format, lints and documentation, with warnings as errors.
pub(crate) fn run() -> Result<()> {
    workspace::run(cargo().args(["fmt", "--all", "--check"]))?;
    workspace::run(cargo().args(["clippy", "--workspace", "--all-targets", "--features", "tests/cudarc"]).args(DENY))?;
    lint_library()?;
    // What a device crate holds differs by architecture. Its documentation is whole for the newest.
    for arch in Arch::ALL {
        workspace::run(device_cargo(arch, "clippy").args(DENY))?;
    }
    let newest = Arch::Sm90a;
    let mut documentation = device_cargo(newest, "doc");
    documentation.env("RUSTDOCFLAGS", format!("-D warnings -Ctarget-cpu={newest}"));
    workspace::run(documentation.arg("--no-deps"))?;
    let mut documentation = cargo();
    documentation.env("RUSTDOCFLAGS", "-D warnings");
    documentation.args(["doc", "--workspace", "--no-deps", "--document-private-items"]);
    documentation.args(["--features", "ferrotile/cudarc"]);
    // On the CPU a crate of kernels is empty, but for a page that links to what is not there.
    for name in kernel_packages() {
        documentation.args(["--exclude", name]);
    }
    workspace::run(&mut documentation)
}

/// A system that the library is checked for beside this one: its driver has another name.
const WINDOWS: &str = "x86_64-pc-windows-msvc";

/// Lints the library as others depend on it: without the feature `cust`, which the workspace has on, with little else,
/// with `cudarc`, and for Windows. Lints its tests without `cust` too.
fn lint_library() -> Result<()> {
    let lint = |arguments: &[&str]| {
        let mut clippy = cargo();
        // As on docs.rs the library has no PTX, which would be built or copied for each of these builds.
        clippy.env("DOCS_RS", "1");
        clippy.args(["clippy", "-p", "ferrotile"]).args(arguments).args(DENY);
        workspace::run(&mut clippy)
    };
    lint(&["--all-targets", "--no-default-features"])?;
    lint(&["--all-targets", "--features", "cudarc"])?;
    // The tests embed the PTX of probes, and do not compile without it.
    workspace::run(cargo().args(["clippy", "-p", "tests", "--all-targets", "--no-default-features"]).args(DENY))?;
    workspace::run(Command::new("rustup").args(["target", "add", WINDOWS]).current_dir(workspace::root()))?;
    lint(&["--lib", "--target", WINDOWS])
}

/// A cargo command on the device crates as GPU code, in a target folder of its own: the artifacts fit neither the
/// host's builds nor `cuda_builder`'s. The macros are compiled once for all architectures.
fn device_cargo(arch: Arch, command: &str) -> Command {
    let mut cargo = cargo();
    cargo.env("CARGO_TARGET_DIR", target().join("check"));
    cargo.env("RUSTFLAGS", format!("-Ctarget-cpu={arch}"));
    cargo.args([command, "--target", "nvptx64-nvidia-cuda", "-Zbuild-std=core"]);
    for name in device_packages() {
        cargo.args(["-p", name]);
    }
    cargo
}

/// The packages that are GPU code.
fn device_packages() -> impl Iterator<Item = &'static str> {
    kernel_packages().chain(["ferrotile-cuda-std"])
}

/// The packages of kernels. Those with faults are among them, which no gate of a build would let pass.
fn kernel_packages() -> impl Iterator<Item = &'static str> {
    device_crates().chain(["broken"])
}
