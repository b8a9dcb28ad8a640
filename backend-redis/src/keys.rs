//! The keys and the channel of a lock, by Redisson's rules.

use lockcore::{BackendError, BackendErrorKind, LockName};

/// Prefixes of the keys that belong to a lock. A lock that was called like one would be mistaken for it.
const RESERVED: [&str; 6] = [
    "redisson_lock_token:",
    "lockcore_hold:",
    "lockcore_hold_tagged:",
    "redisson_lock_queue:",
    "redisson_lock_timeout:",
    "redisson_unlock_latch:",
];

/// The names under which one lock is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    lock: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str, name: &LockName) -> Result<Self, BackendError> {
        let lock = format!("{prefix}{name}", name = name.as_str());
        if let Some(reserved) = RESERVED.iter().find(|reserved| lock.starts_with(*reserved)) {
            let message =
                format!("names that begin with `{reserved}` are reserved for the keys of other locks");
            return Err(BackendError::new(BackendErrorKind::WrongType, message).not_applied());
        }
        Ok(Self { lock })
    }

    /// The hash of owner to hold count.
    pub(crate) fn lock(&self) -> &str {
        &self.lock
    }

    /// The last fencing token.
    pub(crate) fn token(&self) -> String {
        derived("redisson_lock_token", &self.lock)
    }

    /// The id of the hold, for named owners. Unlike Redisson's keys it is never that of another name: by their rule `x` and `{x}`
    /// have the same.
    pub(crate) fn hold(&self) -> String {
        let tagged = self.lock.contains('{');
        derived(if tagged { "lockcore_hold_tagged" } else { "lockcore_hold" }, &self.lock)
    }

    /// All keys of the lock, in the order in which the scripts of fair locks number them: the last two are who waits, and
    /// when their places lapse.
    pub(crate) fn all(&self) -> [String; 5] {
        let [queue, timeouts] = ["redisson_lock_queue", "redisson_lock_timeout"];
        let lock = &self.lock;
        [lock.clone(), self.token(), self.hold(), derived(queue, lock), derived(timeouts, lock)]
    }

    /// Where waiters listen.
    pub(crate) fn channel(&self) -> String {
        derived("redisson_lock__channel", &self.lock)
    }

    /// Where one owner that waits for a fair lock listens.
    pub(crate) fn channel_of(&self, owner: &str) -> String {
        format!("{}:{owner}", self.channel())
    }
}

/// `prefix:{name}`, or `prefix:name` if the name has a hash tag of its own: either way the slot is that of the name.
fn derived(prefix: &str, name: &str) -> String {
    if name.contains('{') { format!("{prefix}:{name}") } else { format!("{prefix}:{{{name}}}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(prefix: &str, name: &str) -> Result<Keys, BackendError> {
        Keys::new(prefix, &LockName::new(name).unwrap())
    }

    #[test]
    fn are_those_of_redisson() {
        let plain = keys("", "order:42").unwrap();
        assert_eq!(plain.lock(), "order:42");
        assert_eq!(plain.channel(), "redisson_lock__channel:{order:42}");
        assert_eq!(plain.token(), "redisson_lock_token:{order:42}");

        let tagged = keys("app:", "{shop}:order").unwrap();
        assert_eq!(tagged.lock(), "app:{shop}:order");
        assert_eq!(tagged.channel(), "redisson_lock__channel:app:{shop}:order");
    }

    #[test]
    fn a_lock_cannot_be_called_like_a_key_of_another() {
        let error = keys("", "redisson_lock_token:{a}").unwrap_err();
        assert!(error.to_string().contains("reserved"), "{error}");
        assert!(!error.is_outcome_unknown() && !error.is_retryable());
    }
}
