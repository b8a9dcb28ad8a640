//! [`Trace`]: the events of a run, as a hash to compare runs, and as text to read.

use std::{
    fmt,
    hash::{DefaultHasher, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::time::Instant;

/// The record of one run. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    start: Instant,
    record: Arc<Mutex<Record>>,
}

#[derive(Debug)]
struct Record {
    hash: DefaultHasher,
    events: u64,
    lines: Option<Vec<String>>,
    violation: Option<String>,
}

impl Trace {
    /// Starts a record, which keeps its text if it is `readable`.
    pub(crate) fn new(readable: bool) -> Self {
        let record = Record {
            hash: DefaultHasher::new(),
            events: 0,
            lines: readable.then(Vec::new),
            violation: None,
        };
        Self { start: Instant::now(), record: Arc::new(Mutex::new(record)) }
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn event(&self, event: fmt::Arguments<'_>) {
        let mut record = self.record();
        record.events += 1;
        let line = format!("{:>12.6} {event}", self.start.elapsed().as_secs_f64());
        record.hash.write(line.as_bytes());
        if let Some(lines) = &mut record.lines {
            lines.push(line);
        }
    }

    /// Records a violation. Only the first counts: later ones may be its consequences.
    pub(crate) fn violation(&self, what: String) {
        self.event(format_args!("VIOLATION: {what}"));
        self.record().violation.get_or_insert(what);
    }

    pub(crate) fn has_violation(&self) -> bool {
        self.record().violation.is_some()
    }

    /// The hash and the number of all events, the text if it was kept, and the violation.
    pub(crate) fn finish(&self) -> Outcome {
        let mut record = self.record();
        Outcome {
            hash: record.hash.finish(),
            events: record.events,
            lines: record.lines.take().unwrap_or_default(),
            violation: record.violation.take(),
        }
    }
}

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) hash: u64,
    pub(crate) events: u64,
    pub(crate) lines: Vec<String>,
    pub(crate) violation: Option<String>,
}
