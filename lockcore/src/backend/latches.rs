//! [`Latches`]: the part of a backend that keeps count-down latches.

use crate::{BackendError, LockName, backend::Wakeups, backend::async_trait};

/// Count-down latches of a store. As with [`Backend`](crate::backend::Backend), each method is one atomic step, and any of its futures may
/// be dropped.
///
/// A latch without a count is open. A request's `id` tells its repetitions, which have to be recognized for at least a minute, from other
/// requests.
///
/// # The contract
/// - **C30 (set once)** `set_count` MUST set the count of an open latch, and answer false to everybody else, without effect. Sent again with
///   the same id, it is answered as the first time.
/// - **C31 (counting)** `count_down` MUST lower the count by one, and at zero open the latch; an open latch stays as it is. Sent
///   again with the same id, it MUST not count again, not even once the latch was opened and set again. `open` MUST open the latch and
///   answer what was left.
/// - **C32 (wake-up)** Once `subscribe` has returned, the opening of the latch MUST wake the subscription, whether by `count_down` or by
///   `open`, and so MUST any interruption in which it may have been missed.
#[async_trait]
pub trait Latches: Send + Sync {
    /// Gives the latch `name` a count of at least 1, if it has none. Whether it had none.
    async fn set_count(&self, name: &LockName, count: u32, id: &str) -> Result<bool, BackendError>;

    /// Counts down by one, and returns what is left. Zero of a latch that is open.
    async fn count_down(&self, name: &LockName, id: &str) -> Result<u32, BackendError>;

    /// What is left to be counted down. Zero of a latch that is open.
    async fn count(&self, name: &LockName) -> Result<u32, BackendError>;

    /// Opens the latch, whatever its count. What was left to be counted down.
    async fn open(&self, name: &LockName) -> Result<u32, BackendError>;

    /// Listens for the opening of the latch. The subscription is in effect when this returns.
    async fn subscribe(&self, name: &LockName) -> Result<Box<dyn Wakeups>, BackendError>;
}
