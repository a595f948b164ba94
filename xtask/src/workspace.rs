//! Where things are, and how commands are run.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use cuda_builder::toolchain::clean_environment;
use lzma_rust2::{XzOptions, XzWriter};
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

/// Writes an archive `.tar.xz` of files and folders of `folder`, which finds what is equal so many bytes apart.
pub(crate) fn archive(
    path: &Path,
    folder: &Path,
    names: impl IntoIterator<Item: AsRef<OsStr>>,
    dictionary_bytes: u32,
) -> Result<()> {
    let tar = path.with_extension("");
    run(Command::new("tar").arg("-cf").arg(&tar).arg("-C").arg(folder).args(names))?;
    let mut options = XzOptions::with_preset(1);
    options.lzma_options.dict_size = dictionary_bytes;
    let mut writer = XzWriter::new(File::create(path)?, options)?;
    std::io::copy(&mut File::open(&tar)?, &mut writer)?;
    writer.finish()?;
    Ok(fs::remove_file(&tar)?)
}

/// Writes a file, and makes its folder.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    fs::write(path, text).with_context(|| path.display().to_string())
}

/// Frees a command from what the calling cargo and this workspace set, as outside of the workspace.
pub(crate) fn leave(command: &mut Command) {
    clean_environment(command);
    // `.cargo/config.toml` sets it for cust.
    command.env_remove("CUDA_LIBRARY_PATH");
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
