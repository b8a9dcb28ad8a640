//! The probe: when a backend connects, it tries each feature once and notes the result.
//!
//! - A script that reads one key.
//! - The same script with two keys in different slots.
//! - A message, published as a release does or on a cluster by that script, and a listener for it.
//! - `WAIT`, if replicas have to acknowledge holds.
//!
//! The keys and the channel belong to no lock, and nothing is written. A user who has no right to
//! them, or a server that does not answer, leaves the question open.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use futures_util::future::join;
use lockcore::{
    BackendError, BackendErrorKind,
    backend::{Replicas, Wakeups},
};

use crate::{
    RedisBackend, RedisInfo, Support,
    backend::Deployment,
    error,
    script::{self, ScriptCall},
    server::{Purpose, Server},
};

/// How long a message may take.
const ARRIVAL: Duration = Duration::from_secs(1);

/// Tries the features, and logs the results.
///
/// # Errors
/// An error if replicas have to acknowledge holds, and the server has no `WAIT`.
pub(crate) async fn probe(backend: &RedisBackend) -> Result<RedisInfo, BackendError> {
    let wait = match backend.replicas() {
        Some(Replicas { count: 1.., .. }) => wait(backend).await?,
        _ => Support::Unknown,
    };
    let (batches_across_slots, messages) = match backend.deployment() {
        Deployment::Single(_) => join(batches_across_slots(backend), messages(backend)).await,
        Deployment::Cluster(_) => (Support::No, messages(backend).await),
    };
    let (deployment, software) = (backend.info().deployment, backend.software());
    let (software, version) = software.unzip();
    let info = RedisInfo { deployment, software, version, batches_across_slots, messages, wait };
    log(&info);
    Ok(info)
}

fn log(info: &RedisInfo) {
    let or_unknown = |text: &Option<String>| text.as_deref().unwrap_or("unknown").to_owned();
    tracing::info!(
        deployment = %info.deployment,
        software = or_unknown(&info.software),
        version = or_unknown(&info.version),
        batches_across_slots = %info.batches_across_slots,
        messages = %info.messages,
        wait = %info.wait,
        "connected to Redis"
    );
    if info.messages == Support::No {
        tracing::warn!(
            "no messages arrive from this server, so waiters are not woken by a release: they \
             look every 10 s, and when the lease of the holder ends"
        );
    }
}

/// Tries two keys in one call. If one key alone does not work either, the result is unknown.
async fn batches_across_slots(backend: &RedisBackend) -> Support {
    let [one, other] = ["1", "2"].map(|name| backend.probe_key(name));
    // Do not wait again for a server that does not answer.
    if call(backend, vec![one.clone()], "").await.is_err() {
        return Support::Unknown;
    }
    match call(backend, vec![one, other], "").await {
        Ok(()) => Support::Yes,
        Err(error) if is_refusal(&error) => Support::No,
        Err(_) => Support::Unknown,
    }
}

/// Sends a message to itself, on one server as a release does.
async fn messages(backend: &RedisBackend) -> Support {
    let channel = backend.probe_key(&format!("{:x}", RandomState::new().hash_one(())));
    let listening: Result<Box<dyn Wakeups>, _> = match backend.deployment() {
        Deployment::Single(server) => {
            let listening = server.subscribe_aside(channel.clone()).await;
            listening.map(|listening| Box::new(listening) as Box<dyn Wakeups>)
        }
        Deployment::Cluster(_) => backend.listen(channel.clone()).await,
    };
    let Ok(mut listening) = listening else { return Support::Unknown };
    match backend.deployment() {
        Deployment::Single(server) => match publish(server, &channel).await {
            Ok(()) => {}
            Err(error) if error.is_retryable() => return Support::Unknown,
            Err(_) => return Support::No,
        },
        Deployment::Cluster(_) => {
            // The key and the channel are in the same slot.
            if call(backend, vec![channel.clone()], &channel).await.is_err() {
                return Support::Unknown;
            }
        }
    }
    match tokio::time::timeout(ARRIVAL, listening.woken()).await {
        Ok(_) => Support::Yes,
        Err(_) => Support::No,
    }
}

async fn publish(server: &Server, channel: &str) -> Result<(), BackendError> {
    let connection = server.connection().await?;
    let command = redis::cmd("PUBLISH").arg(channel).arg(0).take();
    let reply = connection.query(command).await;
    reply.map(drop).map_err(|error| error::of_request(error, "PUBLISH"))
}

async fn call(
    backend: &RedisBackend,
    keys: Vec<String>,
    channel: &str,
) -> Result<(), BackendError> {
    let call =
        ScriptCall { script: &script::PROBE, keys, args: vec![channel.to_owned()], optional: 0 };
    backend.call(&call, |_| Ok(())).await
}

fn is_refusal(error: &BackendError) -> bool {
    !error.is_retryable() && error.kind() != BackendErrorKind::Permission
}

/// Asks for the replicas that have everything by now, without waiting for any.
async fn wait(backend: &RedisBackend) -> Result<Support, BackendError> {
    let server = match backend.deployment() {
        Deployment::Single(server) => server.clone(),
        Deployment::Cluster(cluster) => match cluster.any_server() {
            Some(server) => server,
            None => return Ok(Support::Unknown),
        },
    };
    match ask_for_replicas(&server).await {
        Ok(()) => Ok(Support::Yes),
        Err(error) if error.is_retryable() => Ok(Support::Unknown),
        Err(error) => {
            let message = "replicas were asked for, but the server refuses the command WAIT; \
                           grant the user +wait, or use a server that has it";
            let refused = BackendError::new(BackendErrorKind::Configuration, message);
            Err(refused.not_applied().with_source(error))
        }
    }
}

async fn ask_for_replicas(server: &Server) -> Result<(), BackendError> {
    let connection = server.connection_for(Purpose::Acknowledged).await?;
    let command = redis::cmd("WAIT").arg(0).arg(1).take();
    let reply = connection.query(command).await;
    reply.map(drop).map_err(|error| error::of_request(error, "WAIT"))
}
