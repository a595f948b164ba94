//! `ferrotile info`: the driver, the cards and the kernels of this build.

use std::io::{self, Write};

use clap::Args;
use ferrotile::{Arch, Gpu, embedded_kernels, embedded_ptx};
use serde::Serialize;
use variants::FAMILIES;
use variants::ata::ATA;
use variants::attention::{ATTENTION, COMBINE};
use variants::cg::CG;
use variants::gemm::{GEMM, PACK_8BIT, PACK_16BIT, REDUCE_SPLIT_K};
use variants::quantize;
use variants::study::{ATA_STUDY, ATTENTION_STUDY, STUDY};

use crate::table::table;

/// Shows the driver, the devices and the PTX of this build.
#[derive(Debug, Args)]
pub(crate) struct InfoArgs {
    /// Lists the kernels by name, as `--kernel` takes them.
    #[arg(long)]
    kernels: bool,
    /// Prints everything as JSON: devices, PTX, and the kernels of each family and architecture.
    #[arg(long, conflicts_with = "kernels")]
    json: bool,
}

/// The kernel families, and the study, whose kernels a caller may name too; with the names of their entries.
fn families() -> [(&'static str, Vec<&'static str>); FAMILIES.len() + 1] {
    let ata = ATA.iter().map(|config| config.name).chain(CG.iter().map(|config| config.name));
    let study = ATTENTION_STUDY.iter().map(|config| config.name);
    let beside_gemm = [REDUCE_SPLIT_K.name, PACK_8BIT.name, PACK_16BIT.name];
    [
        ("ata", ata.collect()),
        (
            "attention",
            ATTENTION.iter().map(|config| config.name).chain(COMBINE.iter().map(|config| config.name)).collect(),
        ),
        ("gemm", GEMM.iter().map(|config| config.name).chain(beside_gemm).collect()),
        ("quantize", quantize::KERNELS.iter().map(|kernel| kernel.name).collect()),
        (STUDY, study.chain(ATA_STUDY.iter().map(|config| config.name)).collect()),
    ]
}

/// What this machine and this build have.
#[derive(Debug, Serialize)]
struct Facts {
    version: &'static str,
    /// The newest CUDA version that the driver knows; `None` without a card.
    driver: Option<String>,
    devices: Vec<DeviceFacts>,
    /// Why there is no device.
    #[serde(skip_serializing_if = "Option::is_none")]
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
        for (family, entries) in families() {
            for arch in Arch::ALL {
                let Some(text) = embedded_ptx(family, arch) else { continue };
                let present: Vec<_> = embedded_kernels(family, arch).collect();
                let kernels = entries.iter().filter(|entry| present.contains(entry));
                let kernels = kernels.map(|&entry| entry.to_owned()).collect();
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
        writeln!(out, "{}", serde_json::to_string_pretty(&facts)?)?;
        return Ok(());
    }
    writeln!(out, "ferrotile {}", facts.version)?;
    print_devices(&mut out, &facts)?;
    writeln!(out, "\nPTX of this build:")?;
    let line = |ptx: &PtxFacts| {
        let kibibytes = (ptx.bytes >> 10).to_string();
        vec![ptx.family.to_owned(), ptx.arch.clone(), kibibytes, ptx.kernels.len().to_string()]
    };
    let lines: Vec<_> = facts.ptx.iter().map(line).collect();
    write!(out, "{}", table(&["family", "architecture", "KiB", "kernels"], &lines))?;
    if !args.kernels {
        writeln!(out, "\nThe kernels by name: ferrotile info --kernels")?;
        return Ok(());
    }
    for (family, entries) in families() {
        writeln!(out, "\nkernels of {family}:")?;
        for name in &entries {
            writeln!(out, "  {name}")?;
        }
    }
    Ok(())
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
