//! Two servers of three are killed, one after the other: once on a quorum of Redis servers, and once on a cluster of etcd. The code that uses
//! the locks is the same; only the backend that is passed in differs.
//!
//! ```text
//! cargo run --example outlive_a_server
//! ```
//!
//! It starts the servers itself, and needs `redis-server` and `etcd`.

use std::{process::ExitCode, time::Duration};

use lockcore::{LockError, Locks};
use lockcore_etcd::EtcdBackend;
use lockcore_examples::{Failure, Story, claim, without_arguments};
use lockcore_quorum::Quorum;
use lockcore_redis::RedisBackend;
use lockcore_testkit::{EtcdCluster, RedisServer};

/// So short only to keep the example short.
const LEASE: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() -> ExitCode {
    without_arguments("outlive_a_server", async || {
        let story = Story::begin("A lock that outlives its server");
        story.line("\nOn a quorum of three Redis servers");
        outlive_a_server(&story, Servers::Redis((0..3).map(|_| RedisServer::start()).collect()))
            .await?;
        story.line("\nOn three members of etcd");
        outlive_a_server(&story, Servers::Etcd(EtcdCluster::start(3))).await
    })
    .await
}

/// Three servers that hold the locks together.
enum Servers {
    Redis(Vec<RedisServer>),
    Etcd(EtcdCluster),
}

impl Servers {
    /// A new client of all three, as if in another process.
    async fn client(&self) -> Result<Locks, Failure> {
        let builder = match self {
            Self::Redis(servers) => {
                let mut quorum = Quorum::builder();
                for url in servers.iter().map(RedisServer::url) {
                    quorum = quorum.member_from(move || RedisBackend::connect(url.clone()));
                }
                let quorum = quorum
                    // These servers keep nothing on disk. One that comes back must not help a
                    // second owner to a majority while there may be holds that it has forgotten.
                    .rejoin_after(LEASE)
                    .connect();
                Locks::builder(quorum.await?)
            }
            Self::Etcd(cluster) => Locks::builder(EtcdBackend::connect(cluster.addresses()).await?),
        };
        Ok(builder.lease(LEASE).build()?)
    }

    fn kill(&mut self, index: usize) {
        match self {
            Self::Redis(servers) => servers[index].kill(),
            Self::Etcd(cluster) => cluster.kill(index),
        }
    }

    fn restart(&mut self, index: usize) {
        match self {
            Self::Redis(servers) => servers[index].restart(),
            Self::Etcd(cluster) => cluster.restart(index),
        }
    }
}

async fn outlive_a_server(story: &Story, mut servers: Servers) -> Result<(), Failure> {
    let (one, two) = (servers.client().await?, servers.client().await?);

    story.chapter("1. All three are up");
    let guard = one.lock("report").acquire().await?;
    story.tell("one", format_args!("has the lock, with token {}", guard.token()));

    story.chapter("2. One is killed, and everything goes on");
    servers.kill(0);
    story.tell("server", "is killed");
    let waited = two.lock("report").acquire_timeout(LEASE / 2).await;
    claim(matches!(waited, Err(LockError::Timeout { .. })), "the others have the lock")?;
    story.tell("two", "is kept out");
    let renewed = tokio::time::timeout(LEASE * 2, guard.lost()).await.is_err();
    claim(renewed && guard.is_held(), "the lease is renewed at the others")?;
    story.tell("one", "has renewed its lease, and releases the lock");
    let earlier = guard.token();
    guard.release().await?;
    let guard = two.lock("report").acquire().await?;
    claim(guard.token() > earlier, "tokens rise")?;
    story.tell("two", format_args!("has the lock, with token {}", guard.token()));

    story.chapter("3. A second one is killed, so there is no majority any more");
    servers.kill(1);
    story.tell("server", "is killed");
    match one.lock("another").try_acquire().await {
        Ok(_) => return Err("one of three has granted a lock".into()),
        Err(error) => {
            story.tell("one", "gets an error:");
            story.add(error);
        }
    }
    let loss = guard.lost().await;
    story.tell("two", "is told when its lease ends:");
    story.add(loss);
    let earlier = guard.token();
    drop(guard);

    story.chapter("4. It is started again");
    servers.restart(1);
    story.tell("server", "is up");
    let guard = one.lock("report").acquire_timeout(LEASE * 5).await?;
    claim(guard.token() > earlier, "tokens still rise")?;
    story.tell("one", format_args!("has the lock, with token {}", guard.token()));
    guard.release().await?;
    one.close().await?;
    two.close().await?;
    Ok(())
}
