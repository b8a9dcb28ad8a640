//! The program to run: whether it exists, and what it is.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs::{self, File, Metadata},
    io::{self, Read},
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
};

use rustix::io::Errno;

use crate::exit::{Exit, Failure};

/// The number of bytes of a file that show whether it is a script.
const BEGINNING: u64 = 256;

/// The reason why `command` certainly cannot be started. The system may still refuse other
/// commands.
///
/// The search is the system's own, so that nobody waits for a lock that cannot be used.
pub(super) fn cannot_start(command: &OsStr) -> Option<io::Error> {
    if command.is_empty() {
        return Some(Errno::NOENT.into());
    }
    let mut reason = Errno::NOENT;
    for place in places(command)? {
        match fs::metadata(place) {
            Ok(found) if is_executable(&found) => return None,
            Ok(_) => reason = Errno::ACCESS,
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {}
                // The system may know better.
                _ => return None,
            },
        }
    }
    Some(reason.into())
}

/// The files that `command` may mean, in the order of the search.
fn places(command: &OsStr) -> Option<Vec<PathBuf>> {
    Some(match command.as_bytes().contains(&b'/') {
        true => vec![command.into()],
        // Without a path, the system has a default of its own.
        false => env::split_paths(&env::var_os("PATH")?).map(|path| path.join(command)).collect(),
    })
}

fn is_executable(file: &Metadata) -> bool {
    file.is_file() && file.permissions().mode() & 0o111 != 0
}

/// Returns `true` if the system has found the command and does not know how to run it.
pub(super) fn is_of_unknown_format(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::NOEXEC)
}

/// The words that run `command` as a script of the shell, as `execvp` does with a file of unknown
/// format. [`None`] if the file has a zero in its first line: bash takes such a file for a binary of
/// another machine, too.
pub(super) fn as_script(command: &[OsString]) -> Option<Vec<OsString>> {
    let (program, arguments) = command.split_first()?;
    let found = |place: &PathBuf| fs::metadata(place).is_ok_and(|file| is_executable(&file));
    let script = places(program)?.into_iter().find(found)?;
    let mut beginning = Vec::new();
    File::open(&script).ok()?.take(BEGINNING).read_to_end(&mut beginning).ok()?;
    if beginning.split(|byte| *byte == b'\n').next()?.contains(&0) {
        return None;
    }
    let shell = ["/bin/sh".into(), "--".into(), script.into_os_string()];
    Some(shell.into_iter().chain(arguments.iter().cloned()).collect())
}

/// The failure of a command that was not started.
pub(super) fn not_started(command: &OsStr, error: &io::Error) -> Failure {
    let command = Path::new(command).display();
    match error.kind() {
        io::ErrorKind::NotFound => {
            Failure::new(Exit::NOT_FOUND, format!("cannot find the command `{command}`: {error}"))
        }
        _ => Failure::new(Exit::CANNOT_EXECUTE, format!("cannot execute `{command}`: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_the_system_finds_them() {
        let kind = |command: &str| cannot_start(command.as_ref()).map(|error| error.kind());
        assert_eq!(kind("sh"), None);
        assert_eq!(kind("/bin/sh"), None);
        assert_eq!(kind("/etc/passwd"), Some(io::ErrorKind::PermissionDenied));
        assert_eq!(kind("/"), Some(io::ErrorKind::PermissionDenied));
        for missing in ["", "no-such-program", "/nowhere/sh", "/etc/passwd/sh"] {
            assert_eq!(kind(missing), Some(io::ErrorKind::NotFound), "{missing}");
        }
    }
}
