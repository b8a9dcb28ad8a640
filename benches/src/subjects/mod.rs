//! The subjects of the comparison.

pub(crate) mod advisory;
pub(crate) mod async_redis_lock;
pub(crate) mod distkit;
pub(crate) mod etcd_lock;
pub(crate) mod floor;
pub(crate) mod go;
pub(crate) mod lockcore;
pub(crate) mod memory;
mod nodes;
pub(crate) mod redisson;
pub(crate) mod rslock;

use std::{pin::Pin, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    error::{Result, failure},
    measure::load::Lock,
};

/// A lock library, with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Subject {
    /// lockcore.
    Lockcore,
    /// The fair lock of lockcore. Only where two processes hand a lock back and forth.
    LockcoreFair,
    /// The minimum cost of lockcore's commands: see [`floor`].
    Floor,
    /// rslock with its default pauses between attempts.
    Rslock,
    /// rslock with pauses of up to 5 ms.
    RslockFast,
    AsyncRedisLock,
    Distkit,
    /// On the JVM, with its own defaults.
    Redisson,
    /// In Go, with its default pauses between attempts.
    Redsync,
    /// In Go, with pauses of 5 ms.
    RedsyncFast,
    /// In Go.
    Rueidislock,
    /// In Go.
    Redislock,
    /// The advisory locks of PostgreSQL.
    AdvisoryLock,
    /// The lock service of etcd.
    EtcdLock,
}

/// The runtime of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runtime {
    Rust,
    Java,
    Go,
}

/// An ability that a scenario requires of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ability {
    /// To acquire and release.
    Pairs,
    /// To wait for another holder's release.
    Waiting,
    /// To renew a hold for as long as it exists.
    Renewal,
    /// To re-enter a hold.
    Nesting,
    /// To be measured by the memory of its process.
    Footprint,
    /// To find the primary of a name in a cluster, or to be given one for each.
    Cluster,
}

impl Subject {
    /// Those that run on Redis.
    pub(crate) const ALL: [Self; 12] = [
        Self::Lockcore,
        Self::LockcoreFair,
        Self::Floor,
        Self::Rslock,
        Self::RslockFast,
        Self::AsyncRedisLock,
        Self::Distkit,
        Self::Redisson,
        Self::Redsync,
        Self::RedsyncFast,
        Self::Rueidislock,
        Self::Redislock,
    ];

    /// The subjects that only run on one other store, where a scenario says so.
    pub(crate) const OF_OTHER_STORES: [Self; 2] = [Self::AdvisoryLock, Self::EtcdLock];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lockcore => "lockcore",
            Self::LockcoreFair => "lockcore (fair)",
            Self::Floor => "floor",
            Self::Rslock => "rslock",
            Self::RslockFast => "rslock (5 ms)",
            Self::AsyncRedisLock => "async-redis-lock",
            Self::Distkit => "distkit",
            Self::Redisson => "Redisson",
            Self::Redsync => "redsync",
            Self::RedsyncFast => "redsync (5 ms)",
            Self::Rueidislock => "rueidislock",
            Self::Redislock => "redislock",
            Self::AdvisoryLock => "pg_advisory_lock",
            Self::EtcdLock => "etcd-client",
        }
    }

    pub(crate) fn runtime(self) -> Runtime {
        match self {
            Self::Redisson => Runtime::Java,
            Self::Redsync | Self::RedsyncFast | Self::Rueidislock | Self::Redislock => Runtime::Go,
            _ => Runtime::Rust,
        }
    }

    /// Returns `true` if it is a third-party library.
    pub(crate) fn is_peer(self) -> bool {
        !matches!(self, Self::Lockcore | Self::LockcoreFair | Self::Floor)
    }

    /// Why it lacks this ability, if it does.
    pub(crate) fn cannot(self, ability: Ability) -> Option<&'static str> {
        match (self, ability) {
            (Self::RslockFast | Self::RedsyncFast, Ability::Pairs) => {
                Some("the pause between attempts has no part in this")
            }
            (Self::Floor, Ability::Waiting) => Some("bare commands wait for nobody"),
            (Self::Floor, Ability::Renewal) => Some("it renews nothing"),
            (Self::Floor, Ability::Footprint) => Some("it keeps nothing"),
            (Self::Rslock | Self::RslockFast, Ability::Renewal) => {
                Some("what `acquire` returns is not renewed, only what `using` runs in")
            }
            (Self::Redsync | Self::RedsyncFast | Self::Redislock, Ability::Renewal) => {
                Some("its user has to renew what is held")
            }
            (Self::RslockFast, Ability::Footprint) => Some("the same as with longer pauses"),
            (Self::Lockcore | Self::Redisson, Ability::Nesting) => None,
            (_, Ability::Nesting) => Some("it is not reentrant"),
            (_, Ability::Footprint) if self.runtime() != Runtime::Rust => {
                Some("a heap with a collector does not tell")
            }
            (Self::AsyncRedisLock | Self::Distkit, Ability::Cluster) => Some("it knows no cluster"),
            _ => None,
        }
    }

    /// The commands that it sends. The calls inside its scripts are not included, except for the
    /// batched releases of lockcore.
    pub(crate) fn commands(self) -> &'static [&'static str] {
        match self {
            Self::Lockcore => &[
                "evalsha",
                "eval",
                "multi",
                "restore",
                "incrby",
                "exec",
                "hdel",
                "publish",
                "subscribe",
                "unsubscribe",
                "ping",
            ],
            Self::LockcoreFair | Self::Redisson => {
                &["evalsha", "eval", "subscribe", "unsubscribe", "ping"]
            }
            Self::Floor => &["multi", "restore", "incrby", "exec", "hdel", "publish"],
            Self::Rslock | Self::RslockFast => &["set", "evalsha", "eval", "ping"],
            Self::AsyncRedisLock => &["evalsha", "eval", "ping"],
            Self::Distkit => &["set", "evalsha", "eval", "ping"],
            Self::Redsync | Self::RedsyncFast => &["set", "evalsha", "eval", "ping"],
            Self::Rueidislock | Self::Redislock => &["evalsha", "eval", "ping"],
            Self::AdvisoryLock | Self::EtcdLock => &[],
        }
    }

    /// The key where it keeps the lock of a name.
    pub(crate) fn key(self, name: &str) -> String {
        match self {
            Self::Distkit => format!("distkit-locks:{name}"),
            Self::Rueidislock => format!("rueidislock:0:{name}"),
            _ => name.to_owned(),
        }
    }
}

/// A client of a subject, on one server.
pub(crate) enum Peer {
    Lockcore(lockcore::Peer),
    LockcoreFair(lockcore::Peer),
    Floor(floor::Peer),
    Rslock(rslock::Peer),
    AsyncRedisLock(async_redis_lock::Peer),
    Distkit(distkit::Peer),
    AdvisoryLock(advisory::Peer),
    EtcdLock(Box<etcd_lock::Peer>),
}

impl Peer {
    /// A client whose holds have this lease. Other runtimes have separate clients: [`redisson`],
    /// [`go`].
    pub(crate) async fn connect(subject: Subject, url: &str, lease: Duration) -> Result<Self> {
        Ok(match subject {
            Subject::Lockcore => Self::Lockcore(lockcore::Peer::connect(url, lease).await?),
            Subject::LockcoreFair => Self::LockcoreFair(lockcore::Peer::connect(url, lease).await?),
            Subject::Floor => Self::Floor(floor::Peer::connect(url, lease).await?),
            Subject::Rslock => Self::Rslock(rslock::Peer::connect(url, lease, None).await?),
            Subject::RslockFast => {
                let pause = Some(Duration::from_millis(5));
                Self::Rslock(rslock::Peer::connect(url, lease, pause).await?)
            }
            Subject::AsyncRedisLock => {
                Self::AsyncRedisLock(async_redis_lock::Peer::connect(url, lease).await?)
            }
            Subject::Distkit => Self::Distkit(distkit::Peer::connect(url, lease).await?),
            Subject::AdvisoryLock => Self::AdvisoryLock(advisory::Peer::new(url)),
            Subject::EtcdLock => {
                Self::EtcdLock(Box::new(etcd_lock::Peer::connect(url, lease).await?))
            }
            other => {
                return Err(failure(format!("{} does not run in this process", other.name())));
            }
        })
    }

    pub(crate) fn lock(&self, name: &str) -> Result<Arc<AnyLock>> {
        Ok(Arc::new(match self {
            Self::Lockcore(client) => AnyLock::Lockcore(client.lock(name)),
            Self::LockcoreFair(client) => AnyLock::Lockcore(client.fair_lock(name)),
            Self::Floor(client) => AnyLock::Floor(client.lock(name)),
            Self::Rslock(client) => AnyLock::Rslock(client.lock(name)),
            Self::AsyncRedisLock(client) => AnyLock::AsyncRedisLock(client.lock(name)),
            Self::Distkit(client) => AnyLock::Distkit(client.lock(name)?),
            Self::AdvisoryLock(client) => AnyLock::AdvisoryLock(client.lock(name)),
            Self::EtcdLock(client) => AnyLock::EtcdLock(Box::new(client.lock(name))),
        }))
    }

    /// Acquires and releases once. The future has its own size, because waiters are measured in
    /// bytes.
    pub(crate) fn turn(&self, name: &str) -> Result<Turn> {
        Ok(match self {
            Self::Lockcore(client) => Box::pin(turn(client.lock(name))),
            Self::LockcoreFair(client) => Box::pin(turn(client.fair_lock(name))),
            Self::Floor(client) => Box::pin(turn(client.lock(name))),
            Self::Rslock(client) => Box::pin(turn(client.lock(name))),
            Self::AsyncRedisLock(client) => Box::pin(turn(client.lock(name))),
            Self::Distkit(client) => Box::pin(turn(client.lock(name)?)),
            Self::AdvisoryLock(client) => Box::pin(turn(client.lock(name))),
            Self::EtcdLock(client) => Box::pin(turn(client.lock(name))),
        })
    }

    /// One lock for each task: with its own name, or all with the same name.
    pub(crate) fn locks(&self, names: &Names, tasks: usize) -> Result<Vec<Arc<AnyLock>>> {
        (0..tasks).map(|task| self.lock(&names.of(task))).collect()
    }
}

/// Completes when a lock was acquired and released.
pub(crate) type Turn = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

#[allow(clippy::manual_async_fn, reason = "an `async fn` would have room for the lock twice")]
fn turn<L: Lock>(lock: L) -> impl Future<Output = Result<()>> + Send {
    async move {
        let hold = lock.acquire().await?;
        lock.release(hold).await
    }
}

/// The names of the locks of several tasks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Names {
    One(String),
    Each(String),
}

impl Names {
    pub(crate) fn of(&self, task: usize) -> String {
        match self {
            Self::One(name) => name.clone(),
            Self::Each(prefix) => format!("{prefix}-{task}"),
        }
    }
}

/// A lock of any subject. The dispatch costs a nanosecond.
pub(crate) enum AnyLock {
    Lockcore(lockcore::Handle),
    Floor(floor::Handle),
    Rslock(rslock::Handle),
    AsyncRedisLock(async_redis_lock::Handle),
    Distkit(distkit::Handle),
    AdvisoryLock(advisory::Handle),
    EtcdLock(Box<etcd_lock::Handle>),
}

/// A hold of any subject. Boxed, so that one of lockcore is not as large as the largest of the
/// others.
pub(crate) enum AnyHold {
    Lockcore(<lockcore::Handle as Lock>::Hold),
    Floor,
    Rslock(Box<<rslock::Handle as Lock>::Hold>),
    AsyncRedisLock(Box<<async_redis_lock::Handle as Lock>::Hold>),
    Distkit(Box<<distkit::Handle as Lock>::Hold>),
    AdvisoryLock,
    EtcdLock(<etcd_lock::Handle as Lock>::Hold),
}

impl Lock for AnyLock {
    type Hold = AnyHold;

    async fn acquire(&self) -> Result<AnyHold> {
        Ok(match self {
            Self::Lockcore(lock) => AnyHold::Lockcore(lock.acquire().await?),
            Self::Floor(lock) => {
                lock.acquire().await?;
                AnyHold::Floor
            }
            Self::Rslock(lock) => AnyHold::Rslock(Box::new(lock.acquire().await?)),
            Self::AsyncRedisLock(lock) => AnyHold::AsyncRedisLock(Box::new(lock.acquire().await?)),
            Self::Distkit(lock) => AnyHold::Distkit(Box::new(lock.acquire().await?)),
            Self::AdvisoryLock(lock) => {
                lock.acquire().await?;
                AnyHold::AdvisoryLock
            }
            Self::EtcdLock(lock) => AnyHold::EtcdLock(lock.acquire().await?),
        })
    }

    async fn release(&self, hold: AnyHold) -> Result<()> {
        match (self, hold) {
            (Self::Lockcore(lock), AnyHold::Lockcore(hold)) => lock.release(hold).await,
            (Self::Floor(lock), AnyHold::Floor) => lock.release(()).await,
            (Self::Rslock(lock), AnyHold::Rslock(hold)) => lock.release(*hold).await,
            (Self::AsyncRedisLock(lock), AnyHold::AsyncRedisLock(hold)) => {
                lock.release(*hold).await
            }
            (Self::Distkit(lock), AnyHold::Distkit(hold)) => lock.release(*hold).await,
            (Self::AdvisoryLock(lock), AnyHold::AdvisoryLock) => lock.release(()).await,
            (Self::EtcdLock(lock), AnyHold::EtcdLock(hold)) => lock.release(hold).await,
            _ => Err(failure("the hold belongs to somebody else's lock")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::server::Server;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_subject_acquires_and_releases_under_the_key_that_is_said() {
        let server = Server::start().await.unwrap();
        let in_rust = |subject: &Subject| subject.runtime() == Runtime::Rust;
        for subject in Subject::ALL.into_iter().filter(in_rust) {
            let client =
                Peer::connect(subject, &server.url(), Duration::from_secs(30)).await.unwrap();
            let before = server.calls().await.unwrap();
            let lock = client.lock("name").unwrap();
            let hold = lock.acquire().await.unwrap();
            let keys = [subject.key("name")];
            assert!(server.left(&keys).await.unwrap()[0] > 29_000, "{subject:?} holds");
            lock.release(hold).await.unwrap();
            assert!(server.left(&keys).await.unwrap()[0] < 0, "{subject:?} has released");
            // A script that the server does not know yet is sent twice, and the floor has six
            // commands. The connection on which lockcore has tested messages may close now.
            let commands: Vec<_> = subject
                .commands()
                .iter()
                .copied()
                .filter(|command| *command != "unsubscribe")
                .collect();
            let calls = server.calls().await.unwrap().since(&before).of(&commands);
            assert!((2..=6).contains(&calls), "{subject:?}: {calls} commands");
        }
    }
}
