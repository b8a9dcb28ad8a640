//! A clock that keeps running while the host is suspended, as leases do. `std::time::Instant`
//! stands still meanwhile on some systems.

use std::time::Duration;

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

/// The time since the host was started, or since another fixed point.
pub(crate) fn since_boot() -> Duration {
    Duration::try_from(rustix::time::clock_gettime(CLOCK)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn the_time_that_the_host_was_suspended_counts() {
        let uptime = || {
            let text = std::fs::read_to_string("/proc/uptime").unwrap();
            text.split(' ').next().unwrap().parse::<f64>().unwrap()
        };
        // A container may have a clock of its own that began later, for both.
        let (before, now, after) = (uptime(), since_boot().as_secs_f64(), uptime());
        assert!((before..=after + 0.01).contains(&now), "{before} {now} {after}");
    }
}
