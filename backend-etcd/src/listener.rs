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
    keep::reading,
    keys::{Keys, Kind},
    members::Members,
    requests::{Count, cluster_of},
};

/// The first pause after a stream was lost, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(500)];

/// A stream whose last ping has no answer is lost within a member's share of the response time-out,
/// or within this time if that is shorter.
const LONGEST_SILENCE: Duration = Duration::from_secs(3);

/// The number of looks at a stream after a ping, the last of which gives it up.
const LOOKS: u32 = 3;

/// The least time between two looks.
const LEAST_STEP: Duration = Duration::from_millis(100);

/// The number of looks from an answer to the next ping.
const PING: u32 = 2;

/// The age of a stream before it is opened again because requests have turned to another member.
/// While members fail one after the other, waiters are woken no more often than that.
const LEAST_AGE: Duration = Duration::from_secs(1);

/// The time between two reads at the member of the stream while somebody waits in a queue. Such a
/// waiter reads nothing itself, and a member whose log stands still answers pings and renews leases.
const PROOF: Duration = Duration::from_secs(2);

/// The time after which a stream ends that nobody needs any more.
const IDLE: Duration = Duration::from_secs(10);

/// The most watches that are begun or ended before the server has answered. The server stops
/// reading when its answers are not read, so they must fit into the buffers in between. The etcd
/// client buffers 100.
const UNANSWERED: usize = 64;

/// A stream is given up if it has answered none of so many watches for this time.
const STUCK: Duration = Duration::from_secs(4);

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
    /// The endpoints that were of another cluster when they were last tried.
    strangers: HashSet<usize>,
}

impl Failures {
    /// Notes the failure of the endpoint `index`, one of `members`. That it is of another cluster is
    /// a reason only if all are: the others may come back.
    fn add(&mut self, index: usize, members: usize, error: BackendError) {
        self.count += 1;
        let is_stranger = error::is_other_cluster(&error);
        if is_stranger {
            self.strangers.insert(index);
        } else {
            self.strangers.remove(&index);
        }
        if !is_stranger || self.strangers.len() >= members {
            self.last = Some(error);
        }
    }

    /// Notes that the endpoint `index` has watched a name.
    fn end(&mut self, index: usize) {
        self.strangers.remove(&index);
        self.last = None;
    }
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

    /// The waiters.
    pub(crate) fn waiters(&self) -> &Shared {
        &self.shared
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
                let Failures { count, last, .. } = failures.borrow_and_update().clone();
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
    /// Nobody has needed it for a while.
    Idle,
    /// Requests have turned to another member. This one may be cut off from the others: then it
    /// answers, but hears of nothing.
    PassedOver,
    Lost(BackendError),
    /// The server does not watch. The token that the stream was opened with may have expired.
    Refused(BackendError),
}

/// An open stream.
struct Stream {
    sender: WatchRequestSender,
    answers: WatchResponseStream,
    /// The member at its other end.
    index: usize,
    address: String,
    opened: Instant,
    /// The times at which it is looked at, whatever else happens.
    looks: Interval,
    silence: Silence,
    /// The time since when nobody has needed it.
    idle_since: Option<Instant>,
    /// The time of the last read at its member.
    proven: Instant,
    /// The watches whose begin or end was not answered yet.
    unanswered: HashSet<i64>,
    /// The time since when none of them was answered, with no room for more.
    stuck_since: Option<Instant>,
    /// Set once a name was watched.
    was_useful: bool,
}

/// How long a stream has been silent, in looks. Nothing here does I/O.
///
/// If this process itself stood still, the answers have arrived and were not read. So only looks
/// that come in time count.
#[derive(Debug)]
struct Silence {
    /// The time between two looks.
    step: Duration,
    last_look: Instant,
    /// The looks since the last answer.
    quiet: u32,
    /// The looks since a ping that has no answer.
    pinged: Option<u32>,
}

/// The outcome of a look at a stream.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    Nothing,
    Ping,
    GiveUp,
}

impl Silence {
    fn new(step: Duration, now: Instant) -> Self {
        Self { step, last_look: now, quiet: 0, pinged: None }
    }

    fn is_answered(&mut self) {
        (self.quiet, self.pinged) = (0, None);
    }

    fn look(&mut self, now: Instant) -> Look {
        let is_late =
            now.duration_since(std::mem::replace(&mut self.last_look, now)) > self.step * 2;
        self.quiet += 1;
        match self.pinged {
            _ if is_late => {
                self.pinged = Some(0);
                Look::Ping
            }
            Some(looks) if looks + 1 >= LOOKS => Look::GiveUp,
            Some(looks) => {
                self.pinged = Some(looks + 1);
                Look::Nothing
            }
            None if self.quiet >= PING => {
                self.pinged = Some(0);
                Look::Ping
            }
            None => Look::Nothing,
        }
    }
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
                        self.failures.send_if_modified(|failures| {
                            failures.end(index);
                            false
                        });
                    }
                    end
                }
                Err(end) => end,
            };
            self.shared.lose_all();
            let error = match end {
                End::Idle | End::PassedOver => continue,
                End::Refused(error) if !has_new_token => {
                    self.log_in_again(index, error).await.err()
                }
                End::Lost(error) | End::Refused(error) => Some(error),
            };
            has_new_token = error.is_none();
            if let Some(error) = error {
                members.pass_over(index);
                tracing::debug!(%error, "wake-ups from etcd are interrupted");
                let error = error.not_applied();
                self.failures.send_modify(|failures| failures.add(index, members.len(), error));
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
            Some(answer) if answer.created() && !answer.canceled() => {
                members.check(index, cluster_of(answer.header())).map_err(End::Lost)?;
            }
            Some(answer) => return Err(refused(&answer, &address)),
            None => return Err(End::Lost(lost(&address))),
        }
        let opened = Instant::now();
        let step = (members.share().min(LONGEST_SILENCE) / (LOOKS + 1)).max(LEAST_STEP);
        let mut looks = interval_at(opened + step, step);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Stream {
            sender,
            answers,
            index,
            address,
            opened,
            looks,
            silence: Silence::new(step, opened),
            idle_since: None,
            proven: opened,
            unanswered: HashSet::new(),
            stuck_since: None,
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
                _ = stream.looks.tick() => self.look(stream).await?,
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

    /// Gives the stream up if nobody needs it, if requests have turned to another member, if it has
    /// been silent for too long, or if its member cannot read.
    async fn look(&self, stream: &mut Stream) -> Result<(), End> {
        let now = Instant::now();
        if self.shared.len() == 0 {
            let idle_since = *stream.idle_since.get_or_insert(now);
            stream.silence = Silence::new(stream.silence.step, now);
            return if now < idle_since + IDLE { Ok(()) } else { Err(End::Idle) };
        }
        stream.idle_since = None;
        let is_passed_over = self.shared.members.current() != stream.index;
        if is_passed_over && now >= stream.opened + LEAST_AGE {
            return Err(End::PassedOver);
        }
        let is_stuck = stream.stuck_since.is_some_and(|since| now >= since + STUCK);
        let is_alive = !is_stuck
            && match stream.silence.look(now) {
                Look::Nothing => true,
                Look::Ping => {
                    let ping = stream.sender.request_progress();
                    matches!(timeout(LONGEST_SILENCE, ping).await, Ok(Ok(())))
                }
                Look::GiveUp => false,
            };
        if !is_alive {
            return Err(End::Lost(lost(&stream.address)));
        }
        if now >= stream.proven + PROOF && self.shared.has_queued() {
            let Shared { members, prefix, .. } = &*self.shared;
            let proof = reading(&[prefix]);
            members.ask(stream.index, DOING, &proof).await.map_err(End::Lost)?;
            // However long the read has taken, the looks in between find a stream that is silent.
            stream.proven = Instant::now();
        }
        Ok(())
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
        let Ok(Ok(())) = sent.await else { return Err(End::Lost(lost(&stream.address))) };
        if stream.unanswered.len() >= UNANSWERED {
            stream.stuck_since.get_or_insert_with(Instant::now);
        }
        Ok(())
    }

    fn hear(&self, stream: &mut Stream, answer: &WatchResponse) -> Result<(), End> {
        stream.silence.is_answered();
        if answer.created() || answer.canceled() {
            stream.unanswered.remove(&answer.watch_id());
            stream.stuck_since = None;
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

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(250);

    /// Looks at a stream after each of these times.
    fn looks(silence: &mut Silence, now: &mut Instant, after: &[Duration]) -> Vec<Look> {
        let look = |after: &Duration| {
            *now += *after;
            silence.look(*now)
        };
        after.iter().map(look).collect()
    }

    /// Requests choose the endpoint as well, so the same one may be tried several times in a row.
    #[test]
    fn an_endpoint_of_another_cluster_is_the_reason_only_if_all_are() {
        let mut failures = Failures::default();
        let shown = |failures: &Failures| {
            failures.last.as_ref().map(|error| (error.kind(), error.is_retryable()))
        };
        let down = || lost("http://down:2379");
        let stranger = || error::other_cluster("http://other:2379", "http://down:2379");
        for _ in 0..3 {
            failures.add(1, 2, stranger());
            assert_eq!(shown(&failures), None, "the other endpoint was not tried");
        }
        failures.add(0, 2, down());
        let unreachable = Some((BackendErrorKind::Connection, true));
        for _ in 0..3 {
            assert_eq!(shown(&failures), unreachable);
            failures.add(1, 2, stranger());
        }
        assert_eq!(failures.count, 7);
        failures.add(0, 2, stranger());
        assert_eq!(shown(&failures), Some((BackendErrorKind::Configuration, false)));
        failures.end(0);
        failures.add(1, 2, stranger());
        assert_eq!(shown(&failures), None);
        failures.add(0, 2, down());
        assert_eq!(shown(&failures), unreachable);
    }

    #[test]
    fn a_silent_stream_is_pinged_and_given_up() {
        let mut now = Instant::now();
        let mut silence = Silence::new(STEP, now);
        let seen = looks(&mut silence, &mut now, &[STEP; 5]);
        use Look::{GiveUp, Nothing, Ping};
        assert_eq!(seen, [Nothing, Ping, Nothing, Nothing, GiveUp]);
    }

    #[test]
    fn an_answer_makes_up_for_all_silence() {
        let mut now = Instant::now();
        let mut silence = Silence::new(STEP, now);
        for _ in 0..5 {
            let seen = looks(&mut silence, &mut now, &[STEP; 4]);
            assert_eq!(seen.iter().filter(|look| **look == Look::Ping).count(), 1);
            assert!(!seen.contains(&Look::GiveUp), "{seen:?}");
            silence.is_answered();
        }
    }

    #[test]
    fn a_process_that_stood_still_waits_for_the_answers_again() {
        let mut now = Instant::now();
        let mut silence = Silence::new(STEP, now);
        for _ in 0..5 {
            let seen = looks(&mut silence, &mut now, &[STEP, STEP, 10 * STEP]);
            assert!(!seen.contains(&Look::GiveUp), "{seen:?}");
            assert_eq!(seen.last(), Some(&Look::Ping));
        }
        let seen = looks(&mut silence, &mut now, &[STEP; 3]);
        assert_eq!(seen.last(), Some(&Look::GiveUp));
    }
}
