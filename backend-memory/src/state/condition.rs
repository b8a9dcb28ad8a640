//! [`ConditionQueue`]: the waiters of one condition.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use lockcore::backend::Departure;
use tokio::{sync::watch, time::Instant};

use super::wake_channel::WakeChannel;

/// The waiters of a condition in order of arrival. A notification removes a waiter from the
/// queue, so a waiter that is still queued has not been notified.
#[derive(Debug, Default)]
pub(crate) struct ConditionQueue {
    waiters: VecDeque<ConditionWaiter>,
    channels: HashMap<String, WakeChannel>,
}

#[derive(Debug)]
struct ConditionWaiter {
    id: String,
    expires_at: Instant,
}

impl ConditionQueue {
    /// Drops waiters whose places have expired, and channels without subscribers.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.waiters.retain(|waiter| waiter.expires_at > now);
        self.channels.retain(|_, channel| {
            channel.expire();
            channel.has_subscribers()
        });
    }

    /// The number of waiters, and the time until the last place ends.
    pub(crate) fn waiters(&mut self, now: Instant) -> (u64, Option<Duration>) {
        let last = self.waiters.iter().map(|waiter| waiter.expires_at).max();
        (self.waiters.len() as u64, last.map(|last| last.saturating_duration_since(now)))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.waiters.is_empty() && self.channels.is_empty()
    }

    pub(crate) fn join(&mut self, waiter: &str, keep: Duration, now: Instant) {
        if !self.stay(waiter, keep, now) {
            let waiter = ConditionWaiter { id: waiter.to_owned(), expires_at: now + keep };
            self.waiters.push_back(waiter);
        }
    }

    pub(crate) fn stay(&mut self, waiter: &str, keep: Duration, now: Instant) -> bool {
        let queued = self.waiters.iter_mut().find(|queued| queued.id == waiter);
        queued.map(|queued| queued.expires_at = now + keep).is_some()
    }

    pub(crate) fn leave(&mut self, waiter: &str, departure: Departure) -> bool {
        let before = self.waiters.len();
        self.waiters.retain(|queued| queued.id != waiter);
        let was_in = self.waiters.len() < before;
        if !was_in && departure == Departure::Cancelled {
            self.notify(1);
        }
        was_in
    }

    pub(crate) fn notify(&mut self, count: u32) -> u32 {
        let mut notified = 0;
        while notified < count
            && let Some(waiter) = self.waiters.pop_front()
        {
            if let Some(channel) = self.channels.get(&waiter.id) {
                channel.wake();
            }
            notified += 1;
        }
        notified
    }

    pub(crate) fn subscribe(&mut self, waiter: &str) -> watch::Receiver<()> {
        self.channels.entry(waiter.to_owned()).or_default().subscribe()
    }
}
