//! [`Batch`]: requests that are sent together, as commands of their own or as one script.

use std::{fmt, iter, sync::Arc};

use redis::{Cmd, Pipeline, RedisError, RedisResult, Value};
use tokio::sync::oneshot;

use crate::{
    error,
    exclusive::{BatchOperation, BatchableRequest},
    script::{self, CallSize},
    server::{
        CommandConnection,
        clock::{Proposal, ServerClock},
    },
    wire::{millis, token_ttl},
};

/// The maximum number of requests that are sent as commands of their own. To start a script for so
/// few costs the server more than it saves.
const FEW: usize = 4;

/// A request that waits to be sent, or for its reply.
pub(super) struct PendingRequest {
    pub(super) request: BatchableRequest,
    /// Set after a batch was refused, because of this request or of another one in it.
    pub(super) send_alone: bool,
    pub(super) reply: oneshot::Sender<RedisResult<Value>>,
}

impl fmt::Debug for PendingRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingRequest").field("request", &self.request).finish_non_exhaustive()
    }
}

impl PendingRequest {
    /// Returns `true` if the caller still waits for the reply.
    pub(super) fn is_wanted(&self) -> bool {
        !self.reply.is_closed()
    }

    pub(super) fn end(self, reply: RedisResult<Value>) {
        let _ = self.reply.send(reply);
    }
}

/// The error that a request would have got on its own.
fn refusal(text: &str) -> RedisError {
    let (code, detail) = text.split_once(' ').unwrap_or((text, ""));
    redis::make_extension_error(code.into(), Some(detail.into()))
}

/// Requests that are sent together: the releases, then the acquisitions.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) requests: Vec<PendingRequest>,
    /// The proposal of each request, if they were sent as commands of their own.
    proposals: Vec<Proposal>,
}

impl Batch {
    pub(super) fn new(mut requests: Vec<PendingRequest>) -> Self {
        // The sort is stable.
        requests.sort_by_key(|request| request.request.operation != BatchOperation::Release);
        Self { requests, proposals: Vec::new() }
    }

    /// Returns `true` if a script costs more than what it saves.
    fn is_small(&self) -> bool {
        self.requests.len() <= FEW
    }

    /// The commands of the batch, or `None` if it is empty.
    pub(super) fn commands(&mut self, by_digest: bool, clock: &ServerClock) -> Option<Pipeline> {
        if self.requests.is_empty() {
            return None;
        }
        let mut commands = Pipeline::with_capacity(2 * FEW);
        if self.is_small() {
            self.proposals = self.requests.iter().map(|_| clock.propose()).collect();
            for (PendingRequest { request, .. }, proposal) in
                self.requests.iter().zip(&self.proposals)
            {
                request.add_to(&mut commands, by_digest, proposal.token);
            }
        } else {
            commands.add_command(self.script_command(by_digest));
        }
        Some(commands)
    }

    /// The command that carries out all requests.
    fn script_command(&self, by_digest: bool) -> Cmd {
        let requests = || self.requests.iter().map(|request| &request.request);
        let releases =
            requests().take_while(|request| request.operation == BatchOperation::Release).count();
        let (released, acquired) = self.requests.split_at(releases);
        let groups = acquired.chunk_by(|one, next| one.request.operation == next.request.operation);
        let size = CallSize {
            keys: releases + 2 * acquired.len(),
            args: 1 + 2 * releases + acquired.len() + 4 * groups.clone().count(),
            bytes: requests().map(BatchableRequest::bytes).sum(),
        };
        let mut command = match requests().next().and_then(|request| request.publishing) {
            None => script::BATCH.command(by_digest, None, size),
            Some(publishing) => {
                script::BATCH_OF_SLOTS.command_of_slots(by_digest, publishing, size)
            }
        };
        for request in requests() {
            command.arg(request.keys.as_str());
        }
        for PendingRequest { request, .. } in acquired {
            command.arg(request.keys.token());
        }
        command.arg(releases);
        for PendingRequest { request, .. } in released {
            command.arg(request.hold.owner()).arg(request.keys.channel());
        }
        for group in groups {
            let [PendingRequest { request, .. }, ..] = group else { continue };
            let BatchOperation::Acquire { lease, tokens } = request.operation else { continue };
            command.arg(group.len()).arg(millis(lease)).arg(token_ttl(lease)).arg(tokens);
            for PendingRequest { request, .. } in group {
                command.arg(request.hold.owner());
            }
        }
        command
    }

    /// Passes the replies on. Returns the requests that were not carried out, because the server
    /// did not know the script.
    pub(super) fn settle(
        self,
        replies: Vec<Value>,
        connection: &Arc<CommandConnection>,
    ) -> Vec<PendingRequest> {
        if self.proposals.is_empty() {
            let reply = replies.into_iter().next().unwrap_or(Value::Nil);
            settle_script(self.requests, connection.checked(reply), connection)
        } else {
            settle_few(self.requests, &self.proposals, replies, connection)
        }
    }

    pub(super) fn fail(self, failure: &RedisError) {
        self.requests.into_iter().for_each(|request| request.end(Err(failure.clone())));
    }
}

/// Passes on the replies to requests that were sent as commands of their own. Returns the requests
/// that were not carried out, because the server did not know the script.
fn settle_few(
    requests: Vec<PendingRequest>,
    proposals: &[Proposal],
    replies: Vec<Value>,
    connection: &Arc<CommandConnection>,
) -> Vec<PendingRequest> {
    let mut replies = replies.into_iter();
    let take_reply = |(PendingRequest { request, .. }, proposal): (&PendingRequest, &Proposal)| {
        connection.clock.accept(*proposal, request.take_reply(&mut replies))
    };
    let mut replies: Vec<_> = requests.iter().zip(proposals).map(take_reply).collect();
    // If one of them belongs to another request, so may the others.
    if replies.contains(&Value::Nil) {
        connection.lose_step();
        replies.fill(Value::Nil);
    }
    let mut not_carried_out = Vec::new();
    for (request, reply) in requests.into_iter().zip(replies) {
        match connection.checked(reply) {
            Err(error) if script::is_unknown_script(&error) => not_carried_out.push(request),
            reply => request.end(reply),
        }
    }
    not_carried_out
}

/// Passes on the reply to [`Batch::script_command`]. Returns the requests that were not carried
/// out, because the server did not know the script.
fn settle_script(
    mut requests: Vec<PendingRequest>,
    reply: RedisResult<Value>,
    connection: &Arc<CommandConnection>,
) -> Vec<PendingRequest> {
    let replies = match reply {
        Ok(Value::Array(replies)) if replies.len() == requests.len() => replies,
        // Fails every request with a protocol error.
        Ok(_) => {
            connection.lose_step();
            iter::repeat_n(Value::Nil, requests.len()).collect()
        }
        Err(error) if script::is_unknown_script(&error) => return requests,
        Err(error) if error::is_of_one_key(&error) => {
            connection.note_refused_batch(&error);
            requests.iter_mut().for_each(|request| request.send_alone = true);
            connection.enqueue_first(requests);
            return Vec::new();
        }
        Err(error) => {
            requests.into_iter().for_each(|request| request.end(Err(error.clone())));
            return Vec::new();
        }
    };
    for (request, reply) in requests.into_iter().zip(replies) {
        let reply = match (request.request.operation, reply) {
            (_, Value::BulkString(text)) => {
                let text = String::from_utf8_lossy(&text);
                connection.heed(&text);
                Err(refusal(&text))
            }
            (BatchOperation::Acquire { .. }, token @ Value::Int(_)) => {
                Ok(Value::Array(vec![Value::Int(1), token]))
            }
            (_, reply) => Ok(reply),
        };
        request.end(reply);
    }
    Vec::new()
}
