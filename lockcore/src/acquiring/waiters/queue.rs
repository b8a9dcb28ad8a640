//! [`Queue`]: those who wait in one lane, first in, first out.

use std::{
    collections::VecDeque,
    task::{Context, Poll, Waker},
    time::Duration,
};

use crate::Owner;

/// One that waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) owner: Owner,
    /// Nobody else has this owner, so that it gets in by nobody else's acquisition.
    pub(super) is_lone: bool,
    pub(super) waits: bool,
    /// The renewed lease with which it could take over a hold.
    pub(super) heir: Option<Duration>,
    signal: Signal,
}

impl Waiter {
    pub(super) fn new(owner: Owner, is_lone: bool, waits: bool, heir: Option<Duration>) -> Self {
        Self { owner, is_lone, waits, heir, signal: Signal::Silent }
    }
}

/// Whether a waiter has been told to look, and how to wake it. What comes while it does not listen is kept.
#[derive(Debug)]
enum Signal {
    Silent,
    Listening(Waker),
    Given,
}

impl Signal {
    /// Returns who has to be woken.
    fn give(&mut self) -> Option<Waker> {
        match std::mem::replace(self, Self::Given) {
            Self::Listening(waker) => Some(waker),
            Self::Silent | Self::Given => None,
        }
    }

    /// Takes the signal, or listens for it.
    fn poll(&mut self, context: &Context<'_>) -> Poll<()> {
        match self {
            Self::Given => {
                *self = Self::Silent;
                return Poll::Ready(());
            }
            Self::Listening(waker) if waker.will_wake(context.waker()) => {}
            Self::Listening(_) | Self::Silent => *self = Self::Listening(context.waker().clone()),
        }
        Poll::Pending
    }
}

/// The first is the head. Everybody has a ticket, and those of later ones are greater.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Here, not in the list: most are alone, and need no room for a list.
    head: Option<(u64, Waiter)>,
    others: VecDeque<(u64, Waiter)>,
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
        match self.head {
            None => self.head = Some((ticket, waiter)),
            Some(_) => self.others.push_back((ticket, waiter)),
        }
        ticket
    }

    /// Takes out who has this ticket. True if that was the head.
    pub(super) fn remove(&mut self, ticket: u64) -> bool {
        let is_head = self.head_ticket() == Some(ticket);
        let removed = if is_head {
            std::mem::replace(&mut self.head, self.others.pop_front())
        } else {
            self.place_of(ticket).and_then(|at| self.others.remove(at))
        };
        if let Some((_, waiter)) = removed {
            self.patient -= usize::from(waiter.waits);
            self.sociable -= usize::from(!waiter.is_lone);
        }
        if self.others.is_empty() && self.others.capacity() > 0 {
            self.others = VecDeque::new();
        }
        is_head
    }

    /// Where among the others who has this ticket is.
    fn place_of(&self, ticket: u64) -> Option<usize> {
        self.others.binary_search_by_key(&ticket, |(ticket, _)| *ticket).ok()
    }

    /// Resolves when who has this ticket has been signalled since it last did.
    pub(super) fn poll_signal(&mut self, ticket: u64, context: &Context<'_>) -> Poll<()> {
        let waiter = match &mut self.head {
            Some((first, waiter)) if *first == ticket => Some(waiter),
            _ => self.place_of(ticket).and_then(|at| self.others.get_mut(at)).map(|(_, waiter)| waiter),
        };
        waiter.map_or(Poll::Pending, |waiter| waiter.signal.poll(context))
    }

    pub(super) fn head(&self) -> Option<&Waiter> {
        self.head.as_ref().map(|(_, waiter)| waiter)
    }

    pub(super) fn head_ticket(&self) -> Option<u64> {
        self.head.as_ref().map(|(ticket, _)| *ticket)
    }

    /// The first ticket that was not given out yet.
    pub(super) fn next_ticket(&self) -> u64 {
        self.next_ticket
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.head.is_some()) + self.others.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    /// How many want to wait.
    pub(super) fn patient(&self) -> usize {
        self.patient
    }

    /// Signals the head. Returns who has to be woken for that.
    pub(super) fn signal_head(&mut self) -> Option<Waker> {
        self.head.as_mut().and_then(|(_, waiter)| waiter.signal.give())
    }

    /// Signals those who want to be in as `owner`.
    pub(super) fn signal_owner(&mut self, owner: &Owner) -> impl Iterator<Item = Waker> {
        self.signal(self.sociable > 0, move |waiter| &waiter.owner == owner)
    }

    /// Signals those who do not want to wait.
    pub(super) fn signal_impatient(&mut self) -> impl Iterator<Item = Waker> {
        self.signal(self.patient < self.len(), |waiter| !waiter.waits)
    }

    /// Signals everybody.
    pub(super) fn signal_all(&mut self) -> impl Iterator<Item = Waker> {
        self.signal(true, |_| true)
    }

    /// Signals those of whom this is true, if there are any. Returns who has to be woken for that.
    fn signal(&mut self, are_there: bool, is_meant: impl Fn(&Waiter) -> bool) -> impl Iterator<Item = Waker> {
        let all = self.head.iter_mut().chain(&mut self.others).map(|(_, waiter)| waiter);
        let meant = all.take(if are_there { usize::MAX } else { 0 }).filter(move |waiter| is_meant(waiter));
        meant.filter_map(|waiter| waiter.signal.give())
    }
}
