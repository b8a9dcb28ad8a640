//! [`until_stopped`]: what `SIGSTOP` leaves to be waited for.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

/// The time limit for threads to stop.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until all threads of these processes have stopped, on Linux. The signal takes effect when
/// one of them runs again. On a busy machine that may be late, and the others go on meanwhile.
///
/// # Panics
/// If they do not stop.
pub(crate) fn until_stopped(ids: &[u32]) {
    let start = Instant::now();
    for id in ids {
        while !is_stopped(*id) {
            assert!(start.elapsed() < PATIENCE, "process {id} does not stop");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Returns `true` also for a process that is gone, and where there is no `/proc`.
fn is_stopped(id: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{id}/task")) else { return true };
    threads.flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state follows the name, which is in parentheses.
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        state.is_none_or(|state| "TtZX".contains(state))
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn send(signal: &str, id: u32) {
        assert!(Command::new("kill").args([signal, &id.to_string()]).status().unwrap().success());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_process_is_stopped_after_the_signal_only() {
        let mut process = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!is_stopped(process.id()));
        send("-STOP", process.id());
        until_stopped(&[process.id()]);
        send("-CONT", process.id());
        process.kill().unwrap();
        process.wait().unwrap();
        assert!(is_stopped(process.id()), "it is gone");
    }
}
