//! [`Supervisor`]: a command, from its start until the last process of its group is gone.

use std::{
    future::{pending, ready},
    io,
    pin::pin,
    process::Command,
    time::Duration,
};

use lockcore::{LockGuard, LossReason};
use rustix::process::Signal;
use tokio::{
    signal::unix::{self, SignalKind, signal},
    time::sleep,
};

use super::{
    Args, OnLost,
    danger::{Advice, Danger},
    nested,
};
use crate::{
    exit::Exit,
    output,
    process::{
        Group, Guard, Reach, Reaped, Signals, Terminal, is_of_terminal, since_boot,
        stop_unless_orphaned,
    },
};

/// The longest time between two looks at the deadline. The timers do not count the time that the
/// host is suspended.
const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// The interval of the search for killed processes, and for those that the command has left behind.
/// The system does not report the end of all of them.
const SHORT_LOOK: Duration = Duration::from_millis(20);

/// How long to wait for killed processes without a hold. A process in the middle of a system call
/// may take for ever, and a process of another user cannot be killed.
const LONGEST_DYING: Duration = Duration::from_secs(10);

/// Watches a command and the hold that it runs under.
pub(super) struct Supervisor<'a> {
    name: &'a str,
    guard: &'a LockGuard,
    group: Group,
    children: unix::Signal,
    terminal: Option<Terminal>,
    /// Set when the command has ended: `true` if it had the terminal then.
    was_in_foreground: Option<bool>,
    danger: Danger,
    on_lost: OnLost,
    kill_after: Option<Duration>,
    /// The deadline of the hold when it was last looked at. This and the other points in time count
    /// from the start of the host, because the lease goes on while the host is suspended.
    deadline: Duration,
    /// When to kill the group.
    kill_at: Option<Duration>,
    killed_at: Option<Duration>,
    /// Set while the command is stopped because somebody has sent it SIGSTOP.
    is_stopped_on_purpose: bool,
    /// The signals that were passed on to the command and that end a process by default, each once,
    /// in the order in which they last came.
    asked_to_end: Vec<Signal>,
    /// The signal that has asked processes to end that the command has left behind.
    signal_after_end: Option<Signal>,
    /// Set if the command is ended because the hold is lost, or may be lost soon.
    is_ended_for_loss: bool,
    is_loss_told: bool,
    is_rest_told: bool,
    is_dying_told: bool,
    /// Set if processes remain although they were killed and the hold is lost.
    is_given_up: bool,
}

impl<'a> Supervisor<'a> {
    /// Starts `command` under the hold of `guard`.
    pub(super) fn start(
        command: Command,
        guard: &'a LockGuard,
        args: &'a Args,
    ) -> io::Result<Self> {
        // First: the command may end at once.
        let children = signal(SignalKind::child())?;
        let danger = Danger::new(args.lease, args.kill_after);
        let mut group = Group::spawn(command, guard_of(danger, args))?;
        let deadline = since_boot() + guard.remaining();
        if !guard.remaining().is_zero() {
            group.guard_until(danger.latest(deadline));
        }
        let supervisor = Self {
            name: &args.name,
            guard,
            group,
            children,
            terminal: Terminal::of_standard_streams(),
            was_in_foreground: None,
            danger,
            on_lost: args.on_lost,
            kill_after: args.kill_after,
            deadline,
            kill_at: None,
            killed_at: None,
            is_stopped_on_purpose: false,
            asked_to_end: Vec::new(),
            signal_after_end: None,
            is_ended_for_loss: false,
            is_loss_told: false,
            is_rest_told: false,
            is_dying_told: false,
            is_given_up: false,
        };
        if supervisor.lend() {
            supervisor.group.go_on_in_foreground();
        }
        Ok(supervisor)
    }

    /// Returns `true` if the command was ended because of a loss.
    pub(super) fn has_ended_for_loss(&self) -> bool {
        self.is_ended_for_loss
    }

    /// Returns `true` if a signal has asked the command to end, be it with a key of the terminal,
    /// which only the command gets.
    pub(super) fn was_asked_to_end(&self) -> bool {
        self.asked().is_some() || self.signal_after_end.is_some() || self.exit().is_by_key()
    }

    /// Returns `true` if processes that were killed may still be inside.
    pub(super) fn was_given_up(&self) -> bool {
        self.is_given_up
    }

    /// Waits until the group is gone, and returns how the command has ended.
    ///
    /// # Cancel safety
    /// Not cancel safe: nobody would watch the command.
    pub(super) async fn until_gone(&mut self, signals: &mut Signals) -> Exit {
        let guard = self.guard;
        let mut lost = pin!(guard.lost());
        loop {
            let reaped = self.reap();
            if !self.is_loss_told {
                // Before the lease is checked, because that does not tell the reason for its end.
                let known = async {
                    tokio::select! {
                        biased;
                        loss = lost.as_mut() => Some(loss.reason()),
                        () = ready(()) => None,
                    }
                };
                if let Some(reason) = known.await {
                    self.on_loss(reason, since_boot());
                }
            }
            if self.guard.remaining().is_zero() {
                // The process that stands in for this one may have killed the command.
                self.on_loss(LossReason::LeaseEnded, since_boot());
            }
            if self.group.was_killed_by_guard() && !self.is_ended_for_loss {
                self.on_kill_by_guard(since_boot());
            }
            if self.is_over(since_boot()) {
                return self.exit();
            }
            let look_in = self.look(since_boot());
            match reaped {
                Reaped::Nothing => {}
                Reaped::Stopped(signal) => self.on_stop(signal),
                // Perhaps by somebody else, so that the terminal is not its own yet.
                Reaped::Continued => _ = self.lend(),
            }
            let lost = async {
                match self.is_loss_told {
                    false => lost.as_mut().await,
                    true => pending().await,
                }
            };
            tokio::select! {
                biased;
                loss = lost => self.on_loss(loss.reason(), since_boot()),
                signal = signals.next() => self.on_signal(signal),
                _ = self.children.recv() => {}
                () = sleep(look_in) => {}
            }
        }
    }

    fn exit(&self) -> Exit {
        let Some(exit) = self.group.exit() else { return Exit::LOST };
        // A signal that was passed on was not a key.
        let was_passed_on = self.asked_to_end.iter().any(|signal| exit.is_by(*signal));
        let exit = match self.was_in_foreground {
            Some(true) if !was_passed_on => exit.in_foreground(),
            _ => exit,
        };
        match self.signal_after_end {
            Some(signal) => exit.or_interrupted(Exit::by_signal(signal.as_raw())),
            None => exit,
        }
    }

    /// The signal that has asked the command to end, if it has ended because of that. Many programs
    /// take signals other than SIGTERM for something else, which `--kill-after` rules out.
    fn asked(&self) -> Option<Signal> {
        let exit = self.group.exit()?;
        let asked = &self.asked_to_end;
        let term = asked.iter().find(|signal| **signal == Signal::TERM);
        let has_ended_it = asked.iter().find(|signal| exit.is_by(**signal));
        let last = asked.last().filter(|_| self.kill_at.is_some());
        term.or(has_ended_it).or(last).copied()
    }

    fn is_over(&mut self, now: Duration) -> bool {
        let reach = if self.is_ended_for_loss { Reach::All } else { Reach::Session };
        if self.group.is_gone(reach) {
            return true;
        }
        let dying = self.killed_at.map_or(Duration::ZERO, |at| now.saturating_sub(at));
        let is_held = !self.guard.remaining().is_zero();
        match Dying::of(dying, is_held, self.is_ended_for_loss) {
            Dying::Normal => return false,
            // While the hold lasts and is renewed, nobody else is admitted.
            Dying::Long if self.is_dying_told => return false,
            Dying::Long => {}
            Dying::GivenUp => self.is_given_up = true,
        }
        self.is_dying_told = true;
        output::tell("some processes of the command were killed and have not ended");
        self.is_given_up
    }

    /// Does everything that is due, and returns when to look again.
    fn look(&mut self, now: Duration) -> Duration {
        self.look_at_lease(now);
        self.look_at_rest();
        if self.kill_at.is_some_and(|at| at <= now) {
            self.killed_at.get_or_insert(now);
            self.group.kill(if self.is_ended_for_loss { Reach::All } else { Reach::Session });
            // Includes processes that were started meanwhile.
            return SHORT_LOOK;
        }
        let mut look_in = if self.group.exit().is_some() { SHORT_LOOK } else { LONGEST_LOOK };
        if let Some(at) = self.kill_at {
            look_in = look_in.min(at.saturating_sub(now));
        }
        if let (false, Advice::Wait(time)) = (self.is_ended_for_loss, self.advice()) {
            look_in = look_in.min(time);
        }
        // Zero would starve the other tasks of this thread, the renewals among them.
        look_in.max(Duration::from_millis(1))
    }

    fn advice(&self) -> Advice {
        self.danger.advice(self.guard.remaining())
    }

    fn look_at_lease(&mut self, now: Duration) {
        let left = self.guard.remaining();
        if left.is_zero() {
            // `lost` reports this as well, but perhaps later.
            self.on_loss(LossReason::LeaseEnded, now);
            return;
        }
        self.deadline = now + left;
        self.group.guard_until(self.danger.latest(self.deadline));
        let is_in_danger = self.danger.advice(left) == Advice::End;
        if is_in_danger && self.on_lost == OnLost::Kill && !self.is_ended_for_loss {
            self.end_for_loss(None, now);
            output::tell(format_args!(
                "the store has not confirmed the hold of {} in time, and the lease ends in \
                 {left:.1?}; ending the command",
                self.name
            ));
        }
    }

    /// Reports once that the command has ended, but other processes of its group have not.
    fn look_at_rest(&mut self) {
        if self.group.exit().is_some() && self.kill_at.is_none() && !self.is_rest_told {
            self.is_rest_told = true;
            output::tell(format_args!(
                "the command has ended, but processes that it has started still run; {} is held \
                 until they end",
                self.name
            ));
        }
    }

    fn on_loss(&mut self, reason: LossReason, now: Duration) {
        if self.is_loss_told {
            return;
        }
        self.is_loss_told = true;
        let ending = match self.on_lost {
            OnLost::Kill => {
                self.end_for_loss(Some(reason), now);
                "ending the command"
            }
            OnLost::Warn => "the command runs on, and somebody else may hold the lock",
        };
        output::tell(format_args!("the hold of {} was lost: {reason}; {ending}", self.name));
    }

    /// The lease may not have ended yet, or may have been renewed meanwhile.
    fn on_kill_by_guard(&mut self, now: Duration) {
        self.is_ended_for_loss = true;
        // Processes that the guard has not found.
        self.kill_by(now);
        output::tell(format_args!(
            "the command was killed because lockctl had not renewed its hold of {} in time: it was \
             stopped, or the host was too busy",
            self.name
        ));
    }

    /// Asks all processes that the command has started to end, unless that was done before, and
    /// makes sure that they end in time. Without a reason, the hold is not lost yet.
    fn end_for_loss(&mut self, reason: Option<LossReason>, now: Duration) {
        let patience = self.danger.patience(reason, self.deadline.saturating_sub(now));
        self.kill_by(now.saturating_add(patience));
        if !self.is_ended_for_loss {
            self.is_ended_for_loss = true;
            // A signal may have killed the group already, but that reaches fewer processes.
            self.killed_at = None;
            if !patience.is_zero() {
                self.group.ask_all_to_end(Signal::TERM, Reach::All);
            }
        }
    }

    fn kill_by(&mut self, at: Duration) {
        self.kill_at = Some(self.kill_at.map_or(at, |earlier| earlier.min(at)));
    }

    fn on_signal(&mut self, signal: Signal) {
        match signal {
            Signal::TERM | Signal::INT | Signal::HUP | Signal::QUIT => {
                // The command may have ended before the signal came.
                self.reap();
                let was_key = matches!(self.signal_after_end, Some(Signal::INT | Signal::QUIT));
                if self.group.exit().is_none() {
                    self.asked_to_end.retain(|earlier| *earlier != signal);
                    self.asked_to_end.push(signal);
                } else if !was_key {
                    self.signal_after_end = Some(signal);
                }
                self.group.ask_to_end(signal);
                if let Some(time) = self.kill_after {
                    self.kill_by(since_boot().saturating_add(time));
                }
            }
            Signal::TSTP => {
                // The command may have been stopped or continued before the key was pressed.
                self.reap();
                // SIGCONT lets a command go on that was stopped on purpose, that of a shell included.
                let is_running = !self.is_stopped_on_purpose;
                if is_running {
                    // A process that does not stop would run on while nobody renews the lease.
                    self.group.signal(Signal::STOP);
                }
                self.take_back();
                stop_unless_orphaned();
                if is_running {
                    self.go_on();
                }
            }
            Signal::CONT => self.go_on(),
            other => self.group.signal(other),
        }
    }

    /// Collects what has happened to the command and the other processes.
    fn reap(&mut self) -> Reaped {
        let had_ended = self.group.exit().is_some();
        let reaped = self.group.reap();
        match reaped {
            Reaped::Nothing => {}
            Reaped::Stopped(signal) => self.is_stopped_on_purpose = is_on_purpose(signal),
            Reaped::Continued => self.is_stopped_on_purpose = false,
        }
        if self.group.exit().is_some() {
            // All processes are asked on a loss.
            if let (Some(signal), false, false) = (self.asked(), had_ended, self.is_ended_for_loss)
            {
                self.group.ask_rest_to_end(signal);
            }
            if let (Some(terminal), None) = (&self.terminal, self.was_in_foreground) {
                self.was_in_foreground = Some(terminal.is_with(self.group.id()));
            }
            // Processes that were left behind run in the background, as with a shell, and the keys
            // have to reach this process. This happens at each look, because a nested run among
            // them brings its own group to the foreground when its command ends.
            self.take_back();
        }
        reaped
    }

    /// The command was stopped by `signal`.
    fn on_stop(&mut self, signal: i32) {
        let uses_terminal = is_of_terminal(signal);
        let is_on_purpose = is_on_purpose(signal);
        if self.terminal.is_none() {
            if uses_terminal {
                output::tell(
                    "the command was stopped because it uses the terminal, which it only can if \
                     stdin and stdout are the terminal and lockctl is in the foreground",
                );
            }
            return;
        }
        // A shell does not tell this process that it has brought it to the foreground while the
        // command ran. If the command itself is there, the terminal has not stopped it, but a
        // nested run.
        let is_here = self.terminal.as_ref().is_some_and(Terminal::is_here);
        if uses_terminal && is_here && self.lend() {
            self.go_on();
            return;
        }
        // Until it goes on, the keys have to reach this process.
        self.take_back();
        if is_on_purpose && nested::is_inside() {
            // The outer run would take a stop of this process for one by the terminal, and would
            // let both go on.
            return;
        }
        // By Ctrl-Z, or because it has tried to use the terminal in the background: the shell learns
        // of it, and can bring both of us back.
        stop_unless_orphaned();
        if is_on_purpose {
            // Whoever has stopped it will continue it.
            return;
        }
        // In the background, it would try again and be stopped again.
        let is_in_foreground = self.lend();
        if is_in_foreground || !uses_terminal {
            self.go_on();
        }
    }

    /// Takes the terminal back from the command, and once it has ended, from all that it has
    /// started.
    fn take_back(&self) {
        let has_ended = self.group.exit().is_some();
        let is_of_command =
            |group| group == self.group.id() || has_ended && self.group.has_started(group);
        if let Some(terminal) = &self.terminal {
            terminal.take_back(is_of_command);
        }
    }

    /// Lets the command go on, after this process was stopped or instead of that. If it was
    /// stopped, SIGCONT comes as a signal as well, and this happens again.
    fn go_on(&mut self) {
        // If the hold has not survived that, the command must not go on.
        self.look_at_lease(since_boot());
        if let Some(terminal) = &self.terminal {
            terminal.forget();
        }
        if !self.is_ended_for_loss {
            self.lend();
            self.group.go_on();
        }
    }

    /// Lends the terminal to the command, unless that has ended. Returns `false` if it is not in
    /// the foreground then.
    fn lend(&self) -> bool {
        let terminal = self.terminal.as_ref().filter(|_| self.group.exit().is_none());
        terminal.is_some_and(|terminal| terminal.lend(self.group.id()))
    }
}

/// Returns `true` if somebody has stopped the command with this signal, and not a terminal.
fn is_on_purpose(signal: i32) -> bool {
    signal == Signal::STOP.as_raw()
}

/// The guard of a command that is ended on a loss.
fn guard_of(danger: Danger, args: &Args) -> Option<Guard> {
    if args.on_lost == OnLost::Warn {
        return None;
    }
    // The lock of an outer run may end before that of this one, and its guard cannot know this
    // command: it ends `lockctl`, and this guard the command, at once.
    let grace = if nested::is_inside() { Duration::ZERO } else { danger.grace };
    let started = Guard::start(grace);
    if let Err(error) = &started {
        output::tell(format_args!(
            "cannot start the guard, without which the command of {} runs on if lockctl is \
             killed or stopped: {error}",
            args.name
        ));
    }
    started.ok()
}

impl Drop for Supervisor<'_> {
    fn drop(&mut self) {
        self.take_back();
    }
}

/// The state of processes that were killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dying {
    /// They may end at any time.
    Normal,
    /// They take long, and are waited for.
    Long,
    /// They take long, and waiting for them protects nothing.
    GivenUp,
}

impl Dying {
    fn of(time: Duration, is_held: bool, is_for_loss: bool) -> Self {
        match time > LONGEST_DYING {
            false => Self::Normal,
            true if is_for_loss && !is_held => Self::GivenUp,
            true => Self::Long,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test cannot have a process that survives SIGKILL.
    #[test]
    fn processes_that_do_not_die_are_given_up_only_without_a_hold() {
        let long = LONGEST_DYING + SHORT_LOOK;
        assert_eq!(Dying::of(LONGEST_DYING, false, true), Dying::Normal);
        assert_eq!(Dying::of(long, true, true), Dying::Long);
        assert_eq!(Dying::of(long, true, false), Dying::Long);
        assert_eq!(Dying::of(long, false, true), Dying::GivenUp);
    }
}
