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

/// The clock against which leases are judged: tokio's, plus the time that the host spent asleep.
///
/// `std::time::Instant`, and with it tokio's, stands still while a laptop sleeps or a virtual machine is suspended
/// (rust-lang/rust#87906), but the server goes on counting. A holder that trusted it would still
/// believe in its lock after waking up. This clock adds what the system reports as the time spent suspended
/// (on Linux `CLOCK_BOOTTIME`), and follows tokio's paused clock in tests.
///
/// [`Locks`](crate::Locks) uses [`Clock::system`] unless
/// [`LocksBuilder::clock`](crate::LocksBuilder::clock) gives another.
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
    suspended: Arc<dyn Fn() -> Duration + Send + Sync>,
}

/// A point in time on a [`Clock`], as the time since its origin in nanoseconds: 584 years of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

impl Moment {
    pub(crate) fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }

    /// The time from `earlier` to here, zero if `earlier` is later.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

impl Clock {
    /// The clock of this host.
    #[must_use]
    pub fn system() -> Self {
        Self::with_suspension(host_suspension())
    }

    /// A clock that takes `suspended` for the total time which the host has been suspended so far.
    #[must_use]
    pub fn with_suspension(suspended: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self { origin: Instant::now(), suspended: Arc::new(suspended) }
    }

    pub(crate) fn now(&self) -> Moment {
        Moment(nanos(Instant::now().saturating_duration_since(self.origin))).after((self.suspended)())
    }

    pub(crate) fn suspended(&self) -> Duration {
        (self.suspended)()
    }

    /// Sleeps until `moment`, as far as a timer can: one that spans a suspension fires late by the time
    /// suspended, so whoever must not be late looks at [`Clock::suspended`] in between.
    pub(crate) async fn sleep_until(&self, moment: Moment) {
        loop {
            let left = moment.since(self.now());
            if left.is_zero() {
                return;
            }
            // Timers have a resolution of a millisecond and round down past it: never spin on the rest.
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

/// How long the host was suspended since now: the difference between a system clock that goes on meanwhile
/// and the one behind `std::time::Instant`, which does not.
///
/// The two cannot be read at the same instant. Reading the one that goes on first makes every reading a lower
/// bound, and the greatest bound so far keeps the result from ever running backwards.
#[cfg(unix)]
fn host_suspension() -> impl Fn() -> Duration + Send + Sync {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const ALWAYS_ON: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const ALWAYS_ON: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

    let always_on = || Duration::try_from(rustix::time::clock_gettime(ALWAYS_ON)).unwrap_or_default();
    let awake_since = std::time::Instant::now();
    let first = always_on();
    let greatest_nanos = AtomicU64::new(0);
    move || {
        let passed = always_on().saturating_sub(first);
        let nanos =
            u64::try_from(passed.saturating_sub(awake_since.elapsed()).as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(greatest_nanos.fetch_max(nanos, Ordering::Relaxed).max(nanos))
    }
}

/// `QueryPerformanceCounter`, behind `Instant` on Windows, goes on while the host sleeps.
#[cfg(not(unix))]
fn host_suspension() -> impl Fn() -> Duration + Send + Sync {
    || Duration::ZERO
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
