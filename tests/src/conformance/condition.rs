//! A condition of a lock, and the operations of its waiters.

use std::time::Duration;

use lockcore::backend::{Backend, ConditionId, Conditions, Departure, Wakeups};
use uuid::Uuid;

use crate::{
    Fixture,
    conformance::scene::{LASTING, Scene, soon, unique_name},
};

/// A unique condition of a lock, and two clients of the store.
pub(crate) struct Condition<B> {
    pub(crate) scene: Scene<B>,
    pub(crate) id: ConditionId,
}

/// An actual or potential waiter for a notification, at one of the clients.
#[derive(Clone, Copy)]
pub(crate) struct ConditionWaiter<'a> {
    conditions: &'a dyn Conditions,
    condition: &'a ConditionId,
    waiter: &'a str,
}

/// Three unique waiters.
pub(crate) fn waiters() -> [String; 3] {
    [new_waiter(), new_waiter(), new_waiter()]
}

pub(crate) fn new_waiter() -> String {
    Uuid::new_v4().to_string()
}

impl<B: Backend> Condition<B> {
    pub(crate) async fn of<F: Fixture<Backend = B>>(fixture: &F) -> Self {
        let scene = Scene::of(fixture).await;
        let id = ConditionId::new(scene.name.clone(), unique_name(":condition"));
        Self { scene, id }
    }

    /// `waiter`, at the first client.
    pub(crate) fn one<'a>(&'a self, waiter: &'a str) -> ConditionWaiter<'a> {
        self.waiter(&self.scene.one, waiter)
    }

    /// `waiter`, at the second client.
    pub(crate) fn two<'a>(&'a self, waiter: &'a str) -> ConditionWaiter<'a> {
        self.waiter(&self.scene.two, waiter)
    }

    fn waiter<'a>(&'a self, client: &'a B, waiter: &'a str) -> ConditionWaiter<'a> {
        let conditions = client.conditions().expect("the backend has conditions");
        ConditionWaiter { conditions, condition: &self.id, waiter }
    }

    /// Notifies at most `count` waiters, through the first client.
    pub(crate) async fn notify(&self, count: u32) -> u32 {
        self.one("").notifies(count).await
    }

    /// Shows that a notification goes to `waiter`, which is therefore first in the queue.
    pub(crate) async fn notifies_first(&self, waiter: ConditionWaiter<'_>) {
        assert_eq!(self.notify(1).await, 1, "somebody waits");
        waiter.is_out().await;
    }
}

impl<'a> ConditionWaiter<'a> {
    /// The same waiter at another condition.
    pub(crate) fn of(self, condition: &'a ConditionId) -> Self {
        Self { condition, ..self }
    }

    pub(crate) async fn joins(self) {
        self.joins_for(LASTING).await;
    }

    pub(crate) async fn joins_for(self, keep: Duration) {
        soon(self.conditions.join(self.condition, self.waiter, keep)).await.expect("join failed");
    }

    pub(crate) async fn asks_to_stay(self, keep: Duration) -> bool {
        soon(self.conditions.stay(self.condition, self.waiter, keep)).await.expect("stay failed")
    }

    /// Shows that the waiter has a place. The place then outlasts the test.
    pub(crate) async fn is_in(self) {
        assert!(self.asks_to_stay(LASTING).await, "{} should wait still", self.waiter);
    }

    /// Shows that the waiter has no place, and that asking does not give it one.
    pub(crate) async fn is_out(self) {
        assert!(!self.asks_to_stay(LASTING).await, "{} should not wait any more", self.waiter);
    }

    pub(crate) async fn asks_to_leave(self, departure: Departure) -> bool {
        soon(self.conditions.leave(self.condition, self.waiter, departure))
            .await
            .expect("leave failed")
    }

    pub(crate) async fn notifies(self, count: u32) -> u32 {
        soon(self.conditions.notify(self.condition, count)).await.expect("notify failed")
    }

    pub(crate) async fn subscribes(self) -> Box<dyn Wakeups> {
        soon(self.conditions.subscribe(self.condition, self.waiter))
            .await
            .expect("subscribe failed")
    }

    /// A `join` that may be dropped.
    pub(crate) async fn begins_to_join(self) {
        drop(self.conditions.join(self.condition, self.waiter, LASTING).await);
    }

    /// A `stay` that may be dropped.
    pub(crate) async fn begins_to_stay(self) {
        drop(self.conditions.stay(self.condition, self.waiter, LASTING).await);
    }

    /// A `leave` that may be dropped.
    pub(crate) async fn begins_to_leave(self, departure: Departure) {
        drop(self.conditions.leave(self.condition, self.waiter, departure).await);
    }

    /// A `notify` that may be dropped.
    pub(crate) async fn begins_to_notify(self) {
        drop(self.conditions.notify(self.condition, 1).await);
    }

    /// A `subscribe` that may be dropped.
    pub(crate) async fn begins_to_subscribe(self) {
        drop(self.conditions.subscribe(self.condition, self.waiter).await);
    }
}
