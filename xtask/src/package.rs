//! `cargo xtask package`.
//!
//! The package is a workspace of the crates that run on the CPU. Its PTX is in `host/ptx`, where the build script of
//! the library looks before it compiles device code. The package has no `rust-toolchain.toml`, because stable Rust
//! compiles it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use cuda_builder::toolchain::clean_environment;
use cuda_builder::{Arch, CudaBuilder, embed};
use layout::FAMILIES;

use crate::workspace::{self, root, target};

/// Arguments of `cargo xtask package`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Builds the library and the program from the package with stable Rust
    #[arg(long)]
    verify: bool,
}

/// The crates of the package.
const MEMBERS: [&str; 5] = ["kernels-gpu/layout", "cuda_builder", "ptx_emulator", "host", "cli"];

/// What else belongs to it.
const FILES: [&str; 6] =
    [".cargo/config.toml", "CHANGELOG.md", "Cargo.lock", "LICENSE-APACHE", "LICENSE-MIT", "README.md"];

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let parent = target().join("package");
    let name = format!("ferrotile-{}", env!("CARGO_PKG_VERSION"));
    let folder = parent.join(&name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    for member in MEMBERS {
        copy_crate(&root().join(member), &folder.join(member))?;
    }
    for file in FILES {
        copy_file(&root().join(file), &folder.join(file))?;
    }
    let manifest = fs::read_to_string(root().join("Cargo.toml"))?;
    fs::write(folder.join("Cargo.toml"), package_manifest(&manifest).context("Cargo.toml has no list of members")?)?;
    for family in FAMILIES.into_iter().chain(["ladder"]) {
        for arch in Arch::ALL {
            let ptx = folder.join("host/ptx").join(embed::file_name(family, arch));
            CudaBuilder::new(root().join("kernels-gpu").join(family)).arch(arch).copy_to(ptx).build()?;
        }
    }
    let archive = parent.join(format!("{name}.tar.gz"));
    workspace::run(Command::new("tar").arg("-czf").arg(&archive).arg("-C").arg(&parent).arg(&name))?;
    println!("{}", archive.display());
    if arguments.verify { verify(&folder, &parent.join("target")) } else { Ok(()) }
}

/// Builds the package as a user does, with the stable toolchain.
fn verify(folder: &Path, target: &Path) -> Result<()> {
    let mut cargo = Command::new("rustup");
    clean_environment(&mut cargo);
    cargo.args(["run", "stable", "cargo", "build", "--workspace", "--target-dir"]).arg(target).current_dir(folder);
    workspace::run(&mut cargo)?;
    ensure!(!target.join("cuda-builder").exists(), "the package compiled device code instead of using its PTX");
    Ok(())
}

/// The manifest of the workspace with the members of the package alone.
fn package_manifest(manifest: &str) -> Option<String> {
    let start = manifest.find("members = [")?;
    let end = start + manifest[start..].find(']')? + 1;
    let members = MEMBERS.map(|member| format!("    \"{member}\",\n")).concat();
    let (head, tail) = (&manifest[..start], &manifest[end..]);
    let is_left_out = |line: &&str| {
        line.contains("path = \"") && !MEMBERS.iter().any(|member| line.contains(&format!("\"{member}\"")))
    };
    let tail: String = tail.split_inclusive('\n').filter(|line| !is_left_out(line)).collect();
    Some(format!("{head}members = [\n{members}]{tail}"))
}

/// Copies a crate without its tests, which need the rest of the workspace.
fn copy_crate(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let source = entry?.path();
        let name = source.file_name().unwrap_or_default();
        if name == "tests" || name == "target" {
            continue;
        }
        copy_tree(&source, &to.join(name))?;
    }
    Ok(())
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    if !from.is_dir() {
        return copy_file(from, to);
    }
    for entry in fs::read_dir(from)? {
        let source = entry?.path();
        copy_tree(&source, &to.join(source.file_name().unwrap_or_default()))?;
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path) -> Result<()> {
    let parent = to.parent().map(PathBuf::from).unwrap_or_default();
    fs::create_dir_all(&parent)?;
    fs::copy(from, to).with_context(|| from.display().to_string())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_keeps_packaged_crates_alone() {
        let manifest = "[workspace]\nmembers = [\n    \"host\",\n    \"tests\",\n]\n\n[workspace.dependencies]\n\
                        ferrotile = { path = \"host\" }\nattention = { path = \"kernels-gpu/attention\" }\nanyhow = \"1\"\n";
        let package = package_manifest(manifest).unwrap();
        assert!(package.contains("    \"cli\",\n]\n\n[workspace.dependencies]\n"), "{package}");
        assert!(package.contains("ferrotile =") && package.contains("anyhow"), "{package}");
        assert!(!package.contains("attention") && !package.contains("\"tests\""), "{package}");
        assert_eq!(package_manifest("[package]"), None);
    }
}
