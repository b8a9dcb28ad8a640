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
    match cli::start(env::args_os()) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            output::tell(&failure);
            failure.exit.into()
        }
    }
}
