//! A latch, and the operations on it.

use std::future::Future;

use lockcore::{
    BackendErrorKind, LockName,
    backend::{Backend, Latches, Wakeups},
};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::{
    Fixture,
    conformance::scene::{Scene, soon},
};

/// A latch, at one of the clients.
#[derive(Clone, Copy)]
pub(crate) struct Latch<'a> {
    latches: &'a dyn Latches,
    name: &'a LockName,
}

/// The latch with the name of the scene, at both clients.
pub(crate) fn latch<B: Backend>(scene: &Scene<B>) -> [Latch<'_>; 2] {
    [&scene.one, &scene.two].map(|client| Latch {
        latches: client.latches().expect("the backend has latches"),
        name: &scene.name,
    })
}

/// A unique id of a request.
pub(crate) fn new_id() -> String {
    Uuid::new_v4().to_string()
}

/// The answers to concurrent requests.
pub(crate) async fn at_once<F, R>(
    fixture: &F,
    clients: usize,
    request: impl Fn(F::Backend) -> R,
) -> Vec<R::Output>
where
    F: Fixture,
    R: Future<Output: Send> + Send + 'static,
{
    let mut requests = JoinSet::new();
    for _ in 0..clients {
        requests.spawn(request(fixture.client().await));
    }
    soon(requests.join_all()).await
}

impl<'a> Latch<'a> {
    /// The latch with another name, at the same client.
    pub(crate) fn under(self, name: &'a LockName) -> Self {
        Self { name, ..self }
    }

    pub(crate) async fn asks_to_set(self, count: u32, id: &str) -> bool {
        soon(self.latches.set_count(self.name, count, id)).await.expect("set_count failed")
    }

    /// Sets the count of an open latch.
    pub(crate) async fn sets(self, count: u32) {
        assert!(
            self.asks_to_set(count, &new_id()).await,
            "the latch is open: its count should have been set"
        );
        self.has_left(count).await;
    }

    /// Shows that the count cannot be set, and that the attempt changes nothing.
    pub(crate) async fn cannot_set(self, count: u32) {
        let left = self.left().await;
        assert!(
            !self.asks_to_set(count, &new_id()).await,
            "the latch had a count: it cannot be set"
        );
        self.has_left(left).await;
    }

    /// Shows that the store refuses a latch of this name.
    pub(crate) async fn is_refused(self) {
        let answer = soon(self.latches.set_count(self.name, 1, &new_id())).await;
        let refusal = answer.expect_err("a latch that the store cannot have is refused");
        assert_eq!(refusal.kind(), BackendErrorKind::Configuration, "{refusal}");
        assert!(!refusal.is_outcome_unknown(), "{refusal}");
    }

    pub(crate) async fn counts_down_as(self, id: &str) -> u32 {
        soon(self.latches.count_down(self.name, id)).await.expect("count_down failed")
    }

    pub(crate) async fn counts_down(self) -> u32 {
        self.counts_down_as(&new_id()).await
    }

    pub(crate) async fn opens(self) -> u32 {
        soon(self.latches.open(self.name)).await.expect("open failed")
    }

    pub(crate) async fn left(self) -> u32 {
        soon(self.latches.count(self.name)).await.expect("count failed")
    }

    pub(crate) async fn has_left(self, count: u32) {
        assert_eq!(self.left().await, count, "what is left to be counted down");
    }

    pub(crate) async fn subscribes(self) -> Box<dyn Wakeups> {
        soon(self.latches.subscribe(self.name)).await.expect("subscribe failed")
    }

    /// A `set_count` that may be dropped.
    pub(crate) async fn begins_to_set(self, count: u32, id: &str) {
        drop(self.latches.set_count(self.name, count, id).await);
    }

    /// A `count_down` that may be dropped.
    pub(crate) async fn begins_to_count_down(self, id: &str) {
        drop(self.latches.count_down(self.name, id).await);
    }

    /// An `open` that may be dropped.
    pub(crate) async fn begins_to_open(self) {
        drop(self.latches.open(self.name).await);
    }

    /// A `count` that may be dropped.
    pub(crate) async fn begins_to_look(self) {
        drop(self.latches.count(self.name).await);
    }

    /// A `subscribe` that may be dropped.
    pub(crate) async fn begins_to_subscribe(self) {
        drop(self.latches.subscribe(self.name).await);
    }
}
