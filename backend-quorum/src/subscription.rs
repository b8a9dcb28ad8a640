//! [`QuorumWakeups`]: the wake-ups of all members as one.
//!
//! A lock can be acquired when a majority is free. So a wake-up is passed on when all members have
//! woken, or a moment after as many have woken as were missing at the last refusal, or a little
//! later if there are fewer. Members that had granted the refused request were free already: a
//! wake-up there comes from the undo of another client's attempt, and asking because of it would
//! only wake that client in turn.

use std::{
    collections::HashMap,
    fmt,
    future::poll_fn,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::Poll,
    time::Duration,
};

use futures_util::FutureExt;
use lockcore::{
    BackendError, LockName,
    backend::{HoldId, SubscribeRequest, Wakeup, Wakeups, async_trait},
};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::{
    acquire::GRACE,
    failure::Failures,
    member::{Member, MemberSet, no_answer, panicked},
    quorum::{Inner, Parts},
};

/// How long the first wake-up waits for other members if too few have woken for a majority.
const GATHER: Duration = Duration::from_millis(20);

/// The same if enough have woken: a request that overtakes the release at a member would be refused
/// there, and the hold would be on fewer members than it could be.
const SETTLE: Duration = Duration::from_millis(1);

/// The pauses between attempts to subscribe at a member that failed.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
];

/// The names that this client waits for, each with its last request.
#[derive(Debug, Default)]
pub(crate) struct Watches(Mutex<HashMap<LockName, Arc<Mutex<LastRequest>>>>);

#[derive(Debug, Default)]
struct LastRequest {
    hold: Option<HoldId>,
    /// The members that had granted it when it was refused. Empty if another hold was requested
    /// before: a wake-up there may come from the undo of that hold, which this one waits for.
    granted: MemberSet,
    /// The number of grants that would have counted for a majority.
    counting: usize,
    /// The members that have given back a late grant that did not count. It would, if the request
    /// were made again.
    returned: MemberSet,
}

impl LastRequest {
    /// If a majority would grant the request now, makes the wake-ups of the late members that it
    /// needs count again. Returns `true` if so.
    fn hear_late_members(&mut self, parts: Parts) -> bool {
        let is_majority = self.counting + self.returned.len() >= parts.majority;
        if is_majority {
            self.granted = self.granted.without(self.returned);
        }
        is_majority
    }
}

impl Watches {
    /// Notes that a request for `hold` is over. If it was refused, these members had granted it,
    /// and `counting` of the grants would have counted.
    pub(crate) fn answered(
        &self,
        name: &LockName,
        hold: &HoldId,
        granted: MemberSet,
        counting: usize,
    ) {
        let watches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watch) = watches.get(name) {
            let mut last = watch.lock().unwrap_or_else(PoisonError::into_inner);
            let is_alone = last.hold.replace(hold.clone()).is_none_or(|last| last == *hold);
            last.granted = if is_alone { granted } else { MemberSet::default() };
            last.counting = counting;
            last.returned = MemberSet::default();
        }
    }

    fn begin(self: &Arc<Self>, name: &LockName) -> Watch {
        let mut watches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = watches.entry(name.clone()).or_default().clone();
        Watch { watches: self.clone(), name: name.clone(), last: Some(last) }
    }
}

/// A grant that comes after its request was refused, and is given back.
#[derive(Debug)]
pub(crate) struct LateGrant {
    pub(crate) watches: Arc<Watches>,
    pub(crate) name: LockName,
    pub(crate) hold: HoldId,
    pub(crate) member: usize,
    /// `true` if the member was late with the previous request for this hold, too. Waiting for it
    /// would be in vain, so the grant does not count.
    pub(crate) is_late_again: bool,
    /// `true` if the member may have lost its data. Such a grant does not count either.
    pub(crate) is_rejoining: bool,
    pub(crate) parts: Parts,
}

impl LateGrant {
    /// Notes the grant. If a majority would have granted the request, the wake-up by what this
    /// member gives back is one to ask again for.
    pub(crate) fn granted(&self) {
        self.note(|last| {
            let counts = !self.is_late_again && !self.is_rejoining;
            last.counting += usize::from(counts);
            if !counts || !last.hear_late_members(self.parts) {
                last.granted = last.granted.with(MemberSet::of(self.member));
            }
        });
    }

    /// Notes that the member has released it. If a majority would have granted the request, the
    /// next wake-up at one of the members that were late is one to ask again for.
    pub(crate) fn gave_back(&self) {
        if !self.is_late_again || self.is_rejoining {
            return;
        }
        self.note(|last| {
            last.returned = last.returned.with(MemberSet::of(self.member));
            last.hear_late_members(self.parts);
        });
    }

    /// Changes the last request, if that is still the one for this hold.
    fn note(&self, change: impl FnOnce(&mut LastRequest)) {
        let watches = self.watches.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watch) = watches.get(&self.name) {
            let mut last = watch.lock().unwrap_or_else(PoisonError::into_inner);
            if last.hold.as_ref() == Some(&self.hold) {
                change(&mut last);
            }
        }
    }
}

/// One waiter for a name.
#[derive(Debug)]
struct Watch {
    watches: Arc<Watches>,
    name: LockName,
    /// Taken when dropped.
    last: Option<Arc<Mutex<LastRequest>>>,
}

impl Watch {
    fn granted(&self) -> MemberSet {
        let last = self.last.as_ref();
        last.map(|last| last.lock().unwrap_or_else(PoisonError::into_inner).granted)
            .unwrap_or_default()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut watches = self.watches.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.last = None;
        // The map has the last reference.
        if watches.get(&self.name).is_some_and(|last| Arc::strong_count(last) == 1) {
            watches.remove(&self.name);
        }
    }
}

type Subscribing = Pin<Box<dyn Future<Output = Result<Box<dyn Wakeups>, BackendError>> + Send>>;

/// The subscription at one member.
struct Ear {
    member: Arc<Member>,
    request: Arc<SubscribeRequest>,
    state: EarState,
    failures: usize,
}

enum EarState {
    /// Behind a mutex that is never contended, only to make the subscription `Sync`.
    Subscribing(Mutex<Subscribing>),
    Listening(Box<dyn Wakeups>),
    Pausing {
        until: Instant,
        error: BackendError,
    },
}

impl Ear {
    fn new(member: &Arc<Member>, request: &Arc<SubscribeRequest>) -> Self {
        let (member, request) = (member.clone(), request.clone());
        let state = EarState::Subscribing(subscribing(&member, &request));
        Self { member, request, state, failures: 0 }
    }

    fn is_listening(&self) -> bool {
        matches!(self.state, EarState::Listening(_))
    }

    /// Resolves when the member has woken, or when it is subscribed again: something may have been
    /// missed until then. Cancel safe.
    async fn heard(&mut self) {
        loop {
            match &mut self.state {
                EarState::Listening(wakeups) => {
                    let woken = async { wakeups.woken().await };
                    match AssertUnwindSafe(woken).catch_unwind().await {
                        Ok(_) => {
                            self.failures = 0;
                            return;
                        }
                        Err(_) => self.fail(panicked()),
                    }
                }
                EarState::Subscribing(_) => {
                    self.subscribed().await;
                    if self.is_listening() {
                        return;
                    }
                }
                EarState::Pausing { until, .. } => {
                    sleep_until(*until).await;
                    let again = subscribing(&self.member, &self.request);
                    self.state = EarState::Subscribing(again);
                }
            }
        }
    }

    /// Waits for the end of an attempt to subscribe, if there is one. Cancel safe.
    async fn subscribed(&mut self) {
        let EarState::Subscribing(subscribing) = &mut self.state else { return };
        let subscribing = subscribing.get_mut().unwrap_or_else(PoisonError::into_inner);
        match subscribing.as_mut().await {
            Ok(wakeups) => self.state = EarState::Listening(wakeups),
            Err(error) => self.fail(error),
        }
    }

    fn fail(&mut self, error: BackendError) {
        let pause = PAUSES[self.failures.min(PAUSES.len() - 1)];
        self.failures += 1;
        let member = self.member.label();
        tracing::debug!(%member, %error, "subscription at a member failed, will be retried");
        self.state = EarState::Pausing { until: Instant::now() + pause, error };
    }
}

fn subscribing(member: &Arc<Member>, request: &Arc<SubscribeRequest>) -> Mutex<Subscribing> {
    let (member, request) = (member.clone(), request.clone());
    Mutex::new(Box::pin(async move {
        let backend = member.backend();
        member.other_answer(async { backend?.subscribe(&request).await }).await
    }))
}

/// The wake-ups of all members.
pub(crate) struct QuorumWakeups {
    ears: Vec<Ear>,
    parts: Parts,
    watch: Watch,
    /// The members that have woken since the last wake-up was passed on. Kept here, so that a
    /// dropped wait loses none.
    heard: MemberSet,
    /// The time at which the first of them woke.
    since: Option<Instant>,
}

/// Subscribes at all members. A majority is enough: any other member wakes the waiter as soon as it
/// is subscribed.
pub(crate) async fn subscribe(
    quorum: &Inner,
    request: &SubscribeRequest,
) -> Result<QuorumWakeups, BackendError> {
    let (parts, request) = (quorum.parts(), Arc::new(request.clone()));
    // Before the subscription is in effect, so that no refusal after it is missed.
    let watch = quorum.watches.begin(&request.name);
    let ears = quorum.members.iter().map(|member| Ear::new(member, &request)).collect();
    let mut wakeups =
        QuorumWakeups { ears, parts, watch, heard: MemberSet::default(), since: None };
    let start = Instant::now();
    wakeups.subscribed(parts.majority).await;
    let prompt = wakeups.prompt();
    let _ = timeout(GRACE, wakeups.subscribed(prompt)).await;
    if wakeups.listening() < parts.majority {
        return Err(wakeups.failures(start.elapsed()).into_error(&quorum.members).not_applied());
    }
    Ok(wakeups)
}

impl QuorumWakeups {
    fn listening(&self) -> usize {
        self.ears.iter().filter(|ear| ear.is_listening()).count()
    }

    /// The number of members that are subscribed, or are likely to be so at once.
    fn prompt(&self) -> usize {
        self.ears.iter().filter(|ear| ear.is_listening() || ear.member.is_prompt()).count()
    }

    /// Waits until `enough` members are subscribed, or no attempt is left.
    async fn subscribed(&mut self, enough: usize) {
        let mut listening = self.listening();
        let mut attempts: Vec<_> = self
            .ears
            .iter_mut()
            .filter(|ear| matches!(ear.state, EarState::Subscribing(_)))
            .map(|ear| {
                Some(Box::pin(async move {
                    ear.subscribed().await;
                    ear.is_listening()
                }))
            })
            .collect();
        poll_fn(|context| {
            for attempt in &mut attempts {
                if let Some(polled) = attempt
                    && let Poll::Ready(is_listening) = polled.as_mut().poll(context)
                {
                    listening += usize::from(is_listening);
                    *attempt = None;
                }
            }
            match listening >= enough || attempts.iter().all(Option::is_none) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }

    fn failures(&self, waited: Duration) -> Failures {
        let mut failures = Failures::default();
        for (at, ear) in self.ears.iter().enumerate() {
            match &ear.state {
                EarState::Listening(_) => {}
                EarState::Subscribing(_) => failures.add(at, no_answer(waited)),
                EarState::Pausing { error, .. } => failures.add(at, error.clone()),
            }
        }
        failures
    }

    /// Waits until some members have woken, and notes them.
    async fn listen(&mut self) {
        let heard = &mut self.heard;
        let mut ears: Vec<_> = self.ears.iter_mut().map(|ear| Box::pin(ear.heard())).collect();
        poll_fn(|context| {
            let woken = ears.iter_mut().map(|ear| ear.as_mut().poll(context).is_ready());
            let woken: MemberSet =
                woken.enumerate().filter(|(_, woken)| *woken).map(|(at, _)| at).collect();
            // Noted at once, since the member's wake-up is consumed now.
            *heard = heard.with(woken);
            if woken.is_empty() { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }

    /// The time at which the wake-up is to be passed on, if there was one.
    fn due(&mut self) -> Option<Instant> {
        let granted = self.watch.granted();
        self.heard = self.heard.without(granted);
        if self.heard.is_empty() {
            self.since = None;
            return None;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        let missing = self.parts.majority.saturating_sub(granted.len());
        Some(match self.heard.len() {
            heard if heard + granted.len() == self.parts.members => since,
            heard if heard >= missing => since + SETTLE,
            _ => since + GATHER,
        })
    }
}

#[async_trait]
impl Wakeups for QuorumWakeups {
    async fn woken(&mut self) -> Wakeup {
        loop {
            match self.due() {
                None => self.listen().await,
                Some(due) if due <= Instant::now() => break,
                Some(due) => {
                    let _ = timeout_at(due, self.listen()).await;
                }
            }
        }
        (self.heard, self.since) = (MemberSet::default(), None);
        Wakeup::Changed
    }
}

impl fmt::Debug for QuorumWakeups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listening = self.ears.iter().map(Ear::is_listening).collect::<Vec<_>>();
        f.debug_struct("QuorumWakeups").field("listening", &listening).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of two late members that a waiter needs was late before, and gives its grant back first
    /// or last.
    #[test]
    fn the_wakeups_of_a_majority_are_never_all_ignored() {
        let (name, hold) = (LockName::new("a").unwrap(), HoldId::unique("a:1"));
        let parts = Parts { members: 5, majority: 3 };
        for order in [[2, 3], [3, 2]] {
            let watches = Arc::new(Watches::default());
            let watch = watches.begin(&name);
            watches.answered(&name, &hold, MemberSet::of(0), 1);
            for member in order {
                let late = LateGrant {
                    watches: watches.clone(),
                    name: name.clone(),
                    hold: hold.clone(),
                    member,
                    is_late_again: member == 3,
                    is_rejoining: false,
                    parts,
                };
                late.granted();
                late.gave_back();
            }
            let ignored = watch.granted();
            assert!(
                ignored.len() < parts.majority && !ignored.contains(3),
                "{order:?}: {ignored:?}"
            );
        }
    }
}
