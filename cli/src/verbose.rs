//! The output of `--verbose`: the events of the library and of the backends, as lines on stderr.

use std::io::{self, Write};

use tracing::Level;
use tracing_subscriber::{
    filter::Targets,
    fmt::{self, MakeWriter, time},
    layer::SubscriberExt,
};

use crate::output;

/// The crates whose events are written.
const TOLD: [&str; 5] =
    ["lockctl", "lockcore", "lockcore_redis", "lockcore_postgres", "lockcore_etcd"];

/// Begins to write events. It is called once.
pub(crate) fn start() {
    let told = TOLD.map(|target| (target, Level::DEBUG));
    let layer = fmt::layer().with_ansi(false).with_timer(time::uptime()).with_writer(Lines);
    let subscriber =
        tracing_subscriber::registry().with(Targets::new().with_targets(told)).with(layer);
    // Fails if there is a subscriber already, which writes events as well.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// Turns each event into a message.
struct Lines;

impl MakeWriter<'_> for Lines {
    type Writer = Line;

    fn make_writer(&self) -> Line {
        Line(Vec::new())
    }
}

/// The text of an event, which is written when it is complete: escaped, and without passwords.
struct Line(Vec<u8>);

impl Write for Line {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let text = String::from_utf8_lossy(&self.0);
        if !text.trim().is_empty() {
            output::tell(text.trim_end());
        }
    }
}
