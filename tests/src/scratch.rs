//! [`scratch`]: where the servers of the kit have their files.

use std::{
    env,
    path::{Path, PathBuf},
};

/// The space that parallel servers may take, in bytes. Members of etcd reserve some for their logs.
const ENOUGH: u64 = 4 << 30;

/// The folder for the files of servers: in memory if there is enough of it, and otherwise, or if
/// `TMPDIR` is set, the system's temporary folder.
///
/// Members of etcd wait for their files with every write, and Sentinels and nodes of a cluster with
/// every change of roles. A disk that others use as well can take seconds for that. What was written
/// survives the death of a process in both places.
pub(crate) fn scratch() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let free = rustix::fs::statvfs(memory).map(|of| of.f_bavail.saturating_mul(of.f_frsize));
    match free {
        Ok(ENOUGH..) if env::var_os("TMPDIR").is_none() => memory.to_owned(),
        _ => env::temp_dir(),
    }
}
