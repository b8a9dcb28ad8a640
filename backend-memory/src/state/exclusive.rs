//! Exclusive and fair locks: one owner at a time.

use lockcore::backend::AcquireRequest;
use tokio::time::Instant;

use super::Cell;

impl Cell {
    pub(super) fn in_the_way_of_a_stranger(&self, request: &AcquireRequest) -> Option<Instant> {
        let others = self.holds.iter().filter(|stored| stored.hold.owner() != request.hold.owner());
        others.map(|stored| stored.ends).max()
    }

    /// A named owner that takes over its own hold passes the queue: the lock is not free.
    pub(super) fn ahead_of_a_fair_hold(&self, request: &AcquireRequest) -> Option<Instant> {
        let first = self.queue.front().filter(|first| first.hold != request.hold)?;
        self.holds.is_empty().then_some(first.until)
    }
}
