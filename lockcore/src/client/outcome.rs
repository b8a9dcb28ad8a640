//! [`Entrance`], and the other reported ways in which things begin and end.

use std::fmt;

/// How an owner got the hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entrance {
    /// The backend granted it.
    Granted,
    /// Another task of this client handed over its hold.
    HandedOver,
    /// The owner was in already.
    Nested,
}

impl fmt::Display for Entrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Granted => "granted",
            Self::HandedOver => "handed_over",
            Self::Nested => "nested",
        })
    }
}

/// The answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RenewalEnd {
    Renewed,
    /// The backend does not know the hold.
    Gone,
    Failed,
}

/// A call of the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackendCall {
    Acquire,
    Release,
    Renew,
    Subscribe,
    Inspect,
    ForceRelease,
}
