//! [`Queue`]: those who wait in one lane, first in, first out.

use std::{collections::VecDeque, sync::Arc};

use tokio::sync::Notify;

use crate::{Owner, leases::lease::Lease};

/// One that waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) owner: Owner,
    /// Nobody else has this owner, so that it gets in by nobody else's acquisition.
    pub(super) is_lone: bool,
    pub(super) waits: bool,
    /// The lease with which it could take over a hold.
    pub(super) heir: Option<Lease>,
    pub(super) signal: Arc<Notify>,
}

/// The first is the head. Everybody has a ticket, and those of later ones are greater.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiters: VecDeque<(u64, Waiter)>,
    next_ticket: u64,
    /// How many of them there are that want to wait, and that are not alone with their owners.
    patient: usize,
    sociable: usize,
}

impl Queue {
    /// Puts `waiter` at the end, and returns its ticket.
    pub(super) fn push(&mut self, waiter: Waiter) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.patient += usize::from(waiter.waits);
        self.sociable += usize::from(!waiter.is_lone);
        self.waiters.push_back((ticket, waiter));
        ticket
    }

    /// Takes out who has this ticket. True if that was the head.
    pub(super) fn remove(&mut self, ticket: u64) -> bool {
        let Ok(at) = self.waiters.binary_search_by_key(&ticket, |(ticket, _)| *ticket) else { return false };
        if let Some((_, waiter)) = self.waiters.remove(at) {
            self.patient -= usize::from(waiter.waits);
            self.sociable -= usize::from(!waiter.is_lone);
        }
        if self.waiters.is_empty() {
            // A hold that nobody waits for needs no room for a queue.
            self.waiters = VecDeque::new();
        }
        at == 0
    }

    pub(super) fn head(&self) -> Option<&Waiter> {
        self.waiters.front().map(|(_, waiter)| waiter)
    }

    pub(super) fn head_ticket(&self) -> Option<u64> {
        self.waiters.front().map(|(ticket, _)| *ticket)
    }

    /// The first ticket that was not given out yet.
    pub(super) fn next_ticket(&self) -> u64 {
        self.next_ticket
    }

    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// How many want to wait.
    pub(super) fn patient(&self) -> usize {
        self.patient
    }

    /// Those who want to be in as `owner`.
    pub(super) fn of(&self, owner: &Owner) -> impl Iterator<Item = &Waiter> {
        let all = if self.sociable > 0 { self.waiters.len() } else { 0 };
        self.waiters.range(..all).map(|(_, waiter)| waiter).filter(move |waiter| &waiter.owner == owner)
    }

    /// Those who do not want to wait.
    pub(super) fn impatient(&self) -> impl Iterator<Item = &Waiter> {
        let all = if self.patient < self.waiters.len() { self.waiters.len() } else { 0 };
        self.waiters.range(..all).map(|(_, waiter)| waiter).filter(|waiter| !waiter.waits)
    }
}
