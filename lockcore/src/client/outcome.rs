//! [`Entrance`] and the other ways in which things begin and end that are reported.

use std::fmt;

/// How an owner got in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entrance {
    /// The backend granted it.
    Granted,
    /// Another task of this client handed its hold over.
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

/// What the answer to a renewal said.
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
