//! [`Servers`]: the servers of a deployment, and the one that the battery acts on.

use std::time::Duration;

use lockcore_testkit::{RedisCluster, RedisSentinel, RedisServer};

use super::{Deployment, Etcd, Postgres, between::Between, process::Process, routes::Routes};
use crate::protocol::{Result, failure};

/// Longer than any fault: servers must not consider a server down that will come back.
pub(super) const PATIENT: Duration = Duration::from_secs(60);

/// The time without an answer after which a server counts as down.
const DOWN_AFTER: Duration = Duration::from_secs(1);

/// A slot that the first primary has at the start.
pub(super) const HOME_SLOT: u16 = 0;

/// The replicas of a group with Sentinels.
const REPLICAS: usize = 2;

/// The servers of a quorum.
pub(crate) const MEMBERS: usize = 5;

/// The setup of the servers.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerSetup {
    /// Options of each Redis server.
    pub(crate) options: Vec<String>,
    /// Environment variables of each Redis server.
    pub(crate) environment: Vec<(String, String)>,
    /// `true` if a server that does not answer is replaced.
    pub(crate) fails_over: bool,
    /// `true` if there is a network between the servers that can fail.
    pub(crate) between: bool,
}

#[derive(Debug)]
pub(super) enum Group {
    Single(Box<RedisServer>),
    Sentinel(RedisSentinel),
    Cluster(RedisCluster),
    Quorum(Vec<RedisServer>),
    Postgres(Postgres),
    Etcd(Etcd),
}

/// The servers of a deployment. Faults of one server act on the [current](Self::current) one.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(super) group: Group,
    pub(super) current: usize,
    /// The network between the first primary and the others, if requested.
    pub(super) between: Option<Between>,
}

impl Servers {
    pub(crate) async fn start(on: Deployment, setup: &ServerSetup) -> Result<Self> {
        let is_between = setup.between && on.is_redis();
        let routes = if is_between { Some(Routes::make()?) } else { None };
        let mut environment = setup.environment.clone();
        environment.extend(routes.iter().flat_map(Routes::environment));
        let options: Vec<&str> = setup.options.iter().map(String::as_str).collect();
        let down_after = if setup.fails_over { DOWN_AFTER } else { PATIENT };
        let group = match on {
            Deployment::Single => Group::Single(Box::new(RedisServer::try_start_with_environment(
                &options,
                &environment,
            )?)),
            Deployment::Sentinel => {
                let builder = RedisSentinel::builder().replicas(REPLICAS).down_after(down_after);
                Group::Sentinel(
                    builder.options(&options).environment(&environment).try_start().await?,
                )
            }
            Deployment::Cluster => {
                let builder = RedisCluster::builder().options(&options).environment(&environment);
                let cluster = builder.node_timeout(DOWN_AFTER).try_start().await?;
                Group::Cluster(cluster)
            }
            Deployment::Quorum => {
                let start = |_| RedisServer::try_start_with_environment(&options, &environment);
                Group::Quorum((0..MEMBERS).map(start).collect::<std::result::Result<_, _>>()?)
            }
            Deployment::Postgres => {
                Group::Postgres(Postgres::start(setup.fails_over || setup.between).await?)
            }
            Deployment::Etcd => Group::Etcd(Etcd::start()?),
        };
        let mut servers = Self { group, current: 0, between: None };
        if let Group::Etcd(etcd) = &servers.group {
            // The loss of another member has less effect.
            servers.current = etcd.leader().await;
        }
        if let (Group::Cluster(_), false) = (&servers.group, setup.fails_over) {
            let patience = PATIENT.as_millis().to_string();
            for server in servers.all() {
                let set = ["CONFIG", "SET", "cluster-node-timeout", &patience];
                let () = server.try_query(&set).await?;
            }
        }
        if let Some(routes) = routes {
            servers.between = Some(Between::start(routes, &servers).await?);
        }
        Ok(servers)
    }

    /// The process of the single server, of the primary of the locks that faults are about, or of
    /// the member of a quorum that faults hit.
    pub(crate) fn current(&mut self) -> Box<dyn Process + '_> {
        self.process(self.current)
    }

    /// The index of the current server.
    pub(crate) fn current_index(&self) -> usize {
        self.current
    }

    /// Makes faults of one server hit this one from now on.
    pub(crate) fn turn_to(&mut self, index: usize) {
        self.current = index;
    }

    pub(crate) fn process(&mut self, index: usize) -> Box<dyn Process + '_> {
        match &mut self.group {
            Group::Single(server) => Box::new(&mut **server),
            Group::Sentinel(group) => Box::new(group.server_mut(index)),
            Group::Cluster(cluster) => Box::new(cluster.node_mut(index)),
            Group::Quorum(members) => Box::new(&mut members[index]),
            Group::Postgres(postgres) => Box::new(postgres.server_mut(index)),
            Group::Etcd(etcd) => Box::new(etcd.member(index)),
        }
    }

    /// A server, if it is Redis.
    pub(crate) fn server(&self, index: usize) -> Result<&RedisServer> {
        Ok(match &self.group {
            Group::Single(server) => server,
            Group::Sentinel(group) => group.server(index),
            Group::Cluster(cluster) => cluster.node(index),
            Group::Quorum(members) => &members[index],
            Group::Postgres(_) | Group::Etcd(_) => return Err(failure("this is no Redis")),
        })
    }

    /// The PostgreSQL servers, if this is PostgreSQL.
    pub(crate) fn postgres(&self) -> Result<&Postgres> {
        match &self.group {
            Group::Postgres(postgres) => Ok(postgres),
            _ => Err(failure("this is no PostgreSQL")),
        }
    }

    /// The etcd cluster, if this is etcd.
    pub(crate) fn etcd(&self) -> Result<&Etcd> {
        match &self.group {
            Group::Etcd(etcd) => Ok(etcd),
            _ => Err(failure("this is no etcd")),
        }
    }

    pub(crate) fn etcd_mut(&mut self) -> Result<&mut Etcd> {
        match &mut self.group {
            Group::Etcd(etcd) => Ok(etcd),
            _ => Err(failure("this is no etcd")),
        }
    }

    /// The number of Redis servers.
    pub(super) fn count(&self) -> usize {
        match &self.group {
            Group::Single(_) => 1,
            Group::Sentinel(group) => group.server_count(),
            Group::Cluster(cluster) => cluster.addresses().len(),
            Group::Quorum(members) => members.len(),
            Group::Postgres(_) | Group::Etcd(_) => 0,
        }
    }

    /// All Redis servers, without the Sentinels.
    pub(crate) fn all(&self) -> impl Iterator<Item = &RedisServer> {
        (0..self.count()).filter_map(|index| self.server(index).ok())
    }

    /// The Sentinels, if there are some.
    pub(crate) fn sentinels(&self) -> Vec<&RedisServer> {
        match &self.group {
            Group::Sentinel(group) => {
                (0..group.addresses().len()).map(|index| group.sentinel(index)).collect()
            }
            _ => Vec::new(),
        }
    }

    pub(crate) fn sentinel_mut(&mut self, index: usize) -> Result<&mut RedisServer> {
        match &mut self.group {
            Group::Sentinel(group) => Ok(group.sentinel_mut(index)),
            _ => Err(failure("there are no Sentinels")),
        }
    }

    /// The cluster, if it is one.
    pub(crate) fn cluster(&self) -> Result<&RedisCluster> {
        match &self.group {
            Group::Cluster(cluster) => Ok(cluster),
            _ => Err(failure("this is no cluster")),
        }
    }

    pub(crate) fn cluster_mut(&mut self) -> Result<&mut RedisCluster> {
        match &mut self.group {
            Group::Cluster(cluster) => Ok(cluster),
            _ => Err(failure("this is no cluster")),
        }
    }
}
