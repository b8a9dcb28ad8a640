//! [`WallClock`]: a wall clock that can be moved, for a process that is started with it.

use std::{path::PathBuf, process::Command, time::Duration};

use crate::protocol::{Result, failure};

const SHIM: &str = include_str!("../shim/clock.c");

/// A preloaded library and the file that moves its clock.
#[derive(Debug)]
pub(crate) struct WallClock {
    directory: PathBuf,
}

impl WallClock {
    /// Compiles the library; `None` where there is no C compiler.
    pub(crate) fn make(label: &str) -> Result<Option<Self>> {
        let directory =
            std::env::temp_dir().join(format!("lockcore-clock-{}-{label}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let clock = Self { directory };
        std::fs::write(clock.path("clock.c"), SHIM)?;
        clock.set(0)?;
        let mut compiler = Command::new("cc");
        compiler
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(clock.path("clock.so"))
            .arg(clock.path("clock.c"));
        match compiler.output() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
            Ok(made) if made.status.success() => Ok(Some(clock)),
            Ok(made) => Err(failure(format!("cc: {}", String::from_utf8_lossy(&made.stderr)))),
        }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.directory.join(file)
    }

    /// What a process is started with.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let path = |file| self.path(file).display().to_string();
        vec![("LD_PRELOAD".into(), path("clock.so")), ("LOCKCORE_CLOCK".into(), path("offset"))]
    }

    /// How far the clock is ahead.
    pub(crate) fn ahead(&self, by: Duration) -> Result<()> {
        self.set(i64::try_from(by.as_nanos())?)
    }

    /// How far the clock is behind.
    pub(crate) fn behind(&self, by: Duration) -> Result<()> {
        self.set(-i64::try_from(by.as_nanos())?)
    }

    fn set(&self, offset: i64) -> Result<()> {
        use std::os::unix::fs::FileExt;
        // In place: the process has mapped this very file.
        let file = std::fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.path("offset"))?;
        Ok(file.write_all_at(&offset.to_ne_bytes(), 0)?)
    }
}

impl Drop for WallClock {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
