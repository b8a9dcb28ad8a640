//! [`Group`]: a command in a process group of its own.

use std::{cell::Cell, io, os::unix::process::CommandExt, process::Command, time::Duration};

use rustix::{
    io::Errno,
    process::{
        Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, getpid, kill_process,
        kill_process_group, test_kill_process_group, wait, waitid,
    },
};

use super::{
    guard::Guard,
    tree::{self, Descendant},
};
use crate::exit::Exit;

/// The number of times that all descendants are looked up and killed. Those that start meanwhile
/// are found in the next round.
const ROUNDS: usize = 3;

const OF_TERMINAL: [Signal; 2] = [Signal::TTIN, Signal::TTOU];

/// A command, its leader, and everything that it has started and that has not left the group.
#[derive(Debug)]
pub(crate) struct Group {
    leader: Pid,
    /// Processes that this one was started with: a shell that becomes `lockctl` leaves those in the
    /// background to it.
    others: Vec<Pid>,
    guard: Option<Guard>,
    exit: Option<Exit>,
    /// Set if the group has ended. Another group may have its number by now.
    has_ended: Cell<bool>,
    /// A process of the group that had not ended when it was last looked at.
    running: Cell<Option<i32>>,
}

/// The processes that are included, besides those of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Those of the same session: the commands of nested `lockctl run`s, which have groups of their
    /// own. A daemon that is to outlive the lock has a session of its own.
    Session,
    /// Everything that the command has started, as far as the system tells.
    All,
}

/// News about the processes of a [`Group`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaped {
    Nothing,
    /// The leader was stopped by this signal.
    Stopped(i32),
    /// The leader goes on after it was stopped.
    Continued,
}

/// Returns `true` for the signals that stop a process that uses the terminal from the background.
pub(crate) fn is_of_terminal(signal: i32) -> bool {
    OF_TERMINAL.iter().any(|of_terminal| of_terminal.as_raw() == signal)
}

impl Group {
    /// Starts `command` as the leader of a new group, which `guard` watches as well.
    ///
    /// This process becomes the parent of the processes that the command leaves behind, so that it
    /// learns of their end and can find them.
    pub(crate) fn spawn(mut command: Command, guard: Option<Guard>) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        rustix::process::set_child_subreaper(Some(getpid()))?;
        // Includes the guard.
        let others = tree::descendants_of(getpid(), &[]);
        let others = others.into_iter().map(|other| other.pid).collect();
        let child = command.process_group(0).spawn()?;
        Ok(Self {
            leader: Pid::from_child(&child),
            others,
            guard,
            exit: None,
            has_ended: Cell::default(),
            running: Cell::default(),
        })
    }

    /// The number of the group.
    pub(crate) fn id(&self) -> Pid {
        self.leader
    }

    /// The end of the command, once it has ended.
    pub(crate) fn exit(&self) -> Option<Exit> {
        self.exit
    }

    /// Tells the guard to kill everything at this time since the start of the host, unless this
    /// process tells it otherwise by then.
    pub(crate) fn guard_until(&mut self, time: Duration) {
        let group = Some(self.leader).filter(|_| !self.is_group_gone());
        if let Some(guard) = &mut self.guard {
            guard.tell(group, time);
        }
    }

    /// Returns `true` once if the guard has killed what was left of the command.
    pub(crate) fn was_killed_by_guard(&mut self) -> bool {
        self.guard.as_mut().is_some_and(Guard::has_killed)
    }

    /// Returns `true` if no process of the group and within `reach` is left.
    pub(crate) fn is_gone(&self, reach: Reach) -> bool {
        self.is_group_gone() && self.descendants(reach).is_empty()
    }

    fn is_group_gone(&self) -> bool {
        if !self.has_ended.get() && self.exit.is_some() {
            // A process that was not collected by its parent belongs to the group as well.
            let is_gone = test_kill_process_group(self.leader) == Err(Errno::SRCH)
                || tree::has_ended(self.leader, &self.running);
            self.has_ended.set(is_gone);
        }
        self.has_ended.get()
    }

    /// Returns `true` if `group` is this one, or one that the command has started.
    pub(crate) fn has_started(&self, group: Pid) -> bool {
        let is_of = |descendant: &Descendant| descendant.group == Some(group);
        group == self.leader || self.descendants(Reach::Session).iter().any(is_of)
    }

    /// Sends `signal` to all processes of the group.
    pub(crate) fn signal(&self, signal: Signal) {
        if !self.is_group_gone() {
            // It may have ended just now, or belong to another user by now.
            let _ = kill_process_group(self.leader, signal);
        }
    }

    /// Lets the group go on, and what the guard has stopped while this process was stopped.
    pub(crate) fn go_on(&mut self) {
        if let Some(guard) = &mut self.guard {
            guard.tell_again();
        }
        self.signal(Signal::CONT);
    }

    /// Lets the group go on if it was stopped because it was not in the foreground when it used the
    /// terminal.
    pub(crate) fn go_on_in_foreground(&self) {
        // In this order, because a signal is pending first and stops the process after that.
        let is_about_to_stop =
            OF_TERMINAL.into_iter().any(|signal| tree::is_pending(self.leader, signal));
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(self.leader), options).ok().flatten();
        let stopped_by = status.and_then(|status| status.stopping_signal());
        if is_about_to_stop || stopped_by.is_some_and(is_of_terminal) {
            self.signal(Signal::CONT);
        }
    }

    /// Asks the group to end with `signal`. A process that is stopped has to go on to do so.
    ///
    /// Once the command has ended, it cannot pass the signal on to processes that have left the
    /// group, so that these are asked as well.
    pub(crate) fn ask_to_end(&self, signal: Signal) {
        if self.exit.is_none() {
            self.ask_group_to_end(signal);
        } else {
            self.ask_all_to_end(for_rest(signal), Reach::Session);
        }
    }

    /// Asks what the command has left behind outside its group to end, after `signal` has asked the
    /// group. A process of the group passes that on to those that it has started itself, as a
    /// nested run does, and they must not get it twice.
    pub(crate) fn ask_rest_to_end(&self, signal: Signal) {
        let members = tree::descendants_of(getpid(), &self.others);
        let members = members.iter().filter(|member| member.group == Some(self.leader));
        let others = self.others.iter().copied().chain(members.map(|member| member.pid));
        for rest in self.outside(Reach::Session, &others.collect::<Vec<_>>()) {
            ask_to_end(rest.pid, for_rest(signal));
        }
    }

    fn ask_group_to_end(&self, signal: Signal) {
        self.signal(signal);
        self.signal(Signal::CONT);
    }

    /// Asks the group and what is within `reach` to end. The commands of nested runs may be asked
    /// twice, by those runs as well.
    pub(crate) fn ask_all_to_end(&self, signal: Signal, reach: Reach) {
        self.ask_group_to_end(signal);
        for descendant in self.descendants(reach) {
            ask_to_end(descendant.pid, signal);
        }
    }

    /// Kills the group and what is within `reach`.
    pub(crate) fn kill(&self, reach: Reach) {
        for _ in 0..ROUNDS {
            self.signal(Signal::KILL);
            let descendants = self.descendants(reach);
            if descendants.is_empty() {
                return;
            }
            for descendant in descendants {
                let _ = kill_process(descendant.pid, Signal::KILL);
            }
        }
    }

    /// The processes within `reach` that are not in the group.
    fn descendants(&self, reach: Reach) -> Vec<Descendant> {
        self.outside(reach, &self.others)
    }

    /// The same without `others` and their descendants.
    fn outside(&self, reach: Reach, others: &[Pid]) -> Vec<Descendant> {
        let mut found = tree::descendants_of(getpid(), others);
        // Processes that a process in `others` has left behind are in the group of this process.
        let own = tree::own_group();
        found.retain(|it| it.group != Some(self.leader) && it.group != own);
        if reach == Reach::Session {
            let session = tree::own_session();
            found.retain(|descendant| descendant.session == session);
        }
        found
    }

    /// Collects processes that have ended, and news of others, adopted ones included.
    pub(crate) fn reap(&mut self) -> Reaped {
        let mut reaped = Reaped::Nothing;
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED | WaitOptions::CONTINUED;
        while let Ok(Some((pid, status))) = wait(options) {
            let has_ended = status.exited() || status.signaled();
            if pid != self.leader {
                if let (Some(guard), true) = (&mut self.guard, has_ended) {
                    guard.on_end_of(pid);
                }
            } else if has_ended {
                self.exit = exit_of(status).or(self.exit);
            } else if status.continued() {
                reaped = Reaped::Continued;
            } else if let Some(signal) = status.stopping_signal() {
                reaped = Reaped::Stopped(signal);
            }
        }
        reaped
    }
}

/// The signal for what the command has left behind, instead of `signal`. Shells let their background
/// processes ignore SIGINT and SIGQUIT.
fn for_rest(signal: Signal) -> Signal {
    if matches!(signal, Signal::INT | Signal::QUIT) { Signal::TERM } else { signal }
}

/// A process that is stopped has to go on to end.
fn ask_to_end(pid: Pid, signal: Signal) {
    let _ = kill_process(pid, signal);
    let _ = kill_process(pid, Signal::CONT);
}

fn exit_of(status: WaitStatus) -> Option<Exit> {
    if let Some(code) = status.exit_status() {
        // The system keeps eight bits.
        return Some(Exit::code(u8::try_from(code & 0xff).unwrap_or(u8::MAX)));
    }
    status.terminating_signal().map(Exit::by_signal)
}
