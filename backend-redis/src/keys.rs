//! The keys and the channels of a name, by Redisson's rules.

use std::fmt;

use lockcore::{BackendError, BackendErrorKind, LockName};
use redis::{RedisWrite, ToRedisArgs};

/// Prefixes of the keys that belong to a lock. A lock that was called like one would be mistaken for it.
const RESERVED: [&str; 5] = [
    "lockcore_",
    "redisson_lock_token:",
    "redisson_lock_queue:",
    "redisson_lock_timeout:",
    "redisson_unlock_latch:",
];

/// In the keys of leases of a read-write lock, which begin with its name.
const LEASE: &str = ":rwlock_timeout:";

/// The names under which one lock is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    lock: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str, name: &LockName) -> Result<Self, BackendError> {
        let lock = format!("{prefix}{name}", name = name.as_str());
        let reserved = RESERVED.iter().find(|reserved| lock.starts_with(*reserved));
        let reserved = match reserved {
            Some(reserved) => Some(format!("begin with `{reserved}`")),
            None => lock.contains(LEASE).then(|| format!("contain `{LEASE}`")),
        };
        match reserved {
            Some(reserved) => {
                let message =
                    format!("names that {reserved} are reserved for the keys of other locks");
                Err(BackendError::new(BackendErrorKind::WrongType, message).not_applied())
            }
            None => Ok(Self { lock }),
        }
    }

    /// The lock itself, of whatever kind.
    pub(crate) fn lock(&self) -> String {
        self.lock.clone()
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.lock
    }

    /// The last fencing token.
    pub(crate) fn token(&self) -> Derived<'_> {
        derived("redisson_lock_token", &self.lock)
    }

    /// The id of the hold, for named owners.
    pub(crate) fn hold(&self) -> String {
        self.own("lockcore_hold")
    }

    /// Who waits for a fair lock, and when their places lapse.
    pub(crate) fn queue(&self) -> [String; 2] {
        ["redisson_lock_queue", "redisson_lock_timeout"]
            .map(|prefix| derived(prefix, &self.lock).to_string())
    }

    /// Where waiters listen.
    pub(crate) fn channel(&self) -> Derived<'_> {
        derived("redisson_lock__channel", &self.lock)
    }

    /// Where one owner that waits for a fair lock listens.
    pub(crate) fn channel_of(&self, owner: &str) -> String {
        format!("{}:{owner}", self.channel())
    }

    /// What stands before a field of a read-write lock in the names of its leases.
    pub(crate) fn leases(&self) -> String {
        self.suffixed("")
    }

    /// The lease of a hold of a read-write lock.
    pub(crate) fn lease(&self, field: &str) -> String {
        format!("{}{field}{LEASE}1", self.leases())
    }

    /// The writers that keep new readers out.
    pub(crate) fn writers(&self) -> String {
        self.own("lockcore_writer")
    }

    /// Where those listen who wait for a read-write lock.
    pub(crate) fn read_write_channel(&self) -> String {
        derived("redisson_rwlock", &self.lock).to_string()
    }

    /// When each leased permit of a semaphore ends.
    pub(crate) fn permit_leases(&self) -> String {
        self.suffixed("timeout")
    }

    /// When the plain permits end that were taken with a lease. For Redisson they have none.
    pub(crate) fn plain_permit_leases(&self) -> String {
        self.own("lockcore_permits_timeout")
    }

    /// Whose the permits are.
    pub(crate) fn permits(&self) -> String {
        self.own("lockcore_permits")
    }

    /// Where those listen who wait for permits.
    pub(crate) fn permits_channel(&self) -> String {
        derived("redisson_sc", &self.lock).to_string()
    }

    /// What is known of the latch, and of the requests for it.
    pub(crate) fn latch(&self) -> String {
        self.own("lockcore_latch")
    }

    /// Where those listen who wait for the latch. Redisson adds braces to any name.
    pub(crate) fn latch_channel(&self) -> String {
        format!("redisson_countdownlatch__channel__{{{}}}", self.lock)
    }

    /// Who waits for a condition of the lock, and when their places lapse.
    pub(crate) fn condition(&self, name: &LockName) -> [String; 2] {
        ["lockcore_condition", "lockcore_condition_timeout"].map(|prefix| match self.is_tagged() {
            false => format!("{prefix}:{{{}}}:{}", self.lock, name.as_str()),
            // Its length says where the name of the lock ends.
            true => format!("{prefix}_tagged:{}:{}:{}", self.lock.len(), self.lock, name.as_str()),
        })
    }

    /// Where those listen who wait for conditions of the lock, without the waiter.
    pub(crate) fn condition_channel(&self) -> String {
        derived("lockcore_condition__channel", &self.lock).to_string()
    }

    fn is_tagged(&self) -> bool {
        self.lock.contains('{')
    }

    /// A key that Redisson does not have. Unlike its keys it is never that of another name: by Redisson's rule `x` and `{x}`
    /// have the same.
    fn own(&self, prefix: &'static str) -> String {
        match self.is_tagged() {
            true => format!("{prefix}_tagged:{}", self.lock),
            false => derived(prefix, &self.lock).to_string(),
        }
    }

    /// `{name}:suffix`, or `name:suffix` if the name has a hash tag of its own.
    fn suffixed(&self, suffix: &str) -> String {
        if self.is_tagged() {
            format!("{}:{suffix}", self.lock)
        } else {
            format!("{{{}}}:{suffix}", self.lock)
        }
    }
}

/// `prefix:{name}`, or `prefix:name` if the name has a hash tag of its own: either way the slot is that of the name.
fn derived<'a>(prefix: &'static str, name: &'a str) -> Derived<'a> {
    let braces = if name.contains('{') { ["", ""] } else { ["{", "}"] };
    Derived { prefix, braces, name }
}

/// What is derived from the name of a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Derived<'a> {
    prefix: &'static str,
    braces: [&'static str; 2],
    name: &'a str,
}

impl fmt::Display for Derived<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [open, close] = self.braces;
        [self.prefix, ":", open, self.name, close]
            .into_iter()
            .try_for_each(|part| f.write_str(part))
    }
}

/// Written into the command itself.
impl ToRedisArgs for Derived<'_> {
    fn write_redis_args<W: RedisWrite + ?Sized>(&self, out: &mut W) {
        out.write_arg_fmt(self);
    }
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
        assert_eq!(plain.channel().to_string(), "redisson_lock__channel:{order:42}");
        assert_eq!(plain.token().to_string(), "redisson_lock_token:{order:42}");

        let tagged = keys("app:", "{shop}:order").unwrap();
        assert_eq!(tagged.lock(), "app:{shop}:order");
        assert_eq!(tagged.channel().to_string(), "redisson_lock__channel:app:{shop}:order");
    }

    #[test]
    fn a_lock_cannot_be_called_like_a_key_of_another() {
        let error = keys("", "redisson_lock_token:{a}").unwrap_err();
        assert!(error.to_string().contains("reserved"), "{error}");
        assert!(!error.is_outcome_unknown() && !error.is_retryable());
    }
}
