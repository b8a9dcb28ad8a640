//! The state of one name, and the effect of each request on it. Pure: no clock and no map.

mod condition;
mod exclusive;
mod latch;
mod permits;
mod read_write;
mod stored;
mod wake_channel;

use std::{collections::VecDeque, fmt};

use lockcore::{
    BackendError, BackendErrorKind, FencingToken, Holder, LockState, Mode,
    backend::{
        AcquireOutcome, AcquireRequest, Awaited, HoldId, ReleaseOutcome, ReleaseRequest,
        RenewOutcome, RenewRequest, Wakeup,
    },
};
use smallvec::SmallVec;
use tokio::{sync::watch, time::Instant};

pub(crate) use self::condition::ConditionQueue;
use self::{latch::LatchState, wake_channel::WakeChannel};

/// The holds, the queue and the subscribers of one name.
///
/// This module has what all kinds of locks share. Each kind has a file for its own rules: which
/// holds exclude a request, and which waiters go first.
#[derive(Debug, Default)]
pub(crate) struct NameState {
    /// The kind of the holds, the queue and the permits. Meaningless while there are none.
    kind: NameKind,
    holds: SmallVec<[StoredHold; 1]>,
    /// Fair locks: the refused requests in order of arrival. Read-write locks: the waiting writers
    /// that block new readers.
    queue: VecDeque<QueuedHold>,
    /// The number of permits, once it was set with `resize`.
    permits: Option<u32>,
    latch: LatchState,
    wakeups: WakeChannel,
    /// Wakes holders that others want the lock.
    demand: WakeChannel,
}

/// The kinds of synchronizers that a name can be in use as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum NameKind {
    #[default]
    Lock,
    ReadWrite,
    Permits,
    PlainPermits,
    Latch,
}

#[derive(Debug)]
struct StoredHold {
    hold: HoldId,
    /// For permits, the limit in it is the total at the time of the grant.
    mode: Mode,
    count: u32,
    token: FencingToken,
    expires_at: Instant,
    /// The number of the request that was granted directly, until its subscription has reported it.
    granted_request: Option<u64>,
}

#[derive(Debug)]
struct QueuedHold {
    hold: HoldId,
    expires_at: Instant,
    /// The number of its last request, if that may be granted directly.
    direct_grant: Option<u64>,
}

impl NameState {
    /// Drops expired holds, places and replies. It precedes every request, so that no other code
    /// has to compare times of expiry with the clock.
    pub(crate) fn expire(&mut self, now: Instant) {
        if self.holds.iter().any(|stored| stored.expires_at <= now) {
            self.holds.retain(|stored| stored.expires_at > now);
        }
        self.queue.retain(|queued| queued.expires_at > now);
        self.latch.expire(now);
        self.wakeups.expire();
        self.demand.expire();
    }

    /// Returns `true` if the name has holds, waiters, subscribers, a number of permits or a count.
    pub(crate) fn is_in_use(&self) -> bool {
        let has_subscribers = self.wakeups.has_subscribers() || self.demand.has_subscribers();
        self.used_as().is_some() || has_subscribers
    }

    /// Returns `true` if the state can be removed: a new one would behave the same.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_in_use() && !self.latch.remembers_replies()
    }

    /// Returns `true` if the name has holds, waiters, a number of permits or a count.
    pub(crate) fn is_used(&self) -> bool {
        self.used_as().is_some()
    }

    fn used_as(&self) -> Option<NameKind> {
        if !self.latch.is_open() {
            return Some(NameKind::Latch);
        }
        let is_used = !self.holds.is_empty() || !self.queue.is_empty() || self.permits.is_some();
        is_used.then_some(self.kind)
    }

    /// Marks the name as in use as `kind`. Fails if it is in use as another kind.
    fn use_as(&mut self, kind: NameKind) -> Result<(), BackendError> {
        match self.used_as() {
            Some(used) if used != kind => Err(used.wrong_type()),
            _ => {
                self.kind = kind;
                Ok(())
            }
        }
    }

    pub(crate) fn acquire(
        &mut self,
        request: &AcquireRequest,
        now: Instant,
        next_token: impl FnOnce() -> FencingToken,
    ) -> Result<AcquireOutcome, BackendError> {
        self.use_as(NameKind::of(request.mode)?)?;
        let outcome = self.try_grant(request, now, next_token);
        if let AcquireOutcome::Held { .. } = outcome {
            if matches!(request.mode, Mode::Exclusive | Mode::Fair) {
                self.demand.wake();
            }
            if let Some(queue) = request.queue.filter(|_| self.queues_refused(request.mode)) {
                self.enqueue(request, now + queue);
            }
        }
        Ok(outcome)
    }

    fn try_grant(
        &mut self,
        request: &AcquireRequest,
        now: Instant,
        next_token: impl FnOnce() -> FencingToken,
    ) -> AcquireOutcome {
        let held = |until| AcquireOutcome::Held { remaining: Some(until - now) };
        if let Some(stored) = self.find(&request.hold) {
            stored.count = request.count;
            stored.expires_at = stored.expires_at.max(now + request.lease);
            return AcquireOutcome::Acquired { token: stored.token };
        }
        if let Some(limit) = self.exceeded_limit(request.mode) {
            return AcquireOutcome::TooMany { limit };
        }
        if let Some(until) = self.blocked_until(request) {
            return held(until);
        }
        if request.count > 1 {
            return AcquireOutcome::NotHeld;
        }
        match self.turn_blocked_until(request) {
            Some(until) => held(until),
            None => self.grant(request, now, next_token()),
        }
    }

    /// When to ask again, if existing holds exclude the request.
    fn blocked_until(&self, request: &AcquireRequest) -> Option<Instant> {
        match request.mode {
            Mode::Read => self.read_blocked_until(request),
            Mode::Write => self.write_blocked_until(request),
            Mode::Permit { count, limit, .. } => self.permits_blocked_until(count, limit),
            Mode::Exclusive | Mode::Fair => self.exclusive_blocked_until(request),
            // Unreachable: `NameKind::of` refuses unknown modes.
            _ => None,
        }
    }

    /// When to ask again, if a queued request goes first.
    fn turn_blocked_until(&self, request: &AcquireRequest) -> Option<Instant> {
        match request.mode {
            Mode::Fair => self.fair_turn_blocked_until(request),
            Mode::Read => self.read_turn_blocked_until(request),
            _ => None,
        }
    }

    /// Returns `true` if a refused request in this mode gets a place in the queue.
    fn queues_refused(&self, mode: Mode) -> bool {
        match mode {
            Mode::Fair => true,
            Mode::Write => self.refused_writer_blocks_readers(),
            _ => false,
        }
    }

    /// Adds a hold at the end of the queue, or extends the place that it has.
    fn enqueue(&mut self, request: &AcquireRequest, expires_at: Instant) {
        let AcquireRequest { ref hold, direct_grant, .. } = *request;
        let place = QueuedHold { hold: hold.clone(), expires_at, direct_grant };
        match self.queue.iter_mut().find(|queued| queued.hold == *hold) {
            Some(queued) => *queued = place,
            None => self.queue.push_back(place),
        }
    }

    /// Stores the hold. It replaces an older hold that it takes over.
    fn grant(
        &mut self,
        request: &AcquireRequest,
        now: Instant,
        token: FencingToken,
    ) -> AcquireOutcome {
        let (hold, expires_at) = (request.hold.clone(), now + request.lease);
        let mode = self.mode_to_store(request.mode);
        if self.announced_expiry(request).is_some_and(|announced| announced > expires_at) {
            self.wakeups.wake();
        }
        self.queue.retain(|queued| queued.hold != hold);
        self.holds.retain(|stored| !stored.is_replaced_by(request));
        let granted_request = None;
        self.holds.push(StoredHold { hold, mode, count: 1, token, expires_at, granted_request });
        AcquireOutcome::Acquired { token }
    }

    /// The time that refused requests were given for the things that this hold replaces: its place
    /// in the queue, or an older hold. If the new hold expires earlier than that, they have to be
    /// woken: the expiry of a hold wakes nobody.
    fn announced_expiry(&self, request: &AcquireRequest) -> Option<Instant> {
        let place = self
            .queue
            .iter()
            .filter(|queued| queued.hold == request.hold)
            .map(|queued| queued.expires_at);
        let older = self
            .holds
            .iter()
            .filter(|stored| stored.is_replaced_by(request))
            .map(|stored| stored.expires_at);
        place.chain(older).max()
    }

    fn find(&mut self, hold: &HoldId) -> Option<&mut StoredHold> {
        self.holds.iter_mut().find(|stored| stored.hold == *hold)
    }

    pub(crate) fn renew(&mut self, request: &RenewRequest, now: Instant) -> RenewOutcome {
        match self.find(&request.hold) {
            Some(stored) => {
                stored.expires_at = stored.expires_at.max(now + request.lease);
                RenewOutcome::Renewed
            }
            None => RenewOutcome::NotHeld,
        }
    }

    pub(crate) fn release(
        &mut self,
        request: &ReleaseRequest,
        next_token: impl FnOnce() -> FencingToken,
    ) -> ReleaseOutcome {
        match self.holds.iter().position(|stored| stored.hold == request.hold) {
            Some(at) if request.remaining > 0 => {
                self.holds[at].count = request.remaining;
                ReleaseOutcome::StillHeld
            }
            Some(at) => {
                let released = self.holds.remove(at);
                if released.mode == Mode::Fair {
                    self.grant_directly(next_token);
                }
                self.wakeups.wake();
                ReleaseOutcome::Released
            }
            None => {
                if self.leave_queue(&request.hold) {
                    self.grant_directly(next_token);
                    self.wakeups.wake();
                }
                ReleaseOutcome::NotHeld
            }
        }
    }

    /// Removes a hold from the queue. Returns `true` if it was queued.
    fn leave_queue(&mut self, hold: &HoldId) -> bool {
        let before = self.queue.len();
        self.queue.retain(|queued| queued.hold != *hold);
        self.queue.len() < before
    }

    pub(crate) fn force_release(&mut self) -> Result<bool, BackendError> {
        if !self.latch.is_open() {
            return Err(NameKind::Latch.wrong_type());
        }
        let was_held = !self.holds.is_empty();
        self.holds.clear();
        self.wakeups.wake();
        self.demand.wake();
        Ok(was_held)
    }

    pub(crate) fn inspect(&self, now: Instant) -> LockState {
        let holders = self.holds.iter().map(StoredHold::holder).collect();
        let last = self.holds.iter().map(|stored| stored.expires_at).max();
        let waiters = self.queue.iter().map(|queued| queued.hold.owner().to_owned()).collect();
        let state = LockState::held(holders, last.map(|last| last - now)).with_waiters(waiters);
        match self.available() {
            Some((available, total)) => state.with_permits(available, Some(total)),
            None => state,
        }
    }

    /// The reason why the subscription for `hold` woke. A direct grant is reported once.
    pub(crate) fn wakeup(&mut self, hold: &HoldId) -> Wakeup {
        let stored = self.find(hold).and_then(|stored| {
            let request = stored.granted_request.take()?;
            Some(Wakeup::Granted { token: stored.token, request })
        });
        stored.unwrap_or(Wakeup::Changed)
    }

    pub(crate) fn subscribe(&mut self, awaited: Awaited) -> watch::Receiver<()> {
        if awaited != Awaited::Demand {
            return self.wakeups.subscribe();
        }
        let mut receiver = self.demand.subscribe();
        if self.wakeups.has_subscribers() {
            receiver.mark_changed();
        }
        receiver
    }
}

impl StoredHold {
    fn holder(&self) -> Holder {
        Holder::new(self.hold.owner(), self.mode, self.count)
    }

    /// Returns `true` if a grant of the request replaces this hold. An owner has one hold of an
    /// exclusive lock and one in each mode of a read-write lock, but any number of a semaphore.
    fn is_replaced_by(&self, request: &AcquireRequest) -> bool {
        self.hold.owner() == request.hold.owner()
            && match request.mode {
                Mode::Exclusive | Mode::Fair => true,
                Mode::Read | Mode::Write => self.mode == request.mode,
                // Each acquisition of permits is a hold of its own.
                _ => false,
            }
    }
}

impl NameKind {
    fn of(mode: Mode) -> Result<Self, BackendError> {
        match mode {
            Mode::Exclusive | Mode::Fair => Ok(Self::Lock),
            Mode::Read | Mode::Write => Ok(Self::ReadWrite),
            Mode::Permit { plain: false, .. } => Ok(Self::Permits),
            Mode::Permit { plain: true, .. } => Ok(Self::PlainPermits),
            _ => Err(BackendError::unsupported(format_args!("locks in {mode} mode"))),
        }
    }

    fn wrong_type(self) -> BackendError {
        let message = format!("the name is in use as {self}");
        BackendError::new(BackendErrorKind::WrongType, message).not_applied()
    }
}

impl fmt::Display for NameKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lock => "an exclusive or fair lock",
            Self::ReadWrite => "a read-write lock",
            Self::Permits => "a semaphore",
            Self::PlainPermits => "a plain semaphore",
            Self::Latch => "a latch",
        })
    }
}
