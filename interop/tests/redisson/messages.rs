//! Clients of a cluster with different messages.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use lockcore::Locks;
use lockcore_interop::{JavaThread, Lease};
use lockcore_redis::ClusterMessages;

use crate::{
    deployment::Deployment,
    report::{Promise, record_on},
    section::Section,
    support::{LEASE, SLACK, java, ms, soon, until},
    wakeups::Measured,
};

/// The sets of channels, as subcommands that count listeners.
const PLAIN: &str = "NUMSUB";
const SHARDED: &str = "SHARDNUMSUB";

const ROUNDS: usize = 33;

pub(crate) async fn of_either_set_reach_both(servers: &Arc<Deployment>) {
    let locks = servers.locks_with(ClusterMessages::Both, LEASE).await;
    let mut measured = Measured::default();
    for set in [SHARDED, PLAIN] {
        let configuration = servers.configuration(LEASE);
        let configuration =
            if set == PLAIN { configuration.plain_messages() } else { configuration };
        let redisson = java().connect(&configuration).await.unwrap();
        let called = if set == PLAIN { "plain" } else { "sharded" };
        for round in 0..ROUNDS {
            let pair = Pair {
                servers,
                locks: &locks,
                thread: redisson.thread(),
                name: format!("either:{called}:{round}"),
                before_release: Duration::ZERO,
            };
            let waited = pair.rust_waits(&[SHARDED, PLAIN]).await;
            measured.add_to(&format!("Rust, by Java with {called} messages"), waited);
            let waited = pair.java_waits(set).await;
            measured.add_to(&format!("Java with {called} messages"), waited);
        }
        redisson.close().await.unwrap();
    }
    locks.close().await.unwrap();
    let measured = measured.within_limit();
    record_on(servers.topology(), Section::Reentrant, Promise::BothMessages, measured).await;
}

pub(crate) async fn of_the_other_set_are_missed(servers: &Arc<Deployment>) {
    let locks = servers.locks_with(ClusterMessages::Sharded, LEASE).await;
    let configuration = servers.configuration(LEASE).plain_messages();
    let redisson = java().connect(&configuration).await.unwrap();
    let thread = redisson.thread();
    let before_release = Duration::from_millis(500);
    let pair = Pair { servers, locks: &locks, thread, name: "missed".to_owned(), before_release };
    let rust = pair.rust_waits(&[SHARDED]).await;
    let java = pair.java_waits(PLAIN).await;
    redisson.close().await.unwrap();
    locks.close().await.unwrap();
    for waited in [rust, java] {
        assert!(waited > SLACK && waited < LEASE + SLACK, "until the end of the lease: {waited:?}");
    }
    let measured = format!(
        "Rust entered {}, Java {} after the release: when the lease of {} ms that they saw would \
         have ended",
        ms(rust),
        ms(java),
        LEASE.as_millis()
    );
    record_on(servers.topology(), Section::Reentrant, Promise::OtherMessages, measured).await;
}

/// A lockcore client and a Java thread that want the same lock.
struct Pair<'a> {
    servers: &'a Deployment,
    locks: &'a Locks,
    thread: JavaThread,
    name: String,
    /// A waiter tries once more after it has subscribed. Nothing shows that it sleeps after that.
    before_release: Duration,
}

impl Pair<'_> {
    /// How long Java waits after lockcore's release.
    async fn java_waits(&self, set: &str) -> Duration {
        let guard = self.locks.lock(&self.name).acquire().await.unwrap();
        let waiting = self.thread.acquire(&self.name, Lease::Watchdog);
        self.listens(set).await;
        tokio::time::sleep(self.before_release).await;
        let start = Instant::now();
        guard.release().await.unwrap();
        soon("Java's entry", waiting).await.unwrap();
        let waited = start.elapsed();
        self.thread.release(&self.name).await.unwrap();
        waited
    }

    /// How long lockcore waits after Java's release.
    async fn rust_waits(&self, sets: &[&str]) -> Duration {
        self.thread.acquire(&self.name, Lease::Watchdog).await.unwrap();
        let waiting = tokio::spawn(self.locks.lock(&self.name).acquire());
        for set in sets {
            self.listens(set).await;
        }
        tokio::time::sleep(self.before_release).await;
        let start = Instant::now();
        let releasing = self.thread.release(&self.name);
        let guard = soon("our entry", waiting).await.unwrap().unwrap();
        let waited = start.elapsed();
        releasing.await.unwrap();
        guard.release().await.unwrap();
        waited
    }

    /// Completes when there is a subscriber.
    async fn listens(&self, set: &str) {
        let channel = format!("redisson_lock__channel:{{{}}}", self.name);
        until("the subscription", async || self.servers.subscribers_of(set, &channel).await > 0)
            .await;
    }
}
