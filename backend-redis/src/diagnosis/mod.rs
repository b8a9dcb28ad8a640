//! The diagnosis of the servers of a backend.
//!
//! - [`session`] is the connection that one server is examined on. It is separate from the backend,
//!   which may refuse the server.
//! - [`settings`] judges what the server says about itself.
//! - [`timing`] has the clock and the latency, [`rights`] the commands that locks need, and
//!   [`messages`] a message to itself.
//! - [`names`] looks for keys that nobody cleans up.
//! - [`cluster`] and [`sentinel`] have the checks for those deployments.
//!
//! Each request has the time limit of the backend, their number is bounded, and the look at the
//! keys ends after [`names::LIMIT`].

mod cluster;
mod facts;
mod messages;
mod names;
mod rights;
mod sentinel;
mod session;
mod settings;
mod timing;

use std::sync::Arc;

use lockcore::{BackendError, BackendErrorKind, Diagnosis, Finding, Severity};

use self::{facts::Facts, session::Session};
use crate::{
    RedisBackend,
    backend::Deployment,
    cluster::ClusterSeeds,
    sentinel::SentinelGroup,
    server::{
        Server,
        address::FixedAddress,
        opener::{ConnectOptions, Opener},
    },
};

/// The deployment to examine.
#[derive(Debug)]
pub(crate) enum Patient {
    Server(Arc<Server>),
    Primary(Arc<Server>, Arc<SentinelGroup>),
    Cluster(Box<(ClusterSeeds, ConnectOptions)>),
}

/// The way in which a server is examined.
#[derive(Clone, Copy, Debug, Default)]
struct Scope<'a> {
    key_prefix: &'a str,
    /// Set if the server is expected to be a replica.
    may_be_replica: bool,
    has_sentinels: bool,
    /// Some slots of the server, if it is a node of a cluster.
    slots: Option<(u16, u16)>,
}

impl RedisBackend {
    /// Checks whether the servers are fit for locks: version, eviction, memory, persistence, role,
    /// replicas, clock, latency, rights, messages, limits of connections, keys that nobody cleans
    /// up, and the state of the cluster or the Sentinels.
    ///
    /// It uses connections of its own, writes nothing that stays, and reads no secrets. Each
    /// request has the limit of [`response_timeout`](crate::RedisBackendBuilder::response_timeout).
    /// The keys of the database are looked at with `SCAN`, with pauses, and for at most 5 s at each
    /// primary. If that is not enough, a finding says so.
    ///
    /// [`RedisBackendBuilder::diagnose`](crate::RedisBackendBuilder::diagnose) does the same with a
    /// server that `connect` would refuse.
    ///
    /// # Errors
    /// The errors of [`connect`](crate::RedisBackendBuilder::connect) if no server can be reached,
    /// and [`Timeout`](BackendErrorKind::Timeout) if a single server stops answering. A node of a
    /// cluster that is away is a finding.
    ///
    /// # Cancel safety
    /// If the future is dropped, its connections are closed.
    ///
    /// # Examples
    /// ```no_run
    /// use lockcore_redis::RedisBackend;
    ///
    /// # async fn check() -> Result<(), lockcore::BackendError> {
    /// let backend = RedisBackend::connect("redis://127.0.0.1").await?;
    /// for finding in backend.diagnose().await?.findings() {
    ///     eprintln!("{finding}");
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn diagnose(&self) -> Result<Diagnosis, BackendError> {
        let patient = match (self.deployment(), self.sentinels()) {
            (Deployment::Single(server), None) => Patient::Server(server.clone()),
            (Deployment::Single(server), Some(group)) => {
                Patient::Primary(server.clone(), group.clone())
            }
            (Deployment::Cluster(cluster), _) => Patient::Cluster(Box::new(cluster.seeds())),
        };
        diagnose(patient, self.key_prefix()).await
    }
}

/// Examines all servers of `patient`.
pub(crate) async fn diagnose(
    patient: Patient,
    key_prefix: &str,
) -> Result<Diagnosis, BackendError> {
    let mut diagnosis = Diagnosis::new();
    let scope = Scope { key_prefix, ..Scope::default() };
    match patient {
        Patient::Server(server) => {
            let mut session = Session::open(&server).await?;
            let facts = Facts::of(&mut session).await?;
            if facts.as_ref().is_some_and(Facts::is_sentinel) {
                return Err(is_sentinel(session.address()));
            }
            if facts.as_ref().is_some_and(Facts::is_cluster_node) {
                let (info, options) = server.place_and_options().await?;
                cluster::examine(ClusterSeeds::of_node(info)?, options, scope, &mut diagnosis)
                    .await?;
            } else {
                examine(&mut session, &server, facts, scope, &mut diagnosis).await?;
            }
        }
        Patient::Primary(server, group) => {
            let scope = Scope { has_sentinels: true, ..scope };
            sentinel::examine(&group, &mut diagnosis).await?;
            if let Err(error) = examine_server(&server, scope, &mut diagnosis).await {
                diagnosis.add(
                    unreachable("the primary that the Sentinels name", &error)
                        .because("no lock can be acquired or renewed")
                        .to_do("start it, or find out why the Sentinels do not replace it"),
                );
            }
        }
        Patient::Cluster(cluster) => {
            let (seeds, options) = *cluster;
            cluster::examine(seeds, options, scope, &mut diagnosis).await?;
        }
    }
    Ok(diagnosis)
}

async fn examine_server(
    server: &Arc<Server>,
    scope: Scope<'_>,
    diagnosis: &mut Diagnosis,
) -> Result<(), BackendError> {
    let mut session = Session::open(server).await?;
    let facts = Facts::of(&mut session).await?;
    examine(&mut session, server, facts, scope, diagnosis).await
}

/// Examines one server.
async fn examine(
    session: &mut Session,
    server: &Arc<Server>,
    facts: Option<Facts>,
    scope: Scope<'_>,
    diagnosis: &mut Diagnosis,
) -> Result<(), BackendError> {
    let address = session.address().to_owned();
    match &facts {
        Some(facts) => settings::judge(facts, &address, scope, diagnosis),
        None => diagnosis.add(
            Finding::new("info", Severity::Unknown, format!("{address} refuses INFO"))
                .because(
                    "its version, role, eviction, memory, persistence and replicas could not be \
                     looked at",
                )
                .to_do("grant the user +info"),
        ),
    }
    let (is_replica, is_loading) =
        facts.as_ref().map_or((false, false), |facts| (facts.is_replica(), facts.is_loading()));
    if is_loading {
        return Ok(());
    }
    settings::ask_for_configuration(session, facts.as_ref(), diagnosis).await?;
    timing::examine(session, diagnosis).await?;
    if is_replica {
        return Ok(());
    }
    rights::examine(session, scope, diagnosis).await?;
    messages::examine(session, server, facts.as_ref(), scope, diagnosis).await?;
    names::examine(session, scope, diagnosis).await
}

/// A server of a deployment that cannot be examined.
fn unreachable(what: &str, error: &BackendError) -> Finding {
    use std::error::Error;
    let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    Finding::new(
        "unreachable",
        Severity::Problem,
        format!("{what} cannot be asked ({error}{source})"),
    )
}

fn is_sentinel(address: &str) -> BackendError {
    let message = format!(
        "the server at {address} is a Sentinel; diagnose the primary that it monitors, with a \
         redis+sentinel:// URL"
    );
    BackendError::new(BackendErrorKind::Configuration, message).not_applied()
}

/// A server of a deployment, which need not be one that can be trusted with locks.
fn server_at(info: redis::ConnectionInfo, options: &ConnectOptions) -> Arc<Server> {
    Arc::new(Server::new(Opener::new(Arc::new(FixedAddress(info)), options.clone(), None)))
}
