//! `cargo xtask clean-cache`.

use anyhow::{Context, Result};
use cuda_builder::Cache;

/// Runs the command.
pub(crate) fn run() -> Result<()> {
    let Some(cache) = Cache::of_user() else {
        println!("there is no cache: FERROTILE_CACHE is off, or there is no home folder");
        return Ok(());
    };
    let folder = cache.folder().display();
    let size_bytes = cache.clear().with_context(|| format!("cannot clean {folder}"))?;
    println!("removed {:.1} MiB from {folder}", size_bytes as f64 / f64::from(1 << 20));
    Ok(())
}
