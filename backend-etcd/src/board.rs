//! [`Board`]: the names that are waited for, and their waiters. Nothing here listens.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use etcd_client::{GetOptions, SortOrder, SortTarget, Txn, TxnOp};
use lockcore::{
    BackendError,
    backend::{Wakeup, Wakeups, async_trait},
};
use tokio::sync::Notify;

use crate::{
    error,
    keys::{Keys, Kind},
    members::Members,
    requests::Transact,
    seen::gets,
};

/// State that the listening task shares with the waiters.
pub(crate) struct Shared {
    pub(crate) members: Arc<Members>,
    /// The prefix of all keys, which is itself a key that nobody writes.
    pub(crate) prefix: String,
    board: Mutex<Board>,
    /// Notified when watches have to begin or end.
    pub(crate) changed: Notify,
    next: AtomicU64,
}

#[derive(Default)]
struct Board {
    /// The channels by the prefixes of their keys.
    channels: HashMap<String, Channel>,
    /// The channels of the watches of the present stream.
    watches: HashMap<i64, String>,
    /// Channels whose watches are to begin, unless they are gone by then.
    to_begin: VecDeque<String>,
    /// Watches of the present stream that are to end.
    to_end: VecDeque<i64>,
    last_watch: i64,
}

/// Requests to the present stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// A watch of the keys with this prefix.
    Begin(i64, String),
    End(i64),
}

/// A name that is waited for as one kind of lock.
struct Channel {
    kind: Kind,
    keys: Keys,
    subscribers: Vec<Arc<Subscriber>>,
    /// The watch of the present stream, if it was requested.
    watch: Option<i64>,
    /// Set once the server has confirmed the watch.
    is_heard: bool,
    /// Set if something may have been missed.
    has_missed: bool,
    /// The state of the search for the first waiter in the queue.
    looks: Look,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Look {
    #[default]
    None,
    Running,
    Again,
}

pub(crate) struct Subscriber {
    number: u64,
    /// The hold that waits in the queue of a fair lock.
    queued: Option<String>,
    news: Mutex<Knowledge>,
    woken: Notify,
    /// Notified once the server has confirmed the watch.
    heard: Notify,
}

/// The news of a waiter: wake-ups and its last refusal.
#[derive(Default)]
struct Knowledge {
    /// Set if it was woken and does not know it yet.
    is_pending: bool,
    /// The number of times that it was woken, or may have missed a wake-up.
    count: u64,
    /// The last refusal, if there was no news since.
    refusal: Option<QueueRefusal>,
}

/// The answer to a waiter that has a place in a queue, and is not the first.
#[derive(Clone, Debug)]
pub(crate) struct QueueRefusal {
    /// The lease of the place.
    pub(crate) place: i64,
    /// The time for which that lease is granted.
    pub(crate) seconds: i64,
    pub(crate) remaining: Option<Duration>,
}

impl Subscriber {
    fn news(&self) -> MutexGuard<'_, Knowledge> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        let mut news = self.news();
        news.is_pending = true;
        news.forget();
        drop(news);
        self.woken.notify_one();
    }
}

impl Knowledge {
    fn forget(&mut self) {
        self.count += 1;
        self.refusal = None;
    }
}

/// The subscription of a waiter in a queue at a moment at which the server watches.
pub(crate) struct Quiet {
    subscriber: Arc<Subscriber>,
    count: u64,
}

impl Quiet {
    /// The last refusal, if there was no news since.
    pub(crate) fn refusal(&self) -> Option<QueueRefusal> {
        self.subscriber.news().refusal.clone()
    }

    /// Notes a refusal, unless there was news since that moment.
    pub(crate) fn note(&self, refusal: QueueRefusal) {
        let mut news = self.subscriber.news();
        if news.count == self.count {
            news.refusal = Some(refusal);
        }
    }
}

impl Channel {
    fn new(keys: Keys, kind: Kind) -> Self {
        Self {
            kind,
            keys,
            subscribers: Vec::new(),
            watch: None,
            is_heard: false,
            has_missed: false,
            looks: Look::None,
        }
    }

    /// The waiters in a queue, if there are any.
    fn queued(&self) -> impl Iterator<Item = &Arc<Subscriber>> {
        self.subscribers.iter().filter(|subscriber| subscriber.queued.is_some())
    }

    fn wake_all(&self) {
        self.subscribers.iter().for_each(|subscriber| subscriber.wake());
    }
}

impl Shared {
    /// `prefix` is a key that nobody writes.
    pub(crate) fn new(members: Arc<Members>, prefix: String) -> Arc<Self> {
        let (board, changed, next) = (Mutex::default(), Notify::new(), AtomicU64::new(0));
        Arc::new(Self { members, prefix, board, changed, next })
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of names that are waited for.
    pub(crate) fn len(&self) -> usize {
        self.board().channels.len()
    }

    pub(crate) fn join(
        self: &Arc<Self>,
        keys: Keys,
        kind: Kind,
        queued: Option<String>,
    ) -> Subscription {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (news, woken, heard) = (Mutex::default(), Notify::new(), Notify::new());
        let subscriber = Arc::new(Subscriber { number, queued, news, woken, heard });
        let name = keys.kind(kind);
        let mut board = self.board();
        let channel =
            board.channels.entry(name.clone()).or_insert_with(|| Channel::new(keys, kind));
        channel.subscribers.push(subscriber.clone());
        if channel.subscribers.len() == 1 {
            board.to_begin.push_back(name.clone());
            drop(board);
            self.changed.notify_one();
        }
        Subscription { shared: self.clone(), channel: name, subscriber }
    }

    /// The subscription of a hold that waits in a queue, if the server watches.
    pub(crate) fn quiet(&self, name: &str, hold: &str) -> Option<Quiet> {
        let board = self.board();
        let channel = board.channels.get(name).filter(|channel| channel.is_heard)?;
        let is_its = |other: &&Arc<Subscriber>| other.queued.as_deref() == Some(hold);
        let subscriber = channel.queued().find(is_its)?.clone();
        let count = subscriber.news().count;
        Some(Quiet { subscriber, count })
    }

    /// A new id for a watch.
    pub(crate) fn next_watch(&self) -> i64 {
        self.board().next_watch()
    }

    /// Returns `true` if somebody waits in the queue of a fair lock.
    pub(crate) fn has_queued(&self) -> bool {
        let is_queued = |subscriber: &Arc<Subscriber>| subscriber.queued.is_some();
        self.board().channels.values().any(|channel| channel.subscribers.iter().any(is_queued))
    }

    pub(crate) fn has_changes(&self) -> bool {
        let board = self.board();
        !board.to_begin.is_empty() || !board.to_end.is_empty()
    }

    /// The next `most` watches to begin or to end.
    pub(crate) fn changes(&self, most: usize) -> Vec<Change> {
        let mut board = self.board();
        let ended = board.to_end.len().min(most);
        let mut changes: Vec<_> = board.to_end.drain(..ended).map(Change::End).collect();
        while changes.len() < most
            && let Some(name) = board.to_begin.pop_front()
        {
            let watch = board.next_watch();
            let Some(channel) = board.channels.get_mut(&name) else { continue };
            if channel.watch.is_some() {
                continue;
            }
            channel.watch = Some(watch);
            board.watches.insert(watch, name.clone());
            changes.push(Change::Begin(watch, name));
        }
        changes
    }

    /// The channel of a watch, if it has one.
    pub(crate) fn watched(&self, watch: i64) -> Option<String> {
        self.board().watches.get(&watch).cloned()
    }

    /// The server watches: waiters can now catch up on missed events.
    pub(crate) fn is_heard(&self, name: &str) {
        let mut board = self.board();
        let Some(channel) = board.channels.get_mut(name) else { return };
        channel.is_heard = true;
        if std::mem::take(&mut channel.has_missed) {
            channel.wake_all();
        }
        channel.subscribers.iter().for_each(|subscriber| subscriber.heard.notify_one());
    }

    /// Finds the first waiter in the queue of a fair lock, and wakes it if it belongs to this
    /// client.
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
                // Without a queue, or without an answer, it may be any waiter's turn.
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

    /// Reports a deletion to the waiters of a channel. `holds` is `true` if a hold was deleted.
    pub(crate) fn deliver(self: &Arc<Self>, name: &str, holds: bool) {
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

    /// The stream is lost, and all events until the next one are missed.
    pub(crate) fn lose_all(&self) {
        let mut board = self.board();
        let Board { channels, watches, to_begin, to_end, .. } = &mut *board;
        watches.clear();
        to_end.clear();
        to_begin.clear();
        for (name, channel) in channels {
            channel.has_missed |= channel.watch.is_some();
            (channel.watch, channel.is_heard) = (None, false);
            channel.subscribers.iter().for_each(|subscriber| subscriber.news().forget());
            to_begin.push_back(name.clone());
        }
    }
}

impl Board {
    fn next_watch(&mut self) -> i64 {
        self.last_watch += 1;
        self.last_watch
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

impl Subscription {
    /// Returns `true` if a server has confirmed the watch.
    pub(crate) fn is_heard(&self) -> bool {
        self.shared.board().channels.get(&self.channel).is_some_and(|channel| channel.is_heard)
    }

    /// Resolves when [`is_heard`](Self::is_heard) has to be asked again.
    pub(crate) async fn heard(&self) {
        self.subscriber.heard.notified().await;
    }
}

#[async_trait]
impl Wakeups for Subscription {
    async fn woken(&mut self) -> Wakeup {
        loop {
            // A wake-up after this leaves a permit.
            if std::mem::take(&mut self.subscriber.news().is_pending) {
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
            board.to_end.push_back(watch);
            drop(board);
            self.shared.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use lockcore::LockName;

    use super::*;

    fn shared() -> Arc<Shared> {
        Shared::new(Members::unconnected(&["a"]), "lockcore/".to_owned())
    }

    fn join(shared: &Arc<Shared>, name: &str) -> Subscription {
        let keys = Keys::new("lockcore/", &LockName::new(name).unwrap());
        shared.join(keys, Kind::Lock, None)
    }

    fn begun(changes: &[Change]) -> Vec<(i64, String)> {
        let begun = changes.iter().filter_map(|change| match change {
            Change::Begin(watch, name) => Some((*watch, name.clone())),
            Change::End(_) => None,
        });
        begun.collect()
    }

    #[test]
    fn watches_begin_and_end_some_at_a_time() {
        let shared = shared();
        let waiting: Vec<_> = (0..10).map(|number| join(&shared, &number.to_string())).collect();
        let first = shared.changes(7);
        assert_eq!(begun(&first).len(), 7);
        assert!(shared.has_changes());
        // Three of these have not begun, and never will.
        drop(waiting);
        let ended: Vec<_> = begun(&first).iter().map(|(watch, _)| Change::End(*watch)).collect();
        let mut changes = shared.changes(4);
        assert_eq!(changes.len(), 4);
        changes.extend(shared.changes(4));
        assert!(changes.len() == 7 && ended.iter().all(|change| changes.contains(change)));
        assert!(!shared.has_changes() && shared.len() == 0);
    }

    #[test]
    fn a_name_that_is_given_up_and_wanted_again_has_one_watch() {
        let shared = shared();
        drop(join(&shared, "order"));
        let _waiting = join(&shared, "order");
        assert_eq!(begun(&shared.changes(9)).len(), 1);
        assert!(!shared.has_changes());
    }

    #[test]
    fn a_refusal_is_forgotten_with_the_next_news() {
        let shared = shared();
        let keys = Keys::new("lockcore/", &LockName::new("order").unwrap());
        let name = keys.kind(Kind::Lock);
        let subscription = shared.join(keys, Kind::Lock, Some("a".to_owned()));
        assert!(shared.quiet(&name, "a").is_none(), "nobody watches");
        shared.changes(1);
        shared.is_heard(&name);
        let quiet = || shared.quiet(&name, "a").unwrap();
        let refusal = QueueRefusal { place: 1, seconds: 5, remaining: None };
        assert!(quiet().refusal().is_none() && shared.quiet(&name, "b").is_none());
        let before = quiet();
        before.note(refusal.clone());
        assert!(quiet().refusal().is_some());
        subscription.subscriber.wake();
        assert!(quiet().refusal().is_none(), "it was woken");
        before.note(refusal.clone());
        assert!(quiet().refusal().is_none(), "it was woken between the question and the answer");
        quiet().note(refusal);
        shared.lose_all();
        assert!(shared.quiet(&name, "a").is_none());
        shared.changes(1);
        shared.is_heard(&name);
        assert!(quiet().refusal().is_none(), "a wake-up may have been missed");
    }

    #[test]
    fn after_a_loss_each_is_woken_when_it_is_watched_again() {
        let shared = shared();
        let waiting = ["a", "b", "c"].map(|name| join(&shared, name));
        let is_woken =
            |which: usize| std::mem::take(&mut waiting[which].subscriber.news().is_pending);
        for (_, name) in begun(&shared.changes(2)) {
            shared.is_heard(&name);
        }
        assert!(waiting[0].is_heard() && waiting[1].is_heard() && !waiting[2].is_heard());
        assert!((0..3).all(|which| !is_woken(which)), "nothing was missed");
        shared.lose_all();
        // A stream that is lost before it is of use.
        assert_eq!(begun(&shared.changes(1)).len(), 1);
        shared.lose_all();
        assert!((0..3).all(|which| !is_woken(which)), "nobody hears anything yet");
        for (watch, name) in begun(&shared.changes(9)) {
            assert_eq!(shared.watched(watch).as_deref(), Some(name.as_str()));
            shared.is_heard(&name);
        }
        assert!(is_woken(0) && is_woken(1), "they may have missed something");
        assert!(waiting.iter().all(Subscription::is_heard));
    }
}
