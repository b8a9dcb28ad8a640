//! [`LockName`]: a valid name of a lock.

use std::{
    cmp::Ordering,
    fmt,
    hash::{BuildHasher, Hash, Hasher, RandomState},
    sync::{Arc, LazyLock},
};

use crate::LockError;

/// The checked name of a lock, including the namespace. Cheap to clone.
///
/// # Rules
/// A name has 1 to [`LockName::MAX_LEN`] bytes of UTF-8 without NUL. Braces are Redis hash tags,
/// and follow Redisson's rule for the keys that belong to a lock: either there are none, or the
/// first `{` opens a tag that is not empty and that a later `}` closes. A name such as `a{b`, `{}`
/// or `a}b` would put the keys of one lock into different slots of a Redis Cluster, so it is
/// refused. It is refused on every backend, so that a change of the backend never makes a name
/// invalid.
///
/// # Examples
/// ```
/// use lockcore::LockName;
///
/// assert_eq!(LockName::new("order:42")?.as_str(), "order:42");
/// assert!(LockName::new("{shop}:order:42").is_ok());
/// assert!(LockName::new("").is_err());
/// assert!(LockName::new("order{42").is_err());
/// # Ok::<(), lockcore::LockError>(())
/// ```
#[derive(Clone)]
pub struct LockName {
    name: Arc<str>,
    /// The hash of the name, computed once because each acquisition looks the name up several
    /// times.
    hash: u64,
}

/// Seeded for each process, so that nobody can choose names with colliding hashes.
static HASHES: LazyLock<RandomState> = LazyLock::new(RandomState::new);

impl LockName {
    /// The longest name, in bytes.
    pub const MAX_LEN: usize = 512;

    /// Checks and wraps `name`.
    ///
    /// # Errors
    /// [`LockError::InvalidName`] if `name` breaks one of the rules above.
    pub fn new(name: impl Into<String>) -> Result<Self, LockError> {
        let name = name.into();
        match objection(&name) {
            Some(reason) => Err(LockError::InvalidName { name: excerpt(&name), reason }),
            None => Ok(Self { hash: HASHES.hash_one(&name), name: name.into() }),
        }
    }

    /// The name as it was given, with the namespace in front.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.name
    }
}

impl LockName {
    /// The hash of the name, for maps that are looked up with it.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }
}

impl PartialEq for LockName {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.name == other.name
    }
}

impl Eq for LockName {}

impl PartialOrd for LockName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for LockName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.name.cmp(&other.name)
    }
}

impl Hash for LockName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// The reason why `name` is not valid, if it is not.
fn objection(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        return Some("it is empty; give the lock a name of 1 to 512 bytes");
    }
    if name.len() > LockName::MAX_LEN {
        return Some("it is longer than 512 bytes; shorten it or use a hash of it");
    }
    if name.contains('\0') {
        return Some("it contains a NUL character; remove it");
    }
    if splits_slots(name) {
        return Some(
            "its braces would put the keys of this lock into different cluster slots; use no \
             braces, or a tag that is not empty, as in `{shop}:order`",
        );
    }
    None
}

/// Returns `true` if a key that Redisson derives from `name` hashes to another slot than `name`
/// itself.
///
/// Redisson derives `prefix:{name}` from a name without `{`, and `prefix:name` from any other.
/// Redis hashes the text between the first `{` and the next `}` if it is not empty, and the whole
/// key otherwise.
fn splits_slots(name: &str) -> bool {
    match name.split_once('{') {
        None => name.contains('}'),
        Some((_, after)) => !matches!(after.find('}'), Some(1..)),
    }
}

/// The start of an invalid name for a log line: escaped, and short however long the name is.
fn excerpt(name: &str) -> String {
    const SHOWN: usize = 64;
    let mut shown: String = name.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if name.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.escape_debug().fmt(f)
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

impl From<LockName> for Arc<str> {
    fn from(name: LockName) -> Self {
        name.name
    }
}

impl AsRef<str> for LockName {
    fn as_ref(&self) -> &str {
        &self.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_redisson_can_store_in_one_slot() {
        for name in
            ["a", "order:42", "{shop}", "{shop}:order", "a{b}c", "a{b}c}d{", "ü", &"x".repeat(512)]
        {
            assert_eq!(LockName::new(name).unwrap().as_str(), name);
        }
    }

    #[test]
    fn refuses_each_bad_name_with_its_reason() {
        for (name, reason) in [
            ("", "empty"),
            (&*"x".repeat(513), "512 bytes"),
            ("a\0b", "NUL"),
            ("a{b", "slots"),
            ("a}b", "slots"),
            ("{}", "slots"),
            ("a{}b", "slots"),
            ("}{", "slots"),
            ("{", "slots"),
        ] {
            let error = LockName::new(name).unwrap_err().to_string();
            assert!(error.contains(reason), "{name:?}: {error}");
            assert!(error.len() < 400, "the message stays short however long the name is");
        }
    }
}
