//! [`Guard`]: a second process, which ends the command if this one no longer can.

use std::{
    env,
    ffi::OsString,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::sys::signal::SigSet;
use rustix::{
    io::Errno,
    process::{
        Pid, Signal, getpid, getppid, kill_process, kill_process_group, test_kill_process_group,
    },
};

use super::{
    clock::since_boot,
    tree::{self, Descendant},
};
use crate::output;

/// The name of the guard process.
const NAME: &str = "lockctl-guard";

/// The interval at which the guard checks whether the supervised process is stopped.
const LOOK: Duration = Duration::from_millis(200);

/// The interval of checks of a group that should end.
const SHORT_LOOK: Duration = Duration::from_millis(20);

/// After a pause of its own as long as this, the guard waits for news before it acts.
const LATE: Duration = Duration::from_millis(600);

/// How long to wait for the end of the guard.
const LONGEST_END: Duration = Duration::from_millis(100);

/// How long to wait for killed processes.
const LONGEST_DYING: Duration = Duration::from_secs(10);

/// A message: the number of the group, 0 if it is gone, and when to kill it and all other processes
/// of the command, in milliseconds since the host was started.
const FRAME: usize = 12;

/// The least change of a time that is reported to the guard.
const NEWS: Duration = Duration::from_millis(20);

/// A process that stands in for this one: while this one is stopped, it stops the command as well,
/// and if this one was killed, or does nothing until the lease ends, it ends the command in time.
///
/// It learns of the end of this process by the end of a stream, and is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Guard {
    process: Child,
    stream: UnixStream,
    /// The group that the guard was last told to kill, and when.
    told: Option<(Option<Pid>, Duration)>,
    /// Set if its end was seen, so that another process may have its number.
    has_ended: bool,
}

impl Guard {
    /// Starts the guard of a command that has `grace` between SIGTERM and SIGKILL.
    pub(crate) fn start(grace: Duration) -> io::Result<Self> {
        let (stream, other) = UnixStream::pair()?;
        // A guard that reads nothing delays nothing.
        stream.set_nonblocking(true)?;
        // In its own group, because signals to the group of this process are not meant for the
        // guard.
        let others = tree::descendants_of(getpid(), &[]);
        let process = Command::new(own_program()?)
            .arg0(NAME)
            .args([getpid().as_raw_pid().to_string(), grace.as_millis().to_string()])
            .args(others.iter().map(|other| other.pid.as_raw_pid().to_string()))
            .env_clear()
            .current_dir("/")
            .process_group(0)
            .stdin(OwnedFd::from(other))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { process, stream, told: None, has_ended: false })
    }

    /// Tells the guard to kill `group` and all other processes of the command at `time` since the
    /// start of the host, unless it is told another time by then. [`None`] is a group that is gone.
    pub(super) fn tell(&mut self, group: Option<Pid>, time: Duration) {
        let is_old =
            |(of, told): (Option<Pid>, Duration)| of == group && told.abs_diff(time) < NEWS;
        if self.told.is_some_and(is_old) {
            return;
        }
        let mut frame = [0; FRAME];
        let (number, millis) = frame.split_at_mut(4);
        number.copy_from_slice(&group.map_or(0, Pid::as_raw_pid).to_le_bytes());
        millis.copy_from_slice(&u64::try_from(time.as_millis()).unwrap_or(u64::MAX).to_le_bytes());
        // If it takes nothing now, it is told at the next look.
        if matches!(self.stream.write(&frame), Ok(FRAME)) {
            self.told = Some((group, time));
        }
    }

    /// Tells the guard the same again, as a sign that the hold is there: what the guard has stopped
    /// may go on.
    pub(super) fn tell_again(&mut self) {
        if let Some((group, time)) = self.told.take() {
            self.tell(group, time);
        }
    }

    /// Returns `true` once after the guard has begun to kill.
    pub(super) fn has_killed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(1))
    }

    /// Takes notice that the child with this number has ended.
    pub(super) fn on_end_of(&mut self, pid: Pid) {
        if !self.has_ended && pid == Pid::from_child(&self.process) {
            self.has_ended = true;
            output::tell(
                "the guard has ended, without which the command runs on if lockctl is killed or \
                 stopped",
            );
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // After a panic, the guard ends the command, which nobody watches any more.
        if !self.has_ended && !thread::panicking() {
            let _ = self.process.kill();
            let killed = Instant::now();
            // A guard that cannot die at once, for example because of a hanging disk, is left to
            // the system.
            while matches!(self.process.try_wait(), Ok(None)) && killed.elapsed() < LONGEST_END {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// This program, even if its file was replaced while it runs.
fn own_program() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { env::current_exe() }
}

/// A message that a guard got from the other process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    News,
    Nothing,
    End,
}

/// The state of the guard.
#[derive(Debug)]
pub(crate) struct Watch {
    parent: i32,
    grace: Duration,
    /// Processes that the other process was started with, and this one.
    others: Vec<Pid>,
    told: Option<(Option<Pid>, Duration)>,
    /// The processes outside the group that the guard has stopped.
    stopped: Vec<Pid>,
    /// Set if a message has come since the other process was seen stopped.
    has_news: bool,
    /// Set if the other process was told that processes of the command are killed.
    has_told: bool,
}

impl Watch {
    /// The task of this process, if it was started as a guard.
    pub(crate) fn asked_for(mut arguments: impl Iterator<Item = OsString>) -> Option<Self> {
        if arguments.next()? != NAME {
            return None;
        }
        let mut number = || arguments.next()?.to_str()?.parse().ok();
        let (parent, grace) = (number()?, number()?);
        let others = std::iter::from_fn(|| i32::try_from(number()?).ok().and_then(Pid::from_raw));
        Some(Self {
            parent: i32::try_from(parent).ok()?,
            grace: Duration::from_millis(grace),
            others: others.chain([getpid()]).collect(),
            told: None,
            stopped: Vec::new(),
            has_news: false,
            has_told: false,
        })
    }

    /// Watches until the other process has ended, and ends the processes that it has left behind.
    pub(crate) fn keep(mut self) -> io::Result<()> {
        // A signal to all processes of this name is meant for the other process. Only SIGKILL ends
        // the guard earlier.
        let _ = SigSet::all().thread_block();
        if getppid().is_none() {
            // It is in another namespace, where the numbers mean other processes.
            return Ok(());
        }
        let mut stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let mut last = since_boot();
        while self.listen(&mut stream) {
            let before = std::mem::replace(&mut last, since_boot());
            // Messages from the time when it could not listen may be old, and the next one is on
            // its way.
            if last.saturating_sub(before) < LATE {
                self.look(last, &mut stream);
            }
        }
        // They are not found any more, and would be stopped for ever.
        for pid in self.stopped {
            let _ = kill_process(pid, Signal::TERM);
            let _ = kill_process(pid, Signal::CONT);
        }
        if let Some((Some(group), kill_at)) = self.told {
            end(group, kill_at.min(since_boot() + self.grace));
        }
        Ok(())
    }

    /// Waits for a message, or until it is time for a look. Reads all messages. Returns `false` at
    /// the end of the other process.
    fn listen(&mut self, stream: &mut UnixStream) -> bool {
        let rest = self.told.map_or(LOOK, |(_, kill_at)| kill_at.saturating_sub(since_boot()));
        // Zero would mean no time-out. The call fails on some systems if the other process has
        // ended, which is noticed next.
        let _ = stream.set_read_timeout(Some(rest.clamp(SHORT_LOOK, LOOK)));
        let mut heard = self.hear(stream);
        let _ = stream.set_nonblocking(true);
        while heard == Heard::News {
            heard = self.hear(stream);
        }
        let _ = stream.set_nonblocking(false);
        heard != Heard::End
    }

    fn hear(&mut self, stream: &mut UnixStream) -> Heard {
        let mut frame = [0; FRAME];
        match stream.read(&mut frame) {
            // A frame is written at once, and so is never read in part.
            Ok(FRAME) => {
                let number = i32::from_le_bytes([frame[0], frame[1], frame[2], frame[3]]);
                let mut millis = [0; 8];
                millis.copy_from_slice(&frame[4..]);
                let time = Duration::from_millis(u64::from_le_bytes(millis));
                self.told = Some((Pid::from_raw(number), time));
                self.has_news = true;
                Heard::News
            }
            Ok(_) => Heard::End,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Heard::End,
            Err(_) => Heard::Nothing,
        }
    }

    fn look(&mut self, now: Duration, stream: &mut UnixStream) {
        let Some((group, kill_at)) = self.told else { return };
        let signal_group = |signal| group.map(|group| kill_process_group(group, signal));
        if now >= kill_at {
            // The other process would have done so earlier if it could. It is told first, because
            // it may go on and collect the command at any time.
            self.tell_of_kill(stream);
            signal_group(Signal::KILL);
            for descendant in self.descendants() {
                let _ = kill_process(descendant.pid, Signal::KILL);
            }
        } else if tree::is_stopped(self.parent) {
            self.has_news = false;
            signal_group(Signal::STOP);
            self.stop_outside(group);
            // The other process may have been continued, and have continued the group, just before
            // that.
            if !tree::is_stopped(self.parent) {
                signal_group(Signal::CONT);
            }
        } else if self.has_news {
            // Not before the other process has seen that it still has the hold.
            for pid in self.stopped.drain(..) {
                let _ = kill_process(pid, Signal::CONT);
            }
        }
    }

    /// Tells the other process, once, that its command is killed. If everything has ended before,
    /// nothing is.
    fn tell_of_kill(&mut self, stream: &mut UnixStream) {
        // Other systems than Linux do not show the processes.
        let is_any_left = cfg!(not(target_os = "linux")) || !self.descendants().is_empty();
        if is_any_left && !self.has_told {
            self.has_told = matches!(stream.write(&[1]), Ok(1));
        }
    }

    /// Stops the processes outside `group` that the lock is held for: those of the same session.
    fn stop_outside(&mut self, group: Option<Pid>) {
        // A guard that was stopped while it was being started had no name yet.
        self.stopped.retain(|pid| {
            let is_guard = is_guard(*pid);
            if is_guard {
                let _ = kill_process(*pid, Signal::CONT);
            }
            !is_guard
        });
        let descendants = self.descendants();
        // A nested run looks whether it has its hold before its command goes on, and has a guard
        // that stops it.
        let guards = descendants.iter().filter(|descendant| is_guard(descendant.pid));
        let nested: Vec<Pid> = guards.filter_map(|guard| guard.parent).collect();
        let below = nested.into_iter().flat_map(|run| tree::descendants_of(run, &[]));
        let below: Vec<Pid> = below.map(|descendant| descendant.pid).collect();
        for Descendant { pid, group: own, session, .. } in descendants {
            let is_outside = own != group;
            // A process that somebody else has stopped stays stopped when the others go on.
            let is_running = !tree::is_stopped(pid.as_raw_pid());
            let is_in_session = session == tree::own_session();
            if is_outside && is_in_session && is_running && !below.contains(&pid) {
                let _ = kill_process(pid, Signal::STOP);
                self.stopped.push(pid);
            }
        }
    }

    /// All processes that the command has started.
    fn descendants(&self) -> Vec<Descendant> {
        let Some(parent) = Pid::from_raw(self.parent) else { return Vec::new() };
        let mut found = tree::descendants_of(parent, &self.others);
        // Processes that one of the others has left behind are in the group of the parent.
        let group = tree::group_of(parent);
        found.retain(|descendant| descendant.group != group);
        found
    }
}

/// Returns `true` if the process is the guard of another one.
fn is_guard(pid: Pid) -> bool {
    let words = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_pid())).unwrap_or_default();
    words.split(|byte| *byte == 0).next() == Some(NAME.as_bytes())
}

/// Asks `group` to end, and kills it at `kill_at`.
fn end(group: Pid, kill_at: Duration) {
    if since_boot() < kill_at {
        let _ = kill_process_group(group, Signal::TERM);
        let _ = kill_process_group(group, Signal::CONT);
    }
    while test_kill_process_group(group) != Err(Errno::SRCH) {
        let now = since_boot();
        if now >= kill_at {
            let _ = kill_process_group(group, Signal::KILL);
        }
        if now >= kill_at + LONGEST_DYING {
            return;
        }
        thread::sleep(SHORT_LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_name_makes_a_process_a_guard() {
        let asked = |arguments: &[&str]| {
            Watch::asked_for(arguments.iter().map(OsString::from)).map(|watch| watch.grace)
        };
        assert_eq!(asked(&[NAME, "17", "1500"]), Some(Duration::from_millis(1500)));
        assert_eq!(asked(&[NAME, "17", "1500", "18", "19"]), Some(Duration::from_millis(1500)));
        for arguments in [&["lockctl", "17", "1500"][..], &[NAME], &[NAME, "x", "1"], &[]] {
            assert_eq!(asked(arguments), None, "{arguments:?}");
        }
    }
}
