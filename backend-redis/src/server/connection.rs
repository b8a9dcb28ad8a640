//! [`CommandConnection`]: one connection for commands, from opening to its end.

use std::{
    io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use lockcore::{BackendError, BackendErrorKind};
use redis::{
    Cmd, ErrorKind, Pipeline, PushInfo, PushKind, RedisError, RedisResult, Value,
    aio::MultiplexedConnection,
};
use tokio::{runtime::Handle, sync::Notify, task::AbortHandle};

use super::{
    address::{Locate, Place},
    batch::{KnownScripts, SendQueue},
    boxes::Boxes,
    check::Identity,
    clock::ServerClock,
    commands::Home,
    opener::{Opened, Opener, Progress, Purpose},
    pulse::Pulse,
    replicas::Unacknowledged,
};
use crate::{
    error,
    script::{self, ScriptCall},
    url::{self, Endpoint},
};

static NEXT_SERIAL: AtomicU64 = AtomicU64::new(0);

/// A connection for commands.
#[derive(Debug)]
pub(crate) struct CommandConnection {
    inner: MultiplexedConnection,
    /// The runtime of the connection's driver.
    pub(super) runtime: Handle,
    /// The requests that wait to be sent in batches.
    pub(super) queue: SendQueue,
    pub(super) scripts: KnownScripts,
    boxes: Boxes<RedisResult<Vec<Value>>>,
    pub(super) clock: ServerClock,
    /// The acquisitions that wait for replicas.
    pub(super) unacknowledged: Unacknowledged,
    /// The server behind the connection.
    pub(crate) identity: Identity,
    /// The host and the port that it leads to, unless that is a socket of this machine.
    endpoint: Option<Endpoint>,
    /// A number that is unique among the connections of this process.
    serial: u64,
    /// Set when the server has refused a call because its keys were in different slots.
    splits_batches: Arc<AtomicBool>,
    life: Arc<Life>,
    pulse: Arc<Pulse>,
    /// The location of the server.
    address: Arc<dyn Locate>,
    /// Gives the connection up when the server has been succeeded.
    successor: AbortHandle,
}

/// The state of a connection, which its driver shares.
#[derive(Debug)]
struct Life {
    state: AtomicU8,
    home: Home,
    /// Notified when replies are no longer waited for.
    severed: Notify,
}

/// The states, in their order.
const USABLE: u8 = 0;
/// No new requests are sent. The replies to those that were sent are still good.
const GIVEN_UP: u8 = 1;
/// A reply did not fit its request, so the next replies may belong to other requests as well.
const OUT_OF_STEP: u8 = 2;
/// The server has been succeeded, and replies are not waited for any longer.
const SEVERED: u8 = 3;

/// How long to wait for the replies of a server that has been succeeded.
const LAST_REPLIES: Duration = Duration::from_millis(100);

impl Life {
    /// Stops other tasks from using the connection.
    fn end(&self, state: u8) {
        if self.state.fetch_max(state, Ordering::AcqRel) == USABLE
            && let Some(home) = self.home.upgrade()
        {
            home.lost();
        }
    }

    /// Ends the connection when another server has succeeded the one at `place`, which may never
    /// answer again.
    async fn end_with(self: Arc<Self>, address: Arc<dyn Locate>, place: Place) {
        address.moved(&place).await;
        // A Sentinel that is behind would name this place again.
        address.reject(&place);
        tracing::info!(address = place.address(), "another server has succeeded this one");
        self.end(GIVEN_UP);
        tokio::time::sleep(LAST_REPLIES).await;
        self.end(SEVERED);
        self.severed.notify_waiters();
    }

    /// Resolves when replies are no longer waited for.
    async fn severed(&self) {
        let severed = self.severed.notified();
        if self.state.load(Ordering::Acquire) != SEVERED {
            severed.await;
        }
    }
}

/// Gives a connection up when its driver is dropped.
struct EndOnDrop(Arc<Life>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end(GIVEN_UP);
    }
}

impl CommandConnection {
    pub(super) async fn open(
        opener: &Opener,
        purpose: Purpose,
        home: Home,
        progress: &Progress,
    ) -> Result<Arc<Self>, BackendError> {
        let (state, severed) = (AtomicU8::new(USABLE), Notify::new());
        let life = Arc::new(Life { state, home, severed });
        // The driver owns `on_push`, and the runtime owns the driver. So the connection is also
        // given up when the runtime shuts down.
        let driver = EndOnDrop(life.clone());
        let on_push = move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                driver.0.end(GIVEN_UP);
            }
        };
        let Opened { connection: inner, identity, place } =
            opener.open(purpose, progress, on_push).await?;
        let (runtime, queue) = (Handle::current(), SendQueue::default());
        let unacknowledged = Unacknowledged::default();
        let splits_batches = opener.splits_batches.clone();
        let can_restore = match identity.passes_on_when_keys_end() {
            true => opener.can_restore.clone(),
            false => Arc::default(),
        };
        let endpoint = url::endpoint(place.info.addr());
        let successor = life.clone().end_with(opener.address.clone(), place);
        let successor = runtime.spawn(successor).abort_handle();
        let connection = Self {
            inner,
            runtime,
            queue,
            scripts: KnownScripts::default(),
            boxes: Boxes::default(),
            clock: ServerClock::new(can_restore),
            unacknowledged,
            identity,
            endpoint,
            serial: NEXT_SERIAL.fetch_add(1, Ordering::Relaxed),
            splits_batches,
            life,
            pulse: Arc::default(),
            address: opener.address.clone(),
            successor,
        };
        if connection.is_usable() {
            Ok(Arc::new(connection))
        } else {
            let message = "the connection to Redis broke as soon as it was open";
            Err(BackendError::new(BackendErrorKind::Connection, message).not_applied())
        }
    }

    pub(crate) fn is_usable(&self) -> bool {
        self.life.state.load(Ordering::Acquire) == USABLE
    }

    /// Fails if the connection was given up: another server may be the primary by now, and an answer
    /// of this one says nothing about its holds.
    pub(crate) fn still_leads(&self) -> Result<(), BackendError> {
        if self.is_usable() {
            return Ok(());
        }
        let message = "the connection to Redis was given up before the answer was looked at";
        Err(BackendError::new(BackendErrorKind::Connection, message))
    }

    /// Returns `true` if the keys of a call have to be in the same slot.
    pub(crate) fn splits_batches(&self) -> bool {
        self.splits_batches.load(Ordering::Relaxed)
    }

    /// Notes that the server has refused a call of several requests because of their keys.
    pub(crate) fn note_refused_batch(&self, refusal: &RedisError) {
        if refusal.code() == Some("CROSSSLOT") {
            self.splits_batches.store(true, Ordering::Relaxed);
        }
    }

    /// The host and the port that it leads to, unless that is a socket of this machine.
    pub(crate) fn endpoint(&self) -> Option<&Endpoint> {
        self.endpoint.as_ref()
    }

    /// The process of the server: by its own name for it, or if the user has no right to that, by
    /// this connection, which ends with it.
    pub(crate) fn process(&self) -> String {
        match self.identity.run_id() {
            Some(run_id) => run_id.to_owned(),
            None => format!("connection-{}-{}", std::process::id(), self.serial),
        }
    }

    /// The name and the version of the server software, as the server reports them.
    pub(crate) fn software(&self) -> Option<(String, String)> {
        self.identity.software()
    }

    fn is_out_of_step(&self) -> bool {
        self.life.state.load(Ordering::Acquire) >= OUT_OF_STEP
    }

    /// Sends `call` once.
    pub(crate) async fn call(&self, call: &ScriptCall) -> Result<Value, BackendError> {
        let reply = self.try_call(call, |by_digest| call.command(by_digest, None)).await;
        reply.map_err(|error| error::of_request(error, call.script.name))
    }

    /// Sends the `command` of a call once.
    pub(crate) async fn try_call(
        &self,
        call: &ScriptCall,
        command: impl Fn(bool) -> Cmd,
    ) -> RedisResult<Value> {
        self.clock.forget(call);
        // The command may be the release that undoes an acquisition.
        self.write_batch();
        self.try_send(command).await
    }

    /// Sends the command of a script once. If the server does not know the script, it has not run
    /// it, so the command is sent again with the source.
    pub(crate) async fn try_send(&self, command: impl Fn(bool) -> Cmd) -> RedisResult<Value> {
        if self.is_out_of_step() {
            // The server's answer that it does not know the script would not be recognized.
            return self.query(command(false)).await;
        }
        let by_digest = self.query(command(true)).await;
        match by_digest {
            Err(error) if script::is_unknown_script(&error) => {
                Box::pin(self.query(command(false))).await
            }
            reply => reply,
        }
    }

    /// Like [`try_send`](Self::try_send), to a node that its slot is on its way to. `ASKING` is
    /// written together with the command, because it is about the next command of the connection.
    pub(crate) async fn try_ask(&self, command: impl Fn(bool) -> Cmd) -> RedisResult<Value> {
        let by_digest = self.ask(command(true)).await;
        match by_digest {
            Err(error) if script::is_unknown_script(&error) => {
                Box::pin(self.ask(command(false))).await
            }
            reply => reply,
        }
    }

    /// Sends one command behind `ASKING`.
    pub(super) async fn ask(&self, command: Cmd) -> RedisResult<Value> {
        let mut asking = redis::pipe();
        asking.cmd("ASKING").add_command(command);
        let mut inner = self.inner.clone();
        let request = pin!(inner.send_packed_commands(&asking, 1, 1));
        let mut replies = self.reply(request).await?;
        self.checked(replies.pop().unwrap_or(Value::Nil))
    }

    /// Sends a command. Unlike `Cmd::query_async`, this allocates no box.
    ///
    /// If the connection fails or times out, it is given up: a command on a connection that does
    /// not answer may arrive much later.
    pub(crate) async fn query(&self, command: Cmd) -> RedisResult<Value> {
        let mut inner = self.inner.clone();
        let request = pin!(inner.send_packed_command(&command));
        self.checked(self.reply(request).await?)
    }

    /// Like [`query`](Self::query), for commands that are written together. An error is one of the
    /// replies, to be [`checked`](Self::checked).
    pub(crate) async fn query_all(&self, commands: Pipeline) -> RedisResult<Vec<Value>> {
        let mut inner = self.inner.clone();
        let mut request = self
            .boxes
            .put(async move { inner.send_packed_commands(&commands, 0, commands.len()).await });
        let replies = self.reply(Pin::new(&mut request)).await?;
        self.boxes.take_back(request);
        Ok(replies)
    }

    /// Waits for the reply to a request. The request is large, so it is pinned where it is made, and
    /// not moved from future to future.
    async fn reply<T: Default>(
        &self,
        request: Pin<&mut impl Future<Output = RedisResult<T>>>,
    ) -> RedisResult<T> {
        let request = pin!(async {
            tokio::select! {
                biased;
                reply = request => reply,
                () = self.life.severed() => Ok(T::default()),
            }
        });
        let reply = self.pulse.during(&self.runtime, &self.address, request).await;
        match self.life.state.load(Ordering::Acquire) {
            OUT_OF_STEP => {
                return Err((ErrorKind::Parse, "an earlier reply did not fit its request").into());
            }
            SEVERED => {
                let message = "another server has succeeded this one";
                return Err(io::Error::new(io::ErrorKind::ConnectionAborted, message).into());
            }
            _ => {}
        }
        reply.inspect_err(|error| self.end_after(error))
    }

    /// Returns the error that a reply is, if it is one.
    pub(super) fn checked(&self, reply: Value) -> RedisResult<Value> {
        reply.extract_error().inspect_err(|error| self.end_after(error))
    }

    fn end_after(&self, error: &RedisError) {
        if error::ends_connection(error) {
            self.give_up();
        }
    }

    /// Decodes a reply. If it does not fit its request, the next ones may not fit either.
    pub(crate) fn decode<T>(
        &self,
        reply: Value,
        decode: impl FnOnce(Value) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        decode(reply).inspect_err(|error| {
            if error.kind() == BackendErrorKind::Protocol {
                self.lose_step();
            }
        })
    }

    /// Trusts no further reply, because one did not fit its request: the next ones may belong to
    /// other requests.
    pub(super) fn lose_step(&self) {
        self.life.end(OUT_OF_STEP);
    }

    /// Gives the connection up if a script has passed on an error that says that this server is not
    /// the place for locks.
    pub(crate) fn heed(&self, text: &str) {
        if error::says_not_here(text) {
            self.give_up();
        }
    }

    /// Stops other tasks from using the connection. Requests that were sent get their replies.
    pub(crate) fn give_up(&self) {
        self.life.end(GIVEN_UP);
    }
}

impl Drop for CommandConnection {
    fn drop(&mut self) {
        self.successor.abort();
    }
}
