//! [`Clients`]: identifies the owners on the wire by the records that clients leave at the store.

use std::{collections::HashMap, fmt, sync::Arc};

use lockcore::{BackendErrorKind, ClientInfo, CycleKind, LockError, Waiting, Waits};
use serde::Serialize;

use crate::{pace::Pace, store::Store};

/// The clients that have left a record, and the waits in their records.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clients {
    waits: Arc<Waits>,
    /// The acquisitions that wait for a name, as indices into `waits`.
    by_name: HashMap<String, Vec<usize>>,
}

/// A process, as far as its record describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Who {
    pub(crate) host: Option<String>,
    pub(crate) program: Option<String>,
    pub(crate) pid: Option<u32>,
}

/// A recorded wait of some seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Wait {
    /// The owner, as its client calls it.
    pub(crate) owner: String,
    pub(crate) mode: String,
    pub(crate) seconds: f64,
    /// The line of the program that waits.
    pub(crate) site: String,
    pub(crate) client: Who,
}

/// Clients that wait for each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Deadlock {
    /// The names that they wait for.
    pub(crate) names: Vec<String>,
    /// `false` if it is none when a task does several things side by side, or has given its guard
    /// to another task.
    pub(crate) is_certain: bool,
}

/// Returns `true` if an error says that there are no records, or that this user may not read them.
fn is_beside(kind: BackendErrorKind) -> bool {
    matches!(kind, BackendErrorKind::Unsupported | BackendErrorKind::Permission)
}

impl Clients {
    /// Reads the records. A store without a directory has none. Each request has the limit of the
    /// library, 5 s, however many there are.
    pub(crate) async fn read(store: &Store, pace: &mut Pace) -> Result<Self, LockError> {
        pace.take(1).await;
        let waits = match store.locks.waits().await {
            // The locks can be shown without them.
            Err(LockError::Backend(error)) if is_beside(error.kind()) => Waits::default(),
            waits => waits?,
        };
        let mut by_name: HashMap<String, Vec<usize>> = HashMap::new();
        for (at, waiting) in waits.waiting().iter().enumerate() {
            by_name.entry(waiting.lock().to_owned()).or_default().push(at);
        }
        Ok(Self { waits: Arc::new(waits), by_name })
    }

    /// The process of an owner on the wire.
    pub(crate) fn who(&self, owner: &str) -> Option<Who> {
        self.waits.client_of(owner).map(Who::new)
    }

    /// The recorded waits for the name, the longest first.
    pub(crate) fn waits(&self, name: &str) -> Vec<Wait> {
        let places = self.by_name.get(name).map_or(&[][..], Vec::as_slice);
        let waiting = places.iter().filter_map(|at| self.waits.waiting().get(*at));
        let mut waits: Vec<Wait> = waiting.map(Wait::new).collect();
        waits.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
        waits
    }

    /// The deadlocks, the certain ones first.
    pub(crate) fn deadlocks(&self) -> Vec<Deadlock> {
        let cycles = self.waits.cycles().iter();
        cycles
            .filter(|cycle| cycle.kind() != CycleKind::Passing)
            .map(|cycle| Deadlock {
                names: cycle.links().iter().map(|link| link.waiting().lock().to_owned()).collect(),
                is_certain: cycle.kind() == CycleKind::Deadlock,
            })
            .collect()
    }
}

impl Who {
    fn new(client: &ClientInfo) -> Self {
        let known = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let pid = Some(client.pid()).filter(|pid| *pid != 0);
        Self { host: known(client.host()), program: known(client.program()), pid }
    }
}

impl Wait {
    fn new(waiting: &Waiting) -> Self {
        Self {
            owner: waiting.owner().to_owned(),
            mode: waiting.mode().to_owned(),
            seconds: waiting.waited().as_secs_f64(),
            site: waiting.site().to_owned(),
            client: Who::new(waiting.client()),
        }
    }
}

impl fmt::Display for Who {
    /// Host, program and process id.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pid = self.pid.map(|pid| pid.to_string());
        let words = [self.host.as_deref(), self.program.as_deref(), pid.as_deref()];
        f.write_str(&words.into_iter().flatten().collect::<Vec<_>>().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use std::{process, sync::Arc, time::Duration};

    use lockcore::{ClientDescription, Locks, Owner};
    use lockcore_memory::MemoryBackend;
    use tokio::{sync::Barrier, task::JoinHandle};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn owners_and_waiters_are_found_by_the_records_of_their_clients() {
        let memory = MemoryBackend::new();
        let locks = Locks::new(memory.clone());
        let store = Store { backend: Arc::new(memory.clone()), locks };
        let described = ClientDescription::new().host("web-3").program("shop");
        let service = Locks::builder(memory.clone()).description(described).build().unwrap();
        let guard = service.lock("a").acquire().await.unwrap();
        let silent = Locks::builder(memory).description(None).build().unwrap();
        let waiters = ["a", "b"].map(|_| {
            let lock = service.lock("a");
            tokio::spawn(async move { lock.acquire().await.is_ok() })
        });
        let unknown = silent.lock("c").acquire().await.unwrap();
        tokio::time::sleep(Duration::from_secs(10)).await;
        let clients = Clients::read(&store, &mut Pace::new(0)).await.unwrap();
        let who = clients.who(guard.wire_owner()).unwrap();
        assert_eq!(who.to_string(), format!("web-3 shop {}", process::id()));
        for owner in [unknown.wire_owner(), "named", "", "x:1"] {
            assert_eq!(clients.who(owner), None, "{owner}");
        }
        let waits = clients.waits("a");
        assert_eq!((waits.len(), &waits[0].client), (2, &who));
        assert!(waits[0].seconds > 9.0 && waits[0].site.contains("clients.rs:"), "{waits:?}");
        assert!(clients.waits("c").is_empty() && clients.deadlocks().is_empty());
        drop(guard);
        for waiter in waiters {
            assert!(waiter.await.unwrap());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadlock_of_two_processes_has_the_names_of_its_locks() {
        let memory = MemoryBackend::new();
        let store = Store { backend: Arc::new(memory.clone()), locks: Locks::new(memory.clone()) };
        let both_hold = Arc::new(Barrier::new(2));
        let owners = [("a", "b"), ("b", "a")].map(|(held, wanted)| {
            let (locks, both_hold) = (Locks::new(memory.clone()), Arc::clone(&both_hold));
            tokio::spawn(Owner::new().scope(async move {
                let _guard = locks.lock(held).acquire().await?;
                both_hold.wait().await;
                locks.lock(wanted).acquire().await.map(drop)
            }))
        });
        tokio::time::sleep(Duration::from_secs(10)).await;
        let clients = Clients::read(&store, &mut Pace::new(0)).await.unwrap();
        let mut deadlocks = clients.deadlocks();
        deadlocks.iter_mut().for_each(|deadlock| deadlock.names.sort());
        let names = ["a", "b"].map(str::to_owned).to_vec();
        assert_eq!(deadlocks, [Deadlock { names, is_certain: true }]);
        owners.iter().for_each(JoinHandle::abort);
    }
}
