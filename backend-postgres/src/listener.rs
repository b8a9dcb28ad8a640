//! [`WakeupListener`]: the connection on which wake-ups come.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lockcore::{
    BackendError, FencingToken,
    backend::{Wakeup, Wakeups, async_trait},
};
use tokio::{
    sync::{Notify, mpsc, watch},
    task::JoinHandle,
};
use tokio_postgres::{Notification, types::Type};
use uuid::Uuid;

use crate::{
    connection::{Connection, PING, Parameter},
    error,
    target::{Opened, Target},
};

/// The first pause after an attempt to connect that failed, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(500)];

/// How many channels one statement is about.
const MOST: usize = 500;

/// A connection that listens. It is opened again when it is lost, listens to the same channels
/// then, and wakes everybody: messages may have been missed.
pub(crate) struct WakeupListener {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
    response_timeout: Duration,
    address: String,
}

#[derive(Default)]
struct Shared {
    board: Mutex<Board>,
    /// The board has changed: somebody came to a new channel, or the last one has left.
    changed: Notify,
    next: AtomicU64,
}

/// The subscribers of each channel.
#[derive(Default)]
struct Board {
    channels: HashMap<String, Vec<Arc<Subscriber>>>,
    /// The channels that the current connection listens to.
    heard: HashSet<String>,
    /// The channels that may have become necessary or superfluous.
    touched: Vec<String>,
}

struct Subscriber {
    number: u64,
    /// The hold or waiter that is meant by a message to the first, if not everybody is.
    only: Option<String>,
    pending: Mutex<Option<Wakeup>>,
    woken: Notify,
}

/// How the connection is.
#[derive(Clone)]
enum Progress {
    /// On the first attempt.
    Starting,
    /// Up. Whoever waits for a channel looks at the board at each change.
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

    /// Hands a message on to those whom it concerns.
    fn deliver(&self, notification: &Notification) {
        let subscribers = self.board().channels.get(notification.channel()).cloned();
        for subscriber in subscribers.iter().flatten() {
            subscriber.hear(notification.payload());
        }
    }

    fn wake_all(&self) {
        let all: Vec<_> = self.board().channels.values().flatten().cloned().collect();
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
        // A grant is not forgotten because something else has happened as well.
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
            // Whoever wakes after this leaves a permit.
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
            board.touched.push(self.channel.clone());
            drop(board);
            self.shared.changed.notify_one();
        }
    }
}

impl WakeupListener {
    /// Begins to connect. `sender` is the connection over which others would send messages.
    pub(crate) fn start(
        target: Target,
        sender: Arc<Connection>,
        response_timeout: Duration,
    ) -> (Self, ListenerProgress) {
        let shared = Arc::new(Shared::default());
        let address = target.address().to_owned();
        let (progress, receiver) = watch::channel(Progress::Starting);
        let keeper = Keeper { target, sender, response_timeout, shared: shared.clone(), progress };
        let task = tokio::spawn(keeper.keep());
        (Self { shared, task, response_timeout, address }, ListenerProgress(receiver))
    }

    /// How many channels it listens to.
    pub(crate) fn channels(&self) -> usize {
        self.shared.board().heard.len()
    }

    /// Subscribes, and returns when the server has said that it will send. With `only`, messages to
    /// the first in a queue are heard if that is the first.
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
            board.touched.push(channel.clone());
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

/// The progress of the listener, for those who wait for a channel.
#[derive(Clone)]
pub(crate) struct ListenerProgress(watch::Receiver<Progress>);

impl ListenerProgress {
    /// Waits for the first attempt to listen.
    pub(crate) async fn started(&self) -> Result<(), BackendError> {
        let mut progress = self.0.clone();
        let started = progress.wait_for(|progress| !matches!(progress, Progress::Starting)).await;
        match started.as_deref() {
            Ok(Progress::Down(error)) => Err(error.clone()),
            // The task ends with the listener, which is there.
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for ListenerProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ListenerProgress")
    }
}

/// The task behind a [`WakeupListener`].
struct Keeper {
    target: Target,
    sender: Arc<Connection>,
    response_timeout: Duration,
    shared: Arc<Shared>,
    progress: watch::Sender<Progress>,
}

impl Keeper {
    async fn keep(self) {
        let mut pause = PAUSES[0];
        loop {
            let ended = self.serve(&mut pause).await;
            self.shared.board().heard.clear();
            tracing::debug!(error = %ended, "wake-ups from PostgreSQL are interrupted");
            self.progress.send_replace(Progress::Down(ended));
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES[1]);
        }
    }

    /// Listens until the connection is lost.
    async fn serve(&self, pause: &mut Duration) -> BackendError {
        let (sender, mut inbox) = mpsc::unbounded_channel();
        let mut opened = match self.target.open(Some(sender)).await {
            Ok(opened) => opened,
            Err(error) => return error,
        };
        if let Err(error) = self.hears_itself(&opened, &mut inbox).await {
            return error;
        }
        {
            let mut board = self.shared.board();
            board.touched = board.channels.keys().cloned().collect();
        }
        if let Err(error) = self.listen(&opened).await {
            return error;
        }
        *pause = PAUSES[0];
        // Whoever was there before may have missed something.
        self.shared.wake_all();
        loop {
            tokio::select! {
                biased;
                Some(notification) = inbox.recv() => self.shared.deliver(&notification),
                () = opened.driver.lost() => return self.lost(),
                () = self.shared.changed.notified() => {
                    if let Err(error) = self.listen(&opened).await {
                        return error;
                    }
                }
                () = tokio::time::sleep(PING) => {
                    if let Err(error) = self.ping(&opened).await {
                        return error;
                    }
                }
            }
        }
    }

    fn lost(&self) -> BackendError {
        let message = format!("the connection to PostgreSQL at {} was lost", self.target.address());
        BackendError::new(lockcore::BackendErrorKind::Connection, message).not_applied()
    }

    async fn ping(&self, opened: &Opened) -> Result<(), BackendError> {
        let ping = tokio::time::timeout(self.response_timeout, opened.client.check_connection());
        match ping.await {
            Ok(Ok(())) => Ok(()),
            _ => Err(self.lost()),
        }
    }

    /// Tells the server about the channels that have changed.
    async fn listen(&self, opened: &Opened) -> Result<(), BackendError> {
        loop {
            let (begun, ended) = self.shared.board().next_changes();
            if begun.is_empty() && ended.is_empty() {
                self.progress.send_replace(Progress::Going);
                return Ok(());
            }
            let statement = |word: &str, channel: &String| format!("{word} \"{channel}\";");
            let begin = begun.iter().map(|channel| statement("LISTEN", channel));
            let end = ended.iter().map(|channel| statement("UNLISTEN", channel));
            self.run(opened, &begin.chain(end).collect::<String>()).await?;
            self.shared.board().heard.extend(begun);
            self.progress.send_replace(Progress::Going);
        }
    }

    async fn run(&self, opened: &Opened, sql: &str) -> Result<(), BackendError> {
        let address = self.target.address();
        match tokio::time::timeout(self.response_timeout, opened.client.batch_execute(sql)).await {
            Ok(answer) => {
                answer.map_err(|error| error::of_request(error, "listening", address).not_applied())
            }
            Err(_) => {
                Err(error::no_answer("listening", address, self.response_timeout).not_applied())
            }
        }
    }

    /// Sends itself a message. Behind a pooler that shares connections among clients, listening
    /// succeeds, and nothing is ever heard.
    async fn hears_itself(
        &self,
        opened: &Opened,
        inbox: &mut mpsc::UnboundedReceiver<Notification>,
    ) -> Result<(), BackendError> {
        let channel = format!("lockcore_{}", Uuid::new_v4().simple());
        self.run(opened, &format!("LISTEN \"{channel}\"")).await?;
        let parameters: [Parameter<'_>; 1] = [(&channel, Type::TEXT)];
        let sql = "SELECT pg_notify($1, 'all')";
        self.sender.call("testing the wake-ups", sql, &parameters).await?;
        let heard = async {
            while let Some(notification) = inbox.recv().await {
                if notification.channel() == channel {
                    return true;
                }
            }
            false
        };
        match tokio::time::timeout(self.response_timeout, heard).await {
            Ok(true) => self.run(opened, &format!("UNLISTEN \"{channel}\"")).await,
            Ok(false) => Err(self.lost()),
            Err(_) => Err(error::configuration(format!(
                "no wake-ups come from PostgreSQL at {}: a message that was sent there did not \
                 arrive. A pooler in transaction mode does not pass them on; give the server's own \
                 address with `listen_url`, of the same database",
                self.target.address()
            ))),
        }
    }
}

impl Board {
    /// The next channels to listen to, and to listen to no more.
    fn next_changes(&mut self) -> (Vec<String>, Vec<String>) {
        let (mut begun, mut ended) = (Vec::new(), Vec::new());
        while begun.len() + ended.len() < MOST
            && let Some(channel) = self.touched.pop()
        {
            match (self.channels.contains_key(&channel), self.heard.contains(&channel)) {
                (true, false) if !begun.contains(&channel) => begun.push(channel),
                (false, true) => {
                    // From here on: whoever comes back meanwhile has to wait for it again.
                    self.heard.remove(&channel);
                    ended.push(channel);
                }
                _ => {}
            }
        }
        (begun, ended)
    }
}
