//! [`new_folder`]: the folder of a server's files.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use uuid::Uuid;

/// Makes a folder in `parent`. Its name begins with `what` and the id of this process, and ends with
/// a random number, because containers can share the folder and have the same ids.
pub(crate) fn new_folder(parent: &Path, what: &str) -> io::Result<PathBuf> {
    let random = Uuid::new_v4().as_fields().0;
    let folder = parent.join(format!("{what}-{}-{random:08x}", std::process::id()));
    fs::create_dir_all(parent)?;
    fs::create_dir(&folder)?;
    Ok(folder)
}
