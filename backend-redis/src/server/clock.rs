//! [`ServerClock`]: a connection's knowledge of its server's clock, for proposing fencing tokens.
//!
//! Tokens follow the server's clock, so that they rise even if the last token is lost. Asking for
//! the time and writing a number of 16 digits costs a script as much as storing a hold. So a client
//! that has learned the time recently proposes the token of its next hold. A proposal is not ahead
//! of the server's clock, and at most [`MAX_LAG`] and some milliseconds behind it when it is sent.
//! A lock that was acquired and released a moment ago needs no proposal: its next token can just
//! follow the last one, which the clock is not far ahead of. A caller may demand a least token, as a
//! quorum does: then that is the proposal, and the next token follows the last one if that is
//! shortly before it. This knowledge belongs to the connection: another server has another clock,
//! and other last tokens.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use redis::Value;

use super::recent::{MAX_AWAY, RecentTokens};
use crate::{
    exclusive::BatchableRequest,
    keys::LockKeys,
    restore::{Restored, Sent},
    script::ScriptCall,
};

/// How long a reading is used. The server's clock may be set meanwhile.
const MAX_AGE: Duration = Duration::from_secs(1);

/// A reading that took longer than this is not used, because the server's clock may be ahead of it
/// by that much.
const MAX_LAG: Duration = Duration::from_millis(100);

/// One of this many microseconds is left out, because the two clocks may run at different rates.
/// Clocks that are being corrected differ by up to 500 in a million.
const DRIFT: u64 = 1_000;

/// Tokens that are proposed within the same microsecond follow each other, so that each reply fits
/// one request. A lead of more than this many microseconds is not made up for, because the server's
/// clock was set back.
const MAX_LEAD: u64 = 1_000;

/// A request with a least token follows the last one if it is at most this far ahead of it. If
/// another client has issued a token meanwhile, the new one is that much later than necessary. So
/// this is less than the time in microseconds between two acquisitions of a lock through a network,
/// or else tokens would run away from the clock.
const MAX_STEP: u64 = 100;

/// The length of a period of tokens, as in `token.lua`.
const PERIOD: u64 = 10_000_000_000;

/// The clock of a server.
#[derive(Debug)]
pub(super) struct ServerClock {
    state: Mutex<ClockState>,
    /// Cleared when the server has refused an acquisition without a script for good. Shared by the
    /// connections to the server, unless it is not one that may be asked for that.
    can_restore: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct ClockState {
    reading: Option<Reading>,
    /// The last token that was proposed.
    proposed: u64,
    recent: RecentTokens,
}

/// The server's time in microseconds, and when it arrived.
#[derive(Clone, Copy, Debug)]
struct Reading {
    micros: u64,
    at: Instant,
}

/// Where the tokens of an acquisition come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenSource {
    /// The script issues them. The first is the proposed one, if there is one and it is suitable.
    Script(Option<u64>),
    /// They follow the last token of the lock.
    Last(Sent),
}

/// The step before a script decides about an acquisition that was tried without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    Now,
    /// See [`Restored::WithoutToken`] and [`Restored::Unprotected`].
    AfterUndo {
        is_new: bool,
    },
}

/// Where the tokens of an acquisition come from, and when that was decided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Proposal {
    pub(super) source: TokenSource,
    /// For a lock that was released a moment ago, but whose last token is too far behind the clock to
    /// be followed: how to raise it to the proposed one.
    pub(super) behind: Option<Sent>,
    made: Instant,
}

impl ServerClock {
    pub(super) fn new(can_restore: Arc<AtomicBool>) -> Self {
        Self { state: Mutex::default(), can_restore }
    }

    /// Decides where the tokens of an acquisition come from. It is to be sent before the next one
    /// of the same lock.
    pub(super) fn propose(&self, request: &BatchableRequest) -> Proposal {
        self.propose_at(Instant::now(), request)
    }

    fn propose_at(&self, now: Instant, request: &BatchableRequest) -> Proposal {
        let mut state = self.lock();
        let bound = state.reading.and_then(|reading| reading.lower_bound(now));
        let last = state.recent.take_free(request.keys.as_str());
        let is_near = |last: u64| bound.is_some_and(|bound| bound.abs_diff(last) <= MAX_AWAY);
        let can_follow = request.has_usual_token_ttl() && self.can_restore.load(Ordering::Relaxed);
        let following = last.filter(|_| can_follow).and_then(|last| {
            let step = match request.least() {
                Some(least) => step_to(least, request, last),
                None => is_near(last).then(|| request.tokens()),
            };
            step.map(|step| Sent::after(last, step))
        });
        let source = match (following, request.least()) {
            (Some(sent), _) => TokenSource::Last(sent),
            (None, Some(least)) => TokenSource::Script(Some(least)),
            (None, None) => TokenSource::Script(bound.map(|bound| state.next_proposal(bound))),
        };
        let behind = match source {
            TokenSource::Script(Some(first)) if can_follow && request.least().is_none() => {
                let least = request.last_of(first);
                let is_behind = |last| last < least && last / PERIOD == least / PERIOD;
                last.filter(|last| is_behind(*last)).map(|_| Sent {
                    step: request.tokens(),
                    least,
                    is_raised: true,
                })
            }
            _ => None,
        };
        Proposal { source, behind, made: now }
    }

    /// Takes the reply to a release, and returns it.
    pub(super) fn accept_release(&self, request: &BatchableRequest, reply: Value) -> Value {
        if reply == Value::Int(1) {
            self.lock().recent.released(request.keys.as_str(), request.hold.owner());
        }
        reply
    }

    fn lock(&self) -> MutexGuard<'_, ClockState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the reply of the script to an acquisition with this proposal, as one without a
    /// proposal would have had it. Learns the server's time, if the reply tells it.
    pub(super) fn accept(
        &self,
        proposal: Proposal,
        request: &BatchableRequest,
        reply: Value,
    ) -> Value {
        self.accept_at(Instant::now, proposal, request, reply)
    }

    fn accept_at(
        &self,
        now: impl FnOnce() -> Instant,
        proposal: Proposal,
        request: &BatchableRequest,
        reply: Value,
    ) -> Value {
        match reply {
            Value::BulkString(digits) => match proposal.source {
                TokenSource::Script(Some(token)) if digits == token.to_string().as_bytes() => {
                    self.acquired(request, request.last_of(token));
                    Value::Array(vec![Value::Int(1), Value::BulkString(digits)])
                }
                // The reply to another request.
                _ => Value::Nil,
            },
            Value::Array(parts) => {
                if let [Value::Int(1), Value::Int(token), ref rest @ ..] = *parts.as_slice()
                    && let Ok(token) = u64::try_from(token)
                {
                    self.acquired(request, request.last_of(token));
                    if let [Value::Int(micros)] = *rest
                        && let Ok(micros) = u64::try_from(micros)
                    {
                        self.learn(proposal, Reading { micros, at: now() });
                    }
                }
                Value::Array(parts)
            }
            Value::ServerError(error) => Value::ServerError(error),
            // The reply to another request.
            _ => Value::Nil,
        }
    }

    /// Returns the reply to an acquisition without a script, as a script would have replied. An
    /// error means that a script has to decide.
    pub(super) fn accept_restored(
        &self,
        request: &BatchableRequest,
        outcome: Restored,
    ) -> Result<Value, Retry> {
        match outcome {
            Restored::Granted { last } => {
                self.acquired(request, last);
                let first = last - (request.tokens() - 1);
                let token = i64::try_from(first).map_or(Value::Nil, Value::Int);
                Ok(Value::Array(vec![Value::Int(1), token]))
            }
            Restored::NotGranted => {
                self.lock().recent.refused(request.keys.shared());
                Err(Retry::Now)
            }
            Restored::NotPossible => {
                self.can_restore.store(false, Ordering::Relaxed);
                Err(Retry::Now)
            }
            Restored::Unprotected { is_new } => {
                self.can_restore.store(false, Ordering::Relaxed);
                Err(Retry::AfterUndo { is_new })
            }
            Restored::WithoutToken { is_new } => Err(Retry::AfterUndo { is_new }),
            // No reply to a script: the connection is given up.
            Restored::Unfinished => {
                self.can_restore.store(false, Ordering::Relaxed);
                Ok(Value::Nil)
            }
            Restored::Stray => Ok(Value::Nil),
        }
    }

    /// Forgets the last token of the lock that a script is called for.
    pub(super) fn forget(&self, call: &ScriptCall) {
        let Some(key) = call.keys.first() else { return };
        let mut state = self.lock();
        match LockKeys::locks_with_token(key) {
            Some(locks) => locks.into_iter().for_each(|lock| state.recent.forget(lock)),
            None => state.recent.forget(key),
        }
    }

    /// Notes the last token of a hold, if the next one may follow it.
    fn acquired(&self, request: &BatchableRequest, last: u64) {
        if self.can_restore.load(Ordering::Relaxed) {
            self.lock().recent.acquired(request.keys.shared(), request.hold.owner(), last);
        }
    }

    /// Keeps a reading from the reply to `proposal`, unless it was on its way for too long.
    fn learn(&self, proposal: Proposal, reading: Reading) {
        if reading.at.saturating_duration_since(proposal.made) <= MAX_LAG {
            self.lock().reading = Some(reading);
        }
    }
}

impl Proposal {
    /// For a script that finds the tokens itself.
    pub(super) fn none() -> Self {
        Self { source: TokenSource::Script(None), behind: None, made: Instant::now() }
    }

    /// The first token for the script to issue, if one is proposed.
    pub(super) fn proposed(self) -> Option<u64> {
        match self.source {
            TokenSource::Script(proposed) => proposed,
            TokenSource::Last(_) => None,
        }
    }
}

/// The step from the `last` token of a lock to the last of the requested ones, which begin with
/// `least`. `None` if a script is to do it, which also gives the key a new expiry at the beginning of a
/// period: see `token.lua`.
fn step_to(least: u64, request: &BatchableRequest, last: u64) -> Option<u64> {
    let step = request.last_of(least).checked_sub(last)?;
    let is_later = step >= request.tokens() && step <= MAX_STEP;
    (is_later && least / PERIOD == last / PERIOD).then_some(step)
}

impl ClockState {
    /// The token to propose, if the server's clock has reached `bound`.
    fn next_proposal(&mut self, bound: u64) -> u64 {
        self.proposed = match self.proposed.checked_sub(bound) {
            Some(lead) if lead < MAX_LEAD => self.proposed + 1,
            _ => bound,
        };
        self.proposed
    }
}

impl Reading {
    /// A time that the server's clock has reached, unless the reading is too old.
    fn lower_bound(self, now: Instant) -> Option<u64> {
        let age = now.saturating_duration_since(self.at);
        let elapsed = u64::try_from(age.as_micros()).ok().filter(|_| age < MAX_AGE)?;
        self.micros.checked_add(elapsed - elapsed.div_ceil(DRIFT))
    }
}

#[cfg(test)]
mod tests {
    use lockcore::{
        LockName,
        backend::{AcquireRequest, HoldId},
    };

    use super::*;
    use crate::exclusive::BatchOperation;

    const MICROS: u64 = 1_790_000_000_000_000;
    const LEASE: Duration = Duration::from_secs(30);

    fn request(lease: Duration, tokens: u32) -> BatchableRequest {
        let name = LockName::new("lock").unwrap();
        let keys = LockKeys::new("", &name).unwrap();
        let mut request = AcquireRequest::new(name, HoldId::unique("owner"), lease);
        request.tokens = tokens;
        BatchableRequest::acquire(keys, &request)
    }

    fn usual() -> BatchableRequest {
        request(LEASE, 1)
    }

    fn granted(token: u64, micros: Option<u64>) -> Value {
        let parts = [Some(1), Some(token), micros].into_iter().flatten();
        Value::Array(parts.map(|part| Value::Int(part.try_into().unwrap())).collect())
    }

    fn new_clock() -> ServerClock {
        ServerClock::new(Arc::new(AtomicBool::new(true)))
    }

    /// A clock that has learned [`MICROS`] from a reply that took `trip`, and when that was. The
    /// lock is held with the token after that.
    fn clock(trip: Duration) -> (ServerClock, Instant) {
        let (clock, start) = (new_clock(), Instant::now());
        let proposal = clock.propose_at(start, &usual());
        assert_eq!(proposal.source, TokenSource::Script(None));
        let reply = granted(MICROS + 5, Some(MICROS));
        assert_eq!(clock.accept_at(|| start + trip, proposal, &usual(), reply.clone()), reply);
        (clock, start + trip)
    }

    #[test]
    fn a_proposal_is_never_ahead_of_the_servers_clock() {
        let (clock, at) = clock(Duration::from_millis(2));
        let token = |after| clock.propose_at(at + after, &usual()).proposed();
        assert_eq!(token(Duration::ZERO), Some(MICROS));
        assert_eq!(token(Duration::from_micros(500)), Some(MICROS + 499));
        assert_eq!(token(Duration::from_millis(900)), Some(MICROS + 900_000 - 900));
    }

    #[test]
    fn no_token_is_proposed_twice_unless_the_clock_is_set_back() {
        let (clock, at) = clock(Duration::ZERO);
        let propose = |after| clock.propose_at(at + Duration::from_micros(after), &usual());
        let token = |after| propose(after).proposed();
        assert_eq!([0, 0, 1, 9].map(token), [0, 1, 2, 8].map(|more| Some(MICROS + more)));
        let set_back = granted(MICROS, Some(MICROS - 1_000_000));
        clock.accept_at(|| at, propose(0), &usual(), set_back);
        assert_eq!(token(0), Some(MICROS - 1_000_000));
    }

    #[test]
    fn a_reading_that_is_old_or_was_long_on_its_way_is_not_used() {
        let (late, at) = clock(MAX_LAG + Duration::from_millis(1));
        assert_eq!(late.propose_at(at, &usual()).proposed(), None);
        let (clock, at) = clock(MAX_LAG);
        assert_eq!(clock.propose_at(at, &usual()).proposed(), Some(MICROS));
        assert_eq!(clock.propose_at(at + MAX_AGE, &usual()).proposed(), None);
    }

    #[test]
    fn nothing_is_learned_from_a_token_that_is_not_of_now() {
        let clock = new_clock();
        let reply = granted(MICROS, None);
        assert_eq!(clock.accept(clock.propose(&usual()), &usual(), reply.clone()), reply);
        assert_eq!(clock.propose(&usual()).source, TokenSource::Script(None));
    }

    #[test]
    fn only_the_proposed_token_is_accepted() {
        let (clock, at) = clock(Duration::ZERO);
        let proposal = clock.propose_at(at, &usual());
        assert_eq!(proposal.proposed(), Some(MICROS));
        let text = |token: u64| Value::BulkString(token.to_string().into());
        let accepted = Value::Array(vec![Value::Int(1), text(MICROS)]);
        let accept = |proposal, reply| clock.accept(proposal, &usual(), reply);
        assert_eq!(accept(proposal, text(MICROS)), accepted);
        for stray in [text(MICROS + 1), Value::BulkString("1".into()), Value::BulkString(vec![])] {
            assert_eq!(accept(proposal, stray), Value::Nil);
        }
        let none = Proposal { source: TokenSource::Script(None), ..proposal };
        assert_eq!(accept(none, text(MICROS)), Value::Nil);
        assert_eq!(accept(proposal, Value::Int(1)), Value::Nil);
    }

    #[test]
    fn the_next_token_of_a_lock_that_was_released_a_moment_ago_follows_the_last_one() {
        let (clock, at) = clock(Duration::ZERO);
        clock.accept_release(&usual(), Value::Int(1));
        let source = |after, request: &_| {
            clock.propose_at(at + Duration::from_micros(after), request).source
        };
        let follows = |last, step| TokenSource::Last(Sent::after(last, step));
        assert_eq!(source(40, &usual()), follows(MICROS + 5, 1));
        // At a second request, the lock may be held.
        assert_eq!(source(40, &usual()), TokenSource::Script(Some(MICROS + 39)));
        let three = request(LEASE, 3);
        let outcome = Restored::Granted { last: MICROS + 18 };
        let reply = clock.accept_restored(&three, outcome).unwrap();
        assert_eq!(reply, granted(MICROS + 16, None));
        // It is held.
        assert_eq!(source(50, &usual()), TokenSource::Script(Some(MICROS + 49)));
        clock.acquired(&three, MICROS + 18);
        clock.accept_release(&usual(), Value::Int(1));
        assert_eq!(source(60, &usual()), follows(MICROS + 18, 1));
    }

    #[test]
    fn a_token_does_not_follow_one_that_is_far_from_the_clock() {
        for (after, is_near) in [(MAX_AWAY, true), (MAX_AWAY + 1_000, false)] {
            let (clock, at) = clock(Duration::ZERO);
            clock.accept_release(&usual(), Value::Int(1));
            let proposal = clock.propose_at(at + Duration::from_micros(after), &usual());
            assert_eq!(matches!(proposal.source, TokenSource::Last(_)), is_near, "{after}");
        }
        // Nor one that is far ahead of it.
        let (ahead, at) = clock(Duration::ZERO);
        ahead.acquired(&usual(), MICROS + 2 * MAX_AWAY);
        ahead.accept_release(&usual(), Value::Int(1));
        let source = ahead.propose_at(at, &usual()).source;
        assert_eq!(source, TokenSource::Script(Some(MICROS)));
        // Nor if the clock is not known, or the token is to be kept for longer than usual.
        let (late, at) = clock(MAX_LAG + Duration::from_millis(1));
        late.accept_release(&usual(), Value::Int(1));
        assert_eq!(late.propose_at(at, &usual()).source, TokenSource::Script(None));
        let (clock, at) = clock(Duration::ZERO);
        clock.accept_release(&usual(), Value::Int(1));
        let long = request(Duration::from_secs(13 * 3600), 1);
        assert_eq!(clock.propose_at(at, &long).source, TokenSource::Script(Some(MICROS)));
    }

    #[test]
    fn a_last_token_behind_the_clock_can_be_raised_to_the_proposed_one() {
        const BEHIND: u64 = MAX_AWAY + 1_000;
        let behind = |last, after, request: &_| {
            let (clock, at) = clock(Duration::ZERO);
            clock.acquired(&usual(), last);
            clock.accept_release(&usual(), Value::Int(1));
            clock.propose_at(at + Duration::from_micros(after), request).behind
        };
        let token = MICROS + BEHIND - BEHIND.div_ceil(DRIFT);
        assert_eq!(
            behind(MICROS, BEHIND, &usual()),
            Some(Sent { step: 1, least: token, is_raised: true })
        );
        let three = request(LEASE, 3);
        assert_eq!(
            behind(MICROS, BEHIND, &three),
            Some(Sent { step: 3, least: token + 2, is_raised: true })
        );
        assert_eq!(behind(MICROS, 40, &usual()), None, "it can be followed");
        assert_eq!(behind(MICROS + 2 * BEHIND, 40, &usual()), None, "it is ahead of the clock");
        assert_eq!(behind(MICROS - PERIOD, 0, &usual()), None, "the key needs a new expiry");
        assert_eq!(behind(MICROS, BEHIND, &at_least(token, 1)), None);
        assert_eq!(behind(MICROS, BEHIND, &request(Duration::from_secs(13 * 3600), 1)), None);
        // The lock may be held.
        let (clock, at) = clock(Duration::ZERO);
        let proposal = clock.propose_at(at + Duration::from_micros(BEHIND), &usual());
        assert_eq!(proposal.behind, None);
    }

    fn at_least(least: u64, tokens: u32) -> BatchableRequest {
        let mut request = request(LEASE, tokens);
        let BatchOperation::Acquire { least: own, .. } = &mut request.operation else {
            panic!("{request:?}")
        };
        *own = Some(least);
        request
    }

    #[test]
    fn a_least_token_shortly_after_the_last_one_follows_it() {
        let period = MICROS - MICROS % PERIOD + PERIOD;
        for last in [MICROS, MICROS + 5_000_000, period - 3] {
            let source = |least, tokens| {
                let clock = new_clock();
                clock.acquired(&usual(), last);
                clock.accept_release(&usual(), Value::Int(1));
                clock.propose(&at_least(least, tokens)).source
            };
            let follows = |step| TokenSource::Last(Sent::after(last, step));
            assert_eq!(source(last + 1, 1), follows(1));
            assert_eq!(source(last + 2, 1), follows(2));
            assert_eq!(source(last + 1, 10), follows(10));
            for least in [last, last - 1, 7, last + MAX_STEP + 1, period] {
                assert_eq!(source(least, 1), TokenSource::Script(Some(least)), "{last}");
            }
        }
        // The lock may be held.
        let clock = new_clock();
        clock.acquired(&usual(), MICROS);
        let source = clock.propose(&at_least(MICROS + 1, 1)).source;
        assert_eq!(source, TokenSource::Script(Some(MICROS + 1)));
    }

    #[test]
    fn a_refusal_for_good_is_remembered() {
        let (clock, at) = clock(Duration::ZERO);
        assert_eq!(clock.accept_restored(&usual(), Restored::NotGranted), Err(Retry::Now));
        assert!(clock.can_restore.load(Ordering::Relaxed));
        assert_eq!(clock.accept_restored(&usual(), Restored::NotPossible), Err(Retry::Now));
        clock.accept_release(&usual(), Value::Int(1));
        let source = clock.propose_at(at, &usual()).source;
        assert_eq!(source, TokenSource::Script(Some(MICROS)));
    }
}
