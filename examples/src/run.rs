//! Arguments, errors and exit codes.

use std::{error::Error, process::ExitCode};

use crate::Store;

/// The error of an example.
pub type Failure = Box<dyn Error + Send + Sync>;

/// The exit code for an invalid command line.
const USAGE: u8 = 2;

/// Runs an example that keeps its locks in memory, or in Redis with `--redis URL`.
pub async fn with_store(
    example: &str,
    body: impl AsyncFnOnce(Store) -> Result<(), Failure>,
) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => exit_code(body(Store::memory()).await),
        ["--redis", url] => exit_code(body(Store::redis(url)).await),
        _ => usage(
            &arguments,
            &format!("cargo run --example {example} [-- --redis redis://127.0.0.1:6379]"),
        ),
    }
}

/// Runs an example that accepts a URL with `option`.
pub async fn run_with(
    example: &str,
    option: &str,
    url: &str,
    body: impl AsyncFnOnce(Option<&str>) -> Result<(), Failure>,
) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => exit_code(body(None).await),
        [given, url] if given == option => exit_code(body(Some(url)).await),
        _ => usage(&arguments, &format!("cargo run --example {example} [-- {option} {url}]")),
    }
}

/// Runs an example that has no options.
pub async fn without_arguments(
    example: &str,
    body: impl AsyncFnOnce() -> Result<(), Failure>,
) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => exit_code(body().await),
        _ => usage(&arguments, &format!("cargo run --example {example}")),
    }
}

/// Fails unless the claim of an example holds.
///
/// # Errors
/// The claim, if it does not hold.
pub fn claim(holds: bool, claim: &str) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(format!("this should hold, and does not: {claim}").into()) }
}

fn usage(arguments: &[&str], usage: &str) -> ExitCode {
    if matches!(arguments, ["--help" | "-h"]) {
        println!("usage: {usage}");
        return ExitCode::SUCCESS;
    }
    // The arguments are not repeated, because they may contain a password.
    eprintln!("error: the arguments are not understood\nusage: {usage}");
    ExitCode::from(USAGE)
}

/// Prints an error with all its sources.
fn exit_code(result: Result<(), Failure>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    eprintln!("error: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        eprintln!("caused by: {error}");
        cause = error.source();
    }
    ExitCode::FAILURE
}
