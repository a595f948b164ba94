//! The program `ferrotile`.
//!
//! Exit codes:
//!
//! - 0: the work is done.
//! - 1: the work failed: no such card, a driver error, a check that failed, a result that is not finite, an output that
//!   could not be written.
//! - 2: the request is at fault: options, files, shapes, types, lost elements. There is one line on stderr, and nothing
//!   is written.

mod bench;
mod build_info;
mod catalogue;
mod commands;
mod device;
mod files;
mod json;
mod memory;
mod problems;
mod progress;
mod soak;
mod spelling;
mod table;

use std::io;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser};

use crate::bench::chart::ChartError;
use crate::bench::error::BenchError;
use crate::bench::kernel_names;
use crate::bench::report::ReportError;
use crate::commands::Command;
use crate::commands::ata::WrongVectors;
use crate::commands::attention::NoInput;
use crate::commands::compare::NothingInCommon;
use crate::commands::gemm::GemmError;
use crate::commands::quantize::QuantizeError;
use crate::commands::soak::SoakError;
use crate::device::{KernelOnCpu, NoKernels};
use crate::files::convert::Lossy;
use crate::files::input::{FileError, SizesError};
use crate::files::matrix::MatrixError;
use crate::problems::error::AttentionError;
use crate::spelling::EXIT_CODES;

/// Tensor-core GPU kernels in pure Rust.
#[derive(Debug, Parser)]
#[command(name = "ferrotile", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let cli = match command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    match cli.command.run(command) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the output has seen enough (`ferrotile info | head -1`).
        Err(error) if error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {}", one_line(&error.to_string()));
            ExitCode::from(if is_bad_request(&error) { 2 } else { 1 })
        }
    }
}

/// The command line; the help of each command says what exit codes mean.
fn command() -> clap::Command {
    Cli::command().after_help(EXIT_CODES).mut_subcommands(|command| command.after_help(EXIT_CODES))
}

/// Shows help where it was asked for or nothing else was said, else one line that says what is wrong with the
/// arguments.
fn refuse(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // There is no better place to report that the terminal is gone.
            let _ = error.print();
        }
        _ => {
            let text = spelling::meant(error).unwrap_or_else(|| error.render().to_string());
            let end = ["\n\nUsage:", "\n\nFor more information"].iter().filter_map(|mark| text.find(mark)).min();
            eprintln!("{}", one_line(&text[..end.unwrap_or(text.len())]));
        }
    }
    ExitCode::from(error.exit_code() as u8)
}

/// The text as one line of bearable length. What a file says may be in it: its control characters do not reach the
/// terminal.
fn one_line(text: &str) -> String {
    const MOST: usize = 1000;
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ").replace(char::is_control, "\u{fffd}");
    match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

/// Whether the request is at fault rather than the machine or the program.
fn is_bad_request(error: &anyhow::Error) -> bool {
    use ferrotile::Error::{
        Alignment, Argument, Asymmetric, LastStride, Shape, TooLarge, UnknownKernel, UnsupportedType,
    };
    if let Some(error) = error.downcast_ref::<FileError>() {
        return !matches!(error, FileError::Write { .. });
    }
    if let Some(error) = error.downcast_ref::<ferrotile::Error>() {
        return matches!(
            error,
            Alignment { .. }
                | Argument { .. }
                | Asymmetric { .. }
                | LastStride { .. }
                | UnsupportedType { .. }
                | Shape { .. }
                | TooLarge { .. }
                | UnknownKernel { .. }
        );
    }
    error.is::<AttentionError>()
        || error.is::<SizesError>()
        || error.is::<KernelOnCpu>()
        || error.is::<NoKernels>()
        || error.is::<MatrixError>()
        || error.is::<Lossy>()
        || error.is::<WrongVectors>()
        || error.is::<NoInput>()
        || error.is::<GemmError>()
        || error.is::<QuantizeError>()
        || error.is::<ReportError>()
        || error.is::<NothingInCommon>()
        || error.downcast_ref::<ChartError>().is_some_and(ChartError::is_bad_request)
        || error.downcast_ref::<BenchError>().is_some_and(BenchError::is_bad_request)
        || error.is::<kernel_names::UnknownKernel>()
        || error.downcast_ref::<SoakError>().is_some_and(SoakError::is_bad_request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn what_a_file_says_stays_on_one_line_of_bearable_length() {
        assert_eq!(one_line("a\n  b\u{1b}[31mc\td"), "a b\u{fffd}[31mc d");
        assert_eq!(one_line(&"\u{e9}".repeat(1000)).chars().count(), 1000);
        assert_eq!(one_line(&"\u{e9}".repeat(60_000)).chars().count(), 1003);
    }

    #[test]
    fn what_the_machine_lacks_is_not_the_fault_of_the_request() {
        let driver = ferrotile::Error::NoDriver { reason: "libcuda.so.1 not found".to_owned() };
        assert!(!is_bad_request(&driver.into()));
        assert!(is_bad_request(&KernelOnCpu.into()));
    }
}
