//! [`WaiterLimits`]: how many may wait at a time.

use crate::{LockError, LockName};

/// The most that may wait at a time in one client. More are refused, instead of filling the memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaiterLimits {
    /// For everything together.
    pub(crate) total: usize,
    /// For one name, so that one that is stuck does not keep all others from waiting.
    pub(crate) per_lock: usize,
}

impl WaiterLimits {
    /// Whether one more may wait beside `total` others.
    pub(crate) fn admit(self, total: usize, lock: &LockName) -> Result<(), LockError> {
        Self::check(total, self.total, "max_waiters", lock)
    }

    /// Whether one more may wait for a name for which `here` wait already.
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
