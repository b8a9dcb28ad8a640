//! Processes of the operating system: a command in a group of its own, signals, the terminal, the
//! clock.

mod clock;
mod group;
mod signals;
mod terminal;
mod tree;

pub(crate) use self::{
    clock::since_boot,
    group::{Group, Reach, Reaped},
    signals::Signals,
    terminal::{Terminal, stop_this_process},
    tree::is_below,
};
