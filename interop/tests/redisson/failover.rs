//! The primary is killed while both sides hold locks and wait for one of the other.

use std::time::{Duration, Instant};

use lockcore::LockGuard;
use lockcore_interop::{JavaThread, Kind, Lease};
use redis::AsyncCommands;
use tokio::task::JoinSet;

use crate::{
    contention::{Clients, contend_together},
    deployment::{Deployment, Topology},
    report::{Promise, record_on},
    section::Section,
    support::{listened_to, ms, soon, until},
};

/// Longer than a failover, so that the holds outlast it.
const LEASE_OF_HOLDS: Duration = Duration::from_secs(30);

/// The kinds whose holds are kept. One primary has all names.
const KINDS: [Kind; 4] = [Kind::Reentrant, Kind::Fair, Kind::Write, Kind::Permits(1)];
const TAG: &str = "{failover}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_sides_go_on_after_a_failover_of_sentinel() {
    both_sides_go_on(Topology::Sentinel).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_sides_go_on_after_a_failover_of_a_cluster_with_sharded_messages() {
    both_sides_go_on(Topology::ShardedCluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_sides_go_on_after_a_failover_of_a_cluster_with_plain_messages() {
    both_sides_go_on(Topology::PlainCluster).await;
}

async fn both_sides_go_on(topology: Topology) {
    let mut servers = Deployment::start(topology).await;
    let clients = Clients::start(&servers, LEASE_OF_HOLDS).await;
    let holds = hold(&clients).await;
    let mut entries = wait(&clients);
    all_listen(&servers).await;
    replicated(&servers).await;

    let killed = Instant::now();
    servers.kill_primary_of(TAG).await;
    let took = killed.elapsed();
    all_listen(&servers).await;
    let listening = killed.elapsed();
    assert!(entries.try_join_next().is_none(), "the new primary has the holds");
    java_follows(&clients).await;
    let following = killed.elapsed();

    let releasing = Instant::now();
    let [by_rust, by_java] = release(holds).await;
    while let Some(entered) = soon("an entry", entries.join_next()).await {
        entered.unwrap();
    }
    let entered = releasing.elapsed();
    let seen = contend_together(Section::Reentrant, &servers, &clients).await;
    clients.close().await;
    let measured = format!(
        "a replica took over after {}, all waiters listened again after {}, Redisson's \
         clients sent their commands there after {}; then the releases took up to {} in Rust and {} in Java, and the last of {} waiters entered after {}; then {} holds, \
         0 overlaps, 0 lost updates",
        ms(took),
        ms(listening),
        ms(following),
        ms(by_rust),
        ms(by_java),
        2 * KINDS.len(),
        ms(entered),
        seen.holds
    );
    record_on(topology, Section::Failover, Promise::Failover, measured).await;
}

/// A lockcore hold, and a Java thread with the name that it holds.
type Pair = (LockGuard, (JavaThread, String));

/// Makes each side hold a lock of each kind.
async fn hold(clients: &Clients) -> Vec<Pair> {
    let mut pairs = Vec::new();
    for kind in KINDS {
        let guard = kind.ours(&clients.rust[0], &ours(kind)).acquire().await.unwrap();
        let (thread, name) = (clients.java[0].thread_for(kind), theirs(kind));
        thread.prepare(&name).await.unwrap();
        // Java does not renew permits.
        let is_renewed = kind.limit().is_none();
        let lease = if is_renewed { Lease::Watchdog } else { Lease::Fixed(LEASE_OF_HOLDS) };
        thread.acquire(&name, lease).await.unwrap();
        pairs.push((guard, (thread, name)));
    }
    pairs
}

/// Makes each side wait for the other's locks, and release each at once.
fn wait(clients: &Clients) -> JoinSet<()> {
    let mut entries = JoinSet::new();
    for kind in KINDS {
        let waiting = kind.ours(&clients.rust[1], &theirs(kind)).acquire();
        entries.spawn(async move { waiting.await.unwrap().release().await.unwrap() });
        let (thread, name) = (clients.java[1].thread_for(kind), ours(kind));
        let waiting = thread.acquire(&name, Lease::Watchdog);
        entries.spawn(async move {
            waiting.await.unwrap();
            thread.release(&name).await.unwrap();
        });
    }
    entries
}

/// Releases all holds at once. Returns the longest time on each side.
async fn release(holds: Vec<Pair>) -> [Duration; 2] {
    let (mut by_rust, mut by_java) = (JoinSet::new(), JoinSet::new());
    let start = Instant::now();
    for (guard, (thread, name)) in holds {
        by_rust.spawn(async move {
            guard.release().await.unwrap();
            start.elapsed()
        });
        let releasing = thread.release(&name);
        by_java.spawn(async move {
            releasing.await.unwrap();
            start.elapsed()
        });
    }
    let times = [by_rust.join_all().await, by_java.join_all().await];
    times.map(|times| times.into_iter().max().unwrap_or_default())
}

/// Completes when the clients of Redisson send their commands to the new primary. Their waiters may
/// listen before: a cluster delivers a plain message through any node. Until then, a release of
/// theirs may fail.
async fn java_follows(clients: &Clients) {
    for (number, java) in clients.java.iter().enumerate() {
        let (thread, name) = (java.thread_for(Kind::Reentrant), format!("{TAG}:follows:{number}"));
        until("Redisson follows", async || thread.acquire(&name, Lease::Watchdog).await.is_ok())
            .await;
        thread.release(&name).await.unwrap();
    }
}

async fn all_listen(servers: &Deployment) {
    for kind in KINDS {
        listened_to(servers, kind, &ours(kind), 1).await;
        listened_to(servers, kind, &theirs(kind), 1).await;
    }
}

/// Completes when a replica has received all writes so far.
async fn replicated(servers: &Deployment) {
    let client = redis::Client::open(servers.server_of(TAG).await.url()).unwrap();
    let mut primary = client.get_multiplexed_async_connection().await.unwrap();
    let () = primary.set(format!("{TAG}:marker"), "").await.unwrap();
    let replicas = servers.replicas_each();
    let wait = redis::cmd("WAIT").arg(replicas).arg(0).take();
    let reached: usize = soon("the replicas", wait.query_async(&mut primary)).await.unwrap();
    assert!(reached >= replicas);
}

fn ours(kind: Kind) -> String {
    format!("{TAG}:rust:{}", kind.wire())
}

fn theirs(kind: Kind) -> String {
    format!("{TAG}:java:{}", kind.wire())
}
