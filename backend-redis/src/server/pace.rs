//! [`Pace`]: how often connections are opened to a server that does not serve.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockcore::BackendError;
use tokio::time::Instant;

/// The pauses after failures: they double from the first to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// The time between attempts while there is trouble, so that there are at most 20 a second.
const SPACING: Duration = Duration::from_millis(50);
/// A connection that lived for less than that was no success.
const SHORT_LIFE: Duration = Duration::from_secs(1);

/// The attempts to connect to one server, for both connections together.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Critical sections are short and do not await, so this is not tokio's mutex.
    state: Mutex<PaceState>,
}

#[derive(Debug, Default)]
struct PaceState {
    /// Failed attempts since the last connection, and one for a connection that lived shortly.
    failures: u32,
    /// The time of the next attempt.
    next: Option<Instant>,
}

impl Pace {
    fn lock(&self) -> MutexGuard<'_, PaceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs an attempt to connect when it is time.
    ///
    /// # Errors
    /// That of the attempt.
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
        attempt.await.inspect_err(|_| self.failed())
    }

    /// Begins an attempt.
    ///
    /// # Errors
    /// How long it is until the next attempt, if it is too early.
    fn begin(&self) -> Result<(), Duration> {
        let now = Instant::now();
        let mut state = self.lock();
        if let Some(next) = state.next.filter(|&next| next > now) {
            return Err(next - now);
        }
        if state.failures > 0 {
            state.next = Some(now + SPACING);
        }
        Ok(())
    }

    /// Returns how long it is until the next attempt.
    pub(super) fn pause(&self) -> Duration {
        let next = self.lock().next;
        next.map_or(Duration::ZERO, |next| next.saturating_duration_since(Instant::now()))
    }

    /// Notes that an attempt failed.
    fn failed(&self) {
        let mut state = self.lock();
        let pause = FIRST_PAUSE.saturating_mul(1 << state.failures.min(8)).min(LONGEST_PAUSE);
        state.failures += 1;
        state.next = state.next.max(Some(Instant::now() + jittered(pause)));
    }

    /// Notes that a connection was lost or given up, and how long it lived.
    pub(super) fn lost(&self, lived: Duration) {
        let mut state = self.lock();
        if lived >= SHORT_LIFE {
            *state = PaceState::default();
            return;
        }
        // The last attempt succeeded, so the pauses begin anew. Its spacing stays.
        state.failures = 1;
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
        assert!((95..=205).contains(&attempts), "{attempts} attempts in 10 s");
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_break_at_once_are_opened_twenty_times_a_second() {
        let pace = Pace::default();
        let (start, mut opened) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_secs(2) {
            succeed(&pace).await;
            opened += 1;
            pace.lost(Duration::from_millis(1));
        }
        assert!((30..=42).contains(&opened), "{opened} connections in 2 s");
        pace.lost(SHORT_LIFE);
        assert_eq!(pace.pause(), Duration::ZERO);
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
