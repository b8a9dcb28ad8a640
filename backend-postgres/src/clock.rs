//! [`ServerClock`]: what the server's clock shows now.

use std::sync::atomic::{AtomicI64, Ordering};

use lockcore::Clock;

/// The clock of the server of a connection, reckoned from when it was read last: with each ping.
///
/// A request carries its time, so that the server can refuse one that was on its way for too long:
/// the mark that kept it out may be gone by then. The time lags behind by as long as it took to get
/// the reading and to look at it, so the server may take the request for an older one than it is.
#[derive(Debug)]
pub(crate) struct ServerClock {
    /// Goes on while the host is suspended, as the server's does.
    local: Clock,
    /// The server's time when the local clock was made, in microseconds since 1970.
    began: AtomicI64,
}

impl ServerClock {
    /// A clock that shows `time` now.
    pub(crate) fn at(time: i64) -> Self {
        Self { local: Clock::system(), began: AtomicI64::new(time) }
    }

    /// Notes a time that the server has sent.
    pub(crate) fn note(&self, time: i64) {
        self.began.store(time.saturating_sub(self.passed()), Ordering::Relaxed);
    }

    /// The time in microseconds since 1970.
    pub(crate) fn now(&self) -> i64 {
        self.began.load(Ordering::Relaxed).saturating_add(self.passed())
    }

    fn passed(&self) -> i64 {
        i64::try_from(self.local.elapsed().as_micros()).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn time_goes_on_from_the_last_reading() {
        let before = Instant::now();
        let clock = ServerClock::at(1_800_000_000_000_000);
        let mut last = 0;
        for reading in [1_800_000_000_000_000, 1_700_000_000_000_000, 1_900_000_000_000_000] {
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
