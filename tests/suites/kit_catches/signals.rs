//! The data of the store of [`Flawed`] clients for latches and conditions.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use tokio::time::Instant;

use super::{
    conditions::Queue,
    flaw::Flaw,
    latches::Latch,
    store::{Flawed, Subscriber},
};

#[derive(Debug, Default)]
pub(super) struct Signals {
    pub(super) latches: HashMap<String, Latch>,
    pub(super) conditions: HashMap<String, Queue>,
    /// By topic.
    listeners: HashMap<String, Vec<Arc<Subscriber>>>,
    /// For the flaw that wakes only once.
    woken: HashSet<String>,
}

impl Signals {
    pub(super) fn with_listeners(
        &mut self,
        topic: &str,
        change: impl FnOnce(&mut Vec<Arc<Subscriber>>),
    ) {
        let listeners = self.listeners.entry(topic.to_owned()).or_default();
        change(listeners);
        if listeners.is_empty() {
            self.listeners.remove(topic);
        }
    }

    /// The subscribers by topic.
    pub(super) fn all_listeners(&mut self) -> impl Iterator<Item = &mut Vec<Arc<Subscriber>>> {
        self.listeners.values_mut()
    }

    /// The entries that would stay forever.
    pub(super) fn left_behind(&self, flaw: Flaw, now: Instant) -> Vec<String> {
        let latches = self.latches.iter().filter(|(_, latch)| latch.stays(flaw));
        let conditions = self.conditions.iter().filter(|(_, queue)| queue.stays(flaw, now));
        let names = latches.map(|(name, _)| name).chain(conditions.map(|(name, _)| name));
        names.chain(self.listeners.keys()).cloned().collect()
    }
}

impl Flawed {
    /// Wakes the subscribers to `topic`.
    pub(super) fn signal(&self, topic: &str) {
        let mut store = self.store();
        let is_first = store.signals.woken.insert(topic.to_owned());
        if is_first || !self.has(Flaw::WakesOnce) {
            store.signals.with_listeners(topic, |listeners| self.wake_all(listeners));
        }
    }
}
