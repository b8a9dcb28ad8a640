//! [`Terminal`]: the terminal, lent to a command.

use std::io::{self, IsTerminal};

use nix::sys::signal::{SigSet, Signal as NixSignal, raise};
use rustix::{
    process::{Pid, Signal, kill_current_process_group},
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
}

impl Terminal {
    /// The terminal, if it is on stdin and stdout. If one of them is a pipe, the process at its
    /// other end is in the group of this process, and may need the terminal itself, as a pager.
    pub(crate) fn of_standard_streams() -> Option<Self> {
        let is_there = io::stdin().is_terminal() && io::stdout().is_terminal();
        if is_there { own_group().map(|own| Self { own }) } else { None }
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
        foreground == Some(self.own) || foreground == Some(group)
    }

    /// Brings this process to the foreground if `group` is there, or was there and has ended.
    pub(crate) fn take_back(&self, group: Pid) {
        if Self::foreground().is_none_or(|foreground| foreground == group) {
            set_foreground(self.own);
        }
    }
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
