//! `cargo xtask package`.
//!
//! It writes what a release consists of into the folder `package` of the target folder: the packages of all crates that
//! are published, as the registry takes them, and the PTX of each architecture as an archive for `FERROTILE_PTX`.
//!
//! The packages are made in a copy of the workspace, the folder `workspace`. There the library has its PTX beside its
//! sources, packed, so that a build of the package compiles no device code and stable Rust is enough. `cargo publish
//! --workspace` in that folder publishes them.

mod verify;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use cuda_builder::{Arch, CudaBuilder, embed};
use variants::{FAMILIES, OPTIONAL_FAMILIES};

use crate::build::at_once;
use crate::workspace::{self, root, target};

/// Arguments of `cargo xtask package`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Builds and runs crates that depend on the packages, with stable Rust
    #[arg(long)]
    verify: bool,
    /// Installs the program from the packages and runs it; implies --verify
    #[arg(long)]
    install: bool,
}

/// The version of all packages.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The folders of the crates that are published.
const MEMBERS: [&str; 10] = [
    "kernels-gpu/layout",
    "kernels-gpu/variants",
    "kernels-gpu/cuda_std_macros",
    "kernels-gpu/cuda_std",
    "kernel_cache",
    "cuda_builder",
    "ptx_emulator",
    "host/derive",
    "host",
    PROGRAM_FOLDER,
];

/// That of the program.
const PROGRAM_FOLDER: &str = "cli";

/// What each package has a copy of.
const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// The most that the registry takes.
const MOST_PACKAGE_BYTES: u64 = 10 << 20;

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let out = target().join("package");
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| out.display().to_string())?;
    }
    let folder = out.join("workspace");
    copy_workspace(&folder)?;
    let texts = out.join("ptx");
    collect_ptx(&texts)?;
    pack_ptx(&texts, &folder.join("host/ptx"))?;
    archive_ptx(&texts, &out)?;
    fs::remove_dir_all(&texts)?;
    let packages = make_packages(&folder, &out)?;
    for file in Arch::ALL.map(|arch| ptx_archive(&out, arch)).iter().chain(&packages) {
        println!("{:6} KiB  {}", fs::metadata(file)?.len() >> 10, file.display());
    }
    match arguments.verify || arguments.install {
        true => verify::run(&packages, &out.join("target"), arguments.install),
        false => Ok(()),
    }
}

/// A command of the stable toolchain, free of what the calling cargo and this workspace set.
fn stable_cargo() -> Command {
    let mut cargo = Command::new("rustup");
    workspace::leave(&mut cargo);
    cargo.env_remove("FERROTILE_PTX");
    cargo.args(["run", "stable", "cargo"]);
    cargo
}

/// Copies what the packages are made from.
fn copy_workspace(folder: &Path) -> Result<()> {
    for member in MEMBERS {
        copy_tree(&root().join(member), &folder.join(member))?;
        for licence in LICENCES {
            copy_file(&root().join(licence), &folder.join(member).join(licence))?;
        }
    }
    copy_file(&root().join("Cargo.lock"), &folder.join("Cargo.lock"))?;
    let manifest = fs::read_to_string(root().join("Cargo.toml"))?;
    // `cargo install` takes the profiles of the package.
    let program = folder.join(PROGRAM_FOLDER).join("Cargo.toml");
    fs::write(&program, fs::read_to_string(&program)? + &release_profile(&manifest))?;
    let manifest = workspace_manifest(&manifest).context("Cargo.toml has no list of members")?;
    Ok(fs::write(folder.join("Cargo.toml"), manifest)?)
}

/// The tables of a manifest that say how releases are built.
fn release_profile(manifest: &str) -> String {
    let tables = manifest.split("\n[").filter(|table| table.starts_with("profile.release"));
    tables.map(|table| format!("\n[{table}\n")).collect()
}

/// The manifest of the workspace with the crates that are published alone.
fn workspace_manifest(manifest: &str) -> Option<String> {
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

fn families() -> impl Iterator<Item = &'static str> {
    FAMILIES.into_iter().chain(OPTIONAL_FAMILIES)
}

/// Puts the PTX of every family for every architecture into a folder. As in a build of the library, the PTX is that of
/// the folder which `FERROTILE_PTX` names; without that variable it is built now.
fn collect_ptx(folder: &Path) -> Result<()> {
    if let Some(prebuilt) = std::env::var_os("FERROTILE_PTX").filter(|prebuilt| !prebuilt.is_empty()) {
        let prebuilt = PathBuf::from(prebuilt);
        eprintln!("PTX from {}", prebuilt.display());
        for name in families().flat_map(|family| Arch::ALL.map(|arch| embed::file_name(family, arch))) {
            copy_file(&prebuilt.join(&name), &folder.join(&name))?;
        }
        return Ok(());
    }
    at_once(&Arch::ALL, |arch| {
        for family in families() {
            let ptx = folder.join(embed::file_name(family, arch));
            CudaBuilder::new(root().join("kernels-gpu").join(family)).arch(arch).copy_to(ptx).build()?;
        }
        Ok(())
    })
    .map(drop)
}

/// Packs the PTX of a folder as the library carries it.
fn pack_ptx(texts: &Path, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    at_once(&Arch::ALL, |arch| {
        for family in families() {
            let ptx = fs::read_to_string(texts.join(embed::file_name(family, arch)))?;
            fs::write(folder.join(embed::packed_file_name(family, arch)), embed::pack(&ptx))?;
        }
        Ok(())
    })
    .map(drop)
}

/// The archive of the PTX of an architecture.
fn ptx_archive(folder: &Path, arch: Arch) -> PathBuf {
    folder.join(format!("ferrotile-ptx-{arch}-{VERSION}.tar.xz"))
}

/// Writes an archive for each architecture of a folder of PTX.
fn archive_ptx(texts: &Path, out: &Path) -> Result<()> {
    at_once(&Arch::ALL, |arch| {
        let names = families().map(|family| embed::file_name(family, arch));
        workspace::archive(&ptx_archive(out, arch), texts, names, ARCHIVE_DICTIONARY_BYTES)
    })
    .map(drop)
}

/// How far apart an archive of PTX finds what is equal. Kernels that are alike lie far apart.
const ARCHIVE_DICTIONARY_BYTES: u32 = 32 << 20;

/// Has cargo make the packages, and moves them to a folder.
fn make_packages(folder: &Path, out: &Path) -> Result<Vec<PathBuf>> {
    let target = out.join("target");
    let mut cargo = stable_cargo();
    // The copy is no repository of its own. What cargo verifies, each package by itself, `verify` does at once.
    cargo.args(["package", "--workspace", "--no-verify", "--allow-dirty", "--target-dir"]).arg(&target);
    workspace::run(cargo.current_dir(folder))?;
    let mut packages = Vec::new();
    for name in MEMBERS.map(|member| package_name(&root().join(member))) {
        let name = format!("{}-{VERSION}.crate", name?);
        let package = out.join(&name);
        fs::rename(target.join("package").join(&name), &package).with_context(|| name.clone())?;
        let bytes = fs::metadata(&package)?.len();
        ensure!(
            bytes <= MOST_PACKAGE_BYTES,
            "{name} takes {bytes} bytes, and the registry takes at most {MOST_PACKAGE_BYTES}"
        );
        packages.push(package);
    }
    Ok(packages)
}

/// The name of the package in a folder.
fn package_name(folder: &Path) -> Result<String> {
    let manifest = fs::read_to_string(folder.join("Cargo.toml"))?;
    let name = manifest.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    Ok(name.with_context(|| format!("{} has a package without a name", folder.display()))?.to_owned())
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    if !from.is_dir() {
        return copy_file(from, to);
    }
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
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
        let package = workspace_manifest(manifest).unwrap();
        assert!(package.contains("    \"cli\",\n]\n\n[workspace.dependencies]\n"), "{package}");
        assert!(package.contains("ferrotile =") && package.contains("anyhow"), "{package}");
        assert!(!package.contains("attention") && !package.contains("\"tests\""), "{package}");
        assert_eq!(workspace_manifest("[package]"), None);
    }

    #[test]
    fn the_program_is_built_as_in_this_workspace() {
        let manifest = "[a]\nb = 1\n\n[profile.release]\nstrip = true\n\n# Why.\n[profile.release.package]\nc = { d = 1 }\n\
                        [profile.dev]\ne = 2\n";
        let profile = release_profile(manifest);
        assert!(profile.contains("\n[profile.release]\nstrip = true\n"), "{profile}");
        assert!(
            profile.contains("\n[profile.release.package]\nc = { d = 1 }\n") && !profile.contains("e = 2"),
            "{profile}"
        );
    }

    #[test]
    fn every_crate_that_may_be_published_is_packaged() {
        let workspace = fs::read_to_string(root().join("Cargo.toml")).unwrap();
        let (members, _) = workspace.split_once("members = [").unwrap().1.split_once(']').unwrap();
        for member in members.split('"').skip(1).step_by(2) {
            let manifest = fs::read_to_string(root().join(member).join("Cargo.toml")).unwrap();
            assert_eq!(MEMBERS.contains(&member), !manifest.contains("publish.workspace = true"), "{member}");
            if MEMBERS.contains(&member) {
                assert!(root().join(member).join("README.md").is_file(), "{member} has no README.md");
                assert!(package_name(&root().join(member)).unwrap().starts_with("ferrotile"), "{member}");
            }
        }
    }
}
