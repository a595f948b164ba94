//! `cargo xtask build`.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail};
use cuda_builder::ptxas::{Ptxas, Report};
use cuda_builder::{Arch, Build, CudaBuilder, embed};

use crate::gates::{blocks_per_multiprocessor, budget, violations};
use crate::workspace::{device_crates, root, target};

/// Arguments of `cargo xtask build`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// sm_80, sm_89, sm_90a or all
    #[arg(long, default_value = "all")]
    arch: Archs,
    /// One family, such as attention; all if not given
    #[arg(long)]
    kernel: Option<String>,
    /// Assembles with ptxas and fails on spills, stack, serialised wgmma or too many registers
    #[arg(long)]
    ptxas: bool,
    /// Writes cubin files beside the PTX; implies --ptxas
    #[arg(long)]
    cubin: bool,
    /// The folder for the files; `ptx` in the target folder if not given
    #[arg(long)]
    out: Option<PathBuf>,
}

/// One architecture or all.
#[derive(Clone)]
struct Archs(Vec<Arch>);

impl FromStr for Archs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Archs(Arch::ALL.to_vec())),
            text => text.parse().map(|arch| Archs(vec![arch])).map_err(|error| format!("{error}, or all")),
        }
    }
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let families = match &arguments.kernel {
        None => device_crates().collect(),
        Some(name) => match device_crates().find(|family| family == name) {
            Some(family) => vec![family],
            None => bail!("no kernel family {name}: there are {}", device_crates().collect::<Vec<_>>().join(", ")),
        },
    };
    let ptxas = match arguments.ptxas || arguments.cubin {
        true => Some(
            Ptxas::find(root()).context("no ptxas on PATH, in CUDA_PATH or in .cuda-tools: run `cargo xtask tools`")?,
        ),
        false => None,
    };
    let out = arguments.out.clone().unwrap_or_else(|| target().join("ptx"));
    fs::create_dir_all(&out).with_context(|| out.display().to_string())?;

    let job = |arch: Arch| -> Result<Vec<Built>> {
        let mut built = Vec::new();
        for family in &families {
            let file = out.join(embed::file_name(family, arch));
            let build = CudaBuilder::new(root().join("kernels-gpu").join(family)).arch(arch).copy_to(&file).build()?;
            if build.has_warnings() {
                eprint!("{}", build.messages());
            }
            let cubin = file.with_extension("cubin");
            let report = ptxas.as_ref().map(|ptxas| ptxas.assemble(&file, arch, &cubin)).transpose()?;
            if report.is_some() && !arguments.cubin {
                fs::remove_file(&cubin).with_context(|| cubin.display().to_string())?;
            }
            built.push(Built { family, arch, build, report });
        }
        Ok(built)
    };
    let mut broken = Vec::new();
    for built in at_once(&arguments.arch.0, job)?.into_iter().flatten() {
        built.print(&mut broken);
    }
    println!("\nPTX in {}", out.display());
    if broken.is_empty() {
        return Ok(());
    }
    bail!("{} gates are violated:\n  {}", broken.len(), broken.join("\n  "))
}

/// Does a job for each architecture, all at once: builds for one do not wait for those for another.
pub(crate) fn at_once<R: Send>(archs: &[Arch], job: impl Fn(Arch) -> Result<R> + Sync) -> Result<Vec<R>> {
    let job = &job;
    std::thread::scope(|scope| {
        let threads: Vec<_> = archs.iter().map(|&arch| scope.spawn(move || job(arch))).collect();
        let results = threads.into_iter().map(|thread| thread.join());
        results.map(|result| result.unwrap_or_else(|_| Err(anyhow!("a build thread panicked")))).collect()
    })
}

/// One family for one architecture.
struct Built {
    family: &'static str,
    arch: Arch,
    build: Build,
    report: Option<Report>,
}

impl Built {
    /// Prints a table and adds the violated gates to the list.
    fn print(&self, broken: &mut Vec<String>) {
        let module = self.build.module();
        let (major, minor) = module.version;
        println!("\n{} for {}, PTX {major}.{minor}, {} KiB", self.family, self.arch, self.build.ptx().len() >> 10);
        let width = module.entries.iter().map(|entry| entry.name.len()).max().unwrap_or(0);
        let Some(report) = &self.report else {
            for entry in &module.entries {
                println!("  {:width$}  {:6} instructions", entry.name, entry.opcodes.values().sum::<usize>());
            }
            return;
        };
        println!("  {:width$}  registers  spills  stack  static smem  dynamic smem  blocks/SM", "entry");
        for entry in &module.entries {
            let Some(entry) = report.entry(&entry.name) else {
                broken.push(format!("{} {}: ptxas does not report it", self.arch, entry.name));
                continue;
            };
            let budget = budget(&entry.name);
            let spills = entry.spill_store_bytes + entry.spill_load_bytes;
            let mut line = format!(
                "  {:width$}  {:9}  {spills:6}  {:5}  {:11}",
                entry.name, entry.registers, entry.stack_bytes, entry.shared_bytes
            );
            if let Some(budget) = budget {
                let blocks = blocks_per_multiprocessor(self.arch, entry, budget);
                // Writing to a String cannot fail.
                let _ = write!(line, "  {:12}  {blocks:9}", budget.dynamic_shared_bytes);
            }
            println!("{line}");
            broken.extend(violations(entry, budget).into_iter().map(|violation| format!("{} {violation}", self.arch)));
        }
        let serious = report.warnings.iter().map(|warning| format!("{} {}: {warning}", self.arch, self.family));
        broken.extend(serious);
    }
}
