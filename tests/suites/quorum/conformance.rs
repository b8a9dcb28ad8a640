//! The quorum passes the kit: over memory, over five Redis servers, and over members of three
//! kinds.

use std::sync::{Arc, Weak};

use lockcore::LockName;
use lockcore_memory::MemoryBackend;
use lockcore_postgres::PostgresBackend;
use lockcore_quorum::Quorum;
use lockcore_redis::RedisBackend;
use lockcore_testkit::{
    Fixture, Interrupts, On, PostgresServer, Proxy, RedisServer, Withholds, conformance_tests,
};
use tokio::sync::Mutex;

use crate::{
    follow_clock,
    ordered::{Ordered, Releases},
};

mod three_in_memory {
    use super::{MemoryFixture, conformance_tests};

    conformance_tests!(MemoryFixture<3>, hand_over, directory, paused);
}

/// With an even number of members, tokens have to be agreed on more often.
mod two_in_memory {
    use super::{MemoryFixture, conformance_tests};

    conformance_tests!(MemoryFixture<2>, hand_over, directory, paused);
}

mod five_servers {
    use super::{ServerFixture, conformance_tests};

    conformance_tests!(ServerFixture, hand_over, directory);
}

mod mixed {
    use super::{MixedFixture, conformance_tests};

    conformance_tests!(MixedFixture, hand_over, directory);
}

pub(crate) struct MemoryFixture<const N: usize>([MemoryBackend; N]);

impl<const N: usize> Fixture for MemoryFixture<N> {
    type Backend = Quorum;

    async fn set_up() -> Self {
        Self(std::array::from_fn(|_| MemoryBackend::new()))
    }

    async fn client(&self) -> Quorum {
        Quorum::new(self.0.clone()).unwrap()
    }

    async fn left_behind(&self, _: &LockName) -> Vec<String> {
        let names = self.0.iter().map(MemoryBackend::names_in_use).sum();
        (0..names).map(|number| format!("name {number} in use")).collect()
    }
}

/// Five servers for all tests. They are stopped when no test uses them.
async fn servers() -> Arc<[RedisServer; 5]> {
    static SHARED: Mutex<Weak<[RedisServer; 5]>> = Mutex::const_new(Weak::new());
    let mut shared = SHARED.lock().await;
    if let Some(servers) = shared.upgrade() {
        return servers;
    }
    let servers = Arc::new(std::array::from_fn(|_| RedisServer::start()));
    *shared = Arc::downgrade(&servers);
    servers
}

/// The keys and channels of `name` that remain at the servers.
async fn left_at(servers: &[RedisServer], name: &LockName) -> Vec<String> {
    let mut left = Vec::new();
    for server in servers {
        left.extend(server.keys_without_expiry().await);
        left.extend(server.channels().await);
    }
    left.retain(|left| left.contains(name.as_str()));
    left
}

pub(crate) struct ServerFixture {
    servers: Arc<[RedisServer; 5]>,
    releases: [Releases; 5],
}

impl Fixture for ServerFixture {
    type Backend = Quorum;

    async fn set_up() -> Self {
        Self { servers: servers().await, releases: Default::default() }
    }

    async fn client(&self) -> Quorum {
        let members = self.servers.iter().map(RedisServer::url).zip(self.releases.clone());
        let members = members.fold(Quorum::builder(), |members, (url, releases)| {
            members.member_from(move || {
                let (connecting, releases) = (RedisBackend::connect(url.clone()), releases.clone());
                async move { Ok(Ordered::new(connecting.await?, &releases)) }
            })
        });
        members.connect().await.unwrap()
    }

    async fn left_behind(&self, name: &LockName) -> Vec<String> {
        left_at(&self.servers[..], name).await
    }
}

/// A network between the clients and the servers that can break, for all of them at once.
struct Interrupted(ServerFixture, Vec<Proxy>);

impl Fixture for Interrupted {
    type Backend = Quorum;

    async fn set_up() -> Self {
        let (fixture, mut proxies) = (ServerFixture::set_up().await, Vec::new());
        for server in &fixture.servers[..3] {
            proxies.push(Proxy::start(server.port()).await.unwrap());
        }
        Self(fixture, proxies)
    }

    async fn client(&self) -> Quorum {
        let members = self.1.iter().map(Proxy::url).fold(Quorum::builder(), |members, url| {
            members.member_from(move || RedisBackend::connect(url.clone()))
        });
        members.connect().await.unwrap()
    }

    async fn left_behind(&self, name: &LockName) -> Vec<String> {
        self.0.left_behind(name).await
    }
}

impl Interrupts for Interrupted {
    async fn interrupt(&self) {
        self.1.iter().for_each(Proxy::reset);
    }
}

impl Withholds for Interrupted {
    async fn withhold(&self) {
        self.1.iter().for_each(|proxy| proxy.freeze(On::All));
    }

    async fn abandon(&self) {
        self.1.iter().for_each(Proxy::abandon);
    }

    async fn deliver(&self) {
        for proxy in &self.1 {
            proxy.deliver().await;
        }
    }
}

mod interruptions {
    lockcore_testkit::interruption_tests!(super::Interrupted, late);
}

/// Each member is another kind of store.
pub(crate) struct MixedFixture {
    memory: MemoryBackend,
    redis: Arc<[RedisServer; 5]>,
    postgres: Arc<PostgresServer>,
    releases: [Releases; 3],
}

impl Fixture for MixedFixture {
    type Backend = Quorum;

    async fn set_up() -> Self {
        // Before any case uses it: a hold keeps its token whoever answers only if all agree on it.
        static FOLLOWS_CLOCK: Mutex<Weak<PostgresServer>> = Mutex::const_new(Weak::new());
        let (memory, redis) = (MemoryBackend::new(), servers().await);
        let postgres = PostgresServer::shared();
        let mut follows = FOLLOWS_CLOCK.lock().await;
        if !follows.upgrade().is_some_and(|server| Arc::ptr_eq(&server, &postgres)) {
            follow_clock(&postgres).await;
            *follows = Arc::downgrade(&postgres);
        }
        drop(follows);
        Self { memory, redis, postgres, releases: Default::default() }
    }

    async fn client(&self) -> Quorum {
        // All clients of a case stay connected until its end, and some cases have a hundred.
        let postgres = PostgresBackend::builder(self.postgres.url()).connections(1).connect();
        let redis = RedisBackend::connect(self.redis[0].url());
        let (redis, postgres) = (redis.await.unwrap(), postgres.await.unwrap());
        let [in_memory, in_redis, in_postgres] = &self.releases;
        Quorum::builder()
            .member(Ordered::new(self.memory.clone(), in_memory))
            .member(Ordered::new(redis, in_redis))
            .shared_member(Arc::new(Ordered::new(postgres, in_postgres)))
            .build()
            .unwrap()
    }

    /// Anything that a late request has left in PostgreSQL ends with its lease.
    async fn left_behind(&self, name: &LockName) -> Vec<String> {
        let mut left = left_at(&self.redis[..1], name).await;
        left.extend((0..self.memory.names_in_use()).map(|_| "a name in memory".to_owned()));
        left
    }
}

mod races {
    crate::races::race_tests!(super::ServerFixture);
}
