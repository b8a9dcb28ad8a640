//! The store of [`Flawed`] clients, and the decisions that their flaws change.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use lockcore::{
    LockName, Mode,
    backend::{AcquireRequest, HoldId},
};
use lockcore_testkit::Op;
use tokio::{sync::Notify, task::yield_now, time::Instant};

use super::{
    directory::Entries, flaw::Flaw, interruptions::Connections, kinds::Kind, pool::Pool,
    queue::Waiting, shared::Shared, signals::Signals,
};

/// One client of the store.
#[derive(Clone, Debug)]
pub(crate) struct Flawed {
    pub(super) flaw: Flaw,
    pub(super) store: Arc<Mutex<Store>>,
    pub(super) client: u64,
    /// Only for [`Flaw::StaysBusyWhenDropped`].
    pub(super) busy: Arc<Mutex<bool>>,
    /// Only for [`Flaw::LendsAnyConnection`].
    pub(super) pool: Arc<Mutex<Pool>>,
}

#[derive(Debug, Default)]
pub(super) struct Store {
    pub(super) cells: HashMap<String, Cell>,
    pub(super) tokens: HashMap<String, u64>,
    pub(super) signals: Signals,
    pub(super) directory: Entries,
    pub(super) connections: Connections,
    /// The last token before it was raised, for the flaw that does not write that.
    pub(super) before_raise: Option<(String, u64)>,
    /// For the flaw that lets a walk hold up others.
    pub(super) closed_until: Option<Instant>,
}

#[derive(Debug, Default)]
pub(super) struct Cell {
    pub(super) hold: Option<Stored>,
    /// An ended hold, for the flaws that remember it.
    pub(super) former: Option<Stored>,
    /// For the flaw that later grants a refused request.
    pub(super) queued: Option<AcquireRequest>,
    /// The queue of a fair lock.
    pub(super) places: VecDeque<Waiting>,
    /// Readers and writers, or permits.
    pub(super) shared: Shared,
    /// For the flaws that remember the kind of a name.
    pub(super) former_kind: Option<Kind>,
    pub(super) listeners: Vec<Arc<Subscriber>>,
    /// The subscribers to the demand.
    pub(super) wanting: Vec<Arc<Subscriber>>,
    pub(super) was_wanted: bool,
    pub(super) has_woken: bool,
    pub(super) sticky: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) id: HoldId,
    pub(super) former_id: Option<HoldId>,
    pub(super) client: u64,
    pub(super) count: u32,
    pub(super) has_grown: bool,
    pub(super) token: u64,
    pub(super) lease: Duration,
    pub(super) ends: Instant,
    pub(super) mode: Mode,
    /// The number of the request that was granted directly, until a subscription has reported it.
    pub(super) granted_request: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Subscriber {
    pub(super) client: u64,
    pub(super) notify: Notify,
}

impl Cell {
    pub(super) fn has_listeners(&self) -> bool {
        !self.listeners.is_empty() || !self.wanting.is_empty()
    }

    pub(super) fn live(&self, now: Instant) -> Option<&Stored> {
        self.hold.as_ref().filter(|hold| hold.ends > now)
    }

    /// Removes holds and places that have ended.
    pub(super) fn settle(&mut self, now: Instant) {
        if self.hold.as_ref().is_some_and(|hold| hold.ends <= now) {
            self.former = self.hold.take();
        }
    }
}

/// A pending call. Dropping it leaves the client busy, if that is the flaw.
pub(super) struct Busy<'a>(&'a Flawed);

impl Busy<'_> {
    pub(super) fn done(self) {
        *self.0.busy.lock().unwrap() = false;
    }
}

impl Flawed {
    pub(super) fn has(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    pub(super) fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap()
    }

    /// Delivers a request to the store.
    pub(super) async fn send(&self, op: Op) -> Busy<'_> {
        if std::mem::replace(
            &mut *self.busy.lock().unwrap(),
            self.has(Flaw::StaysBusyWhenDropped(op)),
        ) {
            std::future::pending::<()>().await;
        }
        let closed_until = self.store().closed_until;
        if let Some(until) = closed_until {
            tokio::time::sleep_until(until).await;
        }
        yield_now().await;
        Busy(self)
    }

    /// Delivers a reply.
    pub(super) async fn reply(&self, busy: Busy<'_>) {
        yield_now().await;
        busy.done();
    }

    pub(super) fn key(&self, name: &LockName) -> String {
        let name = name.as_str();
        match self.flaw {
            Flaw::IgnoresCase => name.to_lowercase(),
            Flaw::IgnoresSpaceAround => name.trim().into(),
            Flaw::IgnoresWhatIsInBraces => name.replace("{a}", "a"),
            Flaw::CutsLongNames => name.chars().take(255).collect(),
            _ => name.into(),
        }
    }

    /// Changes the cell of `name`, and forgets it if it is idle afterwards.
    pub(super) fn with<T>(
        &self,
        name: &LockName,
        change: impl FnOnce(&mut Cell, Instant) -> T,
    ) -> T {
        let (now, key) = (Instant::now(), self.key(name));
        let mut store = self.store();
        if self.has(Flaw::NeverForgetsANameItSaw) {
            store.directory.seen.insert(key.clone());
        }
        let cell = store.cells.entry(key.clone()).or_default();
        let was_there = cell.hold.is_some();
        cell.settle(now);
        cell.shared.settle(self.flaw, now);
        if self.has(Flaw::QueueEndsWithTheLease) && was_there && cell.hold.is_none() {
            cell.places.clear();
        }
        let was_held = cell.hold.is_some();
        let result = change(cell, now);
        cell.sticky |= (self.has(Flaw::KeepsNamesAskedFor)
            && !was_held
            && cell.hold.is_none()
            && !cell.has_listeners())
            || (self.has(Flaw::KeepsReleasedNames) && was_held && cell.hold.is_none());
        let remembers = matches!(
            self.flaw,
            Flaw::RevivesWhatHasEnded
                | Flaw::GrowthRevives
                | Flaw::ReportsTheExpired
                | Flaw::TokenOfTheExpiredHoldAgain
                | Flaw::GivesTheTokensOfTheExpiredAwayAgain
                | Flaw::ExpiryBelongsToTheName
                | Flaw::ForceKeepsTheHoldForItsOwner
                | Flaw::StaysOfItsKindForEver
                | Flaw::KindOutlivesTheLease
                | Flaw::CrashLosesReleases
        );
        let is_empty = cell.hold.is_none()
            && cell.shared.is_empty()
            && !cell.has_listeners()
            && cell.places.is_empty();
        if is_empty && !cell.sticky && !remembers {
            store.cells.remove(&key);
            if self.has(Flaw::TokensStartAgainWithTheName) {
                store.tokens.remove(&key);
            }
        }
        result
    }

    /// The first of `count` new tokens.
    pub(super) fn next_tokens(&self, name: &LockName, id: &HoldId, count: u32) -> u64 {
        let first = self.next_token(name, id);
        let more = if self.has(Flaw::GivesSeveralTokensAwayAgain) { 1 } else { count };
        (1..more).for_each(|_| _ = self.next_token(name, id));
        first
    }

    pub(super) fn next_token(&self, name: &LockName, id: &HoldId) -> u64 {
        let key = match self.flaw {
            Flaw::TokensStartAgainWithTheName => self.key(name),
            Flaw::TokensOfEachClient => format!("client {}", self.client),
            _ => String::new(),
        };
        if self.has(Flaw::TokenOfTheNamedOwner) && id.is_named() {
            return 1_000_000;
        }
        let mut store = self.store();
        let token = store.tokens.entry(key).or_default();
        *token += 1;
        *token
    }

    pub(super) fn forget_tokens(&self) {
        self.store().tokens.clear();
    }

    pub(super) fn ends(&self, now: Instant, lease: Duration) -> Instant {
        let millis = u64::try_from(lease.as_millis()).unwrap();
        now + match self.flaw {
            Flaw::NeverEnds => lease * 1000,
            Flaw::TakesAMillisecondForNone if millis <= 1 => lease * 1_000_000,
            Flaw::EndsEarly => lease.mul_f64(0.9),
            Flaw::CutsLeasesToThirtyTwoBits => Duration::from_millis(millis & 0xffff_ffff),
            _ => lease,
        }
    }

    pub(super) fn is_same_owner(&self, stored: &HoldId, asks: &HoldId) -> bool {
        match self.flaw {
            Flaw::GrantsToEverybody => true,
            Flaw::TakesAllNamedOwnersForOne if stored.is_named() && asks.is_named() => true,
            Flaw::NamedOwnersTakeEverything if asks.is_named() => true,
            Flaw::CutsLongOwners => cut(stored.owner(), 255) == cut(asks.owner(), 255),
            _ => stored.owner() == asks.owner(),
        }
    }

    pub(super) fn is_same_hold(&self, stored: &Stored, asks: &HoldId) -> bool {
        match self.flaw {
            Flaw::TakeoverKeepsTheOldHold if stored.former_id.as_ref() == Some(asks) => true,
            Flaw::KnowsRepetitionsOfItsOwnClientOnly if stored.client != self.client => false,
            Flaw::CutsLongIds => cut(stored.id.id(), 1_023) == cut(asks.id(), 1_023),
            _ => &stored.id == asks,
        }
    }
}

/// The first `length` bytes of a text.
fn cut(text: &str, length: usize) -> &[u8] {
    &text.as_bytes()[..text.len().min(length)]
}
