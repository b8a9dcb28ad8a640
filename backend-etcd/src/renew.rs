//! Renewing holds, many at once.

use std::{
    collections::HashMap,
    future::{Future, ready},
    sync::Arc,
    time::Duration,
};

use etcd_client::{Txn, TxnOp, TxnOpResponse};
use futures_util::future::{Either, join_all};
use lockcore::{
    BackendError,
    backend::{RenewOutcome, RenewRequest},
};
use tokio::time::{Instant, sleep, timeout_at};

use crate::{
    error,
    keep::{keep, refresh},
    keys::{Keys, Kind},
    members::Members,
    record::seconds,
    requests::Transact,
    seen::{Entry, gets},
    together::together,
};

/// The number of holds that one transaction reads. Servers allow 128 operations.
pub(crate) const READ_TOGETHER: usize = 128;

/// Single holds may delay the others of a batch by this fraction of the shortest lease, up to
/// twice. The core waits for a third of it.
const BEHIND: u32 = 8;

/// Holds whose leases have to be replaced may take this fraction of the shortest lease from the
/// beginning of the batch, because that takes several requests that servers write to their disks.
const GROWING: u32 = 4;

/// The time that a server may always take between two answers.
const LEAST_BEHIND: Duration = Duration::from_millis(100);

/// The first pause after somebody else has changed a hold, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(50)];

const DOING: &str = "renewing holds";

/// Pauses between attempts that collide with others, each twice as long as the one before.
pub(crate) struct Pauses(Duration);

impl Pauses {
    pub(crate) fn new() -> Self {
        Self(PAUSES[0])
    }

    pub(crate) async fn pause(&mut self) {
        sleep(self.0).await;
        self.0 = (self.0 * 2).min(PAUSES[1]);
    }
}

/// A hold as it was read, or the error of the read.
type Lookup = Result<Option<Entry>, BackendError>;

/// One batch of renewals.
struct Renewing<'a> {
    members: &'a Arc<Members>,
    holds: &'a [RenewRequest],
    keys: Vec<Keys>,
    /// How long to wait for single holds once others have been renewed.
    behind: Duration,
    /// The moment until which they are waited for in any case.
    least: Instant,
    end: Instant,
}

impl<'a> Renewing<'a> {
    /// At most as many holds as are [read together](READ_TOGETHER).
    fn new(members: &'a Arc<Members>, prefix: &str, holds: &'a [RenewRequest]) -> Self {
        let limit = members.response_timeout();
        let shortest = holds.iter().map(|hold| hold.lease).min().unwrap_or_default();
        let begun = Instant::now();
        Self {
            members,
            holds,
            keys: holds.iter().map(|hold| Keys::new(prefix, &hold.name)).collect(),
            behind: (shortest / BEHIND).max(LEAST_BEHIND).min(limit / 2),
            least: begun + (shortest / GROWING).min(limit),
            end: begun + limit,
        }
    }

    /// Renews holds that are read together, with an outcome for each: none fails because of another
    /// one.
    async fn run(self) -> Vec<RenewOutcome> {
        let found = match self.in_time(self.find()).await {
            Ok(found) => found,
            Err(error) => return vec![RenewOutcome::Failed(error); self.holds.len()],
        };
        let renewed = self.renew_together(&found).await;
        let renewals =
            found.into_iter().zip(self.holds).zip(&self.keys).map(|((entry, hold), keys)| {
                match entry {
                    Err(error) => Either::Left(ready(Err(error))),
                    Ok(None) => Either::Left(ready(Ok(false))),
                    Ok(Some(entry)) => match renewed.get(&entry.lease) {
                        Some(Err(error)) => Either::Left(ready(Err(error.clone()))),
                        Some(Ok(true)) if !grows(&entry, hold) => Either::Left(ready(Ok(true))),
                        _ => Either::Right(self.renew_one(keys, entry, hold)),
                    },
                }
            });
        let answers = together(renewals, self.behind, self.least, self.end).await;
        let outcome = |answer: Option<Result<bool, BackendError>>| match answer {
            Some(Ok(true)) => RenewOutcome::Renewed,
            Some(Ok(false)) => RenewOutcome::NotHeld,
            Some(Err(error)) => RenewOutcome::Failed(error),
            None => RenewOutcome::Failed(self.no_answer()),
        };
        answers.into_iter().map(outcome).collect()
    }

    async fn in_time<T>(
        &self,
        step: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        timeout_at(self.end, step).await.unwrap_or_else(|_| Err(self.no_answer()))
    }

    fn no_answer(&self) -> BackendError {
        let address = self.members.address(self.members.current());
        // Before the end, only holds that have kept others waiting are given up.
        let waited = match Instant::now() < self.end {
            true => self.behind,
            false => self.members.response_timeout(),
        };
        error::no_answer(DOING, address, waited)
    }

    /// Reads the holds.
    async fn find(&self) -> Result<Vec<Lookup>, BackendError> {
        let key = |(hold, keys): (&RenewRequest, &Keys)| keys.hold(hold.mode, hold.hold.id());
        let keys = self.holds.iter().zip(&self.keys).map(key);
        let reads: Vec<_> = keys.map(|key| TxnOp::get(key, None)).collect();
        let answer = self.members.call(DOING, &Transact(Txn::new().and_then(reads))).await?;
        let answers = answer.ok_or_else(|| error::unexpected(DOING))?.op_responses();
        if answers.len() != self.holds.len() {
            return Err(error::unexpected(DOING));
        }
        let mut found = Vec::new();
        for ((hold, keys), answer) in self.holds.iter().zip(&self.keys).zip(answers) {
            let TxnOpResponse::Get(answer) = answer else { return Err(error::unexpected(DOING)) };
            found.push(match (Kind::of(hold.mode), answer.kvs().first()) {
                (Some(kind), Some(pair)) => Entry::read(pair, &keys.holds(kind)).map(Some),
                _ => Ok(None),
            });
        }
        Ok(found)
    }

    /// Renews the leases, and returns the outcomes by lease. Leases that have to be replaced are
    /// renewed as well, until there are longer ones.
    async fn renew_together(&self, found: &[Lookup]) -> HashMap<i64, Result<bool, BackendError>> {
        let entries = found.iter().filter_map(|entry| entry.as_ref().ok()?.as_ref());
        let entries: Vec<_> = entries.collect();
        let Some(first) = entries.first() else { return HashMap::new() };
        let leases: Vec<_> = entries.iter().map(|entry| entry.lease).collect();
        let keys: Vec<_> = entries.iter().map(|entry| entry.key.as_str()).collect();
        let refresh = refresh(self.members, &first.key, &leases, &keys, self.behind);
        let renewed = self.in_time(refresh).await;
        let renewed = renewed.unwrap_or_else(|error| vec![Err(error); leases.len()]);
        leases.into_iter().zip(renewed).collect()
    }

    /// Renews a hold, however often somebody changes it meanwhile, until the batch ends.
    async fn renew_one(
        &self,
        keys: &Keys,
        mut entry: Entry,
        hold: &RenewRequest,
    ) -> Result<bool, BackendError> {
        const DOING: &str = "renewing a hold";
        let Some(kind) = Kind::of(hold.mode) else { return Ok(false) };
        let mut pauses = Pauses::new();
        loop {
            if keep(self.members, &entry, seconds(hold.lease), None).await? {
                return Ok(true);
            }
            let read = Transact(Txn::new().and_then([TxnOp::get(entry.key.as_str(), None)]));
            let answer = self.members.call(DOING, &read).await?;
            let [found] = gets(&answer.ok_or_else(|| error::unexpected(DOING))?, DOING)?;
            match found.kvs().first() {
                Some(pair) => entry = Entry::read(pair, &keys.holds(kind))?,
                None => return Ok(false),
            }
            pauses.pause().await;
        }
    }
}

/// Returns `true` if the hold needs a longer lease than it has.
fn grows(entry: &Entry, hold: &RenewRequest) -> bool {
    entry.record.seconds < seconds(hold.lease)
}

/// Renews any number of holds.
pub(crate) async fn renew(
    members: &Arc<Members>,
    prefix: &str,
    holds: &[RenewRequest],
) -> Vec<RenewOutcome> {
    let batches = holds.chunks(READ_TOGETHER);
    let renewals = batches.map(|holds| Renewing::new(members, prefix, holds).run());
    join_all(renewals).await.concat()
}
