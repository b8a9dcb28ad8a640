//! The part of a batch on a node of a cluster that concerns locks that were released a moment ago:
//! one script, `batch_of_recent.lua`, in the place of a transaction for each slot.

use std::sync::Arc;

use redis::{Cmd, RedisResult, Value};

use super::requests::{NotCarriedOut, PendingRequest};
use crate::{
    cluster::Publishing,
    error,
    restore::{self, Restored, Sent},
    script::{self, CallSize},
    server::CommandConnection,
};

/// The command that releases some locks and acquires others.
pub(super) fn command(
    released: &[PendingRequest],
    acquired: &[(PendingRequest, Sent)],
    publishing: Publishing,
    by_digest: bool,
) -> Cmd {
    let requests = released.iter().chain(acquired.iter().map(|(pending, _)| pending));
    let size = CallSize {
        keys: 0,
        args: 1 + 3 * released.len() + 5 * acquired.len(),
        bytes: requests.map(|pending| 64 + pending.request.bytes()).sum(),
    };
    let mut command = script::BATCH_OF_RECENT.command(by_digest, Some(publishing), size);
    command.arg(released.len());
    for PendingRequest { request, .. } in released {
        command.arg(request.keys.as_str()).arg(request.hold.owner()).arg(request.keys.channel());
    }
    let acquisitions = acquired.iter().map(|(pending, sent)| (&pending.request, *sent));
    restore::add_arguments(&mut command, acquisitions);
    command
}

/// Adds the replies of the requests of [`command`] to `settled`, by its reply.
pub(super) fn settle(
    released: Vec<PendingRequest>,
    acquired: Vec<(PendingRequest, Sent)>,
    reply: Value,
    connection: &Arc<CommandConnection>,
    settled: &mut Vec<(PendingRequest, RedisResult<Value>)>,
    again: &mut NotCarriedOut,
) {
    let clock = &connection.clock;
    let publishing = acquired.first().and_then(|(pending, _)| pending.request.publishing);
    let count = released.len() + acquired.len();
    // An error of one request is among the replies.
    let reply = match reply {
        Value::Array(replies) => Ok(replies),
        other => connection.checked(other).map(|_| Vec::new()),
    };
    let mut replies = match reply {
        Ok(replies) if replies.len() == count => replies,
        // The reply to another request.
        Ok(_) => vec![Value::Nil; count],
        Err(error) => {
            let requests = released.into_iter().chain(acquired.into_iter().map(|(one, _)| one));
            if script::is_unknown_script(&error) {
                publishing.inspect(|publishing| load(connection, *publishing));
                again.unknown.extend(requests);
            } else if error::is_of_one_key(&error) {
                connection.note_refused_batch(&error);
                again.refused.extend(requests.map(|pending| pending.asked_for(true)));
            } else {
                settled.extend(requests.map(|pending| (pending, Err(error.clone()))));
            }
            return;
        }
    };
    let acquisitions = replies.split_off(released.len());
    settled.extend(released.into_iter().zip(replies).map(|(pending, reply)| {
        let reply = match reply {
            Value::Int(_) | Value::ServerError(_) => reply,
            _ => Value::Nil,
        };
        let reply = clock.accept_release(&pending.request, reply);
        (pending, Ok(reply))
    }));
    for ((pending, sent), reply) in acquired.into_iter().zip(acquisitions) {
        again.restored(pending, clock, Restored::of_script(&reply, sent), settled);
    }
}

/// Makes the script known to the server, by a call that does nothing. The next batch needs it.
fn load(connection: &Arc<CommandConnection>, publishing: Publishing) {
    let (command, connection) = (command(&[], &[], publishing, false), connection.clone());
    connection.runtime.clone().spawn(async move {
        if let Err(error) = connection.query(command).await {
            tracing::debug!(%error, "failed to make a script known");
        }
    });
}
