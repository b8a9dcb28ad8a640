//! [`Waiters`]: the number of waiters in a client.

use std::mem;
use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::{LockError, LockName, backend::ConditionId, engine::WaiterLimits};

/// Counts the waiters. A waiter beyond the limits is refused, instead of filling the memory.
#[derive(Debug)]
pub(crate) struct Waiters {
    limits: WaiterLimits,
    total: AtomicUsize,
    /// The waiters of latches and of conditions of locks. Lanes count the others. They are counted
    /// separately, because tasks that wait for a notification must not keep out the task that would
    /// notify them.
    beside: Mutex<HashMap<(LockName, Option<LockName>), usize, FxBuildHasher>>,
}

impl Waiters {
    pub(super) fn new(limits: WaiterLimits) -> Self {
        Self { limits, total: AtomicUsize::new(0), beside: Mutex::default() }
    }

    /// Counts one more waiter for `lock`, in a lane with `here` waiters, until it is
    /// [forgotten](Self::forget).
    pub(super) fn count(&self, here: usize, lock: &LockName) -> Result<(), LockError> {
        let counted = self.count_any(lock)?;
        self.limits.admit_here(here, lock)?;
        mem::forget(counted);
        Ok(())
    }

    /// A waiter that was counted in a lane waits no more.
    pub(super) fn forget(&self) {
        self.total.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts a waiter of a latch.
    pub(crate) fn count_for_latch(&self, latch: &LockName) -> Result<Counted<'_>, LockError> {
        self.count_beside((latch.clone(), None))
    }

    /// Counts a waiter of a condition.
    pub(crate) fn count_for(&self, condition: &ConditionId) -> Result<Counted<'_>, LockError> {
        self.count_beside((condition.lock.clone(), Some(condition.name.clone())))
    }

    fn count_beside(
        &self,
        awaited: (LockName, Option<LockName>),
    ) -> Result<Counted<'_>, LockError> {
        let mut counted = self.count_any(&awaited.0)?;
        let mut beside = self.beside();
        let here = beside.entry(awaited.clone()).or_default();
        self.limits.admit_here(*here, &awaited.0)?;
        *here += 1;
        drop(beside);
        counted.beside = Some(Box::new(awaited));
        Ok(counted)
    }

    fn count_any(&self, lock: &LockName) -> Result<Counted<'_>, LockError> {
        // Counted first, so that two concurrent arrivals cannot both be the last one admitted.
        let before = self.total.fetch_add(1, Ordering::Relaxed);
        let counted = Counted { waiters: self, beside: None };
        self.limits.admit(before, lock)?;
        Ok(counted)
    }

    fn beside(
        &self,
    ) -> MutexGuard<'_, HashMap<(LockName, Option<LockName>), usize, FxBuildHasher>> {
        self.beside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The count of one waiter of a latch or a condition, until this value is dropped.
#[derive(Debug)]
pub(crate) struct Counted<'a> {
    waiters: &'a Waiters,
    beside: Option<Box<(LockName, Option<LockName>)>>,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        if let Some(awaited) = self.beside.take() {
            let mut beside = self.waiters.beside();
            if let Some(here) = beside.get_mut(&*awaited) {
                *here -= 1;
                if *here == 0 {
                    beside.remove(&*awaited);
                }
            }
        }
        self.waiters.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> LockName {
        LockName::new(name).unwrap()
    }

    fn option<T>(result: Result<T, LockError>) -> &'static str {
        match result.err().unwrap() {
            LockError::TooManyWaiters { option, .. } => option,
            error => panic!("{error}"),
        }
    }

    #[test]
    fn as_many_as_allowed_may_wait_and_are_forgotten_afterwards() {
        let waiters = Waiters::new(WaiterLimits { total: 3, per_lock: 2 });
        let (a, b) = (name("a"), name("b"));
        let first = waiters.count_for_latch(&a).unwrap();
        let second = waiters.count_for_latch(&a).unwrap();
        assert_eq!(option(waiters.count_for_latch(&a)), "max_waiters_per_lock");
        assert_eq!(option(waiters.count(2, &b)), "max_waiters_per_lock");
        waiters.count(1, &b).unwrap();
        assert_eq!(option(waiters.count(0, &b)), "max_waiters");
        drop(first);
        let again = waiters.count_for_latch(&a).unwrap();
        drop((second, again));
        waiters.forget();
        assert!(waiters.beside().is_empty(), "an idle name costs nothing");
        assert_eq!(waiters.total.load(Ordering::Relaxed), 0);
    }
}
