//! Renewal: many holds in one call of a script, as long as the server allows it and other requests
//! are not delayed.

use std::sync::Arc;

use futures_util::future::join_all;
use lockcore::{BackendError, backend::RenewOutcome};
use redis::Cmd;

use crate::{
    cluster::Publishing,
    error, reply,
    script::{self, CallSize, ScriptCall},
    server::{CommandConnection, Server},
};

/// The maximum number of leases in a call. Each permit has a lease of its own, and the server does
/// nothing else while a script runs: this many take it some milliseconds.
const MAX_LEASES: u32 = 4096;

/// The renewal of one hold: its keys and arguments in a call of `RENEW`.
#[derive(Debug)]
pub(crate) struct Renewal {
    pub(crate) keys: Vec<String>,
    pub(crate) args: [String; 5],
    /// The number of leases on the server.
    pub(crate) leases: u32,
}

impl Renewal {
    /// The call that renews this hold only.
    pub(crate) fn call(&self) -> ScriptCall {
        let (keys, args) = (self.keys.clone(), self.args.to_vec());
        ScriptCall { script: &script::RENEW, keys, args, optional: 0 }
    }
}

/// Renews holds. Each has its own outcome.
///
/// On a node of a cluster, which publishes as `publishing` says, the holds are in different slots.
/// The outcome of one whose slot is elsewhere is an error that [`is_of_slot`](error::is_of_slot).
pub(crate) async fn renew(
    server: &Server,
    renewals: &[Renewal],
    publishing: Option<Publishing>,
) -> Vec<RenewOutcome> {
    let mut outcomes = Vec::with_capacity(renewals.len());
    let mut rest = renewals;
    // One call after the other, so that the server can serve others in between.
    while !rest.is_empty() {
        let (chunk, later) = rest.split_at(chunk_len(rest));
        let result = match server.connection().await {
            Ok(connection) => renew_chunk(connection.clone(), chunk, publishing)
                .await
                .and_then(|renewed| connection.still_leads().map(|()| renewed)),
            Err(error) => Err(error),
        };
        match result {
            Ok(renewed) => outcomes.extend(renewed),
            Err(error) => {
                // The next call would wait for the same server.
                outcomes.resize(renewals.len(), RenewOutcome::Failed(error));
                return outcomes;
            }
        }
        rest = later;
    }
    outcomes
}

/// The number of holds in the next call: at least one.
fn chunk_len(renewals: &[Renewal]) -> usize {
    let mut leases = 0_u32;
    let fitting = renewals.iter().take_while(|renewal| {
        leases = leases.saturating_add(renewal.leases);
        leases <= MAX_LEASES
    });
    fitting.count().max(1)
}

async fn renew_chunk(
    connection: Arc<CommandConnection>,
    chunk: &[Renewal],
    publishing: Option<Publishing>,
) -> Result<Vec<RenewOutcome>, BackendError> {
    let mut unanswered = GiveUpOnDrop(Some(connection.clone()));
    if chunk.len() > 1 && connection.splits_batches() {
        let renewed = renew_each(&connection, chunk, publishing).await;
        unanswered.0 = None;
        return Ok(renewed);
    }
    let replies = match connection.try_send(|by_digest| command(chunk, publishing, by_digest)).await
    {
        Err(error) if chunk.len() > 1 && error::is_of_one_key(&error) => {
            connection.note_refused_batch(&error);
            Ok(renew_each(&connection, chunk, publishing).await)
        }
        Err(error) => Err(error::of_request(error, script::RENEW.name)),
        Ok(replies) => connection.decode(replies, |replies| reply::renew(replies, chunk.len())),
    };
    unanswered.0 = None;
    for outcome in replies.iter().flatten() {
        if let RenewOutcome::Failed(error) = outcome {
            connection.heed(&error.to_string());
        }
    }
    replies
}

/// Renews each hold on its own, after the server has refused to renew them together.
async fn renew_each(
    connection: &CommandConnection,
    chunk: &[Renewal],
    publishing: Option<Publishing>,
) -> Vec<RenewOutcome> {
    let renewals = chunk.iter().map(|renewal| {
        let one = std::slice::from_ref(renewal);
        async move {
            let reply = connection.try_send(|by_digest| command(one, publishing, by_digest));
            let renewed = match reply.await {
                Ok(reply) => connection.decode(reply, |reply| reply::renew(reply, 1)),
                Err(error) => Err(error::of_request(error, script::RENEW.name)),
            };
            let failed = |error| vec![RenewOutcome::Failed(error)];
            renewed.unwrap_or_else(failed)
        }
    });
    join_all(renewals).await.into_iter().flatten().collect()
}

fn command(renewals: &[Renewal], publishing: Option<Publishing>, by_digest: bool) -> Cmd {
    let keys = || renewals.iter().flat_map(|renewal| &renewal.keys);
    let args = || renewals.iter().flat_map(|renewal| &renewal.args);
    let size = CallSize {
        keys: keys().count(),
        args: args().count(),
        bytes: keys().chain(args()).map(String::len).sum(),
    };
    let mut command = match publishing {
        None => script::RENEW.command(by_digest, None, size),
        Some(publishing) => script::RENEW.command_of_slots(by_digest, publishing, size),
    };
    for part in keys().chain(args()) {
        command.arg(part);
    }
    command
}

/// Gives the connection up if dropped before the reply: a renewal is dropped only when it takes too
/// long.
struct GiveUpOnDrop(Option<Arc<CommandConnection>>);

impl Drop for GiveUpOnDrop {
    fn drop(&mut self) {
        if let Some(connection) = &self.0 {
            connection.give_up();
        }
    }
}
