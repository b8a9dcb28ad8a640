//! Acquisitions and releases of all modes, and how they are sent to a server.

use std::sync::Arc;

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

    /// Sends the request once, and decodes the reply.
    pub(crate) async fn send<T>(
        self,
        connection: &Arc<CommandConnection>,
        decode: impl FnOnce(Value) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        let reply = match self {
            Self::Batched(request) => connection.send_batched(request).await,
            // Boxed, because this future is large.
            Self::Single(call) => Box::pin(connection.call(&call)).await,
        };
        connection.decode(reply?, decode)
    }

    /// The same on a cluster; see [`Cluster::send_on_trail`].
    pub(crate) async fn send_on_trail<T>(
        self,
        cluster: &Arc<Cluster>,
        trail: &Trail,
        decode: impl FnOnce(Value) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        match self {
            Self::Single(call) => {
                cluster.send_on_trail(ClusterRequest::Alone(&call), trail, decode).await
            }
            Self::Batched(request) => {
                let request = request.on_node(cluster.publishing());
                cluster.send_on_trail(ClusterRequest::Batchable(&request), trail, decode).await
            }
        }
    }
}
