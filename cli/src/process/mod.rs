//! Processes of the operating system: a command in a group of its own, the guard of it, signals,
//! the terminal, the clock.

mod clock;
mod death;
mod group;
mod guard;
mod signals;
mod terminal;
mod tree;

pub(crate) use self::{
    clock::since_boot,
    death::{die_of, pass_on_to_own_group},
    group::{Group, Reach, Reaped, is_of_terminal},
    guard::{Guard, Watch},
    signals::Signals,
    terminal::{Terminal, stop_unless_orphaned},
    tree::is_below,
};
