//! `ferrotile completions`: what a shell needs to complete options, commands and values.

use std::io::{self, Write};

use clap::Args;
use clap_complete::Shell;

/// Prints completions for a shell.
///
/// bash: `ferrotile completions bash > ~/.local/share/bash-completion/completions/ferrotile`. zsh: into a file
/// `_ferrotile` of a folder of `$fpath`. fish: `> ~/.config/fish/completions/ferrotile.fish`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Prints them for this command line.
pub(crate) fn run(args: &CompletionsArgs, mut line: clap::Command) -> anyhow::Result<()> {
    let mut text = Vec::new();
    let name = line.get_name().to_owned();
    clap_complete::generate(args.shell, &mut line, name, &mut text);
    Ok(io::stdout().write_all(&text)?)
}
