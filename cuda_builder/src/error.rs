//! What can go wrong between a device crate and its PTX.

use std::fmt;
use std::path::{Path, PathBuf};

use layout::Arch;

/// The components of rustup that a device build needs.
pub(crate) const COMPONENTS: [&str; 3] = ["rust-src", "llvm-tools", "llvm-bitcode-linker"];

/// What stands for the channel where no `rust-toolchain.toml` names one.
pub(crate) const DEFAULT_CHANNEL: &str = "default";

/// An error of the build.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The path leads to no crate.
    #[error("{} is not a crate: it has no Cargo.toml", path.display())]
    NoCrate {
        /// The path as it was resolved.
        path: PathBuf,
    },
    /// The toolchain of the device crates cannot be run.
    #[error("the Rust toolchain {channel} is not usable: {reason}\nrun `rustup toolchain install` in {}", root.display())]
    Toolchain {
        /// The channel that `rust-toolchain.toml` names.
        channel: String,
        /// What rustup or rustc answered.
        reason: String,
        /// The folder of `rust-toolchain.toml`.
        root: PathBuf,
    },
    /// The toolchain lacks a component.
    #[error(
        "the Rust toolchain {channel} lacks {component}: there is no {}\n{}",
        missing.display(),
        how_to_install(channel, root)
    )]
    MissingComponent {
        /// The channel that `rust-toolchain.toml` names, or `default` if there is no such file.
        channel: String,
        /// The component, by its name in rustup.
        component: &'static str,
        /// The file or folder of the component that is not there.
        missing: PathBuf,
        /// The folder of `rust-toolchain.toml`, or of the crate if there is none.
        root: PathBuf,
    },
    /// The device crate does not compile.
    #[error("{name} does not compile for {arch}:\n{output}")]
    Compile {
        /// The crate.
        name: String,
        /// The architecture.
        arch: Arch,
        /// What cargo and rustc printed.
        output: String,
    },
    /// A tool failed.
    #[error("`{command}` failed:\n{output}")]
    Tool {
        /// The command line.
        command: String,
        /// What it printed.
        output: String,
    },
    /// The LLVM module and the records of its kernels do not agree.
    #[error("kernel `{kernel}`: {reason}")]
    Mark {
        /// The kernel.
        kernel: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The PTX calls functions that it does not define.
    #[error(
        "the PTX of {name} for {arch} calls functions that nothing defines: {}; they come from an operation without an \
         instruction, such as division of 128-bit integers, or from a panic that was not optimised away",
        functions.iter().map(UndefinedFunction::to_string).collect::<Vec<_>>().join(", ")
    )]
    Undefined {
        /// The crate.
        name: String,
        /// The architecture.
        arch: Arch,
        /// The undefined functions.
        functions: Vec<UndefinedFunction>,
    },
    /// The text is not PTX as the reader knows it.
    #[error("malformed PTX: {0}")]
    Ptx(String),
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// How a component gets there.
fn how_to_install(channel: &str, root: &Path) -> String {
    let file = root.join("rust-toolchain.toml");
    if channel == DEFAULT_CHANNEL {
        format!("write {}, with a nightly as its channel and its components: {}", file.display(), COMPONENTS.join(", "))
    } else {
        format!("name it among the components in {}, and run `rustup toolchain install` there", file.display())
    }
}

/// A function that PTX calls and nothing defines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UndefinedFunction {
    /// Its name, as the PTX has it.
    pub function: String,
    /// The kernels that call it, by way of other functions too.
    pub kernels: Vec<String>,
}

impl fmt::Display for UndefinedFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UndefinedFunction { function, kernels } = self;
        if kernels.is_empty() { write!(f, "{function}") } else { write!(f, "{function} in {}", kernels.join(", ")) }
    }
}

impl Error {
    /// Attaches the path to an error of `std::io`.
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io { path, source }
    }
}
