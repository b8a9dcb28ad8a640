//! [`ServerClock`]: what a connection knows of its server's clock, to propose fencing tokens.
//!
//! Tokens follow the server's clock, so that they rise even if the last token is lost. For a script
//! to ask for the time and to write a number of 16 digits costs as much as to store a hold. So a
//! client that has learned the time lately proposes the token of its next hold. A proposal is not
//! ahead of the server's clock, and at most [`MAX_LAG`] and some milliseconds behind it when it is
//! sent. What was learned belongs to the connection: another server has another clock.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use redis::Value;

/// A reading serves for so long. The server's clock may be set meanwhile.
const MAX_AGE: Duration = Duration::from_secs(1);

/// A reading that took longer than this is not used: the server's clock may be ahead of it by as
/// much.
const MAX_LAG: Duration = Duration::from_millis(100);

/// One of so many microseconds is left out, because the two clocks may not run at the same rate.
/// Clocks that are being corrected differ by up to 500 in a million.
const DRIFT: u64 = 1_000;

/// Tokens that are proposed within the same microsecond follow each other, so that each reply fits
/// one request. More than so many microseconds are not made up for: the server's clock was set back.
const MAX_LEAD: u64 = 1_000;

/// The clock of a server.
#[derive(Debug, Default)]
pub(super) struct ServerClock {
    state: Mutex<ClockState>,
}

#[derive(Debug, Default)]
struct ClockState {
    reading: Option<Reading>,
    /// The last token that was proposed.
    proposed: u64,
}

/// The server's time in microseconds, and when it came here.
#[derive(Clone, Copy, Debug)]
struct Reading {
    micros: u64,
    at: Instant,
}

/// The token that is proposed with an acquisition, if any, and when it was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Proposal {
    pub(super) token: Option<u64>,
    made: Instant,
}

impl ServerClock {
    pub(super) fn propose(&self) -> Proposal {
        self.propose_at(Instant::now())
    }

    fn propose_at(&self, now: Instant) -> Proposal {
        let mut state = self.lock();
        let bound = state.reading.and_then(|reading| reading.lower_bound(now));
        let token = bound.map(|bound| match state.proposed.checked_sub(bound) {
            Some(lead) if lead < MAX_LEAD => state.proposed + 1,
            _ => bound,
        });
        state.proposed = token.unwrap_or(state.proposed);
        Proposal { token, made: now }
    }

    fn lock(&self) -> MutexGuard<'_, ClockState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the reply to an acquisition with this proposal, as one without a proposal would have
    /// had it. Learns the server's time, if the reply tells it.
    pub(super) fn accept(&self, proposal: Proposal, reply: Value) -> Value {
        self.accept_at(Instant::now, proposal, reply)
    }

    fn accept_at(&self, now: impl FnOnce() -> Instant, proposal: Proposal, reply: Value) -> Value {
        match reply {
            Value::BulkString(digits) => match proposal.token {
                Some(token) if digits == token.to_string().as_bytes() => {
                    Value::Array(vec![Value::Int(1), Value::BulkString(digits)])
                }
                // The reply to another request.
                _ => Value::Nil,
            },
            Value::Array(parts) => {
                if let [Value::Int(1), _, Value::Int(micros)] = *parts.as_slice()
                    && let Ok(micros) = u64::try_from(micros)
                {
                    self.learn(proposal, Reading { micros, at: now() });
                }
                Value::Array(parts)
            }
            reply => reply,
        }
    }

    /// Keeps a reading from the reply to `proposal`, unless it was on its way for too long.
    fn learn(&self, proposal: Proposal, reading: Reading) {
        if reading.at.saturating_duration_since(proposal.made) <= MAX_LAG {
            self.lock().reading = Some(reading);
        }
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
    use super::*;

    const MICROS: u64 = 1_790_000_000_000_000;

    fn granted(token: u64, micros: Option<u64>) -> Value {
        let parts = [Some(1), Some(token), micros].into_iter().flatten();
        Value::Array(parts.map(|part| Value::Int(part.try_into().unwrap())).collect())
    }

    /// A clock that has learned [`MICROS`] from a reply that took `trip`, and when that was.
    fn clock(trip: Duration) -> (ServerClock, Instant) {
        let (clock, start) = (ServerClock::default(), Instant::now());
        let proposal = clock.propose_at(start);
        assert_eq!(proposal.token, None);
        let reply = granted(MICROS + 5, Some(MICROS));
        assert_eq!(clock.accept_at(|| start + trip, proposal, reply.clone()), reply);
        (clock, start + trip)
    }

    #[test]
    fn a_proposal_is_never_ahead_of_the_servers_clock() {
        let (clock, at) = clock(Duration::from_millis(2));
        let token = |after| clock.propose_at(at + after).token;
        assert_eq!(token(Duration::ZERO), Some(MICROS));
        assert_eq!(token(Duration::from_micros(500)), Some(MICROS + 499));
        assert_eq!(token(Duration::from_millis(900)), Some(MICROS + 900_000 - 900));
    }

    #[test]
    fn no_token_is_proposed_twice_unless_the_clock_is_set_back() {
        let (clock, at) = clock(Duration::ZERO);
        let token = |after| clock.propose_at(at + Duration::from_micros(after)).token;
        assert_eq!([0, 0, 1, 9].map(token), [0, 1, 2, 8].map(|more| Some(MICROS + more)));
        let set_back = granted(MICROS, Some(MICROS - 1_000_000));
        clock.accept_at(|| at, clock.propose_at(at), set_back);
        assert_eq!(token(0), Some(MICROS - 1_000_000));
    }

    #[test]
    fn a_reading_that_is_old_or_was_long_on_its_way_is_not_used() {
        let (late, at) = clock(MAX_LAG + Duration::from_millis(1));
        assert_eq!(late.propose_at(at).token, None);
        let (clock, at) = clock(MAX_LAG);
        assert_eq!(clock.propose_at(at).token, Some(MICROS));
        assert_eq!(clock.propose_at(at + MAX_AGE).token, None);
    }

    #[test]
    fn nothing_is_learned_from_a_token_that_is_not_of_now() {
        let clock = ServerClock::default();
        let reply = granted(MICROS, None);
        assert_eq!(clock.accept(clock.propose(), reply.clone()), reply);
        assert_eq!(clock.propose().token, None);
    }

    #[test]
    fn only_the_proposed_token_is_accepted() {
        let (clock, at) = clock(Duration::ZERO);
        let proposal = clock.propose_at(at);
        assert_eq!(proposal.token, Some(MICROS));
        let text = |token: u64| Value::BulkString(token.to_string().into());
        let accepted = Value::Array(vec![Value::Int(1), text(MICROS)]);
        assert_eq!(clock.accept(proposal, text(MICROS)), accepted);
        for stray in [text(MICROS + 1), Value::BulkString("1".into()), Value::BulkString(vec![])] {
            assert_eq!(clock.accept(proposal, stray), Value::Nil);
        }
        let none = Proposal { token: None, ..proposal };
        assert_eq!(clock.accept(none, text(MICROS)), Value::Nil);
        assert_eq!(clock.accept(proposal, Value::Int(1)), Value::Int(1));
    }
}
