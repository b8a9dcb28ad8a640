//! [`Place`]: one waiter in the queue of its lane, and what it does next.

use std::{
    future::{Future, poll_fn},
    sync::Arc,
    time::Duration,
};

use super::{
    Cell, Inside, Names, Newcomer,
    entry::{Entry, Outlook, Trouble},
};
use crate::{
    LockError, Owner,
    acquiring::{TaskKey, seats::Seat},
    backend::Wakeups,
    leases::{clock::Moment, hold::Hold, renewal::Schedule},
};

/// After how long without another failure the next one is the first of a new trouble. Longer than a pause between two attempts
/// and the time that one may take.
const TROUBLE_MEMORY: Duration = Duration::from_secs(10);

/// What the waiter at a [`Place`] does next.
#[derive(Debug)]
pub(crate) enum Step {
    /// Its owner has got the lock meanwhile.
    Enter(Inside),
    /// It did not want to wait, and those before it have to.
    GiveUp(Option<Box<LockError>>),
    /// Wait for the signal: others are first.
    Await,
    /// Wait for the signal, but not for ever: a release is under way.
    AwaitRelease,
    /// Take over this hold, which is parked. Comes back if somebody was quicker.
    TakeOver(Arc<Hold>),
    /// Ask the backend. Comes back with [`Place::refused`]. `is_alone` if nobody else is in the queue; `since` is when this client began
    /// to have the lock by turns.
    Try { news: u64, is_alone: bool, since: Option<Moment> },
    /// Leave the lock to others until then.
    Leave { until: Moment },
    /// Refused until then, unless a wake-up comes.
    Wait { until: Moment },
}

/// A place in the queue of a lane. Dropping it leaves the queue, and leaves to the next what it had.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    names: &'a Arc<Names>,
    cell: Arc<Cell>,
    waiter: Standing<'a>,
    /// Until it has left the queue with a hold.
    is_in: bool,
    /// If it waits.
    _seat: Option<Seat<'a>>,
}

/// How who waits there stands, and what it has.
#[derive(Debug)]
struct Standing<'a> {
    who: Newcomer<'a>,
    ticket: u64,
    /// The releases with smaller numbers had begun when it arrived.
    releases_before: u64,
    /// How many refusals it was too early for.
    refusals_before: u64,
    wakeups: Option<Box<dyn Wakeups>>,
    ignores_releases: bool,
}

/// Where a waiter is told that its [`step`](Place::step) may have changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signal<'p> {
    cell: &'p Cell,
    ticket: u64,
}

impl Signal<'_> {
    /// Resolves when it has been given. Cancel safe.
    pub(crate) fn given(self) -> impl Future<Output = ()> {
        poll_fn(move |context| {
            self.cell.with(|entry| entry.queue.poll_signal(self.ticket, context))
        })
    }
}

impl<'a> Place<'a> {
    /// The place of who has just queued with this ticket.
    pub(super) fn new(
        names: &'a Arc<Names>,
        cell: &Arc<Cell>,
        who: Newcomer<'a>,
        ticket: u64,
        entry: &Entry,
        seat: Option<Seat<'a>>,
    ) -> Self {
        let waiter = Standing {
            who,
            ticket,
            releases_before: entry.next_release,
            refusals_before: entry.outlook.refusals,
            wakeups: None,
            ignores_releases: false,
        };
        Self { names, cell: cell.clone(), waiter, is_in: true, _seat: seat }
    }

    pub(crate) fn owner(&self) -> &'a Owner {
        self.waiter.who.owner
    }

    pub(crate) fn waits(&self) -> bool {
        self.waiter.who.waits
    }

    pub(crate) fn cell(&self) -> &Arc<Cell> {
        &self.cell
    }

    /// A release has been waited for long enough: somebody keeps it without driving it.
    pub(crate) fn ignore_releases(&mut self) {
        self.waiter.ignores_releases = true;
    }

    /// The backend has failed to answer. Since when it has, for this waiter and those before it.
    pub(crate) fn failed(&self, now: Moment, error: &LockError) -> Moment {
        self.cell.with(|entry| {
            let known = entry.outlook.trouble.as_ref();
            let recent = known.filter(|trouble| now.since(trouble.last) < TROUBLE_MEMORY);
            let since = recent.map_or(now, |trouble| trouble.since);
            let later = entry.queue.next_ticket();
            let trouble = Trouble { since, last: now, error: error.clone(), later };
            entry.outlook.trouble = Some(Box::new(trouble));
            entry.signal_impatient();
            since
        })
    }

    /// The backend has answered.
    pub(crate) fn answered(&self) {
        self.cell.with(|entry| entry.outlook.trouble = None);
    }

    /// What to do now. One that does not want to wait tries whatever the outlook is. What those before it have borne for `patience` while it
    /// waited need not be borne again by each.
    pub(crate) fn step(&mut self, now: Moment, patience: Duration) -> Step {
        let Newcomer { owner, mode, is_lone, .. } = self.waiter.who;
        if !is_lone
            && let Some(other) = self.cell.lane.other(owner)
            && let Some(inside) = self.names.inside(&other, mode, owner)
        {
            return Step::Enter(inside);
        }
        let Self { names, cell, waiter, .. } = self;
        cell.with(|entry| waiter.step(entry, &names.schedule, now, patience))
    }

    /// Registers `hold`, which the backend has granted. False if it is not accepted under the lock of the name.
    pub(crate) fn enter(&mut self, hold: &Arc<Hold>, accept: impl FnOnce() -> bool) -> bool {
        self.enter_if(hold, |entry| {
            let accepted = accept();
            if accepted {
                entry.admit_granted(hold);
            }
            accepted
        })
    }

    /// Registers `hold`, which takes the place of the `parked` one. False if that is not there for this waiter any more, or if it is not
    /// accepted under the lock of the name.
    pub(crate) fn take_over(
        &mut self,
        parked: &Arc<Hold>,
        hold: &Arc<Hold>,
        accept: impl FnOnce() -> bool,
    ) -> bool {
        let ticket = self.waiter.ticket;
        self.enter_if(hold, |entry| {
            let accepted =
                entry.queue.head_ticket() == Some(ticket) && entry.is_parked(parked) && accept();
            if accepted {
                entry.parked = None;
                entry.admit(hold, hold.deadline());
            }
            accepted
        })
    }

    /// Leaves the queue if `admit` has admitted `hold`.
    fn enter_if(&mut self, hold: &Arc<Hold>, admit: impl FnOnce(&mut Entry) -> bool) -> bool {
        let Self { cell, waiter, is_in, .. } = self;
        // A subscription stays for the next; if there is none, it is dropped outside of the lock.
        let (is_admitted, unneeded) = cell.with(|entry| {
            if !admit(entry) {
                return (false, None);
            }
            *is_in = false;
            entry.queue.remove(waiter.ticket);
            // The next may rest until the hold is parked for it.
            let may_rest =
                hold.window().is_some() && entry.queue.head().is_none_or(|next| next.waits);
            if !may_rest {
                entry.signal_head();
            }
            if entry.queue.is_empty() {
                return (true, entry.wakeups.take());
            }
            entry.wakeups = waiter.wakeups.take().or_else(|| entry.wakeups.take());
            (true, None)
        });
        drop(unneeded);
        is_admitted
    }

    /// The ticket of who is first.
    pub(crate) fn first(&self) -> Option<u64> {
        self.cell.with(|entry| entry.queue.head_ticket())
    }

    /// The live hold that `task` has in this lane under another owner.
    pub(crate) fn held_by(&self, task: TaskKey, now: Moment) -> Option<Arc<Hold>> {
        self.cell.with(|entry| {
            let by_task =
                |hold: &&Arc<Hold>| hold.task == task && &hold.owner != self.waiter.who.owner;
            entry.holds.iter().filter(by_task).find(|hold| hold.is_live(now)).cloned()
        })
    }

    /// Where it is told that [`step`](Self::step) may have changed.
    pub(crate) fn signal(&self) -> Signal<'_> {
        Signal { cell: &self.cell, ticket: self.waiter.ticket }
    }

    /// All that can wake it: the subscription, if the head has it, and the signal.
    pub(crate) fn wakers(&mut self) -> (Option<&mut Box<dyn Wakeups>>, Signal<'_>) {
        (self.waiter.wakeups.as_mut(), Signal { cell: &self.cell, ticket: self.waiter.ticket })
    }

    /// Drops a subscription that was made for another hold: a fair waiter only hears of its own.
    pub(crate) fn forget_wakeups(&mut self) {
        self.waiter.wakeups = None;
    }

    /// Keeps a new subscription. What happened before it was in effect was not heard, so an attempt is due.
    pub(crate) fn subscribed(&mut self, wakeups: Box<dyn Wakeups>) {
        self.waiter.wakeups = Some(wakeups);
        self.news();
    }

    /// The backend has told that the lock may be free.
    pub(crate) fn woken(&self, now: Moment) {
        self.names.change(&self.cell, |entry| match entry.hands_over() {
            true => entry.woken(now),
            false => entry.news(),
        });
    }

    /// Something may have freed the lock.
    pub(crate) fn news(&self) {
        self.names.wake(&self.cell);
    }

    /// The attempt was refused; nothing changes before `until`, unless something came after the attempt began.
    pub(crate) fn refused(&self, news: u64, until: Moment) {
        self.cell.with(|entry| {
            let outlook = &mut entry.outlook;
            if outlook.news == news {
                outlook.refused_until = Some(until);
            }
            // Others want it.
            (outlook.since, outlook.in_vain, outlook.turns_to_come) = (None, 0, 0);
            outlook.refusals += 1;
            entry.signal_impatient();
        });
    }
}

impl Standing<'_> {
    fn step(
        &mut self,
        entry: &mut Entry,
        schedule: &Schedule,
        now: Moment,
        patience: Duration,
    ) -> Step {
        let Newcomer { owner, mode, is_lone, waits } = self.who;
        if !is_lone && let Some(inside) = entry.inside(owner, mode) {
            return Step::Enter(inside);
        }
        if entry.queue.head_ticket() != Some(self.ticket) {
            // A later one may find the backend well again.
            let trouble =
                entry.outlook.trouble.as_ref().filter(|trouble| self.ticket < trouble.later);
            return match trouble {
                Some(trouble) if !waits => Step::GiveUp(Some(Box::new(trouble.error.clone()))),
                None if !waits && entry.outlook.refusals > self.refusals_before => {
                    Step::GiveUp(None)
                }
                _ => Step::Await,
            };
        }
        if let Some(parked) = &entry.parked {
            if entry.has_heir(parked, now) {
                return Step::TakeOver(parked.clone());
            }
            schedule.hurry(parked);
            return Step::Await;
        }
        if waits && entry.may_rest(now) {
            return Step::Await;
        }
        if waits && let Some(until) = entry.outlook.left_until.filter(|until| now < *until) {
            return Step::Leave { until };
        }
        if !self.ignores_releases && self.expects_release(entry) {
            return Step::AwaitRelease;
        }
        if let Some(wakeups) = entry.wakeups.take() {
            self.wakeups = Some(wakeups);
        }
        if let Some(until) = entry.outlook.refused_until.filter(|_| waits) {
            return Step::Wait { until };
        }
        if let Some(error) = self.hopeless(entry, patience) {
            return Step::GiveUp(Some(Box::new(error)));
        }
        let Outlook { news, since, .. } = entry.outlook;
        Step::Try { news, since, is_alone: entry.queue.len() == 1 }
    }

    /// What those before this waiter have failed with while it waited, if they have borne it for `patience`.
    fn hopeless(&self, entry: &Entry, patience: Duration) -> Option<LockError> {
        let trouble = entry.outlook.trouble.as_ref()?;
        let borne = self.ticket < trouble.later && trouble.last.since(trouble.since) >= patience;
        borne.then(|| trouble.error.clone())
    }

    /// Whether an attempt would only meet a release of this client on its way. Where others may hold the lock as well, there may always be
    /// one, and only those count that began before this place was taken.
    fn expects_release(&self, entry: &Entry) -> bool {
        let first = entry.first_release();
        first.is_some_and(|first| !self.who.mode.is_shared() || first < self.releases_before)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.is_in {
            return;
        }
        let wakeups = self.waiter.wakeups.take();
        self.names.change(&self.cell, |entry| {
            if entry.queue.remove(self.waiter.ticket) {
                if wakeups.is_some() {
                    entry.wakeups = wakeups;
                }
                entry.signal_head();
            }
        });
    }
}
