//! The part of a large batch on a node of a cluster that concerns locks that were released a moment
//! ago: one script, `batch_of_recent.lua`, in the place of a transaction for each slot.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use redis::{Cmd, RedisResult, Value};

use super::requests::{NotCarriedOut, PendingRequest};
use crate::{
    cluster::Publishing,
    error,
    restore::{self, Restored, Sent},
    script::{self, CallSize},
    server::CommandConnection,
};

/// The number of a batch. The reply to its script begins with it, or the transactions are followed by
/// it. Without it, the replies of batches of equal length would fit each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BatchNumber(u64);

impl BatchNumber {
    /// A number that no other batch of this process has.
    pub(super) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// A command whose reply is this number.
    pub(super) fn echo(self) -> Cmd {
        redis::cmd("PING").arg(self.0).take()
    }

    pub(super) fn matches(self, reply: &Value) -> bool {
        matches!(reply, Value::BulkString(digits) if *digits == self.0.to_string().as_bytes())
    }
}

/// The command that releases some locks and acquires others.
pub(super) fn command(
    number: BatchNumber,
    released: &[PendingRequest],
    acquired: &[(PendingRequest, Sent)],
    publishing: Publishing,
    by_digest: bool,
) -> Cmd {
    let requests = released.iter().chain(acquired.iter().map(|(pending, _)| pending));
    let size = CallSize {
        keys: 0,
        args: 3 + 3 * released.len() + 6 * acquired.len(),
        bytes: requests.map(|pending| 64 + pending.request.bytes()).sum(),
    };
    let mut command = script::BATCH_OF_RECENT.command(by_digest, Some(publishing), size);
    // Those that are raised are the last ones.
    let following = acquired.iter().filter(|(_, sent)| !sent.is_raised).count();
    command.arg(number.0).arg(released.len()).arg(following);
    for PendingRequest { request, .. } in released {
        command.arg(request.keys.as_str()).arg(request.hold.owner()).arg(request.keys.channel());
    }
    let acquisitions = acquired.iter().map(|(pending, sent)| (&pending.request, *sent));
    restore::add_arguments(&mut command, acquisitions);
    command
}

/// Adds the replies of the requests of [`command`] to `settled`, by its reply.
pub(super) fn settle(
    number: BatchNumber,
    released: Vec<PendingRequest>,
    acquired: Vec<(PendingRequest, Sent)>,
    reply: Value,
    connection: &Arc<CommandConnection>,
    settled: &mut Vec<(PendingRequest, RedisResult<Value>)>,
    again: &mut NotCarriedOut,
) {
    let (clock, count) = (&connection.clock, 1 + released.len() + acquired.len());
    // An error of one request is among the replies.
    let reply = match reply {
        Value::Array(replies) => Ok(replies),
        other => connection.checked(other).map(|_| Vec::new()),
    };
    let replies = match reply {
        Ok(replies) => {
            connection.scripts.recent.note(true);
            replies
        }
        Err(error) => {
            let requests = released.into_iter().chain(acquired.into_iter().map(|(one, _)| one));
            if script::is_unknown_script(&error) {
                connection.scripts.recent.note(false);
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
    let is_ours = replies.len() == count && number.matches(&replies[0]);
    // Nil fails the request: this is the reply to another one.
    let mut replies = replies.into_iter().skip(1).filter(|_| is_ours);
    let mut next = || replies.next().unwrap_or(Value::Nil);
    settled.extend(released.into_iter().map(|pending| {
        let reply = match next() {
            reply @ (Value::Int(_) | Value::ServerError(_)) => reply,
            _ => Value::Nil,
        };
        let reply = clock.accept_release(&pending.request, reply);
        (pending, Ok(reply))
    }));
    for (pending, sent) in acquired {
        again.restored(pending, clock, Restored::of_script(&next(), sent), settled);
    }
}
