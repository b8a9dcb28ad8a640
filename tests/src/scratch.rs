//! [`scratch`]: where Redis and etcd servers have their files.

use std::{
    env,
    path::{Path, PathBuf},
};

use rustix::fs::{StatVfsMountFlags, statvfs};

/// The space that has to be free, in bytes. Members of etcd reserve some for their logs.
const ENOUGH: u64 = 4 << 30;

/// The folder for the files of servers: in memory, if 4 GiB are free in `/dev/shm`. Otherwise, or
/// if `TMPDIR` is set, it is the system's temporary folder.
///
/// Members of etcd wait for their files with every write, and Sentinels and nodes of a cluster with
/// every change of roles. A disk that others use as well can take seconds for that; the battery
/// covers it with fault 52. Files survive the death of a process in both places.
pub(crate) fn scratch() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let fits = statvfs(memory).is_ok_and(|of| {
        // Tests have programs of their own beside the files.
        let is_open = !of.f_flag.intersects(StatVfsMountFlags::NOEXEC | StatVfsMountFlags::RDONLY);
        is_open && of.f_bavail.saturating_mul(of.f_frsize) >= ENOUGH
    });
    match fits && env::var_os("TMPDIR").is_none() {
        true => memory.to_owned(),
        false => env::temp_dir(),
    }
}
