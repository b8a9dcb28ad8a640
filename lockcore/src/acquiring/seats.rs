//! [`Seats`]: how many may wait at a time, in one client and for one name.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use dashmap::{DashMap, mapref::entry::Entry};

use crate::{ConditionId, LockError, LockName};

/// The seats of those who wait. Whoever cannot get one is told so, instead of filling the memory.
#[derive(Debug)]
pub(crate) struct Seats {
    limit: usize,
    limit_per_lock: usize,
    taken: AtomicUsize,
    /// Only what somebody waits for: a lock, or a condition of it. Those who wait to be notified must not keep out who is to notify them.
    taken_per_lock: DashMap<Awaited, usize>,
}

/// A lock, and the condition of it if it is that.
type Awaited = (LockName, Option<LockName>);

impl Seats {
    pub(crate) fn new(limit: usize, limit_per_lock: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            limit_per_lock,
            taken: AtomicUsize::new(0),
            taken_per_lock: DashMap::default(),
        })
    }

    /// Takes a seat among those who wait for `lock`. It is given back when the result is dropped.
    pub(crate) fn take(self: &Arc<Self>, lock: &LockName) -> Result<Seat, LockError> {
        self.take_of((lock.clone(), None))
    }

    /// Takes a seat among those who wait for `condition`.
    pub(crate) fn take_for(self: &Arc<Self>, condition: &ConditionId) -> Result<Seat, LockError> {
        self.take_of((condition.lock.clone(), Some(condition.name.clone())))
    }

    fn take_of(self: &Arc<Self>, awaited: Awaited) -> Result<Seat, LockError> {
        let lock = &awaited.0;
        let full = |limit, option| LockError::TooManyWaiters { lock: lock.clone(), limit, option };
        // Counted first, so that two who come at once cannot both have the last one.
        if self.taken.fetch_add(1, Ordering::Relaxed) >= self.limit {
            self.taken.fetch_sub(1, Ordering::Relaxed);
            return Err(full(self.limit, "max_waiters"));
        }
        let mut here = self.taken_per_lock.entry(awaited.clone()).or_default();
        if *here >= self.limit_per_lock {
            drop(here);
            self.taken.fetch_sub(1, Ordering::Relaxed);
            return Err(full(self.limit_per_lock, "max_waiters_per_lock"));
        }
        *here += 1;
        drop(here);
        Ok(Seat { seats: self.clone(), awaited })
    }
}

/// A seat that is taken.
#[derive(Debug)]
pub(crate) struct Seat {
    seats: Arc<Seats>,
    awaited: Awaited,
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Entry::Occupied(mut here) = self.seats.taken_per_lock.entry(self.awaited.clone()) {
            *here.get_mut() -= 1;
            if *here.get() == 0 {
                here.remove();
            }
        }
        self.seats.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> LockName {
        LockName::new(name).unwrap()
    }

    fn option(result: Result<Seat, LockError>) -> &'static str {
        match result.unwrap_err() {
            LockError::TooManyWaiters { option, .. } => option,
            error => panic!("{error}"),
        }
    }

    #[test]
    fn every_seat_can_be_taken_and_comes_back() {
        let seats = Seats::new(3, 2);
        let (a, b) = (name("a"), name("b"));
        let first = seats.take(&a).unwrap();
        let second = seats.take(&a).unwrap();
        assert_eq!(option(seats.take(&a)), "max_waiters_per_lock");
        let third = seats.take(&b).unwrap();
        assert_eq!(option(seats.take(&b)), "max_waiters");
        drop(first);
        let again = seats.take(&a).unwrap();
        drop((second, third, again));
        assert!(seats.taken_per_lock.is_empty(), "an idle name costs nothing");
        assert_eq!(seats.taken.load(Ordering::Relaxed), 0);
    }
}
