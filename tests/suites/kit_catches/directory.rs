//! The directory of [`Flawed`], and how the flaws change it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use lockcore::{
    BackendError, BackendErrorKind, LockName,
    backend::{
        ConditionId, Cursor, Directory, HoldId, Page, Start, StoredEntry, StoredKind, async_trait,
    },
};
use lockcore_testkit::Op;
use tokio::time::Instant;

use super::{
    flaw::Flaw,
    queue,
    store::{Cell, Flawed, Store, Stored},
};

/// The number of entries of a page.
const PAGE: usize = 16;

/// The prefix of a cursor. The rest is the last entry of the page.
const CURSOR: &str = "after ";

/// The data of the store of [`Flawed`] clients for its directory.
#[derive(Debug, Default)]
pub(super) struct Entries {
    records: BTreeMap<String, Record>,
    /// For the flaw that never forgets a name.
    pub(super) seen: BTreeSet<String>,
}

#[derive(Clone, Debug)]
struct Record {
    text: String,
    client: u64,
    ends: Instant,
}

impl Flawed {
    fn is_reported(&self, cell: &Cell, now: Instant) -> bool {
        let is_ours = |stored: &Stored| {
            !self.has(Flaw::ReportsNamesOfItsOwnClientOnly) || stored.client == self.client
        };
        let is_held = cell.hold.as_ref().is_some_and(|stored| {
            is_ours(stored) && (stored.ends > now || self.has(Flaw::ReportsNamesThatHaveEnded))
        });
        let is_shared = !self.has(Flaw::ReportsNoSharedNames)
            && cell.shared.holds.iter().any(|stored| is_ours(stored) && stored.ends > now);
        let is_awaited = !self.has(Flaw::ReportsNoQueues)
            && (queue::keeps_places(self.flaw, cell, now)
                || cell.shared.keeps_writers(self.flaw, now));
        let is_set = !self.has(Flaw::ReportsNoNumbers) && cell.shared.permits.is_some();
        is_held || is_shared || is_awaited || is_set
    }

    /// All names that are reported, in order.
    fn reported(&self, store: &Store, now: Instant) -> BTreeSet<String> {
        let cells = store.cells.iter().filter(|(_, cell)| self.is_reported(cell, now));
        let mut all: BTreeSet<_> = cells.map(|(name, _)| name.clone()).collect();
        if !self.has(Flaw::ReportsNoLatches) {
            let closed = store.signals.latches.iter().filter(|(_, latch)| latch.stays(Flaw::None));
            all.extend(closed.map(|(name, _)| name.clone()));
        }
        match self.flaw {
            Flaw::NeverForgetsANameItSaw => all.extend(store.directory.seen.iter().cloned()),
            Flaw::ReportsRecordsAsNames => {
                let records = store.directory.records.keys();
                all.extend(records.map(|id| format!("client:{id}")));
            }
            Flaw::EscapesNames => {
                all = all.into_iter().map(|name| name.escape_default().to_string()).collect();
            }
            _ => {}
        }
        all
    }

    /// The stored entries of a name, and the waiters of its conditions.
    fn stored(&self, name: &LockName, conditions: &[LockName]) -> Vec<StoredEntry> {
        if self.has(Flaw::EndsWhatItLooksAt) {
            self.with(name, |cell, _| cell.hold = None);
        }
        let (key, reported) = (self.key(name), self.reported(&self.store(), Instant::now()));
        let is_told = |other: &&String| **other == key || self.has(Flaw::TellsOfAllThatIsStored);
        let names = reported.iter().filter(is_told);
        let mut entries: Vec<_> =
            names.map(|name| StoredEntry::new(name, StoredKind::Hold)).collect();
        for condition in conditions {
            let waiters = self.waiters(&ConditionId::new(name.clone(), condition.clone()));
            let waiters = if self.has(Flaw::CountsNoWaiters) { 0 } else { waiters as u64 };
            let kind = StoredKind::Condition(condition.clone());
            let entry = StoredEntry::new("waiters", kind).with_number(Some(waiters));
            entries.extend((waiters > 0).then_some(entry));
        }
        if self.has(Flaw::TellsOfNothingStored) { Vec::new() } else { entries }
    }

    /// The records that are reported, in the order of their ids.
    fn records(&self, store: &Store, now: Instant) -> Vec<(String, String)> {
        let is_reported = |record: &&Record| {
            (record.ends > now || self.has(Flaw::RecordsNeverLapse))
                && (record.client == self.client || !self.has(Flaw::ReportsItsOwnRecordsOnly))
        };
        let records = store.directory.records.iter().filter(|(_, record)| is_reported(record));
        records.map(|(id, record)| (id.clone(), record.text.clone())).collect()
    }

    /// The entries of a page that begins at `start`, with their sort keys.
    fn page<T: Clone>(
        &self,
        start: &Start,
        all: &[T],
        key: impl Fn(&T) -> String,
    ) -> Result<Page<T>, BackendError> {
        let from = match start {
            Start::Beginning => 0,
            Start::At(cursor) => match cursor.as_str().strip_prefix(CURSOR) {
                Some(offset) if self.has(Flaw::WalksByOffset) => offset.parse().unwrap(),
                Some(last) => all.partition_point(|entry| key(entry).as_str() <= last),
                None if self.has(Flaw::TakesEveryCursor) => 0,
                None => {
                    let message = "the store did not give this cursor";
                    return Err(BackendError::new(BackendErrorKind::Other, message).not_applied());
                }
            },
        };
        let rest = all.get(from..).unwrap_or_default();
        let entries = rest[..rest.len().min(PAGE)].to_vec();
        let next = entries.last().filter(|_| rest.len() > PAGE).map(|last| {
            let place =
                if self.has(Flaw::WalksByOffset) { (from + PAGE).to_string() } else { key(last) };
            Cursor::new(format!("{CURSOR}{place}"))
        });
        Ok(Page::new(entries, next.filter(|_| !self.has(Flaw::WalksOnePageOnly))))
    }

    fn put_now(&self, id: &str, record: &str, lifetime: Duration) {
        let now = Instant::now();
        let mut store = self.store();
        let records = &mut store.directory.records;
        let id = if self.has(Flaw::OneRecordForAll) { "the client" } else { id };
        let before = records.get(id).cloned();
        let text = match (&before, self.flaw) {
            (Some(before), Flaw::KeepsTheFirstRecord) => before.text.clone(),
            (_, Flaw::EscapesRecords) => record.escape_default().to_string(),
            (_, Flaw::TrimsRecords) => record.trim().to_owned(),
            (_, Flaw::CutsRecords) => record.chars().take(4096).collect(),
            _ => record.to_owned(),
        };
        let ends = now
            + match self.flaw {
                Flaw::RecordsLapseEarly => lifetime / 100,
                _ => lifetime,
            };
        let ends = match (before, self.flaw) {
            (Some(before), Flaw::KeepsTheFirstLifetime) => before.ends,
            (Some(before), Flaw::OnlyLengthensLifetimes) => before.ends.max(ends),
            _ => ends,
        };
        records.insert(id.to_owned(), Record { text, client: self.client, ends });
    }

    /// For the flaw by which a record affects the lock with the name of its client.
    fn touch_lock(&self, id: &str, flaw: Flaw) {
        if !self.has(flaw) {
            return;
        }
        let name = LockName::new(id).unwrap();
        self.with(&name, |cell, _| cell.hold = None);
    }

    /// For the flaw by which the end of a hold affects the record of the client with the name of
    /// the lock.
    pub(super) fn touch_record(&self, name: &LockName, flaw: Flaw) {
        if self.has(flaw) {
            self.store().directory.records.remove(name.as_str());
        }
    }

    fn occupy(&self, id: &str) {
        if self.has(Flaw::RecordsTakeLocks) {
            let name = LockName::new(id).unwrap();
            let hold = HoldId::unique("the record");
            let ends = Instant::now() + Duration::from_secs(86_400);
            self.with(&name, |cell, _| {
                if let Some(stored) = &mut cell.hold {
                    (stored.id, stored.ends) = (hold, ends);
                }
            });
        }
    }
}

#[async_trait]
impl Directory for Flawed {
    async fn names(&self, start: &Start) -> Result<Page<LockName>, BackendError> {
        let busy = self.send(Op::Names).await;
        let all = self.reported(&self.store(), Instant::now());
        if self.has(Flaw::WalkHoldsUpOthers) {
            // Every other request waits for its turn: see `send`.
            let until =
                Instant::now() + Duration::from_millis(200) * u32::try_from(all.len()).unwrap();
            self.store().closed_until = Some(until);
        }
        let names: Vec<_> = all.into_iter().map(|name| LockName::new(name).unwrap()).collect();
        let page = self.page(start, &names, |name| name.as_str().to_owned());
        self.reply(busy).await;
        page
    }

    async fn put_client(
        &self,
        id: &str,
        record: &str,
        lifetime: Duration,
    ) -> Result<(), BackendError> {
        let busy = self.send(Op::PutClient).await;
        if self.has(Flaw::TakesOutTheRecordToReplaceIt) {
            self.store().directory.records.remove(id);
            tokio::task::yield_now().await;
        }
        self.put_now(id, record, lifetime);
        self.occupy(id);
        self.reply(busy).await;
        Ok(())
    }

    async fn remove_client(&self, id: &str) -> Result<(), BackendError> {
        let busy = self.send(Op::RemoveClient).await;
        match self.flaw {
            Flaw::KeepsRemovedRecords => {}
            Flaw::RemovesAllRecords => self.store().directory.records.clear(),
            _ => _ = self.store().directory.records.remove(id),
        }
        self.touch_lock(id, Flaw::RemovalReleasesLocks);
        self.reply(busy).await;
        Ok(())
    }

    async fn clients(&self, start: &Start) -> Result<Page<(String, String)>, BackendError> {
        let busy = self.send(Op::Clients).await;
        let all = self.records(&self.store(), Instant::now());
        let page = self.page(start, &all, |(id, _)| id.clone());
        self.reply(busy).await;
        page
    }

    async fn storage(
        &self,
        name: &LockName,
        conditions: &[LockName],
    ) -> Result<Vec<StoredEntry>, BackendError> {
        let busy = self.send(Op::Storage).await;
        let entries = self.stored(name, conditions);
        self.reply(busy).await;
        Ok(entries)
    }
}
