#![doc = include_str!("../README.md")]

#[cfg(not(unix))]
compile_error!("lockctl needs process groups and signals, which only Unix has");

mod cli;
mod clients;
mod commands;
mod duration;
mod exit;
mod glob;
mod output;
mod pace;
mod process;
mod report;
mod store;
mod sweep;
mod top;
mod verbose;
mod watched;

use std::{env, process::ExitCode};

fn main() -> ExitCode {
    if let Some(watch) = process::Watch::asked_for(env::args_os()) {
        return watch.keep().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let exit = cli::start(env::args_os()).unwrap_or_else(|failure| {
        output::tell(&failure);
        failure.exit
    });
    output::flush();
    exit.die();
    exit.into()
}
