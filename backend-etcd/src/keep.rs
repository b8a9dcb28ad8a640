//! Leases: how they are granted, renewed and replaced by longer ones.

use std::{sync::Arc, time::Duration};

use etcd_client::{GetOptions, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse};
use futures_util::future::join_all;
use lockcore::BackendError;
use tokio::{
    runtime::Handle,
    sync::oneshot,
    time::{Instant, sleep, timeout},
};

use crate::{
    error,
    keys::{first_lease, new_lease},
    members::{MemberReply, Members, is_of_member},
    record::Record,
    requests::{GrantLease, KeepAlive, Revoke, TimeToLive, Transact},
    seen::{Entry, gets},
    together::together,
};

/// The number of attempts for a lease that is just ending.
const ATTEMPTS: u32 = 3;

/// How long to wait for the revocation of leases without keys, which would also end by themselves.
const TIDYING: Duration = Duration::from_millis(200);

/// The pauses before the attempts to revoke a lease in the background. What takes longer ends by
/// itself.
const PATIENCE: [Duration; 3] = [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(5)];

/// Renews leases, each for as long as it was granted, and reports for each whether it exists. The
/// client may read `key`. A lease without an answer is given up once no other lease has had an
/// answer for the time `behind`.
///
/// A member renews a lease on its own if it believes that it is the leader. A member that was
/// stopped for a while does so even if there is another leader by then, which does not know of the
/// renewal. So there is a read before it, through the same member, and another one after it. Both
/// need a majority. If they were in the same term, the leader made the renewal. For this, an
/// endpoint has to be one member, so the reads compare its id as well.
///
/// The read after it also looks at `keys`, one for each lease, unless there are none. A key may
/// have got another lease since it was read. Then the renewal does not count.
pub(crate) async fn refresh(
    members: &Members,
    key: &str,
    leases: &[i64],
    keys: &[&str],
    behind: Duration,
) -> Result<Vec<Result<bool, BackendError>>, BackendError> {
    let first = [key];
    let (before, after) = (reading(&first), reading(if keys.is_empty() { &first } else { keys }));
    let mut failure = None;
    for _ in 0..ATTEMPTS {
        let MemberReply { answer, member, .. } = members.call_noting(VIEWING, &before).await?;
        let before = View::of(answer.as_ref())?;
        let answers = keep_alive(members, member, leases, behind).await;
        let is_failed = |answer: &Result<bool, _>| answer.as_ref().is_err_and(is_of_member);
        if !answers.is_empty() && answers.iter().all(is_failed) {
            members.pass_over(member);
            failure = answers.into_iter().find_map(Result::err);
            continue;
        }
        let answer = members.ask(member, VIEWING, &after).await;
        match answer.and_then(|answer| Ok((View::of(answer.as_ref())?, leases_of(answer)))) {
            Ok((after, found)) if after == before => {
                let is_left = |(number, lease): (usize, &i64)| {
                    !keys.is_empty() && found.get(number) != Some(&Some(*lease))
                };
                let left: Vec<_> = leases.iter().enumerate().map(is_left).collect();
                let count = |(answer, is_left): (Result<bool, _>, bool)| match answer {
                    Ok(true) if is_left => Ok(false),
                    answer => answer,
                };
                return Ok(answers.into_iter().zip(left).map(count).collect());
            }
            Ok(_) => failure = Some(error::unproven(members)),
            Err(error) => {
                members.pass_over(member);
                failure = Some(error);
            }
        }
    }
    Err(failure.unwrap_or_else(|| error::unproven(members)).maybe_applied())
}

/// Sends all renewals to one member, because the answers prove nothing otherwise.
///
/// The answer for an ended lease comes when the servers have agreed on its end, which takes a
/// while. It does not keep the others waiting, and proves nothing about the member.
async fn keep_alive(
    members: &Members,
    member: usize,
    leases: &[i64],
    behind: Duration,
) -> Vec<Result<bool, BackendError>> {
    const DOING: &str = "renewing a lease";
    let mut unanswered = members.unanswered(member);
    let end = Instant::now() + members.share();
    let requests = leases
        .iter()
        .map(|lease| async { members.ask_patiently(member, DOING, &KeepAlive(*lease)).await });
    let answers = together(requests, behind, Instant::now(), end).await;
    unanswered.is_answered();
    let late = || error::no_answer(DOING, members.address(member), behind.min(members.share()));
    answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(late()))).collect()
}

const VIEWING: &str = "asking for the leader";

/// A member's view of the cluster after a read that needed a majority.
#[derive(PartialEq, Eq)]
struct View {
    /// The member itself.
    member: u64,
    /// The term of the leader.
    term: u64,
}

impl View {
    fn of(answer: Option<&TxnResponse>) -> Result<Self, BackendError> {
        let header = answer.and_then(TxnResponse::header);
        let header = header.ok_or_else(|| error::unexpected(VIEWING))?;
        Ok(Self { member: header.member_id(), term: header.raft_term() })
    }
}

/// A read of keys, without their values.
pub(crate) fn reading(keys: &[&str]) -> Transact {
    let get = |key: &&str| TxnOp::get(*key, Some(GetOptions::new().with_keys_only()));
    Transact(Txn::new().and_then(keys.iter().map(get).collect::<Vec<_>>()))
}

/// The lease of each key that was read. `None` for a key that is not there.
fn leases_of(answer: Option<TxnResponse>) -> Vec<Option<i64>> {
    let lease = |answer| match answer {
        TxnOpResponse::Get(answer) => answer.kvs().first().map(KeyValue::lease),
        _ => None,
    };
    answer.map_or_else(Vec::new, |answer| answer.op_responses().into_iter().map(lease).collect())
}

/// Renews the lease of an entry, or one that has no key yet. The client may read `key`.
async fn refresh_one(
    members: &Members,
    key: &str,
    lease: i64,
    is_of_key: bool,
) -> Result<bool, BackendError> {
    let keys: &[&str] = if is_of_key { &[key] } else { &[] };
    let mut answers = refresh(members, key, &[lease], keys, members.share()).await?;
    answers.pop().unwrap_or(Ok(false))
}

/// Revokes leases that have no keys any more. They would end by themselves, so this need not
/// succeed, and takes only a short time.
pub(crate) async fn tidy(members: &Members, leases: impl IntoIterator<Item = i64>) {
    let revocations = leases.into_iter().map(|lease| async move {
        // After a failure, the lease ends by itself.
        let _ = members.call("revoking a lease", &Revoke(lease)).await;
    });
    let _ = timeout(TIDYING, join_all(revocations)).await;
}

/// Makes sure that the lease exists for at least this many seconds from now on, and returns the
/// number of seconds that it is granted for. `key` is the key that the lease is for.
///
/// An earlier request for the same hold may have left it behind. A lease that has other keys
/// belongs to another hold, with a probability of 2^-63, and is not touched.
///
/// If the outcome of an error is unknown, a grant of the lease may be on its way.
pub(crate) async fn ensure(
    members: &Members,
    lease: i64,
    seconds: i64,
    key: &str,
) -> Result<i64, BackendError> {
    const DOING: &str = "granting a lease";
    for _ in 0..ATTEMPTS {
        let grant = GrantLease { lease, seconds };
        let MemberReply { answer, is_repeated, .. } = members.call_noting(DOING, &grant).await?;
        if is_repeated {
            // The other copy could grant the lease again after it was revoked.
            return Err(error::unsure(members, DOING));
        }
        if let Some(granted) = answer {
            return Ok(granted.seconds);
        }
        let there = members.call(DOING, &TimeToLive(lease)).await;
        let Some(there) = there.map_err(BackendError::not_applied)? else {
            // It has ended, and the answer to this comes when it is gone.
            members.call(DOING, &KeepAlive(lease)).await.map_err(BackendError::not_applied)?;
            continue;
        };
        if there.keys.iter().any(|other| other.as_slice() != key.as_bytes()) {
            return Err(error::lease_is_foreign(members, lease));
        }
        if there.seconds < seconds {
            if members.call_noting(DOING, &Revoke(lease)).await?.is_repeated {
                // The other copy could revoke the lease that is granted now.
                return Err(error::unsure(members, DOING));
            }
            continue;
        }
        let renewed = refresh_one(members, key, lease, false).await;
        if renewed.map_err(BackendError::not_applied)? {
            return Ok(there.seconds);
        }
    }
    Err(error::too_busy(members, DOING))
}

/// Ends a lease that a request may still use, so that the request has no effect when it arrives.
/// `key` is the key that the lease is for; a lease with other keys belongs to another hold.
pub(crate) async fn withdraw(members: &Members, lease: i64, key: &str) -> Result<(), BackendError> {
    const DOING: &str = "revoking a lease";
    let there = members.call(DOING, &TimeToLive(lease)).await?;
    let is_own = |lease: &crate::requests::Lease| {
        lease.keys.iter().all(|other| other.as_slice() == key.as_bytes())
    };
    if there.as_ref().is_none_or(is_own) {
        members.call(DOING, &Revoke(lease)).await?;
    }
    Ok(())
}

/// Renews an entry for at least this many seconds, and sets its count if one is given. Returns
/// `false` if it has ended, or was changed meanwhile.
///
/// A keep-alive restores the time for which the lease was granted. If that is less than requested,
/// the key is written again under a longer lease.
pub(crate) async fn keep(
    members: &Arc<Members>,
    entry: &Entry,
    seconds: i64,
    count: Option<u32>,
) -> Result<bool, BackendError> {
    let count = count.unwrap_or(entry.record.count);
    if entry.record.seconds < seconds {
        return lengthen(members, entry, seconds, count).await;
    }
    if !refresh_one(members, &entry.key, entry.lease, true).await? {
        return Ok(false);
    }
    if entry.record.count == count {
        return Ok(true);
    }
    let record = Record { count, ..entry.record.clone() };
    put_again(members, entry, &record, entry.lease).await.map(|reply| reply.answer)
}

/// Writes the entry again, unless somebody has changed it.
pub(crate) async fn put_again(
    members: &Members,
    entry: &Entry,
    record: &Record,
    lease: i64,
) -> Result<MemberReply<bool>, BackendError> {
    let options = PutOptions::new().with_lease(lease);
    let put = TxnOp::put(entry.key.as_str(), record.encode(), Some(options));
    let txn = Txn::new().when([entry.unchanged()]).and_then([put]);
    let MemberReply { answer, member, is_repeated } =
        members.call_noting("changing a hold", &Transact(txn)).await?;
    Ok(MemberReply { answer: answer.is_some_and(|answer| answer.succeeded()), member, is_repeated })
}

/// Replaces the lease by a longer one. The replacement is completed even if the caller is gone, so
/// that no lease is left behind. If the entry was changed meanwhile, that change stands.
async fn lengthen(
    members: &Arc<Members>,
    entry: &Entry,
    seconds: i64,
    count: u32,
) -> Result<bool, BackendError> {
    let (members, entry) = (members.clone(), entry.clone());
    let (answer, answered) = oneshot::channel();
    tokio::spawn(async move {
        let mut unused = Unused::new(&members);
        let seconds = match unused.grant(GROWING, seconds).await {
            Ok(seconds) => seconds,
            Err(error) => {
                // The caller may be gone.
                let _ = answer.send(Err(error));
                return;
            }
        };
        let lease = unused.into_used();
        let record = Record { count, seconds, ..entry.record.clone() };
        let replaced = put_again(&members, &entry, &record, lease).await.map(|put| put.answer);
        let is_replaced = matches!(replaced, Ok(true));
        let _ = answer.send(replaced);
        match is_replaced {
            true => leave(&members, &entry).await,
            false => settle(&members, &entry, lease).await,
        }
    });
    // Without an answer, the runtime is being shut down.
    answered.await.unwrap_or_else(|_| Err(error::unexpected(GROWING).maybe_applied()))
}

const GROWING: &str = "granting a longer lease";

/// Revokes the lease that the entry had before it got a longer one.
async fn leave(members: &Members, entry: &Entry) {
    if entry.lease == first_lease(&entry.key) {
        // The release revokes it as well. Later, it may belong to the next hold with the same id.
        tidy(members, [entry.lease]).await;
    } else if entry.lease != 0 {
        revoke(members, entry.lease).await;
    }
}

/// Finds out whether the entry has got the longer lease, and revokes the one that it does not have.
///
/// The request for it names the revision of the entry. So once there is another revision, the
/// request has no effect any more. If there is none yet, this makes one.
async fn settle(members: &Members, entry: &Entry, lease: i64) {
    for pause in PATIENCE {
        sleep(pause).await;
        match put_again(members, entry, &entry.record, entry.lease).await {
            Ok(put) if put.answer => return revoke(members, lease).await,
            Ok(_) => {}
            Err(_) => continue,
        }
        let read = members.call(GROWING, &reading(&[&entry.key])).await;
        let Ok(answer) = read.and_then(|answer| answer.ok_or_else(|| error::unexpected(GROWING)))
        else {
            continue;
        };
        let Ok([found]) = gets(&answer, GROWING) else { return };
        match found.kvs().first() {
            Some(pair) if pair.lease() == lease => return leave(members, entry).await,
            // A member that was behind has answered.
            Some(pair) if pair.mod_revision() == entry.changed => {}
            _ => return revoke(members, lease).await,
        }
    }
}

/// Revokes a lease that nobody uses.
async fn revoke(members: &Members, lease: i64) {
    for pause in PATIENCE {
        sleep(pause).await;
        if members.call("revoking a lease", &Revoke(lease)).await.is_ok() {
            return;
        }
    }
}

/// Revokes a lease that nobody uses, and whose grant may still be on its way, more than once.
async fn revoke_again(members: &Members, lease: i64) {
    for pause in PATIENCE {
        sleep(pause).await;
        let _ = members.call("revoking a lease", &Revoke(lease)).await;
    }
}

/// A new lease that is not used yet. It is revoked when this is dropped, or else ends by itself.
///
/// The client chooses its id, so that it can be revoked if there is no answer.
pub(crate) struct Unused<'a> {
    members: &'a Arc<Members>,
    lease: i64,
    /// Set if it exists, or may do so.
    may_exist: bool,
}

impl<'a> Unused<'a> {
    pub(crate) fn new(members: &'a Arc<Members>) -> Self {
        Self { members, lease: new_lease(), may_exist: false }
    }

    /// Grants it for at least this many seconds, and returns the number that it is granted for.
    pub(crate) async fn grant(&mut self, doing: &str, seconds: i64) -> Result<i64, BackendError> {
        for _ in 0..ATTEMPTS {
            self.may_exist = true;
            let grant = GrantLease { lease: self.lease, seconds };
            let reply = self.members.call_noting(doing, &grant).await;
            let MemberReply { answer, is_repeated, .. } = reply.inspect_err(|error| {
                self.may_exist = error.is_outcome_unknown();
            })?;
            match answer {
                // The other copy could grant it again after it was revoked. So another one is used.
                _ if is_repeated => *self = Self::new(self.members),
                Some(granted) => return Ok(granted.seconds),
                None => {
                    self.may_exist = false;
                    return Err(error::lease_is_foreign(self.members, self.lease));
                }
            }
        }
        Err(error::unsure(self.members, doing).not_applied())
    }

    /// The id of the lease, which is about to be used.
    pub(crate) fn into_used(mut self) -> i64 {
        self.may_exist = false;
        self.lease
    }
}

impl Drop for Unused<'_> {
    fn drop(&mut self) {
        if let (true, Ok(runtime)) = (self.may_exist, Handle::try_current()) {
            let (members, lease) = (self.members.clone(), self.lease);
            runtime.spawn(async move { revoke_again(&members, lease).await });
        }
    }
}
