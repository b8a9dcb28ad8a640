//! The names in use and the clients of a [`MemoryBackend`].

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockcore::{
    BackendError, LockName,
    backend::{Directory, Page, Start, StoredEntry, StoredKind, async_trait},
};
use tokio::time::Instant;

use crate::{
    MemoryBackend,
    state::{ConditionQueue, NameState},
};

/// The records of clients, by their ids.
#[derive(Debug, Default)]
pub(crate) struct ClientRecords(Mutex<BTreeMap<String, ClientRecord>>);

#[derive(Debug)]
struct ClientRecord {
    text: String,
    expires_at: Instant,
}

impl ClientRecords {
    /// The records whose lifetime has not passed. The others are gone.
    fn live(&self) -> MutexGuard<'_, BTreeMap<String, ClientRecord>> {
        let mut records = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        records.retain(|_, record| record.expires_at > now);
        records
    }
}

/// A walk is one page: it locks a small part of the map at a time, so that locks do not wait for
/// it.
fn only_page<T>(start: &Start, entries: Vec<T>) -> Result<Page<T>, BackendError> {
    match start {
        Start::Beginning => Ok(Page::new(entries, None)),
        // The cursor comes from another store.
        Start::At(cursor) => Err(cursor.refused()),
    }
}

#[async_trait]
impl Directory for MemoryBackend {
    async fn names(&self, start: &Start) -> Result<Page<LockName>, BackendError> {
        only_page(start, self.names.keys(NameState::is_used))
    }

    async fn put_client(
        &self,
        id: &str,
        record: &str,
        lifetime: Duration,
    ) -> Result<(), BackendError> {
        let expires_at = Instant::now() + lifetime;
        let record = ClientRecord { text: record.to_owned(), expires_at };
        self.clients.live().insert(id.to_owned(), record);
        Ok(())
    }

    async fn remove_client(&self, id: &str) -> Result<(), BackendError> {
        self.clients.live().remove(id);
        Ok(())
    }

    async fn clients(&self, start: &Start) -> Result<Page<(String, String)>, BackendError> {
        let records = self.clients.live();
        let entries = records.iter().map(|(id, record)| (id.clone(), record.text.clone()));
        only_page(start, entries.collect())
    }

    async fn storage(
        &self,
        name: &LockName,
        _: &[LockName],
    ) -> Result<Vec<StoredEntry>, BackendError> {
        let mut entries = self.names.update(name, |state, now| state.stored(now));
        for condition in self.conditions.keys(|_| true) {
            if condition.lock == *name {
                let (waiters, left) = self.conditions.update(&condition, ConditionQueue::waiters);
                let kind = StoredKind::Condition(condition.name);
                let entry = StoredEntry::new("waiters", kind).with_number(Some(waiters));
                entries.push(entry.with_left(left));
            }
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use lockcore::backend::Cursor;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_record_ends_with_its_lifetime() {
        let store = MemoryBackend::new();
        store.put_client("a", "old", Duration::from_secs(1)).await.unwrap();
        store.put_client("a", "new", Duration::from_secs(2)).await.unwrap();
        store.put_client("b", "other", Duration::from_secs(1)).await.unwrap();
        tokio::time::advance(Duration::from_millis(1500)).await;
        let page = store.clients(&Start::Beginning).await.unwrap();
        assert_eq!(page, Page::new(vec![("a".into(), "new".into())], None));
        store.remove_client("a").await.unwrap();
        assert!(store.clients(&Start::Beginning).await.unwrap().entries.is_empty());
    }

    #[tokio::test]
    async fn a_cursor_of_another_store_is_refused() {
        let start = Start::At(Cursor::new("17"));
        let error = MemoryBackend::new().names(&start).await.unwrap_err();
        assert!(error.to_string().contains("17"), "{error}");
    }
}
