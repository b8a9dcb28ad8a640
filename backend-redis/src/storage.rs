//! The keys that a server keeps for a name: see
//! [`Directory::storage`](lockcore::backend::Directory::storage).

use std::time::Duration;

use lockcore::{
    BackendError, LockName,
    backend::{StoredEntry, StoredKind},
};
use redis::Value;

use crate::{
    error,
    keys::LockKeys,
    reply::text,
    script::{self, ScriptCall},
};

/// The purpose of a key of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Use {
    /// The lock itself, of any kind. Its type and the other keys tell the kind.
    Lock,
    Part(StoredKind),
    /// A part whose number has no meaning, or the same as that of another part.
    Beside(StoredKind),
    /// The key that distinguishes a latch from a semaphore.
    LatchState,
}

/// The keys that a name may have, except those that depend on its holders.
pub(crate) struct Stored {
    keys: Vec<(String, Use)>,
    call_args: Vec<String>,
}

impl Stored {
    pub(crate) fn new(keys: &LockKeys, conditions: &[LockName]) -> Self {
        let [queue, expiries] = keys.queue();
        let mut all = vec![
            (keys.lock(), Use::Lock),
            (keys.token().to_string(), Use::Part(StoredKind::LastToken)),
            (keys.hold(), Use::Beside(StoredKind::Hold)),
            (queue, Use::Beside(StoredKind::Queue)),
            (expiries, Use::Part(StoredKind::Queue)),
            (keys.queue_lock(), Use::Beside(StoredKind::Queue)),
            (keys.direct_grants(), Use::Beside(StoredKind::Queue)),
            (keys.writers(), Use::Part(StoredKind::Queue)),
            (keys.permit_leases(), Use::Beside(StoredKind::Permits)),
            (keys.plain_permit_leases(), Use::Beside(StoredKind::Permits)),
            (keys.permit_holds(), Use::Beside(StoredKind::Permits)),
            (keys.latch_state(), Use::LatchState),
        ];
        for condition in conditions {
            let [queue, expiries] = keys.condition(condition);
            all.push((queue, Use::Beside(StoredKind::Condition(condition.clone()))));
            all.push((expiries, Use::Part(StoredKind::Condition(condition.clone()))));
        }
        let call_args = vec![keys.lease_prefix(), LockKeys::lease_part().to_owned()];
        Self { keys: all, call_args }
    }

    pub(crate) fn call(&self) -> ScriptCall {
        ScriptCall {
            script: &script::STORAGE,
            keys: self.keys.iter().map(|(key, _)| key.clone()).collect(),
            args: self.call_args.clone(),
            // The lock as well: any of the requested keys may be absent.
            optional: self.keys.len() - 1,
        }
    }

    /// The entries of the existing keys.
    pub(crate) fn entries(&self, reply: Value) -> Result<Vec<StoredEntry>, BackendError> {
        let unexpected = || error::unexpected("storage");
        let Value::Array(parts) = reply else { return Err(unexpected()) };
        let found: Vec<Found> =
            parts.iter().map(Found::read).collect::<Option<_>>().ok_or_else(unexpected)?;
        let is_latch = found.iter().any(|found| self.use_of(found) == Some(&Use::LatchState));
        Ok(found.iter().map(|found| self.entry(found, is_latch)).collect())
    }

    /// The purpose of the key. [`None`] for the lease of a hold.
    fn use_of(&self, found: &Found) -> Option<&Use> {
        self.keys.get(found.at.checked_sub(1)?).map(|(_, of)| of)
    }

    fn entry(&self, found: &Found, is_latch: bool) -> StoredEntry {
        let (kind, number) = match self.use_of(found) {
            Some(Use::Lock) => match (found.is_text, is_latch) {
                (false, _) => (StoredKind::Hold, None),
                (true, true) => (StoredKind::Latch, found.number),
                (true, false) => (StoredKind::Permits, found.number),
            },
            Some(Use::Part(kind)) => (kind.clone(), found.number),
            Some(Use::Beside(kind)) => (kind.clone(), None),
            Some(Use::LatchState) => (StoredKind::Latch, None),
            None => (StoredKind::Hold, None),
        };
        StoredEntry::new(found.key.as_str(), kind).with_number(number).with_left(found.left)
    }
}

/// A key that exists.
struct Found {
    /// Its index among the keys, from 1. 0 for the lease of a hold.
    at: usize,
    key: String,
    is_text: bool,
    left: Option<Duration>,
    number: Option<u64>,
}

impl Found {
    fn read(part: &Value) -> Option<Self> {
        let Value::Array(parts) = part else { return None };
        let [Value::Int(at), key, kind, Value::Int(ms), number] = parts.as_slice() else {
            return None;
        };
        let Value::BulkString(key) = key else { return None };
        Some(Self {
            at: usize::try_from(*at).ok()?,
            key: String::from_utf8_lossy(key).into_owned(),
            is_text: text(kind)? == "string",
            left: u64::try_from(*ms).ok().map(Duration::from_millis),
            number: text(number)?.parse().ok(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn found(at: i64, key: &str, kind: &str, ms: i64, number: &str) -> Value {
        Value::Array(vec![Value::Int(at), bulk(key), bulk(kind), Value::Int(ms), bulk(number)])
    }

    fn stored() -> Stored {
        Stored::new(&LockKeys::new("", &LockName::new("a").unwrap()).unwrap(), &[])
    }

    #[test]
    fn a_text_is_a_latch_if_the_state_of_one_is_beside_it() {
        let counter = || found(1, "a", "string", -1, "3");
        let state = found(12, "lockcore_latch:{a}", "zset", 500, "1");
        let kinds = |reply| {
            let entries = stored().entries(Value::Array(reply)).unwrap();
            entries.into_iter().map(|entry| (entry.kind, entry.number)).collect::<Vec<_>>()
        };
        assert_eq!(kinds(vec![counter()]), [(StoredKind::Permits, Some(3))]);
        let latch = [(StoredKind::Latch, Some(3)), (StoredKind::Latch, None)];
        assert_eq!(kinds(vec![counter(), state]), latch);
    }

    #[test]
    fn the_lease_of_a_reader_is_one_of_a_hold() {
        let reply = vec![found(0, "{a}:x:1:rwlock_timeout:1", "string", 1500, "1")];
        let expected = StoredEntry::new("{a}:x:1:rwlock_timeout:1", StoredKind::Hold)
            .with_left(Some(Duration::from_millis(1500)));
        assert_eq!(stored().entries(Value::Array(reply)).unwrap(), [expected]);
        for odd in [Value::Nil, Value::Array(vec![Value::Int(1)])] {
            assert!(stored().entries(odd).is_err());
        }
    }
}
