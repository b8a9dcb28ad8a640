//! [`Ordered`]: a store at which an acquisition does not overtake a release.

use std::{sync::Arc, time::Duration};

use lockcore::{
    BackendError, FencingToken, LockName, LockState,
    backend::{
        AcquireOutcome, AcquireRequest, Backend, Capabilities, Conditions, Directory, Latches,
        Limits, ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest, ResizeOutcome,
        ResizeRequest, SubscribeRequest, Wakeups, async_trait,
    },
};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fault, Faulty, Op};
use tokio::sync::RwLock;

use crate::{SECOND, enters, release};

/// The releases that are under way to a store, from all its clients. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Releases(Arc<RwLock<()>>);

/// A member of a quorum at which an acquisition waits for the releases that were made before it.
///
/// A release is done when a majority has answered. On a busy machine another member may still have
/// the hold by then, and refuse the next one, which the kit does not expect.
#[derive(Debug)]
pub(crate) struct Ordered<B> {
    store: B,
    releases: Releases,
}

impl<B> Ordered<B> {
    pub(crate) fn new(store: B, releases: &Releases) -> Self {
        Self { store, releases: releases.clone() }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods, reason = "the store is to be tested as it is")]
impl<B: Backend> Backend for Ordered<B> {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn limits(&self) -> Limits {
        self.store.limits()
    }

    fn intact_for(&self) -> Option<Duration> {
        self.store.intact_for()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, BackendError> {
        drop(self.releases.0.write().await);
        self.store.acquire(request).await
    }

    async fn renew(&self, holds: &[RenewRequest]) -> Result<Vec<RenewOutcome>, BackendError> {
        self.store.renew(holds).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome, BackendError> {
        let _release = self.releases.0.read().await;
        self.store.release(request).await
    }

    async fn force_release(&self, name: &LockName) -> Result<bool, BackendError> {
        self.store.force_release(name).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, BackendError> {
        self.store.inspect(name).await
    }

    async fn subscribe(
        &self,
        request: &SubscribeRequest,
    ) -> Result<Box<dyn Wakeups>, BackendError> {
        self.store.subscribe(request).await
    }

    async fn resize(&self, request: &ResizeRequest) -> Result<ResizeOutcome, BackendError> {
        self.store.resize(request).await
    }

    async fn raise_token(&self, name: &LockName, token: FencingToken) -> Result<(), BackendError> {
        self.store.raise_token(name, token).await
    }

    fn latches(&self) -> Option<&dyn Latches> {
        self.store.latches()
    }

    fn conditions(&self) -> Option<&dyn Conditions> {
        self.store.conditions()
    }

    fn directory(&self) -> Option<&dyn Directory> {
        self.store.directory()
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_does_not_overtake_a_release_of_another_client() {
    let (store, releases) = (MemoryBackend::new(), Releases::default());
    let slow = Faulty::new(store.clone());
    slow.faults().next(Op::Release, Fault::Delay(SECOND));
    let (one, two) = (Ordered::new(slow, &releases), Ordered::new(store, &releases));
    enters(&one, "a:1").await;
    let release = release("a:1");
    let (released, _) = tokio::join!(one.release(&release), enters(&two, "b:1"));
    assert_eq!(released.unwrap(), ReleaseOutcome::Released);
}
