//! The conditions of [`Flawed`], and how the flaws change them.

use std::{collections::VecDeque, time::Duration};

use lockcore::{
    BackendError,
    backend::{ConditionId, Conditions, Departure, Wakeups, async_trait},
};
use lockcore_testkit::Op;
use tokio::{task::yield_now, time::Instant};

use super::{flaw::Flaw, listening::Topic, store::Flawed};

#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    places: VecDeque<Place>,
    /// For the flaws that keep notifications without a waiter.
    kept: u32,
    /// For the flaw that remembers notified waiters.
    notified: Vec<String>,
}

#[derive(Clone, Debug)]
struct Place {
    waiter: String,
    until: Instant,
}

impl Queue {
    /// Returns `true` if something of it would stay forever.
    pub(super) fn stays(&self, flaw: Flaw, now: Instant) -> bool {
        self.places.iter().any(|place| flaw == Flaw::KeepsLapsedWaiters || place.until > now)
            || (flaw == Flaw::KeepsConditions && self.places.is_empty())
    }

    fn place_of(&mut self, waiter: &str) -> Option<&mut Place> {
        self.places.iter_mut().find(|place| place.waiter == waiter)
    }
}

impl Flawed {
    /// The number of waiters.
    pub(super) fn waiters(&self, condition: &ConditionId) -> usize {
        self.with_queue(condition, |queue, _| queue.places.len())
    }

    fn condition_key(&self, condition: &ConditionId) -> String {
        let (lock, name) = (self.key(&condition.lock), self.key(&condition.name));
        match self.flaw {
            Flaw::OneConditionALock => lock,
            Flaw::OneConditionAName => name,
            Flaw::PutsAColonBetweenNames => format!("{lock}:{name}"),
            _ => format!("{} {lock} {name}", lock.len()),
        }
    }

    fn notification_topic(&self, condition: &ConditionId, waiter: &str) -> String {
        format!("condition {} {waiter}", self.condition_key(condition))
    }

    fn with_queue<T>(
        &self,
        condition: &ConditionId,
        change: impl FnOnce(&mut Queue, Instant) -> T,
    ) -> T {
        let (key, now) = (self.condition_key(condition), Instant::now());
        let mut store = self.store();
        let queue = store.signals.conditions.entry(key).or_default();
        let remembers = matches!(
            self.flaw,
            Flaw::KeepsLapsedWaiters | Flaw::LapsedWaitersAreNotified | Flaw::LapsedWaitersStay
        );
        queue.places.retain(|place| remembers || place.until > now);
        change(queue, now)
    }

    fn join_now(&self, queue: &mut Queue, waiter: &str, keep: Duration, now: Instant) {
        let until = match self.flaw {
            Flaw::WaitersNeverLapse => now + keep * 1000,
            Flaw::WaitersLapseEarly => now + keep.mul_f64(0.9),
            _ => now + keep,
        };
        if self.has(Flaw::JoiningAgainGoesToTheEnd) {
            queue.places.retain(|place| place.waiter != waiter);
        }
        if self.has(Flaw::WaitersEndTogether) {
            queue.places.iter_mut().for_each(|place| place.until = until);
        }
        let place = Place { waiter: waiter.into(), until };
        let was_notified = queue.notified.iter().any(|known| known == waiter);
        match queue.places.iter_mut().find(|place| place.waiter == waiter) {
            Some(_) if self.has(Flaw::JoiningAgainTakesASecondPlace) => {
                queue.places.push_back(place)
            }
            Some(_) if self.has(Flaw::JoiningAgainIsIgnored) => {}
            Some(kept) => *kept = place,
            None if self.has(Flaw::NotifiesOnceAWaiter) && was_notified => {}
            None if queue.kept > 0 => queue.kept -= 1,
            None => queue.places.push_back(place),
        }
    }

    fn stay_now(&self, queue: &mut Queue, waiter: &str, keep: Duration, now: Instant) -> bool {
        let may_come_back = self.has(Flaw::LapsedWaitersStay);
        if self.has(Flaw::StayingMakesAPlace) {
            self.join_now(queue, waiter, keep, now);
        }
        if self.has(Flaw::StayingGoesToTheEnd)
            && let Some(at) = queue.places.iter().position(|place| place.waiter == waiter)
        {
            let place = queue.places.remove(at).unwrap();
            queue.places.push_back(place);
        }
        let Some(place) = queue.place_of(waiter).filter(|place| may_come_back || place.until > now)
        else {
            return self.has(Flaw::StayingIsAlwaysPossible);
        };
        place.until = match self.flaw {
            Flaw::StayingDoesNothing => place.until,
            Flaw::StayingOnlyLengthens => place.until.max(now + keep),
            Flaw::StayingAddsUp => place.until + keep,
            _ => now + keep,
        };
        true
    }

    /// Removes the waiters to be notified.
    fn notify_now(&self, queue: &mut Queue, count: u32, now: Instant) -> Vec<String> {
        let counts_lapsed = self.has(Flaw::LapsedWaitersAreNotified);
        queue.places.retain(|place| counts_lapsed || place.until > now);
        let wanted = match self.flaw {
            Flaw::NotifiesOneOfMany => count.min(1),
            Flaw::NotifiesEverybody => u32::MAX,
            Flaw::TakesTheGreatestCountForNone if count == u32::MAX => 0,
            _ => count,
        };
        let mut notified = Vec::new();
        while notified.len() < usize::try_from(wanted).unwrap() && !queue.places.is_empty() {
            let at = if self.has(Flaw::NotifiesTheLast) { queue.places.len() - 1 } else { 0 };
            notified.extend(queue.places.remove(at).map(|place| place.waiter));
        }
        if notified.is_empty() && self.has(Flaw::KeepsNotifications) {
            queue.kept += count;
        }
        if self.has(Flaw::NotifiedWaitersStayIn) {
            let until = now + Duration::from_secs(60);
            let back = notified.iter().map(|waiter| Place { waiter: waiter.clone(), until });
            queue.places.extend(back);
        }
        queue.notified.extend(notified.iter().cloned());
        notified
    }

    fn wake_notified(&self, condition: &ConditionId, notified: &[String]) {
        let woken = match self.flaw {
            Flaw::NotificationWakesNobody => &[],
            Flaw::NotificationWakesTheFirst => &notified[..notified.len().min(1)],
            _ => notified,
        };
        for waiter in woken {
            self.signal(&self.notification_topic(condition, waiter));
        }
    }

    /// Returns whether the waiter was in the queue, and the waiter that got its notification.
    fn leave_now(
        &self,
        queue: &mut Queue,
        waiter: &str,
        departure: Departure,
        now: Instant,
    ) -> (bool, Vec<String>) {
        let was_in = queue.place_of(waiter).is_some_and(|place| place.until > now);
        match self.flaw {
            Flaw::LeavingKeepsThePlace => {}
            Flaw::LeavingEmptiesTheQueue => queue.places.clear(),
            _ => queue.places.retain(|place| place.waiter != waiter),
        }
        let is_cancelled = departure == Departure::Cancelled;
        let passes_on = match self.flaw {
            Flaw::LeavingPassesOnAPlace => is_cancelled,
            Flaw::LeavingPassesOnUnasked => !was_in,
            Flaw::LeavingPassesNothingOn => false,
            _ => is_cancelled && !was_in,
        };
        let next = match self.flaw {
            _ if !passes_on => Vec::new(),
            Flaw::PassesOnToEverybody => self.notify_now(queue, u32::MAX, now),
            Flaw::PassesOnToTheLast => {
                queue.places.pop_back().map(|place| place.waiter).into_iter().collect()
            }
            Flaw::KeepsWhatIsPassedOnToNobody if queue.places.is_empty() => {
                queue.kept += 1;
                Vec::new()
            }
            _ => self.notify_now(queue, 1, now),
        };
        let answer = match self.flaw {
            Flaw::LeavingSaysThatItWasIn => true,
            Flaw::LeavingSaysThatItWasOut => false,
            _ => was_in,
        };
        (answer, next)
    }

    /// Leaves the queue alone for one step, and then overwrites changes made meanwhile.
    async fn look_for_a_while(&self, condition: &ConditionId) {
        let seen = self.with_queue(condition, |queue, _| queue.clone());
        yield_now().await;
        self.with_queue(condition, |queue, _| *queue = seen);
    }
}

#[async_trait]
impl Conditions for Flawed {
    async fn join(
        &self,
        condition: &ConditionId,
        waiter: &str,
        keep: Duration,
    ) -> Result<(), BackendError> {
        let busy = self.send(Op::Join).await;
        if self.has(Flaw::LooksThenJoins) {
            self.look_for_a_while(condition).await;
        }
        if self.has(Flaw::DroppedJoinArrivesLate) {
            busy.done();
            let (backend, condition, waiter) = (self.clone(), condition.clone(), waiter.to_owned());
            let joined = tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(5)).await;
                let join = |queue: &mut Queue, now| backend.join_now(queue, &waiter, keep, now);
                backend.with_queue(&condition, join);
            });
            joined.await.unwrap();
            return Ok(());
        }
        self.with_queue(condition, |queue, now| self.join_now(queue, waiter, keep, now));
        self.reply(busy).await;
        Ok(())
    }

    async fn stay(
        &self,
        condition: &ConditionId,
        waiter: &str,
        keep: Duration,
    ) -> Result<bool, BackendError> {
        let busy = self.send(Op::Stay).await;
        let is_in =
            self.with_queue(condition, |queue, now| self.stay_now(queue, waiter, keep, now));
        self.reply(busy).await;
        Ok(is_in)
    }

    async fn leave(
        &self,
        condition: &ConditionId,
        waiter: &str,
        departure: Departure,
    ) -> Result<bool, BackendError> {
        let busy = self.send(Op::Leave).await;
        let leave = |queue: &mut Queue, now| self.leave_now(queue, waiter, departure, now);
        let (was_in, next) = self.with_queue(condition, leave);
        if !self.has(Flaw::PassingOnWakesNobody) {
            self.wake_notified(condition, &next);
        }
        self.reply(busy).await;
        Ok(was_in)
    }

    async fn notify(&self, condition: &ConditionId, count: u32) -> Result<u32, BackendError> {
        let busy = self.send(Op::Notify).await;
        if self.has(Flaw::LooksThenNotifies) {
            self.look_for_a_while(condition).await;
        }
        let notified = self.with_queue(condition, |queue, now| self.notify_now(queue, count, now));
        self.wake_notified(condition, &notified);
        if self.has(Flaw::NotifyingFreesTheLock) {
            self.force_now(&condition.lock);
        }
        self.reply(busy).await;
        Ok(match self.flaw {
            Flaw::AnswersHowManyWereWanted => count,
            _ => u32::try_from(notified.len()).unwrap(),
        })
    }

    async fn subscribe(
        &self,
        condition: &ConditionId,
        waiter: &str,
    ) -> Result<Box<dyn Wakeups>, BackendError> {
        Ok(self.listen_to(Topic::Signal(self.notification_topic(condition, waiter))).await)
    }
}
