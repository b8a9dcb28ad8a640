//! [`Batch`]: requests that are sent together, in one write.

use std::{fmt, mem, sync::Arc};

use redis::{Cmd, Pipeline, RedisError, RedisResult, Value};
use tokio::sync::oneshot;

use super::{
    known::KnownScripts,
    recent::{self, BatchNumber},
};
use crate::{
    cluster::Publishing,
    error,
    exclusive::{BatchOperation, BatchableRequest},
    restore::{self, Restored, Sent},
    script::{self, CallSize},
    server::{
        CommandConnection,
        clock::{Proposal, Retry, ServerClock, TokenSource},
    },
    wire::{millis, token_ttl},
};

/// The maximum number of acquisitions by scripts of their own. Starting a shared script for so few
/// costs the server more than it saves.
const FEW: usize = 4;

/// On a single server, more acquisitions than this always share a script. Their commands and replies
/// would cost the client more than they save the server.
const MANY: usize = 32;

/// On a cluster, the maximum number of acquisitions by transactions of their own. More of them share
/// a script: see [`recent`].
const FEW_RECENT: usize = 6;

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

    /// The request to be sent again, without the caller's expectation.
    pub(super) fn asked_for(mut self, send_alone: bool) -> Self {
        self.request.held_for = None;
        Self { send_alone, ..self }
    }

    pub(super) fn end(self, reply: RedisResult<Value>) {
        let _ = self.reply.send(reply);
    }
}

pub(super) fn is_on_cluster(request: &BatchableRequest) -> bool {
    request.publishing.is_some()
}

/// The error that a request would have got on its own.
fn refusal(text: &str) -> RedisError {
    let (code, detail) = text.split_once(' ').unwrap_or((text, ""));
    redis::make_extension_error(code.into(), Some(detail.into()))
}

/// Requests that are sent together, in this order.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// The releases that need no script.
    released: Vec<PendingRequest>,
    number: BatchNumber,
    /// The requests that share a script: releases, then acquisitions.
    shared: Vec<PendingRequest>,
    /// The acquisitions of locks that are most likely held, as their callers know.
    looks: Vec<PendingRequest>,
    /// The acquisitions that need no script.
    restored: Vec<(PendingRequest, Sent)>,
    /// The acquisitions by scripts of their own.
    alone: Vec<(PendingRequest, Proposal)>,
}

impl Batch {
    /// Makes a batch of requests that are sent now.
    pub(super) fn new(requests: Vec<PendingRequest>, clock: &ServerClock) -> Self {
        let is_acquisition =
            |request: &BatchableRequest| !request.is_release() && !request.can_look();
        let acquisitions = requests.iter().filter(|pending| is_acquisition(&pending.request));
        let on_cluster = requests.first().is_some_and(|first| is_on_cluster(&first.request));
        let number = BatchNumber::next();
        let (mut batch, mut shared) = (Self { number, ..Self::default() }, Vec::new());
        let count = acquisitions.count();
        batch.released.reserve_exact(requests.len() - count);
        batch.restored.reserve_exact(count);
        for pending in requests {
            match &pending.request {
                request if request.is_release() => batch.released.push(pending),
                request if request.can_look() => batch.looks.push(pending),
                request if count > MANY && request.least().is_none() && !on_cluster => {
                    shared.push(pending);
                }
                request => match clock.propose(request) {
                    Proposal { source: TokenSource::Last(sent), .. } => {
                        batch.restored.push((pending, sent));
                    }
                    proposal => batch.alone.push((pending, proposal)),
                },
            }
        }
        if on_cluster {
            batch.share_those_behind();
        }
        if batch.alone.len() > FEW {
            let has_no_least =
                |(pending, _): &mut (PendingRequest, _)| pending.request.least().is_none();
            // The script that is shared does not tell the server's time, which they all may lack.
            let asks_for_time = batch.alone[0].1.source == TokenSource::Script(None);
            let sharing = batch.alone.extract_if(usize::from(asks_for_time).., has_no_least);
            shared.extend(sharing.map(|(pending, _)| pending));
        }
        if !shared.is_empty() {
            batch.shared = mem::take(&mut batch.released);
            batch.shared.append(&mut shared);
        }
        batch
    }

    /// Adds the acquisitions of locks whose last token is behind the clock to those without a script,
    /// if these are so many that they share one after all, which can raise the token.
    fn share_those_behind(&mut self) {
        let is_behind = |(_, proposal): &(PendingRequest, Proposal)| proposal.behind.is_some();
        let count = self.alone.iter().filter(|each| is_behind(each)).count();
        if self.restored.len() + count > FEW_RECENT {
            let behind = self.alone.extract_if(.., |each| is_behind(each));
            let raised = behind.filter_map(|(pending, proposal)| Some((pending, proposal.behind?)));
            self.restored.extend(raised);
        }
    }

    /// On a cluster, many acquisitions without a script share one after all, with the releases: see
    /// [`recent`].
    fn recent(&self) -> Option<Publishing> {
        match self.restored.as_slice() {
            [(PendingRequest { request, .. }, _), rest @ ..] if rest.len() >= FEW_RECENT => {
                request.publishing
            }
            _ => None,
        }
    }

    /// The number of acquisitions in a transaction. On a cluster its keys have to be in the same
    /// slot.
    fn per_transaction(&self) -> usize {
        match self.restored.as_slice() {
            [(first, _), ..] if is_on_cluster(&first.request) => 1,
            restored => restored.len().max(1),
        }
    }

    /// Returns `true` if there are several transactions. Their replies are followed by the number of
    /// the batch.
    fn has_transactions(&self) -> bool {
        self.restored.len() > self.per_transaction()
    }

    /// The commands of the batch, or `None` if it is empty. Scripts are sent with their source,
    /// unless the server is expected to know them.
    pub(super) fn commands(&self, known: Option<&KnownScripts>) -> Option<Pipeline> {
        let by_digest = known.is_some();
        let recent = self.recent();
        let mut commands = Pipeline::with_capacity(match recent {
            Some(_) => 1,
            None => 2 * self.released.len() + 4 * self.restored.len() + self.alone.len() + 2,
        });
        if recent.is_none() {
            self.released.iter().for_each(|pending| pending.request.add_release(&mut commands));
        }
        if !self.shared.is_empty() {
            let by_digest = known.is_some_and(|known| known.shared.is_known());
            commands.add_command(self.script_command(by_digest));
        }
        if !self.looks.is_empty() {
            let mut look = Cmd::new();
            look.arg("EXISTS");
            for PendingRequest { request, .. } in &self.looks {
                look.arg(request.keys.as_str());
            }
            commands.add_command(look);
        }
        if let Some(publishing) = recent {
            let (released, acquired) = (&self.released, &self.restored);
            let by_digest = known.is_some_and(|known| known.recent.is_known());
            let command = recent::command(self.number, released, acquired, publishing, by_digest);
            commands.add_command(command);
        } else {
            for acquisitions in self.restored.chunks(self.per_transaction()) {
                let requests = acquisitions.iter().map(|(pending, sent)| (&pending.request, *sent));
                restore::add_commands(&mut commands, requests);
            }
            if self.has_transactions() {
                commands.add_command(self.number.echo());
            }
        }
        for (PendingRequest { request, .. }, proposal) in &self.alone {
            commands.add_command(request.acquire_command(by_digest, proposal.proposed()));
        }
        (!commands.is_empty()).then_some(commands)
    }

    /// The command of the script that is shared.
    fn script_command(&self, by_digest: bool) -> Cmd {
        let requests = || self.shared.iter().map(|pending| &pending.request);
        let releases = requests().take_while(|request| request.is_release()).count();
        let (released, acquired) = self.shared.split_at(releases);
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
            let BatchOperation::Acquire { lease, tokens, .. } = request.operation else { continue };
            command.arg(group.len()).arg(millis(lease)).arg(token_ttl(lease)).arg(tokens);
            for PendingRequest { request, .. } in group {
                command.arg(request.hold.owner());
            }
        }
        command
    }

    /// Passes the replies on. Returns the requests that were not carried out, and are to be sent
    /// again.
    pub(super) fn settle(
        mut self,
        replies: Vec<Value>,
        connection: &Arc<CommandConnection>,
    ) -> NotCarriedOut {
        let clock = &connection.clock;
        let (mut replies, mut again) = (replies.into_iter(), NotCarriedOut::default());
        let recent = self.recent();
        let mut settled = Vec::with_capacity(self.len() - self.shared.len());
        if recent.is_none() {
            settled.extend(mem::take(&mut self.released).into_iter().map(|pending| {
                let reply = pending.request.take_released(&mut replies);
                let reply = clock.accept_release(&pending.request, reply);
                (pending, Ok(reply))
            }));
        }
        if !self.shared.is_empty() {
            let reply = connection.checked(replies.next().unwrap_or(Value::Nil));
            settle_shared(mem::take(&mut self.shared), reply, connection, &mut again);
        }
        if !self.looks.is_empty() {
            let reply = connection.checked(replies.next().unwrap_or(Value::Nil));
            settled.extend(settle_looks(mem::take(&mut self.looks), reply, connection, &mut again));
        }
        if recent.is_some() {
            let reply = replies.next().unwrap_or(Value::Nil);
            let (released, acquired) = (self.released, self.restored);
            let number = self.number;
            recent::settle(number, released, acquired, reply, connection, &mut settled, &mut again);
        } else {
            let mut outcomes = Vec::with_capacity(self.restored.len());
            for acquisitions in self.restored.chunks(self.per_transaction()) {
                let sent = acquisitions.iter().map(|(_, sent)| *sent);
                restore::take_replies(&mut replies, sent, &mut outcomes);
            }
            let is_ours = !self.has_transactions()
                || self.number.matches(&replies.next().unwrap_or(Value::Nil));
            if !is_ours {
                outcomes = outcomes.into_iter().map(Restored::out_of_step).collect();
            }
            for ((pending, _), outcome) in self.restored.into_iter().zip(outcomes) {
                again.restored(pending, clock, outcome, &mut settled);
            }
        }
        for (pending, proposal) in self.alone {
            let reply = replies.next().unwrap_or(Value::Nil);
            let reply = clock.accept(proposal, &pending.request, reply);
            settled.push((pending, Ok(reply)));
        }
        pass_on(settled, connection, &mut again);
        again
    }

    pub(super) fn len(&self) -> usize {
        let Self { released, number: _, shared, looks, restored, alone } = self;
        released.len() + shared.len() + looks.len() + restored.len() + alone.len()
    }

    /// Passes an error of the connection on.
    pub(super) fn fail(self, failure: &RedisError) {
        let Self { released, number: _, shared, looks, restored, alone } = self;
        let restored = restored.into_iter().map(|(pending, _)| pending);
        let alone = alone.into_iter().map(|(pending, _)| pending);
        let acquisitions = looks.into_iter().chain(restored).chain(alone);
        let requests = released.into_iter().chain(shared).chain(acquisitions);
        requests.for_each(|pending| pending.end(Err(failure.clone())));
    }
}

/// The requests that were not carried out, and are to be sent again.
#[derive(Debug, Default)]
pub(super) struct NotCarriedOut {
    /// The server did not know their script.
    pub(super) unknown: Vec<PendingRequest>,
    /// The lock was not free, or the server refused the way in which the request was sent.
    pub(super) refused: Vec<PendingRequest>,
    /// Acquisitions that have to be undone first. The flag is `true` if their tokens have to be
    /// undone too.
    pub(super) undone: Vec<(PendingRequest, bool)>,
}

impl NotCarriedOut {
    /// Adds an acquisition to `settled`, unless it is to be sent again in another way.
    pub(super) fn restored(
        &mut self,
        pending: PendingRequest,
        clock: &ServerClock,
        outcome: Restored,
        settled: &mut Vec<(PendingRequest, RedisResult<Value>)>,
    ) {
        match clock.accept_restored(&pending.request, outcome) {
            Ok(reply) => settled.push((pending, Ok(reply))),
            Err(Retry::Now) => self.refused.push(pending),
            Err(Retry::AfterUndo { is_new }) => self.undone.push((pending, is_new)),
        }
    }
}

/// Passes on the replies to requests that were sent as commands of their own.
fn pass_on(
    mut settled: Vec<(PendingRequest, RedisResult<Value>)>,
    connection: &Arc<CommandConnection>,
    again: &mut NotCarriedOut,
) {
    // If one of them belongs to another request, so may the others.
    if settled.iter().any(|(_, reply)| matches!(reply, Ok(Value::Nil))) {
        connection.lose_step();
        settled.iter_mut().for_each(|(_, reply)| *reply = Ok(Value::Nil));
    }
    for (pending, reply) in settled {
        match reply.and_then(|reply| connection.checked(reply)) {
            Err(error) if script::is_unknown_script(&error) => again.unknown.push(pending),
            reply => pending.end(reply),
        }
    }
}

/// Returns the replies to acquisitions whose locks were counted. Unless all locks are there, each is
/// asked for: the count does not tell which ones are free.
fn settle_looks(
    looks: Vec<PendingRequest>,
    reply: RedisResult<Value>,
    connection: &CommandConnection,
    again: &mut NotCarriedOut,
) -> Vec<(PendingRequest, RedisResult<Value>)> {
    let all = i64::try_from(looks.len()).unwrap_or(i64::MAX);
    match reply {
        Ok(Value::Int(count)) if count == all => {
            let held = |pending: PendingRequest| {
                let reply = pending.request.held_for.map_or(Value::Nil, BatchableRequest::refusal);
                (pending, Ok(reply))
            };
            looks.into_iter().map(held).collect()
        }
        Ok(Value::Int(count)) if (0..all).contains(&count) => {
            again.refused.extend(looks.into_iter().map(|pending| pending.asked_for(false)));
            Vec::new()
        }
        // The reply to another request.
        Ok(_) => looks.into_iter().map(|pending| (pending, Ok(Value::Nil))).collect(),
        Err(error) if error::is_of_one_key(&error) => {
            connection.note_refused_batch(&error);
            again.refused.extend(looks.into_iter().map(|pending| pending.asked_for(true)));
            Vec::new()
        }
        Err(error) => looks.into_iter().map(|pending| (pending, Err(error.clone()))).collect(),
    }
}

/// Passes on the reply to [`Batch::script_command`].
fn settle_shared(
    requests: Vec<PendingRequest>,
    reply: RedisResult<Value>,
    connection: &Arc<CommandConnection>,
    again: &mut NotCarriedOut,
) {
    let replies = match reply {
        Ok(Value::Array(replies)) if replies.len() == requests.len() => {
            connection.scripts.shared.note(true);
            replies
        }
        // Fails every request with a protocol error.
        Ok(_) => {
            connection.lose_step();
            vec![Value::Nil; requests.len()]
        }
        Err(error) if script::is_unknown_script(&error) => {
            connection.scripts.shared.note(false);
            again.unknown.extend(requests);
            return;
        }
        Err(error) if error::is_of_one_key(&error) => {
            connection.note_refused_batch(&error);
            let alone = |pending| PendingRequest { send_alone: true, ..pending };
            again.refused.extend(requests.into_iter().map(alone));
            return;
        }
        Err(error) => {
            requests.into_iter().for_each(|pending| pending.end(Err(error.clone())));
            return;
        }
    };
    for (pending, reply) in requests.into_iter().zip(replies) {
        let reply = match (pending.request.operation, reply) {
            (_, Value::BulkString(text)) => {
                let text = String::from_utf8_lossy(&text);
                connection.heed(&text);
                Err(refusal(&text))
            }
            (BatchOperation::Acquire { .. }, token @ Value::Int(_)) => {
                let reply = Value::Array(vec![Value::Int(1), token]);
                Ok(connection.clock.accept(Proposal::none(), &pending.request, reply))
            }
            (BatchOperation::Release, reply) => {
                Ok(connection.clock.accept_release(&pending.request, reply))
            }
            (_, reply) => Ok(reply),
        };
        pending.end(reply);
    }
}
