//! Durations as the scripts expect them.

use std::time::Duration;

/// The minimum time for which a token is kept. A kept token only matters if the server's clock is
/// set back.
const MIN_TOKEN_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// Whole milliseconds, rounded up, so that no lease becomes zero.
pub(crate) fn millis(span: Duration) -> u64 {
    let parts = u64::from(span.subsec_nanos().div_ceil(1_000_000));
    span.as_secs().saturating_mul(1_000).saturating_add(parts)
}

/// The time to live of a token, and of the counter of a semaphore: longer than the lease, in ms.
pub(crate) fn token_ttl(lease: Duration) -> u64 {
    millis(MIN_TOKEN_TTL.max(lease * 2))
}

/// Returns `true` if tokens are kept for no longer than usual, because the lease is short enough.
pub(crate) fn has_usual_token_ttl(lease: Duration) -> bool {
    lease * 2 <= MIN_TOKEN_TTL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_become_whole_milliseconds_and_never_zero() {
        assert_eq!(millis(Duration::from_micros(1)), 1);
        assert_eq!(millis(Duration::from_micros(1500)), 2);
        assert_eq!(millis(Duration::from_nanos(1_999_000_001)), 2000);
        assert_eq!(millis(Duration::from_secs(30)), 30_000);
    }
}
