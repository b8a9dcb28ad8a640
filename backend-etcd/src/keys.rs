//! The names of keys and leases. Nothing here does I/O.
//!
//! All keys of one lock are below `<prefix><name>/`. A name is escaped, so that it contains no
//! slash, and no range of one name has keys of another:
//!
//! | key | what it is |
//! |---|---|
//! | `lock/hold/<id>` | an exclusive or fair hold |
//! | `lock/wait/<id>` | a place in the queue of a fair lock |
//! | `rw/hold/read/<id>`, `rw/hold/write/<id>` | the hold of a reader, of a writer |
//! | `rw/wait/<id>` | a writer that keeps new readers out |
//!
//! The record of a client is at `<prefix>/client/<id>`, where no name is: a name is not empty.

use std::hash::{BuildHasher, RandomState};

use lockcore::{LockName, Mode};

/// The kinds of locks that a name can be used as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// Exclusive and fair locks.
    Lock,
    ReadWrite,
}

impl Kind {
    pub(crate) fn of(mode: Mode) -> Option<Self> {
        match mode {
            Mode::Exclusive | Mode::Fair => Some(Self::Lock),
            Mode::Read | Mode::Write => Some(Self::ReadWrite),
            _ => None,
        }
    }

    pub(crate) fn other(self) -> Self {
        match self {
            Self::Lock => Self::ReadWrite,
            Self::ReadWrite => Self::Lock,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Lock => "lock/",
            Self::ReadWrite => "rw/",
        }
    }
}

/// The purpose of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Hold,
    Wait,
}

/// The keys of one name.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// The prefix, the escaped name and a slash.
    base: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str, name: &LockName) -> Self {
        let mut base = String::with_capacity(prefix.len() + name.as_str().len() + 16);
        base.push_str(prefix);
        for character in name.as_str().chars() {
            match character {
                '/' => base.push_str("%2F"),
                '%' => base.push_str("%25"),
                other => base.push(other),
            }
        }
        base.push('/');
        Self { base }
    }

    /// The prefix of all keys of the name.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// The prefix of all keys of a kind.
    pub(crate) fn kind(&self, kind: Kind) -> String {
        format!("{}{}", self.base, kind.word())
    }

    /// The prefix of the keys of holds.
    pub(crate) fn holds(&self, kind: Kind) -> String {
        format!("{}{}hold/", self.base, kind.word())
    }

    /// The prefix of the keys of places.
    pub(crate) fn places(&self, kind: Kind) -> String {
        format!("{}{}wait/", self.base, kind.word())
    }

    /// The prefix of the keys of holds in a mode. Exclusive and fair holds are not distinguished.
    pub(crate) fn holds_in(&self, mode: Mode) -> String {
        match mode {
            Mode::Read => format!("{}rw/hold/read/", self.base),
            Mode::Write => format!("{}rw/hold/write/", self.base),
            _ => self.holds(Kind::Lock),
        }
    }

    pub(crate) fn hold(&self, mode: Mode, id: &str) -> String {
        let mut key = self.holds_in(mode);
        key.push_str(id);
        key
    }

    pub(crate) fn place(&self, kind: Kind, id: &str) -> String {
        let mut key = self.places(kind);
        key.push_str(id);
        key
    }

    /// The first lease of a hold or of a place.
    pub(crate) fn lease(&self, purpose: Purpose, mode: Mode, id: &str) -> i64 {
        first_lease(&match (purpose, Kind::of(mode)) {
            (Purpose::Wait, Some(kind)) => self.place(kind, id),
            _ => self.hold(mode, id),
        })
    }
}

/// The lease under which a key is written first: the same for every request, whichever client sends
/// it. It is the FNV-1a hash of the key, mixed and cut to 63 bits, as etcd requires.
pub(crate) fn first_lease(key: &str) -> i64 {
    const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME);
    let mut hash = key.as_bytes().iter().fold(FNV_OFFSET, step);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^= hash >> 33;
    lease_of(hash)
}

/// A lease that has not been used before. The keys of the standard hash maps are random.
pub(crate) fn new_lease() -> i64 {
    lease_of(RandomState::new().hash_one(0_u8))
}

fn lease_of(hash: u64) -> i64 {
    // 0 asks the server to choose.
    (hash & (u64::MAX >> 1)).max(1).cast_signed()
}

/// The prefix of the keys of records of clients.
pub(crate) fn record_prefix(prefix: &str) -> String {
    format!("{prefix}/client/")
}

/// The key of the record of a client.
pub(crate) fn record_key(prefix: &str, id: &str) -> String {
    record_prefix(prefix) + id
}

/// The name that a key belongs to, and the place where the next name begins.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Used {
    /// `None` if the key belongs to no name.
    pub(crate) name: Option<LockName>,
    /// All keys of the same name come before this one.
    pub(crate) after: String,
}

/// The name that a key below the prefix belongs to. `None` if it is not a key of this backend.
pub(crate) fn used_by(prefix: &str, key: &str) -> Option<Used> {
    let (escaped, part) = key.strip_prefix(prefix)?.split_once('/')?;
    // The character after the slash.
    let after = format!("{prefix}{escaped}0");
    if escaped.is_empty() {
        return Some(Used { name: None, after });
    }
    let is_ours = [Kind::Lock, Kind::ReadWrite].iter().any(|kind| part.starts_with(kind.word()));
    let name = LockName::new(escaped.replace("%2F", "/").replace("%25", "%")).ok();
    is_ours.then_some(Used { name, after })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(name: &str) -> Keys {
        Keys::new("lockcore/", &LockName::new(name).unwrap())
    }

    #[test]
    fn no_range_of_one_name_has_keys_of_another() {
        let names = ["a", "a/", "a/lock/hold/", "a%2F", "a%", "a/rw", "b"];
        for one in names {
            for other in names.iter().filter(|other| **other != one) {
                let range = keys(one).base;
                let key = keys(other).hold(Mode::Exclusive, "x");
                assert!(!key.starts_with(&range), "{key} is one of {range}");
            }
        }
    }

    #[test]
    fn the_name_of_a_key_is_found_again() {
        for name in ["a", "a/b", "a%2F", "%25/%", "%", "/", "ä 0"] {
            let key = keys(name).hold(Mode::Read, "x/y");
            let Used { name: found, after } = used_by("lockcore/", &key).unwrap();
            assert_eq!(found, Some(LockName::new(name).unwrap()));
            assert!(
                after > key && after.as_str() > keys(name).place(Kind::ReadWrite, "~").as_str()
            );
            assert!(!after.starts_with(keys(name).base()));
        }
        let record = used_by("lockcore/", &record_key("lockcore/", "id")).unwrap();
        assert_eq!(record, Used { name: None, after: "lockcore/0".to_owned() });
        for other in ["lockcore/a", "lockcore/a/b", "other/a/lock/hold/x"] {
            assert_eq!(used_by("lockcore/", other), None);
        }
    }

    #[test]
    fn the_id_of_a_lease_is_the_same_in_every_version() {
        let keys = keys("order:42");
        let id = "5f0b8f3e-0c7e-4b8e-9b63-8f4a3d1f2c11:1";
        assert_eq!(keys.hold(Mode::Exclusive, id), format!("lockcore/order:42/lock/hold/{id}"));
        let hold = keys.lease(Purpose::Hold, Mode::Exclusive, id);
        assert_eq!(hold, keys.lease(Purpose::Hold, Mode::Fair, id));
        assert_ne!(hold, keys.lease(Purpose::Wait, Mode::Fair, id));
        assert_ne!(hold, keys.lease(Purpose::Hold, Mode::Read, id));
        assert_eq!(hold, 1_510_790_246_867_370_413);
    }

    fn all_differ(mut leases: Vec<i64>) {
        let count = leases.len();
        leases.sort_unstable();
        assert!(leases.iter().all(|lease| *lease > 0));
        leases.dedup();
        assert_eq!(leases.len(), count);
    }

    #[test]
    fn leases_of_many_holds_differ() {
        let keys = keys("order:42");
        let lease =
            |number| keys.lease(Purpose::Hold, Mode::Exclusive, &format!("client:{number}"));
        all_differ((0..100_000).map(lease).collect());
    }

    #[test]
    fn new_leases_differ() {
        all_differ((0..100_000).map(|_| new_lease()).collect());
    }
}
