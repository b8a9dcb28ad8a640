//! Processes of the operating system: a command in a group of its own, signals, the terminal.

mod group;
mod signals;
mod terminal;
mod tree;

pub(crate) use self::{
    group::{Group, Reaped},
    signals::Signals,
    terminal::{Terminal, stop_this_process},
    tree::is_below,
};
