//! [`WakeupListener`]: the stream of messages about deleted keys.
//!
//! All subscriptions of a client share a stream, with one watch for each name that is waited for.
//! Holds and places end with the deletion of their keys, whoever deletes them: a release, a forced
//! one, a takeover, or the servers when a lease has ended. So a watch for deletions misses nothing
//! while it lasts. A stream that breaks is opened again, at another member if necessary, and the
//! waiters of each name are woken when the name is watched again.

use std::{collections::HashSet, fmt, future::ready, sync::Arc, time::Duration};

use etcd_client::{
    EventType, WatchFilterType, WatchOptions, WatchRequestSender, WatchResponse,
    WatchResponseStream,
};
use lockcore::{BackendError, BackendErrorKind, Mode};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, Interval, MissedTickBehavior, interval_at, timeout},
};

use crate::{
    board::{Change, Shared, Subscription},
    error,
    keys::{Keys, Kind},
    members::Members,
    requests::Count,
};

/// The first pause after a stream was lost, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(500)];

/// The interval at which a stream is pinged.
const PING: Duration = Duration::from_secs(2);

/// The most watches that are begun or ended before the server has answered. The server stops
/// reading when its answers are not read, so they must fit into the buffers in between. The etcd
/// client buffers 100.
const UNANSWERED: usize = 64;

/// A stream is given up if it has been stuck at this many pings in a row.
const STUCK: u32 = 2;

const DOING: &str = "watching";

/// The names that are waited for, and the task that listens.
pub(crate) struct WakeupListener {
    shared: Arc<Shared>,
    failures: watch::Receiver<Failures>,
    task: JoinHandle<()>,
}

/// The failed attempts to listen, for the waiters of a channel.
#[derive(Clone, Debug, Default)]
struct Failures {
    count: usize,
    last: Option<BackendError>,
}

impl fmt::Debug for WakeupListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WakeupListener").field("channels", &self.shared.len()).finish()
    }
}

impl WakeupListener {
    /// Begins to listen. `prefix` is the prefix of all keys, and itself a key that nobody writes.
    pub(crate) fn start(members: Arc<Members>, prefix: String) -> Self {
        let shared = Shared::new(members, prefix);
        let (sender, failures) = watch::channel(Failures::default());
        let keeper = Keeper { shared: shared.clone(), failures: sender };
        Self { shared, failures, task: tokio::spawn(keeper.keep()) }
    }

    /// The number of names that the servers watch for this client, or are about to watch.
    pub(crate) fn channels(&self) -> usize {
        self.shared.len()
    }

    /// Subscribes, and returns when a server has confirmed the watch.
    pub(crate) async fn subscribe(
        &self,
        keys: Keys,
        mode: Mode,
        hold: &str,
    ) -> Result<Subscription, BackendError> {
        let Some(kind) = Kind::of(mode) else { return Err(BackendError::unsupported(mode)) };
        let mut failures = self.failures.clone();
        let failed_before = failures.borrow_and_update().count;
        let queued = (mode == Mode::Fair).then(|| hold.to_owned());
        let subscription = self.shared.join(keys, kind, queued);
        let members = &self.shared.members;
        let heard = async {
            while !subscription.is_heard() {
                let Failures { count, last } = failures.borrow_and_update().clone();
                if let Some(last) = last.filter(|_| count >= failed_before + members.len()) {
                    return Err(last);
                }
                tokio::select! {
                    () = subscription.heard() => {}
                    changed = failures.changed() => {
                        changed.map_err(|_| error::unexpected(DOING).not_applied())?;
                    }
                }
            }
            Ok(())
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
    failures: watch::Sender<Failures>,
}

/// The reason for the end of a stream.
enum End {
    Lost(BackendError),
    /// The server does not watch. The token that the stream was opened with may have expired.
    Refused(BackendError),
}

/// An open stream.
struct Stream {
    sender: WatchRequestSender,
    answers: WatchResponseStream,
    address: String,
    /// The times of pings, whatever else happens.
    pings: Interval,
    last_answer: Instant,
    /// Set if it has been silent for too long, and was pinged once more.
    is_doubted: bool,
    /// The watches whose begin or end was not answered yet.
    unanswered: HashSet<i64>,
    /// The number of pings since which none of them was answered, with no room for more.
    stuck: u32,
    /// Set once a name was watched.
    was_useful: bool,
}

impl Keeper {
    async fn keep(self) {
        let (mut pause, mut has_new_token) = (PAUSES[0], false);
        let members = self.shared.members.clone();
        loop {
            // No stream is opened before there is anything to watch.
            while self.shared.len() == 0 {
                self.shared.changed.notified().await;
            }
            let index = members.current();
            let end = match self.open(index).await {
                Ok(mut stream) => {
                    let Err(end) = self.serve(&mut stream).await;
                    if stream.was_useful {
                        (pause, has_new_token) = (PAUSES[0], false);
                    }
                    end
                }
                Err(end) => end,
            };
            self.shared.lose_all();
            let failure = match end {
                End::Refused(error) if !has_new_token => self.log_in_again(index, error).await,
                End::Lost(error) | End::Refused(error) => Err(error),
            };
            has_new_token = failure.is_ok();
            if let Err(error) = failure {
                members.pass_over(index);
                tracing::debug!(%error, "wake-ups from etcd are interrupted");
                self.failures.send_modify(|failures| {
                    failures.count += 1;
                    failures.last = Some(error.not_applied());
                });
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES[1]);
        }
    }

    /// A stream keeps the token that it was opened with, which may have expired or be out of date.
    /// Some servers do not say so, and report a missing right instead. A request with another token
    /// finds out whether a right is missing.
    async fn log_in_again(&self, index: usize, refused: BackendError) -> Result<(), BackendError> {
        let Shared { members, prefix, .. } = &*self.shared;
        tracing::debug!(error = %refused, "etcd refuses to watch; trying with another token");
        members.log_in_again(index).await?;
        members.ask(index, DOING, &Count(prefix)).await
    }

    /// Opens a stream with a watch of a key that nobody writes.
    async fn open(&self, index: usize) -> Result<Stream, End> {
        let members = &self.shared.members;
        match timeout(members.share(), self.open_at(index)).await {
            Ok(opened) => opened,
            Err(_) => {
                let error = error::no_answer(DOING, members.address(index), members.share());
                Err(End::Lost(error))
            }
        }
    }

    async fn open_at(&self, index: usize) -> Result<Stream, End> {
        let members = &self.shared.members;
        let address = members.address(index).to_owned();
        let failed = |error| failed(error, &address);
        let client = members.client(index, DOING).await.map_err(End::Lost)?;
        let options = WatchOptions::new().with_watch_id(self.shared.next_watch());
        let unused = self.shared.prefix.as_str();
        let stream = client.watch_client().watch(unused, Some(options)).await.map_err(failed)?;
        let (sender, mut answers) = stream.split();
        match answers.message().await.map_err(failed)? {
            Some(answer) if answer.created() && !answer.canceled() => {}
            Some(answer) => return Err(refused(&answer, &address)),
            None => return Err(End::Lost(lost(&address))),
        }
        let last_answer = Instant::now();
        let mut pings = interval_at(last_answer + PING, PING);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Stream {
            sender,
            answers,
            address,
            pings,
            last_answer,
            is_doubted: false,
            unanswered: HashSet::new(),
            stuck: 0,
            was_useful: false,
        })
    }

    /// Listens until the stream is lost.
    async fn serve(&self, stream: &mut Stream) -> Result<std::convert::Infallible, End> {
        loop {
            let room = UNANSWERED.saturating_sub(stream.unanswered.len());
            let has_changes = room > 0 && self.shared.has_changes();
            // No branch starves the others, because the choice is random.
            tokio::select! {
                _ = stream.pings.tick() => self.ping(stream).await?,
                answer = stream.answers.message() => match answer {
                    Ok(Some(answer)) => self.hear(stream, &answer)?,
                    Ok(None) => return Err(End::Lost(lost(&stream.address))),
                    Err(error) => return Err(failed(error, &stream.address)),
                },
                () = ready(()), if has_changes => self.change(stream, room).await?,
                () = self.shared.changed.notified(), if !has_changes => {}
            }
        }
    }

    /// Pings the stream, and gives it up if it has been silent for too long.
    ///
    /// If this process itself stood still, the answers have arrived and were not read. So a stream
    /// is given up only after they could have been read until the next ping.
    async fn ping(&self, stream: &mut Stream) -> Result<(), End> {
        let is_alive = !stream.is_doubted
            && stream.stuck < STUCK
            && matches!(timeout(PING, stream.sender.request_progress()).await, Ok(Ok(())));
        stream.is_doubted = stream.last_answer.elapsed() > self.shared.members.response_timeout();
        if stream.unanswered.len() >= UNANSWERED {
            stream.stuck += 1;
        } else {
            stream.stuck = 0;
        }
        is_alive.then_some(()).ok_or_else(|| End::Lost(lost(&stream.address)))
    }

    /// Begins and ends watches, as many as there is room for.
    async fn change(&self, stream: &mut Stream, room: usize) -> Result<(), End> {
        let changes = self.shared.changes(room);
        let sent = timeout(self.shared.members.response_timeout(), async {
            for change in changes {
                match change {
                    Change::End(watch) => {
                        stream.unanswered.insert(watch);
                        stream.sender.cancel(watch).await?;
                    }
                    Change::Begin(watch, prefix) => {
                        let options = WatchOptions::new()
                            .with_prefix()
                            .with_watch_id(watch)
                            .with_filters([WatchFilterType::NoPut]);
                        stream.unanswered.insert(watch);
                        stream.sender.watch(prefix, Some(options)).await?;
                    }
                }
            }
            Ok::<_, etcd_client::Error>(())
        });
        match sent.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(End::Lost(lost(&stream.address))),
        }
    }

    fn hear(&self, stream: &mut Stream, answer: &WatchResponse) -> Result<(), End> {
        stream.last_answer = Instant::now();
        stream.is_doubted = false;
        if answer.created() || answer.canceled() {
            stream.unanswered.remove(&answer.watch_id());
            stream.stuck = 0;
        }
        let name = self.shared.watched(answer.watch_id());
        if answer.canceled() && (answer.created() || name.is_some()) {
            return Err(refused(answer, &stream.address));
        }
        // Without a name, it is the answer to a ping, or belongs to a watch that was ended.
        let Some(name) = name else { return Ok(()) };
        if answer.created() {
            stream.was_useful = true;
            self.shared.is_heard(&name);
            return Ok(());
        }
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
}

fn failed(error: etcd_client::Error, address: &str) -> End {
    let wants_login = error::wants_login(&error);
    let error = error::of_request(error, DOING, address);
    if wants_login { End::Refused(error) } else { End::Lost(error) }
}

fn lost(address: &str) -> BackendError {
    let message = format!("the stream of wake-ups from etcd at {address} was lost");
    BackendError::new(BackendErrorKind::Connection, message).not_applied()
}

/// The server does not watch, or no longer watches.
fn refused(answer: &WatchResponse, address: &str) -> End {
    let reason = answer.cancel_reason();
    let reason = reason.rsplit_once("desc = ").map_or(reason, |(_, reason)| reason);
    let kind = match reason.contains("permission denied") {
        true => BackendErrorKind::Permission,
        false => BackendErrorKind::Unavailable,
    };
    let message = format!("etcd at {address} does not send wake-ups: {reason}");
    End::Refused(BackendError::new(kind, message).not_applied())
}
