//! [`Latches`]: the part of a backend that stores count-down latches.

use crate::{BackendError, LockName, backend::Wakeups, backend::async_trait};

/// The count-down latches of a store. As with [`Backend`](crate::backend::Backend), each method is
/// one atomic step, and any of its futures may be dropped.
///
/// A latch without a count is open. The `id` of a request identifies its repetitions, and the store
/// MUST remember it for at least a minute.
///
/// # The contract
/// - **C30 (set once)** `set_count` MUST set the count of an open latch, and return `false`,
///   without effect, for a latch that has a count. A repetition with the same id gets the first
///   answer again.
/// - **C31 (counting)** `count_down` MUST lower the count by one, and open the latch at zero; an
///   open latch stays open. A repetition with the same id MUST NOT count again, not even once the
///   latch was opened and set again. `open` MUST open the latch and answer the count that was left.
/// - **C32 (wake-up)** Once `subscribe` has returned, the opening of the latch MUST wake the
///   subscription, whether by `count_down` or by `open`, and so MUST any interruption in which the
///   opening may have been missed.
#[async_trait]
pub trait Latches: Send + Sync {
    /// Gives the latch `name` a count of at least 1 if it has none. Returns `true` if there was
    /// none.
    async fn set_count(&self, name: &LockName, count: u32, id: &str) -> Result<bool, BackendError>;

    /// Counts down by one, and returns the count that is left: zero for an open latch.
    async fn count_down(&self, name: &LockName, id: &str) -> Result<u32, BackendError>;

    /// Returns the count that is left: zero for an open latch.
    async fn count(&self, name: &LockName) -> Result<u32, BackendError>;

    /// Opens the latch, whatever its count, and returns the count that was left.
    async fn open(&self, name: &LockName) -> Result<u32, BackendError>;

    /// Subscribes to the opening of the latch. The subscription is in effect when this returns.
    async fn subscribe(&self, name: &LockName) -> Result<Box<dyn Wakeups>, BackendError>;
}
