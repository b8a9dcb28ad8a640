//! Exclusive and fair locks: one owner at a time.

use lockcore::{FencingToken, Mode, backend::AcquireRequest};
use tokio::time::Instant;

use super::{NameState, QueuedHold, StoredHold};

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

    /// Grants a free lock to the first in the queue, if its last request said how it would hear of
    /// that. The hold takes the place of the waiter, and ends with it.
    pub(super) fn grant_directly(&mut self, next_token: impl FnOnce() -> FencingToken) {
        if !self.holds.is_empty()
            || self.queue.front().is_none_or(|first| first.direct_grant.is_none())
        {
            return;
        }
        let Some(first) = self.queue.pop_front() else { return };
        let QueuedHold { hold, expires_at, direct_grant: granted_request } = first;
        let (mode, token) = (Mode::Fair, next_token());
        self.holds.push(StoredHold { hold, mode, count: 1, token, expires_at, granted_request });
    }
}
