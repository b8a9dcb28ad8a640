//! `lockctl man`.

use std::{fs, path::PathBuf};

use clap_mangen::Man;

use crate::{
    cli,
    exit::{Exit, Failure},
    output,
};

const AFTER_HELP: &str = "\
Examples:
  lockctl man | man -l -
  lockctl man run | man -l -
  lockctl man --dir /usr/local/share/man/man1";

/// Writes the manual pages: one to stdout, or all of them to a directory.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// The command whose page is printed. Default: the page of lockctl itself.
    #[arg(value_name = "COMMAND", conflicts_with = "dir")]
    command: Option<String>,
    /// Writes lockctl.1, lockctl-run.1 and the other pages to this directory.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(crate) fn man(args: &Args) -> Result<Exit, Failure> {
    let mut program = cli::description();
    // Completes the names of the commands with that of the program.
    program.build();
    if let Some(dir) = &args.dir {
        let failed = |error| {
            Failure::new(Exit::NO_OUTPUT, format!("cannot write to {}: {error}", dir.display()))
        };
        fs::create_dir_all(dir).map_err(failed)?;
        clap_mangen::generate_to(program, dir).map_err(failed)?;
        return Ok(Exit::SUCCESS);
    }
    let command = match &args.command {
        None => program,
        Some(name) => program.find_subcommand(name).cloned().ok_or_else(|| {
            Failure::usage(format!("there is no command `{name}`; `lockctl --help` lists them"))
        })?,
    };
    let mut page = Vec::new();
    let failed = |error| Failure::new(Exit::NO_OUTPUT, format!("cannot make the page: {error}"));
    Man::new(command).render(&mut page).map_err(failed)?;
    output::print(page).map(|()| Exit::SUCCESS)
}
