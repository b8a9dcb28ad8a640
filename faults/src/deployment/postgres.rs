//! [`Postgres`]: a PostgreSQL server, and its replica if it has one.

use std::time::{Duration, Instant};

use lockcore_testkit::{On, PostgresServer};

use crate::protocol::{Result, failure};

/// The time limit for a replica to become a primary.
const PATIENCE: Duration = Duration::from_secs(30);

/// A PostgreSQL server, and its replica if it has one.
#[derive(Debug)]
pub(crate) struct Postgres {
    /// The first one is the primary at the start.
    servers: Vec<PostgresServer>,
    /// The transactions that have set up the first one: about 900.
    set_up: u64,
}

/// The connections of clients.
const OF_CLIENTS: &str = "application_name LIKE 'lockcore %'";

/// Those of them that serve requests, or have just been opened for them. The last statement of the
/// opening asks for the session.
const OPEN: &str = "query <> '' AND query NOT LIKE ALL (ARRAY['%LISTEN %', '%end_session%', \
                    '%raise_tokens_to_clock%'])";

/// Those of them that serve requests. A connection that is just being opened is left alone: on a
/// busy machine, opening takes longer than the pause between two faults, and none would ever
/// succeed.
const SERVING: &str = "query NOT LIKE '%lockcore.session()%'";

impl Postgres {
    pub(super) async fn start(with_replica: bool) -> Result<Self> {
        let primary = PostgresServer::try_start(&[])?;
        let replica = with_replica.then(|| primary.start_replica());
        let servers = [primary].into_iter().chain(replica).collect();
        let mut started = Self { servers, set_up: 0 };
        started.set_up = started.transactions(0).await?;
        Ok(started)
    }

    pub(super) fn server_mut(&mut self, index: usize) -> &mut PostgresServer {
        &mut self.servers[index]
    }

    /// The ports of all servers.
    pub(super) fn ports(&self) -> Vec<u16> {
        self.servers.iter().map(PostgresServer::port).collect()
    }

    /// Promotes the replica to a primary.
    pub(super) async fn promote(&self, index: usize) -> Result<()> {
        let replica = self.servers.get(index).ok_or_else(|| failure("there is no replica"))?;
        replica.try_query("SELECT pg_promote(wait => false)").await?;
        let start = Instant::now();
        while !self.takes_writes(index).await {
            if start.elapsed() > PATIENCE {
                return Err(failure("the replica has not taken over"));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Returns `true` if a server runs and is not a replica.
    pub(super) async fn takes_writes(&self, index: usize) -> bool {
        let role = self.servers[index].try_query("SELECT pg_is_in_recovery()").await;
        role.is_ok_and(|role| role == [["f"]])
    }

    /// Stops the replica from receiving the writes of the primary.
    pub(super) async fn hold_replication(&self) -> Result<()> {
        self.stream_from("").await
    }

    /// Lets the replica receive the writes of the primary again.
    pub(super) async fn resume_replication(&self) -> Result<()> {
        let port = self.servers[0].port();
        self.stream_from(&format!("host=127.0.0.1 port={port} user=postgres")).await
    }

    async fn stream_from(&self, primary: &str) -> Result<()> {
        let replica = self.servers.get(1).ok_or_else(|| failure("there is no replica"))?;
        replica.try_query(&format!("ALTER SYSTEM SET primary_conninfo = '{primary}'")).await?;
        replica.try_query("SELECT pg_reload_conf()").await?;
        Ok(())
    }

    /// Waits until the primary has a streaming replica, or has none.
    pub(crate) async fn until_streaming(&self, streams: bool) -> Result<()> {
        let start = Instant::now();
        let sql = "SELECT pid FROM pg_stat_replication WHERE state = 'streaming'";
        while self.servers[0].try_query(sql).await?.is_empty() == streams {
            if start.elapsed() > PATIENCE {
                return Err(failure("the replica does not do what it is told"));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Makes every write of the primary wait for its replica.
    pub(crate) async fn replicate_synchronously(&self) -> Result<()> {
        self.until_streaming(true).await?;
        let primary = &self.servers[0];
        primary.try_query("ALTER SYSTEM SET synchronous_standby_names = '*'").await?;
        primary.try_query("SELECT pg_reload_conf()").await?;
        let start = Instant::now();
        let sql = "SELECT pid FROM pg_stat_replication WHERE sync_state = 'sync'";
        while primary.try_query(sql).await?.is_empty() {
            if start.elapsed() > PATIENCE {
                return Err(failure("the replica is not synchronous"));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Runs SQL at the primary.
    pub(crate) async fn ask(&self, sql: &str) -> Result<()> {
        self.servers[0].try_query(sql).await?;
        Ok(())
    }

    /// The number of client connections to a server.
    pub(super) async fn connections(&self, index: usize) -> Result<usize> {
        let sql = format!("SELECT pid FROM pg_stat_activity WHERE {OF_CLIENTS}");
        Ok(self.servers[index].try_query(&sql).await?.len())
    }

    /// Closes connections of clients.
    pub(super) async fn end_connections(&self, index: usize, on: On) -> Result<()> {
        // A connection that listens does nothing else.
        let which = match on {
            On::Commands => format!("{OPEN} AND {SERVING}"),
            On::Messages => "query LIKE '%LISTEN %'".to_owned(),
            _ => "true".to_owned(),
        };
        let sql = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OF_CLIENTS} AND {which}"
        );
        self.servers[index].try_query(&sql).await?;
        Ok(())
    }

    /// The number of client connections that are open for requests.
    pub(super) async fn open_for_requests(&self, index: usize) -> Result<usize> {
        let sql = format!("SELECT pid FROM pg_stat_activity WHERE {OF_CLIENTS} AND {OPEN}");
        Ok(self.servers[index].try_query(&sql).await?.len())
    }

    /// Names and owners of the holds, and of the places in queues.
    pub(super) async fn owners(&self, index: usize) -> Result<Vec<(String, String)>> {
        let parts = ["hold", "place"].map(|table| {
            format!("SELECT name, owner FROM lockcore.{table} WHERE until > clock_timestamp()")
        });
        let rows = self.servers[index].try_query(&parts.join(" UNION ALL ")).await?;
        let pair = |row: Vec<String>| {
            let [name, owner] = <[String; 2]>::try_from(row).ok()?;
            Some((name, owner))
        };
        Ok(rows.into_iter().filter_map(pair).collect())
    }

    /// The number of transactions since the server was set up, according to its delayed statistics,
    /// which a crash resets. Each request of a client is one, and opening a connection is ten.
    pub(super) async fn transactions(&self, index: usize) -> Result<u64> {
        let sql = "SELECT sum(xact_commit + xact_rollback)::bigint FROM pg_stat_database";
        let rows = self.servers[index].try_query(sql).await?;
        let count: Option<u64> = rows.first().and_then(|row| row.first()?.parse().ok());
        let count = count.ok_or_else(|| failure("PostgreSQL does not count transactions"))?;
        Ok(count.saturating_sub(self.set_up))
    }
}
