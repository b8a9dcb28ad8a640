//! What is stored under one name, and what each request does to it: no clock, no map.

use std::collections::VecDeque;

use lockcore::{
    AcquireOutcome, AcquireRequest, FencingToken, HoldId, Holder, LockState, Mode, ReleaseOutcome,
    ReleaseRequest, RenewOutcome, RenewRequest,
};
use tokio::{sync::watch, time::Instant};

/// The hold of a name, if any, and whoever listens for its end.
#[derive(Debug, Default)]
pub(crate) struct Cell {
    hold: Option<Stored>,
    /// Who asked for a fair lock and was refused, in that order.
    queue: VecDeque<Queued>,
    /// There while somebody listens or has listened.
    released: Option<watch::Sender<()>>,
}

#[derive(Debug)]
struct Stored {
    hold: HoldId,
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
    /// Whether nothing would be missed if the cell were gone.
    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        self.hold.as_ref().is_none_or(|stored| stored.ends <= now)
            && self.queue.iter().all(|queued| queued.until <= now)
            && self.released.as_ref().is_none_or(|released| released.receiver_count() == 0)
    }

    /// The hold that has not expired.
    fn live(&mut self, now: Instant) -> Option<&mut Stored> {
        self.hold = self.hold.take().filter(|stored| stored.ends > now);
        self.hold.as_mut()
    }

    /// The first in the queue, once those are forgotten that have not asked again in time.
    fn first_in_queue(&mut self, now: Instant) -> Option<&Queued> {
        self.queue.retain(|queued| queued.until > now);
        self.queue.front()
    }

    /// Gives a hold that was refused its place at the end of the queue, or lets it keep the one that it has.
    fn enqueue(&mut self, hold: &HoldId, until: Instant, now: Instant) {
        self.queue.retain(|queued| queued.until > now);
        match self.queue.iter_mut().find(|queued| queued.hold == *hold) {
            Some(queued) => queued.until = until,
            None => self.queue.push_back(Queued { hold: hold.clone(), until }),
        }
    }

    pub(crate) fn acquire(
        &mut self,
        request: &AcquireRequest,
        now: Instant,
        next_token: impl FnOnce() -> FencingToken,
    ) -> AcquireOutcome {
        let outcome = self.decide(request, now, next_token);
        if let (AcquireOutcome::Held { .. }, Mode::Fair, Some(queue)) =
            (&outcome, request.mode, request.queue)
        {
            self.enqueue(&request.hold, now + queue, now);
        }
        outcome
    }

    fn decide(
        &mut self,
        request: &AcquireRequest,
        now: Instant,
        next_token: impl FnOnce() -> FencingToken,
    ) -> AcquireOutcome {
        let ends = now + request.lease;
        // Until when somebody else is the first to be let in.
        let first = self.first_in_queue(now).filter(|first| first.hold != request.hold);
        let ahead = first.map(|first| first.until - now);
        match self.live(now) {
            Some(stored) if stored.hold == request.hold => {
                stored.count = request.count;
                stored.ends = stored.ends.max(ends);
                AcquireOutcome::Acquired { token: stored.token }
            }
            Some(stored) if stored.hold.owner() != request.hold.owner() => {
                AcquireOutcome::Held { remaining: Some(stored.ends - now) }
            }
            _ if request.count > 1 => AcquireOutcome::NotHeld,
            None if request.mode == Mode::Fair && ahead.is_some() => {
                AcquireOutcome::Held { remaining: ahead }
            }
            // Free, or held by the same named owner, whose older hold is taken over.
            _ => {
                let token = next_token();
                self.queue.retain(|queued| queued.hold != request.hold);
                self.hold =
                    Some(Stored { hold: request.hold.clone(), mode: request.mode, count: 1, token, ends });
                AcquireOutcome::Acquired { token }
            }
        }
    }

    pub(crate) fn renew(&mut self, request: &RenewRequest, now: Instant) -> RenewOutcome {
        match self.live(now) {
            Some(stored) if stored.hold == request.hold => {
                stored.ends = stored.ends.max(now + request.lease);
                RenewOutcome::Renewed
            }
            _ => RenewOutcome::NotHeld,
        }
    }

    pub(crate) fn release(&mut self, request: &ReleaseRequest, now: Instant) -> ReleaseOutcome {
        match self.live(now) {
            Some(stored) if stored.hold != request.hold => self.leave(request, now),
            None => self.leave(request, now),
            Some(stored) if request.remaining > 0 => {
                stored.count = request.remaining;
                ReleaseOutcome::StillHeld
            }
            Some(_) => {
                self.free();
                ReleaseOutcome::Released
            }
        }
    }

    /// Removes the place that a hold has in the queue, and lets the next one look.
    fn leave(&mut self, request: &ReleaseRequest, now: Instant) -> ReleaseOutcome {
        let was_first = self.first_in_queue(now).is_some_and(|first| first.hold == request.hold);
        self.queue.retain(|queued| queued.hold != request.hold);
        if was_first {
            self.wake();
        }
        ReleaseOutcome::NotHeld
    }

    pub(crate) fn force_release(&mut self, now: Instant) -> bool {
        let held = self.live(now).is_some();
        if held {
            self.free();
        }
        held
    }

    fn free(&mut self) {
        self.hold = None;
        self.wake();
    }

    fn wake(&self) {
        if let Some(released) = &self.released {
            released.send_replace(());
        }
    }

    pub(crate) fn inspect(&mut self, now: Instant) -> LockState {
        match self.live(now) {
            None => LockState::free(),
            Some(stored) => {
                let holder = Holder::new(stored.hold.owner(), stored.mode, stored.count);
                LockState::held(vec![holder], Some(stored.ends - now))
            }
        }
    }

    pub(crate) fn subscribe(&mut self) -> watch::Receiver<()> {
        self.released.get_or_insert_with(|| watch::Sender::new(())).subscribe()
    }
}
