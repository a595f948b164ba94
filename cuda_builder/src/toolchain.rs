//! The Rust toolchain that compiles device crates. Their `rust-toolchain.toml` names it; the caller may be compiled by
//! another.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::error::{COMPONENTS, DEFAULT_CHANNEL, Error};

/// An installed toolchain with all the components that a device build needs.
#[derive(Debug, Clone)]
pub struct Toolchain {
    /// The channel, such as `nightly-2026-10-01`, or `default` if no `rust-toolchain.toml` names one.
    pub channel: String,
    /// The folder of the installation.
    pub sysroot: PathBuf,
    /// The folder of `opt` and `llc`.
    pub llvm_bin: PathBuf,
    /// What `rustc -vV` prints: version, commit, host, and the version of LLVM.
    pub version: String,
}

impl Toolchain {
    /// Finds the toolchain of the crate or workspace at `path`.
    ///
    /// # Errors
    /// [`Error::Toolchain`] if the toolchain is not installed, [`Error::MissingComponent`] if it lacks a component.
    /// Both say how to install what is missing.
    pub fn find(path: &Path) -> Result<Toolchain, Error> {
        let named = path.ancestors().find_map(|folder| {
            let text = fs::read_to_string(folder.join("rust-toolchain.toml")).ok()?;
            Some((channel_of(&text)?.to_owned(), folder))
        });
        let (channel, root) = match &named {
            Some((channel, root)) => (channel.as_str(), *root),
            None => (DEFAULT_CHANNEL, path),
        };
        let sysroot = match run_rustc(named.as_ref().map(|_| channel)) {
            Ok(sysroot) => sysroot,
            Err(reason) => return Err(Error::Toolchain { channel: channel.into(), reason, root: root.into() }),
        };
        let mut rustc = Command::new(sysroot.join("bin").join(exe("rustc")));
        clean_environment(&mut rustc);
        let version = String::from_utf8_lossy(&run(rustc.arg("-vV"))?.stdout).into_owned();
        let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
        let rustlib = sysroot.join("lib/rustlib");
        let llvm_bin = rustlib.join(host).join("bin");
        let needed = [rustlib.join("src/rust/library/core"), llvm_bin.join(exe("opt")), llvm_bin.join(exe("llc"))];
        let [source, llvm_tools, _] = COMPONENTS;
        for (component, path) in [source, llvm_tools, llvm_tools].into_iter().zip(needed) {
            if !path.exists() {
                let (channel, root) = (channel.into(), root.into());
                return Err(Error::MissingComponent { channel, component, missing: path, root });
            }
        }
        Ok(Toolchain { channel: channel.into(), sysroot, llvm_bin, version })
    }

    /// A command that runs this toolchain's cargo, free of the settings that a calling cargo, clippy or build script
    /// made.
    pub fn cargo(&self) -> Command {
        let bin = self.sysroot.join("bin");
        let mut command = Command::new(bin.join(exe("cargo")));
        clean_environment(&mut command);
        command.env("RUSTC", bin.join(exe("rustc")));
        command
    }

    /// A command that runs an LLVM tool of this toolchain.
    pub fn llvm_tool(&self, name: &str) -> Command {
        Command::new(self.llvm_bin.join(exe(name)))
    }
}

fn exe(name: &str) -> String {
    format!("{name}{}", std::env::consts::EXE_SUFFIX)
}

/// The value of `channel = ".."`.
fn channel_of(toolchain_file: &str) -> Option<&str> {
    let value =
        toolchain_file.lines().find_map(|line| line.trim().strip_prefix("channel")?.trim_start().strip_prefix('='))?;
    value.trim().strip_prefix('"')?.split('"').next()
}

/// The sysroot of a channel by rustup, or of the `rustc` on PATH if there is no channel or no rustup.
fn run_rustc(channel: Option<&str>) -> Result<PathBuf, String> {
    let mut rustup = Command::new("rustup");
    if let Some(channel) = channel {
        rustup.args(["run", channel, "rustc", "--print", "sysroot"]);
        match sysroot_of(&mut rustup) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.to_string()),
            Ok(sysroot) => return Ok(sysroot),
        }
    }
    sysroot_of(Command::new("rustc").args(["--print", "sysroot"])).map_err(|error| format!("rustc: {error}"))
}

fn sysroot_of(command: &mut Command) -> std::io::Result<PathBuf> {
    clean_environment(command);
    let output = command.output()?;
    if !output.status.success() {
        // Around it are what rustup tried, its own advice, and a backtrace where the environment asks for one.
        let text = String::from_utf8_lossy(&output.stderr);
        let error = text.lines().find_map(|line| line.strip_prefix("error: ")).unwrap_or(text.trim());
        return Err(std::io::Error::other(error.to_owned()));
    }
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}

/// Removes the variables by which cargo, rustup and clippy steer the compiler of the calling build.
pub fn clean_environment(command: &mut Command) {
    const PREFIXES: [&str; 12] = [
        "CARGO_BIN_",
        "CARGO_BUILD_",
        "CARGO_CFG_",
        "CARGO_ENCODED_",
        "CARGO_FEATURE_",
        "CARGO_MANIFEST_",
        "CARGO_PKG_",
        "CARGO_PROFILE_",
        "CARGO_UNSTABLE_",
        "CLIPPY_",
        "DEP_",
        "RUSTC",
    ];
    const NAMES: [&str; 17] = [
        "CARGO",
        "CARGO_INCREMENTAL",
        "CARGO_MAKEFLAGS",
        "CARGO_PRIMARY_PACKAGE",
        "CARGO_TARGET_DIR",
        "CARGO_TARGET_TMPDIR",
        "DEBUG",
        "HOST",
        "MAKEFLAGS",
        "NUM_JOBS",
        "OPT_LEVEL",
        "OUT_DIR",
        "PROFILE",
        "RUSTDOC",
        "RUSTDOCFLAGS",
        "RUSTFLAGS",
        "RUSTUP_TOOLCHAIN",
    ];
    let steers = |name: &OsString| {
        let name = name.to_string_lossy();
        NAMES.contains(&&*name) || name == "TARGET" || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    };
    for (name, _) in std::env::vars_os().filter(|(name, _)| steers(name)) {
        command.env_remove(name);
    }
}

/// Runs a tool.
pub(crate) fn run(command: &mut Command) -> Result<Output, Error> {
    let output = command.output().map_err(Error::io(command.get_program()))?;
    if output.status.success() {
        return Ok(output);
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(Error::Tool { command: format!("{command:?}"), output: text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channel_is_read() {
        assert_eq!(channel_of("# a\n[toolchain]\nchannel = \"nightly-2026-10-01\" # b\n"), Some("nightly-2026-10-01"));
        assert_eq!(channel_of("[toolchain]\n"), None);
    }

    #[test]
    fn a_missing_component_names_the_file_and_its_cure() {
        let message = |channel: &str| {
            let (channel, root) = (channel.into(), "/crate".into());
            Error::MissingComponent { channel, component: "rust-src", missing: "/sysroot/core".into(), root }
                .to_string()
        };
        let named = message("nightly-1999-01-01");
        assert!(named.contains("lacks rust-src: there is no /sysroot/core\nname it among"), "{named}");
        assert!(named.contains("/crate/rust-toolchain.toml, and run `rustup toolchain install`"), "{named}");
        let default = message(DEFAULT_CHANNEL);
        assert!(default.contains("write /crate/rust-toolchain.toml") && default.contains("rust-src, llvm-tools"));
    }

    #[test]
    fn a_missing_toolchain_names_its_cure() {
        let root = std::env::temp_dir().join(format!("cuda_builder-toolchain-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        fs::write(root.join("rust-toolchain.toml"), "channel = \"nightly-1999-01-01\"").unwrap();
        let error = Toolchain::find(&root).unwrap_err().to_string();
        fs::remove_dir_all(&root).unwrap();
        assert!(error.contains("nightly-1999-01-01") && error.contains("rustup toolchain install"), "{error}");
        assert_eq!(error.lines().count(), 2, "{error}");
    }
}
