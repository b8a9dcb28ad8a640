//! Requests for exclusive locks that are made at the same time share one call of a script.
//!
//! Each of them would cost the client a command of its own, and the server the start of a script. What is shared is what is made
//! often: outermost acquisitions, and releases, of owners without a name. The others go as they are.
//!
//! - A request that finds no other on the connection goes alone, in the caller's own future. The others wait for a task that takes
//!   what there is as soon as the tasks that are ready now have had their turn. Nothing waits for time to pass.
//! - For each lock, requests take effect in the order in which they were made. What waits is taken in order, up to the first that the
//!   script would do in another order, and a batch is sent before the next is taken. So the undoing of an acquisition stays behind it.
//! - A request whose caller is gone is not sent any more. If it has been sent, the caller has its undoing sent behind it.
//! - Each request has its own answer: the error of one is not that of another. A failure of the connection is that of all. A batch
//!   that the server refuses for the keys in it is not run; its requests are sent again, each alone.
//! - No request depends on the future of another caller, nor on its runtime: the task runs where the connection does. If that runtime
//!   ends, callers are told that the outcome is unknown, as the connection has ended with it.
//!
//! All keys of a batch have to be on one server: with a cluster there would be a batch for each slot.

use std::{
    collections::VecDeque,
    fmt,
    future::{Future, poll_fn},
    iter, mem,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
};

use lockcore::{BackendError, BackendErrorKind};
use redis::{Cmd, RedisError, RedisResult, Value};
use rustc_hash::{FxBuildHasher, FxHashSet};
use tokio::sync::oneshot;

use crate::{
    commands::Connection,
    error,
    exclusive::{Kind, Outermost},
    script,
    wire::{millis, token_memory},
};

/// The server does nothing else while it runs a script.
const MOST: usize = 128;

/// What a connection has to send.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    /// Held while something is taken and sent, so that what is taken first is sent first.
    sending: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Request>,
    /// How many calls are under way.
    calls: usize,
    /// Whether there is a task that will take what waits.
    is_attended: bool,
}

impl State {
    /// Whether somebody has to start a task for what waits.
    fn wants_sender(&mut self) -> bool {
        let wants = !self.waiting.is_empty() && !self.is_attended;
        self.is_attended |= wants;
        wants
    }

    /// How many of those that wait the script does in their order: releases first, no lock twice.
    fn next(&self) -> usize {
        let most = self.waiting.len().min(MOST);
        let [mut released, mut acquired] =
            [(); 2].map(|()| FxHashSet::with_capacity_and_hasher(most, FxBuildHasher));
        let fitting =
            self.waiting.iter().take(most).take_while(|Request { request, is_alone, .. }| {
                let lock = request.keys.as_str();
                !is_alone
                    && match request.kind {
                        Kind::Release => !acquired.contains(lock) && released.insert(lock),
                        Kind::Acquire { .. } => acquired.insert(lock),
                    }
            });
        // One that goes alone is the first when it is its turn.
        fitting.count().max(1).min(self.waiting.len())
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Answered = oneshot::Receiver<Result<Value, BackendError>>;

struct Request {
    request: Outermost,
    /// For one that was refused together with others, whose fault it may not be.
    is_alone: bool,
    answer: oneshot::Sender<Result<Value, BackendError>>,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("request", &self.request).finish_non_exhaustive()
    }
}

impl Request {
    fn is_wanted(&self) -> bool {
        !self.answer.is_closed()
    }

    fn succeed(self, reply: Value) {
        let answer = match (self.request.kind, reply) {
            (_, Value::BulkString(text)) => Err(self.refusal(&String::from_utf8_lossy(&text))),
            (Kind::Acquire { .. }, token @ Value::Int(_)) => {
                Ok(Value::Array(vec![Value::Int(1), token]))
            }
            (_, reply) => Ok(reply),
        };
        let _ = self.answer.send(answer);
    }

    /// What it would have been told if it had been alone.
    fn refusal(&self, text: &str) -> BackendError {
        let (code, detail) = text.split_once(' ').unwrap_or((text, ""));
        let refusal = redis::make_extension_error(code.into(), Some(detail.into()));
        error::of_request(refusal, self.request.script().name)
    }

    fn fail(self, failure: &RedisError) {
        let failure = error::of_request(failure.clone(), self.request.script().name);
        let _ = self.answer.send(Err(failure));
    }
}

/// What is sent with one call, in order.
#[derive(Debug, Default)]
struct Batch {
    requests: Vec<Request>,
}

impl Batch {
    /// Those to be released, and those to be acquired.
    fn parts(&self) -> [Vec<&Outermost>; 2] {
        let requests = self.requests.iter().map(|request| &request.request);
        let (released, acquired) = requests.partition(|request| request.kind == Kind::Release);
        [released, acquired]
    }

    fn command(&self, by_digest: bool) -> Option<Cmd> {
        let [released, acquired] = match self.requests.as_slice() {
            [] => return None,
            [alone] => return Some(alone.request.command(by_digest)),
            _ => self.parts(),
        };
        let groups = acquired.chunk_by(|one, next| one.kind == next.kind);
        let keys = released.len() + 2 * acquired.len();
        let args = 1 + 2 * released.len() + acquired.len() + 4 * groups.clone().count();
        let size = released.iter().chain(&acquired).map(|request| request.size()).sum();
        let mut command = script::BATCH.command(by_digest, keys, args, size);
        for request in released.iter().chain(&acquired) {
            command.arg(request.keys.as_str());
        }
        for request in &acquired {
            command.arg(request.keys.token());
        }
        command.arg(released.len());
        for request in &released {
            command.arg(request.hold.owner()).arg(request.keys.channel());
        }
        for group in groups {
            let [Outermost { kind: Kind::Acquire { lease, tokens }, .. }, ..] = group else {
                continue;
            };
            command.arg(group.len()).arg(millis(*lease)).arg(token_memory(*lease)).arg(tokens);
            for request in group {
                command.arg(request.hold.owner());
            }
        }
        Some(command)
    }

    fn succeed(self, reply: Value) {
        let mut requests = self.requests;
        if let [_] = requests.as_slice() {
            // Its own script has no texts as replies.
            requests.into_iter().for_each(|alone| drop(alone.answer.send(Ok(reply.clone()))));
            return;
        }
        let replies = match reply {
            Value::Array(replies) if replies.len() == requests.len() => replies,
            // Which no request understands.
            _ => iter::repeat_n(Value::Nil, requests.len()).collect(),
        };
        // As the script has them.
        requests.sort_by_key(|request| request.request.kind != Kind::Release);
        requests.into_iter().zip(replies).for_each(|(request, reply)| request.succeed(reply));
    }

    fn fail(self, failure: &RedisError) {
        self.requests.into_iter().for_each(|request| request.fail(failure));
    }
}

/// A call that is under way. It is over when this is dropped, however that happens.
struct UnderWay<'a>(&'a Connection);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.queue.lock().calls -= 1;
    }
}

/// The duty to take what waits. Those whose task has gone without having done it are told.
struct Duty {
    connection: Arc<Connection>,
    is_done: bool,
}

impl Duty {
    /// What is sent next. Nothing if all callers are gone.
    fn take(&mut self) -> Batch {
        self.is_done = true;
        let mut state = self.connection.queue.lock();
        state.is_attended = false;
        state.waiting.retain(Request::is_wanted);
        let count = state.next();
        let batch = Batch { requests: state.waiting.drain(..count).collect() };
        state.calls += usize::from(count > 0);
        let wants_sender = state.wants_sender();
        drop(state);
        if wants_sender {
            self.connection.start_sender();
        }
        batch
    }

    async fn fulfil(mut self) {
        // So that those that are ready now can join.
        tokio::task::yield_now().await;
        let connection = self.connection.clone();
        let (mut batch, mut under_way) = (Batch::default(), None);
        let by_digest = connection.send_next(|| {
            batch = self.take();
            under_way = (!batch.requests.is_empty()).then(|| UnderWay(&connection));
            batch.command(true)
        });
        let Some(by_digest) = by_digest.await else { return };
        let reply = match by_digest {
            Err(error) if script::is_unknown(&error) => {
                let by_source = connection.send_next(|| {
                    batch.requests.retain(Request::is_wanted);
                    batch.command(false)
                });
                by_source.await.unwrap_or(Ok(Value::Nil))
            }
            reply => reply,
        };
        match reply {
            Ok(reply) => batch.succeed(reply),
            // Some lock is not this user's to take, and nothing was done for the others either.
            Err(failure) if batch.requests.len() > 1 && failure.code() == Some("NOPERM") => {
                let mut state = connection.queue.lock();
                for request in batch.requests.into_iter().rev() {
                    state.waiting.push_front(Request { is_alone: true, ..request });
                }
                let wants_sender = state.wants_sender();
                drop(state);
                if wants_sender {
                    connection.start_sender();
                }
            }
            Err(failure) => {
                connection.give_up_after(&error::of_request(failure.clone(), script::BATCH.name));
                batch.fail(&failure);
            }
        }
        drop(under_way);
    }
}

impl Drop for Duty {
    fn drop(&mut self) {
        if !self.is_done {
            let mut state = self.connection.queue.lock();
            state.is_attended = false;
            let abandoned = mem::take(&mut state.waiting);
            drop(state);
            // Which tells their callers.
            drop(abandoned);
        }
    }
}

impl Connection {
    /// Sends `request` once, together with others if there are some.
    pub(crate) async fn share(self: &Arc<Self>, request: Outermost) -> Result<Value, BackendError> {
        let doing = request.script().name;
        match self.wait_for_others(request) {
            // In a box, as it is large.
            Err(request) => Box::pin(self.send_alone(&request)).await,
            Ok(answered) => answered.await.unwrap_or_else(|_| {
                let text =
                    format!("{doing} on Redis failed: the connection has ended with its runtime");
                Err(BackendError::new(BackendErrorKind::Connection, text))
            }),
        }
    }

    async fn send_alone(&self, request: &Outermost) -> Result<Value, BackendError> {
        let _under_way = UnderWay(self);
        self.send(request.script(), |by_digest| request.command(by_digest)).await
    }

    /// Puts a request where others wait. If there are none, it is given back, and is under way.
    fn wait_for_others(self: &Arc<Self>, request: Outermost) -> Result<Answered, Outermost> {
        let mut state = self.queue.lock();
        if state.calls == 0 && state.waiting.is_empty() {
            state.calls = 1;
            return Err(request);
        }
        let (answer, answered) = oneshot::channel();
        state.waiting.push_back(Request { request, is_alone: false, answer });
        let wants_sender = state.wants_sender();
        drop(state);
        if wants_sender {
            self.start_sender();
        }
        Ok(answered)
    }

    /// For [`State::wants_sender`].
    fn start_sender(self: &Arc<Self>) {
        let duty = Duty { connection: self.clone(), is_done: false };
        self.runtime.spawn(duty.fulfil());
    }

    /// Sends what `next` gives behind all that was sent before, and before all that is sent later.
    async fn send_next(&self, next: impl FnOnce() -> Option<Cmd>) -> Option<RedisResult<Value>> {
        let (mut next, mut request) =
            (Some(next), None::<Pin<Box<dyn Future<Output = RedisResult<Value>> + Send>>>);
        poll_fn(|context| {
            if let Some(request) = &mut request {
                return request.as_mut().poll(context).map(Some);
            }
            // Polled once, the command has its place on the connection.
            let _in_order = self.queue.sending.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(command) = next.take().and_then(|next| next()) else {
                return Poll::Ready(None);
            };
            let request = request.insert(Box::pin(tokio::task::unconstrained(self.query(command))));
            request.as_mut().poll(context).map(Some)
        })
        .await
    }
}
