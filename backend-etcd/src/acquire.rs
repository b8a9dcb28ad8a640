//! Taking a hold.
//!
//! 1. A read determines whether the lock is free. A refused request writes nothing but its place.
//! 2. The lease of the hold is granted. Its id follows from the hold.
//! 3. A transaction writes the key of the hold under that lease, on the condition that the state
//!    behind the decision has not changed. If it has changed, the same transaction reads again.
//!
//! The undo of a request revokes the lease. A transaction that arrives later names a lease that
//! does not exist, and fails (C17): it was sent after the lease was granted, and only a request
//! that was not undone is granted a lease again.

use std::{sync::Arc, time::Duration};

use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp, TxnResponse};
use futures_util::future::join_all;
use lockcore::{
    BackendError, FencingToken, Mode,
    backend::{AcquireOutcome, AcquireRequest},
};
use tokio::time::timeout;

use crate::{
    board::{QueueRefusal, Quiet, Shared},
    decide::{Decision, decide},
    error,
    keep::{ensure, keep, tidy},
    keys::{Keys, Kind, Purpose},
    members::{MemberReply, Members},
    record::{Record, seconds},
    renew::Pauses,
    requests::{KeepAlive, Revoke, TimeToLive, Transact},
    seen::{Entry, Seen, nothing_below},
};

/// The number of tokens that a revision stands for.
pub(crate) const TOKENS: u32 = 1 << 16;

/// The remaining time of a lease that has ended, and whose key is about to be deleted.
const ENDING: Duration = Duration::from_millis(300);

/// With more holds in the way, a refused request is told the longest time that they may last, and
/// does not look up how long each of them does.
const LOOKUPS: usize = 4;

/// The number of immediate retries. Later ones come after a pause.
const FEW: u32 = 2;

/// With more retries than this, a request fails because of contention, and not because of the
/// servers.
const MANY: u32 = 8;

const DOING: &str = "acquiring";

/// The first token of a hold that this revision created.
pub(crate) fn token(revision: i64) -> FencingToken {
    FencingToken::from(revision.cast_unsigned().saturating_mul(u64::from(TOKENS)))
}

/// The remaining time of a lease with this many full seconds left. It ends less than a second
/// later.
pub(crate) fn left(seconds: i64) -> Duration {
    Duration::from_secs(seconds.max(0).cast_unsigned() + 1)
}

/// One request for a hold.
pub(crate) struct Acquiring<'a> {
    members: &'a Arc<Members>,
    waiters: &'a Shared,
    keys: &'a Keys,
    kind: Kind,
    request: &'a AcquireRequest,
    /// Set if something was written, or may have been.
    has_written: bool,
    /// Set if one member may still write the hold although another one has not.
    is_ambiguous: bool,
    /// The number of times that other clients have got ahead.
    retries: u32,
    /// The number of seconds for which this request was granted the lease of the hold.
    granted: Option<i64>,
    /// The number of seconds for which this request was granted the lease of a place, if it has no
    /// place.
    idle_place: Option<i64>,
    /// The leases of holds that were taken over, which have no keys any more.
    unused: Vec<i64>,
    pauses: Pauses,
}

impl<'a> Acquiring<'a> {
    pub(crate) fn new(
        waiters: &'a Shared,
        keys: &'a Keys,
        kind: Kind,
        request: &'a AcquireRequest,
    ) -> Self {
        Self {
            members: &waiters.members,
            waiters,
            keys,
            kind,
            request,
            has_written: false,
            is_ambiguous: false,
            retries: 0,
            granted: None,
            idle_place: None,
            unused: Vec::new(),
            pauses: Pauses::new(),
        }
    }

    pub(crate) async fn run(mut self) -> Result<AcquireOutcome, BackendError> {
        let limit = self.members.response_timeout();
        let answer = timeout(limit, self.decided()).await;
        tidy(self.members, std::mem::take(&mut self.unused)).await;
        let answer = match answer {
            Ok(Ok(outcome)) if outcome.token().is_none() => match self.is_ambiguous {
                true => Err(self.no_answer(limit)),
                false => self.revoke_own().await.map(|()| outcome),
            },
            Ok(Err(error)) if !self.is_unknown() => self.revoke_own().await.and(Err(error)),
            Ok(answer) => answer,
            Err(_) if self.retries <= MANY => {
                // A revocation would have no answer either. The undo revokes the lease.
                self.is_ambiguous |= self.granted.is_some() || self.idle_place.is_some();
                Err(self.no_answer(limit))
            }
            Err(_) => {
                let busy = Err(error::too_busy(self.members, DOING));
                if self.is_unknown() { busy } else { self.revoke_own().await.and(busy) }
            }
        };
        let is_unknown = self.is_unknown();
        answer.map_err(|error| if is_unknown { error.maybe_applied() } else { error.not_applied() })
    }

    /// Returns `true` if the caller has to undo the request if it fails.
    fn is_unknown(&self) -> bool {
        self.has_written || self.is_ambiguous
    }

    /// Revokes the leases of the hold and of its place, if they were granted before another client
    /// got ahead or before the request failed. If the request is dropped meanwhile, its undo revokes
    /// them.
    async fn revoke_own(&mut self) -> Result<(), BackendError> {
        if self.granted.is_some() {
            self.revoke(Purpose::Hold).await?;
        }
        if self.idle_place.is_some() {
            self.revoke(Purpose::Wait).await?;
        }
        Ok(())
    }

    /// Revokes the lease of the hold or of its place.
    ///
    /// The next request for the hold is granted the same lease, and a revocation that came only then
    /// would end the hold. So unless this one is known to be over, the outcome of the request is
    /// unknown: its caller undoes it, and asks with another id.
    async fn revoke(&mut self, purpose: Purpose) -> Result<(), BackendError> {
        let AcquireRequest { hold, mode, .. } = self.request;
        let revocation = Revoke(self.keys.lease(purpose, *mode, hold.id()));
        let limit = self.members.share();
        let revoked = timeout(limit, self.members.call_noting(DOING, &revocation)).await;
        let revoked = match revoked {
            Ok(Ok(reply)) if reply.is_repeated => Err(error::unsure(self.members, DOING)),
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(self.no_answer(limit)),
        };
        self.is_ambiguous = revoked.is_err();
        revoked
    }

    fn no_answer(&self, waited: Duration) -> BackendError {
        error::no_answer(DOING, self.members.address(self.members.current()), waited)
    }

    /// Repeats the decision until nothing changes between it and the write. Each change means that
    /// another client has got ahead.
    async fn decided(&mut self) -> Result<AcquireOutcome, BackendError> {
        // Before the read, so that what is heard after it is not overlooked.
        let quiet = self.quiet();
        if let Some(refusal) = quiet.as_ref().and_then(Quiet::refusal)
            && self.is_kept(&refusal).await
        {
            return Ok(AcquireOutcome::Held { remaining: refusal.remaining });
        }
        let mut seen = self.read().await?;
        let mut asks_again = true;
        loop {
            let now = match decide(&seen, self.keys, self.kind, self.request) {
                Decision::OtherKind => return Err(error::wrong_kind(self.kind.other())),
                Decision::Gone => return Ok(AcquireOutcome::NotHeld),
                Decision::Own(entry) => {
                    if self.keep(entry).await? {
                        return Ok(AcquireOutcome::Acquired { token: token(entry.created) });
                    }
                    None
                }
                Decision::Blocked { by, may_queue } => {
                    let has_place = !may_queue || self.queue(&seen, &by).await?;
                    let left = if has_place { self.left(&by).await? } else { None };
                    match left {
                        Some(Left(remaining)) => {
                            if let Some(quiet) = quiet.as_ref().filter(|_| may_queue) {
                                self.note_refusal(&seen, remaining, quiet);
                            }
                            return Ok(AcquireOutcome::Held { remaining });
                        }
                        None if has_place && !asks_again => {
                            return Ok(AcquireOutcome::Held { remaining: Some(ENDING) });
                        }
                        // The obstacle may be gone by now.
                        None => asks_again &= !has_place,
                    }
                    None
                }
                Decision::Grant { replaces, conditions } => {
                    let answer = self.grant(&seen, &replaces, conditions).await?;
                    if answer.succeeded() {
                        self.unused = replaces.iter().map(|entry| entry.lease).collect();
                        let header = answer.header().ok_or_else(|| error::unexpected(DOING))?;
                        return Ok(AcquireOutcome::Acquired { token: token(header.revision()) });
                    }
                    Some(answer)
                }
            };
            self.retries += 1;
            let pauses = self.retries > FEW;
            if pauses {
                self.pauses.pause().await;
            }
            seen = match now {
                // After a pause, it is out of date.
                Some(answer) if !pauses => Seen::from_answer(&answer, self.keys, self.kind)?,
                _ => self.read().await?,
            };
        }
    }

    /// The subscription of this request, if it waits in the queue of a fair lock. A named owner may
    /// take a hold over that nobody tells it of.
    fn quiet(&self) -> Option<Quiet> {
        let AcquireRequest { mode, queue, hold, .. } = self.request;
        queue.filter(|_| *mode == Mode::Fair && !hold.is_named())?;
        self.waiters.quiet(&self.keys.kind(self.kind), hold.id())
    }

    /// Keeps the place of a request that was refused before, without which it has to read. While
    /// nobody wakes it, it cannot be its turn.
    ///
    /// The answer for a lease that is ending takes a while, so the member is not to blame if the
    /// caller gives up. If it fails, the read that comes next finds out.
    async fn is_kept(&self, refusal: &QueueRefusal) -> bool {
        let is_long_enough =
            self.request.queue.is_some_and(|queue| refusal.seconds >= seconds(queue));
        let (member, keeping) = (self.members.current(), KeepAlive(refusal.place));
        let asking = self.members.ask_patiently(member, DOING, &keeping);
        // The rest of the time is for the read.
        is_long_enough && matches!(timeout(self.members.share() / 4, asking).await, Ok(Ok(true)))
    }

    /// Notes that the request has a place, and that it is not the first one. The first in the queue
    /// reads whenever it asks, in case a wake-up was lost.
    fn note_refusal(&self, seen: &Seen, remaining: Option<Duration>, quiet: &Quiet) {
        let Some(place) = &seen.own_place else { return };
        if seen.places.first().is_some_and(|first| first.id != place.id) {
            let seconds = place.record.seconds;
            quiet.note(QueueRefusal { place: place.lease, seconds, remaining });
        }
    }

    async fn read(&self) -> Result<Seen, BackendError> {
        let reads = Seen::reads(self.keys, self.kind, self.request.hold.id());
        let answer = self.members.call(DOING, &Transact(Txn::new().and_then(reads))).await?;
        let answer = answer.ok_or_else(|| error::unexpected(DOING))?;
        Seen::from_answer(&answer, self.keys, self.kind)
    }

    /// A repetition, or the growth of a hold.
    async fn keep(&mut self, entry: &Entry) -> Result<bool, BackendError> {
        let had_written = std::mem::replace(&mut self.has_written, true);
        let seconds = seconds(self.request.lease);
        let is_kept = keep(self.members, entry, seconds, Some(self.request.count)).await?;
        self.has_written = had_written || is_kept;
        Ok(is_kept)
    }

    /// Writes the hold.
    async fn grant(
        &mut self,
        seen: &Seen,
        replaces: &[&Entry],
        conditions: Vec<Compare>,
    ) -> Result<TxnResponse, BackendError> {
        let AcquireRequest { hold, mode, lease, .. } = self.request;
        let key = self.keys.hold(*mode, hold.id());
        let id = self.keys.lease(Purpose::Hold, *mode, hold.id());
        let granted = match self.granted {
            Some(granted) => granted,
            None => self.ensure(id, seconds(*lease), &key).await?,
        };
        self.granted = Some(granted);
        let record =
            Record { mode: *mode, count: 1, seconds: granted, owner: hold.owner().to_owned() };
        let options = PutOptions::new().with_lease(id);
        let mut writes = vec![TxnOp::put(key, record.encode(), Some(options))];
        writes.extend(replaces.iter().map(|entry| TxnOp::delete(entry.key.as_str(), None)));
        writes.extend(seen.own_place.iter().map(|place| TxnOp::delete(place.key.as_str(), None)));
        let txn = Txn::new().when(conditions).and_then(writes).or_else(Seen::reads(
            self.keys,
            self.kind,
            hold.id(),
        ));
        let had_written = std::mem::replace(&mut self.has_written, true);
        let MemberReply { answer, is_repeated, .. } =
            self.members.call_noting(DOING, &Transact(txn)).await?;
        self.has_written = had_written || answer.as_ref().is_some_and(TxnResponse::succeeded);
        self.is_ambiguous |= is_repeated;
        answer.ok_or_else(|| error::undone(self.members))
    }

    /// Gives the refused hold a place, or keeps the one that it has, if it wants one. Returns
    /// `false` if something has changed meanwhile.
    ///
    /// A late copy of the request must not give a place to a hold that was granted. So one of the
    /// entries in the way must still exist, since all of them have to end before a grant.
    async fn queue(&mut self, seen: &Seen, by: &[&Entry]) -> Result<bool, BackendError> {
        let AcquireRequest { hold, mode, queue, .. } = self.request;
        let Some(queue) = queue.filter(|_| matches!(mode, Mode::Fair | Mode::Write)) else {
            return Ok(true);
        };
        let had_written = self.has_written;
        if let Some(place) = &seen.own_place {
            // Of an earlier request, or of a copy of this one whose answer was lost.
            self.idle_place = None;
            if place.lease == 0 {
                // Somebody else has written it, for ever.
                return Ok(true);
            }
            if place.record.seconds >= seconds(queue) {
                // A renewal that the leader does not hear of costs no more than the place.
                return self.members.call(DOING, &KeepAlive(place.lease)).await;
            }
            self.has_written = true;
            let is_kept = keep(self.members, place, seconds(queue), None).await?;
            self.has_written = had_written || is_kept;
            return Ok(is_kept);
        }
        let key = self.keys.place(self.kind, hold.id());
        let id = self.keys.lease(Purpose::Wait, *mode, hold.id());
        // Each request in between is time for the holds in the way to end.
        let granted = match self.idle_place {
            Some(granted) => granted,
            None => self.ensure(id, seconds(queue), &key).await?,
        };
        self.idle_place = Some(granted);
        let record =
            Record { mode: *mode, count: 0, seconds: granted, owner: hold.owner().to_owned() };
        let mut conditions = vec![
            Compare::create_revision(key.as_str(), CompareOp::Equal, 0),
            nothing_below(self.keys.kind(self.kind.other())),
        ];
        if *mode == Mode::Write {
            // A writer behind another writer keeps nobody out.
            conditions.push(seen.nothing_new(self.keys.holds_in(Mode::Write)));
        }
        conditions.extend(by.first().map(|entry| entry.present()));
        let put = TxnOp::put(key, record.encode(), Some(PutOptions::new().with_lease(id)));
        let txn = Txn::new().when(conditions).and_then([put]);
        self.has_written = true;
        let MemberReply { answer, is_repeated, .. } =
            self.members.call_noting(DOING, &Transact(txn)).await?;
        let is_queued = answer.as_ref().is_some_and(TxnResponse::succeeded);
        self.has_written = had_written || is_queued || is_repeated;
        self.idle_place = Some(granted).filter(|_| !is_queued);
        answer.map(|_| is_queued).ok_or_else(|| error::undone(self.members))
    }

    /// Makes sure that a lease exists. If its grant may still be on its way when this fails, the
    /// request has to be undone, and repeated under another id.
    async fn ensure(&mut self, lease: i64, seconds: i64, key: &str) -> Result<i64, BackendError> {
        let had_written = std::mem::replace(&mut self.has_written, true);
        let granted = ensure(self.members, lease, seconds, key).await;
        self.has_written =
            had_written || granted.as_ref().is_err_and(BackendError::is_outcome_unknown);
        granted
    }

    /// The remaining time of the last of these. `None` if they have all ended.
    ///
    /// A waiter in a queue is woken by each end, and asks again to keep its place. So it is told
    /// the longest time that they may last, without a lookup of each.
    async fn left(&self, entries: &[&Entry]) -> Result<Option<Left>, BackendError> {
        if entries.iter().any(|entry| entry.lease == 0) {
            return Ok(Some(Left(None)));
        }
        let queues =
            self.request.queue.is_some() && matches!(self.request.mode, Mode::Fair | Mode::Write);
        if queues || entries.len() > LOOKUPS {
            let longest = entries.iter().map(|entry| entry.record.seconds).max();
            return Ok(longest
                .map(|seconds| Left(Some(Duration::from_secs(seconds.max(0).cast_unsigned())))));
        }
        let questions = entries
            .iter()
            .map(|entry| async { self.members.call(DOING, &TimeToLive(entry.lease)).await });
        let mut remaining = None;
        for answer in join_all(questions).await {
            remaining = remaining.max(answer?.map(|lease| left(lease.left)));
        }
        Ok(remaining.map(|remaining| Left(Some(remaining))))
    }
}

/// The remaining time of a lease that exists. `None` for a key without a lease, which never ends.
struct Left(Option<Duration>);
