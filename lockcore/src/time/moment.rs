//! [`Moment`]: a point in time.

use std::{num::NonZeroU64, time::Duration};

/// A point in time on a [`Clock`](super::Clock): nanoseconds since its origin, good for 584 years.
///
/// Stored plus one, so that an `Option<Moment>` takes no more room than a `Moment`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Moment(NonZeroU64);

impl Moment {
    /// The first moment of the clock.
    pub(crate) const ORIGIN: Self = Self(NonZeroU64::MIN);

    pub(super) fn at(nanos: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(nanos))
    }

    pub(crate) fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }

    /// The first moment after this that is a whole number of `span`s after the origin.
    pub(crate) fn next_multiple_of(self, span: Duration) -> Self {
        let (passed, span) = (self.0.get() - 1, nanos(span).max(1));
        Self::at((passed / span + 1).saturating_mul(span))
    }

    /// The time from `earlier` to this moment, or zero if `earlier` is later.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.get().saturating_sub(earlier.0.get()))
    }
}

pub(super) fn nanos(span: Duration) -> u64 {
    span.as_secs().saturating_mul(1_000_000_000).saturating_add(span.subsec_nanos().into())
}
