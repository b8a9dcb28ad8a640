//! [`Conditions`]: the part of a backend that stores the waiters of conditions.

use std::time::Duration;

use crate::{BackendError, LockName, backend::Wakeups, backend::async_trait};

/// The identity of a condition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ConditionId {
    /// The lock that the condition belongs to.
    pub lock: LockName,
    /// The name of the condition. A lock may have several.
    pub name: LockName,
}

impl ConditionId {
    /// The condition called `name` of `lock`.
    #[must_use]
    pub fn new(lock: LockName, name: LockName) -> Self {
        Self { lock, name }
    }
}

/// The reason why a waiter leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// The wait was cancelled. A notification that the waiter had received goes to the next one.
    Cancelled,
    /// The wait timed out. The waiter keeps a notification that it had received, and learns of it
    /// from the answer.
    TimedOut,
}

/// The conditions of a store: queues of waiters that are to be notified. As with
/// [`Backend`](crate::backend::Backend), each method is one atomic step, and any of its futures may
/// be dropped. The core checks that waiters and notifiers hold the lock; the backend does not.
///
/// A `waiter` is a text that is different for each wait.
///
/// # The contract
/// - **C33 (order)** `join` MUST put the waiter at the end of the queue, or leave it where it is.
///   `notify` MUST remove up to the given number of waiters, the first ones first, and answer how
///   many it removed.
/// - **C34 (lapse)** A place MUST be kept for the time that the last `join` or `stay` gave, and be
///   forgotten then. `stay` MUST NOT give a place to a waiter that has none: the waiter was
///   notified, or its place has lapsed.
/// - **C35 (leaving)** `leave` MUST remove the waiter. If the waiter was not in the queue any more,
///   its notification goes to the next one, as by `notify`, after [`Departure::Cancelled`], and
///   nowhere after [`Departure::TimedOut`]. A `join` MUST NOT take effect after a later `leave` of
///   its waiter was answered.
/// - **C36 (wake-up)** Once `subscribe` has returned, the notification of the waiter MUST wake the
///   subscription, and so MUST any interruption in which the notification may have been missed.
#[async_trait]
pub trait Conditions: Send + Sync {
    /// Queues `waiter`, and keeps its place for `keep` unless it asks again.
    async fn join(
        &self,
        condition: &ConditionId,
        waiter: &str,
        keep: Duration,
    ) -> Result<(), BackendError>;

    /// Keeps the place of `waiter` for `keep` from now. Returns `false` if the waiter has no place.
    async fn stay(
        &self,
        condition: &ConditionId,
        waiter: &str,
        keep: Duration,
    ) -> Result<bool, BackendError>;

    /// Removes `waiter` from the queue. Returns `false` if it was not in the queue any more.
    async fn leave(
        &self,
        condition: &ConditionId,
        waiter: &str,
        departure: Departure,
    ) -> Result<bool, BackendError>;

    /// Notifies up to `count` waiters, and returns how many there were.
    async fn notify(&self, condition: &ConditionId, count: u32) -> Result<u32, BackendError>;

    /// Subscribes to the notification of `waiter`. The subscription is in effect when this returns.
    async fn subscribe(
        &self,
        condition: &ConditionId,
        waiter: &str,
    ) -> Result<Box<dyn Wakeups>, BackendError>;
}
