//! `ferrotile info`: the driver, the cards and the kernels of this build.

use std::io::{self, Write};

use ferrotile::{Arch, Gpu, embedded_kernels, embedded_ptx};
use layout::FAMILIES;
use layout::ata::ATA;
use layout::attention::{ATTENTION, COMBINE};
use layout::cg::CG;
use layout::gemm::{GEMM, PACK_8BIT, PACK_16BIT, REDUCE_SPLIT_K};

use crate::table::table;

/// The kernel families and the names of their entries.
fn families() -> [(&'static str, Vec<&'static str>); FAMILIES.len()] {
    let ata = ATA.iter().map(|config| config.name).chain(CG.iter().map(|config| config.name));
    let beside_gemm = [REDUCE_SPLIT_K.name, PACK_8BIT.name, PACK_16BIT.name];
    [
        ("ata", ata.collect()),
        (
            "attention",
            ATTENTION.iter().map(|config| config.name).chain(COMBINE.iter().map(|config| config.name)).collect(),
        ),
        ("gemm", GEMM.iter().map(|config| config.name).chain(beside_gemm).collect()),
    ]
}

/// Prints what this machine and this build have.
pub(crate) fn run() -> anyhow::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "ferrotile {}", env!("CARGO_PKG_VERSION"))?;
    cards(&mut out)?;
    writeln!(out, "\nPTX of this build:")?;
    for (family, entries) in families() {
        let mut lines = Vec::new();
        for arch in Arch::ALL {
            let Some(ptx) = embedded_ptx(family, arch) else { continue };
            let present = embedded_kernels(family, arch).filter(|name| entries.contains(name)).count();
            lines.push(vec![family.to_owned(), arch.to_string(), ptx.len().to_string(), present.to_string()]);
        }
        write!(out, "{}", table(&["family", "architecture", "bytes", "entries"], &lines))?;
        writeln!(out, "\nkernels of {family}:")?;
        for name in &entries {
            writeln!(out, "  {name}")?;
        }
    }
    Ok(())
}

/// Prints the driver and the cards, or why there is none.
fn cards(out: &mut impl Write) -> anyhow::Result<()> {
    let gpus = Gpu::all()?;
    let Some(first) = gpus.first() else {
        // Opening the first card says why there is none: no driver, no card, or one that is too old.
        match Gpu::new(0) {
            Err(reason) => writeln!(out, "devices: none that ferrotile can use ({reason})")?,
            Ok(_) => writeln!(out, "devices: none")?,
        }
        return Ok(());
    };
    let (major, minor) = first.driver_version();
    writeln!(out, "driver: CUDA {major}.{minor}")?;
    let line = |gpu: &Gpu| {
        let (major, minor) = gpu.compute_capability();
        vec![
            gpu.name().to_owned(),
            gpu.ordinal().to_string(),
            format!("{major}.{minor}"),
            format!("{:.1}", gpu.memory_bytes() as f64 / f64::from(1 << 30)),
            gpu.multiprocessors().to_string(),
            gpu.arch().to_string(),
        ]
    };
    let lines: Vec<_> = gpus.iter().map(line).collect();
    write!(
        out,
        "{}",
        table(&["device", "number", "capability", "memory GiB", "multiprocessors", "runs PTX of"], &lines)
    )?;
    Ok(())
}
