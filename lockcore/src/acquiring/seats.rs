//! [`Seats`]: how many may wait at a time, in one client and for one name.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use dashmap::{DashMap, mapref::entry::Entry};
use rustc_hash::FxBuildHasher;

use crate::{LockError, LockName, backend::ConditionId};

/// The seats of those who wait. Whoever cannot get one is told so, instead of filling the memory.
#[derive(Debug)]
pub(crate) struct Seats {
    limit: usize,
    limit_per_lock: usize,
    taken: AtomicUsize,
    /// How many are counted in `taken_per_lock`, all together.
    counted: AtomicUsize,
    /// Only what somebody waits for who is not counted in a queue: a lock, or a condition of it. Those who wait to be notified must not keep
    /// out who is to notify them.
    taken_per_lock: DashMap<Awaited, usize, FxBuildHasher>,
}

/// A lock, and the condition of it if it is that.
type Awaited = (LockName, Option<LockName>);

impl Seats {
    pub(crate) fn new(limit: usize, limit_per_lock: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            limit_per_lock,
            taken: AtomicUsize::new(0),
            counted: AtomicUsize::new(0),
            taken_per_lock: DashMap::default(),
        })
    }

    /// Takes a seat among those who wait for `lock`. It is given back when the result is dropped.
    pub(crate) fn take(&self, lock: &LockName) -> Result<Seat<'_>, LockError> {
        self.take_of((lock.clone(), None))
    }

    /// Takes a seat among those who wait for `condition`.
    pub(crate) fn take_for(&self, condition: &ConditionId) -> Result<Seat<'_>, LockError> {
        self.take_of((condition.lock.clone(), Some(condition.name.clone())))
    }

    /// Takes a seat behind so many others that wait for `lock`, whom the caller has counted.
    pub(crate) fn take_behind(
        &self,
        others: usize,
        lock: &LockName,
    ) -> Result<Seat<'_>, LockError> {
        let seat = self.take_any(lock)?;
        let elsewhere = match self.counted.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.taken_per_lock.get(&(lock.clone(), None)).map_or(0, |taken| *taken),
        };
        if others + elsewhere >= self.limit_per_lock {
            Err(self.too_many_for(lock))
        } else {
            Ok(seat)
        }
    }

    fn take_of(&self, awaited: Awaited) -> Result<Seat<'_>, LockError> {
        let mut seat = self.take_any(&awaited.0)?;
        let mut here = self.taken_per_lock.entry(awaited.clone()).or_default();
        if *here >= self.limit_per_lock {
            return Err(self.too_many_for(&awaited.0));
        }
        *here += 1;
        drop(here);
        self.counted.fetch_add(1, Ordering::Relaxed);
        seat.counted = Some(Box::new(awaited));
        Ok(seat)
    }

    fn take_any(&self, lock: &LockName) -> Result<Seat<'_>, LockError> {
        // Counted first, so that two who come at once cannot both have the last one.
        let taken = self.taken.fetch_add(1, Ordering::Relaxed);
        let seat = Seat { seats: self, counted: None };
        if taken < self.limit {
            return Ok(seat);
        }
        Err(LockError::TooManyWaiters {
            lock: lock.clone(),
            limit: self.limit,
            option: "max_waiters",
        })
    }

    fn too_many_for(&self, lock: &LockName) -> LockError {
        let option = "max_waiters_per_lock";
        LockError::TooManyWaiters { lock: lock.clone(), limit: self.limit_per_lock, option }
    }
}

/// A seat that is taken.
#[derive(Debug)]
pub(crate) struct Seat<'a> {
    seats: &'a Seats,
    /// Where it is counted as well.
    counted: Option<Box<Awaited>>,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        if let Some(awaited) = self.counted.take()
            && let Entry::Occupied(mut here) = self.seats.taken_per_lock.entry(*awaited)
        {
            self.seats.counted.fetch_sub(1, Ordering::Relaxed);
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

    fn option(result: Result<Seat<'_>, LockError>) -> &'static str {
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
