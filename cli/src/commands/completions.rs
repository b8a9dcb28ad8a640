//! `lockctl completions`.

use clap_complete::Shell;

use crate::{
    cli,
    exit::{Exit, Failure},
    output,
};

const AFTER_HELP: &str = "\
Examples:
  lockctl completions bash > /etc/bash_completion.d/lockctl
  lockctl completions zsh > ~/.zfunc/_lockctl
  lockctl completions fish > ~/.config/fish/completions/lockctl.fish";

/// Prints completions for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// The shell.
    shell: Shell,
}

pub(crate) fn completions(args: &Args) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli::description(), "lockctl", &mut script);
    output::print(script).map(|()| Exit::SUCCESS)
}
