//! Exclusive and fair locks: one owner at a time.

use lockcore::backend::AcquireRequest;
use tokio::time::Instant;

use super::NameState;

impl NameState {
    /// When the hold of another owner expires, if there is one.
    pub(super) fn exclusive_blocked_until(&self, request: &AcquireRequest) -> Option<Instant> {
        let others = self.holds.iter().filter(|stored| stored.hold.owner() != request.hold.owner());
        others.map(|stored| stored.expires_at).max()
    }

    /// When the place of the first waiter expires, unless the request is that waiter's own. A
    /// named owner that takes over its own hold skips the queue: the lock is not free.
    pub(super) fn fair_turn_blocked_until(&self, request: &AcquireRequest) -> Option<Instant> {
        let first = self.queue.front().filter(|first| first.hold != request.hold)?;
        self.holds.is_empty().then_some(first.expires_at)
    }
}
