//! Batches: concurrent requests for exclusive locks share one write, and possibly a transaction or
//! the call of a script.
//!
//! Only frequent requests are batched: outermost acquisitions and full releases of owners without a
//! name. All others are sent on their own.
//!
//! - A request that finds the connection idle is sent at once, in the caller's own future. Requests
//!   that follow wait in a queue. A task takes them as soon as all tasks that are ready now have
//!   run once; there is no timer.
//! - First come the releases. Then come the acquisitions that need no script, as one transaction,
//!   and up to four others as scripts of their own. More than four share a script, with the
//!   releases, and on a single server more than 32 of any sort do. Those with a least token stay on
//!   their own: the shared script issues tokens by the clock.
//! - Waiters that ask whether a wake-up was lost expect to be refused. One command checks whether
//!   all of their locks exist. If not, they ask in the usual way.
//! - For each lock, requests take effect in the order in which they were made. A batch is taken
//!   from the head of the queue and ends before the first request that would take effect out of
//!   order. It is sent before the next batch is taken. So the release that undoes an acquisition
//!   stays behind it.
//! - A request whose caller is gone is not sent. If it has been sent already, the caller has a
//!   release sent behind it.
//! - Each request has its own reply, and an error of one does not fail the others. An error of the
//!   connection fails all. If the server refuses a script because of the keys in it, it has not run
//!   it; its requests are sent again, each on its own. An acquisition that is refused without a
//!   script is sent again as a script.
//! - No request depends on the future or the runtime of another caller: the task runs on the
//!   runtime of the connection. If that runtime shuts down, the outcome is reported as unknown.
//!
//! On a node of a cluster, the locks of a batch are in different slots, which no transaction may
//! have. So the acquisitions that would be one are a transaction each, or if they are many, share a
//! script with the releases: see [`recent`]. If the slot of a request is elsewhere, its reply is the
//! node's error, and it is sent on its own to the node that the error names.
//!
//! There, a request that finds the connection idle waits in the queue as well, if a batch of several
//! was sent a moment ago. The replies to a batch wake its callers together, and the first of them
//! that makes another request would otherwise send it without the others, as a write and a call of
//! its own. The processors are busy with the other nodes meanwhile. A single server would be idle
//! until the batch comes.
//!
//! If a server forgets a script (`SCRIPT FLUSH`, or from Redis 7.4 and Valkey 8 on, after 500 others
//! that came with `EVAL`), the requests that share it are sent again behind those that were sent
//! meanwhile. So an acquisition may be refused because of an earlier
//! release; the message of the release wakes its waiter.

mod known;
mod recent;
mod requests;

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    hash::BuildHasher,
    io, mem,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use lockcore::BackendError;
use redis::{Pipeline, RedisResult, Value};
use rustc_hash::{FxBuildHasher, FxHashSet};
use tokio::{runtime::Handle, sync::oneshot};

pub(super) use self::known::KnownScripts;
use self::requests::{Batch, NotCarriedOut, PendingRequest, is_on_cluster};
use super::{
    CommandConnection,
    clock::{Retry, TokenSource},
};
use crate::{
    error,
    exclusive::{BatchOperation, BatchableRequest},
    restore::{self, Restored},
};

/// The maximum number of requests in a batch. The server does nothing else while a script runs.
const MAX_BATCH: usize = 128;

/// How long after a batch of several requests another one is likely. Its callers make their next
/// requests when they have the replies, which a remote node takes some milliseconds for.
const COMPANY: Duration = Duration::from_millis(20);

/// The requests of a connection that wait to be sent.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    state: Mutex<SendState>,
    /// Held while a batch is taken and written, so that batches are sent in the order in which they
    /// are taken.
    sending: Mutex<()>,
}

#[derive(Debug, Default)]
struct SendState {
    pending: VecDeque<PendingRequest>,
    /// The number of calls in flight.
    in_flight: usize,
    /// `true` if a sender has been started, or has stayed, that has not taken its next batch yet.
    has_sender: bool,
    /// When the last batch was taken, if it had several requests for a node of a cluster.
    had_company: Option<Instant>,
    /// The locks of the releases and of the acquisitions in a batch, by their hashes. Only
    /// `next_batch_len` uses them. They are kept so that their memory is used again.
    released: FxHashSet<u64>,
    acquired: FxHashSet<u64>,
}

impl SendState {
    /// Returns `true` if the caller has to start a sender for the pending requests.
    fn needs_sender(&mut self) -> bool {
        let needs = !self.pending.is_empty() && !self.has_sender;
        self.has_sender |= needs;
        needs
    }

    /// The length of the next batch. Releases are carried out before acquisitions, so a batch has
    /// no lock twice in either part, and no release of a lock after its acquisition. The script
    /// reads all tokens at once, so locks that share a token count as one. Two locks with the same
    /// hash count as one as well, and the batch ends before the second.
    fn next_batch_len(&mut self, most: usize) -> usize {
        let Self { pending, released, acquired, .. } = self;
        let most = pending.len().min(most);
        if most <= 1 {
            return most;
        }
        released.clear();
        acquired.clear();
        let fitting = pending.iter().take(most).take_while(
            |PendingRequest { request, send_alone, .. }| {
                let lock = FxBuildHasher.hash_one(request.keys.tag());
                !send_alone
                    && match request.operation {
                        BatchOperation::Release => {
                            !acquired.contains(&lock) && released.insert(lock)
                        }
                        BatchOperation::Acquire { .. } => acquired.insert(lock),
                    }
            },
        );
        // At least one: a request to be sent alone is not counted as fitting.
        fitting.count().max(1)
    }
}

impl SendQueue {
    fn lock(&self) -> MutexGuard<'_, SendState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CommandConnection {
    /// Waits until the batch that is being taken, if any, is written. A request that is sent after
    /// that is behind every acquisition of a caller that had gone before.
    pub(super) fn write_batch(&self) {
        drop(self.queue.sending.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

type ReplyReceiver = oneshot::Receiver<RedisResult<Value>>;

/// Counts a call as in flight until dropped.
struct InFlight<'a>(&'a CommandConnection);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.queue.lock().in_flight -= 1;
    }
}

/// Takes and sends batches. If dropped before it has taken the next one, it fails the pending
/// requests.
struct BatchSender {
    connection: Arc<CommandConnection>,
    has_taken: bool,
}

impl BatchSender {
    /// Takes the next batch, to be sent now. It is empty if all callers are gone.
    fn take(&mut self) -> Batch {
        self.has_taken = true;
        let mut state = self.connection.queue.lock();
        state.has_sender = false;
        state.pending.retain(PendingRequest::is_wanted);
        let len = state.next_batch_len(self.connection.max_batch());
        let requests: Vec<_> = state.pending.drain(..len).collect();
        if let [first, others @ ..] = requests.as_slice() {
            let has_company = !others.is_empty() && is_on_cluster(&first.request);
            state.had_company = has_company.then(Instant::now);
            state.in_flight += 1;
        }
        let needs_sender = state.needs_sender();
        drop(state);
        let batch = Batch::new(requests, &self.connection.clock);
        if needs_sender {
            self.connection.start_sender();
        }
        batch
    }

    /// Sends batches as long as each of them is followed by another one.
    async fn run(mut self) {
        loop {
            // Tasks that are ready now can add their requests first.
            tokio::task::yield_now().await;
            if !self.send().await || !self.stays() {
                return;
            }
        }
    }

    /// Sends a batch, and passes the replies on. Returns `true` if it had several requests, so that
    /// their callers may make the next ones at once.
    async fn send(&mut self) -> bool {
        let connection = self.connection.clone();
        let (mut batch, mut in_flight) = (Batch::default(), None);
        let replies = connection.send_next(|| {
            batch = self.take();
            let commands = batch.commands(Some(&connection.scripts));
            in_flight = commands.is_some().then(|| InFlight(&connection));
            commands
        });
        let replies = replies.await;
        let has_several = batch.len() > 1;
        let unknown = match replies {
            None => return false,
            Some(Err(failure)) => {
                batch.fail(&failure);
                return false;
            }
            Some(Ok(replies)) => connection.settle(batch, replies).await,
        };
        if !unknown.is_empty() {
            // Boxed, because this future is large and rarely needed.
            Box::pin(connection.send_sources(unknown)).await;
        }
        drop(in_flight);
        has_several
    }

    /// Makes this the sender of the next batch, unless there is one. So most batches need no new
    /// task.
    fn stays(&mut self) -> bool {
        let mut state = self.connection.queue.lock();
        let stays = !mem::replace(&mut state.has_sender, true);
        self.has_taken = !stays;
        stays
    }
}

impl Drop for BatchSender {
    fn drop(&mut self) {
        if !self.has_taken {
            let mut state = self.connection.queue.lock();
            state.has_sender = false;
            let abandoned = mem::take(&mut state.pending);
            drop(state);
            // Closes the reply channels, which the callers see.
            drop(abandoned);
        }
    }
}

impl CommandConnection {
    /// Sends `request` once, in a batch with others if there are any.
    pub(crate) fn send_batched(
        self: &Arc<Self>,
        request: BatchableRequest,
    ) -> impl Future<Output = Result<Value, BackendError>> + Send + use<'_> {
        let doing = request.script().name;
        let reply = self.try_send_batched(request);
        async move { reply.await.map_err(|error| error::of_request(error, doing)) }
    }

    /// Like [`send_batched`](Self::send_batched), with the error of the redis crate.
    ///
    /// When this returns, the request is in the queue. If the connection is idle, it is in a box
    /// instead, and the first poll of the future sends it. So poll at once: until then, requests
    /// that are made later are sent first. The future itself is small.
    pub(crate) fn try_send_batched(
        self: &Arc<Self>,
        request: BatchableRequest,
    ) -> impl Future<Output = RedisResult<Value>> + Send + use<'_> {
        let enqueued = self.enqueue_if_busy(request).map_err(|request| {
            // Boxed, because this future is large.
            (InFlight(self), Box::pin(async move { self.try_send_alone(&request).await }))
        });
        async move {
            match enqueued {
                Err((_in_flight, reply)) => reply.await,
                Ok(reply) => reply.await.unwrap_or_else(|_| {
                    let message = "the runtime of the connection has shut down";
                    Err(io::Error::new(io::ErrorKind::ConnectionAborted, message).into())
                }),
            }
        }
    }

    /// Sends `request` once, on its own.
    pub(crate) async fn try_send_alone(&self, request: &BatchableRequest) -> RedisResult<Value> {
        if request.is_release() {
            let mut commands = Pipeline::with_capacity(2);
            request.add_release(&mut commands);
            let mut replies = self.query_all(commands).await?.into_iter();
            let reply = request.take_released(&mut replies);
            return self.checked(self.clock.accept_release(request, reply));
        }
        let mut proposal = self.clock.propose(request);
        if let TokenSource::Last(sent) = proposal.source {
            let mut commands = Pipeline::with_capacity(4);
            restore::add_commands(&mut commands, [(request, sent)]);
            let mut replies = self.query_all(commands).await?.into_iter();
            let mut outcomes = Vec::with_capacity(1);
            restore::take_replies(&mut replies, [sent].into_iter(), &mut outcomes);
            let outcome = outcomes.pop().unwrap_or(Restored::Stray);
            match self.clock.accept_restored(request, outcome) {
                Ok(reply) => return Ok(reply),
                Err(Retry::Now) => {}
                Err(Retry::AfterUndo { is_new }) => {
                    // Boxed, because this future is large and rarely needed.
                    Box::pin(self.undo([(request, is_new)].into_iter())).await?
                }
            }
            proposal = self.clock.propose(request);
        }
        let command = |by_digest| request.acquire_command(by_digest, proposal.proposed());
        Ok(self.clock.accept(proposal, request, self.try_send(command).await?))
    }

    /// Undoes acquisitions [without a token](Restored::WithoutToken). If one of them may still be
    /// stored, the outcome of all is unknown, so the callers undo them.
    async fn undo(
        &self,
        acquisitions: impl Iterator<Item = (&BatchableRequest, bool)> + Clone,
    ) -> RedisResult<()> {
        let mut commands = Pipeline::new();
        for (request, is_new) in acquisitions.clone() {
            restore::add_undo(&mut commands, request, is_new);
        }
        let mut replies = self.query_all(commands).await?.into_iter();
        let mut are_undone = true;
        for (request, is_new) in acquisitions {
            are_undone &= match restore::take_undone(&mut replies, request, is_new) {
                Some(is_undone) => is_undone,
                None => {
                    self.lose_step();
                    false
                }
            };
        }
        if are_undone {
            return Ok(());
        }
        let message = "the last fencing token was lost, and the hold could not be undone";
        Err(io::Error::new(io::ErrorKind::ConnectionReset, message).into())
    }

    /// Sends requests again whose script the server did not know, with the source of the script.
    async fn send_sources(self: &Arc<Self>, unknown: Vec<PendingRequest>) {
        let mut batch = Batch::default();
        let replies = self.send_next(|| {
            let wanted = unknown.into_iter().filter(PendingRequest::is_wanted);
            batch = Batch::new(wanted.collect(), &self.clock);
            batch.commands(None)
        });
        match replies.await {
            None => {}
            Some(Err(failure)) => batch.fail(&failure),
            Some(Ok(replies)) => drop(self.settle(batch, replies).await),
        }
    }

    /// Passes the replies to a batch on, and puts back those requests that are to be sent again in
    /// another way. Returns those whose script the server did not know.
    async fn settle(self: &Arc<Self>, batch: Batch, replies: Vec<Value>) -> Vec<PendingRequest> {
        let NotCarriedOut { unknown, mut refused, undone } = batch.settle(replies, self);
        if !undone.is_empty() {
            let acquisitions = undone.iter().map(|(pending, is_new)| (&pending.request, *is_new));
            // Boxed, because this future is large and rarely needed.
            let result = Box::pin(self.undo(acquisitions)).await;
            let requests = undone.into_iter().map(|(pending, _)| pending);
            match result {
                Ok(()) => refused.extend(requests),
                Err(failure) => requests.for_each(|pending| pending.end(Err(failure.clone()))),
            }
        }
        if !refused.is_empty() {
            self.enqueue_first(refused);
        }
        unknown
    }

    /// Puts requests back at the head of the queue.
    fn enqueue_first(self: &Arc<Self>, requests: Vec<PendingRequest>) {
        let mut state = self.queue.lock();
        for request in requests.into_iter().rev() {
            state.pending.push_front(request);
        }
        let needs_sender = state.needs_sender();
        drop(state);
        if needs_sender {
            self.start_sender();
        }
    }

    /// Adds a request to the queue. If the connection is idle and others are not likely to follow,
    /// counts the request as in flight and gives it back instead: the caller has to send it.
    fn enqueue_if_busy(
        self: &Arc<Self>,
        request: BatchableRequest,
    ) -> Result<ReplyReceiver, BatchableRequest> {
        let mut state = self.queue.lock();
        let is_idle = state.in_flight == 0 && state.pending.is_empty();
        if is_idle && !self.expects_company(&state) {
            state.in_flight = 1;
            return Err(request);
        }
        let (reply, receiver) = oneshot::channel();
        state.pending.push_back(PendingRequest { request, send_alone: false, reply });
        let needs_sender = state.needs_sender();
        drop(state);
        if needs_sender {
            self.start_sender();
        }
        Ok(receiver)
    }

    /// Returns `true` if requests that the caller may wait for are likely to follow. It does not
    /// wait on another runtime, which may be at a standstill: no time limit would apply.
    fn expects_company(&self, state: &SendState) -> bool {
        state.had_company.is_some_and(|at| at.elapsed() < COMPANY)
            && Handle::try_current().is_ok_and(|current| current.id() == self.runtime.id())
    }

    /// The maximum number of requests in a batch of this connection.
    fn max_batch(&self) -> usize {
        if self.splits_batches() { 1 } else { MAX_BATCH }
    }

    /// Starts a sender. Called if [`SendState::needs_sender`] returned `true`.
    fn start_sender(self: &Arc<Self>) {
        let sender = BatchSender { connection: self.clone(), has_taken: false };
        self.runtime.spawn(sender.run());
    }

    /// Sends the commands that `next` returns, in the order in which `next` is called.
    async fn send_next(
        &self,
        next: impl FnOnce() -> Option<Pipeline>,
    ) -> Option<RedisResult<Vec<Value>>> {
        let mut request = pin!(async {
            let commands = next()?;
            Some(tokio::task::unconstrained(self.query_all(commands)).await)
        });
        let mut is_first = true;
        poll_fn(|context| {
            // The first poll takes the commands and gives them their place on the connection.
            let is_first = mem::take(&mut is_first);
            let _in_order =
                is_first.then(|| self.queue.sending.lock().unwrap_or_else(PoisonError::into_inner));
            request.as_mut().poll(context)
        })
        .await
    }
}
