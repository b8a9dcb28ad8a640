//! What is stored under one name, and what each request does to it: no clock, no map.

mod condition;
mod exclusive;
mod latch;
mod listeners;
mod permits;
mod read_write;

use std::{collections::VecDeque, fmt};

use lockcore::{
    BackendError, BackendErrorKind, FencingToken, Holder, LockState, Mode,
    backend::{
        AcquireOutcome, AcquireRequest, HoldId, ReleaseOutcome, ReleaseRequest, RenewOutcome,
        RenewRequest,
    },
};
use smallvec::SmallVec;
use tokio::{sync::watch, time::Instant};

pub(crate) use self::condition::Condition;
use self::{latch::Latch, listeners::Listeners};

/// The holds of a name, who waits for it, and who listens.
///
/// What all kinds of locks have in common is here; in whose way a hold is, and who comes first, is in a file a kind.
#[derive(Debug, Default)]
pub(crate) struct Cell {
    /// What the holds and the queue are of, if there are any.
    kind: Kind,
    holds: SmallVec<[Stored; 1]>,
    /// Of a fair lock: who was refused, in that order. Of a read-write lock: the writers that keep new readers out.
    queue: VecDeque<Queued>,
    /// How many permits there are, once that was set.
    permits: Option<u32>,
    latch: Latch,
    listeners: Listeners,
}

/// What a name can be in use as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Lock,
    ReadWrite,
    Permits,
    PlainPermits,
    Latch,
}

#[derive(Debug)]
struct Stored {
    hold: HoldId,
    /// Of permits, with as many as there were.
    mode: Mode,
    count: u32,
    token: FencingToken,
    ends: Instant,
}

#[derive(Debug)]
struct Queued {
    hold: HoldId,
    /// When the place is forgotten.
    until: Instant,
}

impl Cell {
    /// Drops what has ended. Every request is preceded by this, so that nobody else has to look at the ends.
    pub(crate) fn settle(&mut self, now: Instant) {
        self.holds.retain(|stored| stored.ends > now);
        self.queue.retain(|queued| queued.until > now);
        self.latch.settle(now);
        self.listeners.settle();
    }

    /// Whether anybody holds the name, waits for it or listens, or has set something.
    pub(crate) fn is_in_use(&self) -> bool {
        self.used_as().is_some() || self.listeners.are_there()
    }

    /// Whether nothing would be missed if the cell were gone.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_in_use() && !self.latch.remembers()
    }

    fn used_as(&self) -> Option<Kind> {
        if !self.latch.is_open() {
            return Some(Kind::Latch);
        }
        let is_used = !self.holds.is_empty() || !self.queue.is_empty() || self.permits.is_some();
        is_used.then_some(self.kind)
    }

    /// Refuses to use as `kind` what is in use as another.
    fn use_as(&mut self, kind: Kind) -> Result<(), BackendError> {
        match self.used_as() {
            Some(used) if used != kind => Err(used.is_not_asked_for()),
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
        self.use_as(Kind::of(request.mode)?)?;
        let outcome = self.decide(request, now, next_token);
        if let (AcquireOutcome::Held { .. }, Some(queue)) = (&outcome, request.queue)
            && self.has_queue_for(request.mode)
        {
            self.enqueue(&request.hold, now + queue);
        }
        Ok(outcome)
    }

    fn decide(
        &mut self,
        request: &AcquireRequest,
        now: Instant,
        next_token: impl FnOnce() -> FencingToken,
    ) -> AcquireOutcome {
        let held = |until| AcquireOutcome::Held { remaining: Some(until - now) };
        if let Some(stored) = self.find(&request.hold) {
            stored.count = request.count;
            stored.ends = stored.ends.max(now + request.lease);
            return AcquireOutcome::Acquired { token: stored.token };
        }
        if let Some(limit) = self.limit_below(request.mode) {
            return AcquireOutcome::TooMany { limit };
        }
        if let Some(until) = self.in_the_way_of(request) {
            return held(until);
        }
        if request.count > 1 {
            return AcquireOutcome::NotHeld;
        }
        match self.ahead_of(request) {
            Some(until) => held(until),
            None => self.grant(request, now, next_token()),
        }
    }

    /// When the holds end that exclude this one.
    fn in_the_way_of(&self, request: &AcquireRequest) -> Option<Instant> {
        match request.mode {
            Mode::Read => self.in_the_way_of_a_reader(request),
            Mode::Write => self.in_the_way_of_a_writer(request),
            Mode::Permit { count, limit, .. } => self.in_the_way_of_permits(count, limit),
            Mode::Exclusive | Mode::Fair => self.in_the_way_of_a_stranger(request),
            // `Kind::of` has refused all others.
            _ => None,
        }
    }

    /// Until when somebody else who waits is to be let in first.
    fn ahead_of(&self, request: &AcquireRequest) -> Option<Instant> {
        match request.mode {
            Mode::Fair => self.ahead_of_a_fair_hold(request),
            Mode::Read => self.ahead_of_a_reader(request),
            _ => None,
        }
    }

    /// Whether a hold that was refused gets a place.
    fn has_queue_for(&self, mode: Mode) -> bool {
        match mode {
            Mode::Fair => true,
            Mode::Write => self.keeps_a_writers_place(),
            _ => false,
        }
    }

    /// Gives a hold that was refused its place at the end of the queue, or lets it keep the one that it has.
    fn enqueue(&mut self, hold: &HoldId, until: Instant) {
        match self.queue.iter_mut().find(|queued| queued.hold == *hold) {
            Some(queued) => queued.until = until,
            None => self.queue.push_back(Queued { hold: hold.clone(), until }),
        }
    }

    /// Stores the hold, in the place of an older one that it takes over.
    fn grant(
        &mut self,
        request: &AcquireRequest,
        now: Instant,
        token: FencingToken,
    ) -> AcquireOutcome {
        let (hold, ends) = (request.hold.clone(), now + request.lease);
        let mode = self.mode_to_store(request.mode);
        if self.told_to_others(request).is_some_and(|told| told > ends) {
            self.listeners.wake();
        }
        self.queue.retain(|queued| queued.hold != hold);
        self.holds.retain(|stored| !stored.gives_way_to(request));
        self.holds.push(Stored { hold, mode, count: 1, token, ends });
        AcquireOutcome::Acquired { token }
    }

    /// Until when others were told to wait for what the hold now replaces: its place in the queue, or an older hold. It may end earlier,
    /// of which there is no message.
    fn told_to_others(&self, request: &AcquireRequest) -> Option<Instant> {
        let place = self
            .queue
            .iter()
            .filter(|queued| queued.hold == request.hold)
            .map(|queued| queued.until);
        let older = self
            .holds
            .iter()
            .filter(|stored| stored.gives_way_to(request))
            .map(|stored| stored.ends);
        place.chain(older).max()
    }

    fn find(&mut self, hold: &HoldId) -> Option<&mut Stored> {
        self.holds.iter_mut().find(|stored| stored.hold == *hold)
    }

    pub(crate) fn renew(&mut self, request: &RenewRequest, now: Instant) -> RenewOutcome {
        match self.find(&request.hold) {
            Some(stored) => {
                stored.ends = stored.ends.max(now + request.lease);
                RenewOutcome::Renewed
            }
            None => RenewOutcome::NotHeld,
        }
    }

    pub(crate) fn release(&mut self, request: &ReleaseRequest) -> ReleaseOutcome {
        match self.find(&request.hold) {
            Some(stored) if request.remaining > 0 => {
                stored.count = request.remaining;
                ReleaseOutcome::StillHeld
            }
            Some(_) => {
                self.holds.retain(|stored| stored.hold != request.hold);
                self.listeners.wake();
                ReleaseOutcome::Released
            }
            None => {
                self.leave(&request.hold);
                ReleaseOutcome::NotHeld
            }
        }
    }

    /// Removes the place that a hold has in the queue, and lets the others look.
    fn leave(&mut self, hold: &HoldId) {
        let before = self.queue.len();
        self.queue.retain(|queued| queued.hold != *hold);
        if self.queue.len() < before {
            self.listeners.wake();
        }
    }

    pub(crate) fn force_release(&mut self) -> Result<bool, BackendError> {
        if !self.latch.is_open() {
            return Err(Kind::Latch.is_not_asked_for());
        }
        let was_held = !self.holds.is_empty();
        self.holds.clear();
        self.listeners.wake();
        Ok(was_held)
    }

    pub(crate) fn inspect(&self, now: Instant) -> LockState {
        let holders = self.holds.iter().map(Stored::holder).collect();
        let last = self.holds.iter().map(|stored| stored.ends).max();
        let waiters = self.queue.iter().map(|queued| queued.hold.owner().to_owned()).collect();
        let state = LockState::held(holders, last.map(|last| last - now)).with_waiters(waiters);
        match self.available() {
            Some((available, total)) => state.with_permits(available, Some(total)),
            None => state,
        }
    }

    pub(crate) fn subscribe(&mut self) -> watch::Receiver<()> {
        self.listeners.subscribe()
    }
}

impl Stored {
    fn holder(&self) -> Holder {
        Holder::new(self.hold.owner(), self.mode, self.count)
    }

    /// Whether this is an older hold of the same owner, which can have one in each mode of a read-write lock, and any
    /// number of permits.
    fn gives_way_to(&self, request: &AcquireRequest) -> bool {
        self.hold.owner() == request.hold.owner()
            && match request.mode {
                Mode::Exclusive | Mode::Fair => true,
                Mode::Read | Mode::Write => self.mode == request.mode,
                // Each acquisition of permits is a hold of its own.
                _ => false,
            }
    }
}

impl Kind {
    fn of(mode: Mode) -> Result<Self, BackendError> {
        match mode {
            Mode::Exclusive | Mode::Fair => Ok(Self::Lock),
            Mode::Read | Mode::Write => Ok(Self::ReadWrite),
            Mode::Permit { plain: false, .. } => Ok(Self::Permits),
            Mode::Permit { plain: true, .. } => Ok(Self::PlainPermits),
            _ => Err(BackendError::unsupported(format_args!("locks in {mode} mode"))),
        }
    }

    fn is_not_asked_for(self) -> BackendError {
        let message = format!("the name is in use as {self}");
        BackendError::new(BackendErrorKind::WrongType, message).not_applied()
    }
}

impl fmt::Display for Kind {
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
