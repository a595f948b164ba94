//! Where things are, and how commands are run.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use variants::{FAMILIES, OPTIONAL_FAMILIES};

/// The device crates that are built: the kernel families, and the probes of the PTX wrappers.
pub(crate) fn device_crates() -> impl Iterator<Item = &'static str> {
    FAMILIES.into_iter().chain(OPTIONAL_FAMILIES).chain(["probes"])
}

/// The root of the workspace.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// The target folder of the workspace.
pub(crate) fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => std::path::absolute(&folder).unwrap_or(folder.into()),
        None => root().join("target"),
    }
}

/// cargo of the pinned toolchain, run at the root of the workspace.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(root());
    cargo
}

/// Prints and runs a command, which must succeed.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let mut line = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    for argument in command.get_args() {
        line += " ";
        line += &argument.to_string_lossy();
    }
    eprintln!("$ {line}");
    let status = command.status().with_context(|| format!("cannot run {}", command.get_program().display()))?;
    ensure!(status.success(), "`{line}` failed ({status})");
    Ok(())
}
