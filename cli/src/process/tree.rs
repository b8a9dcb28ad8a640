//! The tree of processes. Only Linux shows it, in `/proc`.

use std::cell::Cell;

use nix::unistd::{getpgid, getpgrp, getsid};
use rustix::process::{Pid, Signal};

/// A process as `/proc` describes it.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: i32,
    parent: i32,
    group: i32,
    session: i32,
    /// Set if all its threads have ended, and its parent has not collected it.
    is_zombie: bool,
    /// Set if it is stopped by a signal.
    is_stopped: bool,
}

#[cfg(target_os = "linux")]
impl Process {
    /// Reads `pid (name) state parent group session ...`. The name may contain anything,
    /// parentheses included.
    fn parse(stat: &str) -> Option<Self> {
        let pid = stat.split(' ').next()?.parse().ok()?;
        let mut rest = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = rest.next()?;
        let mut number = || rest.next()?.parse().ok();
        let (parent, group, session) = (number()?, number()?, number()?);
        // The state is that of the first thread, which may end before the others.
        let threads: i32 = rest.nth(13).and_then(|threads| threads.parse().ok()).unwrap_or(1);
        let is_zombie = matches!(state, "Z" | "X") && threads <= 1;
        let is_stopped = state == "T";
        Some(Self { pid, parent, group, session, is_zombie, is_stopped })
    }

    fn of(pid: i32) -> Option<Self> {
        Self::parse(&String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/stat")).ok()?))
    }

    fn all() -> Vec<Self> {
        let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.filter_map(Self::of).collect()
    }
}

/// A process that descends from another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descendant {
    pub(super) pid: Pid,
    /// [`None`] if that is outside the container.
    pub(super) parent: Option<Pid>,
    /// The leader of its process group, [`None`] if that is outside the container.
    pub(super) group: Option<Pid>,
    /// The leader of its session, [`None`] if that is outside the container.
    pub(super) session: Option<Pid>,
}

/// The leader of the process group of this process, [`None`] if that is outside the container.
pub(super) fn own_group() -> Option<Pid> {
    Pid::from_raw(getpgrp().as_raw())
}

/// The leader of the process group of another process, [`None`] if that is outside the container.
pub(super) fn group_of(pid: Pid) -> Option<Pid> {
    // Unlike the one of rustix, this may return zero.
    let group = getpgid(Some(nix::unistd::Pid::from_raw(pid.as_raw_pid()))).ok()?;
    Pid::from_raw(group.as_raw())
}

/// The leader of the session of this process, [`None`] if that is outside the container.
pub(super) fn own_session() -> Option<Pid> {
    Pid::from_raw(getsid(None).map_or(0, nix::unistd::Pid::as_raw))
}

/// The running processes that descend from `ancestor`, without `others` and their descendants.
#[cfg(target_os = "linux")]
pub(super) fn descendants_of(ancestor: Pid, others: &[Pid]) -> Vec<Descendant> {
    let all = Process::all();
    let mut found = vec![ancestor.as_raw_pid()];
    let mut at = 0;
    while let Some(&parent) = found.get(at) {
        // Process ids are reused, so a process could appear as its own ancestor, in an endless
        // loop.
        let children = all.iter().filter(|process| process.parent == parent);
        let is_new = |pid: &i32| {
            !found.contains(pid) && !others.iter().any(|other| other.as_raw_pid() == *pid)
        };
        let new: Vec<i32> = children.map(|process| process.pid).filter(is_new).collect();
        found.extend(new);
        at += 1;
    }
    let running = |pid| all.iter().find(|process| process.pid == pid && !process.is_zombie);
    let described = |process: &Process| {
        Some(Descendant {
            pid: Pid::from_raw(process.pid)?,
            parent: Pid::from_raw(process.parent),
            group: Pid::from_raw(process.group),
            session: Pid::from_raw(process.session),
        })
    };
    found.into_iter().skip(1).filter_map(running).filter_map(described).collect()
}

#[cfg(not(target_os = "linux"))]
pub(super) fn descendants_of(_ancestor: Pid, _others: &[Pid]) -> Vec<Descendant> {
    Vec::new()
}

/// Returns `true` if every process of `group` has ended, and only waits to be collected by its
/// parent. `running` is the process that was found the last time, so that most calls look at one
/// process only.
#[cfg(target_os = "linux")]
pub(super) fn has_ended(group: Pid, running: &Cell<Option<i32>>) -> bool {
    let is_member = |process: &Process| process.group == group.as_raw_pid();
    let is_running = |process: &Process| is_member(process) && !process.is_zombie;
    if running.get().and_then(Process::of).is_some_and(|process| is_running(&process)) {
        return false;
    }
    // Twice, because a process that starts another one and ends during the first search may be seen
    // without that.
    (0..2).all(|_| {
        let all = Process::all();
        let found = all.iter().find(|process| is_running(process));
        running.set(found.map(|process| process.pid));
        // Where `/proc` hides the group, nothing is known.
        found.is_none() && all.iter().any(is_member)
    })
}

/// Other systems do not show this without unsafe code.
#[cfg(not(target_os = "linux"))]
pub(super) fn has_ended(_group: Pid, _running: &Cell<Option<i32>>) -> bool {
    false
}

/// Returns `true` if the process is stopped by a signal.
#[cfg(target_os = "linux")]
pub(super) fn is_stopped(pid: i32) -> bool {
    Process::of(pid).is_some_and(|process| process.is_stopped)
}

/// Other systems do not show this without unsafe code.
#[cfg(not(target_os = "linux"))]
pub(super) fn is_stopped(_pid: i32) -> bool {
    false
}

/// Returns `true` if `signal` was sent to the process and has not taken effect yet.
#[cfg(target_os = "linux")]
pub(super) fn is_pending(pid: Pid, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_pid()));
    let status = status.unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal.as_raw() - 1) & 1 == 1
}

/// Other systems do not show this without unsafe code.
#[cfg(not(target_os = "linux"))]
pub(super) fn is_pending(_pid: Pid, _signal: Signal) -> bool {
    false
}

/// Returns `true` if this process descends from `ancestor`.
#[cfg(target_os = "linux")]
pub(crate) fn is_below(ancestor: i32) -> bool {
    let mut pid = rustix::process::getpid().as_raw_pid();
    // A bound deeper than any real tree, because the tree may change while it is read.
    for _ in 0..1000 {
        match Process::of(pid) {
            Some(process) if process.parent == ancestor => return true,
            Some(process) if process.parent > 0 => pid = process.parent,
            _ => return false,
        }
    }
    false
}

/// Other systems do not show this without unsafe code, so it is assumed.
#[cfg(not(target_os = "linux"))]
pub(crate) fn is_below(_ancestor: i32) -> bool {
    true
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::Command;

    use rustix::process::kill_process;

    use super::*;

    #[test]
    fn a_name_with_parentheses_is_no_obstacle() {
        let process = Process::parse("17 (a) Z 1 (b) S 5 16 15 0 -1").unwrap();
        let (group, session) = (16, 15);
        let (is_zombie, is_stopped) = (false, false);
        let expected = Process { pid: 17, parent: 5, group, session, is_zombie, is_stopped };
        assert_eq!(process, expected);
        assert!(Process::parse("17 (x) Z 5 1 1").unwrap().is_zombie);
        let ended = |threads| format!("17 (x) Z 5 1 1 0 -1 4 0 0 0 0 0 0 0 0 20 0 {threads} 0 9");
        assert!(Process::parse(&ended(1)).unwrap().is_zombie);
        assert!(!Process::parse(&ended(2)).unwrap().is_zombie);
        assert!(Process::parse("17 (x) T 5 1 1").unwrap().is_stopped);
        assert_eq!(Process::parse(""), None);
    }

    #[test]
    fn a_signal_to_a_stopped_process_is_pending() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::STOP).unwrap();
        while !is_stopped(pid.as_raw_pid()) {}
        assert!(!is_pending(pid, Signal::USR1));
        kill_process(pid, Signal::USR1).unwrap();
        assert!(is_pending(pid, Signal::USR1) && !is_pending(pid, Signal::USR2));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn children_descend_from_their_parent() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let own = rustix::process::getpid();
        let found = descendants_of(own, &[]).into_iter().find(|found| found.pid == pid).unwrap();
        assert_eq!(found.group, own_group());
        assert_eq!(found.session, own_session());
        assert_eq!(found.parent, Some(own));
        assert!(!descendants_of(own, &[found.pid]).contains(&found));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!descendants_of(own, &[]).contains(&found));
        assert!(is_below(std::os::unix::process::parent_id().cast_signed()));
        assert!(!is_below(pid.as_raw_pid()));
    }
}
