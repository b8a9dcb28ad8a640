//! [`RedisInfo`]: the findings of a backend about its server.

use std::fmt;

/// The findings of a backend about its server. Returned by
/// [`RedisBackend::info`](crate::RedisBackend::info). It contains no secrets.
///
/// The probe at connect tries each feature, on keys and channels that no lock has. Managed services
/// and proxies differ from the server that they claim to be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisInfo {
    /// The kind of deployment.
    pub deployment: DeploymentKind,
    /// The name of the server software, as the server reports it: `redis`, `valkey`. For humans
    /// only. `None` if the user has no right to `INFO`.
    pub software: Option<String>,
    /// The version, as the server reports it. For humans only.
    pub version: Option<String>,
    /// Calls may declare keys in several slots. Without this support, requests for different locks
    /// are not batched. [`No`](Support::No) on a cluster, where batches declare no keys.
    pub batches_across_slots: Support,
    /// Messages arrive. Without them, releases wake nobody: waiters ask every 10 s, and when the
    /// lease of the holder ends.
    pub messages: Support,
    /// The server has `WAIT`. Only tried if
    /// [`replicas`](crate::RedisBackendBuilder::replicas) are asked for.
    pub wait: Support,
}

impl RedisInfo {
    /// The state before anything was tried.
    pub(crate) fn unknown(deployment: DeploymentKind) -> Self {
        let unknown = Support::Unknown;
        Self {
            deployment,
            software: None,
            version: None,
            batches_across_slots: unknown,
            messages: unknown,
            wait: unknown,
        }
    }
}

/// The kind of deployment that keeps the locks of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeploymentKind {
    /// One server, or a proxy at its address.
    Single,
    /// The primary that Sentinels monitor.
    Sentinel,
    /// A Redis Cluster.
    Cluster,
}

/// The result of trying a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Support {
    /// It was tried, and worked.
    Yes,
    /// It was tried, and did not work.
    No,
    /// It was not tried, or the attempt failed for another reason, such as a missing right.
    Unknown,
}

impl fmt::Display for DeploymentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Single => "single",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
        })
    }
}

impl fmt::Display for Support {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::Unknown => "unknown",
        })
    }
}
