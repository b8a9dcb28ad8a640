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
/// Attempts wait for so long. Callers that would have to wait longer are told the last failure.
const PATIENCE: Duration = Duration::from_millis(100);

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
    last_error: Option<BackendError>,
}

impl Pace {
    fn lock(&self) -> MutexGuard<'_, PaceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs an attempt to connect when it is time.
    ///
    /// # Errors
    /// That of the attempt. Or the last failure, if the next attempt is too far off to wait for.
    pub(super) async fn run<T>(
        &self,
        attempt: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let wait = self.admit()?;
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        attempt.await.inspect_err(|error| self.failed(error))
    }

    /// Returns how long an attempt has to wait before it connects.
    fn admit(&self) -> Result<Duration, BackendError> {
        let now = Instant::now();
        let mut state = self.lock();
        if state.failures == 0 {
            return Ok(Duration::ZERO);
        }
        let start = state.next.map_or(now, |next| next.max(now));
        if let Some(error) = state.last_error.as_ref().filter(|_| start - now > PATIENCE) {
            return Err(error.clone());
        }
        state.next = Some(start + SPACING);
        Ok(start - now)
    }

    /// Returns how long it is until the next attempt.
    pub(super) fn pause(&self) -> Duration {
        let next = self.lock().next;
        next.map_or(Duration::ZERO, |next| next.saturating_duration_since(Instant::now()))
    }

    /// Notes that an attempt failed.
    fn failed(&self, error: &BackendError) {
        let mut state = self.lock();
        let pause = FIRST_PAUSE.saturating_mul(1 << state.failures.min(8)).min(LONGEST_PAUSE);
        state.failures += 1;
        state.next = Some(Instant::now() + jittered(pause));
        state.last_error = Some(error.clone());
    }

    /// Notes that a connection was lost or given up, and how long it lived.
    pub(super) fn lost(&self, lived: Duration) {
        let mut state = self.lock();
        if lived >= SHORT_LIFE {
            *state = PaceState::default();
            return;
        }
        // The last attempt succeeded, so the pauses begin anew.
        let now = Instant::now();
        state.failures = 1;
        state.next = Some(now);
        state.last_error = None;
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

    fn refused() -> BackendError {
        BackendError::new(BackendErrorKind::Connection, "refused").not_applied()
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_shared_and_make_the_pauses_grow() {
        let pace = Pace::default();
        assert_eq!(pace.admit().unwrap(), Duration::ZERO);
        let (start, mut attempts) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_secs(10) {
            if let Ok(wait) = pace.admit() {
                tokio::time::sleep(wait).await;
                attempts += 1;
                pace.failed(&refused());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!((20..50).contains(&attempts), "{attempts} attempts in 10 s");
        assert_eq!(pace.admit().unwrap_err().kind(), BackendErrorKind::Connection);
        assert!(pace.pause() <= LONGEST_PAUSE);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_break_at_once_are_opened_twenty_times_a_second() {
        let pace = Pace::default();
        let (start, mut opened) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_secs(2) {
            // Nobody is refused: each waits for its turn.
            tokio::time::sleep(pace.admit().unwrap()).await;
            opened += 1;
            pace.lost(Duration::from_millis(1));
        }
        assert!((30..=42).contains(&opened), "{opened} connections in 2 s");
        pace.lost(SHORT_LIFE);
        assert_eq!(pace.admit().unwrap(), Duration::ZERO);
    }
}
