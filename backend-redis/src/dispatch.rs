//! Acquisitions and releases of all modes, and how they are sent to a server.

use std::sync::Arc;

use futures_util::future::Either;
use lockcore::{
    BackendError, Mode,
    backend::{AcquireRequest, ReleaseRequest},
};
use redis::Value;

use crate::{
    cluster::{Cluster, ClusterRequest, Trail},
    exclusive::{self, BatchableRequest},
    keys::LockKeys,
    permits, read_write,
    script::ScriptCall,
    server::CommandConnection,
};

/// The error for a mode that is newer than this backend.
pub(crate) fn not_supported(mode: Mode) -> BackendError {
    BackendError::unsupported(format_args!("locks in {mode} mode"))
}

pub(crate) fn acquire_call(
    keys: &LockKeys,
    request: &AcquireRequest,
) -> Result<ScriptCall, BackendError> {
    match request.mode {
        Mode::Read | Mode::Write => read_write::acquire(keys, request),
        Mode::Permit { count, limit, .. } => Ok(permits::acquire(keys, request, count, limit)),
        Mode::Exclusive | Mode::Fair => Ok(exclusive::acquire(keys, request)),
        unknown => Err(not_supported(unknown)),
    }
}

pub(crate) fn release_call(
    keys: &LockKeys,
    request: &ReleaseRequest,
) -> Result<ScriptCall, BackendError> {
    match request.mode {
        Mode::Read | Mode::Write => Ok(read_write::release(keys, request)),
        Mode::Permit { .. } => Ok(permits::release(keys, request)),
        Mode::Exclusive | Mode::Fair => Ok(exclusive::release(keys, request)),
        unknown => Err(not_supported(unknown)),
    }
}

/// How a request is sent.
pub(crate) enum Dispatch {
    Single(ScriptCall),
    Batched(BatchableRequest),
}

impl Dispatch {
    pub(crate) fn acquire(keys: LockKeys, request: &AcquireRequest) -> Result<Self, BackendError> {
        Ok(match BatchableRequest::can_acquire(request) {
            true => Self::Batched(BatchableRequest::acquire(keys, request)),
            false => Self::Single(acquire_call(&keys, request)?),
        })
    }

    pub(crate) fn release(keys: LockKeys, request: &ReleaseRequest) -> Result<Self, BackendError> {
        Ok(match BatchableRequest::can_release(request) {
            true => Self::Batched(BatchableRequest::release(keys, request)),
            false => Self::Single(release_call(&keys, request)?),
        })
    }

    /// The same request, to be [sent on a cluster](Self::send_on_trail).
    pub(crate) fn on_cluster(self, cluster: &Cluster) -> Self {
        match self {
            Self::Batched(request) => Self::Batched(request.on_node(cluster.publishing())),
            Self::Single(call) => Self::Single(call),
        }
    }

    /// Sends the request once, and decodes the reply. A request that can be batched is in the queue
    /// when this returns; see [`CommandConnection::try_send_batched`]. So poll the future at once.
    pub(crate) fn send<'a, T: 'a>(
        self,
        connection: &'a Arc<CommandConnection>,
        decode: impl FnOnce(Value) -> Result<T, BackendError> + Send + 'a,
    ) -> impl Future<Output = Result<T, BackendError>> + Send + 'a {
        let reply = match self {
            Self::Batched(request) => Either::Left(connection.send_batched(request)),
            // Boxed, because this future is large.
            Self::Single(call) => {
                Either::Right(Box::pin(async move { connection.call(&call).await }))
            }
        };
        async move { connection.decode(reply.await?, decode) }
    }

    /// Sends the request to a node of the cluster that it was [made for](Self::on_cluster); see
    /// [`Cluster::send_on_trail`]. Nothing is sent before the first poll.
    pub(crate) async fn send_on_trail<T>(
        &self,
        cluster: &Arc<Cluster>,
        trail: &Trail,
        decode: impl FnOnce(Value) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        let request = match self {
            Self::Single(call) => ClusterRequest::Alone(call),
            Self::Batched(request) => {
                debug_assert!(request.publishing.is_some(), "`on_cluster` was not called");
                ClusterRequest::Batchable(request)
            }
        };
        cluster.send_on_trail(request, trail, decode).await
    }
}
