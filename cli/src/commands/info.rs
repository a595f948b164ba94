//! `ferrotile info`: the driver, the cards and the kernels of this build.

use std::io::{self, Write};

use clap::Args;
use ferrotile::{Arch, Gpu, embedded_ptx};
use serde::Serialize;

use crate::catalogue::{CatalogueKernel, FAMILIES, kernels};
use crate::json;
use crate::table::table;

/// Shows the driver, the devices and the PTX of this build.
#[derive(Debug, Args)]
pub(crate) struct InfoArgs {
    /// Lists the kernels by name, as `--kernel` takes them, with the threads and the shared memory of a block.
    #[arg(long)]
    kernels: bool,
    /// Prints everything as JSON, the kernels by name among it (docs/json.md).
    #[arg(long)]
    json: bool,
}

/// What this machine and this build have.
#[derive(Debug, Serialize)]
struct Facts {
    version: &'static str,
    /// The newest CUDA version that the driver knows; `None` without a card.
    driver: Option<String>,
    devices: Vec<DeviceFacts>,
    /// Why there is no device.
    no_device: Option<String>,
    ptx: Vec<PtxFacts>,
}

/// A card.
#[derive(Debug, Serialize)]
struct DeviceFacts {
    name: String,
    ordinal: u32,
    compute_capability: String,
    memory_bytes: u64,
    multiprocessors: u32,
    /// The architecture of the PTX that it runs.
    arch: String,
}

/// The PTX of a family for an architecture.
#[derive(Debug, Serialize)]
struct PtxFacts {
    family: &'static str,
    arch: String,
    bytes: usize,
    kernels: Vec<String>,
}

impl Facts {
    fn collect() -> anyhow::Result<Facts> {
        let gpus = Gpu::all()?;
        let no_device = match gpus.first() {
            Some(_) => None,
            // Opening the first card says why there is none: no driver, no card, or one that is too old.
            None => Gpu::new(0).err().map(|reason| reason.to_string()),
        };
        let device = |gpu: &Gpu| {
            let (major, minor) = gpu.compute_capability();
            DeviceFacts {
                name: gpu.name().to_owned(),
                ordinal: gpu.ordinal(),
                compute_capability: format!("{major}.{minor}"),
                memory_bytes: gpu.memory_bytes(),
                multiprocessors: gpu.multiprocessors(),
                arch: gpu.arch().to_string(),
            }
        };
        let mut ptx = Vec::new();
        for family in FAMILIES {
            for arch in Arch::ALL {
                let Some(text) = embedded_ptx(family, arch) else { continue };
                let kernels = kernels().filter(|kernel| kernel.family == family && kernel.is_embedded(arch));
                let kernels = kernels.map(|kernel| kernel.name.to_owned()).collect();
                ptx.push(PtxFacts { family, arch: arch.to_string(), bytes: text.len(), kernels });
            }
        }
        Ok(Facts {
            version: env!("CARGO_PKG_VERSION"),
            driver: gpus.first().map(|gpu| gpu.driver_version()).map(|(major, minor)| format!("{major}.{minor}")),
            devices: gpus.iter().map(device).collect(),
            no_device,
            ptx,
        })
    }
}

/// Prints what this machine and this build have.
pub(crate) fn run(args: &InfoArgs) -> anyhow::Result<()> {
    let mut out = io::stdout();
    let facts = Facts::collect()?;
    if args.json {
        return Ok(json::print(&facts)?);
    }
    writeln!(out, "ferrotile {}", facts.version)?;
    print_devices(&mut out, &facts)?;
    print_counts(&mut out, &facts)?;
    if !args.kernels {
        writeln!(out, "\nThe kernels by name: ferrotile info --kernels")?;
        return Ok(());
    }
    for family in FAMILIES {
        let line = |kernel: CatalogueKernel| {
            vec![kernel.name.to_owned(), kernel.threads.to_string(), kernel.shared_bytes.to_string()]
        };
        let lines: Vec<_> = kernels().filter(|kernel| kernel.family == family).map(line).collect();
        let heading = format!("kernels of {family}");
        write!(out, "\n{}", table(&[&heading, "threads", "shared bytes"], &lines))?;
    }
    Ok(())
}

/// Prints how many kernels each family has for each architecture of this build.
fn print_counts(out: &mut impl Write, facts: &Facts) -> io::Result<()> {
    let archs: Vec<String> = Arch::ALL.map(|arch| arch.to_string()).into();
    let archs: Vec<&str> =
        archs.iter().map(String::as_str).filter(|arch| facts.ptx.iter().any(|ptx| ptx.arch == *arch)).collect();
    if archs.is_empty() {
        return writeln!(out, "\nkernels: none in this build");
    }
    let of = |family: &str, arch: &str| facts.ptx.iter().find(|ptx| ptx.family == family && ptx.arch == arch);
    let count = |family: &str| {
        let counts = archs.iter().map(|arch| of(family, arch).map_or(0, |ptx| ptx.kernels.len()).to_string());
        [family.to_owned()].into_iter().chain(counts).collect()
    };
    let mut lines: Vec<Vec<String>> = FAMILIES.into_iter().map(count).collect();
    let kibibytes = archs.iter().map(|arch| {
        let bytes: usize = facts.ptx.iter().filter(|ptx| ptx.arch == *arch).map(|ptx| ptx.bytes).sum();
        (bytes >> 10).to_string()
    });
    lines.push(["PTX, KiB".to_owned()].into_iter().chain(kibibytes).collect());
    write!(out, "\n{}", table(&[&["kernels for"], &archs[..]].concat(), &lines))
}

/// Prints the driver and the cards, or why there is none.
fn print_devices(out: &mut impl Write, facts: &Facts) -> io::Result<()> {
    let Some(driver) = &facts.driver else {
        let reason =
            facts.no_device.as_ref().map_or(String::new(), |reason| format!(" that ferrotile can use ({reason})"));
        return writeln!(out, "devices: none{reason}");
    };
    writeln!(out, "driver: CUDA {driver}")?;
    let line = |device: &DeviceFacts| {
        vec![
            device.name.clone(),
            device.ordinal.to_string(),
            device.compute_capability.clone(),
            format!("{:.1}", device.memory_bytes as f64 / f64::from(1 << 30)),
            device.multiprocessors.to_string(),
            device.arch.clone(),
        ]
    };
    let lines: Vec<_> = facts.devices.iter().map(line).collect();
    let heading = ["device", "number", "capability", "memory GiB", "multiprocessors", "runs PTX of"];
    write!(out, "{}", table(&heading, &lines))
}
