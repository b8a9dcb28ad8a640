//! [`Beliefs`]: who believes now to hold what, and whether that can be.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockcore::{Holder, LockGuard, Mode};
use tokio::time::Instant;

use crate::truth::Truth;

/// The guards that somebody has, for as long as he believes in them. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Beliefs {
    truth: Truth,
    permits: u32,
    record: Arc<Mutex<Record>>,
}

#[derive(Debug, Default)]
struct Record {
    guards: BTreeMap<u64, LockGuard>,
    next: u64,
    /// Since when guards are lost.
    lost: BTreeMap<u64, Instant>,
    /// By name: the last token with which somebody entered alone.
    entered: BTreeMap<String, u64>,
    /// By name: the greatest token of those who left.
    left: BTreeMap<String, u64>,
}

/// A belief. Dropping it is leaving, and drops the guard.
#[derive(Debug)]
pub(crate) struct Believed {
    beliefs: Beliefs,
    number: u64,
}

fn token(guard: &LockGuard) -> u64 {
    guard.token().into()
}

fn is_writer(mode: Mode) -> bool {
    mode == Mode::Write
}

fn is_alone(mode: Mode) -> bool {
    matches!(mode, Mode::Exclusive | Mode::Fair | Mode::Write)
}

impl Beliefs {
    pub(crate) fn new(truth: Truth, permits: u32) -> Self {
        Self { truth, permits, record: Arc::default() }
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which tokens of `name` are past: whoever asks now gets a greater one.
    pub(crate) fn past(&self, name: &str) -> u64 {
        self.record().left.get(name).copied().unwrap_or(0)
    }

    /// Takes in a guard of which `past` was known when it was asked for.
    pub(crate) fn enter(&self, guard: LockGuard, past: u64) -> Believed {
        let mut record = self.record();
        self.check_token(&mut record, &guard, past);
        let number = record.next;
        record.next += 1;
        record.guards.insert(number, guard);
        drop(record);
        self.check();
        Believed { beliefs: self.clone(), number }
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

    /// Tokens rise, and only the guards of one hold share theirs.
    fn check_token(&self, record: &mut Record, guard: &LockGuard, past: u64) {
        let (name, new) = (guard.name(), token(guard));
        if let Some(same) = record.guards.values().find(|other| other.token() == guard.token()) {
            if same.owner() != guard.owner() || same.name() != name || same.mode() != guard.mode() {
                self.truth.trace.violation(format!("two holds with one token: {same:?} and {guard:?}"));
            }
            return;
        }
        if self.excuses(guard) {
            return;
        }
        if guard.hold_count() > 1 {
            // It has joined one that nobody sees any more.
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

    /// Whether everybody who believes to be inside may be, and the store agrees.
    pub(crate) fn check(&self) {
        let mut record = self.record();
        let Record { guards, lost, .. } = &mut *record;
        for (number, _) in guards.iter().filter(|(_, guard)| !guard.is_held()) {
            lost.entry(*number).or_insert_with(Instant::now);
        }
        let inside: Vec<&LockGuard> =
            record.guards.values().filter(|guard| guard.is_held() && !self.excuses(guard)).collect();
        for guard in &inside {
            self.check_against_store(guard);
            if let Some(other) = inside.iter().find(|other| exclude_each_other(guard, other)) {
                self.truth.trace.violation(format!("inside together: {guard:?} and {other:?}"));
            }
        }
        let mut taken: BTreeMap<_, u32> = BTreeMap::new();
        for guard in &inside {
            if let Mode::Permit { count, .. } = guard.mode() {
                taken.insert(guard.token(), count);
            }
        }
        if taken.values().sum::<u32>() > self.permits {
            self.truth.trace.violation(format!("{taken:?} of {} permits", self.permits));
        }
    }

    /// Nobody believes longer than the store has his hold.
    fn check_against_store(&self, guard: &LockGuard) {
        let state = self.truth.inspect(guard.name());
        let is_there = state.holders().iter().any(|holder| {
            holder.owner() == guard.wire_owner() && is_writer(holder.mode()) == is_writer(guard.mode())
        });
        if !is_there {
            self.truth.trace.violation(format!("{guard:?} is believed in, and the store has {state:?}"));
        }
    }
}

fn exclude_each_other(one: &LockGuard, other: &LockGuard) -> bool {
    one.name() == other.name()
        && one.owner() != other.owner()
        && (is_alone(one.mode()) || is_alone(other.mode()))
}

impl Believed {
    /// Gives the guard back: its owner no longer believes in it.
    pub(crate) fn leave(self) -> LockGuard {
        self.beliefs.check();
        self.beliefs.leave(self.number).expect("it was not left before")
    }

    /// Looks at the guard.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&LockGuard) -> T) -> T {
        look(&self.beliefs.record().guards[&self.number])
    }

    /// For how long the hold has been lost.
    pub(crate) fn lost_for(&self) -> Duration {
        self.beliefs.record().lost.get(&self.number).map(Instant::elapsed).unwrap_or_default()
    }

    /// How often the store has counted the owner in.
    pub(crate) fn stored_count(&self) -> u32 {
        let (name, owner, mode) =
            self.look(|guard| (guard.name().to_owned(), guard.wire_owner().to_owned(), guard.mode()));
        let state = self.beliefs.truth.inspect(&name);
        let is_the_hold =
            |holder: &&Holder| holder.owner() == owner && is_writer(holder.mode()) == is_writer(mode);
        state.holders().iter().find(is_the_hold).map_or(0, Holder::hold_count)
    }

    /// How many guards of this hold there are.
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
