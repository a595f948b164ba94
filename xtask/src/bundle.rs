//! `cargo xtask bundle`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use cuda_builder::toolchain::Toolchain;
use serde_json::Value;

use crate::workspace::{self, cargo, root};

/// Arguments of `cargo xtask bundle`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The folder to write; it is emptied first
    #[arg(long, default_value = "bundle")]
    out: PathBuf,
    /// Tests the library without the objects of cust
    #[arg(long)]
    without_cust: bool,
    /// Takes the programs that `cargo test` builds, which are slower and larger
    #[arg(long)]
    debug: bool,
}

/// The most that a bundle may take, so that it travels easily.
const MOST_BYTES: u64 = 60 << 20;

/// Packages whose tests stay behind. They need a toolchain or the sources, which the other machine need not have, or
/// they test nothing on a card.
const LEFT_OUT_PACKAGES: [&str; 7] =
    ["cuda_builder", "cuda_std", "cuda_std_macros", "layout", "ptx_emulator", "variants", "xtask"];

/// Test programs of other packages that stay behind for the same reasons.
const LEFT_OUT_TESTS: [&str; 10] =
    ["ata_matrix", "broken", "counters", "dependency", "emulator", "family_ptx", "foreign", "ptx", "support", "tidy"];

/// How far apart the archive finds what is equal. Each test program carries the same 6 MB of PTX, beside its code.
const DICTIONARY_BYTES: u32 = 48 << 20;

/// The features of the program and the tests, but for `cust`.
const WITHOUT_CUST: [&str; 3] =
    ["--no-default-features", "--features", "ferrotile-cli/sm80,ferrotile-cli/sm89,ferrotile-cli/sm90"];

const RUN_SCRIPT: &str = r#"#!/bin/sh
# Runs every test program of this folder, then the demo, on the card. FERROTILE_DEVICE chooses another device; arguments go to the
# test programs.
cd "$(dirname "$0")" || exit 1
export FERROTILE_DEVICE="${FERROTILE_DEVICE:-cuda}"
export CARGO_BIN_EXE_ferrotile="$PWD/ferrotile"
tar -xJf tests.tar.xz || exit 1
failed=
for test in tests/*; do
    echo "== $test"
    "$test" "$@" || failed="$failed $test"
done
echo "== demo"
./ferrotile demo --all || failed="$failed demo"
if [ -n "$failed" ]; then
    echo "FAILED:$failed"
    exit 1
fi
echo "all passed"
"#;

/// A program that cargo built.
#[derive(Debug)]
pub(crate) struct Executable {
    /// The folder of its package.
    folder: String,
    /// The name of its target.
    name: String,
    /// The kind of its target: `lib`, `bin`, `test`.
    pub(crate) kind: String,
    /// Whether it is a test program and not what the target builds.
    is_test: bool,
    /// The file.
    pub(crate) path: PathBuf,
}

/// Builds and finds the test programs that the arguments choose.
pub(crate) fn test_executables(arguments: &[&str]) -> Result<Vec<Executable>> {
    let mut executables = executables(&[&["test", "--no-run"], arguments].concat())?;
    executables.retain(|executable| executable.is_test);
    Ok(executables)
}

/// Runs cargo and collects the programs that it reports.
fn executables(arguments: &[&str]) -> Result<Vec<Executable>> {
    let mut command = cargo();
    command.args(arguments).args(["--message-format", "json-render-diagnostics"]).stdout(Stdio::piped());
    eprintln!("$ cargo {}", arguments.join(" "));
    let mut child = command.spawn().context("cannot run cargo")?;
    let stdout = child.stdout.take().context("cargo has no output")?;
    let mut executables = Vec::new();
    for line in BufReader::new(stdout).lines() {
        let message: Value = serde_json::from_str(&line?)?;
        let text = |pointer: &str| message.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        if text("/executable").is_empty() {
            continue;
        }
        let manifest = PathBuf::from(text("/manifest_path"));
        let folder = manifest.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
        let (name, kind) = (text("/target/name"), text("/target/kind/0"));
        let is_test = message.pointer("/profile/test").and_then(Value::as_bool).unwrap_or(false);
        executables.push(Executable { folder, name, kind, is_test, path: text("/executable").into() });
    }
    let status = child.wait()?;
    ensure!(status.success(), "`cargo {}` failed ({status})", arguments.join(" "));
    Ok(executables)
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let out = std::path::absolute(&arguments.out)?;
    let features: &[&str] = if arguments.without_cust { &WITHOUT_CUST } else { &[] };
    // Tests of the program bring it along. Of the whole workspace: for one package alone cargo would choose other
    // features and build the library once more.
    let profile: &[&str] = if arguments.debug { &["--workspace"] } else { &["--workspace", "--release"] };
    let built = executables(&[&["test", "--no-run"], profile, features].concat())?;
    let (tests, programs): (Vec<_>, Vec<_>) = built.into_iter().partition(|executable| executable.is_test);
    let strip = Toolchain::find(root())?;
    if out.exists() {
        // A wrong --out must not empty a folder that no bundle was in.
        let is_bundle = out.join("run.sh").is_file() || fs::read_dir(&out)?.next().is_none();
        ensure!(is_bundle, "{} exists and is not a bundle", out.display());
        fs::remove_dir_all(&out)?;
    }
    fs::create_dir_all(out.join("tests"))?;

    let add = |source: &Path, name: &str| -> Result<()> {
        let file = out.join(name);
        fs::copy(source, &file).with_context(|| source.display().to_string())?;
        workspace::run(strip.llvm_tool("llvm-strip").arg("--strip-all").arg(&file))
    };
    for program in programs.iter().filter(|program| program.kind == "bin" && program.name == "ferrotile") {
        add(&program.path, &program.name)?;
    }
    let needs_sources =
        |test: &Executable| LEFT_OUT_PACKAGES.contains(&&*test.folder) || LEFT_OUT_TESTS.contains(&&*test.name);
    for test in tests.iter().filter(|test| !needs_sources(test)) {
        add(&test.path, &format!("tests/{}-{}", test.folder, test.name))?;
    }
    // The archive has what the test programs have in common once.
    workspace::archive(&out.join("tests.tar.xz"), &out, ["tests"], DICTIONARY_BYTES)?;
    fs::remove_dir_all(out.join("tests"))?;
    let script = out.join("run.sh");
    fs::write(&script, RUN_SCRIPT)?;
    make_executable(&script)?;
    let files = fs::read_dir(&out)?.map(|file| file?.metadata());
    let bytes: u64 = files.map(|file| file.map(|file| file.len())).sum::<std::io::Result<_>>()?;
    println!("{}: {} MiB; run.sh runs everything", out.display(), bytes >> 20);
    if bytes > MOST_BYTES {
        bail!("the bundle takes {} MiB, more than {}", bytes >> 20, MOST_BYTES >> 20);
    }
    Ok(())
}

#[cfg(unix)]
fn make_executable(file: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::set_permissions(file, fs::Permissions::from_mode(0o755))?)
}

#[cfg(not(unix))]
fn make_executable(_: &Path) -> Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts of a file, or of all files below a folder.
    fn texts(path: &Path) -> Vec<String> {
        if path.is_file() {
            return vec![fs::read_to_string(path).unwrap_or_default()];
        }
        fs::read_dir(path).unwrap().flat_map(|entry| texts(&entry.unwrap().path())).collect()
    }

    #[test]
    fn tests_that_read_the_sources_stay_behind() {
        for entry in fs::read_dir(root().join("tests")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let is_program = path.join("main.rs").is_file() || (path.extension().is_some_and(|end| end == "rs"));
            if is_program && name != "build" && texts(&path).iter().any(|text| text.contains("CARGO_MANIFEST_DIR")) {
                assert!(LEFT_OUT_TESTS.contains(&name.as_str()), "{name}");
            }
        }
    }
}
