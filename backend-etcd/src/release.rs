//! Ends of holds and places.

use etcd_client::{
    Compare, CompareOp, DeleteOptions, GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use futures_util::future::try_join;
use lockcore::{
    BackendError, Mode,
    backend::{ReleaseOutcome, ReleaseRequest},
};

use crate::{
    error,
    keep::{put_again, tidy, withdraw},
    keys::{Keys, Kind, Purpose},
    members::Members,
    record::Record,
    renew::Pauses,
    requests::{Revoke, Transact},
    seen::{Entry, gets, nothing_newer},
};

/// The hold of a name, if it exists.
async fn find(
    members: &Members,
    keys: &Keys,
    kind: Kind,
    request: &ReleaseRequest,
) -> Result<Option<Entry>, BackendError> {
    const DOING: &str = "releasing";
    let read = TxnOp::get(keys.hold(request.mode, request.hold.id()), None);
    let answer = members.call(DOING, &Transact(Txn::new().and_then([read]))).await?;
    let [held] = gets(&answer.ok_or_else(|| error::unexpected(DOING))?, DOING)?;
    held.kvs().first().map(|pair| Entry::read(pair, &keys.holds(kind))).transpose()
}

/// Gives a hold back, or lowers its count.
///
/// The id of the hold is unique, so nobody else can have its keys. They are deleted first. Then the
/// leases that a request on its way would use are revoked, whose ids follow from the hold.
///
/// The lease of a hold that has grown has another id, which only its key tells. So that a repetition
/// finds it, that key is not deleted: its lease is revoked, and the key ends with it. The hold may
/// grow between any two requests, so this goes on until the key is gone.
pub(crate) async fn release(
    members: &Members,
    keys: &Keys,
    kind: Kind,
    request: &ReleaseRequest,
) -> Result<ReleaseOutcome, BackendError> {
    const DOING: &str = "releasing";
    if request.remaining > 0 {
        return lower(members, keys, kind, request).await;
    }
    let ReleaseRequest { hold, mode, .. } = request;
    let hold_key = keys.hold(*mode, hold.id());
    let place_key = keys.place(kind, hold.id());
    let lease = keys.lease(Purpose::Hold, *mode, hold.id());
    let (mut expected, mut place) = (lease, None);
    let (mut has_revoked, mut was_repeated, mut is_begun) = (false, false, false);
    // The caller limits how long this goes on.
    let held = loop {
        let ending = end_of(&hold_key, expected, &place_key);
        let reply = members.call_noting(DOING, &ending).await;
        // An earlier round may have had an effect.
        let reply = reply.map_err(|error| if is_begun { error.maybe_applied() } else { error })?;
        is_begun = true;
        was_repeated |= reply.is_repeated;
        let answer = reply.answer.ok_or_else(|| error::unexpected(DOING))?;
        let [of_hold, of_place] = leases_of(&answer, DOING)?;
        place = place.or(of_place);
        match of_hold {
            held if answer.succeeded() => break held,
            None => break None,
            // Somebody else has written it, for ever.
            Some(other) if other == 0 || other == lease => expected = other,
            Some(grown) => {
                let revoked = members.call_noting(DOING, &Revoke(grown)).await;
                let revoked = revoked.map_err(BackendError::maybe_applied)?;
                has_revoked |= revoked.answer;
                was_repeated |= revoked.is_repeated;
            }
        }
    };
    let of_hold = fence(members, lease, held, &hold_key);
    let of_place = async {
        if place.is_none() && !matches!(mode, Mode::Fair | Mode::Write) {
            return Ok(());
        }
        fence(members, keys.lease(Purpose::Wait, *mode, hold.id()), place, &place_key).await
    };
    try_join(of_hold, of_place).await.map_err(BackendError::maybe_applied)?;
    match held {
        Some(_) => Ok(ReleaseOutcome::Released),
        None if has_revoked => Ok(ReleaseOutcome::Released),
        // The first of two copies may have ended it.
        None if was_repeated && place.is_none() => Err(error::unsure(members, DOING)),
        None => Ok(ReleaseOutcome::NotHeld),
    }
}

/// Deletes the place, and the hold if it has this lease. Otherwise, this reads the hold.
fn end_of(hold: &str, lease: i64, place: &str) -> Transact {
    let has_lease = Compare::lease(hold, CompareOp::Equal, lease);
    let read = TxnOp::get(hold, Some(GetOptions::new().with_keys_only()));
    let txn = Txn::new().when([has_lease]);
    Transact(txn.and_then([delete(hold), delete(place)]).or_else([read, delete(place)]))
}

/// The lease of each key that a transaction has deleted or read. `None` for a key that was not
/// there.
fn leases_of<const N: usize>(
    answer: &TxnResponse,
    doing: &str,
) -> Result<[Option<i64>; N], BackendError> {
    let lease = |answer| match answer {
        TxnOpResponse::Delete(answer) => Some(answer.prev_kvs().first().map(KeyValue::lease)),
        TxnOpResponse::Get(answer) => Some(answer.kvs().first().map(KeyValue::lease)),
        _ => None,
    };
    let answers: Vec<_> = answer.op_responses().into_iter().filter_map(lease).collect();
    answers.try_into().map_err(|_| error::unexpected(doing))
}

/// Removes the place of a hold that does not exist.
async fn leave(
    members: &Members,
    keys: &Keys,
    kind: Kind,
    request: &ReleaseRequest,
) -> Result<(), BackendError> {
    const DOING: &str = "leaving a queue";
    let ReleaseRequest { hold, mode, .. } = request;
    if !matches!(mode, Mode::Fair | Mode::Write) {
        return Ok(());
    }
    let key = keys.place(kind, hold.id());
    let answer = members.call(DOING, &Transact(Txn::new().and_then([delete(&key)]))).await?;
    let [place] = leases_of(&answer.ok_or_else(|| error::unexpected(DOING))?, DOING)?;
    let lease = keys.lease(Purpose::Wait, *mode, hold.id());
    fence(members, lease, place, &key).await.map_err(BackendError::maybe_applied)
}

fn delete(key: &str) -> TxnOp {
    TxnOp::delete(key, Some(DeleteOptions::new().with_prev_key()))
}

/// Ends `lease`, which an acquisition that is on its way would use, and the one that the deleted
/// `key` had, if there was one.
async fn fence(
    members: &Members,
    lease: i64,
    used: Option<i64>,
    key: &str,
) -> Result<(), BackendError> {
    const DOING: &str = "revoking a lease";
    if used == Some(lease) {
        return members.call(DOING, &Revoke(lease)).await.map(|_| ());
    }
    withdraw(members, lease, key).await?;
    tidy(members, used.filter(|used| *used != 0)).await;
    Ok(())
}

/// The leases of the keys that each deletion of a transaction has deleted.
fn deleted<const N: usize>(
    answer: &TxnResponse,
    doing: &str,
) -> Result<[Vec<i64>; N], BackendError> {
    let leases = |answer| match answer {
        TxnOpResponse::Delete(answer) => {
            Some(answer.prev_kvs().iter().map(KeyValue::lease).collect())
        }
        _ => None,
    };
    let answers: Vec<_> = answer.op_responses().into_iter().filter_map(leases).collect();
    answers.try_into().map_err(|_| error::unexpected(doing))
}

/// Sets the count, and leaves the lease as it is. Without the hold, there may be a place, which is
/// given up.
///
/// The count is written even if it is right already: a nested acquisition that was given up may
/// still be on its way, and fails if the hold has changed.
async fn lower(
    members: &Members,
    keys: &Keys,
    kind: Kind,
    request: &ReleaseRequest,
) -> Result<ReleaseOutcome, BackendError> {
    // If another request for the same hold comes first, the hold is read again. The caller limits
    // how long this goes on.
    let mut pauses = Pauses::new();
    while let Some(entry) = find(members, keys, kind, request).await? {
        let record = Record { count: request.remaining, ..entry.record.clone() };
        if put_again(members, &entry, &record, entry.lease).await?.answer {
            return Ok(ReleaseOutcome::StillHeld);
        }
        pauses.pause().await;
    }
    leave(members, keys, kind, request).await?;
    Ok(ReleaseOutcome::NotHeld)
}

/// Frees a name, whoever holds it. Places stay.
///
/// Only holds that were read before are deleted, so that a late copy of the request does not end a
/// later hold.
pub(crate) async fn force(members: &Members, keys: &Keys) -> Result<bool, BackendError> {
    const DOING: &str = "forcing a release";
    const KINDS: [Kind; 2] = [Kind::Lock, Kind::ReadWrite];
    let all = || Some(DeleteOptions::new().with_prefix().with_prev_key());
    let count = || Some(GetOptions::new().with_prefix().with_count_only());
    let mut is_repeated = false;
    let mut pauses = Pauses::new();
    loop {
        let reads = KINDS.map(|kind| TxnOp::get(keys.holds(kind), count()));
        let read = members.call(DOING, &Transact(Txn::new().and_then(reads))).await;
        // An earlier round may have had an effect.
        let read = read.map_err(|error| if is_repeated { error.maybe_applied() } else { error })?;
        let read = read.ok_or_else(|| error::unexpected(DOING))?;
        let found: [_; 2] = gets(&read, DOING)?;
        let deleted = if found.iter().all(|found| found.count() == 0) {
            Vec::new()
        } else {
            let header = read.header().ok_or_else(|| error::unexpected(DOING))?;
            let unchanged = KINDS.map(|kind| nothing_newer(keys.holds(kind), header.revision()));
            let deletes = KINDS.map(|kind| TxnOp::delete(keys.holds(kind), all()));
            let txn = Transact(Txn::new().when(unchanged).and_then(deletes));
            let reply = members.call_noting(DOING, &txn).await?;
            is_repeated |= reply.is_repeated;
            let answer = reply.answer.ok_or_else(|| error::unexpected(DOING))?;
            if !answer.succeeded() {
                // The caller limits how long this goes on.
                pauses.pause().await;
                continue;
            }
            deleted::<2>(&answer, DOING)?.concat()
        };
        if deleted.is_empty() && is_repeated {
            return Err(error::unsure(members, DOING));
        }
        // Renewals look for the key.
        let is_any = !deleted.is_empty();
        tidy(members, deleted).await;
        return Ok(is_any);
    }
}
