//! `ferrotile bench load`: how long a kernel takes to load, which is most of a first call.

use std::io::{self, Write};
use std::time::Instant;

use clap::Args;
use ferrotile::{Gpu, kernel_ptx};
use layout::attention::ATTENTION;

use crate::kernel_names;
use crate::table::table;

/// What to load.
#[derive(Debug, Args)]
pub(crate) struct LoadBenchArgs {
    /// An attention kernel by name; may be repeated [default: every one].
    #[arg(long = "variant", num_args = 1..)]
    variants: Vec<String>,
    /// The number of the card.
    #[arg(long, default_value_t = 0)]
    device: u32,
}

/// Loads each kernel once and prints the milliseconds, those of the driver's compiler included unless its cache has the
/// kernel.
pub(crate) fn run(args: &LoadBenchArgs) -> anyhow::Result<()> {
    kernel_names::check(&args.variants, "attention", ATTENTION.iter().map(|row| row.name))?;
    let began = Instant::now();
    let gpu = Gpu::new(args.device)?;
    let context_ms = milliseconds(began);
    writeln!(io::stdout(), "{}, {} PTX, context in {context_ms:.0} ms", gpu.name(), gpu.arch())?;
    let mut lines = Vec::new();
    for row in ATTENTION.iter().filter(|row| row.compiled_for(gpu.arch())) {
        if !args.variants.is_empty() && !kernel_names::include(&args.variants, row.name) {
            continue;
        }
        let began = Instant::now();
        gpu.kernel("attention", row.name)?;
        let load_ms = milliseconds(began);
        let bytes = kernel_ptx("attention", gpu.arch(), row.name).map_or(0, |ptx| ptx.len());
        lines.push(vec![row.to_string(), format!("{:.0}", bytes as f64 / 1024.0), format!("{load_ms:.1}")]);
    }
    write!(io::stdout(), "{}", table(&["kernel", "PTX KiB", "load ms"], &lines))?;
    Ok(())
}

fn milliseconds(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}
