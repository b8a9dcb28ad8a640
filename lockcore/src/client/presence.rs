//! [`Presence`]: the record of this client at the store, and the warnings that were logged.

use std::{
    collections::HashMap,
    num::NonZeroU64,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use super::{
    foreign::foreign,
    tally::{Counting, Tally},
};
use crate::{
    BackendError,
    time::{ANSWER, Moment},
    waits::{ClientDescription, ClientRecord},
};

/// The shortest and the longest lifetime of a record.
const LIFETIMES: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(3600));

/// The longest pause after failures.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The same while the store may show waits.
const LISTED_PAUSE: Duration = Duration::from_secs(4);

/// The record of a client at the store, as far as this client knows.
#[derive(Debug)]
pub(super) struct Presence {
    /// The description to write, if any.
    description: Option<ClientDescription>,
    /// The record without waits, made when it is first needed.
    plain: OnceLock<ClientRecord>,
    lifetime: Duration,
    /// A moment, and the same moment in milliseconds of Unix time.
    origin: (Moment, u64),
    waits: AtomicU64,
    /// Short critical sections without awaits, hence not tokio's mutex.
    state: Mutex<AtStore>,
    /// Requests that write the record.
    pub(super) writing: Arc<Tally>,
}

/// The data that the store has, and the warnings that were logged.
#[derive(Debug, Default)]
struct AtStore {
    /// The last record that was certainly written, and when its request was sent.
    written: Option<(String, Moment)>,
    /// The number of records that were certainly written.
    confirmed: u64,
    is_writing: bool,
    /// The latest time at which the store may still have a record.
    exists_until: Option<Moment>,
    /// The latest time at which that record may list waits.
    lists_waits_until: Option<Moment>,
    /// Failures since the last success.
    failures: u32,
    not_before: Option<Moment>,
    is_closed: bool,
    /// The cycles of the last look, by the numbers of their waits. The value is `true` once a
    /// warning was logged.
    cycles: HashMap<Vec<u64>, bool>,
}

impl Presence {
    pub(super) fn new(
        description: Option<ClientDescription>,
        lease: Duration,
        now: Moment,
    ) -> Arc<Self> {
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Arc::new(Self {
            description,
            plain: OnceLock::new(),
            lifetime: lease.clamp(LIFETIMES.0, LIFETIMES.1),
            origin: (now, u64::try_from(unix.as_millis()).unwrap_or(u64::MAX)),
            waits: AtomicU64::new(0),
            state: Mutex::default(),
            writing: Arc::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, AtStore> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `true` if anything is written at all.
    pub(super) fn is_described(&self) -> bool {
        self.description.is_some()
    }

    /// The record of this client, without waits.
    pub(super) fn record(&self) -> &ClientRecord {
        self.plain.get_or_init(|| {
            let described = self.description.as_ref().map(ClientDescription::resolve);
            ClientRecord::new(described.unwrap_or_default(), self.origin.1)
        })
    }

    /// The number of the next look that is reported to the store: one more than the number of
    /// records that were certainly written.
    pub(super) fn next_look(&self) -> u64 {
        self.state().confirmed.saturating_add(1)
    }

    /// A number that no other wait of this client has. Drawn for long waits only.
    pub(super) fn number_wait(&self) -> NonZeroU64 {
        NonZeroU64::MIN.saturating_add(self.waits.fetch_add(1, Ordering::Relaxed))
    }

    /// `moment` in milliseconds of Unix time. The same for the same moment, whatever happens to the
    /// clock of the host.
    pub(super) fn unix(&self, moment: Moment) -> u64 {
        let (origin, unix) = self.origin;
        let passed = u64::try_from(moment.since(origin).as_millis()).unwrap_or(u64::MAX);
        unix.saturating_add(passed)
    }

    /// Begins a write of the record, if one is due. `text` is the record, which lists waits if
    /// `has_waits`. If nothing `is_in_use`, a write is due only to take back the waits of the last
    /// record.
    pub(super) fn begin(
        self: &Arc<Self>,
        text: String,
        has_waits: bool,
        is_in_use: bool,
        now: Moment,
    ) -> Option<Writing> {
        let mut state = self.state();
        if state.is_closed || state.is_writing || state.not_before.is_some_and(|at| now < at) {
            return None;
        }
        let is_fresh = state
            .written
            .as_ref()
            .is_some_and(|(written, at)| *written == text && now < at.after(self.lifetime / 3));
        if is_fresh || !(is_in_use || state.lists_waits(now)) {
            return None;
        }
        let until = now.after(self.lifetime + ANSWER);
        (state.is_writing, state.written, state.exists_until) = (true, None, Some(until));
        if has_waits {
            state.lists_waits_until = Some(until);
        }
        let (presence, counting) = (self.clone(), self.writing.count_owned());
        Some(Writing { presence, text, has_waits, sent: now, outcome: None, _counting: counting })
    }

    /// For how long a record that is written now is kept.
    pub(super) fn lifetime(&self) -> Duration {
        self.lifetime
    }

    /// Returns `true` if the store may show waits that are over, so that the record has to be
    /// corrected.
    pub(super) fn may_list_waits(&self, now: Moment) -> bool {
        let state = self.state();
        !state.is_closed && state.lists_waits(now)
    }

    /// Stops writing. Returns `true` if the store may have a record.
    pub(super) fn close(&self, now: Moment) -> bool {
        let mut state = self.state();
        state.is_closed = true;
        state.exists_until.is_some_and(|until| now < until)
    }

    /// Stops writing, and leaves the record to run out at the store.
    pub(super) fn abandon(&self) {
        let mut state = self.state();
        (state.is_closed, state.exists_until) = (true, None);
    }

    /// The record was removed. A request that is under way may still write it once more.
    pub(super) fn removed(&self) {
        let mut state = self.state();
        if !state.is_writing {
            state.exists_until = None;
        }
    }

    /// Notes the cycles that were seen in a look. Returns the positions of those that the look
    /// before saw as well and that no warning was logged for.
    pub(super) fn cycles_to_warn_of(&self, seen: Vec<Vec<u64>>) -> Vec<usize> {
        let mut state = self.state();
        if seen.is_empty() {
            state.cycles = HashMap::new();
            return Vec::new();
        }
        let mut due = Vec::new();
        let seen = seen.into_iter().enumerate().map(|(at, numbers)| {
            let was_warned_of = state.cycles.get(&numbers).copied();
            if was_warned_of == Some(false) {
                due.push(at);
            }
            (numbers, was_warned_of.is_some())
        });
        state.cycles = seen.collect();
        due
    }
}

impl AtStore {
    fn lists_waits(&self, now: Moment) -> bool {
        self.lists_waits_until.is_some_and(|until| now < until)
    }
}

/// A request that writes the record. It counts as failed if it is dropped without an outcome.
#[derive(Debug)]
pub(super) struct Writing {
    presence: Arc<Presence>,
    pub(super) text: String,
    has_waits: bool,
    sent: Moment,
    pub(super) outcome: Option<Result<(), BackendError>>,
    _counting: Counting<Arc<Tally>>,
}

impl Drop for Writing {
    fn drop(&mut self) {
        let mut state = self.presence.state();
        state.is_writing = false;
        if let Some(Ok(())) = self.outcome {
            state.written = Some((std::mem::take(&mut self.text), self.sent));
            state.confirmed += 1;
            (state.failures, state.not_before) = (0, None);
            if !self.has_waits {
                state.lists_waits_until = None;
            }
            return;
        }
        // Waits that are over must not stay there for long.
        let longest = if state.lists_waits(self.sent) { LISTED_PAUSE } else { LONGEST_PAUSE };
        let pause = Duration::from_secs(1 << state.failures.min(10)).min(longest);
        state.not_before = Some(self.sent.after(pause));
        state.failures = state.failures.saturating_add(1);
        let is_first = state.failures == 1;
        drop(state);
        if is_first && let Some(Err(error)) = &self.outcome {
            foreign(|| {
                tracing::debug!(%error, "the record of this client was not written");
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn presence() -> Arc<Presence> {
        let description = Some(ClientDescription::new());
        Presence::new(description, Duration::from_secs(1), Moment::ORIGIN)
    }

    fn at(seconds: u64) -> Moment {
        Moment::ORIGIN.after(Duration::from_secs(seconds))
    }

    fn answer(writing: Option<Writing>, outcome: Result<(), BackendError>) {
        writing.unwrap().outcome = Some(outcome);
    }

    #[test]
    fn a_record_is_written_once_and_kept_alive_every_third_of_its_life() {
        let presence = presence();
        let begin = |seconds| presence.begin("a".into(), false, true, at(seconds));
        let first = begin(1);
        assert!(begin(2).is_none(), "one at a time");
        assert_eq!(presence.next_look(), 1);
        answer(first, Ok(()));
        assert_eq!(presence.next_look(), 2);
        assert!(begin(10).is_none());
        answer(begin(11), Ok(()));
        assert!(presence.begin("a".into(), false, false, at(40)).is_none(), "nothing is in use");
        assert!(presence.close(at(45)) && !presence.close(at(50)));
        assert!(begin(60).is_none(), "closed");
    }

    #[test]
    fn waits_that_are_over_are_taken_back_even_if_nothing_is_in_use() {
        let presence = presence();
        answer(presence.begin("with".into(), true, true, at(1)), Ok(()));
        assert!(presence.may_list_waits(at(2)));
        answer(presence.begin("without".into(), false, false, at(2)), Ok(()));
        assert!(!presence.may_list_waits(at(2)));
        assert!(presence.begin("without".into(), false, false, at(30)).is_none());
    }

    #[test]
    fn failures_are_tried_again_ever_later() {
        let presence = presence();
        let begin = |seconds| presence.begin("a".into(), true, true, at(seconds));
        drop(begin(0));
        assert!(begin(0).is_none());
        drop(begin(1));
        assert!(begin(2).is_none());
        drop(begin(3));
        assert!(begin(6).is_none());
        answer(begin(7), Ok(()));
        assert!(presence.may_list_waits(at(41)) && !presence.may_list_waits(at(42)), "run out");
    }

    #[test]
    fn a_cycle_is_warned_of_when_it_is_seen_again_and_once() {
        let presence = presence();
        let look = |cycles: &[&[u64]]| {
            presence.cycles_to_warn_of(cycles.iter().map(|cycle| cycle.to_vec()).collect())
        };
        assert!(look(&[&[1, 2]]).is_empty());
        assert_eq!(look(&[&[3, 4], &[1, 2]]), [1]);
        assert_eq!(look(&[&[3, 4], &[1, 2]]), [0]);
        assert!(look(&[&[3, 4], &[1, 2]]).is_empty());
        assert!(look(&[]).is_empty());
        assert!(look(&[&[1, 2]]).is_empty(), "it is another one");
    }
}
