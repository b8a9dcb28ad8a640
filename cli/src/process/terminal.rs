//! [`Terminal`]: the terminal, lent to a command.

use std::{
    cell::Cell,
    io::{self, IsTerminal},
};

use nix::sys::signal::{SigSet, Signal as NixSignal, raise};
use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_current_process_group, test_kill_process_group},
    termios::{tcgetpgrp, tcsetpgrp},
};

use super::tree::own_group;

/// The terminal on stdin, while it belongs to this process.
///
/// A process group that is not in the foreground is stopped when it reads from the terminal, and
/// does not get its Ctrl-C and Ctrl-Z. So the group of the command is brought to the foreground, as
/// shells do.
#[derive(Debug)]
pub(crate) struct Terminal {
    /// The group of this process.
    own: Pid,
    /// Set if this process, or the command, has the terminal, as far as is known.
    is_ours: Cell<bool>,
}

impl Terminal {
    /// The terminal, if it is on stdin and stdout. If one of them is a pipe, the process at its
    /// other end is in the group of this process, and may need the terminal itself, as a pager.
    pub(crate) fn of_standard_streams() -> Option<Self> {
        let is_there = io::stdin().is_terminal() && io::stdout().is_terminal();
        let own = own_group().filter(|_| is_there)?;
        Some(Self { own, is_ours: Cell::default() })
    }

    fn foreground() -> Option<Pid> {
        tcgetpgrp(io::stdin()).ok()
    }

    /// Brings `group` to the foreground if this process is there. Returns `false` if another group
    /// is.
    pub(crate) fn lend(&self, group: Pid) -> bool {
        let foreground = Self::foreground();
        if foreground == Some(self.own) {
            set_foreground(group);
        }
        self.is_ours.set(foreground == Some(self.own) || foreground == Some(group));
        self.is_ours.get()
    }

    /// Returns `true` if this process is in the foreground.
    pub(crate) fn is_here(&self) -> bool {
        Self::foreground() == Some(self.own)
    }

    /// Returns `true` if `group` is in the foreground, or was there and has ended.
    pub(crate) fn is_with(&self, group: Pid) -> bool {
        Self::foreground() == Some(group)
    }

    /// Takes notice that a shell may have taken the terminal.
    pub(crate) fn forget(&self) {
        self.is_ours.set(false);
    }

    /// Brings this process to the foreground if a group of the command is there, or was there and
    /// has ended. If a group of somebody else was there and has ended, a shell is about to take its
    /// place.
    pub(crate) fn take_back(&self, is_of_command: impl FnOnce(Pid) -> bool) {
        let foreground = Self::foreground();
        let is_there = |group: &Pid| test_kill_process_group(*group) != Err(Errno::SRCH);
        let is_ours = match foreground.filter(is_there) {
            Some(group) => group == self.own || is_of_command(group),
            None => self.is_ours.get(),
        };
        if is_ours {
            // Not set to `false` otherwise: a group whose last process has just ended, and is still
            // to be collected by its parent, looks like one of somebody else.
            self.is_ours.set(true);
            if foreground != Some(self.own) {
                set_foreground(self.own);
            }
        }
    }
}

/// Returns `true` if the group of this process is in the foreground of the terminal on stdin.
pub(super) fn is_in_foreground() -> bool {
    own_group().is_some_and(|own| Terminal::foreground() == Some(own))
}

/// A process in the background is stopped by SIGTTOU when it does this, unless the signal is
/// blocked.
fn set_foreground(group: Pid) {
    let mut mask = SigSet::empty();
    mask.add(NixSignal::SIGTTOU);
    if mask.thread_block().is_ok() {
        // The terminal may be gone by now, which does not matter.
        let _ = tcsetpgrp(io::stdin(), group);
        let _ = mask.thread_unblock();
    }
}

/// Stops this process, which goes on here when it is continued. It does not stop if its group is
/// orphaned: then no shell could continue it, and the system ignores this signal, unlike SIGSTOP.
///
/// On a terminal, its whole group is stopped. A script that waits for this process is in it, and
/// only when it stops as well does the shell, or an outer `lockctl`, learn of it. That the terminal
/// has stopped it is not enough: it may have been continued since.
pub(crate) fn stop_unless_orphaned() {
    // SIGTSTP is caught. Either way the main thread stops here and not some time later.
    if Terminal::of_standard_streams().is_some() {
        let _ = kill_current_process_group(Signal::TTOU);
    } else {
        let _ = raise(NixSignal::SIGTTOU);
    }
}
