//! The PostgreSQL backend passes the kit.

use std::sync::{Arc, Mutex};

use lockcore::LockName;
use lockcore_postgres::PostgresBackend;
use lockcore_testkit::{Fixture, Interrupts, On, PostgresServer, Proxy, Withholds};
use uuid::Uuid;

/// A server that all cases share, and the clients of one case.
struct PostgresFixture {
    server: Arc<PostgresServer>,
    schema: String,
    clients: Mutex<Vec<PostgresBackend>>,
}

impl PostgresFixture {
    fn with_schema(schema: String) -> Self {
        Self { server: PostgresServer::shared(), schema, clients: Mutex::default() }
    }
}

impl Fixture for PostgresFixture {
    type Backend = PostgresBackend;

    async fn set_up() -> Self {
        Self::with_schema("lockcore".to_owned())
    }

    async fn client(&self) -> PostgresBackend {
        let builder = PostgresBackend::builder(self.server.url()).schema(&self.schema);
        // All clients of a case stay connected until its end, and some cases have a hundred.
        let backend = builder.connections(2).connect().await.unwrap();
        self.clients.lock().unwrap().push(backend.clone());
        backend
    }

    async fn left_behind(&self, name: &LockName) -> Vec<String> {
        let clients = self.clients.lock().unwrap().clone();
        left_behind(&self.server, &self.schema, &clients, name).await
    }
}

/// Holds, places and counts of the name, and ended ones that were not deleted.
pub(crate) async fn left_behind(
    server: &PostgresServer,
    schema: &str,
    clients: &[PostgresBackend],
    name: &LockName,
) -> Vec<String> {
    let name = name.as_str().replace('\'', "''");
    let tables = ["hold", "place", "latch", "waiter"].map(|table| {
        format!("SELECT '{table}: ' || t FROM {schema}.{table} t WHERE name = '{name}'")
    });
    let ended = ["undone", "reply"].map(|table| {
        format!(
            "SELECT '{table}: ' || t FROM {schema}.{table} t \
             WHERE name = '{name}' AND until < clock_timestamp()"
        )
    });
    let sql = [&tables[..], &ended[..]].concat().join(" UNION ALL ");
    let mut left: Vec<String> = server.query(&sql).await.concat();
    let channels: usize = clients.iter().map(PostgresBackend::channels_in_use).sum();
    left.extend((0..channels).map(|_| "a channel that is listened to".to_owned()));
    left
}

lockcore_testkit::conformance_tests!(
    PostgresFixture,
    fair,
    read_write,
    permits,
    hand_over,
    direct_grant,
    proposed_tokens,
    latches,
    conditions,
    directory,
);

/// A separate schema for each case. All of them use the same names.
struct SchemaFixture(PostgresFixture);

impl Fixture for SchemaFixture {
    type Backend = PostgresBackend;

    async fn set_up() -> Self {
        let schema = format!("kit_{}", Uuid::new_v4().simple());
        Self(PostgresFixture::with_schema(schema))
    }

    async fn client(&self) -> PostgresBackend {
        self.0.client().await
    }

    async fn left_behind(&self, name: &LockName) -> Vec<String> {
        self.0.left_behind(name).await
    }
}

/// A breakable network between the clients and the server.
struct Interrupted(PostgresFixture, Proxy);

impl Fixture for Interrupted {
    type Backend = PostgresBackend;

    async fn set_up() -> Self {
        let fixture = PostgresFixture::set_up().await;
        let proxy = Proxy::start_opaque(fixture.server.port()).await.unwrap();
        Self(fixture, proxy)
    }

    async fn client(&self) -> PostgresBackend {
        let url = format!("postgresql://postgres@127.0.0.1:{}/postgres", self.1.port());
        PostgresBackend::builder(url).connections(2).connect().await.unwrap()
    }

    async fn left_behind(&self, name: &LockName) -> Vec<String> {
        self.0.left_behind(name).await
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
    crate::signals::signal_tests!(super::SchemaFixture, run_case);
}

mod races {
    crate::races::race_tests!(super::PostgresFixture);
}
