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
use variants::{FAMILIES, OPTIONAL_FAMILIES};

use crate::build::at_once;
use crate::workspace::{self, root, target};

/// Arguments of `cargo xtask package`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Builds the library and the program from the package with stable Rust
    #[arg(long)]
    verify: bool,
}

/// The crates of the package.
const MEMBERS: [&str; 8] = [
    "kernels-gpu/layout",
    "kernels-gpu/variants",
    "cuda_builder",
    "kernel_cache",
    "ptx_emulator",
    "host",
    "host/derive",
    "cli",
];

/// What else belongs to it.
const FILES: [&str; 7] = [
    ".cargo/config.toml",
    "CHANGELOG.md",
    "Cargo.lock",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "docs/attention.svg",
    "docs/json.md",
];

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
    let readme = fs::read_to_string(root().join("README.md"))?;
    let readme = package_readme(&readme).context("README.md lacks a section that a package replaces")?;
    check_paths(&readme, &folder)?;
    fs::write(folder.join("README.md"), readme)?;
    add_ptx(&folder.join("host/ptx"))?;
    let archive = parent.join(format!("{name}.tar.gz"));
    workspace::run(Command::new("tar").arg("-czf").arg(&archive).arg("-C").arg(&parent).arg(&name))?;
    println!("{}", archive.display());
    if arguments.verify { verify(&folder, &parent.join("target")) } else { Ok(()) }
}

/// Puts the PTX of every family for every architecture into a folder. As in a build of the library, the PTX is that of
/// the folder which `FERROTILE_PTX` names; without that variable it is built now.
fn add_ptx(folder: &Path) -> Result<()> {
    let families = || FAMILIES.into_iter().chain(OPTIONAL_FAMILIES);
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

/// How a package starts.
const START: &str = "## Start

This is a package of the library and the program, with their PTX built. Stable Rust compiles it, and needs a C linker:

```sh
cargo run --release -- demo
```

The command computes attention on random tensors, on a card or, where there is none, in the emulator. It prints one line
for each kernel: its largest error against an f64 reference, and its time. To run on a card you need an NVIDIA driver
for Linux.

";

/// What is in a package.
const WHERE_TO_LOOK: &str = "## Where to look

`host/src` is the library and `cli/src` the program. The sources of the kernels, the tests and the documents are in the
repository.

";

/// The sections of README.md that hold for a clone of the repository alone, and what a package says instead.
const SECTIONS: [(&str, &str); 2] = [("## Start", START), ("## Where to look", WHERE_TO_LOOK)];

/// README.md as a package has it: without what a clone of the repository alone can do. `None` where a section is
/// missing.
fn package_readme(readme: &str) -> Option<String> {
    let mut text = readme.to_owned();
    for (heading, instead) in SECTIONS {
        let start = text.find(&format!("{heading}\n"))?;
        let body = start + heading.len();
        // The licence stands behind the last section.
        let end = ["\n## ", "\nLicence: "].iter().filter_map(|end| text[body..].find(end)).min()?;
        text.replace_range(start..body + end + 1, instead);
    }
    let paragraphs = text.split("\n\n").filter(|paragraph| !paragraph.contains("cargo xtask"));
    Some(paragraphs.collect::<Vec<_>>().join("\n\n"))
}

/// Refuses a text with a link, or a path in a code span, to what is not in the package.
fn check_paths(text: &str, folder: &Path) -> Result<()> {
    let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let links = links.filter(|link| !link.contains("://"));
    let is_path = |span: &&str| {
        let plain = span.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
        plain && span.contains('/') && !span.starts_with("target/")
    };
    let spans = text.split('`').skip(1).step_by(2).filter(is_path);
    let missing: Vec<_> = links.chain(spans).filter(|path| !folder.join(path).exists()).collect();
    ensure!(missing.is_empty(), "README.md of the package names what is not in it: {}", missing.join(", "));
    Ok(())
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

/// Copies a crate without its tests and fuzzers, which need the rest of the workspace.
fn copy_crate(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let source = entry?.path();
        let name = source.file_name().unwrap_or_default();
        if ["tests", "fuzz", "target"].iter().any(|left_out| name == *left_out) {
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

    #[test]
    fn every_crate_that_a_packaged_one_needs_is_packaged() {
        let workspace = fs::read_to_string(root().join("Cargo.toml")).unwrap();
        for member in MEMBERS {
            let manifest = fs::read_to_string(root().join(member).join("Cargo.toml")).unwrap();
            // Crates of the workspace by name: a line `name = { path = "folder" }` of its manifest.
            for (name, path) in workspace.lines().filter_map(|line| line.split_once(" = { path = \"")) {
                let (path, _) = path.split_once('"').unwrap();
                let needs = |line: &str| line.starts_with(&format!("{name}.")) || line.starts_with(&format!("{name} "));
                let is_needed = manifest.lines().any(needs);
                assert!(!is_needed || MEMBERS.contains(&path), "{member} needs {path}");
            }
        }
    }

    #[test]
    fn the_readme_of_a_package_names_what_is_in_it() {
        let readme = fs::read_to_string(root().join("README.md")).unwrap();
        let text = package_readme(&readme).unwrap();
        check_paths(&text, root()).unwrap();
        for of_a_clone in ["rustup toolchain install", "xtask", "kernels-gpu/", "CONTRIBUTING", "cargo test"] {
            assert!(readme.contains(of_a_clone) && !text.contains(of_a_clone), "{of_a_clone}: {text}");
        }
        for of_both in ["## Use it", "cargo run --release -- demo", "LICENSE-MIT", "docs/attention.svg"] {
            assert!(readme.contains(of_both) && text.contains(of_both), "{of_both}: {text}");
        }
        assert!(check_paths("see `docs/none.md`", root()).is_err() && check_paths("[x](none.md)", root()).is_err());
        assert_eq!(package_readme("# Nothing"), None);
    }
}
