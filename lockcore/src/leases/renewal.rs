//! The watchdog: renews all holds of a client in batches, and notices the end of those that are not renewed.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::Notify;

use crate::{
    BackendError, BackendErrorKind,
    backend::{RenewOutcome, RenewRequest},
    leases::clock::Moment,
    leases::hold::{Hold, Phase},
    leases::lease,
    leases::release::ReleaseWork,
    store::Store,
};

/// Holds per call to the backend.
const BATCH: usize = 128;

/// When which hold is due next: at the end of the time in which it may be handed on, for its renewal, or for its deadline if a renewal is
/// under way or none is wanted. A parked hold stays in it, and whoever takes it over takes its place.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    /// Short critical sections without awaits, hence not tokio's mutex.
    due: Mutex<Due>,
    /// Signals that something is due earlier than was known.
    pub(crate) earlier: Notify,
}

#[derive(Debug, Default)]
struct Due {
    holds: BTreeMap<(Moment, u64), Arc<Hold>>,
    next_number: u64,
    looks: Looks,
}

/// When the background task looks what is due. It is left to sleep by holds that come and go in between, so that short holds do not
/// wake it each time.
#[derive(Debug, Default)]
struct Looks {
    /// `None`: when it is signalled.
    next: Option<Moment>,
    /// Whether it has found nothing, and has not been signalled since.
    was_in_vain: bool,
}

impl Looks {
    /// Something is due at `moment`. Whether the task has to be signalled.
    fn is_too_late_for(&mut self, moment: Moment) -> bool {
        let is_too_late = self.next.is_none_or(|next| moment < next);
        self.was_in_vain &= !is_too_late;
        is_too_late
    }

    /// The task has looked, and `first` is due first. It looks again then, or at `latest`; but if it found nothing twice in a row, not before it is
    /// signalled. Only then: holds that come and go would signal each time that there is something to look at again, also when they are gone until
    /// it does.
    fn again(&mut self, first: Option<Moment>, latest: Moment) -> Option<Moment> {
        let was_in_vain = std::mem::replace(&mut self.was_in_vain, first.is_none());
        self.next = match first {
            Some(moment) => Some(latest.min(moment)),
            None if was_in_vain => None,
            None => Some(latest),
        };
        self.next
    }
}

impl Schedule {
    fn due(&self) -> MutexGuard<'_, Due> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts `hold` in at `moment`, instead of where it was.
    pub(crate) fn set(&self, hold: &Arc<Hold>, moment: Moment) {
        let mut due = self.due();
        let key = (moment, due.next_number);
        due.next_number += 1;
        if let Some(old) = hold.replace_due(Some(key)) {
            due.holds.remove(&old);
        }
        due.holds.insert(key, hold.clone());
        let is_earlier = due.looks.is_too_late_for(moment);
        drop(due);
        if is_earlier {
            self.earlier.notify_one();
        }
    }

    /// Makes `hold` due at once, if it is in.
    pub(crate) fn hurry(&self, hold: &Arc<Hold>) {
        self.set(hold, hold.sent());
    }

    /// Gives the place of `old` to `new`. False if it had none.
    fn pass_on(&self, old: &Hold, new: &Arc<Hold>) -> bool {
        let mut due = self.due();
        let Some(key) = old.replace_due(None) else { return false };
        let is_in = due.holds.insert(key, new.clone()).is_some();
        debug_assert!(is_in, "what is due is in the schedule");
        new.replace_due(Some(key));
        true
    }

    pub(crate) fn remove(&self, hold: &Hold) {
        let mut due = self.due();
        if let Some(old) = hold.replace_due(None) {
            due.holds.remove(&old);
        }
    }

    /// When the background task looks next: when the first hold is due, or at `latest` if there are only later ones.
    pub(crate) fn look_next(&self, latest: Moment) -> Option<Moment> {
        let mut due = self.due();
        let first = due.holds.first_key_value().map(|((moment, _), _)| *moment);
        due.looks.again(first, latest)
    }

    fn take_until(&self, moment: Moment) -> Vec<Arc<Hold>> {
        let mut due = self.due();
        let rest = due.holds.split_off(&(moment, u64::MAX));
        let taken: Vec<_> = std::mem::replace(&mut due.holds, rest).into_values().collect();
        for hold in &taken {
            hold.replace_due(None);
        }
        taken
    }

    fn holds(&self) -> Vec<Arc<Hold>> {
        self.due().holds.values().cloned().collect()
    }
}

/// Takes a granted hold into the schedule.
pub(crate) fn register(store: &Store, hold: &Arc<Hold>, sent: Moment) {
    match hold.next_due(sent) {
        Some(moment) => store.schedule.set(hold, moment),
        // It was taken back, forced away, or over at this very moment, and those behind it may rely on its being in the schedule.
        None => store.names.wake(&hold.cell),
    }
}

/// Takes `hold`, which follows `parked`, into the schedule.
pub(crate) fn succeed(store: &Store, parked: &Hold, hold: &Arc<Hold>) {
    if hold.window().is_some() && store.schedule.pass_on(parked, hold) {
        if hold.next_due(hold.sent()).is_none() {
            store.schedule.remove(hold);
            store.names.wake(&hold.cell);
        }
        return;
    }
    store.schedule.remove(parked);
    register(store, hold, hold.sent());
}

/// Deals with everything that is due: notices losses, and returns what has to be asked of the backend.
///
/// Holds that are due within a small part of their period are taken along, so that after the first time
/// they are renewed together.
pub(crate) fn collect(
    store: &Arc<Store>,
) -> (Vec<ReleaseWork>, Vec<impl Future<Output = ()> + Send + use<>>) {
    let now = store.clock.now();
    let mut unclaimed = Vec::new();
    let mut batch = Vec::new();
    for hold in store.schedule.take_until(now.after(store.batching)) {
        match hold.phase(now) {
            // What was lost here may be free there: local waiters try.
            Phase::Lost(_) => store.names.wake(&hold.cell),
            // Nobody has taken it over.
            Phase::Released => unclaimed.extend(ReleaseWork::of_parked(store, &hold, now)),
            Phase::Live if hold.window().is_some() => {
                if hold.window() <= Some(now) {
                    hold.close_window();
                    store.names.rouse(&hold.cell);
                }
                register(store, &hold, hold.sent());
            }
            Phase::Live if hold.renewal(now).is_some() => {
                // Until the answer is there, what is due next is the deadline.
                store.schedule.set(&hold, hold.deadline());
                batch.push(hold);
            }
            Phase::Live => store.schedule.set(&hold, hold.deadline()),
        }
    }
    let renewals = batch.chunks(BATCH).map(|holds| renew(store.clone(), holds.to_vec())).collect();
    (unclaimed, renewals)
}

/// Looks at every hold after the host was suspended: timers do not know that their time has come.
pub(crate) fn check_all(store: &Store) {
    let now = store.clock.now();
    for hold in store.schedule.holds() {
        if matches!(hold.phase(now), Phase::Lost(_)) {
            store.schedule.remove(&hold);
            store.names.wake(&hold.cell);
        }
    }
}

/// Renews one batch. Its holds are scheduled again whatever comes of it.
async fn renew(store: Arc<Store>, holds: Vec<Arc<Hold>>) {
    let sent = store.clock.now();
    let (holds, requests): (Vec<_>, Vec<_>) = holds
        .into_iter()
        .filter_map(|hold| hold.renewal(sent).map(|request| (hold, request)))
        .unzip();
    if holds.is_empty() {
        return;
    }
    for (hold, request) in holds.iter().zip(&requests) {
        hold.asking(request.lease, sent);
    }
    // A call that never returns must not keep its holds from being tried again.
    let patience = requests
        .iter()
        .map(|request| lease::renewal_period(request.lease))
        .min()
        .unwrap_or(lease::MIN);
    let answers = match tokio::time::timeout(patience, store.backend.renew(&requests)).await {
        Ok(answers) => answers,
        Err(_) => Err(BackendError::new(BackendErrorKind::Timeout, "no answer to a renewal")),
    };
    match answers {
        Ok(answers) if answers.len() == holds.len() => {
            for ((hold, request), answer) in holds.iter().zip(&requests).zip(answers) {
                match answer {
                    RenewOutcome::Renewed => renewed(&store, hold, request.lease, sent),
                    RenewOutcome::NotHeld => gone(&store, hold),
                    RenewOutcome::Failed(error) => failed(&store, hold, request.lease, &error),
                }
            }
        }
        Ok(_) => {
            let error =
                BackendError::new(BackendErrorKind::Protocol, "renewals were answered in part");
            retry_all(&store, &holds, &requests, &error);
        }
        Err(error) => retry_all(&store, &holds, &requests, &error),
    }
}

fn retry_all(store: &Store, holds: &[Arc<Hold>], requests: &[RenewRequest], error: &BackendError) {
    for (hold, request) in holds.iter().zip(requests) {
        failed(store, hold, request.lease, error);
    }
}

fn renewed(store: &Store, hold: &Arc<Hold>, lease: Duration, sent: Moment) {
    hold.extended(lease, sent);
    if hold.is_live(store.clock.now()) {
        let next = sent.after(lease::renewal_period(hold.renewal_lease())).min(hold.deadline());
        store.schedule.set(hold, next);
    }
}

/// The backend has said that it does not know `hold`.
pub(crate) fn gone(store: &Store, hold: &Hold) {
    store.schedule.remove(hold);
    hold.gone(store.clock.now());
    store.names.wake(&hold.cell);
}

/// A failed renewal is no loss: it is tried again until the deadline.
fn failed(store: &Store, hold: &Arc<Hold>, lease: Duration, error: &BackendError) {
    let now = store.clock.now();
    if !hold.is_live(now) {
        return;
    }
    let error = error.clone().with_lock(hold.name());
    tracing::warn!(
        parent: hold.span(), lock = %hold.name(), %error, remaining = ?hold.deadline().since(now), "renewal failed, will be retried"
    );
    store.schedule.set(hold, now.after(lease::renewal_retry(lease)).min(hold.deadline()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Clock;

    #[test]
    fn holds_that_come_and_go_signal_once_and_then_not_for_as_long_as_a_look_takes() {
        let start = Clock::with_suspension(|| Duration::ZERO).now();
        let at = |seconds| start.after(Duration::from_secs(seconds));
        let mut looks = Looks::default();
        assert!(looks.is_too_late_for(at(10)), "nobody looks");
        assert_eq!(
            looks.again(None, at(1)),
            Some(at(1)),
            "what has signalled is gone, but others may come"
        );
        assert!(!looks.is_too_late_for(at(10)) && !looks.is_too_late_for(at(10)));
        assert_eq!(looks.again(None, at(2)), None, "there was nothing for a second");
        for second in 2..5 {
            assert!(looks.is_too_late_for(at(second + 10)));
            assert_eq!(looks.again(None, at(second + 1)), Some(at(second + 1)));
            assert!(!looks.is_too_late_for(at(second + 10)));
            assert_eq!(looks.again(None, at(second + 2)), None);
        }
    }

    #[test]
    fn what_is_due_earlier_than_the_next_look_signals() {
        let start = Clock::with_suspension(|| Duration::ZERO).now();
        let at = |seconds| start.after(Duration::from_secs(seconds));
        let mut looks = Looks::default();
        assert_eq!(looks.again(Some(at(3)), at(1)), Some(at(1)), "a suspension is noticed in time");
        assert_eq!(looks.again(Some(at(3)), at(4)), Some(at(3)));
        assert!(!looks.is_too_late_for(at(3)));
        assert!(looks.is_too_late_for(at(2)));
    }
}
