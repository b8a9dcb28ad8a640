//! Checks that the program to run exists.

use std::{
    env,
    ffi::OsStr,
    fs, io,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
};

use rustix::io::Errno;

use crate::exit::{Exit, Failure};

/// The reason why `command` certainly cannot be started. The system may still refuse other
/// commands.
///
/// The search is the system's own, so that nobody waits for a lock that cannot be used.
pub(super) fn cannot_start(command: &OsStr) -> Option<io::Error> {
    if command.is_empty() {
        return Some(Errno::NOENT.into());
    }
    let places: Vec<PathBuf> = match command.as_bytes().contains(&b'/') {
        true => vec![command.into()],
        // Without a path, the system has a default of its own.
        false => env::split_paths(&env::var_os("PATH")?).map(|path| path.join(command)).collect(),
    };
    let mut reason = Errno::NOENT;
    for place in places {
        match fs::metadata(place) {
            Ok(found) if found.is_file() && found.permissions().mode() & 0o111 != 0 => return None,
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
