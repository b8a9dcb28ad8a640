//! [`WallClock`]: a wall clock that can be set, for a process that is started with it.

use std::time::Duration;

use crate::{protocol::Result, shim::Shim};

/// A preloaded library, with a file that sets how far its clock is ahead.
#[derive(Debug)]
pub(crate) struct WallClock(Shim);

impl WallClock {
    /// Compiles the library; `None` where there is no C compiler.
    pub(crate) fn make() -> Result<Option<Self>> {
        let shim = Shim::compile(include_str!("../shim/clock.c"), "LOCKCORE_CLOCK")?;
        let clock = shim.map(Self);
        if let Some(clock) = &clock {
            clock.set(0)?;
        }
        Ok(clock)
    }

    /// The environment variables to start a process with.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        self.0.environment()
    }

    /// Sets the clock ahead.
    pub(crate) fn ahead(&self, by: Duration) -> Result<()> {
        self.set(i64::try_from(by.as_nanos())?)
    }

    /// Sets the clock back.
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
            .open(self.0.file())?;
        Ok(file.write_all_at(&offset.to_ne_bytes(), 0)?)
    }
}
