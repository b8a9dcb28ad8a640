//! [`Routes`]: redirects the connections of processes, whatever addresses servers announce.

use std::{
    fmt::Write,
    sync::{Mutex, PoisonError},
};

use crate::{
    protocol::{Result, failure},
    shim::Shim,
};

/// A preloaded library that redirects connections to other ports.
#[derive(Debug)]
pub(crate) struct Routes {
    shim: Shim,
    /// Process, port, other port. Locked for short critical sections without awaits.
    lines: Mutex<Vec<(u32, u16, u16)>>,
}

/// Every process.
pub(crate) const EVERYBODY: u32 = 0;

impl Routes {
    /// Compiles the library. At first nothing is redirected.
    pub(crate) fn make() -> Result<Self> {
        let shim = Shim::compile(include_str!("../../shim/routes.c"), "LOCKCORE_ROUTES")?;
        let shim = shim.ok_or_else(|| {
            failure("there is no C compiler (cc) for the library that leads connections elsewhere")
        })?;
        let routes = Self { shim, lines: Mutex::default() };
        routes.lead([])?;
        Ok(routes)
    }

    /// The environment variables to start a process with.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        self.shim.environment()
    }

    /// Redirects new connections of processes from a port to another: `(process, port, other)`.
    pub(crate) fn lead(&self, more: impl IntoIterator<Item = (u32, u16, u16)>) -> Result<()> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.extend(more);
        let mut text = String::new();
        for (process, port, other) in lines.iter() {
            writeln!(text, "{process} {port} {other}")?;
        }
        // Replaced atomically, because a process may be reading.
        let new = self.shim.file().with_extension("new");
        std::fs::write(&new, text)?;
        Ok(std::fs::rename(new, self.shim.file())?)
    }
}
