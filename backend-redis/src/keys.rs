//! [`LockKeys`]: the keys and channels of a name, by Redisson's rules.

use std::{fmt, sync::Arc};

use lockcore::{BackendError, BackendErrorKind, LockName};
use redis::{RedisWrite, ToRedisArgs};

/// Prefixes of the keys that belong to a lock. No lock can have a name that begins with one of
/// them, because its key would be taken for such a key.
const RESERVED: [&str; 5] = [
    "lockcore_",
    "redisson_lock_token:",
    "redisson_lock_queue:",
    "redisson_lock_timeout:",
    "redisson_unlock_latch:",
];

/// Part of the lease keys of a read-write lock. These begin with the name of the lock, so names
/// that contain it are reserved as well.
const LEASE: &str = ":rwlock_timeout:";

/// Derives the keys and channels of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LockKeys {
    lock: Arc<str>,
}

impl LockKeys {
    pub(crate) fn new(prefix: &str, name: &LockName) -> Result<Self, BackendError> {
        let lock: Arc<str> = match prefix {
            "" => name.clone().into(),
            _ => format!("{prefix}{name}", name = name.as_str()).into(),
        };
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

    /// The lock itself, of any kind.
    pub(crate) fn lock(&self) -> String {
        self.lock.as_ref().into()
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.lock
    }

    /// The same, without a copy of the text.
    pub(crate) fn shared(&self) -> &Arc<str> {
        &self.lock
    }

    /// The part of the name that derived keys contain in braces. It is the same for `x` and `{x}`:
    /// by Redisson's rules they share those keys.
    pub(crate) fn tag(&self) -> &str {
        let inner = without_braces(&self.lock);
        inner.filter(|inner| !inner.contains('{')).unwrap_or(&self.lock)
    }

    /// The last fencing token.
    pub(crate) fn token(&self) -> DerivedKey<'_> {
        derived("redisson_lock_token", &self.lock)
    }

    /// The names of the locks with this last fencing token, unless `key` is another key.
    pub(crate) fn locks_with_token(key: &str) -> Option<[&str; 2]> {
        let lock = key.strip_prefix("redisson_lock_token:")?;
        Some([lock, without_braces(lock).unwrap_or(lock)])
    }

    /// The id of the hold, for named owners.
    pub(crate) fn hold(&self) -> String {
        self.own("lockcore_hold")
    }

    /// The queue of a fair lock, and the times at which its places expire.
    pub(crate) fn queue(&self) -> [String; 2] {
        ["redisson_lock_queue", "redisson_lock_timeout"]
            .map(|prefix| derived(prefix, &self.lock).to_string())
    }

    /// The lock that the queue belongs to. `x` and `{x}` share this key like the queue.
    pub(crate) fn queue_lock(&self) -> String {
        derived("lockcore_queue_lock", &self.lock).to_string()
    }

    /// The requests that may be granted with the release before.
    pub(crate) fn direct_grants(&self) -> String {
        derived("lockcore_direct_grant", &self.lock).to_string()
    }

    /// The channel of exclusive and fair locks.
    pub(crate) fn channel(&self) -> DerivedKey<'_> {
        derived("redisson_lock__channel", &self.lock)
    }

    /// The channel of requests for an exclusive lock that were refused: see `acquire.lua`.
    pub(crate) fn demand_channel(&self) -> String {
        format!("{}:wanted", self.channel())
    }

    /// The channel of one owner that waits for a fair lock.
    pub(crate) fn owner_channel(&self, owner: &str) -> String {
        format!("{}:{owner}", self.channel())
    }

    /// The prefix of a field of a read-write lock in its lease key.
    pub(crate) fn lease_prefix(&self) -> String {
        self.suffixed("")
    }

    /// The lease of a hold of a read-write lock: its token and id.
    pub(crate) fn lease(&self, field: &str) -> String {
        format!("{}{field}{LEASE}1", self.lease_prefix())
    }

    /// The rest of the lease keys behind the field. The number of the hold follows.
    pub(crate) fn lease_part() -> &'static str {
        LEASE
    }

    /// The waiting writers that block new readers.
    pub(crate) fn writers(&self) -> String {
        self.own("lockcore_writer")
    }

    /// The channel of read-write locks.
    pub(crate) fn read_write_channel(&self) -> String {
        derived("redisson_rwlock", &self.lock).to_string()
    }

    /// The times at which leased permits of a semaphore end.
    pub(crate) fn permit_leases(&self) -> String {
        self.suffixed("timeout")
    }

    /// The times at which plain permits end that were taken through this backend. Redisson's own
    /// plain permits have no lease.
    pub(crate) fn plain_permit_leases(&self) -> String {
        self.own("lockcore_permits_timeout")
    }

    /// The holds of a semaphore.
    pub(crate) fn permit_holds(&self) -> String {
        self.own("lockcore_permits")
    }

    /// The channel of semaphores.
    pub(crate) fn permits_channel(&self) -> String {
        derived("redisson_sc", &self.lock).to_string()
    }

    /// The state of a latch beside its count: the remembered requests.
    pub(crate) fn latch_state(&self) -> String {
        self.own("lockcore_latch")
    }

    /// The channel of latches. Redisson adds braces to any name here.
    pub(crate) fn latch_channel(&self) -> String {
        format!("redisson_countdownlatch__channel__{{{}}}", self.lock)
    }

    /// The queue of a condition of the lock, and the times at which its places expire.
    pub(crate) fn condition(&self, name: &LockName) -> [String; 2] {
        ["lockcore_condition", "lockcore_condition_timeout"].map(|prefix| match self.is_tagged() {
            false => format!("{prefix}:{{{}}}:{}", self.lock, name.as_str()),
            // The length tells where the name of the lock ends.
            true => format!("{prefix}_tagged:{}:{}:{}", self.lock.len(), self.lock, name.as_str()),
        })
    }

    /// The channel of conditions of the lock, without the waiter.
    pub(crate) fn condition_channel(&self) -> String {
        derived("lockcore_condition__channel", &self.lock).to_string()
    }

    pub(crate) fn is_tagged(&self) -> bool {
        self.lock.contains('{')
    }

    /// A key that Redisson does not have. Different names have different keys, unlike by Redisson's
    /// rule, by which `x` and `{x}` share their keys.
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

/// `prefix:{name}`, or `prefix:name` if the name has a hash tag of its own. Either way, the key is
/// in the slot of the name.
fn derived<'a>(prefix: &'static str, name: &'a str) -> DerivedKey<'a> {
    let braces = if name.contains('{') { ["", ""] } else { ["{", "}"] };
    DerivedKey { prefix, braces, name }
}

/// A key or channel derived from the name of a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DerivedKey<'a> {
    prefix: &'static str,
    braces: [&'static str; 2],
    name: &'a str,
}

impl fmt::Display for DerivedKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [open, close] = self.braces;
        [self.prefix, ":", open, self.name, close]
            .into_iter()
            .try_for_each(|part| f.write_str(part))
    }
}

/// Writes the parts into the command, without a string in between.
impl ToRedisArgs for DerivedKey<'_> {
    fn write_redis_args<W: RedisWrite + ?Sized>(&self, out: &mut W) {
        out.write_arg_fmt(self);
    }
}

/// The name without its braces, if it begins and ends with them.
fn without_braces(name: &str) -> Option<&str> {
    name.strip_prefix('{')?.strip_suffix('}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(prefix: &str, name: &str) -> Result<LockKeys, BackendError> {
        LockKeys::new(prefix, &LockName::new(name).unwrap())
    }

    #[test]
    fn keys_are_those_of_redisson() {
        let plain = keys("", "order:42").unwrap();
        assert_eq!(plain.lock(), "order:42");
        assert_eq!(plain.channel().to_string(), "redisson_lock__channel:{order:42}");
        assert_eq!(plain.token().to_string(), "redisson_lock_token:{order:42}");

        let tagged = keys("app:", "{shop}:order").unwrap();
        assert_eq!(tagged.lock(), "app:{shop}:order");
        assert_eq!(tagged.channel().to_string(), "redisson_lock__channel:app:{shop}:order");
    }

    #[test]
    fn names_with_the_same_token_have_the_same_tag_and_others_have_not() {
        let names = ["x", "{x}", "y", "{x}y", "y{x}", "{x}:y", "{x}{y}"];
        let all: Vec<_> = names.iter().map(|name| keys("", name).unwrap()).collect();
        for one in &all {
            for other in &all {
                let have_same_token = one.token().to_string() == other.token().to_string();
                assert_eq!(one.tag() == other.tag(), have_same_token, "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn a_name_that_looks_like_a_key_of_another_lock_is_reserved() {
        let error = keys("", "redisson_lock_token:{a}").unwrap_err();
        assert!(error.to_string().contains("reserved"), "{error}");
        assert!(!error.is_outcome_unknown() && !error.is_retryable());
    }
}
