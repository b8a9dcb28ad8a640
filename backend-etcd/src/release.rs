//! Ends of holds and places, and what an operator does to them.

use etcd_client::{DeleteOptions, GetOptions, Txn, TxnOp, TxnOpResponse};
use futures_util::future::{join_all, try_join};
use lockcore::{
    BackendError, Holder, LockName, LockState, Mode,
    backend::{ReleaseOutcome, ReleaseRequest},
};

use crate::{
    acquire::left,
    error,
    keep::{put_again, withdraw},
    keys::{Keys, Kind, Purpose},
    members::Members,
    record::Record,
    requests::{Revoke, TimeToLive, Transact},
    seen::{Entry, gets},
};

/// The hold of a name and the place that it has, if any.
async fn find(
    members: &Members,
    keys: &Keys,
    kind: Kind,
    request: &ReleaseRequest,
) -> Result<(Option<Entry>, Option<Entry>), BackendError> {
    const DOING: &str = "releasing";
    let ReleaseRequest { hold, mode, .. } = request;
    let reads = [
        TxnOp::get(keys.hold(*mode, hold.id()), None),
        TxnOp::get(keys.place(kind, hold.id()), None),
    ];
    let answer = members.call(DOING, &Transact(Txn::new().and_then(reads))).await?;
    let [held, place] = gets(&answer.ok_or_else(|| error::unexpected(DOING))?, DOING)?;
    let held = held.kvs().first().map(|pair| Entry::read(pair, &keys.holds(kind))).transpose()?;
    let place =
        place.kvs().first().map(|pair| Entry::read(pair, &keys.places(kind))).transpose()?;
    Ok((held, place))
}

/// Gives a hold back, or lowers its count.
///
/// The lease of a hold has no other key, so that revoking it deletes the hold and nothing else, and
/// tells at once whether it was there.
pub(crate) async fn release(
    members: &Members,
    keys: &Keys,
    kind: Kind,
    request: &ReleaseRequest,
) -> Result<ReleaseOutcome, BackendError> {
    const DOING: &str = "releasing";
    let (held, place) = find(members, keys, kind, request).await?;
    if request.remaining > 0 {
        return lower(members, keys, kind, request, held).await;
    }
    let ReleaseRequest { hold, mode, .. } = request;
    let lease = keys.lease(Purpose::Hold, *mode, hold.id());
    if let Some(held) = held {
        if let Some(place) = place {
            members.call(DOING, &Revoke(place.lease)).await?;
        }
        // It grew, and has another lease by now. A request from before then may be on its way.
        if held.lease != lease {
            withdraw(members, lease, &held.key).await?;
        }
        let revoked = members.call_noting(DOING, &Revoke(held.lease)).await?;
        // Sent twice, it is not there the second time.
        return Ok(match revoked.answer || revoked.is_repeated {
            true => ReleaseOutcome::Released,
            false => ReleaseOutcome::NotHeld,
        });
    }
    // An acquisition may be on its way.
    let hold_key = keys.hold(*mode, hold.id());
    let of_hold = withdraw(members, lease, &hold_key);
    let of_place = async {
        if let Some(place) = place {
            members.call(DOING, &Revoke(place.lease)).await?;
        }
        if matches!(mode, Mode::Fair | Mode::Write) {
            let lease = keys.lease(Purpose::Wait, *mode, hold.id());
            withdraw(members, lease, &keys.place(kind, hold.id())).await?;
        }
        Ok(())
    };
    try_join(of_hold, of_place).await?;
    Ok(ReleaseOutcome::NotHeld)
}

/// Sets the count, and leaves the lease as it is.
async fn lower(
    members: &Members,
    keys: &Keys,
    kind: Kind,
    request: &ReleaseRequest,
    mut held: Option<Entry>,
) -> Result<ReleaseOutcome, BackendError> {
    loop {
        let Some(entry) = held else { return Ok(ReleaseOutcome::NotHeld) };
        if entry.record.count == request.remaining {
            return Ok(ReleaseOutcome::StillHeld);
        }
        let record = Record { count: request.remaining, ..entry.record.clone() };
        if put_again(members, &entry, &record, entry.lease).await?.answer {
            return Ok(ReleaseOutcome::StillHeld);
        }
        // Another request for the same hold came first. The caller limits how long this goes on.
        held = find(members, keys, kind, request).await?.0;
    }
}

/// Frees a name, whoever holds it. Places stay.
pub(crate) async fn force(members: &Members, keys: &Keys) -> Result<bool, BackendError> {
    const DOING: &str = "forcing a release";
    let all = || Some(DeleteOptions::new().with_prefix().with_prev_key());
    let deletes = [Kind::Lock, Kind::ReadWrite].map(|kind| TxnOp::delete(keys.holds(kind), all()));
    let answer = members.call(DOING, &Transact(Txn::new().and_then(deletes))).await?;
    let answer = answer.ok_or_else(|| error::unexpected(DOING))?;
    let deleted: Vec<i64> = answer
        .op_responses()
        .iter()
        .flat_map(|answer| match answer {
            TxnOpResponse::Delete(answer) => {
                answer.prev_kvs().iter().map(|pair| pair.lease()).collect()
            }
            _ => Vec::new(),
        })
        .collect();
    // They have no keys any more, and would end by themselves. A renewal looks for the key.
    join_all(deleted.iter().map(|lease| async {
        let _ = members.call(DOING, &Revoke(*lease)).await;
    }))
    .await;
    Ok(!deleted.is_empty())
}

/// Reports who holds a name, and who waits for it.
pub(crate) async fn inspect(
    members: &Members,
    keys: &Keys,
    name: &LockName,
) -> Result<LockState, BackendError> {
    const DOING: &str = "inspecting";
    let all = || Some(GetOptions::new().with_prefix());
    let reads = [Kind::Lock, Kind::ReadWrite]
        .iter()
        .flat_map(|kind| [keys.holds(*kind), keys.places(*kind)])
        .map(|prefix| TxnOp::get(prefix, all()))
        .collect::<Vec<_>>();
    let answer = members.call(DOING, &Transact(Txn::new().and_then(reads))).await?;
    let answer = answer.ok_or_else(|| error::unexpected(DOING).with_lock(name))?;
    let [locks, queue, sharers, writers] = gets(&answer, DOING)?;
    let entries = |pairs: &[etcd_client::KeyValue], prefix: String| {
        pairs.iter().map(|pair| Entry::read(pair, &prefix)).collect::<Result<Vec<_>, _>>()
    };
    let mut holds = entries(locks.kvs(), keys.holds(Kind::Lock))?;
    holds.extend(entries(sharers.kvs(), keys.holds(Kind::ReadWrite))?);
    let mut places = entries(queue.kvs(), keys.places(Kind::Lock))?;
    places.extend(entries(writers.kvs(), keys.places(Kind::ReadWrite))?);
    holds.sort_by_key(|entry| entry.created);
    places.sort_by_key(|entry| entry.created);
    let questions =
        holds.iter().map(|entry| async { members.call(DOING, &TimeToLive(entry.lease)).await });
    let mut remaining = None;
    for answer in join_all(questions).await {
        // A key whose lease has ended is there until the servers have agreed to delete it.
        remaining = remaining.max(Some(answer?.map(|lease| left(lease.left)).unwrap_or_default()));
    }
    let holder =
        |entry: Entry| Holder::new(entry.record.owner, entry.record.mode, entry.record.count);
    let waiters = places.into_iter().map(|entry| entry.record.owner).collect();
    let state = match holds.is_empty() {
        true => LockState::free(),
        false => LockState::held(holds.into_iter().map(holder).collect(), remaining),
    };
    Ok(state.with_waiters(waiters))
}
