//! [`WakeupListener`]: the stream of messages about what was deleted.
//!
//! All subscriptions of a client share a stream, with one watch for each name that is waited for.
//! Holds and places end with the deletion of their keys, whoever deletes them: a release, a forced
//! one, a takeover, or the servers when a lease has ended. So a watch for deletions misses nothing
//! while it lasts. A stream that breaks is opened again, at another member if need be, and then
//! everybody is woken.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use etcd_client::{
    EventType, GetOptions, SortOrder, SortTarget, Txn, TxnOp, WatchFilterType, WatchOptions,
    WatchRequestSender, WatchResponse, WatchResponseStream,
};
use lockcore::{
    BackendError, BackendErrorKind, Mode,
    backend::{Wakeup, Wakeups, async_trait},
};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::{Instant, timeout},
};

use crate::{
    error,
    keys::{Keys, Kind},
    members::Members,
    requests::Transact,
    seen::gets,
};

/// The first pause after a stream was lost, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(500)];

/// How often a stream is asked whether it is still there.
const PING: Duration = Duration::from_secs(2);

/// The id of the watch with which a stream begins.
const FIRST_WATCH: i64 = 1;

const DOING: &str = "watching";

/// The names that are waited for, and the task that listens.
pub(crate) struct WakeupListener {
    shared: Arc<Shared>,
    progress: watch::Receiver<Progress>,
    task: JoinHandle<()>,
}

struct Shared {
    members: Arc<Members>,
    /// A key that nobody writes.
    unused: String,
    board: Mutex<Board>,
    /// The board has changed.
    changed: Notify,
    next: AtomicU64,
}

#[derive(Default)]
struct Board {
    /// By what the keys begin with.
    channels: HashMap<String, Channel>,
    /// The channels of the watches of the present stream.
    watches: HashMap<i64, String>,
    /// Watches to be ended.
    ended: Vec<i64>,
}

/// A name that is waited for as one kind of lock.
struct Channel {
    kind: Kind,
    keys: Keys,
    subscribers: Vec<Arc<Subscriber>>,
    /// The watch of the present stream, if it was asked for.
    watch: Option<i64>,
    /// The server has said that it watches.
    is_heard: bool,
    /// Something may have been missed.
    has_missed: bool,
    /// The first in the queue is being looked for, and has to be looked for again.
    looks: Look,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Look {
    #[default]
    None,
    Running,
    Again,
}

struct Subscriber {
    number: u64,
    /// The hold that waits in the queue of a fair lock.
    queued: Option<String>,
    pending: Mutex<bool>,
    woken: Notify,
}

/// How the stream is, for those who wait for a channel.
#[derive(Clone, Debug, Default)]
struct Progress {
    failures: usize,
    last: Option<BackendError>,
}

impl fmt::Debug for WakeupListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.shared.board().channels.len();
        f.debug_struct("WakeupListener").field("channels", &count).finish()
    }
}

impl Subscriber {
    fn pending(&self) -> MutexGuard<'_, bool> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        *self.pending() = true;
        self.woken.notify_one();
    }
}

impl Channel {
    /// Those who wait in a queue, if there are any.
    fn queued(&self) -> impl Iterator<Item = &Arc<Subscriber>> {
        self.subscribers.iter().filter(|subscriber| subscriber.queued.is_some())
    }

    fn wake_all(&self) {
        self.subscribers.iter().for_each(|subscriber| subscriber.wake());
    }
}

impl Shared {
    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hears(&self, name: &str) -> bool {
        self.board().channels.get(name).is_some_and(|channel| channel.is_heard)
    }

    fn join(self: &Arc<Self>, keys: Keys, kind: Kind, queued: Option<String>) -> Subscription {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (pending, woken) = (Mutex::default(), Notify::new());
        let subscriber = Arc::new(Subscriber { number, queued, pending, woken });
        let name = keys.kind(kind);
        let mut board = self.board();
        let channel = board.channels.entry(name.clone()).or_insert_with(|| Channel {
            kind,
            keys,
            subscribers: Vec::new(),
            watch: None,
            is_heard: false,
            has_missed: false,
            looks: Look::None,
        });
        channel.subscribers.push(subscriber.clone());
        let is_new = channel.subscribers.len() == 1;
        drop(board);
        if is_new {
            self.changed.notify_one();
        }
        Subscription { shared: self.clone(), channel: name, subscriber }
    }

    /// Finds out who is first in the queue of a fair lock, and wakes it if it is one of ours.
    async fn wake_first(self: Arc<Self>, name: String) {
        loop {
            let Some(keys) = self.board().channels.get(&name).map(|channel| channel.keys.clone())
            else {
                return;
            };
            let first = first_in_queue(&self.members, &keys).await;
            let mut board = self.board();
            let Some(channel) = board.channels.get_mut(&name) else { return };
            for subscriber in channel.queued() {
                // Without a queue, or an answer, it can be anybody's turn.
                let is_first = match &first {
                    Ok(Some(first)) => subscriber.queued.as_ref() == Some(first),
                    Ok(None) | Err(_) => true,
                };
                if is_first {
                    subscriber.wake();
                }
            }
            if channel.looks != Look::Again {
                channel.looks = Look::None;
                return;
            }
            channel.looks = Look::Running;
        }
    }

    /// Hands on that something of a channel was deleted. `holds`: a hold was.
    fn deliver(self: &Arc<Self>, name: &str, holds: bool) {
        let mut board = self.board();
        let Some(channel) = board.channels.get_mut(name) else { return };
        if channel.kind == Kind::ReadWrite {
            return channel.wake_all();
        }
        if holds {
            let others = channel.subscribers.iter().filter(|other| other.queued.is_none());
            others.for_each(|subscriber| subscriber.wake());
        }
        if channel.queued().next().is_none() {
            return;
        }
        match channel.looks {
            Look::None => {
                channel.looks = Look::Running;
                tokio::spawn(self.clone().wake_first(name.to_owned()));
            }
            Look::Running | Look::Again => channel.looks = Look::Again,
        }
    }

    /// The stream is lost, and whatever happens until the next one is missed.
    fn lose_all(&self) {
        let mut board = self.board();
        board.watches.clear();
        board.ended.clear();
        for channel in board.channels.values_mut() {
            channel.has_missed |= channel.watch.is_some();
            (channel.watch, channel.is_heard) = (None, false);
        }
    }
}

async fn first_in_queue(members: &Members, keys: &Keys) -> Result<Option<String>, BackendError> {
    const DOING: &str = "looking for the first in a queue";
    let options = GetOptions::new()
        .with_prefix()
        .with_sort(SortTarget::Create, SortOrder::Ascend)
        .with_keys_only()
        .with_limit(1);
    let places = keys.places(Kind::Lock);
    let read = Txn::new().and_then([TxnOp::get(places.as_str(), Some(options))]);
    let answer = members.call(DOING, &Transact(read)).await?;
    let [first] = gets(&answer.ok_or_else(|| error::unexpected(DOING))?, DOING)?;
    let id = first.kvs().first().and_then(|pair| pair.key().strip_prefix(places.as_bytes()));
    Ok(id.map(|id| String::from_utf8_lossy(id).into_owned()))
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
            if std::mem::take(&mut *self.subscriber.pending()) {
                return Wakeup::Changed;
            }
            self.subscriber.woken.notified().await;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut board = self.shared.board();
        let Some(channel) = board.channels.get_mut(&self.channel) else { return };
        channel.subscribers.retain(|other| other.number != self.subscriber.number);
        if !channel.subscribers.is_empty() {
            return;
        }
        let watch = channel.watch;
        board.channels.remove(&self.channel);
        if let Some(watch) = watch {
            board.watches.remove(&watch);
            board.ended.push(watch);
            drop(board);
            self.shared.changed.notify_one();
        }
    }
}

impl WakeupListener {
    /// Begins to listen. `unused` is a key that nobody writes.
    pub(crate) fn start(members: Arc<Members>, unused: String) -> Self {
        let (board, changed, next) = (Mutex::default(), Notify::new(), AtomicU64::new(0));
        let shared = Arc::new(Shared { members, unused, board, changed, next });
        let (sender, progress) = watch::channel(Progress::default());
        let keeper = Keeper { shared: shared.clone(), progress: sender, next_watch: FIRST_WATCH };
        Self { shared, progress, task: tokio::spawn(keeper.keep()) }
    }

    /// How many names the servers watch for this client, or are to.
    pub(crate) fn channels(&self) -> usize {
        self.shared.board().channels.len()
    }

    /// Subscribes, and returns when a server has said that it watches.
    pub(crate) async fn subscribe(
        &self,
        keys: Keys,
        mode: Mode,
        hold: &str,
    ) -> Result<Subscription, BackendError> {
        let Some(kind) = Kind::of(mode) else { return Err(BackendError::unsupported(mode)) };
        let mut progress = self.progress.clone();
        let failed_before = progress.borrow_and_update().failures;
        let queued = (mode == Mode::Fair).then(|| hold.to_owned());
        let subscription = self.shared.join(keys, kind, queued);
        let members = &self.shared.members;
        let heard = async {
            loop {
                let Progress { failures, last } = progress.borrow_and_update().clone();
                if self.shared.hears(&subscription.channel) {
                    return Ok(());
                }
                if let Some(last) = last.filter(|_| failures >= failed_before + members.len()) {
                    return Err(last);
                }
                if progress.changed().await.is_err() {
                    return Err(error::unexpected(DOING));
                }
            }
        };
        let limit = members.response_timeout();
        match timeout(limit, heard).await {
            Ok(heard) => heard.map(|()| subscription),
            Err(_) => {
                let address = members.address(members.current());
                Err(error::no_answer("subscribing", address, limit).not_applied())
            }
        }
    }
}

impl Drop for WakeupListener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The task behind a [`WakeupListener`].
struct Keeper {
    shared: Arc<Shared>,
    progress: watch::Sender<Progress>,
    /// The ids of watches are never used again.
    next_watch: i64,
}

/// A stream that is up.
struct Stream {
    sender: WatchRequestSender,
    answers: WatchResponseStream,
    address: String,
    last_answer: Instant,
}

impl Keeper {
    async fn keep(mut self) {
        let mut pause = PAUSES[0];
        let members = self.shared.members.clone();
        loop {
            // Nothing is watched before there is anything to watch.
            while self.shared.board().channels.is_empty() {
                self.shared.changed.notified().await;
            }
            let index = members.current();
            let opened = timeout(members.share(), self.open(index)).await;
            let opened = opened.unwrap_or_else(|_| {
                Err(error::no_answer(DOING, members.address(index), members.share()))
            });
            let error = match opened {
                Ok(stream) => {
                    pause = PAUSES[0];
                    self.serve(stream).await
                }
                Err(error) => error,
            };
            self.shared.lose_all();
            members.pass_over(index);
            tracing::debug!(%error, "wake-ups from etcd are interrupted");
            self.progress.send_modify(|progress| {
                progress.failures += 1;
                progress.last = Some(error.not_applied());
            });
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES[1]);
        }
    }

    /// Opens a stream with a watch of a key that nobody writes.
    async fn open(&mut self, index: usize) -> Result<Stream, BackendError> {
        let members = &self.shared.members;
        let address = members.address(index).to_owned();
        let failed = |error| error::of_request(error, DOING, &address);
        let client = members.client(index).await.map_err(failed)?;
        let id = self.next_watch;
        self.next_watch += 1;
        let options = WatchOptions::new().with_watch_id(id);
        let unused = self.shared.unused.as_str();
        let stream = client.watch_client().watch(unused, Some(options)).await.map_err(failed)?;
        let (sender, mut answers) = stream.split();
        let answer = answers.message().await.map_err(failed)?;
        match answer {
            Some(answer) if answer.created() && !answer.canceled() => {}
            Some(answer) => {
                // A server that was started again does not know the token. The client asks for
                // another one by itself, but not for a stream.
                let _ = client.refresh_token().await;
                return Err(self.refused(&answer, &address));
            }
            None => return Err(self.lost(&address)),
        }
        Ok(Stream { sender, answers, address, last_answer: Instant::now() })
    }

    /// Listens until the stream is lost.
    async fn serve(&mut self, mut stream: Stream) -> BackendError {
        loop {
            if let Err(error) = self.change(&mut stream).await {
                return error;
            }
            tokio::select! {
                biased;
                answer = stream.answers.message() => match answer {
                    Ok(Some(answer)) => {
                        stream.last_answer = Instant::now();
                        if let Err(error) = self.hear(&answer, &stream.address) {
                            return error;
                        }
                    }
                    Ok(None) => return self.lost(&stream.address),
                    Err(error) => return error::of_request(error, DOING, &stream.address),
                },
                () = self.shared.changed.notified() => {}
                () = tokio::time::sleep(PING) => {
                    let limit = PING + self.shared.members.response_timeout();
                    if stream.last_answer.elapsed() > limit {
                        return self.lost(&stream.address);
                    }
                    let ping = stream.sender.request_progress();
                    if !matches!(timeout(PING, ping).await, Ok(Ok(()))) {
                        return self.lost(&stream.address);
                    }
                }
            }
        }
    }

    /// Begins and ends watches.
    async fn change(&mut self, stream: &mut Stream) -> Result<(), BackendError> {
        let (begun, ended) = self.changes();
        let limit = self.shared.members.response_timeout();
        let change = async {
            for id in ended {
                stream.sender.cancel(id).await?;
            }
            for (id, prefix) in begun {
                let options = WatchOptions::new()
                    .with_prefix()
                    .with_watch_id(id)
                    .with_filters([WatchFilterType::NoPut]);
                stream.sender.watch(prefix, Some(options)).await?;
            }
            Ok::<_, etcd_client::Error>(())
        };
        match timeout(limit, change).await {
            Ok(changed) => changed.map_err(|_| self.lost(&stream.address)),
            Err(_) => Err(self.lost(&stream.address)),
        }
    }

    /// The watches to begin, with what the keys begin with, and those to end.
    fn changes(&mut self) -> (Vec<(i64, String)>, Vec<i64>) {
        let mut board = self.shared.board();
        let Board { channels, watches, ended } = &mut *board;
        let mut begun = Vec::new();
        for (name, channel) in channels.iter_mut().filter(|(_, channel)| channel.watch.is_none()) {
            channel.watch = Some(self.next_watch);
            watches.insert(self.next_watch, name.clone());
            begun.push((self.next_watch, name.clone()));
            self.next_watch += 1;
        }
        (begun, std::mem::take(ended))
    }

    fn hear(&self, answer: &WatchResponse, address: &str) -> Result<(), BackendError> {
        let mut board = self.shared.board();
        let Some(name) = board.watches.get(&answer.watch_id()).cloned() else {
            // The answer to a question whether the stream is there, or of a watch that was ended.
            let is_refused = answer.canceled() && answer.created();
            return if is_refused { Err(self.refused(answer, address)) } else { Ok(()) };
        };
        if answer.canceled() {
            return Err(self.refused(answer, address));
        }
        if answer.created()
            && let Some(channel) = board.channels.get_mut(&name)
        {
            channel.is_heard = true;
            if std::mem::take(&mut channel.has_missed) {
                channel.wake_all();
            }
            drop(board);
            self.progress.send_modify(|_| {});
            return Ok(());
        }
        drop(board);
        let deleted =
            answer.events().iter().filter(|event| event.event_type() == EventType::Delete);
        let (mut is_any, mut is_hold) = (false, false);
        for pair in deleted.filter_map(|event| event.kv()) {
            is_any = true;
            let rest = pair.key().strip_prefix(name.as_bytes()).unwrap_or_default();
            is_hold |= rest.starts_with(b"hold/");
        }
        if is_any {
            self.shared.deliver(&name, is_hold);
        }
        Ok(())
    }

    fn lost(&self, address: &str) -> BackendError {
        let message = format!("the stream of wake-ups from etcd at {address} was lost");
        BackendError::new(BackendErrorKind::Connection, message).not_applied()
    }

    /// The server does not watch, or watches no more.
    fn refused(&self, answer: &WatchResponse, address: &str) -> BackendError {
        let reason = answer.cancel_reason();
        let kind = match reason.contains("permission denied") {
            true => BackendErrorKind::Permission,
            false => BackendErrorKind::Unavailable,
        };
        let message = format!("etcd at {address} does not send wake-ups: {reason}");
        BackendError::new(kind, message).not_applied()
    }
}
