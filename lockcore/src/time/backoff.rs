//! Back-off after temporary failures.

use std::time::Duration;

/// Waiting times that double from 20 ms to 1 s, each drawn at random from its upper half, so that
/// clients which failed together do not come back together.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(20);
    const LONGEST: Duration = Duration::from_secs(1);

    pub(crate) fn next(&mut self) -> Duration {
        let full = Self::FIRST.saturating_mul(1 << self.failures.min(10)).min(Self::LONGEST);
        self.failures += 1;
        full / 2 + (full / 2).mul_f64(random_fraction())
    }
}

/// A random number in [0, 1), good enough to spread retries.
pub(crate) fn random_fraction() -> f64 {
    let [_, _, _, _, a, b, c, d, ..] = uuid::Uuid::new_v4().into_bytes();
    f64::from(u32::from_be_bytes([a, b, c, d]) & 0x000f_ffff) / f64::from(0x0010_0000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_its_bound_and_stays_random() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..40).map(|_| backoff.next()).collect();
        assert!((10..=20).contains(&waits[0].as_millis()), "{:?}", waits[0]);
        assert!(
            waits[10..].iter().all(|wait| (500..=1000).contains(&wait.as_millis())),
            "{waits:?}"
        );
        assert!(waits[10..].windows(2).any(|pair| pair[0] != pair[1]));
    }
}
