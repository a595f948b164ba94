//! `ferrotile warm`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use ferrotile::{Gpu, embedded_kernels};
use rayon::prelude::*;
use variants::FAMILIES;

use crate::device;
use crate::progress;

/// Has the driver compile every kernel for a card, and keep the result on disk.
///
/// The first call of a kernel compiles nothing then, in this and in other programs, until the driver or the card
/// changes. The driver drops what it has not used for long where its folder becomes too large.
#[derive(Debug, Args)]
pub(crate) struct WarmArgs {
    /// The card: cuda, cuda:N or N.
    #[arg(long, default_value = "cuda", value_parser = device::card)]
    device: u32,
    /// A family of kernels; all if none is given.
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(FAMILIES))]
    family: Vec<String>,
}

/// The driver keeps nothing.
#[derive(Debug, thiserror::Error)]
#[error("CUDA_CACHE_DISABLE is set, so the driver keeps no compiled kernel")]
pub(crate) struct NothingKept;

/// Loads the kernels, from all cores.
pub(crate) fn run(args: &WarmArgs) -> anyhow::Result<()> {
    if std::env::var_os("CUDA_CACHE_DISABLE").is_some_and(|value| value == "1") {
        return Err(NothingKept.into());
    }
    let gpu = Gpu::new(args.device)?;
    let is_asked = |family: &str| args.family.is_empty() || args.family.iter().any(|asked| asked == family);
    let kernels: Vec<(&str, &str)> = FAMILIES
        .into_iter()
        .filter(|family| is_asked(family))
        .flat_map(|family| embedded_kernels(family, gpu.arch()).map(move |name| (family, name)))
        .collect();
    let shown = progress::bar(kernels.len());
    let began = Instant::now();
    kernels.par_iter().try_for_each(|(family, name)| gpu.kernel(family, name).map(|_| shown.inc(1)))?;
    drop(shown);
    let (count, seconds) = (kernels.len(), began.elapsed().as_secs_f64());
    let folder = std::env::var_os("CUDA_CACHE_PATH").map(PathBuf::from);
    let folder = folder.or_else(|| std::env::home_dir().map(|home| home.join(".nv/ComputeCache")));
    let kept = folder.map_or(String::new(), |folder| format!("; the driver keeps them in {}", folder.display()));
    writeln!(io::stdout(), "{count} kernels for {} in {seconds:.1} s{kept}", gpu.name())?;
    Ok(())
}
