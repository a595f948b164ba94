//! `ferrotile profile`: one case of a benchmark under NVIDIA's profiler `ncu`, and the numbers that matter.

mod ncu;
mod numbers;

use std::process::{Command, Output};

use clap::Args;
use serde::Serialize;

use self::ncu::{Launch, NoNcu};
use self::numbers::Numbers;
use crate::bench::any_case::AnyCase;
use crate::device;
use crate::json::JsonArgs;
use crate::progress;

/// Runs one case under NVIDIA's profiler ncu and prints the numbers that matter, each with what it means.
#[derive(Debug, Args)]
pub(crate) struct ProfileArgs {
    /// A case as `bench attention`, `bench decode`, `bench gemm` and `bench ata` take it, such as
    /// 4x16x4096x128/causal/f16, 4096x4096x4096/f16 or n2624_c3_d27_f8.
    case: AnyCase,
    /// The kernel to run, by name [default: the library's choice].
    #[arg(long, alias = "variant")]
    kernel: Option<String>,
    /// The card: cuda, cuda:N or N.
    #[arg(long, default_value = "cuda", value_parser = device::card)]
    device: u32,
    /// More options of that benchmark, behind `--`, such as `-- --precision f16`.
    #[arg(last = true, value_name = "OPTIONS")]
    more: Vec<String>,
    #[command(flatten)]
    json: JsonArgs,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct ProfileResult {
    case: String,
    /// The profiler.
    ncu: String,
    /// The kernels of one call, in the order of their launches.
    kernels: Vec<ProfiledKernel>,
}

/// One kernel.
#[derive(Debug, Serialize)]
struct ProfiledKernel {
    kernel: String,
    /// Blocks of the grid and threads of a block, as the profiler writes them.
    grid: String,
    block: String,
    #[serde(flatten)]
    numbers: Numbers,
}

/// Why there are no numbers.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProfileError {
    /// No profiler.
    #[error(transparent)]
    NoNcu(#[from] NoNcu),
    /// It could not be started.
    #[error("{path}: {source}")]
    Start {
        /// The profiler.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The driver keeps the counters for root.
    #[error(
        "the driver lets root alone read the counters of the card (ERR_NVGPUCTRPERM): run as root, or load the driver \
         with NVreg_RestrictProfilingToAdminUsers=0"
    )]
    Permission,
    /// It, or the benchmark under it, failed.
    #[error("{path} failed ({status}): {text}")]
    Failed {
        /// The profiler.
        path: String,
        /// How it ended.
        status: std::process::ExitStatus,
        /// What it and the benchmark said.
        text: String,
    },
    /// It has seen no kernel.
    #[error("{path} has seen no kernel of the case: {text}")]
    NoKernel {
        /// The profiler.
        path: String,
        /// What it and the benchmark said.
        text: String,
    },
}

/// Launches that are profiled: those of two calls, of which the second has its code and data in the caches.
const LAUNCHES: &str = "6";

/// The kernels of the library by the starts of their names; the benchmark launches no others.
const KERNELS: &str = "regex:^(ata|attention|gemm)_";

/// Profiles and prints.
pub(crate) fn run(args: &ProfileArgs) -> anyhow::Result<()> {
    let ncu = ncu::find()?;
    let path = ncu.display().to_string();
    let log = tempfile::Builder::new().prefix("ferrotile-ncu").suffix(".csv").tempfile()?;
    let mut command = Command::new(&ncu);
    command.args(["--csv", "--page", "raw", "--print-units", "base", "--target-processes", "all"]);
    command.args(["--kernel-name", KERNELS, "--launch-count", LAUNCHES, "--kill", "yes"]);
    command.arg("--metrics").arg(Numbers::metrics().join(",")).arg("--log-file").arg(log.path());
    command.arg(std::env::current_exe()?).args(benchmark(args));
    let shown = progress::spinner(format!("{} under ncu", args.case));
    let output = command.output().map_err(|source| ProfileError::Start { path: path.clone(), source })?;
    drop(shown);
    let text = std::fs::read_to_string(log.path())?;
    let launches = ncu::launches(&text);
    if launches.is_empty() {
        return Err(failure(path, &output, &text).into());
    }
    let kernels = latest(&launches)
        .map(|launch| ProfiledKernel {
            kernel: launch.kernel.clone(),
            grid: launch.grid.clone(),
            block: launch.block.clone(),
            numbers: Numbers::of(launch),
        })
        .collect();
    let result = ProfileResult { case: args.case.to_string(), ncu: path, kernels };
    Ok(args.json.print(&result, ProfileResult::text)?)
}

/// The arguments of the benchmark of one call, or of as few as it can make.
fn benchmark(args: &ProfileArgs) -> Vec<String> {
    let mut all =
        vec!["bench".to_owned(), args.case.benchmark().to_owned(), "--case".to_owned(), args.case.to_string()];
    if let Some(kernel) = &args.kernel {
        all.extend(["--kernel".to_owned(), kernel.clone()]);
    } else if matches!(args.case, AnyCase::Ata(_)) && !args.more.iter().any(|option| option.starts_with("--precision"))
    {
        // The benchmark has every precision unless one is named.
        all.extend(["--precision", "tf32"].map(str::to_owned));
    }
    let repeats = ["--warmup", "0", "--iterations", "1", "--device"].map(str::to_owned);
    all.into_iter().chain(repeats).chain([args.device.to_string()]).chain(args.more.iter().cloned()).collect()
}

/// The last launch of each kernel, in the order of their first launches.
fn latest(launches: &[Launch]) -> impl Iterator<Item = &Launch> {
    let is_first = |index: usize| launches[..index].iter().all(|before| before.kernel != launches[index].kernel);
    let names = (0..launches.len()).filter(move |&index| is_first(index)).map(|index| &launches[index].kernel);
    names.filter_map(|name| launches.iter().rev().find(|launch| launch.kernel == *name))
}

/// Why the profiler has no launches.
fn failure(path: String, output: &Output, log: &str) -> ProfileError {
    let said = [&output.stderr, &output.stdout].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    let text = [log, &said[0], &said[1]].map(str::trim).join(" ").trim().to_owned();
    if text.contains("ERR_NVGPUCTRPERM") {
        return ProfileError::Permission;
    }
    match output.status.success() {
        true => ProfileError::NoKernel { path, text },
        false => ProfileError::Failed { path, status: output.status, text },
    }
}

impl ProfileResult {
    /// A line for each number: its name, its value, and what it means.
    fn text(&self) -> String {
        let mut text = String::new();
        for ProfiledKernel { kernel, grid, block, numbers } in &self.kernels {
            text += &format!("{kernel}, grid {grid}, block {block}\n");
            for [name, value, meaning] in numbers.lines() {
                text += &format!("  {name:<16} {value:>16}  {meaning}\n");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(kernel: &str, grid: &str) -> Launch {
        Launch { kernel: kernel.to_owned(), grid: grid.to_owned(), block: String::new(), values: Vec::new() }
    }

    #[test]
    fn the_last_launch_of_each_kernel_counts() {
        let launches = [launch("pack", "1"), launch("main", "2"), launch("pack", "3"), launch("main", "4")];
        let grids: Vec<_> = latest(&launches).map(|launch| launch.grid.as_str()).collect();
        assert_eq!(grids, ["3", "4"]);
    }

    #[test]
    fn the_case_goes_to_the_benchmark_of_its_family() {
        let args = |case: &str, kernel: Option<&str>, more: &[&str]| ProfileArgs {
            case: case.parse().unwrap(),
            kernel: kernel.map(str::to_owned),
            device: 1,
            more: more.iter().map(|&option| option.to_owned()).collect(),
            json: JsonArgs::TEXT,
        };
        let line = |args: &ProfileArgs| benchmark(args).join(" ");
        let end = "--warmup 0 --iterations 1 --device 1";
        assert_eq!(
            line(&args("4x16x4096x128/causal/f16", Some("k"), &[])),
            format!("bench attention --case 4x16x4096x128/causal/f16 --kernel k {end}")
        );
        assert_eq!(
            line(&args("n16_c1_d1_f8", None, &[])),
            format!("bench ata --case n16_c1_d1_f8 --precision tf32 {end}")
        );
        assert_eq!(
            line(&args("n16_c1_d1_f8", None, &["--precision", "f16"])),
            format!("bench ata --case n16_c1_d1_f8 {end} --precision f16")
        );
        assert_eq!(line(&args("64x64x64/f16", None, &[])), format!("bench gemm --case 64x64x64/f16 {end}"));
    }
}
