//! [`Condition`]: who waits to be notified.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use lockcore::backend::Departure;
use tokio::{sync::watch, time::Instant};

use super::listeners::Listeners;

/// A queue of waiters. Who is notified is taken out.
#[derive(Debug, Default)]
pub(crate) struct Condition {
    places: VecDeque<Place>,
    listeners: HashMap<String, Listeners>,
}

#[derive(Debug)]
struct Place {
    waiter: String,
    until: Instant,
}

impl Condition {
    /// Drops what has ended.
    pub(crate) fn settle(&mut self, now: Instant) {
        self.places.retain(|place| place.until > now);
        self.listeners.retain(|_, listeners| {
            listeners.settle();
            listeners.are_there()
        });
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.places.is_empty() && self.listeners.is_empty()
    }

    pub(crate) fn join(&mut self, waiter: &str, keep: Duration, now: Instant) {
        if !self.stay(waiter, keep, now) {
            self.places.push_back(Place { waiter: waiter.to_owned(), until: now + keep });
        }
    }

    pub(crate) fn stay(&mut self, waiter: &str, keep: Duration, now: Instant) -> bool {
        let place = self.places.iter_mut().find(|place| place.waiter == waiter);
        place.map(|place| place.until = now + keep).is_some()
    }

    pub(crate) fn leave(&mut self, waiter: &str, departure: Departure) -> bool {
        let before = self.places.len();
        self.places.retain(|place| place.waiter != waiter);
        let was_in = self.places.len() < before;
        if !was_in && departure == Departure::Cancelled {
            self.notify(1);
        }
        was_in
    }

    pub(crate) fn notify(&mut self, count: u32) -> u32 {
        let mut notified = 0;
        while notified < count
            && let Some(place) = self.places.pop_front()
        {
            if let Some(listeners) = self.listeners.get(&place.waiter) {
                listeners.wake();
            }
            notified += 1;
        }
        notified
    }

    pub(crate) fn subscribe(&mut self, waiter: &str) -> watch::Receiver<()> {
        self.listeners.entry(waiter.to_owned()).or_default().subscribe()
    }
}
