//! [`History`]: the times during which owners believed to hold locks, and a check of them.

use std::{
    error::Error,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use lockcore::FencingToken;

/// A record of the times during which owners believed to hold locks, on one monotonic clock.
///
/// Record when an owner has entered and when it leaves: after the acquisition returned, and before
/// the release is sent. Then [`check`](Self::check) finds two owners that believed to be inside
/// together, and tokens that do not rise.
///
/// # Examples
/// ```
/// use lockcore::FencingToken;
/// use lockcore_testkit::History;
///
/// let history = History::new();
/// history.enter("order:42", "one", FencingToken::from(1)).leave();
/// let inside = history.enter("order:42", "two", FencingToken::from(2));
/// assert!(history.check().is_ok());
///
/// history.enter("order:42", "three", FencingToken::from(3)).leave();
/// let violation = history.check().unwrap_err();
/// assert!(violation.to_string().contains("inside together"), "{violation}");
/// # drop(inside);
/// ```
#[derive(Debug)]
pub struct History {
    start: Instant,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    beliefs: Vec<Belief>,
    last: Duration,
}

/// An owner's belief that it holds a lock, from one moment to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Belief {
    name: String,
    owner: String,
    token: FencingToken,
    entered: Duration,
    left: Option<Duration>,
}

/// A contradiction to a working lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// Two owners believed to be inside at the same time. The first in the array entered first.
    Together(Box<[Belief; 2]>),
    /// The token of the later hold is not greater. The first in the array entered first.
    TokenNotRising(Box<[Belief; 2]>),
}

impl Belief {
    /// The belief of `owner` to hold `name` from `entered` to `left`, on any monotonic clock.
    /// `left` is `None` if the owner never left.
    pub fn new(
        name: impl Into<String>,
        owner: impl Into<String>,
        token: FencingToken,
        entered: Duration,
        left: Option<Duration>,
    ) -> Self {
        Self { name: name.into(), owner: owner.into(), token, entered, left }
    }

    /// The name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The owner.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// The token of the hold.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// When the owner entered, since the start of the history.
    #[must_use]
    pub fn entered(&self) -> Duration {
        self.entered
    }

    /// When the owner left; `None` if it never did.
    #[must_use]
    pub fn left(&self) -> Option<Duration> {
        self.left
    }

    /// The end of the belief. If the owner never left, it goes on forever.
    fn end(&self) -> Duration {
        self.left.unwrap_or(Duration::MAX)
    }

    /// Returns `true` if it is the same hold as `other`, entered once more.
    fn is_nested_with(&self, other: &Self) -> bool {
        self.owner == other.owner && self.token == other.token
    }
}

impl History {
    /// An empty record.
    #[must_use]
    pub fn new() -> Self {
        Self { start: Instant::now(), log: Mutex::default() }
    }

    /// Records that `owner` has entered `name`, until the result is dropped or
    /// [left](Inside::leave).
    pub fn enter(
        &self,
        name: impl Into<String>,
        owner: impl Into<String>,
        token: FencingToken,
    ) -> Inside<'_> {
        let mut log = self.log();
        let entered = log.now(self.start);
        let index = log.beliefs.len();
        log.beliefs.push(Belief::new(name, owner, token, entered, None));
        Inside { history: self, index }
    }

    /// All recorded beliefs, in the order in which the owners entered.
    #[must_use]
    pub fn beliefs(&self) -> Vec<Belief> {
        self.log().beliefs.clone()
    }

    /// Checks the record: for each name, no two owners are inside together, and tokens rise
    /// strictly from hold to hold.
    ///
    /// # Errors
    /// The first [`Violation`] in the record.
    pub fn check(&self) -> Result<(), Violation> {
        Self::check_beliefs(self.beliefs())
    }

    /// Checks beliefs that were recorded elsewhere, by several processes for instance.
    ///
    /// # Errors
    /// The first [`Violation`] among them.
    pub fn check_beliefs(beliefs: impl IntoIterator<Item = Belief>) -> Result<(), Violation> {
        let mut beliefs: Vec<_> = beliefs.into_iter().collect();
        beliefs.sort_by(|a, b| (&a.name, a.entered).cmp(&(&b.name, b.entered)));
        beliefs.chunk_by(|a, b| a.name == b.name).try_for_each(check_name)
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for History {
    fn default() -> Self {
        Self::new()
    }
}

impl Log {
    /// The time since `start`, later than all before: events that the clock cannot tell apart stay
    /// in order.
    fn now(&mut self, start: Instant) -> Duration {
        self.last = start.elapsed().max(self.last + Duration::from_nanos(1));
        self.last
    }
}

/// Checks the beliefs in one name, which are sorted by their start.
///
/// It is enough to compare each belief with the earlier one that ends last. If it overlaps with
/// any, it overlaps with that one. If both have the same owner, that one was already found to
/// overlap with the other.
fn check_name(beliefs: &[Belief]) -> Result<(), Violation> {
    let Some((mut longest, rest)) = beliefs.split_first() else { return Ok(()) };
    let mut latest = longest;
    for belief in rest {
        let inside = belief.entered < longest.end();
        if inside && belief.owner != longest.owner {
            return Err(Violation::Together(Box::new([longest.clone(), belief.clone()])));
        }
        let nested = inside && belief.is_nested_with(latest);
        if !nested && belief.token <= latest.token {
            return Err(Violation::TokenNotRising(Box::new([latest.clone(), belief.clone()])));
        }
        latest = belief;
        if belief.end() > longest.end() || !inside {
            longest = belief;
        }
    }
    Ok(())
}

/// An owner that is inside. Dropping it records that the owner leaves.
#[derive(Debug)]
#[must_use = "dropping it records that the owner has left"]
pub struct Inside<'a> {
    history: &'a History,
    index: usize,
}

impl Inside<'_> {
    /// Records that the owner leaves now.
    pub fn leave(self) {
        drop(self);
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let mut log = self.history.log();
        let now = log.now(self.history.start);
        log.beliefs[self.index].left = Some(now);
    }
}

impl fmt::Display for Belief {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with token {} from {:?} ", self.owner, self.token, self.entered)?;
        match self.left {
            Some(left) => write!(f, "to {left:?}"),
            None => f.write_str("on"),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Together(beliefs) => {
                let [first, second] = &**beliefs;
                write!(
                    f,
                    "two owners inside together at lock `{}`: {first}, and {second}",
                    first.name
                )
            }
            Self::TokenNotRising(beliefs) => {
                let [first, second] = &**beliefs;
                write!(
                    f,
                    "the tokens of lock `{}` do not rise: {first}, and later {second}",
                    first.name
                )
            }
        }
    }
}

impl Error for Violation {}

#[cfg(test)]
mod tests {
    use super::*;

    /// A belief in the lock `a`, with times in seconds.
    fn belief(owner: &str, token: u64, entered: u64, left: Option<u64>) -> Belief {
        let [entered, left] = [Some(entered), left].map(|second| second.map(Duration::from_secs));
        Belief::new("a", owner, token.into(), entered.unwrap_or_default(), left)
    }

    fn check(beliefs: &[Belief]) -> Result<(), Violation> {
        // The order of recording must not matter.
        let forward = History::check_beliefs(beliefs.to_vec());
        let backward = History::check_beliefs(beliefs.iter().rev().cloned());
        assert_eq!(forward, backward);
        forward
    }

    #[test]
    fn one_after_the_other_with_rising_tokens_is_good() {
        let beliefs =
            [belief("x", 1, 0, Some(1)), belief("y", 5, 1, Some(2)), belief("x", 6, 3, None)];
        assert_eq!(check(&beliefs), Ok(()));
        assert_eq!(check(&[]), Ok(()));
    }

    #[test]
    fn nested_beliefs_of_one_owner_are_one_hold() {
        let beliefs = [
            belief("x", 1, 0, Some(5)),
            belief("x", 1, 1, Some(7)),
            belief("x", 1, 6, Some(8)),
            belief("y", 2, 8, Some(9)),
        ];
        assert_eq!(check(&beliefs), Ok(()));
    }

    #[test]
    fn a_takeover_by_the_same_owner_overlaps_with_a_greater_token() {
        let beliefs = [
            belief("job", 1, 0, Some(9)),
            belief("job", 2, 5, Some(6)),
            belief("job", 3, 7, Some(8)),
        ];
        assert_eq!(check(&beliefs), Ok(()));
    }

    #[test]
    fn names_are_checked_each_by_itself() {
        let mut other = belief("y", 1, 0, Some(2));
        other.name = "b".into();
        assert_eq!(check(&[belief("x", 1, 0, Some(2)), other]), Ok(()));
    }

    #[test]
    fn two_owners_inside_together_are_found() {
        let [first, second] = [belief("x", 1, 0, Some(3)), belief("y", 2, 2, Some(4))];
        let violation = check(&[first.clone(), second.clone()]).unwrap_err();
        assert_eq!(violation, Violation::Together(Box::new([first, second])));
        let message = violation.to_string();
        assert_eq!(
            message,
            "two owners inside together at lock `a`: x with token 1 from 0ns to 3s, and y with token 2 from 2s to 4s"
        );
    }

    #[test]
    fn one_that_never_left_is_inside_with_all_that_come_later() {
        let beliefs = [belief("x", 1, 0, None), belief("y", 2, 100, Some(101))];
        assert!(matches!(check(&beliefs), Err(Violation::Together(..))));
    }

    #[test]
    fn an_overlap_with_an_earlier_and_longer_belief_is_found() {
        let beliefs =
            [belief("x", 1, 0, Some(10)), belief("x", 1, 1, Some(2)), belief("y", 2, 5, Some(6))];
        assert!(matches!(check(&beliefs), Err(Violation::Together(..))));
    }

    #[test]
    fn tokens_that_fall_or_stay_are_found() {
        for token in [1, 2] {
            let beliefs = [belief("x", 2, 0, Some(1)), belief("y", token, 2, Some(3))];
            let violation = check(&beliefs).unwrap_err();
            assert!(matches!(violation, Violation::TokenNotRising(..)));
            assert!(violation.to_string().contains("do not rise"), "{violation}");
        }
    }

    #[test]
    fn a_token_that_is_used_again_by_its_owner_is_found() {
        let beliefs = [belief("x", 1, 0, Some(1)), belief("x", 1, 2, Some(3))];
        assert!(matches!(check(&beliefs), Err(Violation::TokenNotRising(..))));
    }

    #[test]
    fn a_recorded_history_has_the_order_of_its_events() {
        let history = History::new();
        for number in 1..=1000 {
            history.enter("a", format!("owner {number}"), number.into()).leave();
        }
        assert_eq!(history.check(), Ok(()));
        let inside = history.enter("a", "stays", 1001.into());
        drop(history.enter("a", "intrudes", 1002.into()));
        assert!(matches!(history.check(), Err(Violation::Together(..))));
        inside.leave();
        assert!(
            matches!(history.check(), Err(Violation::Together(..))),
            "leaving does not undo it"
        );
    }
}
