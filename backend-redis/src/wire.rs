//! How times are written.

use std::time::Duration;

/// How long a token is remembered at least. It only matters if the server's clock is set back.
const TOKEN_MEMORY: Duration = Duration::from_secs(24 * 60 * 60);

/// Milliseconds: whole ones, rounded up, so that no lease becomes zero.
pub(crate) fn millis(span: Duration) -> String {
    span.as_nanos().div_ceil(1_000_000).to_string()
}

/// For how long a token is remembered, and the number of permits: longer than any hold.
pub(crate) fn token_memory(lease: Duration) -> String {
    millis(TOKEN_MEMORY.max(lease * 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_become_whole_milliseconds_and_never_zero() {
        assert_eq!(millis(Duration::from_micros(1)), "1");
        assert_eq!(millis(Duration::from_micros(1500)), "2");
        assert_eq!(millis(Duration::from_secs(30)), "30000");
    }
}
