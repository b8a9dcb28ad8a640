//! The program `lockctl` as its users see it: arguments, output, exit codes, signals, processes.
//! Every test has its own servers.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod all_processes;
mod answering;
mod at_least;
mod backends;
mod bench;
mod command_line;
mod doctor;
mod doctor_elsewhere;
mod doctor_more;
mod guard;
mod loss;
mod ls;
mod outage;
mod program;
mod run;
mod show;
mod signals;
mod terminal;
#[cfg(target_os = "linux")]
mod tmux;
#[cfg(target_os = "linux")]
mod top;
mod verbose;
