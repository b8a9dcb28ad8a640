//! The servers that accept writes, and failovers.

use std::time::{Duration, Instant};

use lockcore_testkit::RedisServer;

use super::{
    Between, Servers, name_at_home,
    servers::{Group, HOME_SLOT, PATIENT},
};
use crate::protocol::{Result, failure};

impl Servers {
    /// The servers that accept writes: running, and not replicas.
    pub(crate) async fn primaries(&self) -> Vec<&RedisServer> {
        let mut primaries = Vec::new();
        for server in self.all().filter(|server| server.is_up()) {
            let role: redis::RedisResult<Vec<redis::Value>> = server.try_query(&["ROLE"]).await;
            let is_primary = role.is_ok_and(|role| {
                role.first() == Some(&redis::Value::BulkString(b"master".to_vec()))
            });
            if is_primary {
                primaries.push(server);
            }
        }
        primaries
    }

    /// Waits until a server other than `old` accepts writes of the current one's locks, and makes
    /// it the current one. On PostgreSQL, the battery promotes a replica.
    pub(crate) async fn follow(&mut self, old: usize) -> Result<usize> {
        if let Group::Postgres(postgres) = &self.group {
            self.current = 1 - old;
            postgres.promote(self.current).await?;
            return Ok(self.current);
        }
        let start = Instant::now();
        while start.elapsed() < PATIENT {
            for index in (0..self.count()).filter(|index| *index != old) {
                let is_up = self.server(index).is_ok_and(RedisServer::is_up);
                if is_up && self.takes_writes(index).await {
                    self.current = index;
                    return Ok(index);
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err(failure("no replica has taken over"))
    }

    /// Returns `true` if a server accepts writes of the locks that faults are about.
    async fn takes_writes(&self, index: usize) -> bool {
        if let Group::Postgres(postgres) = &self.group {
            return postgres.takes_writes(index).await;
        }
        if let Group::Etcd(etcd) = &self.group {
            return etcd.serves(index).await;
        }
        // A name in the first slots of a cluster.
        let probe = name_at_home("battery:probe");
        let write = ["SET", probe.as_str(), "1", "PX", "100"];
        match self.server(index) {
            Ok(server) => server.try_query::<()>(&write).await.is_ok(),
            Err(_) => false,
        }
    }

    /// Holds back what the primary sends to its replicas.
    pub(crate) async fn hold_replication(&self) -> Result<()> {
        if let Group::Postgres(postgres) = &self.group {
            postgres.until_streaming(true).await?;
            postgres.hold_replication().await?;
            return postgres.until_streaming(false).await;
        }
        match &self.between {
            Some(between) if between.is_in_use() => between.hold_replication(),
            _ => return Err(failure("the replicas are not behind the network between servers")),
        }
        Ok(())
    }

    /// Blocks everything between the first primary and the others, if there is a network.
    pub(crate) fn cut_between(&self) {
        self.between.iter().for_each(Between::cut);
    }

    /// Heals the network between the servers.
    pub(crate) async fn heal_between(&self) -> Result<()> {
        if let Some(between) = &self.between {
            between.heal();
        }
        match &self.group {
            Group::Postgres(postgres) => postgres.resume_replication().await,
            _ => Ok(()),
        }
    }

    /// Waits until all Sentinels name the new primary; nodes of a cluster need not agree.
    pub(crate) async fn agree(&self) {
        if let Group::Sentinel(group) = &self.group {
            group.primary().await;
        }
    }

    /// Waits until all running servers agree on their roles.
    pub(crate) async fn settle(&mut self) {
        match &self.group {
            Group::Single(_) | Group::Quorum(_) | Group::Postgres(_) | Group::Etcd(_) => {}
            Group::Sentinel(group) => {
                group.replicas().await;
                self.current = group.primary().await;
            }
            Group::Cluster(cluster) => {
                cluster.settle().await;
                self.current = cluster.primary_of(HOME_SLOT).await;
            }
        }
    }

    /// Makes a replica take over while the primary runs, and waits until the servers, or the
    /// Sentinels, agree on that.
    pub(crate) async fn fail_over(&mut self) -> Result<()> {
        match &self.group {
            Group::Sentinel(group) => self.current = group.failover().await,
            Group::Cluster(cluster) => {
                let replicas = cluster.replicas_of(self.current).await;
                let replica = *replicas.first().ok_or_else(|| failure("there are no replicas"))?;
                let () = cluster.node(replica).try_query(&["CLUSTER", "FAILOVER"]).await?;
                self.follow(self.current).await?;
            }
            _ => return Err(failure("no replica takes over by itself")),
        }
        Ok(())
    }

    /// Waits until the current server serves again after a restart: a node of a cluster refuses
    /// requests for its first two seconds.
    pub(crate) async fn rejoin(&self) -> Result<()> {
        let start = Instant::now();
        while !self.takes_writes(self.current).await {
            if start.elapsed() > PATIENT {
                return Err(failure("the server does not serve again"));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }
}
