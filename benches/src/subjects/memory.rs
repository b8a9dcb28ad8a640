//! Locks in the memory of one process: lockcore's, the floor, which is a sharded map of tokio's
//! mutexes, and the minimum for locks with leases.

use std::{
    collections::BTreeMap,
    hint::black_box,
    sync::{
        Arc, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use dashmap::DashMap;
use lockcore::Locks;
use lockcore_memory::MemoryBackend;
use rustc_hash::FxBuildHasher;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::{Mutex, OwnedMutexGuard};
use uuid::Uuid;

use crate::{
    error::{Result, failure},
    measure::load::Lock,
    subjects::lockcore::Handle,
};

/// lockcore on its memory backend.
pub(crate) struct Memory(Locks);

impl Memory {
    pub(crate) fn new() -> Self {
        Self(Locks::new(MemoryBackend::new()))
    }

    pub(crate) fn lock(&self, name: &str) -> Arc<Handle> {
        Arc::new(Handle(self.0.lock(name)))
    }
}

/// Looks up a name in a sharded map, and locks its mutex.
#[derive(Default)]
pub(crate) struct Floor(Arc<DashMap<String, Arc<Mutex<()>>>>);

impl Floor {
    pub(crate) fn lock(&self, name: &str) -> Arc<FloorLock> {
        Arc::new(FloorLock { map: self.0.clone(), name: name.to_owned() })
    }
}

pub(crate) struct FloorLock {
    map: Arc<DashMap<String, Arc<Mutex<()>>>>,
    name: String,
}

impl FloorLock {
    fn mutex(&self) -> Arc<Mutex<()>> {
        if let Some(mutex) = self.map.get(&self.name) {
            return mutex.clone();
        }
        self.map.entry(self.name.clone()).or_default().clone()
    }
}

impl Lock for FloorLock {
    type Hold = OwnedMutexGuard<()>;

    async fn acquire(&self) -> Result<OwnedMutexGuard<()>> {
        Ok(self.mutex().lock_owned().await)
    }

    async fn release(&self, hold: OwnedMutexGuard<()>) -> Result<()> {
        drop(hold);
        Ok(())
    }
}

const LEASE: Duration = Duration::from_secs(30);

/// A store behind a trait, like the backends. It stores the holder of a name and its end, and has a
/// token for each hold.
#[async_trait]
trait Store: Send + Sync {
    async fn acquire(&self, name: &Arc<str>, id: &Arc<str>) -> u64;

    async fn release(&self, name: &Arc<str>, id: &Arc<str>) -> bool;
}

#[derive(Default)]
struct Stored {
    holds: DashMap<Arc<str>, (Arc<str>, Instant), FxBuildHasher>,
    last_token: AtomicU64,
}

#[async_trait]
impl Store for Stored {
    async fn acquire(&self, name: &Arc<str>, id: &Arc<str>) -> u64 {
        self.holds.insert(name.clone(), (id.clone(), Instant::now() + LEASE));
        self.last_token.fetch_add(1, Ordering::Relaxed)
    }

    async fn release(&self, name: &Arc<str>, id: &Arc<str>) -> bool {
        let now = Instant::now();
        self.holds.remove_if(name, |_, (holder, ends)| holder == id && now < *ends).is_some()
    }
}

/// The cost of a pair for any lock with leases, a local queue, ids, tokens, a watchdog and
/// exchangeable stores, one step after another, and nothing else: nobody can wait for it, nothing
/// is ever renewed or lost, and it cannot be cancelled.
pub(crate) struct Least {
    store: Arc<dyn Store>,
    queues: DashMap<Arc<str>, Arc<std::sync::Mutex<()>>, FxBuildHasher>,
    schedule: std::sync::Mutex<BTreeMap<(Instant, u64), Arc<LeastHold>>>,
    prefix: String,
    next: AtomicU64,
    name: Arc<str>,
}

pub(crate) struct LeastHold {
    id: Arc<str>,
    token: u64,
    due: (Instant, u64),
    queue: Arc<std::sync::Mutex<()>>,
}

impl Least {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            store: Arc::new(Stored::default()),
            queues: DashMap::default(),
            schedule: std::sync::Mutex::default(),
            prefix: Uuid::new_v4().to_string(),
            next: AtomicU64::new(0),
            name: name.into(),
        }
    }
}

fn lock<T>(mutex: &std::sync::Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Time that includes the sleep of the host needs two clocks.
fn now() -> Instant {
    black_box(clock_gettime(ClockId::Boottime));
    Instant::now()
}

impl Lock for Least {
    type Hold = Arc<LeastHold>;

    async fn acquire(&self) -> Result<Arc<LeastHold>> {
        let queue = self.queues.entry(self.name.clone()).or_default().clone();
        drop(lock(&queue));
        let sent = now();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let id: Arc<str> = format!("{}:{number}", self.prefix).into();
        let token = self.store.acquire(&self.name, &id).await;
        if now() >= sent + LEASE {
            return Err(failure("the lease is over"));
        }
        let hold = Arc::new(LeastHold { id, token, due: (sent + LEASE / 3, number), queue });
        lock(&self.schedule).insert(hold.due, hold.clone());
        drop(lock(&hold.queue));
        Ok(hold)
    }

    async fn release(&self, hold: Arc<LeastHold>) -> Result<()> {
        if now() >= hold.due.0 + LEASE {
            return Err(failure("the lease is over"));
        }
        lock(&self.schedule).remove(&hold.due);
        let released = self.store.release(&self.name, &hold.id).await;
        drop(lock(&hold.queue));
        self.queues.remove(&self.name);
        match released {
            true => Ok(()),
            false => Err(failure(format!("the hold with token {} is gone", hold.token))),
        }
    }
}
