//! The Redis backend passes the kit.

use lockcore::LockName;
use lockcore_redis::RedisBackend;
use lockcore_testkit::{Fixture, Interrupts, On, Proxy, RedisServer, Withholds};

struct RedisFixture(RedisServer);

impl Fixture for RedisFixture {
    type Backend = RedisBackend;

    async fn set_up() -> Self {
        Self(RedisServer::start())
    }

    async fn client(&self) -> RedisBackend {
        RedisBackend::connect(self.0.url()).await.unwrap()
    }

    async fn left_behind(&self, _: &LockName) -> Vec<String> {
        let mut left = self.0.keys_without_expiry().await;
        left.extend(self.0.channels().await);
        left
    }
}

lockcore_testkit::conformance_tests!(
    RedisFixture,
    fair,
    read_write,
    permits,
    hand_over,
    demand,
    direct_grant,
    proposed_tokens,
    latches,
    conditions,
    directory,
);

/// A breakable network between the clients and the server.
struct Interrupted(RedisServer, Proxy);

impl Fixture for Interrupted {
    type Backend = RedisBackend;

    async fn set_up() -> Self {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port()).await.unwrap();
        Self(server, proxy)
    }

    async fn client(&self) -> RedisBackend {
        RedisBackend::connect(self.1.url()).await.unwrap()
    }

    async fn left_behind(&self, _: &LockName) -> Vec<String> {
        self.0.keys_without_expiry().await
    }
}

impl Interrupts for Interrupted {
    async fn interrupt(&self) {
        self.1.reset();
    }
}

impl Withholds for Interrupted {
    async fn withhold(&self) {
        self.1.freeze(On::All);
    }

    async fn abandon(&self) {
        self.1.abandon();
    }

    async fn deliver(&self) {
        self.1.deliver().await;
    }
}

mod interruptions {
    lockcore_testkit::interruption_tests!(super::Interrupted, late);
}

mod signals {
    crate::signals::signal_tests!(super::RedisFixture, run_case);
}

mod races {
    crate::races::race_tests!(super::RedisFixture);
}
