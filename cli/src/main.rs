//! The program `ferrotile`.
//!
//! Exit codes: 0; 1 where the work failed (no such card, a driver error, a check that failed, a result that is not
//! finite, an output that could not be written); 2 where the request is at fault (options, files, shapes, types, lost
//! elements), with one line on stderr and nothing written.

mod archive;
mod ata;
mod attention;
mod bench;
mod bench_ata;
mod bench_decode;
mod bench_gemm;
mod bench_ladder;
mod bench_load;
mod bias;
mod case;
mod chart;
mod compare;
mod convert;
mod demo;
mod device;
mod emulate_report;
mod gemm;
mod info;
mod input_file;
mod kernel_names;
mod matrix_file;
mod measure;
mod memory;
mod npy;
mod on_card;
mod output_file;
mod problem;
mod product;
mod random;
mod report;
mod sequences;
mod soak;
mod spelling;
mod statistics;
mod table;
mod tensor;
mod verdict;

use std::io;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::spelling::EXIT_CODES;

/// Tensor-core GPU kernels in pure Rust.
#[derive(Debug, Parser)]
#[command(name = "ferrotile", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
enum Command {
    /// Shows the driver, the devices and the kernels of this build.
    Info,
    /// Computes attention on tensors from files.
    Attention(attention::AttentionArgs),
    /// Multiplies vectors by a symmetric matrix from files.
    Ata(ata::AtaArgs),
    /// Multiplies matrices from files.
    Gemm(gemm::GemmArgs),
    /// Measures kernels on a card.
    Bench(bench::BenchArgs),
    /// Runs every attention kernel on a generated input and shows its error and time.
    Demo(demo::DemoArgs),
    /// Counts what a kernel does in the emulator: instructions, memory traffic, bank conflicts.
    EmulateReport(emulate_report::ReportArgs),
    /// Compares two files of benchmark results.
    Compare(compare::CompareArgs),
    /// Looks for wrong results: random problems against the f64 reference.
    Soak(soak::SoakArgs),
}

fn main() -> ExitCode {
    let cli = match command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    let result = match &cli.command {
        Command::Info => info::run(),
        Command::Attention(args) => attention::run(args),
        Command::Ata(args) => ata::run(args),
        Command::Gemm(args) => gemm::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Demo(args) => demo::run(args),
        Command::EmulateReport(args) => emulate_report::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Soak(args) => soak::run(args),
    };
    match result {
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
    use ferrotile::Error::{Alignment, Argument, Asymmetric, LastStride, NoVariant, Shape, TooLarge, UnknownVariant};
    if let Some(error) = error.downcast_ref::<input_file::FileError>() {
        return !matches!(error, input_file::FileError::Write { .. });
    }
    if let Some(error) = error.downcast_ref::<ferrotile::Error>() {
        return matches!(
            error,
            Alignment { .. }
                | Argument { .. }
                | Asymmetric { .. }
                | LastStride { .. }
                | NoVariant { .. }
                | Shape { .. }
                | TooLarge { .. }
                | UnknownVariant { .. }
        );
    }
    error.is::<problem::ProblemError>()
        || error.is::<input_file::SizesError>()
        || error.is::<matrix_file::MatrixError>()
        || error.is::<convert::Lossy>()
        || error.is::<ata::WrongVectors>()
        || error.is::<attention::NoInput>()
        || error.is::<gemm::GemmError>()
        || error.is::<report::ReportError>()
        || error.is::<compare::NothingInCommon>()
        || error.downcast_ref::<chart::ChartError>().is_some_and(chart::ChartError::is_bad_request)
        || error.is::<bench::BenchError>()
        || error.is::<bench_decode::PartialPage>()
        || error.is::<kernel_names::UnknownKernel>()
        || error.downcast_ref::<soak::SoakError>().is_some_and(soak::SoakError::is_bad_request)
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
        assert!(is_bad_request(&problem::ProblemError::VariantOnCpu.into()));
    }
}
