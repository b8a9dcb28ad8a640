//! How times are written.

use std::time::Duration;

/// How long a token is remembered at least. It only matters if the server's clock is set back.
const TOKEN_MEMORY: Duration = Duration::from_secs(24 * 60 * 60);

/// Milliseconds: whole ones, rounded up, so that no lease becomes zero.
pub(crate) fn millis(span: Duration) -> u64 {
    let parts = u64::from(span.subsec_nanos().div_ceil(1_000_000));
    span.as_secs().saturating_mul(1_000).saturating_add(parts)
}

/// For how long a token is remembered, and the number of permits: longer than any hold.
pub(crate) fn token_memory(lease: Duration) -> u64 {
    millis(TOKEN_MEMORY.max(lease * 2))
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
