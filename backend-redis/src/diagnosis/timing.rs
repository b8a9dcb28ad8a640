//! The clock of a server, and its response time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lockcore::{BackendError, Diagnosis, Finding, Severity};

use super::session::Session;

/// The largest allowed difference. Synchronized clocks differ by milliseconds.
const MOST_APART: Duration = Duration::from_secs(1);
/// The number of times that the clock is read. The fastest answer counts.
const READINGS: usize = 3;

const PINGS: usize = 20;
/// The time after which no more pings are sent.
const LONGEST_PINGS: Duration = Duration::from_secs(5);
/// A median from which on it is a problem.
const SLOW: Duration = Duration::from_millis(100);
/// A median from which on there is advice.
const SLUGGISH: Duration = Duration::from_millis(20);
/// A slowest answer from which on it is a problem.
const STALLED: Duration = Duration::from_secs(1);
/// A slowest answer from which on there is advice.
const UNEVEN: Duration = Duration::from_millis(500);

pub(super) async fn examine(
    session: &mut Session,
    diagnosis: &mut Diagnosis,
) -> Result<(), BackendError> {
    if let Some(reading) = clock(session).await?
        && reading.is_apart()
    {
        let seen = format!("the clock of {} is {}", session.address(), reading.in_words());
        diagnosis.add(
            Finding::new("clock", Severity::Problem, seen)
                .because(
                    "fencing tokens and the places in queues follow the server's clock, and \
                     Redisson writes places by the clock of its host: waiters lose their places, \
                     and after a failover to a server whose clock is right, tokens may fall",
                )
                .to_do("synchronize the clocks of both hosts, with chrony for example"),
        );
    }
    if let Some(latency) = latency(session).await?
        && let Some(severity) = latency.severity()
    {
        let seen = format!(
            "{} answers PING after a median of {:.1} ms, and at most {:.1} ms",
            session.address(),
            latency.middle.as_secs_f64() * 1e3,
            latency.slowest.as_secs_f64() * 1e3,
        );
        diagnosis.add(
            Finding::new("latency", severity, seen)
                .because(
                    "each acquisition and each release takes a round trip, and a renewal that \
                     comes too late loses the lock",
                )
                .to_do(
                    "look for slow commands (SLOWLOG GET), a busy or swapping host (redis-cli \
                     --intrinsic-latency), and a network between that is far or full",
                ),
        );
    }
    Ok(())
}

/// A reading of a clock, and the uncertainty of it.
#[derive(Clone, Copy, Debug)]
struct Reading {
    /// The number of seconds by which the server is ahead.
    ahead: f64,
    round_trip: Duration,
}

impl Reading {
    /// Returns `true` if the clocks certainly differ, whenever the server read its own.
    fn is_apart(&self) -> bool {
        self.ahead.abs() - self.round_trip.as_secs_f64() / 2.0 > MOST_APART.as_secs_f64()
    }

    fn in_words(&self) -> String {
        let direction = if self.ahead > 0.0 { "ahead of" } else { "behind" };
        let (apart, most) = (self.ahead.abs(), self.round_trip.as_secs_f64() / 2.0);
        format!("{apart:.1} s (give or take {most:.3} s) {direction} that of this host")
    }
}

/// `None` if the server refuses to tell the time.
async fn clock(session: &mut Session) -> Result<Option<Reading>, BackendError> {
    let mut best: Option<Reading> = None;
    for _ in 0..READINGS {
        let (asked, began) = (SystemTime::now(), Instant::now());
        let Ok((seconds, micros)) = session.words::<(u64, u64)>(&["TIME"]).await? else {
            return Ok(None);
        };
        let round_trip = began.elapsed();
        let read = (asked + round_trip / 2).duration_since(UNIX_EPOCH).unwrap_or_default();
        let told = Duration::from_secs(seconds) + Duration::from_micros(micros);
        let reading = Reading { ahead: told.as_secs_f64() - read.as_secs_f64(), round_trip };
        if best.is_none_or(|best| round_trip < best.round_trip) {
            best = Some(reading);
        }
    }
    Ok(best)
}

#[derive(Clone, Copy, Debug)]
struct Latency {
    middle: Duration,
    slowest: Duration,
}

impl Latency {
    fn of(mut times: Vec<Duration>) -> Option<Self> {
        times.sort_unstable();
        Some(Self { middle: *times.get(times.len() / 2)?, slowest: *times.last()? })
    }

    fn severity(&self) -> Option<Severity> {
        if self.middle >= SLOW || self.slowest >= STALLED {
            Some(Severity::Problem)
        } else if self.middle >= SLUGGISH || self.slowest >= UNEVEN {
            Some(Severity::Advice)
        } else {
            None
        }
    }
}

/// `None` if no ping was sent. An error is an answer as well.
async fn latency(session: &mut Session) -> Result<Option<Latency>, BackendError> {
    let (mut times, began) = (Vec::with_capacity(PINGS), Instant::now());
    while times.len() < PINGS && began.elapsed() < LONGEST_PINGS {
        let asked = Instant::now();
        let _ = session.words::<redis::Value>(&["PING"]).await?;
        times.push(asked.elapsed());
    }
    Ok(Latency::of(times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_apart_only_if_no_delay_explains_it() {
        let apart = |ahead, ms| Reading { ahead, round_trip: Duration::from_millis(ms) }.is_apart();
        assert!(apart(1.2, 10) && apart(-1.2, 10) && apart(-3600.0, 900));
        assert!(!apart(0.9, 1) && !apart(1.4, 1000) && !apart(-1.4, 1000));
    }

    #[test]
    fn one_slow_answer_of_many_is_judged_milder_than_all() {
        let with = |usual, slowest| {
            let mut times = vec![Duration::from_millis(usual); 19];
            times.push(Duration::from_millis(slowest));
            Latency::of(times).unwrap().severity()
        };
        assert_eq!(with(1, 300), None);
        assert_eq!(with(1, 600), Some(Severity::Advice));
        assert_eq!(with(30, 40), Some(Severity::Advice));
        assert_eq!(with(120, 130), Some(Severity::Problem));
        assert_eq!(with(1, 1100), Some(Severity::Problem));
        assert!(Latency::of(Vec::new()).is_none());
    }
}
