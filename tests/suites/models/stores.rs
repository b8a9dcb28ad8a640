//! The stores to test, and what some of them do in another way than the memory backend.

use std::{any::Any, sync::Arc, time::Duration};

use lockcore::backend::Backend;
use lockcore_etcd::EtcdBackend;
use lockcore_memory::MemoryBackend;
use lockcore_postgres::PostgresBackend;
use lockcore_redis::RedisBackend;
use lockcore_testkit::{EtcdCluster, PostgresServer, RedisServer};
use tokio::runtime::{Builder, Runtime};

/// What the contract leaves open, and not every store does as the memory backend does it.
///
/// A store has the differences that are listed with it below, and no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Difference {
    /// The queue of a fair lock is Redisson's. The holds of one named owner share a place (C18), a
    /// place behind others is kept for longer than requested, and those who wait are told times
    /// that count it.
    RedissonQueue,
    /// The same id in another mode is another hold. No clause says what it is, since an acquisition
    /// has an id of its own, and one mode. Without this, no such requests are made.
    HoldInEachMode,
    /// Among the holds of one client, the store knows which is older. A request for that one is
    /// late, and is refused instead of taking the newer one over (C6).
    RefusesOlderHolds,
    /// A fair hold is reported as an exclusive one (C14).
    ReportsFairAsExclusive,
    /// A place whose hold gives several times as it asks again is kept for the longest of them, and
    /// not for the last one (C19, C25). The core gives the same one each time.
    KeepsPlacesForTheLongestTime,
    /// A name that somebody waits for, and nobody holds, may be used as another kind (C21).
    WaitersDoNotUseTheName,
    /// A semaphore stays in use, with its number, after all its permits have come back (C21).
    KeepsIdleSemaphores,
    /// The number of plain permits is unknown, and so is whether there are too few (C28).
    CountsNoPlainPermits,
    /// A waiter that has left without a place cannot join any more (C35): its request would be a
    /// late one, because each wait has a name of its own.
    KeepsWhoHasLeftOut,
}

/// The differences of a store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Differences(&'static [Difference]);

impl Differences {
    pub(crate) fn has(self, difference: Difference) -> bool {
        self.0.contains(&difference)
    }
}

/// A store with one client.
pub(crate) struct Store {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) runtime: Runtime,
    pub(crate) differences: Differences,
    /// How many times fewer sequences are sent than to Redis, so that the test takes as long.
    pub(crate) slowness: u32,
    /// The server is up as long as this exists.
    _server: Box<dyn Any>,
}

impl Store {
    fn new<B: Backend, S: 'static>(
        server: S,
        connect: impl AsyncFnOnce(&S) -> B,
        differences: &'static [Difference],
    ) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let backend = Arc::new(runtime.block_on(connect(&server)));
        let differences = Differences(differences);
        Self { backend, runtime, differences, slowness: 1, _server: Box::new(server) }
    }

    /// Whether a lease of a millisecond has ended soon. Where leases are whole seconds, no test of
    /// hundreds of sequences can wait for them, and the leases are so long that none ends. The
    /// conformance kit has the cases for their ends.
    pub(crate) fn ends_leases_soon(&self) -> bool {
        self.backend.limits().shortest_lease <= Duration::from_millis(1)
    }
}

/// The reference.
pub(crate) fn memory() -> Store {
    Store::new(MemoryBackend::new(), async |store| store.clone(), &[])
}

pub(crate) fn redis() -> Store {
    let differences = &[
        Difference::RedissonQueue,
        Difference::HoldInEachMode,
        Difference::RefusesOlderHolds,
        Difference::ReportsFairAsExclusive,
        Difference::WaitersDoNotUseTheName,
        Difference::KeepsIdleSemaphores,
        Difference::CountsNoPlainPermits,
    ];
    let connect = async |server: &RedisServer| RedisBackend::connect(server.url()).await.unwrap();
    Store::new(RedisServer::start(), connect, differences)
}

/// A server that all tests share, each with names of its own.
pub(crate) fn postgres() -> Store {
    let connect = async |server: &Arc<_>| {
        PostgresBackend::connect(PostgresServer::url(server)).await.unwrap()
    };
    let differences = &[Difference::KeepsWhoHasLeftOut];
    Store { slowness: 2, ..Store::new(PostgresServer::shared(), connect, differences) }
}

/// A single server that all tests share, each with names of its own.
///
/// The decisions, which are what is tested here, are made in transactions, and those are the same
/// on any number of members. The conformance kit runs on three, which have more to do for each
/// request: here there would be fewer sequences.
pub(crate) fn etcd() -> Store {
    let connect =
        async |server: &Arc<_>| EtcdBackend::connect(EtcdCluster::addresses(server)).await.unwrap();
    let differences = &[Difference::KeepsPlacesForTheLongestTime];
    Store { slowness: 4, ..Store::new(EtcdCluster::shared(), connect, differences) }
}
