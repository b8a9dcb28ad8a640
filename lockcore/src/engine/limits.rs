//! [`WaiterLimits`]: the limits on the number of waiters.

use crate::{LockError, LockName};

/// The most waiters that one client may have at a time. Further ones are refused, instead of
/// filling the memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaiterLimits {
    /// For everything together.
    pub(crate) total: usize,
    /// For one name, so that one stuck name does not use up the room for all others.
    pub(crate) per_lock: usize,
}

impl WaiterLimits {
    /// Refuses one more waiter beside `total` others, if that exceeds the limit.
    pub(crate) fn admit(self, total: usize, lock: &LockName) -> Result<(), LockError> {
        Self::check(total, self.total, "max_waiters", lock)
    }

    /// Refuses one more waiter for a name that has `here` waiters, if that exceeds the limit.
    pub(crate) fn admit_here(self, here: usize, lock: &LockName) -> Result<(), LockError> {
        Self::check(here, self.per_lock, "max_waiters_per_lock", lock)
    }

    fn check(
        waiting: usize,
        limit: usize,
        option: &'static str,
        lock: &LockName,
    ) -> Result<(), LockError> {
        if waiting < limit {
            return Ok(());
        }
        Err(LockError::TooManyWaiters { lock: lock.clone(), limit, option })
    }
}
