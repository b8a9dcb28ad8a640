//! Reporting the holders and the waiters of a name.

use std::{collections::HashSet, time::Duration};

use etcd_client::{GetOptions, KeyValue, Txn, TxnOp};
use futures_util::future::join_all;
use lockcore::{BackendError, Holder, LockName, LockState};

use crate::{
    acquire::left,
    error,
    keys::{Keys, Kind},
    members::Members,
    requests::{TimeToLive, Transact},
    seen::{Entry, gets},
};

const DOING: &str = "inspecting";

/// Reports the holders and the waiters of a name.
///
/// The key of a hold whose lease has ended exists until the servers have agreed to delete it. Such
/// a hold no longer counts. But a lease that is gone may also have been replaced by a longer one
/// since the hold was read. And a member that was stopped for a while believes that it is the
/// leader until it hears of the next one, and does not know the renewals since. So after a lease
/// was found to be gone, the name is read again, which needs a majority. A hold that has not
/// changed, and whose lease is gone again, has ended.
pub(crate) async fn inspect(
    members: &Members,
    keys: &Keys,
    name: &LockName,
) -> Result<LockState, BackendError> {
    let mut doubted = HashSet::new();
    // The caller limits how long this goes on.
    loop {
        let mut found = Found::read(members, keys, name).await?;
        // Somebody else has written a key without a lease, which never ends.
        let (endless, leased): (Vec<_>, Vec<_>) =
            found.holds.iter().partition(|entry| entry.lease == 0);
        let questions = leased.into_iter().map(|entry| async move {
            let lease = members.call(DOING, &TimeToLive(entry.lease)).await?;
            Ok::<_, BackendError>((state_of(entry), lease.map(|lease| left(lease.left))))
        });
        let (mut gone, mut remaining) = (HashSet::new(), None);
        for answer in join_all(questions).await {
            match answer? {
                (_, Some(left)) => remaining = remaining.max(Some(left)),
                (state, None) => {
                    gone.insert(state);
                }
            }
        }
        if !endless.is_empty() {
            remaining = None;
        }
        if gone.is_subset(&doubted) {
            found.holds.retain(|entry| !gone.contains(&state_of(entry)));
            return Ok(found.into_state(remaining));
        }
        doubted.extend(gone);
    }
}

/// The lease of the entry, and the revision that changed it last.
fn state_of(entry: &Entry) -> (i64, i64) {
    (entry.lease, entry.changed)
}

/// The stored state of a name.
struct Found {
    holds: Vec<Entry>,
    places: Vec<Entry>,
}

impl Found {
    async fn read(members: &Members, keys: &Keys, name: &LockName) -> Result<Self, BackendError> {
        let all = || Some(GetOptions::new().with_prefix());
        let reads = [Kind::Lock, Kind::ReadWrite]
            .iter()
            .flat_map(|kind| [keys.holds(*kind), keys.places(*kind)])
            .map(|prefix| TxnOp::get(prefix, all()))
            .collect::<Vec<_>>();
        let answer = members.call(DOING, &Transact(Txn::new().and_then(reads))).await?;
        let answer = answer.ok_or_else(|| error::unexpected(DOING).with_lock(name))?;
        let [locks, queue, sharers, writers] = gets(&answer, DOING)?;
        let entries = |pairs: &[KeyValue], prefix: String| {
            pairs.iter().map(|pair| Entry::read(pair, &prefix)).collect::<Result<Vec<_>, _>>()
        };
        let mut holds = entries(locks.kvs(), keys.holds(Kind::Lock))?;
        holds.extend(entries(sharers.kvs(), keys.holds(Kind::ReadWrite))?);
        let mut places = entries(queue.kvs(), keys.places(Kind::Lock))?;
        places.extend(entries(writers.kvs(), keys.places(Kind::ReadWrite))?);
        holds.sort_by_key(|entry| entry.created);
        places.sort_by_key(|entry| entry.created);
        Ok(Self { holds, places })
    }

    fn into_state(self, remaining: Option<Duration>) -> LockState {
        let holder =
            |entry: Entry| Holder::new(entry.record.owner, entry.record.mode, entry.record.count);
        let waiters = self.places.into_iter().map(|entry| entry.record.owner).collect();
        let state = match self.holds.is_empty() {
            true => LockState::free(),
            false => LockState::held(self.holds.into_iter().map(holder).collect(), remaining),
        };
        state.with_waiters(waiters)
    }
}
