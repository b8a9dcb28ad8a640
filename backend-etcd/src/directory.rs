//! The directory of an [`EtcdBackend`](crate::EtcdBackend): the names in use, and the records of
//! clients.
//!
//! A page of names is a range of keys. The key of a hold whose lease has ended exists until the
//! servers have agreed to delete it, so a name is reported only if one of its leases exists.
//!
//! A record is a key under a lease of its own, which the next record replaces. Leases are whole
//! seconds and may be longer than requested, so the value begins with the lifetime.

use std::{collections::HashSet, time::Duration};

use etcd_client::{DeleteOptions, GetOptions, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse};
use futures_util::future::{join_all, try_join_all};
use lockcore::{
    BackendError, LockName,
    backend::{Cursor, Page, Start},
};

use crate::{
    error,
    keep::tidy,
    keys::{Keys, Used, record_key, record_prefix, used_by},
    members::Members,
    record::seconds,
    requests::{GrantLease, TimeToLive, Transact},
    seen::gets,
};

/// The keys in one page of names.
const KEYS_AT_ONCE: i64 = 100;

/// The records in one page. Each has up to 64 KiB, and an answer up to 4 MiB.
const RECORDS_AT_ONCE: i64 = 32;

/// The prefix of a cursor. The next key, or the last id, follows.
const FROM_KEY: &str = "from key ";
const AFTER_CLIENT: &str = "after client ";

/// A range of keys, from `from` to the last one that begins with `prefix`.
fn range(prefix: &str, from: &str, options: GetOptions) -> TxnOp {
    let mut end = prefix.as_bytes().to_vec();
    match end.last_mut() {
        // The text is UTF-8, in which no byte is 0xff.
        Some(last) => *last += 1,
        None => end.push(0),
    }
    let from = if from.is_empty() { "\0" } else { from };
    TxnOp::get(from, Some(options.with_range(end)))
}

/// Reads keys, and whether there are more of them.
async fn read(
    members: &Members,
    doing: &str,
    range: TxnOp,
) -> Result<(Vec<KeyValue>, bool), BackendError> {
    let answer = members.call(doing, &Transact(Txn::new().and_then([range]))).await?;
    let [found] = gets(&answer.ok_or_else(|| error::unexpected(doing))?, doing)?;
    Ok((found.kvs().to_vec(), found.more()))
}

/// A page of the names in use.
pub(crate) async fn names(
    members: &Members,
    prefix: &str,
    start: &Start,
) -> Result<Page<LockName>, BackendError> {
    const DOING: &str = "listing names";
    let from = match start {
        Start::Beginning => prefix,
        Start::At(cursor) => {
            let from = cursor.as_str().strip_prefix(FROM_KEY);
            from.filter(|from| from.starts_with(prefix)).ok_or_else(|| cursor.refused())?
        }
    };
    let options = GetOptions::new().with_keys_only().with_limit(KEYS_AT_ONCE);
    let (pairs, has_more) = read(members, DOING, range(prefix, from, options)).await?;
    let mut names: Vec<(LockName, Vec<Lease>)> = Vec::new();
    let mut next = None;
    for pair in &pairs {
        let key = String::from_utf8_lossy(pair.key());
        let Some(Used { name, after }) = used_by(prefix, &key) else { continue };
        next = Some(after);
        let (Some(name), lease) = (name, Lease::of(pair)) else { continue };
        match names.last_mut().filter(|(last, _)| *last == name) {
            Some((_, leases)) => leases.push(lease),
            None => names.push((name, vec![lease])),
        }
    }
    let looking = names.into_iter().map(async |(name, leases)| {
        let is_used = is_in_use(members, &Keys::new(prefix, &name), leases).await?;
        Ok::<_, BackendError>(is_used.then_some(name))
    });
    let names = try_join_all(looking).await?.into_iter().flatten().collect();
    // The next page begins after the names of this one, and in any case after its last key.
    let last = pairs.last().map(|pair| String::from_utf8_lossy(pair.key()).into_owned() + "\0");
    let next = has_more.then(|| next.max(last)).flatten();
    Ok(Page::new(names, next.map(|next| Cursor::new(format!("{FROM_KEY}{next}")))))
}

/// The lease of a key, and the revision that changed it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lease {
    id: i64,
    changed: i64,
}

impl Lease {
    fn of(pair: &KeyValue) -> Self {
        Self { id: pair.lease(), changed: pair.mod_revision() }
    }
}

/// Returns `true` if one of the leases of the name exists.
///
/// A member that was stopped believes for a while that it is the leader, and does not know the
/// leases that were granted since. So after all leases were found to be gone, the name is read
/// again, which needs a majority. If nothing has changed, and they are gone again, they have ended:
/// see `inspect`.
async fn is_in_use(
    members: &Members,
    keys: &Keys,
    mut leases: Vec<Lease>,
) -> Result<bool, BackendError> {
    const DOING: &str = "looking at a name";
    let mut doubted: HashSet<Lease> = HashSet::new();
    // The caller limits how long this goes on.
    loop {
        for lease in &leases {
            if lease.id == 0 || members.call(DOING, &TimeToLive(lease.id)).await?.is_some() {
                return Ok(true);
            }
        }
        if leases.iter().all(|lease| doubted.contains(lease)) {
            return Ok(false);
        }
        doubted.extend(leases);
        let all = GetOptions::new().with_keys_only();
        let (pairs, _) = read(members, DOING, range(keys.base(), keys.base(), all)).await?;
        leases = pairs.iter().map(Lease::of).collect();
    }
}

/// Writes a record under a lease of its own, and ends that of the record before.
pub(crate) async fn put_client(
    members: &Members,
    prefix: &str,
    id: &str,
    record: &str,
    lifetime: Duration,
) -> Result<(), BackendError> {
    const DOING: &str = "writing the record of a client";
    let seconds = seconds(lifetime);
    let granted = members.call(DOING, &GrantLease { lease: 0, seconds }).await?;
    let lease = granted.ok_or_else(|| error::unexpected(DOING))?.lease;
    let options = PutOptions::new().with_lease(lease).with_prev_key();
    let put = TxnOp::put(record_key(prefix, id), format!("{seconds} {record}"), Some(options));
    let answer = members.call(DOING, &Transact(Txn::new().and_then([put]))).await?;
    let answer = answer.ok_or_else(|| error::unexpected(DOING))?;
    let before = answer.op_responses().into_iter().find_map(|answer| match answer {
        TxnOpResponse::Put(mut answer) => answer.take_prev_key().map(|pair| pair.lease()),
        _ => None,
    });
    tidy(members, before.filter(|before| *before != lease && *before != 0)).await;
    Ok(())
}

/// Deletes a record, and ends its lease.
pub(crate) async fn remove_client(
    members: &Members,
    prefix: &str,
    id: &str,
) -> Result<(), BackendError> {
    const DOING: &str = "removing the record of a client";
    let options = DeleteOptions::new().with_prev_key();
    let delete = TxnOp::delete(record_key(prefix, id), Some(options));
    let answer = members.call(DOING, &Transact(Txn::new().and_then([delete]))).await?;
    let answer = answer.ok_or_else(|| error::unexpected(DOING))?;
    let leases = answer.op_responses().into_iter().flat_map(|answer| match answer {
        TxnOpResponse::Delete(answer) => answer.prev_kvs().iter().map(KeyValue::lease).collect(),
        _ => Vec::new(),
    });
    tidy(members, leases.filter(|lease| *lease != 0).collect::<Vec<_>>()).await;
    Ok(())
}

/// A page of the records.
pub(crate) async fn clients(
    members: &Members,
    prefix: &str,
    start: &Start,
) -> Result<Page<(String, String)>, BackendError> {
    const DOING: &str = "listing clients";
    let all = record_prefix(prefix);
    let from = match start {
        Start::Beginning => all.clone(),
        Start::At(cursor) => {
            let last =
                cursor.as_str().strip_prefix(AFTER_CLIENT).ok_or_else(|| cursor.refused())?;
            record_key(prefix, last) + "\0"
        }
    };
    let options = GetOptions::new().with_limit(RECORDS_AT_ONCE);
    let (pairs, has_more) = read(members, DOING, range(&all, &from, options)).await?;
    let id = |pair: &KeyValue| {
        let key = String::from_utf8_lossy(pair.key()).into_owned();
        key.strip_prefix(&all).map(str::to_owned)
    };
    let last = pairs.last().and_then(id).filter(|_| has_more);
    let reading = pairs.iter().map(async |pair| {
        let record = live_record(members, pair.clone()).await?;
        Ok::<_, BackendError>(id(pair).zip(record))
    });
    let mut entries = Vec::new();
    for entry in join_all(reading).await {
        entries.extend(entry?);
    }
    Ok(Page::new(entries, last.map(|last| Cursor::new(format!("{AFTER_CLIENT}{last}")))))
}

/// The record, unless its lifetime has passed. It is read again if its lease is gone, as for
/// [`is_in_use`].
async fn live_record(
    members: &Members,
    mut pair: KeyValue,
) -> Result<Option<String>, BackendError> {
    const DOING: &str = "looking at the record of a client";
    loop {
        if let Some(lease) = members.call(DOING, &TimeToLive(pair.lease())).await? {
            let passed = lease.seconds - lease.left;
            return Ok(decode(pair.value())
                .filter(|(seconds, _)| passed <= *seconds)
                .map(|(_, record)| record));
        }
        let again = TxnOp::get(pair.key(), None);
        let (mut pairs, _) = read(members, DOING, again).await?;
        match pairs.pop() {
            Some(other) if Lease::of(&other) != Lease::of(&pair) => pair = other,
            Some(same) => {
                let lease = members.call(DOING, &TimeToLive(same.lease())).await?;
                if lease.is_none() {
                    return Ok(None);
                }
            }
            None => return Ok(None),
        }
    }
}

/// The lifetime in seconds, and the record.
fn decode(value: &[u8]) -> Option<(i64, String)> {
    let (seconds, record) = std::str::from_utf8(value).ok()?.split_once(' ')?;
    Some((seconds.parse().ok()?, record.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_what_follows_its_lifetime() {
        assert_eq!(decode(b"30 {\"a\": 1}"), Some((30, "{\"a\": 1}".to_owned())));
        assert_eq!(decode(b"30 "), Some((30, String::new())));
        for value in [&b""[..], b"30", b"x y", &[0xff]] {
            assert_eq!(decode(value), None);
        }
    }
}
