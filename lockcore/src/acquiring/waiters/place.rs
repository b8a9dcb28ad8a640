//! [`Place`]: one waiter in the queue of its lane, and what it does next.

use std::{sync::Arc, time::Duration};

use tokio::sync::Notify;

use super::{Entry, Inside, Lane, Names, Outlook, Trouble};
use crate::{
    LockError, Mode, Owner, Wakeups,
    acquiring::seats::Seat,
    leases::{clock::Moment, hold::Hold, lease::Lease},
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
    GiveUp(Option<LockError>),
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

/// A place in the queue of a name. Dropping it leaves the queue, and leaves to the next what it had.
#[derive(Debug)]
pub(crate) struct Place {
    pub(super) names: Arc<Names>,
    pub(super) lane: Lane,
    pub(super) mode: Mode,
    pub(super) owner: Owner,
    /// Nobody else has this owner.
    pub(super) is_lone: bool,
    pub(super) waits: bool,
    /// The lease with which it could take over a hold.
    pub(super) heir: Option<Lease>,
    pub(super) ticket: u64,
    /// The releases with smaller numbers had begun when it arrived.
    pub(super) releases_before: u64,
    /// How many refusals it was too early for.
    pub(super) refusals_before: u64,
    pub(super) signal: Arc<Notify>,
    pub(super) wakeups: Option<Box<dyn Wakeups>>,
    pub(super) ignores_releases: bool,
    /// Until it has left the queue with a hold.
    pub(super) is_in: bool,
    /// If it waits.
    pub(super) _seat: Option<Seat>,
}

impl Place {
    /// A release has been waited for long enough: somebody keeps it without driving it.
    pub(crate) fn ignore_releases(&mut self) {
        self.ignores_releases = true;
    }

    /// The backend has failed to answer. Since when it has, for this waiter and those before it.
    pub(crate) fn failed(&self, now: Moment, error: &LockError) -> Moment {
        let Some(mut entry) = self.names.entries.get_mut(&self.lane) else { return now };
        let recent =
            entry.outlook.trouble.as_ref().filter(|trouble| now.since(trouble.last) < TROUBLE_MEMORY);
        let since = recent.map_or(now, |trouble| trouble.since);
        let later = entry.queue.next_ticket();
        let trouble = Trouble { since, last: now, error: error.clone(), later };
        entry.outlook.trouble = Some(Box::new(trouble));
        entry.signal_impatient();
        since
    }

    /// The backend has answered.
    pub(crate) fn answered(&self) {
        if let Some(mut entry) = self.names.entries.get_mut(&self.lane) {
            entry.outlook.trouble = None;
        }
    }

    /// What to do now. One that does not want to wait tries whatever the outlook is. What those before it have borne for `patience` while it
    /// waited need not be borne again by each.
    pub(crate) fn step(&mut self, now: Moment, patience: Duration) -> Step {
        let (names, mode, owner) = (&self.names, self.mode, &self.owner);
        if !self.is_lone
            && let Some(inside) = self.lane.other(owner).and_then(|other| names.inside(&other, mode, owner))
        {
            return Step::Enter(inside);
        }
        let Some(mut entry) = names.entries.get_mut(&self.lane) else { return Step::Await };
        if !self.is_lone
            && let Some(inside) = entry.inside(owner, mode)
        {
            return Step::Enter(inside);
        }
        let is_head = entry.queue.head_ticket() == Some(self.ticket);
        if !is_head {
            // A later one may find the backend well again.
            let trouble = entry.outlook.trouble.as_ref().filter(|trouble| self.ticket < trouble.later);
            return match trouble {
                Some(trouble) if !self.waits => Step::GiveUp(Some(trouble.error.clone())),
                None if !self.waits && entry.outlook.refusals > self.refusals_before => Step::GiveUp(None),
                _ => Step::Await,
            };
        }
        if let Some(parked) = &entry.parked {
            if self.heir.is_some_and(|lease| parked.suits(lease, now)) {
                return Step::TakeOver(parked.clone());
            }
            names.schedule.hurry(parked);
            return Step::Await;
        }
        if self.waits && entry.may_rest(now) {
            return Step::Await;
        }
        if self.waits
            && let Some(until) = entry.outlook.left_until.filter(|until| now < *until)
        {
            return Step::Leave { until };
        }
        if !self.ignores_releases && self.expects_release(&entry) {
            return Step::AwaitRelease;
        }
        if let Some(wakeups) = entry.wakeups.take() {
            self.wakeups = Some(wakeups);
        }
        if let Some(until) = entry.outlook.refused_until.filter(|_| self.waits) {
            return Step::Wait { until };
        }
        if let Some(error) = self.hopeless(&entry, patience) {
            return Step::GiveUp(Some(error));
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
        let first = entry.releasing.first();
        first.is_some_and(|first| !self.mode.is_shared() || *first < self.releases_before)
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
        let ticket = self.ticket;
        self.enter_if(hold, |entry| {
            let accepted = entry.queue.head_ticket() == Some(ticket) && entry.is_parked(parked) && accept();
            if accepted {
                entry.parked = None;
                entry.admit(hold, hold.deadline());
            }
            accepted
        })
    }

    /// Leaves the queue if `admit` has admitted `hold`.
    fn enter_if(&mut self, hold: &Arc<Hold>, admit: impl FnOnce(&mut Entry) -> bool) -> bool {
        let Some(mut entry) = self.names.entries.get_mut(&self.lane) else { return false };
        if !admit(&mut entry) {
            return false;
        }
        self.is_in = false;
        entry.queue.remove(self.ticket);
        // The next may rest until the hold is parked for it.
        let may_rest = hold.window().is_some() && entry.queue.head().is_none_or(|next| next.waits);
        if !may_rest {
            entry.signal_head();
        }
        // A subscription stays for the next; if there is none, it is dropped outside of the map's lock.
        let unneeded = if entry.queue.is_empty() {
            entry.wakeups.take()
        } else {
            entry.wakeups = self.wakeups.take().or_else(|| entry.wakeups.take());
            None
        };
        drop(entry);
        drop(unneeded);
        true
    }

    /// The ticket of who is first.
    pub(crate) fn first(&self) -> Option<u64> {
        let entry = self.names.entries.get(&self.lane)?;
        entry.queue.head_ticket()
    }

    /// Resolves when [`step`](Self::step) may have changed. Cancel safe.
    pub(crate) async fn signalled(&self) {
        self.signal.notified().await;
    }

    pub(crate) fn signal(&self) -> Arc<Notify> {
        self.signal.clone()
    }

    /// The subscription, if the head has it.
    pub(crate) fn wakeups(&mut self) -> Option<&mut Box<dyn Wakeups>> {
        self.wakeups.as_mut()
    }

    /// Drops a subscription that was made for another hold: a fair waiter only hears of its own.
    pub(crate) fn forget_wakeups(&mut self) {
        self.wakeups = None;
    }

    /// Keeps a new subscription. What happened before it was in effect was not heard, so an attempt is due.
    pub(crate) fn subscribed(&mut self, wakeups: Box<dyn Wakeups>) {
        self.wakeups = Some(wakeups);
        self.news();
    }

    /// The backend has told that the lock may be free.
    pub(crate) fn woken(&self, now: Moment) {
        self.names.change(&self.lane, |entry| match self.heir {
            Some(_) => entry.woken(now),
            None => entry.news(),
        });
    }

    /// Something may have freed the lock.
    pub(crate) fn news(&self) {
        self.names.wake(&self.lane);
    }

    /// The attempt was refused; nothing changes before `until`, unless something came after the attempt began.
    pub(crate) fn refused(&self, news: u64, until: Moment) {
        let Some(mut entry) = self.names.entries.get_mut(&self.lane) else { return };
        if entry.outlook.news == news {
            entry.outlook.refused_until = Some(until);
        }
        // Others want it.
        let outlook = &mut entry.outlook;
        (outlook.since, outlook.in_vain, outlook.turns_to_come) = (None, 0, 0);
        entry.outlook.refusals += 1;
        entry.signal_impatient();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.is_in {
            return;
        }
        let wakeups = self.wakeups.take();
        self.names.change(&self.lane, |entry| {
            if entry.queue.remove(self.ticket) {
                if wakeups.is_some() {
                    entry.wakeups = wakeups;
                }
                entry.signal_head();
            }
        });
    }
}
