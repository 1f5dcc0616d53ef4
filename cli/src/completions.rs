//! `pascaline completions`: prints a shell's completion script for this program.

use super::failure::Failure;
use clap_complete::Shell;
use std::io::{self, Write};

/// Prints the script; for bash: `pascaline completions bash > ~/.local/share/bash-completion/completions/pascaline`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The shell.
    shell: Shell,
}

pub(super) fn run(args: &Args, mut command: clap::Command) -> Result<(), Failure> {
    let mut script = Vec::new(); // clap_complete panics where it can't write
    clap_complete::generate(args.shell, &mut command, "pascaline", &mut script);
    let mut out = io::stdout().lock();
    out.write_all(&script).and_then(|()| out.flush()).map_err(Failure::from)
}
