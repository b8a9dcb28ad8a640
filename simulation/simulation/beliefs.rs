//! [`Beliefs`]: the holds that actors believe in now, and whether they are compatible.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockcore::{FencingToken, Holder, LockGuard, Mode, MultiGuard, Owner};
use tokio::time::Instant;

use crate::truth::{Granted, Truth};

/// How long the store may count more guards than there are. The background task corrects the count.
const MISCOUNTED: Duration = Duration::from_millis(300);

/// The guards that actors have, for as long as they believe in them. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Beliefs {
    truth: Truth,
    permits: u32,
    /// `true` if every request can reach the store.
    is_undisturbed: bool,
    record: Arc<Mutex<Record>>,
}

#[derive(Debug, Default)]
struct Record {
    guards: BTreeMap<u64, LockGuard>,
    /// The guards of multi-locks.
    several: BTreeMap<u64, MultiGuard>,
    /// The client of each guard.
    clients: BTreeMap<u64, usize>,
    next: u64,
    /// The lost guards, and since when.
    lost: BTreeMap<u64, Instant>,
    /// The guards that the store counts too high, and since when.
    miscounted: BTreeMap<u64, Instant>,
    /// By name: the last token of an exclusive entry.
    entered: BTreeMap<String, u64>,
    /// By name: the greatest token of those that have left.
    left: BTreeMap<String, u64>,
}

/// A belief. Dropping it ends the belief, and drops the guard.
#[derive(Debug)]
pub(crate) struct Believed {
    beliefs: Beliefs,
    number: u64,
}

/// A belief in several guards. Dropping it ends the belief, and drops them.
#[derive(Debug)]
pub(crate) struct BelievedAll {
    beliefs: Beliefs,
    number: u64,
}

/// A hold that an actor believes in, with any kind of guard.
#[derive(Debug)]
struct Inside {
    name: String,
    owner: Owner,
    token: FencingToken,
    granted: Granted,
    remaining: Duration,
}

impl Inside {
    fn by(guard: &LockGuard) -> Self {
        Self {
            name: guard.name().to_owned(),
            owner: guard.owner().clone(),
            token: guard.token(),
            granted: Granted { owner: guard.wire_owner().to_owned(), mode: guard.mode() },
            remaining: guard.remaining(),
        }
    }

    fn by_all<'a>(guard: &'a MultiGuard, truth: &'a Truth) -> impl Iterator<Item = Self> + 'a {
        guard.tokens().map(|(name, token)| Self {
            name: name.to_owned(),
            owner: guard.owner().clone(),
            token,
            granted: truth.granted_for(name, token.into()),
            remaining: guard.remaining(),
        })
    }

    fn excludes(&self, other: &Self) -> bool {
        self.name == other.name
            && self.owner != other.owner
            && (is_alone(self.granted.mode) || is_alone(other.granted.mode))
    }
}

fn token(guard: &LockGuard) -> u64 {
    guard.token().into()
}

fn is_alone(mode: Mode) -> bool {
    matches!(mode, Mode::Exclusive | Mode::Fair | Mode::Write)
}

impl Beliefs {
    pub(crate) fn new(truth: Truth, permits: u32, is_undisturbed: bool) -> Self {
        Self { truth, permits, is_undisturbed, record: Arc::default() }
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The greatest past token of `name`: later requests get a greater one.
    pub(crate) fn past(&self, name: &str) -> u64 {
        self.record().left.get(name).copied().unwrap_or(0)
    }

    /// Adds a guard. `past` was the greatest past token when it was requested.
    pub(crate) fn enter(&self, client: usize, guard: LockGuard, past: u64) -> Believed {
        let mut record = self.record();
        self.check_token(&mut record, &guard, past);
        let number = record.number(client);
        record.guards.insert(number, guard);
        drop(record);
        self.check();
        Believed { beliefs: self.clone(), number }
    }

    /// Adds the guard of a multi-lock.
    pub(crate) fn enter_all(&self, client: usize, guard: MultiGuard) -> BelievedAll {
        let mut record = self.record();
        let number = record.number(client);
        record.several.insert(number, guard);
        drop(record);
        self.check();
        BelievedAll { beliefs: self.clone(), number }
    }

    fn leave(&self, number: u64) -> Option<LockGuard> {
        let mut record = self.record();
        let guard = record.guards.remove(&number)?;
        if !record.guards.values().any(|other| other.token() == guard.token()) {
            let left = record.left.entry(guard.name().to_owned()).or_default();
            *left = token(&guard).max(*left);
        }
        Some(guard)
    }

    fn excuses(&self, guard: &LockGuard) -> bool {
        self.truth.excuses(guard.name(), guard.wire_owner(), guard.mode(), token(guard))
    }

    /// Checks that tokens rise, and that only the guards of one hold share a token.
    fn check_token(&self, record: &mut Record, guard: &LockGuard, past: u64) {
        let (name, new) = (guard.name(), token(guard));
        if let Some(same) = record.guards.values().find(|other| other.token() == guard.token()) {
            if same.owner() != guard.owner() || same.name() != name || same.mode() != guard.mode() {
                self.truth
                    .trace
                    .violation(format!("two holds with one token: {same:?} and {guard:?}"));
            }
            return;
        }
        if self.excuses(guard) {
            return;
        }
        if guard.hold_count() > 1 {
            // It has joined a hold whose guards are no longer seen.
            return;
        }
        if new <= past {
            self.truth.trace.violation(format!("{guard:?} was asked for after {past} was past"));
        }
        if is_alone(guard.mode())
            && let Some(before) = record.entered.insert(name.to_owned(), new)
            && before >= new
        {
            self.truth.trace.violation(format!("{guard:?} came after {before}"));
        }
    }

    /// Checks that everybody who believes to be inside may be, and that the store agrees.
    pub(crate) fn check(&self) {
        let mut record = self.record();
        let Record { guards, lost, .. } = &mut *record;
        for (number, _) in guards.iter().filter(|(_, guard)| !guard.is_held()) {
            lost.entry(*number).or_insert_with(Instant::now);
        }
        let guards = record.guards.values().filter(|guard| guard.is_held()).map(Inside::by);
        let several = record.several.values().filter(|guard| guard.is_held());
        let mut inside: Vec<Inside> =
            guards.chain(several.flat_map(|guard| Inside::by_all(guard, &self.truth))).collect();
        inside.retain(|hold| {
            !self.truth.excuses(
                &hold.name,
                &hold.granted.owner,
                hold.granted.mode,
                hold.token.into(),
            )
        });
        for hold in &inside {
            self.check_against_store(hold);
            if let Some(other) = inside.iter().find(|other| hold.excludes(other)) {
                self.truth.trace.violation(format!("inside together: {hold:?} and {other:?}"));
            }
        }
        let mut taken: BTreeMap<_, u32> = BTreeMap::new();
        for hold in &inside {
            if let Mode::Permit { count, .. } = hold.granted.mode {
                taken.insert(hold.token, count);
            }
        }
        if taken.values().sum::<u32>() > self.permits {
            self.truth.trace.violation(format!("{taken:?} of {} permits", self.permits));
        }
        if self.is_undisturbed {
            self.check_counts(&mut record);
        }
    }

    /// Checks that nobody believes in a hold for longer than the store has it.
    fn check_against_store(&self, hold: &Inside) {
        let state = self.truth.inspect(&hold.name);
        if !state.holders().iter().any(|holder| hold.granted.is_stored_as(holder)) {
            self.truth
                .trace
                .violation(format!("{hold:?} is believed in, and the store has {state:?}"));
        }
        if state.remaining().is_some_and(|left| hold.remaining > left) {
            self.truth.trace.violation(format!(
                "{hold:?} is believed in for longer than it is stored: {state:?}"
            ));
        }
    }

    /// Checks that the store counts as many guards as there are, or soon learns of them.
    fn check_counts(&self, record: &mut Record) {
        let Record { guards, miscounted, .. } = record;
        for (number, guard) in guards.iter().filter(|(_, guard)| guard.is_held()) {
            let (stored, count) = (self.stored_count(guard), guard.hold_count());
            if stored <= count {
                miscounted.remove(number);
            } else if miscounted.entry(*number).or_insert_with(Instant::now).elapsed() > MISCOUNTED
            {
                self.truth
                    .trace
                    .violation(format!("a hold that counts {count} is stored with {stored}"));
            }
        }
    }

    /// The hold count at the store.
    fn stored_count(&self, guard: &LockGuard) -> u32 {
        let (state, hold) = (self.truth.inspect(guard.name()), Inside::by(guard));
        let stored = state.holders().iter().find(|holder| hold.granted.is_stored_as(holder));
        stored.map_or(0, Holder::hold_count)
    }

    /// The guards of a client whose holds are its own. A named owner may have the hold in another
    /// client as well.
    pub(crate) fn held_by(&self, client: usize) -> Vec<u64> {
        let record = self.record();
        let is_own = |guard: &LockGuard| guard.is_held() && guard.owner().name().is_none();
        let own = record
            .guards
            .iter()
            .filter(|(number, guard)| record.clients[number] == client && is_own(guard));
        own.map(|(number, _)| *number).collect()
    }

    /// Checks a closed client: nobody believes in its guards, and the store has none of those in
    /// `released`.
    pub(crate) fn check_closed(&self, client: usize, released: &[u64]) {
        let record = self.record();
        let is_of_client = |number: &u64| record.clients[number] == client;
        let held = record
            .guards
            .iter()
            .filter(|(number, guard)| is_of_client(number) && guard.is_held())
            .count();
        let several = record
            .several
            .iter()
            .filter(|(number, guard)| is_of_client(number) && guard.is_held())
            .count();
        if held + several > 0 {
            self.truth.trace.violation(format!(
                "{held} guards and {several} multi-guards of c{client}, which is closed"
            ));
        }
        let left = released.iter().filter_map(|number| record.guards.get(number));
        for left in left.filter(|guard| self.stored_count(guard) > 0) {
            self.truth.trace.violation(format!("c{client} is closed, and the store has {left:?}"));
        }
    }
}

impl Record {
    fn number(&mut self, client: usize) -> u64 {
        let number = self.next;
        self.next += 1;
        self.clients.insert(number, client);
        number
    }
}

impl Believed {
    /// Returns the guard, and ends the belief in it.
    pub(crate) fn leave(self) -> LockGuard {
        self.beliefs.check();
        self.beliefs.leave(self.number).expect("it was not left before")
    }

    /// Reads from the guard.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&LockGuard) -> T) -> T {
        look(&self.beliefs.record().guards[&self.number])
    }

    /// How long the hold has been lost.
    pub(crate) fn lost_for(&self) -> Duration {
        self.beliefs.record().lost.get(&self.number).map(Instant::elapsed).unwrap_or_default()
    }

    /// The number of guards of this hold.
    pub(crate) fn guards(&self) -> usize {
        let record = self.beliefs.record();
        let token = record.guards[&self.number].token();
        record.guards.values().filter(|guard| guard.token() == token).count()
    }
}

impl Drop for Believed {
    fn drop(&mut self) {
        drop(self.beliefs.leave(self.number));
    }
}

impl BelievedAll {
    /// Reads from the guard.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&MultiGuard) -> T) -> T {
        look(&self.beliefs.record().several[&self.number])
    }

    /// Returns the guard, and ends the belief in it.
    pub(crate) fn leave(self) -> MultiGuard {
        self.beliefs.check();
        self.beliefs.record().several.remove(&self.number).expect("it was not left before")
    }
}

impl Drop for BelievedAll {
    fn drop(&mut self) {
        let left = self.beliefs.record().several.remove(&self.number);
        drop(left);
    }
}
