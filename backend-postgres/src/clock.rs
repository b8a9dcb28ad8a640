//! [`ServerClock`]: what the server's clock shows now.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::Instant,
};

/// The server's clock, reckoned from when it was read last: with each ping.
///
/// A request carries its time, so that the server can refuse one that was on its way for too long:
/// the mark that kept it out may be gone by then. The time lags behind by as long as it took to get
/// the reading and to look at it, so the server may take the request for an older one than it is. So
/// it does when the host was suspended, until the next ping or the first request that is refused.
#[derive(Debug)]
pub(crate) struct ServerClock {
    origin: Instant,
    /// The server's time at the origin, in microseconds since 1970.
    began: AtomicI64,
}

impl Default for ServerClock {
    fn default() -> Self {
        Self { origin: Instant::now(), began: AtomicI64::new(0) }
    }
}

impl ServerClock {
    /// Notes a time that the server has sent.
    pub(crate) fn note(&self, time: i64) {
        self.began.store(time.saturating_sub(self.passed()), Ordering::Relaxed);
    }

    /// The time in microseconds since 1970. Before the first reading, one that is long ago.
    pub(crate) fn now(&self) -> i64 {
        self.began.load(Ordering::Relaxed).saturating_add(self.passed())
    }

    fn passed(&self) -> i64 {
        i64::try_from(self.origin.elapsed().as_micros()).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_from_the_last_reading() {
        let clock = ServerClock::default();
        let mut last = clock.now();
        assert!(last < 1_000_000_000, "{last}");
        for reading in [1_800_000_000_000_000, 1_700_000_000_000_000] {
            let before = Instant::now();
            clock.note(reading);
            last = clock.now();
            let passed = i64::try_from(before.elapsed().as_micros()).unwrap();
            assert!((reading..=reading + passed + 1).contains(&last), "{last}");
        }
        while clock.now() == last {
            std::hint::spin_loop();
        }
        assert!(clock.now() > last);
    }
}
