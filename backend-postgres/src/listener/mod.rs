//! [`WakeupListener`]: the connection on which wake-ups come.

mod keeper;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
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
    sync::{Notify, watch},
    task::JoinHandle,
};
use tokio_postgres::Notification;
use uuid::Uuid;

use self::keeper::{Keeper, Pulse};
use crate::{connection::Connection, error, schema::Schema, session::Begun, target::Target};

/// The most channels in one statement.
const MOST: usize = 500;

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
        schema: Schema,
        sender: Arc<Connection>,
        pulse: String,
        response_timeout: Duration,
    ) -> (Self, ListenerProgress) {
        let shared = Arc::new(Shared::default());
        let (address, begun) = (target.address().to_owned(), Begun::new(&target));
        let (progress, receiver) = watch::channel(Progress::Starting);
        let keeper = Keeper {
            target,
            schema,
            sender,
            pulse: Pulse { channel: pulse, id: Uuid::new_v4().simple().to_string() },
            response_timeout,
            shared: shared.clone(),
            progress,
            has_heard: false,
            begun,
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
