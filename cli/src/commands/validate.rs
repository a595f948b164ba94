//! `ferrotile validate`: every kernel that the device runs, on a few problems each, against the f64 reference.
//!
//! The problems are those of [`cases`]. `ferrotile soak` runs and judges its problems in the same way: twice at once on
//! two streams, into outputs full of poison with guard bands, the same bits in both runs, and within the limits of
//! `ferrotile::tolerance`.

mod cases;

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Instant, SystemTime};

use clap::Args;
use ferrotile::Gpu;
use rayon::prelude::*;
use serde::Serialize;

use self::cases::{Size, problems};
use crate::build_info::BuildInfo;
use crate::catalogue::{CatalogueKernel, FAMILIES, kernels};
use crate::device::{DeviceChoice, kernel_driver};
use crate::files::input::FileError;
use crate::files::output;
use crate::json::{self, JsonArgs};
use crate::progress;
use crate::soak::family::Bench;
use crate::soak::outcome::{Failure, Kind, Outcome};
use crate::soak::problem::Problem;
use crate::spelling::in_any_case;
use crate::table::table;

/// Runs every kernel of this build that the device runs, on a few problems each, and compares with f64.
#[derive(Debug, Args)]
pub(crate) struct ValidateArgs {
    /// A family; may be repeated [default: all].
    #[arg(long = "family", num_args = 1.., value_parser = FAMILIES)]
    families: Vec<String>,
    /// Where the report is written, as JSON (docs/json.md).
    #[arg(long, default_value = "validation.json")]
    out: PathBuf,
    /// Where to run: auto (a card, or the emulator where there is none), cuda, cuda:N, emulator or emulator:ARCH.
    #[arg(long, default_value = "auto", value_parser = in_any_case::<DeviceChoice>)]
    device: DeviceChoice,
    #[command(flatten)]
    json: JsonArgs,
}

/// The report.
#[derive(Debug, Serialize)]
struct Validation {
    build: BuildInfo,
    device: Device,
    /// When it was made, in UTC.
    date: String,
    seconds: f64,
    /// Whether every result is right.
    passed: bool,
    kernels: Vec<Validated>,
}

/// What the kernels ran on.
#[derive(Debug, Serialize)]
struct Device {
    name: String,
    /// The architecture of the PTX that ran.
    arch: String,
    emulated: bool,
    /// The newest CUDA version that the driver knows.
    driver: Option<String>,
    /// The version of the driver's kernel module.
    kernel_driver: Option<String>,
}

/// What became of one kernel.
#[derive(Debug, Serialize)]
struct Validated {
    family: &'static str,
    kernel: &'static str,
    /// Problems that it ran; 0 where no call of the library launches it on this architecture.
    cases: usize,
    /// The largest share of its limit that an error has, in the problems that are right.
    share_of_tolerance: f64,
    passed: bool,
    /// Threads of a block.
    threads: u32,
    /// Dynamic shared memory of a block.
    dynamic_shared_bytes: u32,
    /// Registers of a thread, as the driver has compiled it; `None` on the emulator.
    registers: Option<u32>,
    /// Static shared memory of a block.
    static_shared_bytes: Option<u32>,
    /// Local memory of a thread: 0 where nothing spills.
    local_bytes: Option<u32>,
    failures: Vec<Wrong>,
}

/// A problem with a wrong result.
#[derive(Debug, Serialize)]
struct Wrong {
    message: String,
    /// The command that runs it again.
    repeat: String,
}

/// Kernels with wrong results.
#[derive(Debug, thiserror::Error)]
#[error("{wrong} of {all} kernels are wrong: {}", .path.display())]
pub(crate) struct ValidationFailed {
    wrong: usize,
    all: usize,
    path: PathBuf,
}

/// Runs the problems and reports.
pub(crate) fn run(args: &ValidateArgs) -> anyhow::Result<()> {
    output::check_place(&args.out)?;
    let gpu = args.device.open_for_kernels()?;
    let began = Instant::now();
    let is_wanted = |family: &str| args.families.is_empty() || args.families.iter().any(|wanted| wanted == family);
    let kernels: Vec<_> =
        kernels().filter(|kernel| is_wanted(kernel.family) && kernel.is_embedded(gpu.arch())).collect();
    let validated = validate(&gpu, &kernels)?;
    let wrong = validated.iter().filter(|kernel| !kernel.passed).count();
    let on_card = |text: String| (!gpu.is_emulated()).then_some(text);
    let (major, minor) = gpu.driver_version();
    let report = Validation {
        build: BuildInfo::new(),
        device: Device {
            name: gpu.name().to_owned(),
            arch: gpu.arch().to_string(),
            emulated: gpu.is_emulated(),
            driver: on_card(format!("{major}.{minor}")),
            kernel_driver: kernel_driver().and_then(on_card),
        },
        date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        seconds: began.elapsed().as_secs_f64(),
        passed: wrong == 0,
        kernels: validated,
    };
    let text = serde_json::to_string_pretty(&report)? + "\n";
    fs::write(&args.out, text).map_err(|source| FileError::Write { path: args.out.clone(), source })?;
    if args.json.is_wanted() {
        json::print(&report)?;
    } else {
        write!(io::stdout(), "{}", report.text(&args.out.display().to_string()))?;
    }
    if wrong == 0 {
        return Ok(());
    }
    Err(ValidationFailed { wrong, all: report.kernels.len(), path: args.out.clone() }.into())
}

/// Runs the problems of the kernels, on all cores.
fn validate(gpu: &Gpu, kernels: &[CatalogueKernel]) -> ferrotile::Result<Vec<Validated>> {
    let size = if gpu.is_emulated() { Size::Small } else { Size::Large };
    let of_kernel = |(index, kernel): (usize, &CatalogueKernel)| {
        problems(kernel.name, gpu.arch(), size).into_iter().map(move |problem| (index, problem)).collect::<Vec<_>>()
    };
    let all: Vec<(usize, Problem)> = kernels.iter().enumerate().flat_map(of_kernel).collect();
    let shown = progress::bar(all.len());
    let run = |bench: &mut Result<Bench, ferrotile::Error>, (index, problem): (usize, Problem)| {
        let bench = bench.as_ref().map_err(Clone::clone)?;
        shown.set_message(kernels[index].name);
        let result = problem.run(bench);
        shown.inc(1);
        Ok((index, problem, result))
    };
    let results: Vec<_> = all.into_par_iter().map_init(|| Bench::new(gpu), run).collect::<ferrotile::Result<_>>()?;
    let mut validated =
        kernels.iter().map(|kernel| Validated::new(gpu, kernel)).collect::<ferrotile::Result<Vec<_>>>()?;
    for (index, problem, result) in &results {
        validated[*index].add(gpu, problem, result);
    }
    Ok(validated)
}

impl Validated {
    /// A kernel before any result.
    fn new(gpu: &Gpu, kernel: &CatalogueKernel) -> ferrotile::Result<Validated> {
        let &CatalogueKernel { family, name, threads, shared_bytes } = kernel;
        let attributes = match gpu.is_emulated() {
            true => None,
            false => Some(gpu.kernel(family, name)?.attributes()),
        };
        Ok(Validated {
            family,
            kernel: name,
            cases: 0,
            share_of_tolerance: 0.0,
            passed: true,
            threads,
            dynamic_shared_bytes: shared_bytes,
            registers: attributes.map(|attributes| attributes.registers),
            static_shared_bytes: attributes.map(|attributes| attributes.static_shared_bytes),
            local_bytes: attributes.map(|attributes| attributes.local_bytes),
            failures: Vec::new(),
        })
    }

    /// Adds a result. A refusal is wrong too: every problem is one that its kernel takes.
    fn add(&mut self, gpu: &Gpu, problem: &Problem, result: &Result<Outcome, Failure>) {
        self.cases += 1;
        let failure = match result {
            Ok(Outcome::Right(share)) => {
                self.share_of_tolerance = self.share_of_tolerance.max(*share);
                return;
            }
            Ok(Outcome::Refused(reason)) => Failure::new(Kind::Refused, format!("refused: {reason}")),
            Err(failure) => failure.clone(),
        };
        self.passed = false;
        self.failures.push(Wrong { message: failure.message, repeat: problem.repeat(gpu) });
    }
}

impl Validation {
    /// A line for each kernel, what is wrong, and the sum of it.
    fn text(&self, path: &str) -> String {
        let line = |kernel: &Validated| {
            let result = match kernel.cases {
                _ if !kernel.passed => "WRONG",
                0 => "never launched",
                _ => "right",
            };
            let share = if kernel.cases == 0 { String::new() } else { format!("{:.2}", kernel.share_of_tolerance) };
            vec![
                kernel.kernel.to_owned(),
                kernel.family.to_owned(),
                kernel.cases.to_string(),
                share,
                kernel.registers.map_or(String::new(), |registers| registers.to_string()),
                result.to_owned(),
            ]
        };
        let Validation { build, device, seconds, kernels, .. } = self;
        let lines: Vec<_> = kernels.iter().map(line).collect();
        let mut text = format!("{}, {} PTX\n", device.name, device.arch);
        text += &table(&["kernel", "family", "cases", "error / tolerance", "registers", "result"], &lines);
        for kernel in kernels {
            for Wrong { message, repeat } in &kernel.failures {
                text += &format!("{}: {message}\n{repeat}\n", kernel.kernel);
            }
        }
        let (all, cases) = (kernels.len(), kernels.iter().map(|kernel| kernel.cases).sum::<usize>());
        let wrong = kernels.iter().filter(|kernel| !kernel.passed).count();
        let BuildInfo { version, git_hash, git_dirty, .. } = build;
        let changed = if *git_dirty == Some(true) { ", changed" } else { "" };
        text += &format!("{all} kernels, {cases} cases, {wrong} wrong, {seconds:.1} s; ");
        text + &format!("ferrotile {version} ({git_hash}{changed}); {path}\n")
    }
}
