//! [`ModelStore`]: a model of the backend. It keeps the contract of `Backend`, and nothing beyond.

use std::time::Duration;

use smallvec::SmallVec;

use super::portrait::FIRST_TOKEN;
use crate::{FencingToken, Mode, time::Moment};

/// The id of a hold, and of the requests for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum StoreId {
    /// The id of every hold of the stranger.
    Stranger,
    Own(u64),
}

/// How long a place in a queue is kept, and new readers are kept out.
pub(super) const KEPT: Duration = Duration::from_millis(3 * 5_500);

/// One attempt to take a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Demand {
    pub(super) id: StoreId,
    /// All requests of named owners come from the same one.
    pub(super) is_named: bool,
    pub(super) mode: Mode,
    pub(super) lease: Duration,
    pub(super) count: u32,
    pub(super) queues: bool,
    pub(super) within: Option<StoreId>,
    pub(super) tokens: u32,
    /// The number by which a direct grant names it.
    pub(super) number: Option<u64>,
}

/// Tells whether an answer is still current: a field is `true` if its listeners were told nothing
/// since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Told {
    pub(super) all: bool,
    /// The first in the queue.
    pub(super) first: bool,
}

impl Told {
    pub(super) const NONE: Self = Self { all: true, first: true };
}

#[derive(Clone, Copy, Debug, Hash)]
pub(super) enum Reply {
    Granted { token: FencingToken, told: Told },
    Held { remaining: Duration, told: Told },
    NotHeld,
}

/// A hold that the store keeps.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct StoreHold {
    pub(super) id: StoreId,
    is_named: bool,
    pub(super) mode: Mode,
    pub(super) count: u32,
    pub(super) until: Moment,
    pub(super) token: FencingToken,
    /// If it was granted directly: the number of the request.
    number: Option<u64>,
}

#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct StorePlace {
    pub(super) id: StoreId,
    pub(super) until: Moment,
    number: Option<u64>,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct ModelStore {
    pub(super) holds: SmallVec<[StoreHold; 3]>,
    /// The queue of fair waiters, or the writers that keep new readers out.
    pub(super) places: SmallVec<[StorePlace; 3]>,
    permits: u32,
    pub(super) next_token: u64,
}

/// The listeners that have to be told that something ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum News {
    None,
    /// All listeners for anything but a place in a queue, and the first in the queue.
    AllAndFirst,
    /// The listeners of the first kind, and the waiter that the lock was granted to.
    Granted {
        to: StoreId,
        granted: DirectGrant,
    },
}

/// The message to the waiter that a release has granted the lock to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct DirectGrant {
    pub(super) number: u64,
    pub(super) token: FencingToken,
}

impl ModelStore {
    pub(super) fn new(permits: u32) -> Self {
        let (holds, places) = (SmallVec::new(), SmallVec::new());
        Self { holds, places, permits, next_token: FIRST_TOKEN }
    }

    /// Forgets what is over.
    pub(super) fn expire(&mut self, now: Moment) {
        self.holds.retain(|kept| now < kept.until);
        self.places.retain(|place| now < place.until);
    }

    pub(super) fn find(&self, id: StoreId) -> Option<&StoreHold> {
        self.holds.iter().find(|kept| kept.id == id)
    }

    /// The second value is the set of listeners to tell.
    pub(super) fn acquire(&mut self, request: &Demand, now: Moment) -> (Reply, News) {
        let told = Told::NONE;
        if let Some(kept) = self.holds.iter_mut().find(|kept| kept.id == request.id) {
            kept.count = request.count;
            kept.until = kept.until.max(now.after(request.lease));
            return (Reply::Granted { token: kept.token, told }, News::None);
        }
        let blocked = self.blocked_until(request);
        if blocked.is_none() && request.count > 1 {
            return (Reply::NotHeld, News::None);
        }
        let Some(until) = blocked.or_else(|| self.turn_blocked_until(request)) else {
            return self.grant(request, now);
        };
        if request.queues && self.queues(request.mode) {
            let Demand { id, number, .. } = *request;
            let asked = StorePlace { id, until: now.after(KEPT), number };
            match self.places.iter_mut().find(|place| place.id == id) {
                Some(place) => *place = asked,
                None => self.places.push(asked),
            }
        }
        (Reply::Held { remaining: until.since(now), told }, News::None)
    }

    fn grant(&mut self, request: &Demand, now: Moment) -> (Reply, News) {
        let Demand { id, is_named, mode, .. } = *request;
        let until = now.after(request.lease);
        let token = FencingToken::from(self.next_token);
        self.next_token += u64::from(request.tokens);
        // Others were told the end of what this replaces.
        let places = self.places.iter().filter(|place| place.id == id).map(|place| place.until);
        let older = self.holds.iter().filter(|kept| replaces(request, kept));
        let announced = places.chain(older.map(|kept| kept.until)).max();
        let news = match announced {
            Some(announced) if announced > until => News::AllAndFirst,
            _ => News::None,
        };
        self.places.retain(|place| place.id != id);
        self.holds.retain(|kept| !replaces(request, kept));
        let number = None;
        self.holds.push(StoreHold { id, is_named, mode, count: 1, until, token, number });
        (Reply::Granted { token, told: Told::NONE }, news)
    }

    /// When to ask again, if other holds are in the way.
    fn blocked_until(&self, request: &Demand) -> Option<Moment> {
        let others = self.holds.iter().filter(|kept| !replaces(request, kept));
        match request.mode {
            Mode::Exclusive | Mode::Fair => others.map(|kept| kept.until).max(),
            Mode::Write => {
                let last = self.holds.iter().map(|kept| kept.until).max();
                last.filter(|_| !self.has_own(request))
            }
            Mode::Read => {
                let writer = self.writer().filter(|writer| request.within != Some(writer.id));
                writer.filter(|_| !self.has_own(request)).map(|writer| writer.until)
            }
            Mode::Permit { count, .. } => {
                let taken: u32 = self.holds.iter().map(|kept| permits(kept.mode)).sum();
                let next = self.holds.iter().map(|kept| kept.until).min();
                next.filter(|_| taken + count > self.permits)
            }
        }
    }

    /// When to ask again, if another one comes first.
    fn turn_blocked_until(&self, request: &Demand) -> Option<Moment> {
        match request.mode {
            Mode::Fair => {
                let first = self.places.first().filter(|first| first.id != request.id)?;
                self.holds.is_empty().then_some(first.until)
            }
            Mode::Read if !self.has_own(request) && self.writer().is_none() => {
                self.places.iter().map(|place| place.until).max()
            }
            _ => None,
        }
    }

    fn has_own(&self, request: &Demand) -> bool {
        self.holds.iter().any(|kept| replaces(request, kept))
    }

    fn writer(&self) -> Option<&StoreHold> {
        self.holds.iter().find(|kept| kept.mode == Mode::Write)
    }

    fn queues(&self, mode: Mode) -> bool {
        mode == Mode::Fair || mode == Mode::Write && self.writer().is_none()
    }

    /// Returns `true` if a request would be granted now.
    pub(super) fn would_grant(&self, request: &Demand, now: Moment) -> bool {
        matches!(self.clone().acquire(request, now).0, Reply::Granted { .. })
    }

    /// Ends a hold, lowers its count, or leaves a place. Returns `true` if there was such a hold.
    pub(super) fn release(&mut self, id: StoreId, remaining: u32) -> (bool, News) {
        if let Some(at) = self.holds.iter().position(|kept| kept.id == id) {
            if remaining > 0 {
                self.holds[at].count = remaining;
                return (true, News::None);
            }
            let is_fair = self.holds.remove(at).mode == Mode::Fair;
            return (true, if is_fair { self.grant_directly() } else { News::AllAndFirst });
        }
        let before = self.places.len();
        self.places.retain(|place| place.id != id);
        let has_left = self.places.len() < before;
        (false, if has_left { self.grant_directly() } else { News::None })
    }

    /// Grants a free lock to the first waiter in the queue, if it has asked for that. Otherwise the
    /// waiter is only told.
    fn grant_directly(&mut self) -> News {
        let first = self.places.first().copied();
        let Some((StorePlace { id, until, .. }, number)) =
            first.and_then(|first| Some((first, first.number?))).filter(|_| self.holds.is_empty())
        else {
            return News::AllAndFirst;
        };
        self.places.remove(0);
        let token = FencingToken::from(self.next_token);
        self.next_token += 1;
        let (is_named, mode) = (false, Mode::Fair);
        let kept = Some(number);
        self.holds.push(StoreHold { id, is_named, mode, count: 1, until, token, number: kept });
        News::Granted { to: id, granted: DirectGrant { number, token } }
    }

    /// The hold that a release of the stranger may have granted directly.
    pub(super) fn granted_directly(&self) -> Option<StoreId> {
        self.holds.iter().find(|kept| kept.number.is_some()).map(|kept| kept.id)
    }

    /// A store takes over that has not heard of the release which granted the lock directly: the
    /// stranger still has it, and the other one its place.
    pub(super) fn forget_grant(&mut self, now: Moment) -> News {
        let until = now.after(KEPT);
        for kept in &mut self.holds {
            if let Some(number) = kept.number.take() {
                self.places.insert(0, StorePlace { id: kept.id, until, number: Some(number) });
                kept.id = StoreId::Stranger;
            }
        }
        News::AllAndFirst
    }

    /// Extends a lease. Returns `true` if there was such a hold.
    pub(super) fn renew(&mut self, id: StoreId, lease: Duration, now: Moment) -> bool {
        let kept = self.holds.iter_mut().find(|kept| kept.id == id);
        kept.map(|kept| kept.until = kept.until.max(now.after(lease))).is_some()
    }

    /// Ends all holds.
    pub(super) fn force(&mut self) -> News {
        self.holds.clear();
        News::AllAndFirst
    }
}

/// Returns `true` if a grant of the request takes over this hold.
fn replaces(request: &Demand, kept: &StoreHold) -> bool {
    let is_own = kept.id == request.id || kept.is_named && request.is_named;
    is_own
        && match request.mode {
            Mode::Exclusive | Mode::Fair => true,
            Mode::Read | Mode::Write => kept.mode == request.mode,
            Mode::Permit { .. } => kept.id == request.id,
        }
}

fn permits(mode: Mode) -> u32 {
    match mode {
        Mode::Permit { count, .. } => count,
        _ => 0,
    }
}
