//! [`Queue`]: those who wait in one lane, first in, first out.

use std::{
    collections::VecDeque,
    iter, mem,
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
        match mem::replace(self, Self::Given) {
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
    /// In a box: a hold that nobody waits for needs no room for it.
    line: Option<Box<Line>>,
    next_ticket: u64,
}

/// A queue in which there is somebody.
#[derive(Debug)]
struct Line {
    /// Here, not in the list: most are alone, and need none.
    head: (u64, Waiter),
    others: VecDeque<(u64, Waiter)>,
    /// How many of them there are that want to wait, and that are not alone with their owners.
    patient: usize,
    sociable: usize,
}

impl Line {
    /// Where among the others who has this ticket is.
    fn place_of(&self, ticket: u64) -> Option<usize> {
        self.others.binary_search_by_key(&ticket, |(ticket, _)| *ticket).ok()
    }

    fn len(&self) -> usize {
        1 + self.others.len()
    }
}

impl Queue {
    /// Puts `waiter` at the end, and returns its ticket.
    pub(super) fn push(&mut self, waiter: Waiter) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let (patient, sociable) = (usize::from(waiter.waits), usize::from(!waiter.is_lone));
        match &mut self.line {
            None => {
                let head = (ticket, waiter);
                self.line =
                    Some(Box::new(Line { head, others: VecDeque::new(), patient, sociable }));
            }
            Some(line) => {
                line.patient += patient;
                line.sociable += sociable;
                line.others.push_back((ticket, waiter));
            }
        }
        ticket
    }

    /// Takes out who has this ticket. True if that was the head.
    pub(super) fn remove(&mut self, ticket: u64) -> bool {
        let Some(line) = &mut self.line else { return false };
        let is_head = line.head.0 == ticket;
        let removed = match is_head {
            true => line.others.pop_front().map(|next| mem::replace(&mut line.head, next)),
            false => line.place_of(ticket).and_then(|at| line.others.remove(at)),
        };
        match removed {
            Some((_, waiter)) => {
                line.patient -= usize::from(waiter.waits);
                line.sociable -= usize::from(!waiter.is_lone);
            }
            None if is_head => self.line = None,
            None => {}
        }
        is_head
    }

    /// Resolves when who has this ticket has been signalled since it last did.
    pub(super) fn poll_signal(&mut self, ticket: u64, context: &Context<'_>) -> Poll<()> {
        let Some(line) = &mut self.line else { return Poll::Pending };
        let waiter = match line.head.0 == ticket {
            true => Some(&mut line.head),
            false => line.place_of(ticket).and_then(|at| line.others.get_mut(at)),
        };
        waiter.map_or(Poll::Pending, |(_, waiter)| waiter.signal.poll(context))
    }

    pub(super) fn head(&self) -> Option<&Waiter> {
        self.line.as_ref().map(|line| &line.head.1)
    }

    pub(super) fn head_ticket(&self) -> Option<u64> {
        self.line.as_ref().map(|line| line.head.0)
    }

    /// The first ticket that was not given out yet.
    pub(super) fn next_ticket(&self) -> u64 {
        self.next_ticket
    }

    pub(super) fn len(&self) -> usize {
        self.line.as_ref().map_or(0, |line| line.len())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.line.is_none()
    }

    /// How many want to wait.
    pub(super) fn patient(&self) -> usize {
        self.line.as_ref().map_or(0, |line| line.patient)
    }

    /// Signals the head. Returns who has to be woken for that.
    pub(super) fn signal_head(&mut self) -> Option<Waker> {
        self.line.as_mut().and_then(|line| line.head.1.signal.give())
    }

    /// Signals those who want to be in as `owner`.
    pub(super) fn signal_owner(&mut self, owner: &Owner) -> impl Iterator<Item = Waker> {
        self.signal(|line| line.sociable > 0, move |waiter| &waiter.owner == owner)
    }

    /// Signals those who do not want to wait.
    pub(super) fn signal_impatient(&mut self) -> impl Iterator<Item = Waker> {
        self.signal(|line| line.patient < line.len(), |waiter| !waiter.waits)
    }

    /// Signals everybody.
    pub(super) fn signal_all(&mut self) -> impl Iterator<Item = Waker> {
        self.signal(|_| true, |_| true)
    }

    /// Signals those of whom this is true, if there are any. Returns who has to be woken for that.
    fn signal(
        &mut self,
        are_there: impl Fn(&Line) -> bool,
        is_meant: impl Fn(&Waiter) -> bool,
    ) -> impl Iterator<Item = Waker> {
        let line = self.line.as_deref_mut().filter(|line| are_there(line));
        let all =
            line.into_iter().flat_map(|line| iter::once(&mut line.head).chain(&mut line.others));
        let meant = all.map(|(_, waiter)| waiter).filter(move |waiter| is_meant(waiter));
        meant.filter_map(|waiter| waiter.signal.give())
    }
}
