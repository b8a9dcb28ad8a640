//! [`Entries`]: a map in which nothing stays that is idle.

use std::{
    fmt,
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use dashmap::{DashMap, mapref::entry::Entry as Slot};
use lockcore::backend::{Wakeups, async_trait};
use rustc_hash::FxBuildHasher;
use tokio::{sync::watch, time::Instant};

use crate::state::{Cell, Condition};

/// What is stored under one key.
pub(crate) trait Entry: fmt::Debug + Default + Send + Sync + 'static {
    /// Drops what has ended.
    fn settle(&mut self, now: Instant);

    /// Whether nothing would be missed if the entry were gone.
    fn is_idle(&self) -> bool;
}

impl Entry for Cell {
    fn settle(&mut self, now: Instant) {
        Cell::settle(self, now);
    }

    fn is_idle(&self) -> bool {
        Cell::is_idle(self)
    }
}

impl Entry for Condition {
    fn settle(&mut self, now: Instant) {
        Condition::settle(self, now);
    }

    fn is_idle(&self) -> bool {
        Condition::is_idle(self)
    }
}

/// Entries by their keys. An entry costs nothing while it is idle.
#[derive(Debug)]
pub(crate) struct Entries<K: Eq + Hash, E> {
    entries: DashMap<K, E, FxBuildHasher>,
    /// Entries made since expired ones were last swept out.
    made: AtomicUsize,
}

impl<K: Eq + Hash, E> Default for Entries<K, E> {
    fn default() -> Self {
        Self { entries: DashMap::default(), made: AtomicUsize::new(0) }
    }
}

impl<K: Clone + Eq + Hash, E: Entry> Entries<K, E> {
    /// Does something to the entry of `key`, made if need be, and removes it if that left it idle.
    pub(crate) fn with<T>(&self, key: &K, change: impl FnOnce(&mut E, Instant) -> T) -> T {
        self.sweep_now_and_then();
        match self.entries.entry(key.clone()) {
            Slot::Vacant(slot) => {
                let mut entry = E::default();
                let result = change(&mut entry, Instant::now());
                if !entry.is_idle() {
                    slot.insert(entry);
                    self.made.fetch_add(1, Ordering::Relaxed);
                }
                result
            }
            Slot::Occupied(mut slot) => {
                let (entry, now) = (slot.get_mut(), Instant::now());
                entry.settle(now);
                let result = change(entry, now);
                if entry.is_idle() {
                    slot.remove();
                }
                result
            }
        }
    }

    /// How many entries there are of which this is true.
    pub(crate) fn count(&self, is_so: impl Fn(&E) -> bool) -> usize {
        self.sweep();
        self.entries.iter().filter(|entry| is_so(entry)).count()
    }

    /// Removes the entries that ended by themselves and were never asked for again. The cost is spread: as many
    /// entries are looked at as were made since the last time.
    fn sweep_now_and_then(&self) {
        const AT_LEAST: usize = 256;
        let made = self.made.load(Ordering::Relaxed);
        if made >= AT_LEAST && made >= self.entries.len() {
            self.sweep();
        }
    }

    fn sweep(&self) {
        self.made.store(0, Ordering::Relaxed);
        let now = Instant::now();
        self.entries.retain(|_, entry| {
            entry.settle(now);
            !entry.is_idle()
        });
    }
}

impl<K, E> Entries<K, E>
where
    K: fmt::Debug + Clone + Eq + Hash + Send + Sync + 'static,
    E: Entry,
{
    /// Listens to the entry of `key`.
    pub(crate) fn subscribe(
        self: &Arc<Self>,
        key: &K,
        subscribe: impl FnOnce(&mut E) -> watch::Receiver<()>,
    ) -> Box<dyn Wakeups> {
        let woken = Some(self.with(key, |entry, _| subscribe(entry)));
        Box::new(Subscription { entries: self.clone(), key: key.clone(), woken })
    }
}

/// Wakes whoever listens to an entry. Its channel keeps what came between two calls.
#[derive(Debug)]
struct Subscription<K: Clone + Eq + Hash, E: Entry> {
    entries: Arc<Entries<K, E>>,
    key: K,
    /// Taken out when dropped, so that the entry sees its last listener gone.
    woken: Option<watch::Receiver<()>>,
}

#[async_trait]
impl<K: fmt::Debug + Clone + Eq + Hash + Send + Sync, E: Entry> Wakeups for Subscription<K, E> {
    async fn woken(&mut self) {
        let Some(woken) = &mut self.woken else { return };
        if woken.changed().await.is_err() {
            // The entry is never removed while somebody listens.
            std::future::pending::<()>().await;
        }
    }
}

impl<K: Clone + Eq + Hash, E: Entry> Drop for Subscription<K, E> {
    fn drop(&mut self) {
        self.woken = None;
        self.entries.with(&self.key, |_, _| ());
    }
}
