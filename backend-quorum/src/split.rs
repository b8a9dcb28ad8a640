//! Pauses of random length, so that clients that have split the members do not do so again.

use std::{
    hash::{BuildHasher, RandomState},
    ops::RangeInclusive,
    time::Duration,
};

/// A pause lasts up to this many requests, so that the next attempts seldom collide.
const REQUESTS: u32 = 8;

/// The bounds of the longest pause.
const LONGEST: RangeInclusive<Duration> = Duration::from_millis(4)..=Duration::from_millis(100);

/// Waits for a random time, after requests that took `request`.
pub(crate) async fn pause(request: Duration) {
    let longest = (request * REQUESTS).clamp(*LONGEST.start(), *LONGEST.end());
    tokio::time::sleep(longest.mul_f64(random_fraction())).await;
}

/// A number from 0 to 1. The keys of the standard hash maps are random.
fn random_fraction() -> f64 {
    let bits = u32::try_from(RandomState::new().hash_one(0_u8) >> 32).unwrap_or_default();
    f64::from(bits) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_differ() {
        let fractions: Vec<_> = (0..100).map(|_| random_fraction()).collect();
        assert!(fractions.iter().all(|fraction| (0.0..=1.0).contains(fraction)));
        assert!(fractions.iter().any(|fraction| *fraction < 0.4), "{fractions:?}");
        assert!(fractions.iter().any(|fraction| *fraction > 0.6), "{fractions:?}");
    }
}
