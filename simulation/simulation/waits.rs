//! [`Waits`]: the current waits.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::time::Instant;

/// The current waits. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waits(Arc<Mutex<Record>>);

#[derive(Debug, Default)]
struct Record {
    /// By number: the name and the client, and the start.
    waits: BTreeMap<u64, (&'static str, usize, Instant)>,
    next: u64,
}

impl Waits {
    fn record(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a wait, until the result is dropped.
    pub(crate) fn begin(&self, name: &'static str, client: usize) -> Waiting {
        let mut record = self.record();
        let number = record.next;
        record.next += 1;
        record.waits.insert(number, (name, client, Instant::now()));
        Waiting { waits: self.clone(), number }
    }

    /// By name: the start of the longest wait.
    pub(crate) fn longest(&self) -> BTreeMap<&'static str, Instant> {
        let mut longest = BTreeMap::new();
        for (name, _, since) in self.record().waits.values() {
            longest.entry(*name).or_insert(*since);
        }
        longest
    }
}

#[derive(Debug)]
pub(crate) struct Waiting {
    waits: Waits,
    number: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.waits.record().waits.remove(&self.number);
    }
}
