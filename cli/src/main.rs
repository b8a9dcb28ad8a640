#![doc = include_str!("../README.md")]

#[cfg(not(unix))]
compile_error!("lockctl needs process groups and signals, which only Unix has");

mod cli;
mod commands;
mod duration;
mod exit;
mod output;
mod process;
mod store;

use std::{env, process::ExitCode};

fn main() -> ExitCode {
    let exit = cli::start(env::args_os()).unwrap_or_else(|failure| {
        output::tell(&failure);
        failure.exit
    });
    output::flush();
    exit.into()
}
