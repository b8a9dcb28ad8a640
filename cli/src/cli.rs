//! [`Cli`]: the command line.

use std::{
    ffi::OsString,
    future::Future,
    io::{self, IsTerminal},
};

use clap::{
    CommandFactory, Parser, Subcommand,
    error::{ContextKind, ContextValue, ErrorKind},
};
use tokio::runtime::Builder;

use crate::{
    commands::{bench, completions, doctor, ls, man, release, run, show, top},
    exit::{Exit, Failure},
    output,
    store::StoreUrl,
    verbose,
};

const AFTER_HELP: &str = "\
Store URLs:
  redis://[user][:password@]host[:port][/database]     also rediss, valkey, valkeys and unix
  redis+sentinel://[user][:password@]host[:port],host[:port]/primary[/database]
  redis+cluster://[user][:password@]host[:port],host[:port]
  postgres://[user][:password@]host[:port][/database]  with ?sslmode=require for TLS
  etcd://[user:password@]host[:port],host[:port][/prefix]  etcds for TLS

Without --url, LOCKCTL_URL is used, and without that REDIS_URL. A URL on the command line can be
seen by all users of the host, so give a password in the environment.

Exit codes:
  64   the command line, or what it asks for, makes no sense
  69   the store cannot be used: it is down, or refuses the credentials or a right
  74   a file could not be written
Each command's help lists those of its own.";

/// Runs commands under distributed locks, and shows and frees the locks.
///
/// The locks are those of the lockcore library, and on Redis those of Redisson as well: on Redis,
/// Valkey, PostgreSQL or etcd.
#[derive(Debug, Parser)]
#[command(name = "lockctl", bin_name = "lockctl", version, after_help = AFTER_HELP, max_term_width = 100)]
#[command(disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

/// The options of all commands.
#[derive(Debug, clap::Args)]
pub(crate) struct Common {
    /// The store. Default: LOCKCTL_URL or REDIS_URL of the environment.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// Says on stderr what goes on at the store: where it was connected to, what was found there,
    /// and each request with its time and its outcome. Passwords are not shown.
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
}

impl Common {
    pub(crate) fn store(&self) -> Result<StoreUrl, Failure> {
        StoreUrl::find(self.url.as_deref(), self.verbose)
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Ls(ls::Args),
    Show(show::Args),
    Top(top::Args),
    Release(release::Args),
    Doctor(doctor::Args),
    Bench(bench::Args),
    Completions(completions::Args),
    Man(man::Args),
}

/// The description of the command line, for completions and manual pages.
pub(crate) fn description() -> clap::Command {
    Cli::command()
}

/// Runs the command of `arguments`.
pub(crate) fn start(arguments: impl Iterator<Item = OsString>) -> Result<Exit, Failure> {
    let arguments: Vec<OsString> = arguments.collect();
    let has_separator = arguments.iter().any(|argument| argument == "--");
    let Cli { common, command } = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => return explain(&error, has_separator),
    };
    // The lines would be written over the picture.
    let is_drawn_over = matches!(command, Command::Top(_)) && io::stderr().is_terminal();
    if common.verbose && !is_drawn_over {
        verbose::start();
    }
    match command {
        Command::Run(args) => block_on(run::run(args, &common)),
        Command::Ls(args) => block_on(ls::ls(&args, &common)),
        Command::Show(args) => block_on(show::show(&args, &common)),
        Command::Top(args) => block_on(top::top(&args, &common)),
        Command::Release(args) => block_on(release::release(&args, &common)),
        Command::Doctor(args) => block_on(doctor::doctor(&args, &common)),
        Command::Bench(args) => block_on(bench::bench(&args, &common)),
        Command::Completions(args) => completions::completions(&args),
        Command::Man(args) => man::man(&args),
    }
}

/// Prints the help, or the error in the command line. `has_separator` is set if that contains `--`.
fn explain(error: &clap::Error, has_separator: bool) -> Result<Exit, Failure> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            output::print(error.render().to_string()).map(|()| Exit::SUCCESS)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Err(Failure::usage("no command was given; `lockctl --help` lists them"))
        }
        _ => {
            // The first paragraph. The rest repeats how the program is used. Passwords are removed
            // first: the end of a URL with several spaces could not be found afterwards.
            let text = output::without_passwords(&error.render().to_string());
            let is_rest = |line: &str| {
                ["Usage:", "For more information"].iter().any(|it| line.starts_with(it))
            };
            // clap advises to write `-- -d`, which `run` would take for the command.
            let is_run = text.contains("Usage: lockctl run ");
            let is_wrong = |line: &str| is_run && line.trim_start().starts_with("tip: to pass ");
            let lines = text.lines().take_while(|line| !is_rest(line));
            let words: Vec<&str> =
                lines.filter(|line| !is_wrong(line)).flat_map(str::split_whitespace).collect();
            let message = words.join(" ").replace(" tip: ", "; tip: ");
            let message = message.strip_prefix("error: ").unwrap_or(&message);
            let advice = match is_run {
                true if is_command(error) && !has_separator => {
                    "put `--` before the command; see `lockctl run --help`"
                }
                true => "see `lockctl run --help`",
                false => "see `lockctl --help`",
            };
            Err(Failure::usage(format!("{message}; {advice}")))
        }
    }
}

/// Returns `true` if the error in the command line of `run` is a command without `--` before it.
fn is_command(error: &clap::Error) -> bool {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else {
        return false;
    };
    error.kind() == ErrorKind::UnknownArgument && !argument.starts_with('-')
}

/// Runs a command on a runtime with one thread, which is enough and starts faster.
fn block_on(command: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    let no_runtime = |error: io::Error| {
        Failure::new(Exit::UNAVAILABLE, format!("cannot start the runtime: {error}"))
    };
    let runtime = Builder::new_current_thread().enable_all().build().map_err(no_runtime)?;
    let result = runtime.block_on(command);
    // A host name that is still being looked up must not delay the end.
    runtime.shutdown_background();
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_is_consistent() {
        description().debug_assert();
    }
}
