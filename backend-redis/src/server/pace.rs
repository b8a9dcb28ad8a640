//! [`Pace`]: limits how often connections are opened to a server that does not serve.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockcore::BackendError;
use tokio::time::Instant;

/// The pauses after failures: they double from the first to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// The average time between attempts, whether they fail or not: at most 20 a second.
const SPACING: Duration = Duration::from_millis(50);
/// The most attempts that may follow each other immediately, so that connections that break now and
/// then are replaced at once.
const BURST: u32 = 10;

/// The attempts to open one of the connections to a server.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Critical sections are short and do not await, so this is not tokio's mutex.
    state: Mutex<PaceState>,
}

#[derive(Debug, Default)]
struct PaceState {
    /// Failed attempts since the last connection.
    failures: u32,
    /// The end of the pause after a failure.
    paused_until: Option<Instant>,
    /// When all attempts so far are paid for, each with its spacing.
    spaced_until: Option<Instant>,
}

impl PaceState {
    /// Returns how long it is until the next attempt.
    fn wait(&self, now: Instant) -> Duration {
        let left = |until: Option<Instant>| {
            until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
        };
        left(self.paused_until).max(left(self.spaced_until).saturating_sub(SPACING * (BURST - 1)))
    }
}

impl Pace {
    fn lock(&self) -> MutexGuard<'_, PaceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs an attempt to connect when it is time.
    ///
    /// # Errors
    /// The error of the attempt.
    ///
    /// # Cancel safety
    /// An attempt that is dropped while it waits leaves its turn to the next.
    pub(super) async fn run<T>(
        &self,
        attempt: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        while let Err(wait) = self.begin() {
            tokio::time::sleep(wait).await;
        }
        let outcome = attempt.await;
        self.end(outcome.is_ok());
        outcome
    }

    /// Begins an attempt.
    ///
    /// # Errors
    /// How long it is until the next attempt, if it is too early.
    fn begin(&self) -> Result<(), Duration> {
        let now = Instant::now();
        let mut state = self.lock();
        let wait = state.wait(now);
        if !wait.is_zero() {
            return Err(wait);
        }
        state.spaced_until = Some(state.spaced_until.map_or(now, |until| until.max(now)) + SPACING);
        Ok(())
    }

    fn end(&self, is_open: bool) {
        let mut state = self.lock();
        if is_open {
            (state.failures, state.paused_until) = (0, None);
            return;
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << state.failures.min(8)).min(LONGEST_PAUSE);
        state.failures += 1;
        state.paused_until = Some(Instant::now() + jittered(pause));
    }

    /// Returns how long it is until the next attempt.
    pub(super) fn pause(&self) -> Duration {
        self.lock().wait(Instant::now())
    }
}

/// Draws from the upper half of `pause`, so that clients which failed together do not come back
/// together.
fn jittered(pause: Duration) -> Duration {
    pause / 2 + (pause / 2).mul_f64(random_fraction())
}

/// A number in [0, 1) that differs between clients.
fn random_fraction() -> f64 {
    use std::hash::{BuildHasher, RandomState};
    let bits = RandomState::new().hash_one(()) & 0xffff;
    f64::from(u16::try_from(bits).unwrap_or(0)) / 65536.0
}

#[cfg(test)]
mod tests {
    use lockcore::BackendErrorKind;

    use super::*;

    async fn fail(pace: &Pace) {
        let refused = BackendError::new(BackendErrorKind::Connection, "refused").not_applied();
        pace.run(async { Err::<(), _>(refused) }).await.unwrap_err();
    }

    async fn succeed(pace: &Pace) {
        pace.run(async { Ok(()) }).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn failures_make_the_pauses_grow_to_the_longest() {
        let pace = Pace::default();
        let (start, mut attempts) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_secs(10) {
            fail(&pace).await;
            assert!(pace.pause() <= LONGEST_PAUSE);
            attempts += 1;
        }
        assert!((95..=201).contains(&attempts), "{attempts} attempts in 10 s");
        succeed(&pace).await;
        assert_eq!(pace.pause(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_break_at_once_are_opened_twenty_times_a_second() {
        let pace = Pace::default();
        for _ in 0..BURST {
            assert_eq!(pace.pause(), Duration::ZERO);
            succeed(&pace).await;
        }
        let (start, mut opened) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_secs(2) {
            succeed(&pace).await;
            opened += 1;
        }
        assert!((35..=41).contains(&opened), "{opened} connections in 2 s");
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_that_are_given_up_while_they_wait_take_nobodys_turn() {
        let pace = Pace::default();
        fail(&pace).await;
        for _ in 0..100 {
            let attempt = pace.run(async { Ok(()) });
            assert!(tokio::time::timeout(Duration::ZERO, attempt).await.is_err());
        }
        assert!(pace.pause() <= LONGEST_PAUSE);
        let start = Instant::now();
        succeed(&pace).await;
        assert!(start.elapsed() <= LONGEST_PAUSE + Duration::from_millis(1));
    }
}
