//! [`Pace`]: limits the rate of requests to a store.

use std::{future::Future, time::Duration};

use lockcore::{BackendError, BackendErrorKind};
use tokio::time::{Instant, sleep_until, timeout};

/// The default of `--rate`. A request takes a Redis server some 50 us, seven times as long as a
/// script that reads one hash. At this rate, the server is busy for half a percent of its time.
pub(crate) const DEFAULT_RATE: u32 = 100;

/// The common help text of these options.
pub(crate) const RATE_HELP: &str = "\
Asks the store at most so often in a second, for a page of names or for the state of a name; a page
counts for 4 to 20, by the names in it. The default is a small load for Redis itself; with it, 10,000
names take more than two minutes. With 0 there is no limit.";

/// How long to wait for a store that does not answer.
const LONGEST_ANSWER: Duration = Duration::from_secs(5);

/// The charge for a page without names, that is, a hundred keys of other applications.
const PAGE: u32 = 4;

/// The number of names of a page that cost as much as the state of one name.
const NAMES_A_REQUEST: usize = 5;

/// The highest charge for a page: a hundred keys, all of them of locks.
const MOST_CHARGED: u32 = 20;

/// The most requests that are under way at a time.
const MOST_AT_ONCE: u32 = 32;

/// Limits the requests per second, and those at the same time.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    /// The time of one request. `None` if there is no limit.
    each: Option<Duration>,
    /// When the next one may be sent.
    free_at: Instant,
}

impl Pace {
    /// `rate` requests a second, any number if it is 0.
    pub(crate) fn new(rate: u32) -> Self {
        let each = (rate > 0).then(|| (Duration::from_secs(1) / rate).max(Duration::from_nanos(1)));
        Self { each, free_at: Instant::now() }
    }

    /// The number of requests to send together: those of a twentieth of a second, so that the load
    /// is even.
    pub(crate) fn at_once(&self) -> u32 {
        let in_a_while = |each: Duration| Duration::from_millis(50).as_nanos() / each.as_nanos();
        let many = self.each.map_or(u128::from(MOST_AT_ONCE), in_a_while);
        u32::try_from(many).unwrap_or(MOST_AT_ONCE).clamp(1, MOST_AT_ONCE)
    }

    /// Waits until `requests` may be sent.
    ///
    /// # Cancel safety
    /// If the future is dropped before it resolves, nothing is taken.
    pub(crate) async fn take(&mut self, requests: u32) {
        let Some(each) = self.each else { return };
        sleep_until(self.free_at).await;
        self.free_at = self.free_at.max(Instant::now()) + each * requests;
    }

    /// Charges a page with this many names beyond a usual request. The time that it took does not
    /// matter: a distant store is asked as often as a near one.
    pub(crate) fn charge_page(&mut self, names: usize) {
        let Some(each) = self.each else { return };
        let more = u32::try_from(names / NAMES_A_REQUEST).unwrap_or(u32::MAX);
        let requests = PAGE.saturating_add(more).min(MOST_CHARGED);
        // Counted from the request for the page: `take` has counted the first of them.
        self.free_at += each * (requests - 1);
    }

    /// The answer to a request, or an error if it takes too long.
    pub(crate) async fn in_time<T, E: From<BackendError>>(
        &self,
        answer: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        timeout(LONGEST_ANSWER, answer).await.unwrap_or_else(|_| {
            let message = format!("no answer within {} s", LONGEST_ANSWER.as_secs());
            Err(BackendError::new(BackendErrorKind::Timeout, message).into())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn requests_are_spread_over_time() {
        let mut pace = Pace::new(100);
        assert_eq!(pace.at_once(), 5);
        let began = Instant::now();
        for _ in 0..20 {
            pace.take(5).await;
        }
        // The last batch is sent, but its time has not passed.
        assert_eq!(began.elapsed().as_millis(), 950);
        tokio::time::advance(Duration::from_secs(60)).await;
        let later = Instant::now();
        pace.take(5).await;
        pace.take(5).await;
        assert_eq!(later.elapsed().as_millis(), 50, "a pause is no credit");
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_counts_for_several_requests_however_long_it_took() {
        for (names, ms) in [(0, 40), (4, 40), (5, 50), (50, 140), (10_000, 200)] {
            for way in [0, 30] {
                let mut pace = Pace::new(100);
                let began = Instant::now();
                pace.take(1).await;
                tokio::time::sleep(Duration::from_millis(way)).await;
                pace.charge_page(names);
                pace.take(1).await;
                assert_eq!(began.elapsed().as_millis(), ms, "{names} names, {way} ms");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_rate_there_is_no_wait() {
        let mut pace = Pace::new(0);
        assert_eq!(pace.at_once(), 32);
        let began = Instant::now();
        pace.take(1_000_000).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert_eq!((Pace::new(1).at_once(), Pace::new(u32::MAX).at_once()), (1, 32));
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_silent_is_not_waited_for() {
        let error = Pace::new(0).in_time(std::future::pending::<Result<(), BackendError>>()).await;
        assert_eq!(error.unwrap_err().kind(), BackendErrorKind::Timeout);
    }
}
