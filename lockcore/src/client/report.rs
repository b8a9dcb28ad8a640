//! Reports about acquisitions and holds, to the log and to the metrics.

use std::{sync::Arc, time::Duration};

use tracing::Span;

use super::{
    acquisition::Acquisition,
    foreign::foreign,
    held::Held,
    lanes::{HoldFacts, LaneCell},
    outcome::{Entrance, RenewalEnd},
    shared::Client,
};
use crate::{
    BackendError, FencingToken, LossReason, Mode, Owner,
    engine::{Asker, Hold},
    time::Moment,
};

/// The data of a hold for the report of its loss.
pub(super) struct LostHold<'a> {
    owner: &'a Owner,
    mode: Mode,
    token: FencingToken,
    facts: &'a HoldFacts,
}

impl<'a> LostHold<'a> {
    pub(super) fn of(hold: &'a Hold<HoldFacts>) -> Self {
        let Hold { owner, mode, token, facts, .. } = hold;
        Self { owner, mode: *mode, token: *token, facts }
    }
}

/// The deadline of a hold that is renewed at `sent`. `None` for the renewal by which a hold that
/// was granted for a short time gets its full lease.
pub(super) fn deadline_of_lease(
    hold: &Hold<HoldFacts>,
    lease: Duration,
    sent: Moment,
) -> Option<Moment> {
    let settles = hold.mode == Mode::Fair && sent.since(hold.facts.acquired_at) < lease / 4;
    (!settles).then(|| hold.state.deadline())
}

#[cfg(feature = "metrics")]
impl super::measured_acquisition::Entered for Held {
    fn how(&self) -> Option<Entrance> {
        Some(self.how())
    }
}

impl Acquisition {
    /// An owner that was inside has one more guard.
    pub(super) fn report_nested(&self, held: &Held) {
        self.client.measure.nested(&self.name, self.mode);
        let (token, hold_count) = (|| held.token(), || held.hold_count());
        tracing::debug!(
            lock = %self.name, token = %token(), hold_count = hold_count(), "nested"
        );
    }

    /// The acquisition of `span`, which began at `start`, is over. The span of the hold is a child
    /// of `parent`.
    pub(super) fn report_acquired(
        &self,
        (span, parent): (&Span, &Span),
        asker: &Asker,
        held: &Held,
        start: Moment,
    ) {
        let wait = self.client.clock.now().since(start);
        span.record("wait", tracing::field::debug(wait));
        let (token, how) = (held.token(), held.how());
        span.record("token", u64::from(token));
        tracing::debug!(parent: span, lock = %self.name, %token, ?wait, %how, "acquired");
        let hold = tracing::debug_span!(
            parent: parent, "lockcore.hold", lock = %self.name, owner = %asker.owner,
            %token, mode = %self.mode
        );
        let mut hold = Some(Arc::new(hold));
        held.cell.look_at(held.number, |entered| {
            if entered.facts.span.is_none() {
                entered.facts.span = hold.take();
            }
        });
    }
}

impl Held {
    /// A hold began, and this is its first guard. Each hold is [released](Self::report_end),
    /// [lost](Client::report_loss) or [closed](Client::report_closed) once.
    pub(super) fn begun(mut self, how: Entrance, took: Duration) -> Self {
        self.set_how(how);
        self.client.measure.began(self.cell.name(), self.mode, how, took);
        self
    }

    /// The last guard of the hold is gone.
    pub(super) fn report_end(&self, span: Option<&Span>, since: Moment, how: &str, now: Moment) {
        let (lock, token, held_for) = (self.cell.name(), self.token_unasked(), now.since(since));
        self.client.measure.released(lock, self.mode, held_for);
        let parent = span.unwrap_or(const { &Span::none() });
        foreign(|| tracing::debug!(parent: parent, %lock, %token, ?held_for, "{how}"));
    }

    /// The hold was lost, and its last guard noticed that.
    pub(super) fn report_loss(&self, reason: LossReason, facts: &HoldFacts) {
        let (owner, mode, token) = (&self.owner, self.mode, self.token_unasked());
        let holding = LostHold { owner, mode, token, facts };
        self.client.report_loss(&self.cell, reason, &holding);
    }
}

impl Client {
    pub(super) fn report_loss(&self, cell: &LaneCell, reason: LossReason, holding: &LostHold<'_>) {
        let LostHold { owner, mode, token, facts } = holding;
        facts.tell(Some(reason));
        let held_for = self.clock.now().since(facts.acquired_at);
        self.measure.lost(&cell.name, *mode, reason, held_for);
        foreign(|| {
            tracing::warn!(
                parent: facts.span(), lock = %cell.name, %owner, %token,
                ?held_for, %reason, "hold lost"
            );
        });
    }

    /// These holds of `cell` are closed with their client. Each has its mode, and the time since
    /// which it was held.
    pub(super) fn report_closed(&self, cell: &LaneCell, holds: &[(Mode, Moment)], now: Moment) {
        for (mode, since) in holds {
            self.measure.lost(&cell.name, *mode, LossReason::Closed, now.since(*since));
        }
    }

    /// A renewal succeeded at `now`. `deadline` is the end of the lease before it, if that tells
    /// something about the margin.
    pub(super) fn report_renewed(&self, deadline: Option<Moment>, lease: Duration, now: Moment) {
        self.measure.renewal(RenewalEnd::Renewed);
        if let Some(deadline) = deadline {
            self.measure.margin(deadline.since(now), lease);
        }
    }

    /// The backend does not know a hold that it was asked to renew.
    pub(super) fn report_gone(&self) {
        self.measure.renewal(RenewalEnd::Gone);
    }

    /// A renewal failed at `now`. The client relies on the hold of `span` until `deadline`. Only
    /// the first failure in a row is a warning: an outage concerns each hold, again and again.
    pub(super) fn report_failed_renewal(
        &self,
        cell: &LaneCell,
        (deadline, lease): (Moment, Duration),
        (span, is_first): (Option<&Span>, bool),
        error: BackendError,
        now: Moment,
    ) {
        let (lock, error, remaining) =
            (&cell.name, error.with_lock(&cell.name), deadline.since(now));
        self.measure.margin(remaining, lease);
        let parent = span.unwrap_or(const { &Span::none() });
        foreign(|| match is_first {
            true => tracing::warn!(
                parent: parent, %lock, %error, ?remaining, "renewal failed, will be retried"
            ),
            false => tracing::debug!(
                parent: parent, %lock, %error, ?remaining, "renewal failed again, will be retried"
            ),
        });
    }
}
