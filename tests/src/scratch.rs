//! [`scratch`]: where servers have their files.

use std::{
    env,
    path::{Path, PathBuf},
};

/// The folder for the files of servers, and for logs of tests: on Linux, in memory if 4 GiB are free
/// in `/dev/shm`. Otherwise, or if `TMPDIR` is set, it is the system's temporary folder.
///
/// Members of etcd wait for their files with every write, Sentinels and nodes of a cluster with
/// every change of roles, and PostgreSQL with each new file of its log, even if it syncs nothing. A
/// disk that others use as well can take seconds for that; the battery covers it with fault 52. Files
/// survive the death of a process in both places.
#[must_use]
pub fn scratch() -> PathBuf {
    match in_memory() {
        Some(folder) if env::var_os("TMPDIR").is_none() => folder.to_owned(),
        _ => env::temp_dir(),
    }
}

/// A folder in memory with enough space.
#[cfg(target_os = "linux")]
fn in_memory() -> Option<&'static Path> {
    use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};

    /// The space that has to be free, in bytes. Members of etcd reserve some for their logs.
    const ENOUGH: u64 = 4 << 30;

    let folder = Path::new("/dev/shm");
    let of = statvfs(folder).ok()?;
    // Tests have programs of their own beside the files.
    let is_open = !of.f_flag.intersects(StatVfsMountFlags::NOEXEC | StatVfsMountFlags::RDONLY)
        && access(folder, Access::WRITE_OK | Access::EXEC_OK).is_ok();
    let fits = of.f_bavail.saturating_mul(of.f_frsize) >= ENOUGH;
    (is_open && fits).then_some(folder)
}

/// Other systems have no such folder that can be relied on.
#[cfg(not(target_os = "linux"))]
fn in_memory() -> Option<&'static Path> {
    None
}
