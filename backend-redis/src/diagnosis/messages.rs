//! Sends a message to itself, as a release does to wake a waiter.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use lockcore::{BackendError, Diagnosis, Finding, Severity};
use redis::{PushInfo, PushKind};
use tokio::sync::Notify;

use super::{Scope, facts::Facts, rights::probe_key, session::Session};
use crate::server::Server;

/// How long a message may take.
const ARRIVAL: Duration = Duration::from_secs(1);

/// The kinds of channels.
const PLAIN: [&str; 2] = ["SUBSCRIBE", "PUBLISH"];
const SHARDED: [&str; 2] = ["SSUBSCRIBE", "SPUBLISH"];

pub(super) async fn examine(
    session: &mut Session,
    server: &Arc<Server>,
    facts: Option<&Facts>,
    scope: Scope<'_>,
    diagnosis: &mut Diagnosis,
) -> Result<(), BackendError> {
    let has_shards = facts.and_then(Facts::version).is_some_and(|version| version >= (7, 0, 0));
    let commands = if scope.slots.is_some() && has_shards { SHARDED } else { PLAIN };
    let [subscribe, publish] = commands;
    let seen = match send(session, server, commands, scope).await? {
        Ok(true) => return Ok(()),
        Ok(false) => format!(
            "a message sent to {} with {publish} did not come back with {subscribe} within 1 s",
            session.address()
        ),
        Err(refused) => {
            let source = std::error::Error::source(&refused)
                .map_or(refused.to_string(), ToString::to_string);
            format!("{} refuses messages ({source})", session.address())
        }
    };
    diagnosis.add(
        Finding::new("messages", Severity::Problem, seen)
            .because(
                "nobody is woken by a release: each waiter looks every 10 s, and when the lease of \
                 the holder ends",
            )
            .to_do(
                "grant the channels redisson_* and lockcore_*, and look for a proxy between that \
                 drops messages",
            ),
    );
    Ok(())
}

/// Returns `true` if a message arrives; the inner error is a refusal.
async fn send(
    session: &mut Session,
    server: &Arc<Server>,
    [subscribe, publish]: [&str; 2],
    scope: Scope<'_>,
) -> Result<Result<bool, BackendError>, BackendError> {
    let unique = RandomState::new().hash_one(());
    // The text after the braces does not change the slot.
    let channel = format!("{}:{unique:x}", probe_key(scope));
    let arrived = Arc::new(Notify::new());
    let noted = arrived.clone();
    let on_push = move |push: PushInfo| {
        if matches!(push.kind, PushKind::Message | PushKind::SMessage) {
            noted.notify_one();
        }
    };
    let mut listening = Session::open_with(server, on_push).await?;
    if let Err(refused) = listening.words::<redis::Value>(&[subscribe, &channel]).await? {
        return Ok(Err(refused));
    }
    if let Err(refused) = session.words::<redis::Value>(&[publish, &channel, "0"]).await? {
        return Ok(Err(refused));
    }
    Ok(Ok(tokio::time::timeout(ARRIVAL, arrived.notified()).await.is_ok()))
}
