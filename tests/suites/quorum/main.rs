//! The quorum: its promises while a majority of its members is up, and its errors otherwise.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests may panic: that is how they fail"
)]

mod conformance;
mod contention;
#[path = "../critical.rs"]
mod critical;
mod directory;
mod faults;
#[path = "../hooked.rs"]
mod hooked;
mod late;
#[path = "../log.rs"]
mod log;
mod members;
mod ordered;
mod outages;
#[path = "../races.rs"]
mod races;
mod random;
mod reports;
mod servers;
mod splits;
mod tokens;
#[path = "../waiting.rs"]
mod waiting;
mod wakeups;

use std::time::Duration;

use lockcore::{
    FencingToken, LockName,
    backend::{AcquireOutcome, AcquireRequest, Backend, HoldId, ReleaseRequest, RenewRequest},
};
use lockcore_memory::MemoryBackend;
use lockcore_postgres::PostgresBackend;
use lockcore_quorum::Quorum;
use lockcore_testkit::{Faults, Faulty, Op, PostgresServer};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);

/// How long a quorum waits for a member.
const MEMBER_TIMEOUT: Duration = Duration::from_millis(500);

fn name() -> LockName {
    LockName::new("a").unwrap()
}

fn hold(id: &str) -> HoldId {
    HoldId::unique(id)
}

fn request(id: &str) -> AcquireRequest {
    AcquireRequest::new(name(), hold(id), LEASE)
}

fn release(id: &str) -> ReleaseRequest {
    ReleaseRequest::new(name(), hold(id))
}

fn renewal(id: &str) -> RenewRequest {
    RenewRequest::new(name(), hold(id), LEASE)
}

/// The token of a grant.
async fn enters(backend: &impl Backend, id: &str) -> FencingToken {
    let outcome = backend.acquire(&request(id)).await.unwrap();
    let AcquireOutcome::Acquired { token } = outcome else { panic!("{id}: {outcome:?}") };
    token
}

/// The owner stored at a member, if there is one.
async fn owner_at(member: &impl Backend) -> Option<String> {
    let state = member.inspect(&name()).await.unwrap();
    state.holders().first().map(|holder| holder.owner().to_owned())
}

/// Makes the tokens of a new store follow its clock. They are ahead of it for a minute otherwise, as
/// after a failover, and members that do not agree cost exchanges.
async fn follow_clock(server: &PostgresServer) {
    drop(PostgresBackend::connect(server.url()).await.unwrap());
    server.query("UPDATE lockcore.server SET raised = setval('lockcore.token', 1)").await;
}

/// Stores, with a faulty client of each.
struct Bench {
    stores: Vec<MemoryBackend>,
    faults: Vec<Faults>,
    quorum: Quorum,
}

impl Bench {
    fn new(members: usize) -> Self {
        let stores: Vec<_> = (0..members).map(|_| MemoryBackend::new()).collect();
        let (quorum, faults) = client(&stores);
        Self { stores, faults, quorum }
    }

    /// Another client of the same stores, without faults.
    fn other(&self) -> Quorum {
        Quorum::new(self.stores.iter().cloned()).unwrap()
    }

    /// The number of calls to any member.
    fn calls(&self, op: Op) -> usize {
        self.faults.iter().map(|faults| faults.calls(op)).sum()
    }

    async fn owners(&self) -> Vec<Option<String>> {
        let mut owners = Vec::new();
        for store in &self.stores {
            owners.push(owner_at(store).await);
        }
        owners
    }

    async fn is_free_everywhere(&self) -> bool {
        self.owners().await.iter().all(Option::is_none)
    }
}

/// A client of `stores`, with the faults of its members.
fn client(stores: &[MemoryBackend]) -> (Quorum, Vec<Faults>) {
    let members: Vec<_> = stores.iter().cloned().map(Faulty::new).collect();
    let faults = members.iter().map(Faulty::faults).collect();
    (Quorum::new(members).unwrap(), faults)
}
