//! [`Seen`]: the state of a name, as one transaction has read it.

use etcd_client::{
    Compare, CompareOp, GetOptions, GetResponse, KeyValue, SortOrder, SortTarget, TxnOp,
    TxnOpResponse, TxnResponse,
};
use lockcore::{BackendError, Mode};

use crate::{
    error,
    keys::{Keys, Kind},
    record::Record,
};

/// A hold or a place.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) id: String,
    pub(crate) record: Record,
    pub(crate) lease: i64,
    /// The revision that created the key, from which its token is derived.
    pub(crate) created: i64,
    /// The revision that changed it last.
    pub(crate) changed: i64,
}

impl Entry {
    /// Reads the entry of a key that begins with `prefix`.
    pub(crate) fn read(pair: &KeyValue, prefix: &str) -> Result<Self, BackendError> {
        let key = String::from_utf8_lossy(pair.key()).into_owned();
        let id = key.strip_prefix(prefix).map(str::to_owned);
        let (Some(id), Some(record)) = (id, Record::decode(pair.value())) else {
            return Err(error::not_a_record(&key));
        };
        // Readers and writers have prefixes of their own below that of their kind.
        let id = match record.mode {
            Mode::Read => id.strip_prefix("read/").unwrap_or(&id).to_owned(),
            Mode::Write => id.strip_prefix("write/").unwrap_or(&id).to_owned(),
            _ => id,
        };
        Ok(Self {
            key,
            id,
            record,
            lease: pair.lease(),
            created: pair.create_revision(),
            changed: pair.mod_revision(),
        })
    }

    /// The condition that nobody has changed or replaced it since.
    pub(crate) fn unchanged(&self) -> Compare {
        Compare::mod_revision(self.key.as_str(), CompareOp::Equal, self.changed)
    }

    /// The condition that it is still there.
    pub(crate) fn present(&self) -> Compare {
        Compare::create_revision(self.key.as_str(), CompareOp::Equal, self.created)
    }
}

/// The keys of a name that a request for a lock depends on.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The revision at which this is true.
    pub(crate) revision: i64,
    pub(crate) holds: Vec<Entry>,
    /// The first place in the queue of a fair lock, or all writers that keep new readers out.
    pub(crate) places: Vec<Entry>,
    /// The place of the hold itself.
    pub(crate) own_place: Option<Entry>,
    pub(crate) is_of_other_kind: bool,
}

impl Seen {
    /// The reads that [`from_answer`](Self::from_answer) expects.
    pub(crate) fn reads(keys: &Keys, kind: Kind, id: &str) -> Vec<TxnOp> {
        let places = GetOptions::new()
            .with_prefix()
            .with_sort(SortTarget::Create, SortOrder::Ascend)
            .with_limit(if kind == Kind::Lock { 1 } else { 0 });
        let other = GetOptions::new().with_prefix().with_keys_only().with_limit(1);
        vec![
            TxnOp::get(keys.holds(kind), Some(GetOptions::new().with_prefix())),
            TxnOp::get(keys.places(kind), Some(places)),
            TxnOp::get(keys.place(kind, id), None),
            TxnOp::get(keys.kind(kind.other()), Some(other)),
        ]
    }

    pub(crate) fn from_answer(
        answer: &TxnResponse,
        keys: &Keys,
        kind: Kind,
    ) -> Result<Self, BackendError> {
        const DOING: &str = "reading a lock";
        let [holds, places, own_place, other] = gets(answer, DOING)?;
        let header = answer.header().ok_or_else(|| error::unexpected(DOING))?;
        let read = |answer: &GetResponse, prefix: &str| {
            answer.kvs().iter().map(|pair| Entry::read(pair, prefix)).collect::<Result<Vec<_>, _>>()
        };
        Ok(Self {
            revision: header.revision(),
            holds: read(&holds, &keys.holds(kind))?,
            places: read(&places, &keys.places(kind))?,
            own_place: read(&own_place, &keys.places(kind))?.pop(),
            is_of_other_kind: !other.kvs().is_empty(),
        })
    }

    /// The condition that nothing below `prefix` was created or changed since.
    pub(crate) fn nothing_new(&self, prefix: String) -> Compare {
        nothing_newer(prefix, self.revision)
    }
}

/// The condition that nothing below `prefix` was created or changed after `revision`. Deletions do
/// not matter.
pub(crate) fn nothing_newer(prefix: String, revision: i64) -> Compare {
    Compare::mod_revision(prefix, CompareOp::Less, revision + 1).with_prefix()
}

/// The condition that nothing is below `prefix`.
pub(crate) fn nothing_below(prefix: String) -> Compare {
    Compare::create_revision(prefix, CompareOp::Less, 1).with_prefix()
}

/// The answers of a transaction that only reads.
pub(crate) fn gets<const N: usize>(
    answer: &TxnResponse,
    doing: &str,
) -> Result<[GetResponse; N], BackendError> {
    let get = |answer| match answer {
        TxnOpResponse::Get(answer) => Some(answer),
        _ => None,
    };
    let answers: Vec<_> = answer.op_responses().into_iter().filter_map(get).collect();
    answers.try_into().map_err(|_| error::unexpected(doing))
}
