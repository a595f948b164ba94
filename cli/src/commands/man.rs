//! `ferrotile man`: manual pages.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use clap_mangen::Man;

use crate::files::input::FileError;

/// Prints the manual page of the program, or writes those of all commands.
///
/// `ferrotile man | man -l -` shows it; `ferrotile man --out ~/.local/share/man/man1` installs all of them.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// A folder, made where there is none, for a page of each command: ferrotile.1, ferrotile-attention.1 and so on.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Prints or writes the pages of this command line.
pub(crate) fn run(args: &ManArgs, line: clap::Command) -> anyhow::Result<()> {
    let Some(folder) = &args.out else {
        let mut page = Vec::new();
        Man::new(line).render(&mut page)?;
        return Ok(io::stdout().write_all(&page)?);
    };
    let written = fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(line, folder));
    Ok(written.map_err(|source| FileError::Write { path: folder.clone(), source })?)
}
