//! Developer commands: `cargo xtask help` lists them.

mod build;
mod bundle;
mod check;
mod clean_cache;
mod doctor;
mod gates;
mod new_kernel;
mod package;
mod test;
mod tools;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Developer commands of Ferrotile.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Builds the kernels to PTX and reports what they need
    Build(build::Arguments),
    /// Checks format, lints (CPU and GPU code) and documentation
    Check,
    /// Runs the tests
    Test(test::Arguments),
    /// Says what this machine has and lacks, with the cure for each
    Doctor,
    /// Installs NVIDIA's assembler and disassembler from PyPI into .cuda-tools
    Tools,
    /// Removes the PTX and cubins that are kept between builds and runs
    CleanCache,
    /// Makes a crate with a kernel of its own, outside of this workspace
    NewKernel(new_kernel::Arguments),
    /// Writes the packages and archives of a release
    Package(package::Arguments),
    /// Writes a folder that runs the program and the tests on a machine without Rust
    Bundle(bundle::Arguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Build(arguments) => build::run(&arguments),
        Command::Check => check::run(),
        Command::Test(arguments) => test::run(&arguments),
        Command::Doctor => doctor::run(),
        Command::Tools => tools::run(),
        Command::CleanCache => clean_cache::run(),
        Command::NewKernel(arguments) => new_kernel::run(&arguments),
        Command::Package(arguments) => package::run(&arguments),
        Command::Bundle(arguments) => bundle::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", words(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes; a cause that its effect has told is not told again.
fn words(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |told, cause| match () {
        () if told.is_empty() => cause,
        () if told.contains(&cause) => told,
        () => format!("{told}: {cause}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_told_once() {
        let source = std::io::Error::other("no such thing");
        let error = cuda_builder::Error::Io { path: "ptxas".into(), source };
        assert_eq!(
            words(&anyhow::Error::from(error).context("cannot assemble")),
            "cannot assemble: ptxas: no such thing"
        );
    }
}
