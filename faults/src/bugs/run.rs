//! Makes the copy of the tree, and runs the tests on each bug.

use std::{
    collections::HashMap,
    env, fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal};

use super::{Binary, Bug, Tests, apply::Sources, list};
use crate::protocol::{Result, failure};

/// The time limit of tests with a bug: this, plus a multiple of the time that they take without it.
/// Tests that take longer hang, which counts as a failure.
const PATIENCE: Duration = Duration::from_secs(30);
const TIMES_SLOWER: u32 = 5;

/// Tries the bugs whose names contain `only`. Returns `true` if all of them are caught.
pub(crate) fn run(only: &str) -> Result<bool> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let root = root.ok_or_else(|| failure("no workspace"))?;
    let bugs: Vec<Bug> = list::all().into_iter().filter(|bug| bug.name.contains(only)).collect();
    if bugs.is_empty() {
        return Err(failure(format!("no bug is called like `{only}`")));
    }
    let sources = Sources::read(root)?;
    check(&bugs, &sources)?;
    let copy = TreeCopy::make(root)?;
    let usual = copy.try_without_bugs(&bugs)?;
    println!("{} bugs; without any, the tests that are to catch them are green", bugs.len());
    let start = Instant::now();
    let mut missed = 0;
    for (number, bug) in bugs.iter().enumerate() {
        let start = Instant::now();
        let edited = sources.edited(&bug.edits)?;
        let outcome = copy.with(&edited, || copy.try_bug(bug.tests, usual[&bug.tests]))?;
        missed += usize::from(!outcome.is_caught());
        let (number, seconds) = (number + 1, start.elapsed().as_secs());
        println!("{number:>2} {:<18} {seconds:>4} s  {}", outcome.text(), bug.name);
    }
    println!("{} of {} caught in {:?}", bugs.len() - missed, bugs.len(), start.elapsed());
    Ok(missed == 0)
}

/// Fails if an anchor of one of `bugs` is not in the source exactly once.
fn check(bugs: &[Bug], sources: &Sources) -> Result<()> {
    let errors = bugs.iter().filter_map(|bug| {
        let error = sources.edited(&bug.edits).err()?;
        Some(format!("\n{}: {error}", bug.name))
    });
    let errors: String = errors.collect();
    if errors.is_empty() { Ok(()) } else { Err(failure(format!("anchors have moved:{errors}"))) }
}

/// The outcome of a bug.
enum Outcome {
    Caught {
        failed: u32,
    },
    Hangs,
    Missed,
    /// The compiler refuses it, which says nothing about the tests.
    DoesNotCompile,
}

impl Outcome {
    fn is_caught(&self) -> bool {
        matches!(self, Self::Caught { .. } | Self::Hangs)
    }

    fn text(&self) -> String {
        match self {
            Self::Caught { failed } => format!("caught by {failed}"),
            Self::Hangs => "caught, hangs".into(),
            Self::Missed => "NOT CAUGHT".into(),
            Self::DoesNotCompile => "DOES NOT COMPILE".into(),
        }
    }
}

/// A test binary that was built.
struct Executable {
    path: PathBuf,
    package: PathBuf,
}

/// How a run of tests ended.
struct Ran {
    /// `None` if the run did not end in time.
    status: Option<ExitStatus>,
    passed: u32,
    failed: u32,
    took: Duration,
}

/// The copy of the tree.
struct TreeCopy {
    tree: PathBuf,
    place: PathBuf,
}

impl TreeCopy {
    /// Makes the copy, or brings it up to date. Unchanged files are not written, so that nothing is
    /// built again for them.
    fn make(root: &Path) -> Result<Self> {
        let place = root.join("target/seeded-bugs");
        let copy = Self { tree: place.join("tree"), place };
        let listed = Command::new("git")
            .current_dir(root)
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .output()?;
        let listed = String::from_utf8(listed.stdout)?;
        let listed = listed.split('\0').filter(|file| root.join(file).is_file());
        let files: Vec<&Path> = listed.map(Path::new).collect();
        copy.remove_others(Path::new(""), &files)?;
        for file in files {
            let text = fs::read(root.join(file))?;
            copy.write(file, &text)?;
        }
        Ok(copy)
    }

    fn remove_others(&self, folder: &Path, files: &[&Path]) -> Result<()> {
        fs::create_dir_all(self.tree.join(folder))?;
        for entry in fs::read_dir(self.tree.join(folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                self.remove_others(&path, files)?;
            } else if !files.contains(&path.as_path()) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// Writes a file, unless it has this text already.
    fn write(&self, file: &Path, text: &[u8]) -> Result<()> {
        let to = self.tree.join(file);
        if fs::read(&to).is_ok_and(|old| old == text) {
            return Ok(());
        }
        fs::create_dir_all(to.parent().unwrap_or(&self.tree))?;
        Ok(fs::write(to, text)?)
    }

    /// Does `work` while the files in `edited` have another text.
    fn with<T>(&self, edited: &[(&Path, String)], work: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut originals = Vec::new();
        for (file, text) in edited {
            originals.push((file, fs::read(self.tree.join(file))?));
            self.write(file, text.as_bytes())?;
        }
        let done = work();
        for (file, text) in originals {
            self.write(file, &text)?;
        }
        done
    }

    /// Runs the tests of all `bugs` without any bug. Returns the time that they take.
    fn try_without_bugs(&self, bugs: &[Bug]) -> Result<HashMap<Tests, Duration>> {
        let mut usual = HashMap::new();
        for Tests { binary, filter } in bugs.iter().map(|bug| bug.tests) {
            let tests = Tests { binary, filter };
            if usual.contains_key(&tests) {
                continue;
            }
            let executable = self.build(binary)?;
            let executable = executable
                .ok_or_else(|| failure(format!("no tests without any bug: {}", self.log())))?;
            let ran = self.test(&executable, filter, 20 * PATIENCE)?;
            if ran.passed == 0 || ran.failed > 0 {
                let (passed, failed) = (ran.passed, ran.failed);
                return Err(failure(format!(
                    "without any bug, {passed} tests like `{filter}` pass and {failed} fail"
                )));
            }
            usual.insert(tests, ran.took);
        }
        Ok(usual)
    }

    fn try_bug(&self, tests: Tests, usual: Duration) -> Result<Outcome> {
        let Some(executable) = self.build(tests.binary)? else {
            return Ok(Outcome::DoesNotCompile);
        };
        let ran = self.test(&executable, tests.filter, PATIENCE + TIMES_SLOWER * usual)?;
        Ok(match ran.status {
            None => Outcome::Hangs,
            Some(status) if status.success() => Outcome::Missed,
            // A test that aborts the process is in no count.
            Some(_) => Outcome::Caught { failed: ran.failed.max(1) },
        })
    }

    /// Builds a test binary, for a short build time. `None` if it does not compile.
    fn build(&self, binary: Binary) -> Result<Option<Executable>> {
        let target = match binary {
            Binary::Lib => ["-p", "lockcore", "--lib", ""],
            Binary::RedisLib => ["-p", "lockcore-redis", "--lib", ""],
            Binary::Suites => ["-p", "lockcore-testkit", "--test", "suites"],
            Binary::Redis => ["-p", "lockcore-testkit", "--test", "redis"],
        };
        let built = Command::new(env!("CARGO"))
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", self.place.join("build"))
            .env("CARGO_INCREMENTAL", "1")
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .args(["test", "--no-run", "--locked", "--message-format=json"])
            .args(target.iter().filter(|part| !part.is_empty()))
            .stderr(fs::File::create(self.place.join("build.log"))?)
            .output()?;
        if !built.status.success() {
            return Ok(None);
        }
        let messages = String::from_utf8(built.stdout)?;
        let mut executables = messages.lines().filter_map(|line| {
            let message: serde_json::Value = serde_json::from_str(line).ok()?;
            let path = message["executable"].as_str()?.into();
            let manifest = Path::new(message["manifest_path"].as_str()?);
            Some(Executable { path, package: manifest.parent()?.to_owned() })
        });
        let executable = executables.next_back();
        executable.map(Some).ok_or_else(|| failure("cargo has built no test binary"))
    }

    fn log(&self) -> String {
        self.place.join("build.log").display().to_string()
    }

    /// Runs the tests whose names contain `filter`, for at most `limit`.
    fn test(&self, executable: &Executable, filter: &str, limit: Duration) -> Result<Ran> {
        let log = self.place.join("tests.log");
        // A process group of its own, so that a server which a test has started ends with it.
        let mut tests = Command::new(&executable.path)
            .current_dir(&executable.package)
            .arg(filter)
            // Not in memory, where the files of servers would stay if the tests are killed.
            .env("TMPDIR", env::temp_dir())
            .stdin(Stdio::null())
            .stdout(fs::File::create(&log)?)
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let start = Instant::now();
        let status = loop {
            if let Some(status) = tests.try_wait()? {
                break Some(status);
            }
            if start.elapsed() > limit {
                rustix::process::kill_process_group(Pid::from_child(&tests), Signal::KILL)?;
                tests.wait()?;
                break None;
            }
            thread::sleep(Duration::from_millis(20));
        };
        let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
        let count = |what: &str| {
            let result = text.lines().rev().find_map(|line| line.strip_prefix("test result: "));
            let words: Vec<&str> = result.unwrap_or_default().split([' ', ';']).collect();
            let at = words.iter().position(|word| *word == what).unwrap_or_default();
            words.get(at.wrapping_sub(1)).and_then(|count| count.parse().ok()).unwrap_or_default()
        };
        let (passed, failed) = (count("passed"), count("failed"));
        Ok(Ran { status, passed, failed, took: start.elapsed() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_anchors_of_all_bugs_are_in_the_source_once() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        check(&list::all(), &Sources::read(&root).unwrap()).unwrap();
    }
}
