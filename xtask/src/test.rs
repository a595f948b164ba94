//! `cargo xtask test`.

use std::process::Command;

use anyhow::{Context, Result};
use cuda_builder::ptxas::find_tool;

use crate::bundle::test_executables;
use crate::workspace::{self, cargo, root};

/// More mbarriers than a block of any kernel has. Without this number synccheck counts the instructions that initialise
/// an mbarrier. A loop executes such an instruction several times, so synccheck tracks too few mbarriers and ends the
/// kernel.
const MBARRIERS: &str = "64";

/// Arguments of `cargo xtask test`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Runs trials on the emulator too that nearly repeat another one
    #[arg(long)]
    all: bool,
    /// Fails if there is no card, instead of running the kernels on the emulator
    #[arg(long)]
    gpu: bool,
    /// Runs the kernel tests, at small sizes, under compute-sanitizer: memcheck, racecheck, synccheck or initcheck
    #[arg(long, value_name = "TOOL")]
    sanitize: Option<String>,
    /// Goes to the test programs, such as a filter of names
    #[arg(last = true)]
    rest: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let Some(tool) = &arguments.sanitize else {
        let mut test = cargo();
        if arguments.all {
            test.env("FERROTILE_TRIALS", "all");
        }
        if arguments.gpu {
            test.env("FERROTILE_DEVICE", "cuda");
        }
        return workspace::run(test.args(["test", "--workspace", "--"]).args(&arguments.rest));
    };
    let sanitizer = find_tool("compute-sanitizer", root())
        .context("no compute-sanitizer on PATH or in CUDA_PATH: it comes with the CUDA toolkit")?;
    for executable in test_executables(&["--release", "-p", "tests"])?.into_iter().filter(|test| test.kind == "test") {
        let mut command = Command::new(&sanitizer);
        command.args(["--tool", tool, "--error-exitcode", "1"]);
        if tool == "synccheck" {
            command.args(["--num-cuda-barriers", MBARRIERS]);
        }
        // One launch at a time: the tool's own bookkeeping is not the subject.
        command.arg(executable.path).args(&arguments.rest).arg("--test-threads=1");
        workspace::run(command.envs([("FERROTILE_DEVICE", "cuda"), ("FERROTILE_SIZES", "small")]))?;
    }
    Ok(())
}
