//! Uses the packages as their users do: with stable Rust, in a folder without any configuration.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{VERSION, stable_cargo};
use crate::workspace::{self, root};

/// A crate that depends on the library, and the most that its program may take.
struct User {
    name: &'static str,
    /// What its dependency on the library says beside the version.
    library: &'static str,
    most_bytes: u64,
}

/// Its program is the example of the library's README.
const USERS: [User; 2] = [
    User { name: "every-architecture", library: "", most_bytes: 9_000_000 },
    User {
        name: "one-architecture",
        library: ", default-features = false, features = [\"sm80\", \"emulator\"]",
        most_bytes: 4_000_000,
    },
];

/// The package of the program `ferrotile`.
const PROGRAM: &str = "ferrotile-cli";

/// The most that the program may take. It has 4.1 MB of PTX, and the code of every reference, of soak and the emulator.
const MOST_PROGRAM_BYTES: u64 = 14_500_000;

/// Builds and runs what depends on the packages, in release and stripped, and holds the limits of its size. The program
/// is checked, or installed and run.
pub(super) fn run(packages: &[PathBuf], target: &Path, installs: bool) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut patches = String::new();
    for package in packages {
        workspace::run(Command::new("tar").arg("-xzf").arg(package).arg("-C").arg(folder.path()))?;
        let unpacked = package.file_stem().unwrap_or_default().to_string_lossy();
        let name = unpacked.strip_suffix(&format!("-{VERSION}")).context("the package has another version")?;
        // Nothing depends on the program.
        if name != PROGRAM {
            patches += &format!("{name}.path = {:?}\n", folder.path().join(&*unpacked));
        }
    }
    // Takes the place of a registry that has the packages.
    let configuration = folder.path().join("packages.toml");
    fs::write(&configuration, format!("[profile.release]\nstrip = true\n[patch.crates-io]\n{patches}"))?;
    let cargo = |command: &str, current: &Path| {
        let mut cargo = stable_cargo();
        cargo.arg("--config").arg(&configuration).arg(command).arg("--target-dir").arg(target).current_dir(current);
        cargo
    };

    let users = folder.path().join("users");
    write_users(&users)?;
    for user in USERS {
        workspace::run(cargo("build", &users).args(["--release", "-p", user.name]))?;
        let program = target.join("release").join(user.name);
        workspace::run(&mut Command::new(&program))?;
        hold_size(&program, user.most_bytes)?;
    }
    workspace::run(cargo("check", &users).args(["--release", "-p", "kernels"]))?;

    let program = folder.path().join(format!("{PROGRAM}-{VERSION}"));
    if installs {
        let installed = folder.path().join("installed");
        workspace::run(cargo("install", folder.path()).arg("--path").arg(program).arg("--root").arg(&installed))?;
        let program = installed.join("bin/ferrotile");
        workspace::run(Command::new(&program).arg("demo"))?;
        hold_size(&program, MOST_PROGRAM_BYTES)?;
    } else {
        workspace::run(&mut cargo("check", &program))?;
    }
    ensure!(!target.join("cuda-builder").exists(), "device code was compiled instead of using the packages' PTX");
    Ok(())
}

fn hold_size(program: &Path, most_bytes: u64) -> Result<()> {
    let bytes = fs::metadata(program).with_context(|| program.display().to_string())?.len();
    println!("{}: {:.2} MB", program.display(), bytes as f64 / 1e6);
    ensure!(bytes <= most_bytes, "{} takes {bytes} bytes, more than {most_bytes}", program.display());
    Ok(())
}

/// Writes a workspace of crates that depend on the packages.
fn write_users(folder: &Path) -> Result<()> {
    let readme = fs::read_to_string(root().join("host/README.md"))?;
    let example = readme.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
    let example = example.context("host/README.md has no example in Rust")?;
    let write = |file: &str, text: &str| workspace::write(&folder.join(file), text);
    write("Cargo.toml", "[workspace]\nresolver = \"3\"\nmembers = [\"*-architecture\", \"kernels\"]\n")?;
    // The versions of other crates that this workspace has.
    fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
    for User { name, library, .. } in USERS {
        let manifest = format!(
            "[package]\nname = \"{name}\"\nedition = \"2024\"\n[dependencies]\n\
             ferrotile = {{ version = \"{VERSION}\"{library} }}\nhalf = \"2\"\n"
        );
        write(&format!("{name}/Cargo.toml"), &manifest)?;
        write(&format!("{name}/src/main.rs"), example)?;
    }
    let manifest = format!(
        "[package]\nname = \"kernels\"\nedition = \"2024\"\n[dependencies]\nferrotile-cuda-std = \"{VERSION}\"\n\
         [build-dependencies]\nferrotile-cuda-builder = \"{VERSION}\"\n"
    );
    write("kernels/Cargo.toml", &manifest)?;
    write("kernels/src/lib.rs", "#![cfg(target_arch = \"nvptx64\")]\n")?;
    write("kernels/build.rs", "fn main() {\n    println!(\"{:?}\", cuda_builder::Arch::ALL);\n}\n")
}
