//! The keys of a name, with their leases: see
//! [`Directory::storage`](lockcore::backend::Directory::storage).

use etcd_client::{GetOptions, KeyValue, Txn, TxnOp};
use futures_util::future::try_join_all;
use lockcore::{
    BackendError,
    backend::{StoredEntry, StoredKind},
};

use crate::{
    acquire::{left, token},
    error,
    keys::{Keys, Kind},
    members::Members,
    renew::READ_TOGETHER,
    requests::{TimeToLive, Transact},
    seen::gets,
};

pub(crate) const DOING: &str = "looking at what is stored";

/// The keys of the name whose leases exist.
pub(crate) async fn of(members: &Members, keys: &Keys) -> Result<Vec<StoredEntry>, BackendError> {
    let all = GetOptions::new().with_prefix().with_keys_only();
    let read = Transact(Txn::new().and_then([TxnOp::get(keys.base(), Some(all))]));
    let answer = members.call(DOING, &read).await?.ok_or_else(|| error::unexpected(DOING))?;
    let [found] = gets(&answer, DOING)?;
    let holds = [Kind::Lock, Kind::ReadWrite].map(|kind| keys.holds(kind));
    let look_at = async |pair: &KeyValue| {
        let key = String::from_utf8_lossy(pair.key()).into_owned();
        let lease = match pair.lease() {
            0 => None,
            lease => match members.call(DOING, &TimeToLive(lease)).await? {
                Some(lease) => Some(left(lease.left)),
                // It has ended, but the servers have not agreed yet to delete its key.
                None => return Ok(None),
            },
        };
        let is_hold = holds.iter().any(|holds| key.starts_with(holds));
        let kind = if is_hold { StoredKind::Hold } else { StoredKind::Queue };
        let number = is_hold.then(|| token(pair.create_revision()).into());
        Ok::<_, BackendError>(Some(
            StoredEntry::new(key, kind).with_number(number).with_left(lease),
        ))
    };
    let mut entries = Vec::new();
    // A queue may be long.
    for pairs in found.kvs().chunks(READ_TOGETHER) {
        entries.extend(try_join_all(pairs.iter().map(look_at)).await?.into_iter().flatten());
    }
    Ok(entries)
}
