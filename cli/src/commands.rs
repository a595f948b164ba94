//! The commands of the program, a file each.

pub(crate) mod ata;
pub(crate) mod attention;
pub(crate) mod bench;
pub(crate) mod compare;
pub(crate) mod completions;
pub(crate) mod demo;
pub(crate) mod emulate_report;
pub(crate) mod gemm;
pub(crate) mod info;
pub(crate) mod man;
pub(crate) mod profile;
pub(crate) mod quantize;
pub(crate) mod soak;
pub(crate) mod validate;
pub(crate) mod warm;

use clap::Subcommand;

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Shows the driver, the devices and the kernels of this build.
    Info(info::InfoArgs),
    /// Computes attention on tensors from files.
    Attention(Box<attention::AttentionArgs>),
    /// Multiplies vectors by a symmetric matrix from files.
    Ata(ata::AtaArgs),
    /// Multiplies matrices from files.
    Gemm(gemm::GemmArgs),
    /// Quantises a tensor from a file to 8-bit elements with factors.
    Quantize(quantize::QuantizeArgs),
    /// Multiplies quantised elements from a file by their factors.
    Dequantize(quantize::DequantizeArgs),
    /// Measures kernels on a card.
    Bench(bench::BenchArgs),
    /// Runs every attention kernel on a generated input and shows its error and time.
    Demo(demo::DemoArgs),
    /// Counts what a kernel does in the emulator: instructions, memory traffic, bank conflicts.
    EmulateReport(emulate_report::ReportArgs),
    /// Has the driver compile every kernel for a card, and keep the result on disk.
    Warm(warm::WarmArgs),
    /// Compares two files of benchmark results.
    Compare(compare::CompareArgs),
    /// Looks for wrong results: random problems against the f64 reference.
    Soak(soak::SoakArgs),
    /// Runs one case under NVIDIA's profiler and says what its numbers mean.
    Profile(profile::ProfileArgs),
    /// Checks every kernel on this machine, and writes a report.
    Validate(validate::ValidateArgs),
    /// Prints completions for a shell.
    Completions(completions::CompletionsArgs),
    /// Prints or writes manual pages.
    Man(man::ManArgs),
}

impl Command {
    /// Runs it; `line` is the command line, which some describe.
    pub(crate) fn run(&self, line: impl FnOnce() -> clap::Command) -> anyhow::Result<()> {
        match self {
            Command::Info(args) => info::run(args),
            Command::Attention(args) => attention::run(args),
            Command::Ata(args) => ata::run(args),
            Command::Gemm(args) => gemm::run(args),
            Command::Quantize(args) => quantize::quantize(args),
            Command::Dequantize(args) => quantize::dequantize(args),
            Command::Bench(args) => bench::run(args),
            Command::Demo(args) => demo::run(args),
            Command::EmulateReport(args) => emulate_report::run(args),
            Command::Warm(args) => warm::run(args),
            Command::Compare(args) => compare::run(args),
            Command::Soak(args) => soak::run(args),
            Command::Profile(args) => profile::run(args),
            Command::Validate(args) => validate::run(args),
            Command::Completions(args) => completions::run(args, line()),
            Command::Man(args) => man::run(args, line()),
        }
    }
}
