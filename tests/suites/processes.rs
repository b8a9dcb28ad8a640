//! What is left of a server when its test has failed.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::PathBuf,
    process::Command,
};

/// The ids of all processes with those of their parents, without zombies.
fn processes() -> Vec<(u32, u32)> {
    let listed = Command::new("ps").args(["-A", "-o", "pid=,ppid=,stat="]).output().unwrap();
    let process = |line: &str| {
        let mut words = line.split_whitespace();
        let ids = words.next()?.parse().ok().zip(words.next()?.parse().ok());
        ids.filter(|_| !words.next().is_some_and(|state| state.starts_with('Z')))
    };
    String::from_utf8(listed.stdout).unwrap().lines().filter_map(process).collect()
}

/// Fails a test that owns a server, and shows that the server's processes and its files are gone
/// afterwards. `at` says which processes it has, and which folder.
pub(crate) fn leaves_nothing<S>(
    start: impl FnOnce() -> S,
    at: impl FnOnce(&S) -> (Vec<u32>, PathBuf),
) {
    let mut left = None;
    let test = AssertUnwindSafe(|| {
        let server = start();
        let (ids, folder) = at(&server);
        let running = processes().into_iter();
        let running = running.filter(|(id, parent)| ids.contains(id) || ids.contains(parent));
        let running: Vec<u32> = running.map(|(id, _)| id).collect();
        assert!(ids.iter().all(|id| running.contains(id)) && folder.exists());
        left = Some((running, folder));
        // A panic without a message.
        resume_unwind(Box::new(()));
    });
    assert!(catch_unwind(test).is_err());
    let (ids, folder) = left.expect("the server ran");
    let still = processes().into_iter().filter(|(id, _)| ids.contains(id));
    assert_eq!(still.collect::<Vec<_>>(), [], "of {ids:?}");
    assert!(!folder.exists(), "{}", folder.display());
}
