//! [`Turns`]: when a client keeps a lock for its own tasks, and when it leaves the lock to other
//! clients.

use std::time::Duration;

use crate::time::Moment;

/// The times for which a client keeps a lock for its own tasks.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct HandOver {
    /// For how long its tasks hand the lock over to each other, before other clients get a turn.
    pub(crate) turn: Duration,
    /// For how long the lock is kept within a turn while no task waits for it. With zero, it is not
    /// kept.
    pub(crate) linger: Duration,
}

/// How long a client whose turn is over leaves the lock to other clients. The release wakes them,
/// but the tasks of this client are nearer and would always ask first.
const COURTESY: Duration = Duration::from_millis(3);

/// Clients that already had a turn wait up to this long after a wake-up, so that others ask first.
const SPREAD: Duration = Duration::from_millis(2);

/// The most turns in a row that skip the courtesy, after as many turns in which it was in vain.
const MOST_TURNS_IN_A_ROW: u8 = 4;

/// A turn begins with a grant and goes on while tasks of this client hand the hold to each other.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Turns {
    /// When the current turn began.
    since: Option<Moment>,
    /// The moment until which the lock is left to other clients.
    left_until: Option<Moment>,
    /// Set if this client has already had a turn.
    had_turn: bool,
    /// The number of times in a row that no other client wanted the lock.
    in_vain: u8,
    /// The number of turns to come that skip the courtesy because of that.
    turns_to_come: u8,
}

impl Turns {
    /// The backend granted a request that was sent at `sent`.
    pub(super) fn granted(&mut self, sent: Moment) {
        self.since.get_or_insert(sent);
    }

    /// When the current turn began.
    pub(super) fn since(&self) -> Option<Moment> {
        self.since
    }

    /// The moment until which the lock is left to other clients, if it is.
    pub(super) fn left_until(&self, now: Moment) -> Option<Moment> {
        self.left_until.filter(|until| now < *until)
    }

    /// A hold was given back to the backend. The turn ends when its time is over, or if no task
    /// waits.
    pub(super) fn released(&mut self, hand_over: Option<HandOver>, has_waiters: bool, now: Moment) {
        let (Some(HandOver { turn: limit, .. }), Some(since)) = (hand_over, self.since) else {
            return;
        };
        self.had_turn = has_waiters;
        if has_waiters && now < since.after(limit) {
            return;
        }
        self.since = None;
        if !has_waiters {
            return;
        }
        match self.turns_to_come.checked_sub(1) {
            Some(fewer) => self.turns_to_come = fewer,
            None => {
                self.left_until = Some(now.after(COURTESY));
                // This is taken back if the next request is refused.
                self.in_vain = MOST_TURNS_IN_A_ROW.min(self.in_vain + 1);
                self.turns_to_come = self.in_vain;
            }
        }
    }

    /// A request was refused: other clients want the lock.
    pub(super) fn contested(&mut self) {
        (self.since, self.in_vain, self.turns_to_come) = (None, 0, 0);
    }

    /// A hold that another client wants was given back.
    pub(super) fn yielded(&mut self, now: Moment) {
        self.contested();
        self.left_until = Some(now.after(COURTESY));
    }

    /// No task uses the lock. It is still left to other clients.
    pub(super) fn rest(&mut self) {
        *self = Self { left_until: self.left_until, ..Self::default() };
    }

    /// Another client gave the lock back. All clients hear of that one after the other, always in
    /// the same order, so clients that had a turn ask after those that had none, in random order.
    /// `jitter` is in `[0, 1)`.
    pub(super) fn woken(&mut self, now: Moment, jitter: f64) {
        if self.had_turn && self.since.is_none() {
            let until = now.after(SPREAD.mul_f64(jitter));
            self.left_until = self.left_until.max(Some(until));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Clock;

    const LIMIT: Option<HandOver> =
        Some(HandOver { turn: Duration::from_millis(50), linger: Duration::ZERO });

    fn start() -> Moment {
        Clock::with_suspension(|| Duration::ZERO).now()
    }

    /// Releases every 50 ms while tasks wait, and returns which releases were followed by a pause.
    fn pauses(turns: &mut Turns, from: Moment, releases: u32) -> Vec<bool> {
        let pause = |number| {
            turns.granted(from.after(50 * number * Duration::from_millis(1)));
            let now = from.after(50 * (number + 1) * Duration::from_millis(1));
            turns.released(LIMIT, true, now);
            turns.left_until(now).is_some()
        };
        (0..releases).map(pause).collect()
    }

    #[test]
    fn a_turn_that_nobody_else_wants_is_followed_by_fewer_and_fewer_pauses() {
        let mut turns = Turns::default();
        let table = [
            (true, "the first turn"),
            (false, "once in vain: one more turn"),
            (true, "and a pause"),
            (false, "twice in vain: two more turns"),
            (false, ""),
            (true, ""),
        ];
        let pauses = pauses(&mut turns, start(), 6);
        for (at, (expected, why)) in table.into_iter().enumerate() {
            assert_eq!(pauses[at], expected, "turn {at}: {why}");
        }
    }

    #[test]
    fn a_refusal_makes_the_next_turn_end_with_a_pause_again() {
        let (t, mut turns) = (start(), Turns::default());
        pauses(&mut turns, t, 2);
        turns.contested();
        assert_eq!(pauses(&mut turns, t.after(Duration::from_secs(1)), 1), [true]);
    }

    #[test]
    fn a_turn_goes_on_until_its_limit_and_ends_at_once_when_nobody_waits() {
        let (t, mut turns) = (start(), Turns::default());
        turns.granted(t);
        turns.released(LIMIT, true, t.after(Duration::from_millis(49)));
        assert_eq!(turns.since(), Some(t));
        turns.released(LIMIT, false, t.after(Duration::from_millis(49)));
        assert_eq!((turns.since(), turns.left_until(t)), (None, None));
    }

    #[test]
    fn only_clients_that_had_a_turn_wait_after_a_wake_up() {
        let (t, mut turns) = (start(), Turns::default());
        turns.woken(t, 0.5);
        assert_eq!(turns.left_until(t), None);
        turns.granted(t);
        turns.released(LIMIT, true, t.after(Duration::from_millis(50)));
        let later = t.after(Duration::from_millis(90));
        turns.woken(later, 0.5);
        assert_eq!(turns.left_until(later), Some(later.after(Duration::from_millis(1))));
    }

    #[test]
    fn without_hand_over_there_are_no_turns_to_end() {
        let (t, mut turns) = (start(), Turns::default());
        turns.granted(t);
        turns.released(None, true, t.after(Duration::from_secs(1)));
        assert_eq!(turns.left_until(t.after(Duration::from_secs(1))), None);
    }
}
