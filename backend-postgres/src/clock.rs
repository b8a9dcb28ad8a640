//! [`ServerClock`]: what the server's clock shows now.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// How long a reading is gone by. Until then, two clocks of which one is wrong by a thousandth
/// drift apart by 3.6 s, and the server allows for 30 s.
const READ_FOR: Duration = Duration::from_secs(3_600);

/// The server's clock, reckoned from when it was read last.
///
/// A request carries its time, so that the server can refuse one that was on its way for too long:
/// the mark that kept it out may be gone by then. The time may lag behind, by as long as the answer
/// with the reading took. The server then takes the request for an older one than it is.
#[derive(Debug, Default)]
pub(crate) struct ServerClock(Mutex<Option<Reading>>);

#[derive(Clone, Copy, Debug)]
struct Reading {
    /// In microseconds since 1970.
    time: i64,
    at: Instant,
}

impl ServerClock {
    /// Notes a time that the server has sent.
    pub(crate) fn note(&self, time: i64) {
        self.note_at(time, Instant::now());
    }

    /// The time in microseconds since 1970. `None` if it was not read for so long that the clocks
    /// may have drifted apart.
    pub(crate) fn now(&self) -> Option<i64> {
        self.now_at(Instant::now())
    }

    fn note_at(&self, time: i64, at: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Reading { time, at });
    }

    fn now_at(&self, now: Instant) -> Option<i64> {
        let reading = (*self.0.lock().unwrap_or_else(PoisonError::into_inner))?;
        let passed = now.saturating_duration_since(reading.at);
        if passed > READ_FOR {
            return None;
        }
        reading.time.checked_add(i64::try_from(passed.as_micros()).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_from_the_last_reading() {
        let (clock, start) = (ServerClock::default(), Instant::now());
        assert_eq!(clock.now_at(start), None);
        clock.note_at(7_000_000, start);
        assert_eq!(clock.now_at(start + Duration::from_millis(1_500)), Some(8_500_000));
        clock.note_at(5_000_000, start + Duration::from_secs(1));
        assert_eq!(clock.now_at(start + Duration::from_secs(2)), Some(6_000_000));
    }

    #[test]
    fn an_old_reading_is_not_gone_by() {
        let (clock, start) = (ServerClock::default(), Instant::now());
        clock.note_at(0, start);
        assert_eq!(clock.now_at(start + READ_FOR), Some(3_600_000_000));
        assert_eq!(clock.now_at(start + READ_FOR + Duration::from_secs(1)), None);
    }
}
