//! The executable of the server, and its [`Version`].

use std::{env, ffi::OsString, fmt, io, path::PathBuf, process::Command, sync::OnceLock};

use super::StartError;

/// The variable that names the executable.
const VARIABLE: &str = "LOCKCORE_REDIS_SERVER";

/// The version of a server. Redis and Valkey versions are compared alike.
///
/// # Examples
/// ```
/// use lockcore_testkit::RedisServer;
///
/// println!("tested on {}", RedisServer::start().version());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    major: u16,
    minor: u16,
    patch: u16,
}

impl Version {
    pub(super) const fn new(major: u16, minor: u16, patch: u16) -> Self {
        Self { major, minor, patch }
    }

    /// Reads the output of `redis-server --version`: `Redis server v=7.0.15 sha=..`.
    fn of_output(output: &str) -> Option<Self> {
        let mut numbers =
            output.split_whitespace().find_map(|word| word.strip_prefix("v="))?.split('.');
        let mut next = || numbers.next()?.parse().ok();
        Some(Self { major: next()?, minor: next()?, patch: next()? })
    }

    /// Asks the executable, once per process.
    pub(super) fn of_server() -> Result<Self, StartError> {
        static VERSION: OnceLock<Version> = OnceLock::new();
        if let Some(version) = VERSION.get() {
            return Ok(*version);
        }
        let asked = Command::new(executable()).arg("--version").output().map_err(not_started)?;
        let output = String::from_utf8_lossy(&asked.stdout);
        let version = Self::of_output(&output).ok_or_else(|| {
            let said = String::from_utf8_lossy(&asked.stderr);
            StartError::Failed(format!("--version tells no version: {output}{said}"))
        })?;
        Ok(*VERSION.get_or_init(|| version))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// The executable to run.
pub(super) fn executable() -> OsString {
    named().unwrap_or_else(|| "redis-server".into())
}

fn named() -> Option<OsString> {
    env::var_os(VARIABLE).filter(|path| !path.is_empty())
}

/// The error of a process that could not be spawned.
pub(super) fn not_started(error: io::Error) -> StartError {
    match (error.kind(), named()) {
        (io::ErrorKind::NotFound, None) => StartError::NotInstalled,
        (io::ErrorKind::NotFound, Some(path)) => StartError::Missing(PathBuf::from(path)),
        _ => StartError::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::Version;

    #[test]
    fn redis_and_valkey_tell_their_version_alike() {
        let outputs = [
            ("Redis server v=6.0.16 sha=00000000:0 malloc=jemalloc-5.2.1 bits=64", (6, 0, 16)),
            ("Valkey server v=8.1.1 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64", (8, 1, 1)),
        ];
        for (output, (major, minor, patch)) in outputs {
            assert_eq!(Version::of_output(output), Some(Version::new(major, minor, patch)));
        }
        assert_eq!(Version::of_output("something else"), None);
        assert!(Version::new(6, 2, 0) < Version::new(7, 0, 15));
    }
}
