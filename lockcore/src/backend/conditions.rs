//! [`Conditions`]: the part of a backend that keeps who waits to be notified.

use std::time::Duration;

use crate::{BackendError, LockName, backend::Wakeups, backend::async_trait};

/// A condition of a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ConditionId {
    /// The lock.
    pub lock: LockName,
    /// What the condition is called. A lock may have several.
    pub name: LockName,
}

impl ConditionId {
    /// The condition called `name` of `lock`.
    #[must_use]
    pub fn new(lock: LockName, name: LockName) -> Self {
        Self { lock, name }
    }
}

/// Why a waiter leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// The wait was cancelled: a notification that the waiter has got goes to the next one.
    Cancelled,
    /// The wait timed out: the waiter keeps a notification that it has got, and learns of it from the answer.
    TimedOut,
}

/// Conditions of a store: queues of those who wait to be notified. As with [`Backend`](crate::backend::Backend), each method is one atomic step,
/// and any of its futures may be dropped. Who may wait and notify, and that they hold the lock, is not the backend's concern.
///
/// A `waiter` is a text that is different for each wait.
///
/// # The contract
/// - **C33 (order)** `join` MUST put the waiter at the end of the queue, or leave it where it is. `notify` MUST take out as many as it
///   is asked for, if there are so many, the first first, and answer how many.
/// - **C34 (lapse)** A place MUST be kept for as long as the last `join` or `stay` said, and be forgotten then. `stay` MUST NOT give a place to
///   a waiter that has none: it was notified, or its place has lapsed.
/// - **C35 (leaving)** `leave` MUST take the waiter out. If it was no longer in, the notification that it had got goes to the
///   next, as by `notify`, after [`Departure::Cancelled`], and nowhere after [`Departure::TimedOut`]. A `join` MUST NOT take effect after a `leave` of its waiter that began later has been answered.
/// - **C36 (wake-up)** Once `subscribe` has returned, the waiter's being notified MUST wake the subscription, and so MUST any
///   interruption in which that may have been missed.
#[async_trait]
pub trait Conditions: Send + Sync {
    /// Queues `waiter`, and keeps its place for `keep`, unless it asks again.
    async fn join(
        &self,
        condition: &ConditionId,
        waiter: &str,
        keep: Duration,
    ) -> Result<(), BackendError>;

    /// Keeps the place of `waiter` for `keep` from now. Whether it has one still.
    async fn stay(
        &self,
        condition: &ConditionId,
        waiter: &str,
        keep: Duration,
    ) -> Result<bool, BackendError>;

    /// Takes `waiter` out. Whether it was in still.
    async fn leave(
        &self,
        condition: &ConditionId,
        waiter: &str,
        departure: Departure,
    ) -> Result<bool, BackendError>;

    /// Notifies up to `count` of those who wait. How many there were.
    async fn notify(&self, condition: &ConditionId, count: u32) -> Result<u32, BackendError>;

    /// Listens for the notification of `waiter`. The subscription is in effect when this returns.
    async fn subscribe(
        &self,
        condition: &ConditionId,
        waiter: &str,
    ) -> Result<Box<dyn Wakeups>, BackendError>;
}
