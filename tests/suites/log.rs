//! [`Log`]: captures the library's traces for tests.

#![allow(dead_code, reason = "not every suite looks at it in every way")]

use std::{
    io,
    sync::{Arc, LazyLock, Mutex},
};

use tracing::{
    Dispatch,
    subscriber::{DefaultGuard, NoSubscriber},
};

/// Everything that this thread logs, at every level. A test on a current-thread runtime has no
/// other thread.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

/// With a single subscriber, tracing asks the thread that first meets an event whether it is
/// wanted, and caches the answer for all threads. So there is always a second one, without a
/// thread.
static OTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::new()));

impl Log {
    pub(crate) fn start() -> (Self, DefaultGuard) {
        LazyLock::force(&OTHER);
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    pub(crate) fn lines_with(&self, part: &str) -> Vec<String> {
        self.text().lines().filter(|line| line.contains(part)).map(str::to_owned).collect()
    }

    /// The only line that contains `part`.
    pub(crate) fn line_with(&self, part: &str) -> String {
        let lines = self.lines_with(part);
        assert_eq!(lines.len(), 1, "{part}: {lines:#?}");
        lines[0].clone()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
