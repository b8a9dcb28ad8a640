//! The faults of a directory.

use std::{sync::Arc, time::Duration};

use lockcore::{
    BackendError, LockName,
    backend::{Backend, Directory, Page, Start, StoredEntry, async_trait},
};

use super::{Faulty, Op, signals::missing};

fn directory(backend: &impl Backend) -> Result<&dyn Directory, BackendError> {
    backend.directory().ok_or_else(|| missing("directory"))
}

#[async_trait]
#[deny(clippy::missing_trait_methods, reason = "a call that is not passed on would have no faults")]
impl<B: Backend> Directory for Faulty<B> {
    async fn names(&self, start: &Start) -> Result<Page<LockName>, BackendError> {
        let start = start.clone();
        self.call(Op::Names, |backend| async move { directory(&*backend)?.names(&start).await })
            .await
    }

    async fn put_client(
        &self,
        id: &str,
        record: &str,
        lifetime: Duration,
    ) -> Result<(), BackendError> {
        let (id, record) = (id.to_owned(), record.to_owned());
        let put = |backend: Arc<B>| async move {
            directory(&*backend)?.put_client(&id, &record, lifetime).await
        };
        self.call(Op::PutClient, put).await
    }

    async fn remove_client(&self, id: &str) -> Result<(), BackendError> {
        let id = id.to_owned();
        let remove =
            |backend: Arc<B>| async move { directory(&*backend)?.remove_client(&id).await };
        self.call(Op::RemoveClient, remove).await
    }

    async fn clients(&self, start: &Start) -> Result<Page<(String, String)>, BackendError> {
        let start = start.clone();
        self.call(Op::Clients, |backend| async move { directory(&*backend)?.clients(&start).await })
            .await
    }

    async fn storage(
        &self,
        name: &LockName,
        conditions: &[LockName],
    ) -> Result<Vec<StoredEntry>, BackendError> {
        let (name, conditions) = (name.clone(), conditions.to_vec());
        let look = |backend: Arc<B>| async move {
            directory(&*backend)?.storage(&name, &conditions).await
        };
        self.call(Op::Storage, look).await
    }
}
