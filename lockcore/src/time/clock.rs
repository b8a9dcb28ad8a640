//! [`Clock`]: time that goes on while the host sleeps.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::moment::{Moment, nanos};

/// The clock against which leases are judged: tokio's, plus the time that the host spent asleep.
///
/// `std::time::Instant`, and with it tokio's, stands still while a laptop sleeps or a virtual
/// machine is suspended (rust-lang/rust#87906), but the server goes on counting. A holder that
/// trusted it would still rely on its lock after the host wakes up. This clock adds what the system
/// reports as the time spent suspended (on Linux `CLOCK_BOOTTIME`), and follows tokio's paused
/// clock in tests.
///
/// [`Locks`](crate::Locks) uses [`Clock::system`] unless
/// [`LocksBuilder::clock`](crate::LocksBuilder::clock) sets another.
///
/// # Examples
/// A test that sends the host to sleep for an hour:
/// ```
/// use std::{sync::{Arc, atomic::{AtomicU64, Ordering}}, time::Duration};
/// use lockcore::{Clock, Locks};
/// use lockcore_memory::MemoryBackend;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockcore::LockError> {
/// let asleep = Arc::new(AtomicU64::new(0));
/// let clock = Clock::with_suspension({
///     let asleep = asleep.clone();
///     move || Duration::from_secs(asleep.load(Ordering::SeqCst))
/// });
/// let locks = Locks::builder(MemoryBackend::new()).clock(clock).build()?;
///
/// let guard = locks.lock("laptop").acquire().await?;
/// asleep.store(3600, Ordering::SeqCst);
/// assert!(!guard.is_held());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Clock {
    origin: Instant,
    suspension: Suspension,
}

/// The source of the time that the host was suspended.
#[derive(Clone)]
enum Suspension {
    Host(Arc<Host>),
    Given(Arc<dyn Fn() -> Duration + Send + Sync>),
}

impl Clock {
    /// The clock of this host.
    #[must_use]
    pub fn system() -> Self {
        let origin = Instant::now();
        Self { origin, suspension: Suspension::Host(Arc::new(Host::new())) }
    }

    /// A clock that takes `suspended` for the total time which the host has been suspended so far.
    #[must_use]
    pub fn with_suspension(suspended: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self { origin: Instant::now(), suspension: Suspension::Given(Arc::new(suspended)) }
    }

    /// The time since this clock was made, during which the host may have been suspended. A backend
    /// that reckons the time of its store can go by this.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.now().since(Moment::ORIGIN)
    }

    pub(crate) fn now(&self) -> Moment {
        let awake = || nanos(Instant::now().saturating_duration_since(self.origin));
        match &self.suspension {
            Suspension::Host(host) => {
                let always_on = host.always_on();
                let awake = awake();
                Moment::at(awake.saturating_add(host.suspended_by(always_on, awake)))
            }
            Suspension::Given(suspended) => Moment::at(awake()).after(suspended()),
        }
    }

    pub(crate) fn suspended(&self) -> Duration {
        match &self.suspension {
            Suspension::Host(host) => Duration::from_nanos(host.suspended()),
            Suspension::Given(suspended) => suspended(),
        }
    }

    /// Sleeps until `moment`, as far as a timer can. A timer that spans a suspension fires late by
    /// the time suspended, so callers that must not be late check [`Clock::suspended`] in between.
    pub(crate) async fn sleep_until(&self, moment: Moment) {
        loop {
            let left = moment.since(self.now());
            if left.is_zero() {
                return;
            }
            // Timers have a resolution of a millisecond and round down past it: never spin on the
            // rest.
            tokio::time::sleep(left.max(Duration::from_micros(100))).await;
        }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").field("suspended", &self.suspended()).finish_non_exhaustive()
    }
}

/// How long the host was suspended since this value was made: the difference between a system clock
/// that keeps running meanwhile and the one behind `std::time::Instant`, which does not. All values
/// are in nanoseconds.
///
/// The two cannot be read at the same instant. Reading the running clock first makes every reading
/// a lower bound, and the greatest bound so far keeps the result from ever running backwards.
#[derive(Debug)]
struct Host {
    awake_since: std::time::Instant,
    /// The reading of the running clock at that time.
    first: u64,
    greatest: AtomicU64,
}

impl Host {
    fn new() -> Self {
        let awake_since = std::time::Instant::now();
        Self { awake_since, first: always_on(), greatest: AtomicU64::new(0) }
    }

    /// The reading of the running clock.
    fn always_on(&self) -> u64 {
        always_on().saturating_sub(self.first)
    }

    /// As [`suspended`](Self::suspended), where `awake` was read from tokio's clock after
    /// `always_on`. As long as they agree, which fails only after a suspension or while tokio's
    /// clock is paused, no clock is read again. For short holds, reading clocks is the largest
    /// cost.
    fn suspended_by(&self, always_on: u64, awake: u64) -> u64 {
        let greatest = self.greatest.load(Ordering::Relaxed);
        if always_on.saturating_sub(awake) <= greatest { greatest } else { self.suspended() }
    }

    fn suspended(&self) -> u64 {
        let passed = self.always_on();
        let suspended = passed.saturating_sub(nanos(self.awake_since.elapsed()));
        self.greatest.fetch_max(suspended, Ordering::Relaxed).max(suspended)
    }
}

#[cfg(unix)]
fn always_on() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

    Duration::try_from(rustix::time::clock_gettime(CLOCK)).map_or(0, nanos)
}

/// `QueryPerformanceCounter`, behind `Instant` on Windows, keeps running while the host sleeps, so
/// there is nothing to add.
#[cfg(not(unix))]
fn always_on() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_never_slept_has_no_suspension_to_speak_of() {
        assert!(Clock::system().suspended() < Duration::from_millis(50));
    }

    #[tokio::test(start_paused = true)]
    async fn follows_the_paused_clock() {
        let clock = Clock::system();
        let start = clock.now();
        tokio::time::advance(Duration::from_secs(5)).await;
        let passed = clock.now().since(start);
        assert!((5000..5050).contains(&passed.as_millis()), "{passed:?}");
    }
}
