//! [`WaitQueue`]: the waiters of one lane, in order, with lookup by ticket and by owner.

use std::{
    collections::{HashMap, VecDeque},
    mem,
};

use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

use super::hold::{Offer, ReleaseNumber};
use crate::{LockError, Mode, Owner, time::Moment};

/// Names a waiter within its lane. Later waiters have greater tickets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket(u64);

/// An acquisition that comes to its lane.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Asker {
    pub(crate) owner: Owner,
    /// Set if nobody else has this owner, so that no other acquisition can let it in.
    pub(crate) has_fresh_owner: bool,
    pub(crate) mode: Mode,
    /// Set if it waits. Otherwise it is refused if it would have to wait.
    pub(crate) is_patient: bool,
    /// Set if it may take over a hold of another task.
    pub(crate) takes_over: bool,
    /// Set if it has a demand of its own, which the backend may fail to meet while it serves
    /// others, and vice versa.
    pub(crate) fails_alone: bool,
    /// Set if it gives up by itself after a time. Used by reports about waits.
    pub(crate) has_limit: bool,
}

impl Asker {
    /// Returns `true` if this acquisition may get in where `other` was refused: it wants something
    /// else, or may take over a hold.
    pub(super) fn may_enter_after(&self, other: &Self) -> bool {
        self.mode != other.mode || self.owner.name().is_some()
    }
}

/// The backend's last refusal, as far as it is known.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Refusal {
    /// No change is expected before this moment.
    pub(super) until: Option<Moment>,
    /// When the hold in the way ends, as the backend reported. The backend may be asked again
    /// before that.
    pub(super) end: Option<Moment>,
    /// Counts the events that may have freed the lock, so that a refusal older than the news is not
    /// trusted.
    pub(super) news: u64,
}

impl Refusal {
    /// Something may have freed the lock.
    pub(super) fn outdate(&mut self) {
        self.news += 1;
        self.believe_until(None);
    }

    /// An attempt that began at `news` was refused until `until`, by a hold that lasts until `end`.
    pub(super) fn note(&mut self, news: u64, until: Moment, end: Option<Moment>) {
        if self.news == news {
            (self.until, self.end) = (Some(until), end);
        }
    }

    /// Something other than an answer of the backend says how long the lock is held.
    pub(super) fn believe_until(&mut self, until: Option<Moment>) {
        (self.until, self.end) = (until, None);
    }

    pub(super) fn stands(&self, now: Moment) -> Option<Moment> {
        self.until.filter(|until| now < *until)
    }
}

/// The state of a waiter's request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Asking {
    #[default]
    No,
    /// Under way. It began when the count of news was `news`.
    Since { news: u64 },
    /// It was not polled for so long that it was undone.
    Abandoned,
}

/// The fields that only some waiters need.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Rare {
    /// The end of the pause after a failure.
    pub(super) pause_until: Option<Moment>,
    /// The moment until which it waits at most for the head with this ticket to move on.
    pub(super) head_until: Option<(Ticket, Moment)>,
    /// The moment until which it waits at most for the answer to a release of this client.
    pub(super) release_until: Option<Moment>,
    /// Set once it has waited long enough for a release whose future is kept without being polled.
    pub(super) ignores_releases: bool,
    /// The last release under way when it arrived, if it does not wait for later ones.
    pub(super) last_release_before: Option<ReleaseNumber>,
    /// The refusal of a fair waiter, which asks for itself.
    pub(super) refusal: Refusal,
    /// The last request of a fair waiter that was refused, if it may be granted later.
    pub(super) offer: Option<Offer>,
    /// The number of refusals before it arrived.
    pub(super) refusals_before: u64,
}

/// An acquisition that waits.
#[derive(Clone, Debug, Hash)]
pub(super) struct Waiter<W> {
    pub(super) asker: Asker,
    pub(super) asking: Asking,
    rare: Option<Box<Rare>>,
    /// The data of the driver.
    pub(super) slot: W,
}

impl<W> Waiter<W> {
    pub(super) fn new(asker: Asker, slot: W) -> Self {
        Self { asker, asking: Asking::No, rare: None, slot }
    }

    pub(super) fn rare(&self) -> Option<&Rare> {
        self.rare.as_deref()
    }

    pub(super) fn rare_mut(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    pub(super) fn withdraw_offer(&mut self) {
        if let Some(rare) = self.rare.as_deref_mut() {
            rare.offer = None;
        }
    }

    pub(super) fn expects_release(&self) -> bool {
        self.rare().is_some_and(|rare| rare.release_until.is_some())
    }

    pub(super) fn expect_no_release(&mut self) {
        if let Some(rare) = &mut self.rare {
            (rare.release_until, rare.head_until) = (None, None);
        }
    }

    pub(super) fn pause_until(&self) -> Option<Moment> {
        self.rare().and_then(|rare| rare.pause_until)
    }
}

/// A backend that gives no answer.
#[derive(Clone, Debug)]
pub(super) struct Outage {
    /// Set if the backend answers nobody, judging by its last error.
    pub(super) is_total: bool,
    pub(super) since: Moment,
    pub(super) last: Moment,
    pub(super) error: LockError,
    /// The first ticket that was not given out when it last failed.
    pub(super) later: Ticket,
}

#[cfg(test)]
impl std::hash::Hash for Outage {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        // Nothing depends on the error itself.
        (self.is_total, self.since, self.last, self.later).hash(state);
    }
}

/// The waiters of a lane. Most wait *in line*: only the first of them, the head, asks the backend.
/// Fair waiters stand beside the line: the backend keeps their order, so each of them asks for
/// itself.
#[derive(Clone, Debug, Hash)]
pub(super) struct WaitQueue<W> {
    /// Kept apart from the list, because most waiters are alone and need none.
    head: Option<(Ticket, Box<Waiter<W>>)>,
    others: Option<Box<Others<W>>>,
    next_ticket: u64,
}

#[derive(Clone, Debug)]
struct Others<W> {
    in_line: VecDeque<(Ticket, Box<Waiter<W>>)>,
    fair: VecDeque<(Ticket, Box<Waiter<W>>)>,
    /// The tickets of the waiters whose owner is not fresh.
    by_owner: HashMap<Owner, SmallVec<[Ticket; 2]>, FxBuildHasher>,
    /// The number of waiters that do not want to wait. The head is counted here, and in `by_owner`,
    /// as well.
    impatient: usize,
}

impl<W: std::hash::Hash> std::hash::Hash for Others<W> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        // All other fields follow from these.
        (&self.in_line, &self.fair).hash(state);
    }
}

impl<W> Default for Others<W> {
    fn default() -> Self {
        Self {
            in_line: VecDeque::new(),
            fair: VecDeque::new(),
            by_owner: HashMap::default(),
            impatient: 0,
        }
    }
}

impl<W> Default for WaitQueue<W> {
    fn default() -> Self {
        Self { head: None, others: None, next_ticket: 0 }
    }
}

fn at<W>(line: &VecDeque<(Ticket, W)>, ticket: Ticket) -> Option<usize> {
    line.binary_search_by_key(&ticket, |(ticket, _)| *ticket).ok()
}

impl<W> WaitQueue<W> {
    /// Makes the tickets of an empty queue begin at `first`.
    #[cfg(test)]
    pub(super) fn number_from(&mut self, first: u64) {
        self.next_ticket = first;
    }

    /// Adds a waiter and returns its ticket.
    pub(super) fn push(&mut self, waiter: Waiter<W>) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let Asker { mode, has_fresh_owner, is_patient, .. } = waiter.asker;
        if !has_fresh_owner {
            let owner = waiter.asker.owner.clone();
            self.others.get_or_insert_default().by_owner.entry(owner).or_default().push(ticket);
        }
        if !is_patient {
            self.others.get_or_insert_default().impatient += 1;
        }
        let waiter = Box::new(waiter);
        if mode == Mode::Fair {
            self.others.get_or_insert_default().fair.push_back((ticket, waiter));
        } else if self.head.is_none() {
            self.head = Some((ticket, waiter));
        } else {
            self.others.get_or_insert_default().in_line.push_back((ticket, waiter));
        }
        ticket
    }

    /// Takes a waiter out. The second value is `true` if it was the head.
    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<(Box<Waiter<W>>, bool)> {
        let is_head = self.is_head(ticket);
        let waiter = if is_head {
            let next = self.others.as_mut().and_then(|others| others.in_line.pop_front());
            mem::replace(&mut self.head, next)
        } else {
            let others = self.others.as_mut()?;
            match at(&others.in_line, ticket) {
                Some(at) => others.in_line.remove(at),
                None => at(&others.fair, ticket).and_then(|at| others.fair.remove(at)),
            }
        };
        let (_, waiter) = waiter?;
        self.forget(ticket, &waiter.asker);
        Some((waiter, is_head))
    }

    fn forget(&mut self, ticket: Ticket, asker: &Asker) {
        let Some(others) = &mut self.others else { return };
        others.impatient -= usize::from(!asker.is_patient);
        if !asker.has_fresh_owner
            && let Some(tickets) = others.by_owner.get_mut(&asker.owner)
        {
            tickets.retain(|other| *other != ticket);
            if tickets.is_empty() {
                others.by_owner.remove(&asker.owner);
            }
        }
        if self.head.is_none() && others.fair.is_empty() {
            self.others = None;
        }
    }

    pub(super) fn get(&self, ticket: Ticket) -> Option<&Waiter<W>> {
        match &self.head {
            Some((head, waiter)) if *head == ticket => Some(waiter),
            _ => {
                let others = self.others.as_ref()?;
                let in_line = at(&others.in_line, ticket).map(|at| &others.in_line[at]);
                in_line
                    .or_else(|| at(&others.fair, ticket).map(|at| &others.fair[at]))
                    .map(|(_, waiter)| &**waiter)
            }
        }
    }

    pub(super) fn get_mut(&mut self, ticket: Ticket) -> Option<&mut Waiter<W>> {
        match &mut self.head {
            Some((head, waiter)) if *head == ticket => Some(waiter),
            _ => {
                let Others { in_line, fair, .. } = self.others.as_deref_mut()?;
                let place = match at(in_line, ticket) {
                    Some(at) => &mut in_line[at],
                    None => {
                        let at = at(fair, ticket)?;
                        &mut fair[at]
                    }
                };
                Some(&mut place.1)
            }
        }
    }

    /// The first in line.
    pub(super) fn head(&self) -> Option<(Ticket, &Waiter<W>)> {
        self.head.as_ref().map(|(ticket, waiter)| (*ticket, &**waiter))
    }

    pub(super) fn is_head(&self, ticket: Ticket) -> bool {
        self.head.as_ref().is_some_and(|(head, _)| *head == ticket)
    }

    /// The first ticket that was not given out yet.
    pub(super) fn next_ticket(&self) -> Ticket {
        Ticket(self.next_ticket)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.head.is_none() && !self.has_fair()
    }

    /// Returns `true` if nobody is in line.
    pub(super) fn is_line_empty(&self) -> bool {
        self.head.is_none()
    }

    /// Returns `true` if the head is alone in line.
    pub(super) fn is_head_alone(&self) -> bool {
        self.others.as_ref().is_none_or(|others| others.in_line.is_empty())
    }

    /// Returns `true` if anybody waits for a fair lock.
    pub(super) fn has_fair(&self) -> bool {
        self.others.as_ref().is_some_and(|others| !others.fair.is_empty())
    }

    /// The waiter behind `ticket` in line.
    pub(super) fn behind(&self, ticket: Ticket) -> Option<(Ticket, &Waiter<W>)> {
        let in_line = &self.others.as_ref()?.in_line;
        let behind = match self.is_head(ticket) {
            true => in_line.front(),
            false => in_line.get(at(in_line, ticket)? + 1),
        };
        behind.map(|(ticket, waiter)| (*ticket, &**waiter))
    }

    /// The number of patient waiters.
    pub(super) fn patient(&self) -> usize {
        let others = self.others.as_ref();
        let beside = others.map_or(0, |others| others.in_line.len() + others.fair.len());
        let all = usize::from(self.head.is_some()) + beside;
        all - others.map_or(0, |others| others.impatient)
    }

    /// The waiters of `owner`, which is not a fresh one, in order.
    pub(super) fn of_owner(&self, owner: &Owner) -> &[Ticket] {
        self.others
            .as_ref()
            .and_then(|others| others.by_owner.get(owner))
            .map_or(&[], |tickets| tickets.as_slice())
    }

    pub(super) fn has_impatient(&self) -> bool {
        self.others.as_ref().is_some_and(|others| others.impatient > 0)
    }

    /// The waiters that do not want to wait.
    pub(super) fn impatient(&self) -> impl Iterator<Item = Ticket> {
        let impatient = self.all().filter(|(_, waiter)| !waiter.asker.is_patient);
        impatient.map(|(ticket, _)| ticket)
    }

    /// The waiters for a fair lock.
    pub(super) fn fair(&self) -> impl Iterator<Item = (Ticket, &Waiter<W>)> {
        let others = self.others.iter();
        others.flat_map(|others| &others.fair).map(|(ticket, waiter)| (*ticket, &**waiter))
    }

    /// All waiters, mutably.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Waiter<W>> {
        let others = self.others.iter_mut().flat_map(|others| {
            let Others { in_line, fair, .. } = &mut **others;
            in_line.iter_mut().chain(fair)
        });
        self.head.iter_mut().chain(others).map(|(_, waiter)| &mut **waiter)
    }

    /// All waiters.
    pub(super) fn all(&self) -> impl Iterator<Item = (Ticket, &Waiter<W>)> {
        let others = self.others.iter();
        let behind = others.flat_map(|others| others.in_line.iter().chain(&others.fair));
        self.head.iter().chain(behind).map(|(ticket, waiter)| (*ticket, &**waiter))
    }
}
