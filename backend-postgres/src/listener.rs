//! [`WakeupListener`]: the connection on which wake-ups come.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fmt,
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use lockcore::{
    BackendError, BackendErrorKind, FencingToken,
    backend::{Wakeup, Wakeups, async_trait},
};
use tokio::{
    sync::{Notify, mpsc, watch},
    task::JoinHandle,
    time::Instant,
};
use tokio_postgres::{Client, Notification, SimpleQueryMessage, types::Type};
use uuid::Uuid;

use crate::{
    connection::{Connection, PING, Parameter},
    error,
    target::{Opened, Target},
};

/// The first pause after an attempt to connect that failed, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(500)];

/// The most channels in one statement.
const MOST: usize = 500;

/// The messages of a connection.
type Inbox = mpsc::UnboundedReceiver<Notification>;

/// A connection that listens. When it is lost, it is opened again, listens to the same channels,
/// and wakes all waiters, because messages may have been missed.
pub(crate) struct WakeupListener {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
    response_timeout: Duration,
    address: String,
}

#[derive(Default)]
struct Shared {
    board: Mutex<Board>,
    /// Notified when the board has changed: a channel got its first waiter, or lost its last one.
    changed: Notify,
    next: AtomicU64,
}

/// The subscribers of each channel.
#[derive(Default)]
struct Board {
    channels: HashMap<String, Vec<Arc<Subscriber>>>,
    /// The channels that the current connection listens to.
    heard: HashSet<String>,
    /// The channels that have become necessary or superfluous.
    touched: BTreeSet<String>,
}

struct Subscriber {
    number: u64,
    /// The hold or waiter that a message to the first waiter concerns, unless it concerns all.
    only: Option<String>,
    pending: Mutex<Option<Wakeup>>,
    woken: Notify,
}

/// The state of the connection.
#[derive(Clone)]
enum Progress {
    /// On the first attempt.
    Starting,
    /// Up. The waiters for a channel look at the board at each change.
    Going,
    Down(BackendError),
}

impl fmt::Debug for WakeupListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.shared.board().channels.len();
        f.debug_struct("WakeupListener")
            .field("address", &self.address)
            .field("channels", &count)
            .finish()
    }
}

impl Shared {
    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a message on to the subscribers that it concerns.
    fn deliver(&self, notification: &Notification) {
        let subscribers = self.board().channels.get(notification.channel()).cloned();
        for subscriber in subscribers.iter().flatten() {
            subscriber.hear(notification.payload());
        }
    }

    /// Wakes all waiters of these channels.
    fn wake<'a>(&self, channels: impl Iterator<Item = &'a String>) {
        let board = self.board();
        let all: Vec<_> =
            channels.filter_map(|name| board.channels.get(name)).flatten().cloned().collect();
        drop(board);
        all.iter().for_each(|subscriber| subscriber.wake(Wakeup::Changed));
    }
}

impl Subscriber {
    /// Messages are `all`, `first ID`, and `grant TOKEN REQUEST ID`.
    fn hear(&self, message: &str) {
        let is_for = |id: &str| self.only.as_deref().is_none_or(|only| only == id);
        if let Some(id) = message.strip_prefix("first ") {
            if is_for(id) {
                self.wake(Wakeup::Changed);
            }
        } else if let Some(grant) = message.strip_prefix("grant ") {
            let mut parts = grant.splitn(3, ' ');
            let mut number = || parts.next()?.parse::<i64>().ok();
            let (token, request) = (number(), number());
            let is_own = parts.next().is_some_and(is_for);
            match (token, request) {
                (Some(token), Some(request)) if is_own && self.only.is_some() => {
                    let token = FencingToken::from(token.cast_unsigned());
                    self.wake(Wakeup::Granted { token, request: request.cast_unsigned() });
                }
                _ if is_own => self.wake(Wakeup::Changed),
                _ => {}
            }
        } else {
            self.wake(Wakeup::Changed);
        }
    }

    fn pending(&self) -> MutexGuard<'_, Option<Wakeup>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Wakeup> {
        self.pending().take()
    }

    fn wake(&self, wakeup: Wakeup) {
        let mut pending = self.pending();
        // A grant is kept even if something else has happened as well.
        if !matches!(*pending, Some(Wakeup::Granted { .. })) || wakeup != Wakeup::Changed {
            *pending = Some(wakeup);
        }
        drop(pending);
        self.woken.notify_one();
    }
}

/// A subscription. It ends when it is dropped.
pub(crate) struct Subscription {
    shared: Arc<Shared>,
    channel: String,
    subscriber: Arc<Subscriber>,
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Subscription").field(&self.channel).finish()
    }
}

#[async_trait]
impl Wakeups for Subscription {
    async fn woken(&mut self) -> Wakeup {
        loop {
            // A wake-up after this leaves a permit.
            if let Some(wakeup) = self.subscriber.take() {
                return wakeup;
            }
            self.subscriber.woken.notified().await;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut board = self.shared.board();
        let Some(subscribers) = board.channels.get_mut(&self.channel) else { return };
        subscribers.retain(|other| other.number != self.subscriber.number);
        if subscribers.is_empty() {
            board.channels.remove(&self.channel);
            if !board.heard.contains(&self.channel) {
                // If the server is just being asked for it, this is noticed when it answers.
                board.touched.remove(&self.channel);
                return;
            }
            board.touched.insert(self.channel.clone());
            drop(board);
            self.shared.changed.notify_one();
        }
    }
}

impl WakeupListener {
    /// Begins to connect. `sender` is the connection over which others would send messages, and
    /// `pulse` a channel to which all clients listen.
    pub(crate) fn start(
        target: Target,
        sender: Arc<Connection>,
        pulse: String,
        response_timeout: Duration,
    ) -> (Self, ListenerProgress) {
        let shared = Arc::new(Shared::default());
        let address = target.address().to_owned();
        let (progress, receiver) = watch::channel(Progress::Starting);
        let keeper = Keeper {
            target,
            sender,
            pulse: Pulse { channel: pulse, id: Uuid::new_v4().simple().to_string() },
            response_timeout,
            shared: shared.clone(),
            progress,
            has_heard: false,
        };
        let task = tokio::spawn(keeper.keep());
        (Self { shared, task, response_timeout, address }, ListenerProgress(receiver))
    }

    /// The number of channels that it listens to.
    pub(crate) fn channels(&self) -> usize {
        self.shared.board().heard.len()
    }

    /// Subscribes, and returns when the server has confirmed. With `only`, messages to the first
    /// waiter in a queue are heard if `only` is that waiter.
    pub(crate) async fn subscribe(
        &self,
        progress: &ListenerProgress,
        channel: String,
        only: Option<String>,
    ) -> Result<Subscription, BackendError> {
        let mut progress = progress.0.clone();
        progress.mark_unchanged();
        let subscription = self.shared.join(channel, only);
        let waited = self.response_timeout;
        let heard = async {
            loop {
                let error = match &*progress.borrow_and_update() {
                    Progress::Starting | Progress::Going => None,
                    Progress::Down(error) => Some(error.clone()),
                };
                if self.shared.board().heard.contains(&subscription.channel) {
                    return Ok(());
                }
                if let Some(error) = error {
                    return Err(error);
                }
                if progress.changed().await.is_err() {
                    return Err(error::not_connected(&self.address, Duration::ZERO));
                }
            }
        };
        match tokio::time::timeout(waited, heard).await {
            Ok(heard) => heard.map(|()| subscription),
            Err(_) => Err(error::no_answer("subscribing", &self.address, waited).not_applied()),
        }
    }
}

impl Shared {
    fn join(self: &Arc<Self>, channel: String, only: Option<String>) -> Subscription {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (pending, woken) = (Mutex::default(), Notify::new());
        let subscriber = Arc::new(Subscriber { number, only, pending, woken });
        let mut board = self.board();
        let subscribers = board.channels.entry(channel.clone()).or_default();
        subscribers.push(subscriber.clone());
        if subscribers.len() == 1 {
            board.touched.insert(channel.clone());
            drop(board);
            self.changed.notify_one();
        }
        Subscription { shared: self.clone(), channel, subscriber }
    }
}

impl Drop for WakeupListener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The progress of the listener, for the waiters of a channel.
#[derive(Clone)]
pub(crate) struct ListenerProgress(watch::Receiver<Progress>);

impl ListenerProgress {
    /// Waits for the first attempt to listen.
    pub(crate) async fn started(&self) -> Result<(), BackendError> {
        let mut progress = self.0.clone();
        let started = progress.wait_for(|progress| !matches!(progress, Progress::Starting)).await;
        match started.as_deref() {
            Ok(Progress::Down(error)) => Err(error.clone()),
            // The task ends with the listener, which still exists.
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for ListenerProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ListenerProgress")
    }
}

/// Shows whether a client hears messages: over its other connection, it sends a message to a
/// channel to which it listens. An open connection alone does not prove that. It may lead to a
/// server that has been replaced, to which no client sends any more.
struct Pulse {
    /// The channel that all clients listen to: if one of them sends, the others need not.
    channel: String,
    /// The message that this client sends.
    id: String,
}

/// The task behind a [`WakeupListener`].
struct Keeper {
    target: Target,
    sender: Arc<Connection>,
    pulse: Pulse,
    response_timeout: Duration,
    shared: Arc<Shared>,
    progress: watch::Sender<Progress>,
    /// Set once a message has come.
    has_heard: bool,
}

/// Something that goes on while messages are handed on.
type Errand<'a, T> = Option<Pin<Box<dyn Future<Output = Result<T, BackendError>> + Send + 'a>>>;

/// Waits for the end of an errand, or forever if there is none.
async fn end_of<T>(errand: &mut Errand<'_, T>) -> Result<T, BackendError> {
    match errand {
        Some(running) => {
            let result = running.await;
            *errand = None;
            result
        }
        None => std::future::pending().await,
    }
}

/// The time without a message after which a client sends one. It is random, so that one client
/// sends first and the others need not.
fn quiet() -> Duration {
    let random = u32::try_from(Uuid::new_v4().as_u128() % 1_000).unwrap_or_default();
    PING + PING * random / 1_000
}

impl Keeper {
    async fn keep(mut self) {
        let mut pause = PAUSES[0];
        loop {
            let ended = match self.open().await {
                Ok((opened, inbox)) => {
                    self.has_heard = true;
                    pause = PAUSES[0];
                    self.serve(opened, inbox).await
                }
                Err(error) => error,
            };
            self.shared.board().heard.clear();
            tracing::debug!(error = %ended, "wake-ups from PostgreSQL are interrupted");
            self.progress.send_replace(Progress::Down(ended));
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES[1]);
        }
    }

    /// Connects to the server that the requests go to. If the first one is another, it tries as
    /// many as there are hosts.
    async fn open(&self) -> Result<(Opened, Inbox), BackendError> {
        let mut left = self.target.count_of_hosts();
        loop {
            let (sender, mut inbox) = mpsc::unbounded_channel();
            let opened = self.target.open(Some(sender)).await?;
            let channel = &self.pulse.channel;
            let listening = self.run(&opened.client, &format!("LISTEN \"{channel}\"")).await;
            let heard = match listening {
                Ok(()) => {
                    // A failure is one of the connection for requests.
                    self.send().await?;
                    self.hears_itself(&mut inbox).await
                }
                Err(error) => Err(error),
            };
            match heard {
                Ok(()) => {
                    self.target.prefer(&opened);
                    return Ok((opened, inbox));
                }
                Err(error) => {
                    self.target.leave(&opened);
                    left -= 1;
                    if left == 0 {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Hands messages on until the connection is lost or of no use any more.
    async fn serve(&self, mut opened: Opened, inbox: Inbox) -> BackendError {
        let Opened { client, driver, .. } = &mut opened;
        let ended = tokio::select! {
            () = driver.lost() => return self.lost(),
            ended = self.hand_on(client, inbox) => ended,
        };
        // The requests may go to another server by now.
        self.target.leave(&opened);
        ended
    }

    /// Hands messages on until a request fails, or a message does not arrive. Requests to the server
    /// do not delay messages.
    async fn hand_on(&self, client: &Client, mut inbox: Inbox) -> BackendError {
        // Earlier waiters may have missed something.
        let mut missed = self.shared.board().begin();
        let echo = Notify::new();
        let (mut telling, mut ping): (Errand<'_, Vec<String>>, Errand<'_, ()>) = (None, None);
        let mut silence = pin!(tokio::time::sleep(quiet()));
        loop {
            if telling.is_none() {
                telling = self.tell(client);
            }
            tokio::select! {
                Some(notification) = inbox.recv() => {
                    silence.as_mut().reset(Instant::now() + quiet());
                    if notification.payload() == self.pulse.id {
                        echo.notify_one();
                    }
                    self.shared.deliver(&notification);
                }
                told = end_of(&mut telling) => match told {
                    Ok(begun) => {
                        self.shared.board().begun(&begun);
                        self.progress.send_replace(Progress::Going);
                        self.shared.wake(begun.iter().filter(|name| missed.remove(*name)));
                    }
                    Err(error) => return error,
                },
                () = self.shared.changed.notified(), if telling.is_none() => {}
                answer = end_of(&mut ping) => {
                    if let Err(error) = answer {
                        return error;
                    }
                    silence.as_mut().reset(Instant::now() + quiet());
                }
                () = silence.as_mut(), if ping.is_none() => {
                    ping = Some(Box::pin(self.ping(client, &echo)));
                }
            }
        }
    }

    fn lost(&self) -> BackendError {
        let message = format!("the connection to PostgreSQL at {} was lost", self.target.address());
        BackendError::new(BackendErrorKind::Connection, message).not_applied()
    }

    /// Checks that the server still takes writes, and that a message arrives if one can be sent.
    async fn ping(&self, client: &Client, echo: &Notify) -> Result<(), BackendError> {
        let limit = self.response_timeout;
        let answer = tokio::time::timeout(limit, takes_writes(client)).await;
        if !matches!(answer, Ok(Ok(true))) {
            return Err(self.lost());
        }
        // A pulse that was given up may have come late. It says nothing about this one.
        let _ = echo.notified().now_or_never();
        match self.send().await {
            Ok(()) => tokio::time::timeout(limit, echo.notified()).await.map_err(|_| self.lost()),
            // The other connection is in trouble, and this one has just answered.
            Err(_) => Ok(()),
        }
    }

    async fn send(&self) -> Result<(), BackendError> {
        let Pulse { channel, id } = &self.pulse;
        let parameters: [Parameter<'_>; 2] = [(channel, Type::TEXT), (id, Type::TEXT)];
        let sql = "SELECT pg_notify($1, $2)";
        self.sender.call("testing the wake-ups", sql, &parameters).await.map(drop)
    }

    /// Begins to tell the server about the channels that have changed, if any have. Returns the
    /// channels whose messages it sends from then on.
    fn tell<'a>(&'a self, client: &'a Client) -> Errand<'a, Vec<String>> {
        let (begun, ended) = self.shared.board().next_changes();
        if begun.is_empty() && ended.is_empty() {
            return None;
        }
        let statement = |word: &str, channel: &String| format!("{word} \"{channel}\";");
        let begin = begun.iter().map(|channel| statement("LISTEN", channel));
        let end = ended.iter().map(|channel| statement("UNLISTEN", channel));
        let sql: String = begin.chain(end).collect();
        Some(Box::pin(async move { self.run(client, &sql).await.map(|()| begun) }))
    }

    async fn run(&self, client: &Client, sql: &str) -> Result<(), BackendError> {
        let address = self.target.address();
        match tokio::time::timeout(self.response_timeout, client.batch_execute(sql)).await {
            Ok(answer) => {
                answer.map_err(|error| error::of_request(error, "listening", address).not_applied())
            }
            Err(_) => {
                Err(error::no_answer("listening", address, self.response_timeout).not_applied())
            }
        }
    }

    /// Waits for the message that it has sent itself. Behind a pooler that shares connections among
    /// clients, listening succeeds, and nothing is ever heard.
    async fn hears_itself(&self, inbox: &mut Inbox) -> Result<(), BackendError> {
        let heard = async {
            while let Some(notification) = inbox.recv().await {
                if notification.payload() == self.pulse.id {
                    return true;
                }
            }
            false
        };
        let address = self.target.address();
        match tokio::time::timeout(self.response_timeout, heard).await {
            Ok(true) => {
                self.progress.send_replace(Progress::Going);
                Ok(())
            }
            Ok(false) => Err(self.lost()),
            // The configuration is right, but the connections may lead to different servers by now.
            Err(_) if self.has_heard => {
                let message = format!(
                    "no wake-ups come from PostgreSQL at {address}: a message that was sent did \
                     not arrive there"
                );
                Err(BackendError::new(BackendErrorKind::Unavailable, message).not_applied())
            }
            Err(_) => Err(error::configuration(format!(
                "no wake-ups come from PostgreSQL at {address}: a message that was sent there did \
                 not arrive. A pooler in transaction mode does not pass them on; give the server's \
                 own address with `listen_url`, of the same database"
            ))),
        }
    }
}

impl Board {
    /// Marks all channels as to be listened to, and returns them.
    fn begin(&mut self) -> HashSet<String> {
        self.heard.clear();
        self.touched = self.channels.keys().cloned().collect();
        self.channels.keys().cloned().collect()
    }

    /// The next channels to start and to stop listening to.
    fn next_changes(&mut self) -> (Vec<String>, Vec<String>) {
        let (mut begun, mut ended) = (Vec::new(), Vec::new());
        while begun.len() + ended.len() < MOST
            && let Some(channel) = self.touched.pop_first()
        {
            match (self.channels.contains_key(&channel), self.heard.contains(&channel)) {
                (true, false) => begun.push(channel),
                (false, true) => {
                    // From here on, a waiter that comes back has to wait for the channel again.
                    self.heard.remove(&channel);
                    ended.push(channel);
                }
                _ => {}
            }
        }
        (begun, ended)
    }

    /// The server sends the messages of these channels from now on. All waiters of a channel may
    /// have left.
    fn begun(&mut self, channels: &[String]) {
        for channel in channels {
            if !self.channels.contains_key(channel) {
                self.touched.insert(channel.clone());
            }
            self.heard.insert(channel.clone());
        }
    }
}

/// Asks whether the session takes writes. Requests that change nothing would not notice.
async fn takes_writes(client: &Client) -> Result<bool, tokio_postgres::Error> {
    let rows = client.simple_query("SHOW transaction_read_only").await?;
    let is_on = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => row.get(0) == Some("on"),
        _ => false,
    };
    Ok(!rows.iter().any(is_on))
}
