//! One owner's hold of one lock: how many guards it has, how long it lasts, how it ended.
//!
//! [`Account`] is the whole state machine, without I/O and without a clock: whoever calls says what time it is.
//! [`Hold`] puts it behind a mutex and adds who holds, since when and from where.

use std::{
    panic::Location,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use tokio::sync::Notify;
use tracing::Span;

use crate::{
    FencingToken, Lock, LockName, LossReason, Mode, Owner,
    acquiring::TaskKey,
    acquiring::waiters::Cell,
    backend::{AcquireRequest, HoldId, ReleaseRequest, RenewRequest},
    leases::clock::{Clock, Moment},
    leases::lease::{self, Lease},
};

/// How a hold ended, or that it did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Live,
    Lost(LossReason),
    /// Its last guard is gone, or `Locks::close()` took it back.
    Released,
}

/// What a nested acquisition finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// It is counted, the lease suffices.
    Entered,
    /// The lease must grow at the backend first, which is asked for this count and lease.
    Grow {
        count: u32,
        lease: Duration,
    },
    Lost(LossReason),
    /// It has as many guards as can be counted.
    TooDeep,
    /// The hold is over; there is nothing to nest in.
    Ended,
}

/// What a departing guard leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Departure {
    /// Other guards remain. `store` says that the backend has counted more of them.
    Nested { store: bool },
    /// It was the last guard.
    Last,
    /// It was one of a hold that is lost; `last` says that no guard remains.
    Lost { reason: LossReason, last: bool },
    /// `Locks::close()` had taken the hold back.
    Ended,
}

/// The counts and times of one hold.
#[derive(Debug)]
struct Account {
    phase: Phase,
    /// Guards alive.
    count: u32,
    /// The greatest count that the backend may have been told.
    stored: u32,
    /// Guards alive that the watchdog renews for, and the longest lease that one of them wants.
    renewed: u32,
    renewal_lease: Duration,
    /// Until when fixed leases were promised: renewals never end earlier.
    promised: Moment,
    /// Until when this client may believe in the hold.
    deadline: Moment,
    /// Until when the backend may have the hold: the end of the longest lease that it was asked for.
    asked: Moment,
    /// Where the hold stands in the renewal schedule.
    due: Option<(Moment, u64)>,
    /// Until when it may be handed on, if it may be.
    window: Option<Moment>,
}

impl Account {
    fn granted(lease: Lease, sent: Moment) -> Self {
        let mut account = Self {
            phase: Phase::Live,
            count: 0,
            stored: 1,
            renewed: 0,
            renewal_lease: lease::MIN,
            promised: sent,
            deadline: lease::deadline(sent, lease.duration()),
            asked: sent.after(lease.duration()),
            due: None,
            window: None,
        };
        account.count_in(lease, sent);
        account
    }

    fn count_in(&mut self, lease: Lease, now: Moment) {
        self.count += 1;
        match lease {
            Lease::Renewed(lease) => {
                self.renewed += 1;
                self.renewal_lease = self.renewal_lease.max(lease);
            }
            Lease::Fixed(lease) => self.promised = self.promised.max(now.after(lease)),
        }
    }

    /// Turns a passed deadline into a loss.
    fn settle(&mut self, now: Moment) -> Phase {
        if self.phase == Phase::Live && now >= self.deadline {
            self.phase = Phase::Lost(LossReason::LeaseEnded);
        }
        self.phase
    }

    fn enter(&mut self, lease: Lease, now: Moment) -> Entry {
        match self.settle(now) {
            Phase::Lost(reason) => return Entry::Lost(reason),
            Phase::Released => return Entry::Ended,
            Phase::Live if self.count >= Lock::MAX_HOLD_COUNT => return Entry::TooDeep,
            Phase::Live => {}
        }
        let suffices = match lease {
            Lease::Renewed(lease) => self.renewed > 0 && self.renewal_lease >= lease,
            Lease::Fixed(lease) => self.deadline >= now.after(lease),
        };
        if !suffices {
            return Entry::Grow { count: self.count + 1, lease: lease.duration() };
        }
        self.count_in(lease, now);
        Entry::Entered
    }

    /// The backend has granted the growth that was asked for at `sent`.
    fn grown(&mut self, lease: Lease, sent: Moment, now: Moment) -> Entry {
        self.extended(lease.duration(), sent);
        match self.settle(now) {
            Phase::Lost(reason) => Entry::Lost(reason),
            Phase::Released => Entry::Ended,
            Phase::Live if self.count >= Lock::MAX_HOLD_COUNT => Entry::TooDeep,
            Phase::Live => {
                self.count_in(lease, sent);
                Entry::Entered
            }
        }
    }

    /// The backend has the hold for at least `lease` from `sent`: it never shortens one.
    fn extended(&mut self, lease: Duration, sent: Moment) {
        self.deadline = self.deadline.max(lease::deadline(sent, lease));
    }

    /// As [`extended`](Self::extended), and renewals never end earlier from now on.
    fn promise(&mut self, lease: Duration, sent: Moment) {
        self.promised = self.promised.max(sent.after(lease));
        self.extended(lease, sent);
    }

    fn leave(&mut self, lease: Lease, now: Moment) -> Departure {
        self.count = self.count.saturating_sub(1);
        if matches!(lease, Lease::Renewed(_)) {
            self.renewed = self.renewed.saturating_sub(1);
        }
        match self.settle(now) {
            Phase::Released => Departure::Ended,
            Phase::Lost(reason) => Departure::Lost { reason, last: self.count == 0 },
            Phase::Live if self.count == 0 => {
                self.phase = Phase::Released;
                Departure::Last
            }
            Phase::Live => Departure::Nested { store: self.stored > self.count },
        }
    }

    fn next_due(&self, sent: Moment) -> Option<Moment> {
        let due = match self.window {
            Some(window) => window,
            None if self.renewed > 0 => sent.after(lease::renewal_period(self.renewal_lease)),
            None => self.deadline,
        };
        (self.phase == Phase::Live).then_some(due.min(self.deadline))
    }

    /// The lease to ask for in a renewal now, if the watchdog is wanted.
    fn renewal(&self, now: Moment) -> Option<Duration> {
        (self.phase == Phase::Live && self.renewed > 0)
            .then(|| self.renewal_lease.max(self.promised.since(now)).min(lease::MAX))
    }
}

/// What the backend has granted, which several holds of this client may have one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tenure {
    /// When it was asked for.
    sent: Moment,
    lease: Lease,
    last_token: FencingToken,
    /// Until when it may be handed on: before any renewal, so that none is ever under way for a hold that is over.
    window: Option<Moment>,
}

impl Tenure {
    /// What was granted to `request`, and may be handed on until then.
    pub(crate) fn new(
        request: &AcquireRequest,
        first: FencingToken,
        lease: Lease,
        sent: Moment,
        until: Option<Moment>,
    ) -> Self {
        let last_token = first.plus(u64::from(request.tokens) - 1);
        let window = until.map(|until| until.min(lease::last_handing_on(sent, lease.duration())));
        Self { sent, lease, last_token, window: window.filter(|_| last_token > first) }
    }
}

/// Where a hold comes from.
#[derive(Debug)]
pub(crate) struct Origin<'a> {
    /// The call that acquired it.
    pub(crate) site: &'static Location<'static>,
    /// The parent of its span.
    pub(crate) caller: Option<&'a Span>,
    /// Where it is registered.
    pub(crate) cell: &'a Arc<Cell>,
}

static NO_SPAN: Span = Span::none();

/// A hold, shared by its guards, the local layer and the renewal.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) id: HoldId,
    pub(crate) owner: Owner,
    pub(crate) mode: Mode,
    pub(crate) token: FencingToken,
    tenure: Tenure,
    /// Where it is registered, and who queues behind it.
    pub(crate) cell: Arc<Cell>,
    /// Where and by which task it was acquired, for the deadlock warning.
    pub(crate) site: &'static Location<'static>,
    pub(crate) task: TaskKey,
    pub(crate) acquired_at: Moment,
    /// Open while the hold lives, if anybody listens.
    span: Option<Box<Span>>,
    /// Short critical sections without awaits, hence not tokio's mutex.
    account: Mutex<Account>,
    /// Most holds need it never.
    watched: OnceLock<Box<Watched>>,
}

/// What a hold has whose count is told to the backend, or whose end is waited for.
#[derive(Debug, Default)]
struct Watched {
    /// Keeps requests that carry a count in order. The account itself is never locked across an await.
    storing: tokio::sync::Mutex<()>,
    ended: Notify,
}

impl Hold {
    /// The hold that `request` was granted to the running task.
    pub(crate) fn granted(
        request: &AcquireRequest,
        owner: Owner,
        token: FencingToken,
        tenure: Tenure,
        origin: &Origin<'_>,
    ) -> Arc<Self> {
        Self::new(request.hold.clone(), request.mode, owner, token, tenure, origin, tenure.sent)
    }

    /// The hold that follows this one, which is over, without the backend's doing.
    pub(crate) fn handed_on(&self, owner: Owner, origin: &Origin<'_>, now: Moment) -> Arc<Self> {
        Self::new(self.id.clone(), self.mode, owner, self.token.plus(1), self.tenure, origin, now)
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "the facts of one hold, all of them needed, none derivable"
    )]
    fn new(
        id: HoldId,
        mode: Mode,
        owner: Owner,
        token: FencingToken,
        tenure: Tenure,
        origin: &Origin<'_>,
        acquired_at: Moment,
    ) -> Arc<Self> {
        let span = tracing::debug_span!(
            parent: origin.caller.unwrap_or(&NO_SPAN), "lockcore.hold", lock = %origin.cell.name(), owner = %owner, token = %token,
            mode = %mode
        );
        let span = (!span.is_disabled()).then(|| Box::new(span));
        let mut account = Account::granted(tenure.lease, tenure.sent);
        account.window = tenure.window.filter(|_| token < tenure.last_token);
        Arc::new(Self {
            id,
            owner,
            mode,
            token,
            tenure,
            cell: origin.cell.clone(),
            site: origin.site,
            task: TaskKey::current(),
            acquired_at,
            span,
            account: Mutex::new(account),
            watched: OnceLock::new(),
        })
    }

    pub(crate) fn name(&self) -> &LockName {
        self.cell.name()
    }

    pub(crate) fn span(&self) -> &Span {
        self.span.as_deref().unwrap_or(&NO_SPAN)
    }

    fn watched(&self) -> &Watched {
        self.watched.get_or_init(Box::default)
    }

    /// Keeps requests that carry a count in order.
    pub(crate) fn storing(&self) -> &tokio::sync::Mutex<()> {
        &self.watched().storing
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something to the account. If that turns out to be the moment at which the hold is lost, everybody is told: this is
    /// the only place where a loss is noticed.
    fn change<T>(&self, now: Moment, change: impl FnOnce(&mut Account) -> T) -> T {
        let mut account = self.account();
        let before = account.phase;
        let result = change(&mut account);
        let after = account.phase;
        drop(account);
        if before != after {
            if let Some(watched) = self.watched.get() {
                watched.ended.notify_waiters();
            }
            if let Phase::Lost(reason) = after {
                self.report_loss(reason, now);
            }
        }
        result
    }

    fn report_loss(&self, reason: LossReason, now: Moment) {
        let held_for = now.since(self.acquired_at);
        tracing::warn!(
            parent: self.span(), lock = %self.name(), owner = %self.owner, token = %self.token, ?held_for, %reason, "hold lost"
        );
    }

    pub(crate) fn enter(&self, lease: Lease, now: Moment) -> Entry {
        self.change(now, |account| account.enter(lease, now))
    }

    pub(crate) fn grown(&self, lease: Lease, sent: Moment, now: Moment) -> Entry {
        self.change(now, |account| account.grown(lease, sent, now))
    }

    pub(crate) fn leave(&self, lease: Lease, now: Moment) -> Departure {
        self.change(now, |account| account.leave(lease, now))
    }

    pub(crate) fn extended(&self, lease: Duration, sent: Moment) {
        self.account().extended(lease, sent);
    }

    pub(crate) fn promise(&self, lease: Duration, sent: Moment) {
        self.account().promise(lease, sent);
    }

    /// How the hold stands at `now`.
    pub(crate) fn phase(&self, now: Moment) -> Phase {
        self.change(now, |account| account.settle(now))
    }

    pub(crate) fn is_live(&self, now: Moment) -> bool {
        self.phase(now) == Phase::Live
    }

    /// The backend no longer knows the hold.
    pub(crate) fn gone(&self, now: Moment) {
        self.end(Phase::Lost(LossReason::Gone), now);
    }

    /// Takes the hold back from its guards. False if it had ended already.
    pub(crate) fn take_back(&self, now: Moment) -> bool {
        self.end(Phase::Released, now)
    }

    /// Ends a live hold. False if it had ended already.
    fn end(&self, how: Phase, now: Moment) -> bool {
        self.change(now, |account| {
            let was_live = account.settle(now) == Phase::Live;
            if was_live {
                account.phase = how;
            }
            was_live
        })
    }

    /// Until when it may be handed on, unless that is over.
    pub(crate) fn window(&self) -> Option<Moment> {
        self.account().window
    }

    /// Whether the backend's lease is still the one that was granted, so that it can be handed on to `lease`.
    pub(crate) fn suits(&self, lease: Duration, now: Moment) -> bool {
        let account = self.account();
        let is_as_granted = account.asked == self.tenure.sent.after(self.tenure.lease.duration());
        let is_wanted = self.tenure.lease == Lease::Renewed(lease);
        is_as_granted && is_wanted && account.window.is_some_and(|window| now < window)
    }

    /// Whether it may be handed on when its last guard is gone.
    pub(crate) fn may_be_handed_on(&self, now: Moment) -> bool {
        self.window().is_some_and(|window| now < window) && self.is_live(now)
    }

    /// It is not handed on any more.
    pub(crate) fn close_window(&self) {
        self.account().window = None;
    }

    /// When the backend was asked for it.
    pub(crate) fn sent(&self) -> Moment {
        self.tenure.sent
    }

    /// Resolves when the hold has ended otherwise than by its last guard.
    pub(crate) async fn ended(&self, clock: &Clock) -> LossReason {
        match self.over(clock).await {
            Some(reason) => reason,
            None => std::future::pending().await,
        }
    }

    /// Resolves when the hold has ended: with `None` by its last guard.
    pub(crate) async fn over(&self, clock: &Clock) -> Option<LossReason> {
        loop {
            let ended = self.watched().ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            match self.phase(clock.now()) {
                Phase::Lost(reason) => return Some(reason),
                Phase::Released => return (self.count() > 0).then_some(LossReason::Closed),
                Phase::Live => {}
            }
            let deadline = self.deadline();
            tokio::select! {
                () = ended => {}
                () = clock.sleep_until(deadline), if self.is_live(clock.now()) => {}
            }
        }
    }

    pub(crate) fn count(&self) -> u32 {
        self.account().count
    }

    pub(crate) fn deadline(&self) -> Moment {
        self.account().deadline
    }

    /// The count that the backend has to be told, if it was told a greater one.
    pub(crate) fn count_to_store(&self) -> Option<u32> {
        let account = self.account();
        let store =
            account.phase == Phase::Live && account.count > 0 && account.stored > account.count;
        store.then_some(account.count)
    }

    pub(crate) fn set_stored(&self, count: u32) {
        self.account().stored = count;
    }

    /// Notes that the backend is being asked for `lease`: the request may be under way for as long as an answer is waited for.
    pub(crate) fn asking(&self, lease: Duration, now: Moment) {
        let mut account = self.account();
        account.asked = account.asked.max(now.after(lease + crate::store::ANSWER));
    }

    /// Until when the backend may have the hold.
    pub(crate) fn asked(&self) -> Moment {
        self.account().asked
    }

    pub(crate) fn stored(&self) -> u32 {
        self.account().stored
    }

    /// The request that renews the hold, if the watchdog is wanted.
    pub(crate) fn renewal(&self, now: Moment) -> Option<RenewRequest> {
        let lease = self.account().renewal(now)?;
        Some(RenewRequest::new(self.name().clone(), self.id.clone(), lease).mode(self.mode))
    }

    /// When it is due next: at the end of the time in which it may be handed on, for a renewal so long after `sent`, or when it ends.
    /// `None` if it has ended.
    pub(crate) fn next_due(&self, sent: Moment) -> Option<Moment> {
        self.account().next_due(sent)
    }

    /// The lease that renewals ask for, for spacing them.
    pub(crate) fn renewal_lease(&self) -> Duration {
        self.account().renewal_lease
    }

    pub(crate) fn release_request(&self) -> ReleaseRequest {
        ReleaseRequest::new(self.name().clone(), self.id.clone()).mode(self.mode)
    }

    /// Exchanges the place in the renewal schedule.
    pub(crate) fn replace_due(&self, due: Option<(Moment, u64)>) -> Option<(Moment, u64)> {
        std::mem::replace(&mut self.account().due, due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn start() -> Moment {
        Clock::with_suspension(|| Duration::ZERO).now()
    }

    #[test]
    fn nested_entries_under_the_watchdog_need_no_growth() {
        let t = start();
        let mut account = Account::granted(Lease::Renewed(SECOND), t);
        assert_eq!(account.enter(Lease::Renewed(SECOND), t.after(SECOND / 2)), Entry::Entered);
        assert_eq!(account.enter(Lease::Fixed(SECOND / 10), t.after(SECOND / 2)), Entry::Entered);
        assert_eq!(account.count, 3);
    }

    #[test]
    fn a_longer_lease_and_a_new_watchdog_have_to_be_asked_for() {
        let t = start();
        let mut account = Account::granted(Lease::Fixed(SECOND), t);
        assert_eq!(
            account.enter(Lease::Renewed(SECOND), t),
            Entry::Grow { count: 2, lease: SECOND },
            "a fixed hold is not renewed until a nested guard wants it"
        );
        assert_eq!(account.grown(Lease::Renewed(SECOND), t, t), Entry::Entered);
        assert_eq!(
            account.enter(Lease::Fixed(2 * SECOND), t),
            Entry::Grow { count: 3, lease: 2 * SECOND }
        );
        assert_eq!(account.count, 2, "nothing is counted before the backend has agreed");
    }

    #[test]
    fn renewals_keep_what_a_fixed_lease_was_promised() {
        let t = start();
        let mut account = Account::granted(Lease::Renewed(SECOND), t);
        account.grown(Lease::Fixed(10 * SECOND), t, t);
        assert_eq!(account.renewal(t.after(SECOND)), Some(9 * SECOND));
        assert_eq!(account.renewal(t.after(20 * SECOND)), Some(SECOND));
    }

    #[test]
    fn a_reply_never_shortens_the_deadline() {
        let t = start();
        let mut account = Account::granted(Lease::Fixed(10 * SECOND), t);
        let before = account.deadline;
        account.extended(SECOND, t.after(SECOND));
        assert_eq!(account.deadline, before);
    }

    #[test]
    fn any_order_of_leaving_ends_with_the_last_guard() {
        let t = start();
        let mut account = Account::granted(Lease::Renewed(SECOND), t);
        account.enter(Lease::Renewed(SECOND), t);
        assert_eq!(account.leave(Lease::Renewed(SECOND), t), Departure::Nested { store: false });
        assert_eq!(account.leave(Lease::Renewed(SECOND), t), Departure::Last);
        assert_eq!(account.enter(Lease::Renewed(SECOND), t), Entry::Ended);
    }

    #[test]
    fn a_count_that_is_full_refuses_and_neither_wraps_nor_panics() {
        let t = start();
        let mut account = Account::granted(Lease::Renewed(SECOND), t);
        account.count = Lock::MAX_HOLD_COUNT;
        assert_eq!(account.enter(Lease::Renewed(SECOND), t), Entry::TooDeep);
        assert_eq!(
            account.enter(Lease::Fixed(9 * SECOND), t),
            Entry::TooDeep,
            "before the backend is asked"
        );
        assert_eq!(
            account.grown(Lease::Fixed(9 * SECOND), t, t),
            Entry::TooDeep,
            "filled while it was asked"
        );
        assert_eq!(account.count, Lock::MAX_HOLD_COUNT);
        account.leave(Lease::Fixed(SECOND), t);
        assert_eq!(account.enter(Lease::Renewed(SECOND), t), Entry::Entered);
    }

    #[test]
    fn a_passed_deadline_is_a_loss_for_everybody() {
        let t = start();
        let mut account = Account::granted(Lease::Fixed(SECOND), t);
        let late = t.after(SECOND);
        assert_eq!(account.enter(Lease::Fixed(SECOND), late), Entry::Lost(LossReason::LeaseEnded));
        assert_eq!(
            account.leave(Lease::Fixed(SECOND), late),
            Departure::Lost { reason: LossReason::LeaseEnded, last: true }
        );
        account.extended(SECOND, late);
        assert_eq!(
            account.settle(late),
            Phase::Lost(LossReason::LeaseEnded),
            "a late reply revives nothing"
        );
    }
}
