//! [`HoldState`]: how many guards one hold has, how long it lasts, and how it ended.

use std::time::Duration;

use crate::{
    FencingToken, LossReason,
    time::{
        ANSWER, Lease, Moment,
        lease::{self, deadline, renewal_period, renewal_retry},
    },
};

/// The most guards that one hold can have: the greatest count that Java can read.
pub(crate) const MAX_HOLD_COUNT: u32 = i32::MAX as u32;

/// Names a hold within its lane. A hold that takes over a parked one has a number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct HoldNumber(pub(super) u64);

/// Names a release within its lane. Numbers rise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ReleaseNumber(pub(super) u64);

/// The state of a hold in its life cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// It has guards, and they may rely on it.
    Live,
    /// Its last guard is gone, and it waits to be taken over: by the head of the queue or, if it is
    /// kept, by the next waiter that comes.
    Parked,
    /// It was lost, and still has guards.
    Lost(LossReason),
    /// `Locks::close()` took the hold back from its guards.
    Closed,
}

/// A request that was refused, and that the backend may grant later without being asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Offer {
    /// The number by which the grant names it.
    pub(crate) number: u64,
    pub(crate) sent: Moment,
    /// For how long its place is kept. A hold that replaces the place ends when the place would
    /// have.
    pub(crate) kept: Duration,
}

impl Offer {
    /// The moment until which the client may rely on a grant.
    pub(super) fn deadline(&self) -> Moment {
        deadline(self.sent, self.kept)
    }

    /// Returns `true` if a grant that is reported now leaves enough time for a renewal and a second
    /// try.
    pub(super) fn lasts(&self, now: Moment) -> bool {
        now.after(renewal_period(self.kept)) < self.deadline()
    }
}

/// The time after a direct grant by which its lease is extended to its full length. Until then, a
/// client that is stopped for less than its lease may lose the hold. Most holds that are handed
/// back and forth are over by then.
const SETTLES: Duration = Duration::from_millis(20);

/// A grant of the backend. Several holds of one client may use it, one after the other.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct Grant {
    /// When it was asked for. For a direct grant, when the client was told.
    pub(crate) sent: Moment,
    pub(crate) lease: Lease,
    /// For a direct grant: the refused request that was granted.
    pub(crate) offer: Option<Offer>,
    /// The last of the tokens that came with it.
    pub(crate) last_token: FencingToken,
    /// The moment until which it may be handed over. It is before any renewal is due, so that no
    /// renewal is ever under way for a hold that is over.
    pub(crate) handover_until: Option<Moment>,
}

impl Grant {
    /// A grant of `tokens` tokens. It may be handed over until `until`, if it has tokens for that.
    pub(crate) fn new(
        sent: Moment,
        lease: Lease,
        token: FencingToken,
        tokens: u32,
        until: Option<Moment>,
    ) -> Self {
        let last_token = token.plus(u64::from(tokens.max(1)) - 1);
        let handover_until = until
            .map(|until| until.min(lease::last_handover(sent, lease.duration())))
            .filter(|_| last_token > token);
        Self { sent, lease, offer: None, last_token, handover_until }
    }

    /// A grant that the client was told of at `now`.
    pub(super) fn told(offer: Offer, lease: Lease, token: FencingToken, now: Moment) -> Self {
        Self { sent: now, lease, offer: Some(offer), last_token: token, handover_until: None }
    }
}

/// The answer to a nested acquisition or an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    /// The lease suffices; the guard is counted.
    Enough,
    /// The lease must grow at the backend first: ask it for this count and lease.
    Ask { count: u32, lease: Duration },
    /// The hold was lost.
    Lost(LossReason),
    /// The hold has as many guards as can be counted.
    TooDeep,
    /// The hold is over; there is nothing to nest in.
    Ended,
}

/// The counts and times of one hold.
#[derive(Clone, Debug, Hash)]
pub(crate) struct HoldState {
    phase: Phase,
    /// Guards alive.
    count: u32,
    /// The greatest count that the backend may have been told.
    stored: u32,
    /// Guards alive that the watchdog renews for.
    renewed: u32,
    /// The longest lease that one of those guards wants.
    renewal_lease: Duration,
    /// The end of the longest fixed lease that was promised. Renewals never end earlier.
    promised: Moment,
    /// The moment until which this client may rely on the hold.
    deadline: Moment,
    /// The moment until which the backend may have the hold: the end of the longest lease it was
    /// asked for.
    asked: Moment,
    /// When the next renewal is due, if a guard is renewed.
    renew_at: Moment,
    /// The moment until which the hold may be handed over, if at all.
    handover_until: Option<Moment>,
    /// The moment until which it is kept, if it was parked while nobody waited.
    kept_until: Option<Moment>,
    /// Set while the backend was asked for nothing but the grant.
    is_as_granted: bool,
}

impl HoldState {
    /// The state of a hold with one guard. `token` is one of those that came with the grant.
    pub(super) fn granted(grant: &Grant, token: FencingToken) -> Self {
        let Grant { sent, lease, offer, last_token, handover_until } = *grant;
        let (deadline, asked, renew_at) = match offer {
            None => (
                deadline(sent, lease.duration()),
                sent.after(lease.duration()),
                sent.after(renewal_period(lease.duration())),
            ),
            Some(offer) => {
                let renewal = SETTLES.min(renewal_period(offer.deadline().since(sent)));
                (offer.deadline(), offer.sent.after(offer.kept), sent.after(renewal))
            }
        };
        let mut state = Self {
            phase: Phase::Live,
            count: 0,
            stored: 1,
            renewed: 0,
            renewal_lease: lease::MIN,
            promised: sent,
            deadline,
            asked,
            renew_at,
            handover_until: handover_until.filter(|_| token < last_token),
            kept_until: None,
            is_as_granted: true,
        };
        state.count_in(lease, sent);
        state
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn deadline(&self) -> Moment {
        self.deadline
    }

    /// Returns `true` if the watchdog renews the hold, so that it does not end by itself.
    pub(crate) fn is_renewed(&self) -> bool {
        self.renewed > 0
    }

    /// The moment until which the backend may have the hold.
    pub(crate) fn asked(&self) -> Moment {
        self.asked
    }

    pub(super) fn handover_until(&self) -> Option<Moment> {
        self.handover_until
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

    /// Turns a passed deadline into a loss. Returns `true` if the hold was lost just now.
    #[must_use]
    pub(super) fn settle(&mut self, now: Moment) -> bool {
        let is_lost = self.phase == Phase::Live && now >= self.deadline;
        is_lost && self.end(Phase::Lost(LossReason::LeaseEnded))
    }

    /// Ends a live hold. Returns `false` if it had ended before.
    pub(super) fn end(&mut self, how: Phase) -> bool {
        let was_live = self.phase == Phase::Live;
        if was_live {
            self.phase = how;
            self.close_window();
        }
        was_live
    }

    /// Keeps the hold for the head of the queue or, until `kept_until`, for the next waiter that
    /// comes.
    pub(super) fn park(&mut self, kept_until: Option<Moment>) {
        (self.phase, self.kept_until) = (Phase::Parked, kept_until);
    }

    /// Returns `true` if it is kept although nobody waits for it.
    pub(super) fn is_kept(&self, now: Moment) -> bool {
        self.phase == Phase::Parked && self.kept_until.is_some_and(|until| now < until)
    }

    /// Stops keeping it.
    pub(super) fn forgo(&mut self) {
        self.kept_until = None;
    }

    /// Counts a nested guard in, if the lease suffices for it. The hold must be settled.
    pub(super) fn enter(&mut self, lease: Lease, now: Moment) -> Growth {
        if let Some(over) = self.over() {
            return over;
        }
        if self.count >= MAX_HOLD_COUNT {
            return Growth::TooDeep;
        }
        let suffices = match lease {
            Lease::Renewed(lease) => self.renewed > 0 && self.renewal_lease >= lease,
            Lease::Fixed(lease) => self.deadline >= now.after(lease),
        };
        if !suffices {
            return Growth::Ask { count: self.count + 1, lease: lease.duration() };
        }
        self.count_in(lease, now);
        Growth::Enough
    }

    /// The backend granted the growth that was asked for at `sent`: counts the guard in.
    pub(super) fn grown(&mut self, lease: Lease, sent: Moment) -> Growth {
        if let Some(over) = self.over() {
            return over;
        }
        if self.count >= MAX_HOLD_COUNT {
            return Growth::TooDeep;
        }
        if self.renewed == 0 {
            self.renew_at = sent.after(renewal_period(lease.duration()));
        }
        self.count_in(lease, sent);
        Growth::Enough
    }

    /// An extension of the lease to at least `lease` is requested, even if as much is left, because
    /// the answer says whether the hold is still there. The hold must be settled, and is not handed
    /// over any more.
    pub(super) fn extend(&mut self, lease: Duration, now: Moment) -> Growth {
        if let Some(over) = self.over() {
            return over;
        }
        self.asking(lease, now);
        self.close_window();
        Growth::Ask { count: self.count, lease }
    }

    /// The backend extended the lease as asked at `sent`, beyond what guards had asked for.
    pub(super) fn promise(&mut self, lease: Duration, sent: Moment) {
        self.promised = self.promised.max(sent.after(lease));
    }

    fn over(&self) -> Option<Growth> {
        match self.phase {
            Phase::Live => None,
            Phase::Lost(reason) => Some(Growth::Lost(reason)),
            Phase::Parked | Phase::Closed => Some(Growth::Ended),
        }
    }

    /// The backend has the hold for at least `lease` from `sent`: it never shortens one.
    pub(super) fn extended(&mut self, lease: Duration, sent: Moment) {
        self.deadline = self.deadline.max(deadline(sent, lease));
    }

    /// Counts a guard out. The hold must be settled.
    pub(super) fn leave(&mut self, lease: Lease) {
        self.count = self.count.saturating_sub(1);
        if matches!(lease, Lease::Renewed(_)) {
            self.renewed = self.renewed.saturating_sub(1);
        }
    }

    /// Returns `true` if another task may take over the hold as it is.
    pub(super) fn suits_handover(&self, now: Moment) -> bool {
        self.is_as_granted && self.is_in_window(now)
    }

    /// Returns `true` if the hold may be handed over when its last guard goes.
    pub(super) fn may_be_handed_over(&self, now: Moment) -> bool {
        self.phase == Phase::Live && self.is_in_window(now)
    }

    fn is_in_window(&self, now: Moment) -> bool {
        self.handover_until.is_some_and(|until| now < until)
    }

    /// Ends the time in which the hold may be handed over.
    pub(super) fn close_window(&mut self) {
        self.handover_until = None;
    }

    /// The next moment at which something is due: the end of the hand-over window, the renewal, or
    /// the deadline.
    pub(super) fn next_due(&self) -> Option<Moment> {
        match self.phase {
            Phase::Live => {
                let next = match self.handover_until {
                    Some(until) => until,
                    None if self.renewed > 0 => self.renew_at,
                    None => self.deadline,
                };
                Some(next.min(self.deadline))
            }
            Phase::Parked => self.kept_until.or(self.handover_until),
            Phase::Lost(_) | Phase::Closed => None,
        }
    }

    /// The lease to renew for, if a renewal is due at `until`.
    pub(super) fn renewal_due(&self, now: Moment, until: Moment) -> Option<Duration> {
        let is_due = self.phase == Phase::Live
            && self.renewed > 0
            && self.handover_until.is_none()
            && self.renew_at <= until;
        is_due.then(|| self.renewal_lease.max(self.promised.since(now)).min(lease::MAX))
    }

    /// A renewal is sent. Another one is due after a while, even if there is no answer.
    pub(super) fn renewing(&mut self, lease: Duration, now: Moment) {
        self.asking(lease, now);
        self.renew_at = now.after(renewal_period(lease));
    }

    /// The renewal that was sent at `sent` succeeded.
    pub(super) fn renewed(&mut self, lease: Duration, sent: Moment) {
        self.extended(lease, sent);
        self.renew_at = sent.after(renewal_period(self.renewal_lease));
    }

    /// The renewal that was sent at `sent` failed, which is not a loss: it is retried until the
    /// deadline, unless another one has been sent since.
    pub(super) fn renewal_failed(&mut self, lease: Duration, sent: Moment, now: Moment) {
        if self.renew_at <= sent.after(renewal_period(lease)) {
            self.renew_at = renewal_retry(lease, sent, now, self.deadline);
        }
    }

    /// The backend is asked for `lease`. The request may be under way for as long as the client
    /// waits for an answer.
    pub(super) fn asking(&mut self, lease: Duration, now: Moment) {
        self.asked = self.asked.max(now.after(lease + ANSWER));
        self.is_as_granted = false;
    }

    /// The count to report to the backend, if it was told a greater one.
    pub(super) fn count_to_store(&self) -> Option<u32> {
        let is_due = self.phase == Phase::Live && self.count > 0 && self.stored > self.count;
        is_due.then_some(self.count)
    }

    pub(super) fn stored(&self) -> u32 {
        self.stored
    }

    pub(super) fn set_stored(&mut self, count: u32) {
        self.stored = count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Clock;

    const SECOND: Duration = Duration::from_secs(1);

    fn start() -> Moment {
        Clock::with_suspension(|| Duration::ZERO).now()
    }

    fn granted(lease: Lease, sent: Moment) -> HoldState {
        let token = FencingToken::from(1);
        HoldState::granted(&Grant::new(sent, lease, token, 1, None), token)
    }

    #[test]
    fn nested_guards_under_the_watchdog_need_no_growth() {
        let t = start();
        let mut hold = granted(Lease::Renewed(SECOND), t);
        assert_eq!(hold.enter(Lease::Renewed(SECOND), t.after(SECOND / 2)), Growth::Enough);
        assert_eq!(hold.enter(Lease::Fixed(SECOND / 10), t.after(SECOND / 2)), Growth::Enough);
        assert_eq!(hold.count, 3);
    }

    #[test]
    fn a_longer_lease_and_a_new_watchdog_have_to_be_asked_for() {
        let t = start();
        let mut hold = granted(Lease::Fixed(SECOND), t);
        assert_eq!(
            hold.enter(Lease::Renewed(SECOND), t),
            Growth::Ask { count: 2, lease: SECOND },
            "a fixed hold is not renewed until a nested guard wants it"
        );
        assert_eq!(hold.grown(Lease::Renewed(SECOND), t), Growth::Enough);
        let longer = Lease::Fixed(2 * SECOND);
        assert_eq!(hold.enter(longer, t), Growth::Ask { count: 3, lease: 2 * SECOND });
        assert_eq!(hold.count, 2, "nothing is counted before the backend has agreed");
    }

    #[test]
    fn renewals_keep_what_a_fixed_lease_was_promised() {
        let t = start();
        let mut hold = granted(Lease::Renewed(SECOND), t);
        hold.extended(10 * SECOND, t);
        assert_eq!(hold.grown(Lease::Fixed(10 * SECOND), t), Growth::Enough);
        let renewal = |hold: &HoldState, now| hold.renewal_due(now, now);
        assert_eq!(renewal(&hold, t.after(SECOND)), Some(9 * SECOND));
        assert_eq!(renewal(&hold, t.after(20 * SECOND)), Some(SECOND));
    }

    #[test]
    fn a_reply_never_shortens_the_deadline() {
        let t = start();
        let mut hold = granted(Lease::Fixed(10 * SECOND), t);
        let before = hold.deadline;
        hold.extended(SECOND, t.after(SECOND));
        assert_eq!(hold.deadline, before);
    }

    #[test]
    fn any_order_of_leaving_ends_with_the_last_guard() {
        let t = start();
        let mut hold = granted(Lease::Renewed(SECOND), t);
        assert_eq!(hold.enter(Lease::Renewed(SECOND), t), Growth::Enough);
        hold.leave(Lease::Renewed(SECOND));
        assert_eq!((hold.count(), hold.next_due()), (1, Some(t.after(SECOND / 3))));
        hold.leave(Lease::Renewed(SECOND));
        assert_eq!((hold.count(), hold.phase()), (0, Phase::Live), "to be parked or released");
    }

    #[test]
    fn a_count_that_is_full_refuses_and_neither_wraps_nor_panics() {
        let t = start();
        let mut hold = granted(Lease::Renewed(SECOND), t);
        hold.count = MAX_HOLD_COUNT;
        let longer = Lease::Fixed(9 * SECOND);
        assert_eq!(hold.enter(Lease::Renewed(SECOND), t), Growth::TooDeep);
        assert_eq!(hold.enter(longer, t), Growth::TooDeep, "before the backend is asked");
        assert_eq!(hold.grown(longer, t), Growth::TooDeep, "filled while it was asked");
        assert_eq!(hold.count, MAX_HOLD_COUNT);
        hold.leave(Lease::Fixed(SECOND));
        assert_eq!(hold.enter(Lease::Renewed(SECOND), t), Growth::Enough);
    }

    #[test]
    fn a_passed_deadline_is_a_loss_for_everybody() {
        let t = start();
        let mut hold = granted(Lease::Fixed(SECOND), t);
        let (late, reason) = (t.after(SECOND), LossReason::LeaseEnded);
        assert!(hold.settle(late), "the loss is noticed");
        assert!(!hold.settle(late), "once");
        assert_eq!(hold.enter(Lease::Fixed(SECOND), late), Growth::Lost(reason));
        hold.extended(SECOND, late);
        assert!(!hold.settle(late));
        assert_eq!(hold.phase, Phase::Lost(reason), "a late reply revives nothing");
        hold.leave(Lease::Fixed(SECOND));
        assert_eq!((hold.count, hold.phase), (0, Phase::Lost(reason)));
    }

    #[test]
    fn a_renewal_that_nobody_answers_is_tried_again_before_the_deadline() {
        let t = start();
        let mut hold = granted(Lease::Renewed(9 * SECOND), t);
        let due = hold.next_due().unwrap();
        assert_eq!(due.since(t), 3 * SECOND);
        hold.renewing(9 * SECOND, due);
        let again = hold.next_due().unwrap();
        assert!(due < again && again < hold.deadline, "{:?}", again.since(t));
    }

    #[test]
    fn a_renewal_that_fails_shortly_before_the_deadline_is_tried_again_before_it() {
        let t = start();
        let mut hold = granted(Lease::Renewed(2 * SECOND), t);
        let late = t.after(SECOND * 37 / 20);
        assert!(late.after(SECOND / 5) > hold.deadline, "the usual time to the next one is longer");
        hold.renewing(2 * SECOND, late);
        hold.renewal_failed(2 * SECOND, late, late);
        let again = hold.next_due().unwrap();
        assert!(late < again && again < hold.deadline, "{:?}", again.since(t));
        assert_eq!(hold.renewal_due(again, again), Some(2 * SECOND));
    }

    #[test]
    fn a_renewal_that_has_waited_for_long_is_tried_again_at_once() {
        let t = start();
        let mut hold = granted(Lease::Renewed(30 * SECOND), t);
        let (sent, now) = (t.after(10 * SECOND), t.after(13 * SECOND));
        hold.renewing(30 * SECOND, sent);
        hold.renewal_failed(30 * SECOND, sent, now);
        let again = hold.next_due().unwrap();
        assert!(now < again && again.since(now) <= SECOND / 100, "{:?}", again.since(now));
        // One that has failed at once has a pause.
        hold.renewing(30 * SECOND, now);
        hold.renewal_failed(30 * SECOND, now, now);
        assert_eq!(hold.next_due().unwrap().since(now), SECOND);
    }

    #[test]
    fn a_renewal_that_failed_is_not_tried_again_beside_a_newer_one() {
        let t = start();
        let mut hold = granted(Lease::Renewed(30 * SECOND), t);
        let (first, second, now) =
            (t.after(9 * SECOND), t.after(18 * SECOND), t.after(19 * SECOND));
        hold.renewing(30 * SECOND, first);
        hold.renewing(30 * SECOND, second);
        hold.renewal_failed(30 * SECOND, first, now);
        assert_eq!(hold.next_due().unwrap().since(second), 10 * SECOND);
        hold.renewal_failed(30 * SECOND, second, now);
        assert_eq!(hold.next_due().unwrap().since(now), SECOND / 200);
    }
}
