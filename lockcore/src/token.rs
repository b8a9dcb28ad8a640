//! [`FencingToken`].

use std::{fmt, num::TryFromIntError};

/// A number that is greater than the token of every earlier hold of the same name.
///
/// A lease cannot stop a holder that was paused for longer than its lease from continuing its work
/// when it resumes. The resource behind the lock can: it remembers the greatest token that it has
/// seen, and refuses requests with a smaller one. Pass the token to the protected resource with
/// every write.
///
/// Nested acquisitions of one owner share the token of the hold.
///
/// The tokens of the backends of this workspace fit into a signed number of 64 bits, as `BIGINT`
/// columns have.
///
/// # Examples
/// ```
/// use lockcore::FencingToken;
///
/// let earlier = FencingToken::from(41);
/// let later = FencingToken::from(42);
/// assert!(later > earlier);
/// assert_eq!(later.to_string(), "42");
/// assert_eq!(u64::from(later), 42);
/// assert_eq!(i64::try_from(later)?, 42);
/// # Ok::<(), std::num::TryFromIntError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// The token that is `count` after this one.
    pub(crate) fn plus(self, count: u64) -> Self {
        Self(self.0.saturating_add(count))
    }
}

impl From<u64> for FencingToken {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

impl TryFrom<FencingToken> for i64 {
    type Error = TryFromIntError;

    fn try_from(token: FencingToken) -> Result<Self, Self::Error> {
        token.0.try_into()
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
