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
    time::Duration,
};

use nix::sys::signal::SigSet;
use rustix::{
    io::Errno,
    process::{Pid, Signal, getpid, kill_process_group, test_kill_process_group},
};

use super::{clock::since_boot, tree};

/// What the guard is called by, instead of the name of the program.
const NAME: &str = "lockctl-guard";

/// How often the guard looks whether the process that it stands in for is stopped.
const LOOK: Duration = Duration::from_millis(200);

/// How often a group is looked at that should end.
const SHORT_LOOK: Duration = Duration::from_millis(20);

/// How long killed processes are waited for.
const LONGEST_DYING: Duration = Duration::from_secs(10);

/// The number of the group, and when to kill it, in milliseconds since the host was started.
const FRAME: usize = 12;

/// How much later a point in time has to be, so that the guard is told.
const NEWS: Duration = Duration::from_millis(20);

/// A process that stands in for this one: while this one is stopped, it stops the command as well,
/// and if this one was killed, or does nothing until the lease ends, it ends the command in time.
///
/// It learns of the end of this process by the end of a stream, and is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Guard {
    process: Child,
    stream: UnixStream,
    /// When the guard was last told to kill.
    told: Option<Duration>,
    /// Its end was seen, so that its number may be that of another process.
    has_ended: bool,
}

impl Guard {
    /// Starts the guard of a command that has `grace` between SIGTERM and SIGKILL.
    pub(crate) fn start(grace: Duration) -> io::Result<Self> {
        let (stream, other) = UnixStream::pair()?;
        // A guard that reads nothing delays nothing.
        stream.set_nonblocking(true)?;
        // In a group of its own: what is sent to that of this process is not meant for the guard.
        let process = Command::new(own_program()?)
            .arg0(NAME)
            .args([getpid().as_raw_pid().to_string(), grace.as_millis().to_string()])
            .env_clear()
            .current_dir("/")
            .process_group(0)
            .stdin(OwnedFd::from(other))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { process, stream, told: None, has_ended: false })
    }

    /// Has `group` killed at `time` since the start of the host, unless another time is told by
    /// then.
    pub(super) fn tell(&mut self, group: Pid, time: Duration) {
        if self.told.is_some_and(|told| told.abs_diff(time) < NEWS) {
            return;
        }
        let mut frame = [0; FRAME];
        let (number, millis) = frame.split_at_mut(4);
        number.copy_from_slice(&group.as_raw_pid().to_le_bytes());
        millis.copy_from_slice(&u64::try_from(time.as_millis()).unwrap_or(u64::MAX).to_le_bytes());
        // If it takes nothing now, it is told at the next look.
        if matches!(self.stream.write(&frame), Ok(FRAME)) {
            self.told = Some(time);
        }
    }

    /// Takes notice that the child with this number has ended.
    pub(super) fn on_end_of(&mut self, pid: Pid) {
        self.has_ended |= pid == Pid::from_child(&self.process);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.has_ended {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

/// This program, also if its file was replaced while it runs.
fn own_program() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { env::current_exe() }
}

/// What the guard knows.
#[derive(Debug)]
pub(crate) struct Watch {
    parent: i32,
    grace: Duration,
    told: Option<(Pid, Duration)>,
}

impl Watch {
    /// The task of this process, if it was started as a guard.
    pub(crate) fn asked_for(mut arguments: impl Iterator<Item = OsString>) -> Option<Self> {
        if arguments.next()? != NAME {
            return None;
        }
        let mut number = || arguments.next()?.to_str()?.parse().ok();
        let (parent, grace) = (number()?, number()?);
        let grace = Duration::from_millis(grace);
        Some(Self { parent: i32::try_from(parent).ok()?, grace, told: None })
    }

    /// Watches until the other process has ended, and ends what it has left behind.
    pub(crate) fn keep(mut self) -> io::Result<()> {
        // Whoever signals all processes called like this one means the other one. Only SIGKILL ends
        // the guard before.
        let _ = SigSet::all().thread_block();
        let mut stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        while self.listen(&mut stream)? {
            self.look(since_boot());
        }
        if let Some((group, kill_at)) = self.told {
            end(group, kill_at.min(since_boot() + self.grace));
        }
        Ok(())
    }

    /// Waits until something is told, or it is time for a look. Returns `false` at the end of the
    /// other process.
    fn listen(&mut self, stream: &mut UnixStream) -> io::Result<bool> {
        let rest = self.told.map_or(LOOK, |(_, kill_at)| kill_at.saturating_sub(since_boot()));
        // Zero would mean for ever.
        stream.set_read_timeout(Some(rest.clamp(SHORT_LOOK, LOOK)))?;
        let mut frame = [0; FRAME];
        match stream.read(&mut frame) {
            // A frame is written at once, and so is never read in part.
            Ok(FRAME) => {
                let number = i32::from_le_bytes([frame[0], frame[1], frame[2], frame[3]]);
                let mut millis = [0; 8];
                millis.copy_from_slice(&frame[4..]);
                let time = Duration::from_millis(u64::from_le_bytes(millis));
                self.told = Pid::from_raw(number).map(|group| (group, time));
                Ok(true)
            }
            Ok(_) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(false),
            Err(_) => Ok(true),
        }
    }

    fn look(&self, now: Duration) {
        let Some((group, kill_at)) = self.told else { return };
        if now >= kill_at {
            // The other process would have done so before, if it could.
            let _ = kill_process_group(group, Signal::KILL);
        } else if tree::is_stopped(self.parent) {
            let _ = kill_process_group(group, Signal::STOP);
            // It may have gone on, and have continued the group, just before that.
            if !tree::is_stopped(self.parent) {
                let _ = kill_process_group(group, Signal::CONT);
            }
        }
    }
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
        for arguments in [&["lockctl", "17", "1500"][..], &[NAME], &[NAME, "x", "1"], &[]] {
            assert_eq!(asked(arguments), None, "{arguments:?}");
        }
    }
}
