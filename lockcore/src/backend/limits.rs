//! [`Limits`]: the limits on the size of requests to a backend.

use std::time::Duration;

/// The smallest and the largest values that a backend accepts in requests.
///
/// # Examples
/// A store whose leases are whole seconds, and that renews one hold at a time:
/// ```
/// use std::time::Duration;
/// use lockcore::backend::Limits;
///
/// let limits = Limits::default().shortest_lease(Duration::from_secs(1)).largest_renewal(1);
/// assert_eq!(limits.most_tokens, u32::MAX);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The shortest lease that the store ends on time: 1 ms to 30 s, default 1 ms. A client refuses
    /// a shorter one.
    pub shortest_lease: Duration,
    /// The most tokens in one grant: at least 1, default [`u32::MAX`]. A client asks for no more,
    /// and its tasks hand a hold over to each other less often.
    pub most_tokens: u32,
    /// The most holds in one call of [`renew`](crate::backend::Backend::renew): at least 1,
    /// default 128. A client sends no more than 128 anyway.
    pub largest_renewal: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            shortest_lease: Duration::from_millis(1),
            most_tokens: u32::MAX,
            largest_renewal: Self::LARGEST_RENEWAL,
        }
    }
}

impl Limits {
    /// The most holds that a client renews in one call.
    pub const LARGEST_RENEWAL: usize = 128;

    /// Sets the shortest lease.
    #[must_use]
    pub fn shortest_lease(mut self, lease: Duration) -> Self {
        self.shortest_lease = lease;
        self
    }

    /// Sets the most tokens in one grant.
    #[must_use]
    pub fn most_tokens(mut self, tokens: u32) -> Self {
        self.most_tokens = tokens;
        self
    }

    /// Sets the most holds in one renewal.
    #[must_use]
    pub fn largest_renewal(mut self, holds: usize) -> Self {
        self.largest_renewal = holds;
        self
    }

    /// The limits of requests that go to both of two stores.
    #[must_use]
    pub fn of_both(self, other: Self) -> Self {
        Self {
            shortest_lease: self.shortest_lease.max(other.shortest_lease),
            most_tokens: self.most_tokens.min(other.most_tokens),
            largest_renewal: self.largest_renewal.min(other.largest_renewal),
        }
    }
}
