//! [`ExpiringMap`]: a map that drops its values as soon as they are idle.

use std::{
    fmt,
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use dashmap::{DashMap, mapref::entry::Entry};
use lockcore::backend::{HoldId, Wakeup, Wakeups, async_trait};
use rustc_hash::FxBuildHasher;
use tokio::{sync::watch, time::Instant};

use crate::state::{ConditionQueue, NameState};

/// A value of an [`ExpiringMap`].
pub(crate) trait Expire: fmt::Debug + Default + Send + Sync + 'static {
    /// Drops the parts whose time is over.
    fn expire(&mut self, now: Instant);

    /// Returns `true` if the value can be removed: a new one would behave the same.
    fn is_idle(&self) -> bool;

    /// The reason why the subscription for `hold` woke. A direct grant is reported once.
    fn wakeup(&mut self, _hold: &HoldId) -> Wakeup {
        Wakeup::Changed
    }
}

impl Expire for NameState {
    fn expire(&mut self, now: Instant) {
        NameState::expire(self, now);
    }

    fn is_idle(&self) -> bool {
        NameState::is_idle(self)
    }

    fn wakeup(&mut self, hold: &HoldId) -> Wakeup {
        NameState::wakeup(self, hold)
    }
}

impl Expire for ConditionQueue {
    fn expire(&mut self, now: Instant) {
        ConditionQueue::expire(self, now);
    }

    fn is_idle(&self) -> bool {
        ConditionQueue::is_idle(self)
    }
}

/// A concurrent map. An idle value takes no memory.
#[derive(Debug)]
pub(crate) struct ExpiringMap<K: Eq + Hash, V> {
    values: DashMap<K, V, FxBuildHasher>,
    /// The number of values inserted since the last sweep.
    inserted: AtomicUsize,
}

impl<K: Eq + Hash, V> Default for ExpiringMap<K, V> {
    fn default() -> Self {
        Self { values: DashMap::default(), inserted: AtomicUsize::new(0) }
    }
}

impl<K: Clone + Eq + Hash, V: Expire> ExpiringMap<K, V> {
    /// Applies `change` to the value of `key`, which is created if missing and removed if idle
    /// afterwards. The key stays locked meanwhile, so the change is one atomic step.
    pub(crate) fn update<T>(&self, key: &K, change: impl FnOnce(&mut V, Instant) -> T) -> T {
        self.sweep_if_due();
        match self.values.entry(key.clone()) {
            Entry::Vacant(vacant) => {
                let mut value = V::default();
                let result = change(&mut value, Instant::now());
                if !value.is_idle() {
                    vacant.insert(value);
                    self.inserted.fetch_add(1, Ordering::Relaxed);
                }
                result
            }
            Entry::Occupied(mut occupied) => {
                let (value, now) = (occupied.get_mut(), Instant::now());
                value.expire(now);
                let result = change(value, now);
                if value.is_idle() {
                    occupied.remove();
                }
                result
            }
        }
    }

    /// Counts the values that match `predicate`.
    pub(crate) fn count(&self, predicate: impl Fn(&V) -> bool) -> usize {
        self.sweep();
        self.values.iter().filter(|value| predicate(value)).count()
    }

    /// The keys of the values that match `predicate`.
    pub(crate) fn keys(&self, predicate: impl Fn(&V) -> bool) -> Vec<K> {
        self.sweep();
        let matching = self.values.iter().filter(|value| predicate(value));
        matching.map(|value| value.key().clone()).collect()
    }

    /// Removes values that expired and were never asked for again. The cost is amortized: a sweep
    /// visits no more values than were inserted since the last one.
    fn sweep_if_due(&self) {
        const MIN_INSERTED: usize = 256;
        let inserted = self.inserted.load(Ordering::Relaxed);
        if inserted >= MIN_INSERTED && inserted >= self.values.len() {
            self.sweep();
        }
    }

    fn sweep(&self) {
        self.inserted.store(0, Ordering::Relaxed);
        let now = Instant::now();
        self.values.retain(|_, value| {
            value.expire(now);
            !value.is_idle()
        });
    }
}

impl<K, V> ExpiringMap<K, V>
where
    K: fmt::Debug + Clone + Eq + Hash + Send + Sync + 'static,
    V: Expire,
{
    /// Subscribes to the value of `key`, for the waiter that wants `hold`.
    pub(crate) fn subscribe(
        self: &Arc<Self>,
        key: &K,
        hold: Option<HoldId>,
        subscribe: impl FnOnce(&mut V) -> watch::Receiver<()>,
    ) -> Box<dyn Wakeups> {
        let receiver = Some(self.update(key, |value, _| subscribe(value)));
        Box::new(MemorySubscription { map: self.clone(), key: key.clone(), hold, receiver })
    }
}

/// A subscription to one value. Its channel keeps a wake-up that arrives between two calls.
#[derive(Debug)]
struct MemorySubscription<K: Clone + Eq + Hash, V: Expire> {
    map: Arc<ExpiringMap<K, V>>,
    key: K,
    hold: Option<HoldId>,
    /// Dropped before the value is updated for the last time, so that the value sees this
    /// subscriber gone.
    receiver: Option<watch::Receiver<()>>,
}

#[async_trait]
impl<K, V> Wakeups for MemorySubscription<K, V>
where
    K: fmt::Debug + Clone + Eq + Hash + Send + Sync,
    V: Expire,
{
    async fn woken(&mut self) -> Wakeup {
        let Some(receiver) = &mut self.receiver else { return Wakeup::Changed };
        if receiver.changed().await.is_err() {
            // Unreachable: a value with a subscriber is never removed.
            std::future::pending::<()>().await;
        }
        match &self.hold {
            Some(hold) => self.map.update(&self.key, |value, _| value.wakeup(hold)),
            None => Wakeup::Changed,
        }
    }
}

impl<K: Clone + Eq + Hash, V: Expire> Drop for MemorySubscription<K, V> {
    fn drop(&mut self) {
        self.receiver = None;
        self.map.update(&self.key, |_, _| ());
    }
}
